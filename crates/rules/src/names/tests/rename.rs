//! Plans of `Rename`.

use super::*;
use crate::permission::STICKY;

const PLAIN: RenameFlags = RenameFlags::empty();

#[test]
fn flags_that_exclude_each_other_are_refused_first() {
    for flag in [RenameFlags::NOREPLACE, RenameFlags::WHITEOUT] {
        let request = rename((GONE, "a"), (GONE, "b"), RenameFlags::EXCHANGE | flag);
        assert_eq!(Tree::of_owner().refuse(&request), Errno::EINVAL);
    }
}

#[test]
fn both_directories_are_searched_before_the_old_name_and_that_is_found_before_the_new_one() {
    let mut tree = Tree::of_other();
    let secret = tree.add_dir(ROOT, "secret", 0o766);
    assert_eq!(tree.refuse(&rename((ROOT, "a"), (secret, "b"), PLAIN)), Errno::EACCES);
    tree.add_file(ROOT, "b", 0);
    let noreplace = rename((ROOT, "a"), (ROOT, "b"), RenameFlags::NOREPLACE);
    assert_eq!(tree.refuse(&noreplace), Errno::ENOENT);
    tree.attr(ROOT).mode = 0o555;
    tree.add_file(ROOT, "a", 0);
    assert_eq!(tree.refuse(&noreplace), Errno::EEXIST, "before any right");
    let exchange = rename((ROOT, "a"), (ROOT, "c"), RenameFlags::EXCHANGE);
    assert_eq!(tree.refuse(&exchange), Errno::ENOENT, "before any right");
    assert_eq!(tree.refuse(&rename((ROOT, "a"), (ROOT, "c"), PLAIN)), Errno::EACCES);
}

#[test]
fn two_names_of_one_inode_both_stay_whatever_the_rights() {
    let mut tree = Tree::of_owner();
    let ino = tree.add_file(ROOT, "a", 0);
    tree.carry_out(&link(ino, ROOT, "b"));
    tree.attr(ROOT).mode = 0o555;
    let plan = tree.plan(&rename((ROOT, "a"), (ROOT, "b"), PLAIN)).expect("it is allowed");
    assert_eq!(plan, Plan { changes: Vec::new(), outcome: Outcome::Unchanged });
}

#[test]
fn a_request_for_files_alone_moves_no_directory() {
    let mut tree = Tree::of_other();
    tree.attr(ROOT).mode = 0o555;
    tree.add_dir(ROOT, "d", 0o777);
    tree.add_file(ROOT, "f", 0o666);
    let (files, exchange) = (RenameFlags::FILES, RenameFlags::EXCHANGE);
    assert_eq!(tree.refuse(&rename((ROOT, "d"), (ROOT, "e"), files)), Errno::ETXTBSY);
    assert_eq!(tree.refuse(&rename((ROOT, "f"), (ROOT, "d"), files | exchange)), Errno::ETXTBSY);
    assert_eq!(tree.refuse(&rename((ROOT, "f"), (ROOT, "d"), files)), Errno::EACCES);
}

#[test]
fn a_directory_does_not_come_to_lie_below_itself_whatever_the_rights() {
    let mut tree = Tree::of_other();
    let above = tree.add_dir(ROOT, "above", 0o755);
    let below = tree.add_dir(above, "below", 0o755);
    tree.add_file(below, "f", 0);
    let exchange = RenameFlags::EXCHANGE;
    assert_eq!(tree.refuse(&rename((ROOT, "above"), (below, "x"), PLAIN)), Errno::EINVAL);
    assert_eq!(tree.refuse(&rename((below, "f"), (ROOT, "above"), PLAIN)), Errno::ENOTEMPTY);
    assert_eq!(tree.refuse(&rename((below, "f"), (ROOT, "above"), exchange)), Errno::EINVAL);
    // A removed directory has no parent.
    tree.inodes.remove(&above);
    tree.add_dir(ROOT, "other", 0o755);
    assert_eq!(tree.refuse(&rename((ROOT, "other"), (below, "x"), PLAIN)), Errno::EACCES);
}

#[test]
fn parents_in_a_circle_are_an_error() {
    let mut tree = Tree::of_owner();
    tree.add_dir(ROOT, "d", 0o755);
    let circle = tree.add_dir(ROOT, "circle", 0o755);
    tree.inodes.get_mut(&circle).expect("it exists").parent = circle;
    assert_eq!(tree.refuse(&rename((ROOT, "d"), (circle, "x"), PLAIN)), Errno::ELOOP);
}

