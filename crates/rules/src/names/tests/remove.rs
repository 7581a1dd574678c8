//! Plans of `Unlink` and `Rmdir`.

use super::*;
use crate::permission::STICKY;

#[test]
fn a_name_must_exist_before_the_right_to_remove_it_matters() {
    let mut tree = Tree::of_other();
    tree.attr(ROOT).mode = 0o755;
    assert_eq!(tree.refuse(&unlink(ROOT, "d")), Errno::ENOENT);
    assert_eq!(tree.refuse(&rmdir(ROOT, "d")), Errno::ENOENT);
    tree.add_dir(ROOT, "d", 0o777);
    assert_eq!(tree.refuse(&unlink(ROOT, "d")), Errno::EACCES);
    assert_eq!(tree.refuse(&rmdir(ROOT, "d")), Errno::EACCES);
}

#[test]
fn rights_and_flags_are_checked_before_the_kind() {
    let mut tree = Tree::of_other();
    let (file, dir) = (tree.add_file(ROOT, "f", 0o666), tree.add_dir(ROOT, "d", 0o777));
    let wrong = [unlink(ROOT, "d"), rmdir(ROOT, "f")];
    tree.attr(ROOT).mode |= STICKY;
    assert_eq!(wrong.each_ref().map(|it| tree.refuse(it)), [Errno::EPERM; 2], "sticky");
    tree.attr(ROOT).mode &= !STICKY;
    tree.attr(ROOT).flags = InodeFlags::APPEND;
    assert_eq!(wrong.each_ref().map(|it| tree.refuse(it)), [Errno::EPERM; 2], "append-only");
    tree.attr(ROOT).flags = InodeFlags::empty();
    for ino in [file, dir] {
        tree.attr(ino).flags = InodeFlags::IMMUTABLE;
    }
    assert_eq!(wrong.each_ref().map(|it| tree.refuse(it)), [Errno::EPERM; 2], "immutable");
    for ino in [file, dir] {
        tree.attr(ino).flags = InodeFlags::empty();
    }
    assert_eq!(wrong.each_ref().map(|it| tree.refuse(it)), [Errno::EISDIR, Errno::ENOTDIR]);
}

#[test]
fn a_directory_with_names_is_not_removed() {
    let mut tree = Tree::of_owner();
    let dir = tree.add_dir(ROOT, "d", 0o777);
    tree.add_file(dir, "f", 0);
    assert_eq!(tree.refuse(&rmdir(ROOT, "d")), Errno::ENOTEMPTY);
    assert_eq!(tree.carry_out(&unlink(dir, "f")), Outcome::Done);
    assert_eq!(tree.carry_out(&rmdir(ROOT, "d")), Outcome::Done);
    assert_eq!((tree.attr(dir).nlink, tree.attr(ROOT).nlink), (0, 2));
    assert_eq!(tree.inodes[&ROOT].entries, 0);
}

#[test]
fn a_name_without_an_inode_is_an_error_of_the_volume() {
    let mut tree = Tree::of_owner();
    tree.names.insert((ROOT, name("a")), GONE);
    assert_eq!(tree.refuse(&unlink(ROOT, "a")), Errno::EIO);
}
