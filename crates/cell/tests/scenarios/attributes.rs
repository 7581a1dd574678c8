//! **Requests on one inode.** Attributes, extended attributes, symbolic links, offsets: one shard
//! holds all of it. So each of these requests is checked and executed in one run, and its change is
//! one record of the log.
//!
//! The supervisor admits a client with its credentials, and the cell checks permissions in the
//! order of Linux. The kernel of a FUSE front has checked them already.
//!
//! The code: `inode.rs`, `inode/attributes.rs`, `inode/xattr.rs`, and
//! `permission.rs` and `set_attr.rs` of the crate `rules`.

use std::time::Duration;

use warren_base::{Errno, FileKind, InodeFlags, Timestamp};
use warren_proto::{
    AccessMode, CreateFlags, NewInode, Position, Reply, Request, SetAttr, SetTime, XattrMode,
    XattrName,
};

use crate::bytes::page;
use crate::client::{fsync, read};
use crate::image::name;
use crate::pair::*;

#[test]
fn only_the_owner_may_change_the_mode() {
    let mut pair = Pair::alone();
    let (root, stranger) = (pair.client(), pair.client_of(1000));
    let ino = pair.create(root, IN_A, "file").ino;
    let chmod = Request::SetAttr {
        ino,
        handle: None,
        set: SetAttr { mode: Some(0o600), ..SetAttr::default() },
    };
    assert_eq!(pair.call(stranger, chmod.clone()), Err(Errno::EPERM));
    assert_eq!(pair.attr(root, ino).mode, 0o644, "nothing was changed");
    let before = pair.attr(root, ino).ctime;
    pair.wait(Duration::from_secs(1));
    assert!(pair.call(root, chmod).is_ok());
    let after = pair.attr(root, ino);
    assert_eq!(after.mode, 0o600);
    assert!(after.ctime > before);
}

#[test]
fn a_write_of_another_user_clears_the_set_id_bits() {
    let mut pair = Pair::alone();
    let (root, user) = (pair.client(), pair.client_of(1000));
    let ino = pair.create(root, IN_A, "program").ino;
    let set = SetAttr { mode: Some(0o4777), ..SetAttr::default() };
    assert!(pair.call(root, Request::SetAttr { ino, handle: None, set }).is_ok());
    let by_root = pair.open(root, ino);
    pair.write(root, by_root, 0, b"one");
    assert_eq!(pair.attr(root, ino).mode, 0o4777, "root keeps them");
    let handle = pair.open(user, ino);
    pair.write(user, handle, 0, b"two");
    assert_eq!(pair.attr(root, ino).mode, 0o777);
}

#[test]
fn a_new_owner_clears_the_set_id_bits() {
    let mut pair = Pair::alone();
    let root = pair.client();
    let ino = pair.create(root, IN_A, "program").ino;
    let set_mode = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
    let set_owner = SetAttr { uid: Some(1000), ..SetAttr::default() };
    for (set, mode) in [(set_mode, 0o6755), (set_owner, 0o755)] {
        assert!(pair.call(root, Request::SetAttr { ino, handle: None, set }).is_ok());
        assert_eq!(pair.attr(root, ino).mode, mode);
    }
    let owner = pair.client_of(1000);
    assert!(pair.call(owner, Request::SetAttr { ino, handle: None, set: set_mode }).is_ok());
}

#[test]
fn an_extended_attribute_is_created_replaced_and_removed() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let ino = pair.create(client, IN_A, "file").ino;
    let key = || XattrName::new(b"user.colour").expect("a name");
    let set = |value: &[u8], mode| Request::SetXattr {
        ino,
        name: key(),
        value: value.into(),
        mode,
        kill_set_gid: false,
    };
    assert_eq!(pair.call(client, set(b"red", XattrMode::Replace)), Err(Errno::ENODATA));
    assert_eq!(pair.call(client, set(b"red", XattrMode::Create)), Ok(Reply::Done));
    assert_eq!(pair.call(client, set(b"blue", XattrMode::Create)), Err(Errno::EEXIST));
    let get = Request::GetXattr { ino, name: key() };
    assert_eq!(pair.call(client, get.clone()), Ok(Reply::Xattr(b"red"[..].into())));
    let list = vec![b"user.colour"[..].into()];
    assert_eq!(pair.call(client, Request::ListXattr { ino }), Ok(Reply::XattrNames(list)));
    assert_eq!(pair.call(client, Request::RemoveXattr { ino, name: key() }), Ok(Reply::Done));
    assert_eq!(pair.call(client, get), Err(Errno::ENODATA));
}

