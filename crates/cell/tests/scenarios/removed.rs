//! **Removed directories.** The inode of a directory that no client has open ends with its name.
//! The kernel behind a front may still have it as a working directory, and does not say so. The
//! cell remembers its last attributes, and a front requests them for its kernel.
//!
//! The code: `shard/removed_dirs.rs`, `reap.rs`.

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{AccessMode, Answer, Attr, CreateFlags, NewInode, Reply, Request, SetAttr};

use crate::image::name;
use crate::pair::*;

fn make(pair: &mut Pair, client: ClientId, dir: Ino, text: &str) -> Ino {
    let new = NewInode::directory(0o750);
    let (flags, access) = (CreateFlags::empty(), AccessMode::empty());
    match pair.call(client, Request::Create { dir, name: name(text), new, flags, access }) {
        Ok(Reply::Created { entry, .. }) => entry.ino,
        other => panic!("it is not created: {other:?}"),
    }
}

fn remove(pair: &mut Pair, client: ClientId, dir: Ino, text: &str) {
    let rmdir = Request::Rmdir { dir, name: name(text) };
    assert_eq!(pair.call(client, rmdir), Ok(Reply::Done));
}

fn attr_of(answer: Answer) -> Attr {
    match answer {
        Ok(Reply::Attr { attr, lease: None }) => attr,
        other => panic!("no attributes: {other:?}"),
    }
}

#[test]
fn a_front_gets_the_last_attributes_of_a_removed_directory() {
    let mut pair = Pair::new();
    let (client, front) = (pair.client(), pair.front());
    for number in 0..8 {
        // At either cell, so that some are removed by a transaction.
        let text = format!("dir{number}");
        let dir = make(&mut pair, client, IN_A, &text);
        let request = Request::GetRemoved { dir };
        assert_eq!(pair.call(front, request.clone()), Err(Errno::ESTALE), "it is there");
        let before = pair.attr(client, dir);
        remove(&mut pair, client, IN_A, &text);
        assert_eq!(pair.call(front, Request::GetAttr { ino: dir }), Err(Errno::ESTALE));
        let last = attr_of(pair.call(front, request.clone()));
        let expected = Attr { nlink: 0, ctime: last.ctime, ..before };
        assert_eq!(last, expected);
        assert!(last.ctime >= before.ctime);
        assert_eq!(pair.call(client, request), Err(Errno::ESTALE), "it has no kernel");
    }
}

#[test]
fn nothing_is_remembered_of_a_file() {
    let mut pair = Pair::alone();
    let (client, front) = (pair.client(), pair.front());
    let file = pair.file(client, IN_A, "file", b"text");
    pair.close(client, file);
    pair.unlink(client, IN_A, "file");
    assert_eq!(pair.call(front, Request::GetRemoved { dir: file.ino }), Err(Errno::ESTALE));
}

#[test]
fn a_directory_that_was_open_is_remembered_as_it_was_closed() {
    let mut pair = Pair::alone();
    let front = pair.front();
    let dir = make(&mut pair, front, IN_A, "dir");
    let open = Request::Open { ino: dir, access: AccessMode::READ };
    let Ok(Reply::Opened(opened)) = pair.call(front, open) else { panic!("it is not opened") };
    remove(&mut pair, front, IN_A, "dir");
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    assert!(pair.call(front, Request::SetAttr { ino: dir, handle: None, set }).is_ok());
    assert_eq!(pair.attr(front, dir).nlink, 0);
    pair.close(front, opened.handle);
    pair.drive();
    let last = attr_of(pair.call(front, Request::GetRemoved { dir }));
    assert_eq!((last.mode, last.nlink), (0o700, 0));
}
