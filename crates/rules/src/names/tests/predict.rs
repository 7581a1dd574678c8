//! Predictions for one inode. A test of the crate `cell` compares them with the inodes of a shard.

use super::*;

fn dir_of(nlink: u32, entries: u64) -> InodeValue {
    let mut value = new_inode(ROOT, &NewInode::directory(0o755), 10, 20, ROOT, MADE);
    (value.attr.nlink, value.entries) = (nlink, entries);
    value
}

#[test]
fn a_directory_has_a_link_for_each_subdirectory() {
    let replace =
        |kind| Change::ReplaceEntry { dir: ROOT, name: name("a"), ino: GONE, kind, now: NOW };
    let (file, dir) = (FileKind::Regular, FileKind::Directory);
    for (new, gone, nlink) in [(file, file, 3), (file, dir, 2), (dir, file, 4), (dir, dir, 3)] {
        let mut value = dir_of(3, 5);
        apply(&replace(new), &mut value, Some(gone));
        assert_eq!((value.attr.nlink, value.entries), (nlink, 5));
    }
}

#[test]
fn counts_stay_within_their_range() {
    let remove = Change::RemoveEntry { dir: ROOT, name: name("a"), now: NOW };
    let mut value = dir_of(2, 0);
    apply(&remove, &mut value, Some(FileKind::Directory));
    assert_eq!((value.attr.nlink, value.entries), (2, 0));
    let (ino, kind) = (GONE, FileKind::Directory);
    let add = Change::AddEntry { dir: ROOT, name: name("a"), ino, kind, now: NOW };
    let mut value = dir_of(u32::MAX, u64::MAX);
    apply(&add, &mut value, None);
    assert_eq!((value.attr.nlink, value.entries), (u32::MAX, u64::MAX));
    let mut value = new_inode(GONE, &NewInode::regular(0), 10, 20, ROOT, MADE);
    for _ in 0..2 {
        apply(&Change::RemoveLink { ino: GONE, now: NOW }, &mut value, None);
    }
    assert_eq!(value.attr.nlink, 0);
}

#[test]
fn times_of_a_directory_do_not_go_back() {
    let mut value = dir_of(2, 1);
    value.attr.ctime = Timestamp(20);
    apply(&Change::RemoveEntry { dir: ROOT, name: name("a"), now: NOW }, &mut value, None);
    apply(&Change::Touch { ino: ROOT, now: NOW }, &mut value, None);
    assert_eq!((value.attr.mtime, value.attr.ctime, value.entries), (MADE, Timestamp(20), 1));
    let mut value = new_inode(GONE, &NewInode::regular(0), 10, 20, ROOT, Timestamp(20));
    apply(&Change::Touch { ino: GONE, now: NOW }, &mut value, None);
    assert_eq!(value.attr.ctime, NOW);
}