#[test]
fn the_right_to_take_names_away_is_checked_before_the_kinds_and_contents() {
    let mut tree = Tree::of_other();
    let dir = tree.add_dir(ROOT, "d", 0o777);
    tree.add_file(dir, "in", 0);
    let file = tree.add_file(ROOT, "f", 0o666);
    let wrong = [rename((ROOT, "d"), (ROOT, "f"), PLAIN), rename((ROOT, "f"), (ROOT, "d"), PLAIN)];
    tree.attr(ROOT).mode |= STICKY;
    assert_eq!(wrong.each_ref().map(|it| tree.refuse(it)), [Errno::EPERM; 2]);
    tree.attr(ROOT).mode &= !STICKY;
    tree.attr(file).flags = InodeFlags::IMMUTABLE;
    assert_eq!(wrong.each_ref().map(|it| tree.refuse(it)), [Errno::EPERM; 2]);
    tree.attr(file).flags = InodeFlags::empty();
    assert_eq!(wrong.each_ref().map(|it| tree.refuse(it)), [Errno::ENOTDIR, Errno::EISDIR]);
    tree.add_dir(ROOT, "e", 0o777);
    assert_eq!(tree.refuse(&rename((ROOT, "e"), (ROOT, "d"), PLAIN)), Errno::ENOTEMPTY);
}

#[test]
fn a_directory_changes_its_parent_only_for_users_who_may_write_it() {
    let mut tree = Tree::of_other();
    let (to, full) = (tree.add_dir(ROOT, "to", 0o777), tree.add_dir(ROOT, "full", 0o777));
    tree.add_dir(ROOT, "d", 0o755);
    tree.add_dir(full, "d", 0o777);
    tree.add_dir(to, "e", 0o777);
    let full_dir = tree.names[&(full, name("d"))];
    tree.add_file(full_dir, "in", 0);
    assert_eq!(tree.refuse(&rename((ROOT, "d"), (to, "d"), PLAIN)), Errno::EACCES);
    assert_eq!(tree.refuse(&rename((ROOT, "d"), (full, "d"), PLAIN)), Errno::EACCES);
    let exchange = rename((to, "e"), (ROOT, "d"), RenameFlags::EXCHANGE);
    assert_eq!(tree.refuse(&exchange), Errno::EACCES);
    assert_eq!(tree.carry_out(&rename((ROOT, "d"), (ROOT, "f"), PLAIN)), Outcome::Done);
    assert_eq!(tree.refuse(&rename((to, "e"), (full, "d"), PLAIN)), Errno::ENOTEMPTY);
}

#[test]
fn a_new_name_in_a_directory_that_was_removed_is_refused() {
    let mut tree = Tree::of_owner();
    tree.add_file(ROOT, "f", 0);
    let dir = tree.add_dir(ROOT, "d", 0o555);
    tree.attr(dir).nlink = 0;
    assert_eq!(tree.refuse(&rename((ROOT, "f"), (dir, "f"), PLAIN)), Errno::ENOENT);
}

#[test]
fn a_moved_directory_has_its_new_parent_and_both_parents_count_it() {
    let mut tree = Tree::of_owner();
    let (to, dir) = (tree.add_dir(ROOT, "to", 0o755), tree.add_dir(ROOT, "d", 0o755));
    let old = tree.add_dir(to, "d", 0o755);
    assert_eq!(tree.carry_out(&rename((ROOT, "d"), (to, "d"), PLAIN)), Outcome::Done);
    let links = [ROOT, to, dir, old].map(|ino| tree.attr(ino).nlink);
    assert_eq!((links, tree.inodes[&dir].parent), ([3, 3, 2, 0], to));
    assert_eq!([ROOT, to].map(|dir| tree.inodes[&dir].entries), [1, 1]);
    assert!(tree.logged.is_empty(), "a directory has no data");
}

#[test]
fn the_data_of_files_that_take_names_of_others_are_logged() {
    let mut tree = Tree::of_owner();
    let (a, b) = (tree.add_file(ROOT, "a", 0), tree.add_file(ROOT, "b", 0));
    tree.carry_out(&rename((ROOT, "a"), (ROOT, "c"), PLAIN));
    assert!(tree.logged.is_empty(), "the name is new");
    tree.carry_out(&rename((ROOT, "b"), (ROOT, "c"), RenameFlags::EXCHANGE));
    assert_eq!(tree.logged, [b, a]);
    tree.carry_out(&rename((ROOT, "b"), (ROOT, "c"), PLAIN));
    assert_eq!(tree.logged, [b, a, a]);
    assert_eq!((tree.attr(a).nlink, tree.attr(b).nlink), (1, 0));
}

#[test]
fn a_whiteout_takes_the_old_name() {
    let mut tree = Tree::of_other();
    tree.add_dir(ROOT, "d", 0o755);
    let outcome = tree.carry_out(&rename((ROOT, "d"), (ROOT, "e"), RenameFlags::WHITEOUT));
    let ino = tree.names[&(ROOT, name("d"))];
    let kind = FileKind::CharDevice;
    assert_eq!(outcome, Outcome::Entry { ino, kind, attr: None });
    let Attr { mode, uid, rdev, nlink, .. } = *tree.attr(ino);
    assert_eq!((mode, uid, rdev, nlink), (0, 11, 0, 1));
    assert_eq!((tree.attr(ROOT).nlink, tree.inodes[&ROOT].entries), (3, 2));
}