#[test]
fn attributes_are_durable_after_fsync() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let (ino, name) = (file.ino, XattrName::new(b"user.colour").expect("a name"));
    let value = b"red"[..].into();
    let set = Request::SetXattr {
        ino,
        name: name.clone(),
        value,
        mode: XattrMode::Any,
        kill_set_gid: false,
    };
    assert_eq!(pair.call(client, set), Ok(Reply::Done));
    // In 2300: such times are stored as numbers before 1901.
    let late = Timestamp::from_parts(10_413_792_000, 7);
    let mtime = Some(SetTime::At(late));
    let set = SetAttr { mode: Some(0o640), uid: Some(7), mtime, ..SetAttr::default() };
    assert!(pair.call(client, Request::SetAttr { ino, handle: None, set }).is_ok());
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    let attr = pair.attr(client, ino);
    assert_eq!((attr.mode, attr.uid, attr.mtime), (0o640, 7, late));
    assert!(attr.mtime > attr.ctime);
    let get = Request::GetXattr { ino, name };
    assert_eq!(pair.call(client, get), Ok(Reply::Xattr(b"red"[..].into())));
}

#[test]
fn a_read_moves_the_offset_of_its_open_file() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"0123456789");
    let next = |pair: &mut Pair| {
        let call = pair.send(client, read(file, Position::Current, 3));
        pair.bytes_of(call)
    };
    assert_eq!(next(&mut pair), b"012");
    assert_eq!(next(&mut pair), b"345");
    assert_eq!(pair.call(client, Request::Seek { handle: file, position: 8 }), Ok(Reply::Done));
    assert_eq!(next(&mut pair), b"89");
    assert_eq!(next(&mut pair), b"", "the end of the file");
}

#[test]
fn a_handle_is_valid_for_its_client_until_it_is_closed() {
    let mut pair = Pair::alone();
    let (client, other) = (pair.client(), pair.client());
    let file = pair.file(client, IN_A, "file", b"text");
    let look = || read(file, Position::At(0), 4);
    assert_eq!(pair.call(other, look()), Err(Errno::EBADF));
    assert_eq!(pair.call(other, Request::Close { handle: file }), Err(Errno::EBADF));
    assert_eq!(pair.read(client, file, 0, 4), b"text");
    pair.close(client, file);
    assert_eq!(pair.call(client, look()), Err(Errno::EBADF));
    assert_eq!(pair.call(client, fsync(file)), Err(Errno::EBADF));
}

#[test]
fn a_symbolic_link_returns_its_target() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let new = NewInode::symlink(b"../where/it/leads");
    let (flags, access) = (CreateFlags::empty(), AccessMode::empty());
    let request = Request::Create { dir: IN_A, name: name("link"), new, flags, access };
    let Ok(Reply::Created { entry, .. }) = pair.call(client, request) else {
        panic!("it is not created");
    };
    assert_eq!(entry.kind, FileKind::Symlink);
    let target = Ok(Reply::Target(b"../where/it/leads"[..].into()));
    assert_eq!(pair.call(client, Request::ReadLink { ino: entry.ino }), target);
    let directory = pair.call(client, Request::ReadLink { ino: IN_A });
    assert_eq!(directory, Err(Errno::EINVAL));
}

#[test]
fn statfs_counts_the_blocks_and_inodes_of_all_cells() {
    let mut pair = Pair::new();
    let client = pair.client();
    let used = |pair: &mut Pair| match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => (stat.blocks - stat.blocks_free, stat.files - stat.files_free),
        other => panic!("{other:?}"),
    };
    pair.sync(client);
    let before = used(&mut pair);
    pair.file(client, IN_A, "file", page(1));
    pair.file(client, IN_B, "file", page(2).repeat(10));
    pair.sync(client);
    let after = used(&mut pair);
    assert_eq!(after.1, before.1 + 2);
    assert!(after.0 >= before.0 + 11, "{} blocks, {} before", after.0, before.0);
}

#[test]
fn a_file_that_only_grows_is_not_emptied_by_an_open_that_appends() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "log", page(1));
    let set = SetAttr { flags: Some(InodeFlags::APPEND), ..SetAttr::default() };
    let flagged = pair.call(client, Request::SetAttr { ino: file.ino, handle: None, set });
    assert!(flagged.is_ok());
    let open = |pair: &mut Pair, access| {
        pair.call(client, Request::Open { ino: file.ino, access }).map(drop)
    };
    let append = AccessMode::WRITE | AccessMode::APPEND;
    assert_eq!(open(&mut pair, append), Ok(()));
    for access in [
        append | AccessMode::TRUNCATE,
        AccessMode::READ | AccessMode::TRUNCATE,
        AccessMode::WRITE,
        AccessMode::WRITE | AccessMode::TRUNCATE,
    ] {
        assert_eq!(open(&mut pair, access), Err(Errno::EPERM), "{access:?}");
    }
    assert_eq!(pair.attr(client, file.ino).size, page(1).0.len() as u64);
}
