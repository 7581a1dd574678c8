//! A full pool, and a pool on a full host. Requests that need no room, or free some, succeed. The
//! cell promises no block that cannot be written.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{Errno, Ino};
use warren_proto::{
    ACL_ACCESS, AccessMode, CreateFlags, FileKind, FileName, Handle, NewInode, Position, ReadFlags,
    RenameFlags, Reply, Request, SetAttr, XattrMode, XattrName,
};

use crate::bench::{Bench, DIR, Image, create, name};

fn file(bench: &mut Bench, text: &str) -> Result<Handle, Errno> {
    let (flags, access) = (CreateFlags::OPEN, AccessMode::READ | AccessMode::WRITE);
    let new = NewInode { kind: FileKind::Regular, ..NewInode::regular(0o644) };
    match bench.call(Request::Create { dir: Ino::ROOT, name: name(text), new, flags, access })? {
        Reply::Created { opened: Some(opened), .. } => Ok(opened.handle),
        other => panic!("{other:?}"),
    }
}

fn write(bench: &mut Bench, handle: Handle, page: u64) -> Result<(), Errno> {
    let position = Position::At(page * BLOCK_SIZE as u64);
    bench
        .call(Request::Write {
            handle,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        })
        .map(drop)
}

/// Writes pages until there is no room. Returns how many.
fn fill(bench: &mut Bench, handle: Handle) -> u64 {
    let full = (0..).find(|page| write(bench, handle, *page).is_err()).expect("it ends");
    assert_eq!(write(bench, handle, full), Err(Errno::ENOSPC));
    full
}

fn free(bench: &mut Bench) -> u64 {
    match bench.call(Request::StatFs) {
        Ok(Reply::StatFs(volume)) => volume.blocks_free,
        other => panic!("{other:?}"),
    }
}

fn close(bench: &mut Bench, handle: Handle) {
    assert_eq!(bench.call(Request::Close { handle }), Ok(Reply::Done));
}

fn unlink(bench: &mut Bench, text: &str) {
    assert_eq!(bench.call(Request::Unlink { dir: Ino::ROOT, name: name(text) }), Ok(Reply::Done));
}

#[test]
fn a_full_host_takes_no_more_than_it_has_room_for_and_goes_on_when_there_is_some() {
    for room in [0, 1, 3, 9] {
        let mut bench = Bench::sparse(&Image::new(), room);
        let data = match file(&mut bench, "data") {
            Err(Errno::ENOSPC) if room == 0 => continue,
            other => other.expect("room for a name"),
        };
        let pages = fill(&mut bench, data);
        assert!(free(&mut bench) < 2 * CHUNK_BLOCKS, "{} are said to be free", free(&mut bench));
        // Written data is kept, and existing data can be read and removed.
        assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
        let read = Request::Read {
            handle: data,
            position: Position::At(0),
            len: 100,
            flags: ReadFlags::empty(),
        };
        assert_eq!(bench.call(read), Ok(Reply::Read { len: 100 }));
        bench.host_room += 2;
        let more = fill(&mut bench, data) - pages;
        assert!(more > CHUNK_BLOCKS, "{more} pages on two chunks more");
        unlink(&mut bench, "data");
        close(&mut bench, data);
        assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
        assert!(write_again(&mut bench) >= pages);
    }
}

fn write_again(bench: &mut Bench) -> u64 {
    let again = file(bench, "again").expect("room again");
    fill(bench, again)
}

#[test]
fn what_a_delete_frees_is_free_at_once_and_goes_back_to_the_host() {
    let mut bench = Bench::sparse(&Image::new(), 14);
    let before = free(&mut bench);
    let data = file(&mut bench, "data").expect("room");
    fill(&mut bench, data);
    bench.call(Request::Sync).expect("room for it");
    assert!(bench.host_room < 3);
    bench.grants = false;
    unlink(&mut bench, "data");
    close(&mut bench, data);
    let after = free(&mut bench);
    assert!(after + 20 > before, "{after} of {before} are free");
    // The last checkpoint needs them.
    assert!(bench.host_room < 3);
    bench.grants = true;
    // The first checkpoint frees the blocks, the second lets chunks leave the shard.
    for _ in 0..2 {
        bench.call(Request::Sync).expect("room for it");
    }
    // The host is nearly full, so no free chunks are kept.
    assert!(bench.host_room > 8, "{}", bench.host_room);
}

