//! Plans of `Link`.

use warren_base::limits::LINK_MAX;

use super::*;
use crate::fixtures::checked;

#[test]
fn a_name_that_exists_is_reported_before_the_inode_is_looked_at() {
    let mut tree = Tree::of_other();
    tree.add_file(ROOT, "a", 0);
    assert_eq!(tree.refuse(&link(GONE, ROOT, "a")), Errno::EEXIST);
    assert_eq!(tree.refuse(&link(GONE, ROOT, "b")), Errno::ESTALE);
}

#[test]
fn the_right_to_the_inode_is_checked_before_the_directory_and_that_before_the_kind() {
    let mut tree = Tree::of_other();
    let secret = tree.add_file(ROOT, "secret", 0o600);
    let shared = tree.add_file(ROOT, "shared", 0o666);
    tree.attr(shared).flags = InodeFlags::APPEND;
    tree.attr(ROOT).mode = 0o755;
    assert_eq!(tree.refuse(&link(secret, ROOT, "b")), Errno::EPERM);
    assert_eq!(tree.refuse(&link(shared, ROOT, "b")), Errno::EACCES);
    tree.attr(ROOT).mode = 0o777;
    assert_eq!(tree.refuse(&link(shared, ROOT, "b")), Errno::EPERM, "a flag keeps it");
    let mut tree = Tree::of_owner();
    let dir = tree.add_dir(ROOT, "d", 0o777);
    assert_eq!(tree.refuse(&link(dir, ROOT, "b")), Errno::EPERM);
    tree.attr(ROOT).nlink = 0;
    assert_eq!(tree.refuse(&link(dir, ROOT, "b")), Errno::ENOENT, "the parent is removed");
}

#[test]
fn a_file_without_links_gets_one_only_from_a_kernel() {
    let mut tree = Tree::of_owner();
    let ino = tree.add_file(ROOT, "a", 0o644);
    tree.attr(ino).nlink = 0;
    assert_eq!(tree.refuse(&link(ino, ROOT, "b")), Errno::ENOENT);
    tree.who = checked(10);
    assert!(tree.plan(&link(ino, ROOT, "b")).is_ok());
}

#[test]
fn the_number_of_links_is_limited() {
    let mut tree = Tree::of_owner();
    let ino = tree.add_file(ROOT, "a", 0o644);
    tree.attr(ino).nlink = LINK_MAX;
    assert_eq!(tree.refuse(&link(ino, ROOT, "b")), Errno::EMLINK);
}

#[test]
fn the_reply_has_the_attributes_that_the_changes_make() {
    let mut tree = Tree::of_owner();
    let ino = tree.add_file(ROOT, "a", 0o644);
    let outcome = tree.carry_out(&link(ino, ROOT, "b"));
    let attr = *tree.attr(ino);
    assert_eq!(outcome, Outcome::Entry { ino, kind: FileKind::Regular, attr: Some(attr) });
    assert_eq!((attr.nlink, attr.ctime, attr.mtime), (2, NOW, MADE));
}