/// `user::rw-,user:7:r--,group::r--,mask::r--,other::---` as an attribute.
const LIST: &[u8] = &[
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 7, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255,
    255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

/// Sets or removes the access list of a file.
fn list_of(ino: Ino, list: Option<&[u8]>) -> Request {
    let name = XattrName::new(ACL_ACCESS).expect("a legal name");
    match list {
        None => Request::RemoveXattr { ino, name },
        Some(list) => {
            let (mode, value) = (XattrMode::Any, list.into());
            Request::SetXattr { ino, name, value, mode, kill_set_gid: false }
        }
    }
}

fn fill_with_attributes(bench: &mut Bench, ino: Ino) {
    let full = (0..).find_map(|number| {
        let name = XattrName::new(format!("user.{number}").as_bytes()).expect("a legal name");
        let (mode, value) = (XattrMode::Any, vec![7; 1000].into());
        bench.call(Request::SetXattr { ino, name, value, mode, kill_set_gid: false }).err()
    });
    assert_eq!(full, Some(Errno::ENOSPC));
}

#[test]
fn on_a_full_pool_what_needs_no_room_succeeds() {
    for synced in [false, true] {
        let mut bench = Bench::new(&Image::new(), false);
        let dir = create(Ino::ROOT, "empty", FileKind::Directory);
        bench.call(dir).expect("room");
        let data = file(&mut bench, "data").expect("room");
        bench.call(list_of(data.ino, Some(LIST))).expect("room for a list");
        let pages = fill(&mut bench, data);
        let names = fill_with_names(&mut bench);
        assert!(names >= 12, "{names} names");
        fill_with_attributes(&mut bench, data.ino);
        assert_eq!(bench.call(list_of(data.ino, None)), Ok(Reply::Done), "removal of a list");
        for round in 0..names {
            if synced {
                bench.call(Request::Sync).expect("a checkpoint");
            }
            let (from, to) = (format!("n{round}"), format!("m{round}"));
            let rename = Request::Rename {
                from: Ino::ROOT,
                from_name: name(&from),
                dir: Ino::ROOT,
                name: name(&to),
                flags: RenameFlags::empty(),
            };
            assert_eq!(bench.call(rename), Ok(Reply::Done), "rename {round}");
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            let set = Request::SetAttr { ino: data.ino, handle: None, set };
            assert!(bench.call(set).is_ok(), "chmod {round}");
        }
        let rmdir = |dir, name: FileName| Request::Rmdir { dir, name };
        assert_eq!(bench.call(rmdir(Ino::ROOT, name("empty"))), Ok(Reply::Done));
        let size = Some(pages * BLOCK_SIZE as u64 / 2 + 1);
        let set = Request::SetAttr {
            ino: data.ino,
            handle: None,
            set: SetAttr { size, ..SetAttr::default() },
        };
        assert!(bench.call(set).is_ok(), "truncate");
        unlink(&mut bench, "m3");
        bench.call(Request::Sync).expect("a checkpoint");
        assert!(fill(&mut bench, data) > 0);
    }
}

/// Creates empty files until there is no room. Returns how many.
fn fill_with_names(bench: &mut Bench) -> u64 {
    let mut made = 0;
    while bench.call(create(Ino::ROOT, &format!("n{made}"), FileKind::Regular)).is_ok() {
        made += 1;
    }
    let in_root = made;
    // The directory lies in the other shard.
    while bench.call(create(DIR, &format!("n{made}"), FileKind::Regular)).is_ok() {
        made += 1;
    }
    in_root
}
