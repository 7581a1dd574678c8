//! Plans of `Create`.

use warren_base::limits::SYMLINK_MAX;

use super::*;
use crate::permission::{SET_GID, SET_UID, STICKY};

const READ_WRITE: AccessMode = AccessMode::READ.union(AccessMode::WRITE);

fn file() -> NewInode {
    NewInode::regular(0o644)
}

fn open(text: &str, new: NewInode, flags: CreateFlags) -> Request {
    let flags = flags | CreateFlags::OPEN;
    Request::Create { dir: ROOT, name: name(text), new, flags, access: READ_WRITE }
}

fn node(kind: FileKind, rdev: u32) -> NewInode {
    NewInode { kind, rdev, ..file() }
}

/// Creates it, and checks that the reply has the attributes that the changes make.
fn create_in(tree: &mut Tree, dir: Ino, new: NewInode) -> InodeValue {
    let outcome = tree.carry_out(&create(dir, "new", new));
    let Outcome::Created { attr, found: false, open: None } = outcome else {
        panic!("{outcome:?}");
    };
    let value = tree.inodes[&attr.ino].clone();
    assert_eq!(value.attr, attr);
    assert_eq!(tree.names[&(dir, name("new"))], attr.ino);
    value
}

/// A list that gives user 12 the right to read, besides those of the mode 0640.
fn list_of_12() -> Acl {
    let entries = [
        (1u16, 6u16, u32::MAX),
        (2, 4, 12),
        (4, 4, u32::MAX),
        (16, 6, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Acl::from_xattr(&bytes).expect("a legal list").expect("entries")
}

#[test]
fn a_name_that_exists_is_reported_before_the_right_to_add_it() {
    let mut tree = Tree::of_other();
    tree.attr(ROOT).mode = 0o755;
    assert_eq!(tree.refuse(&create(ROOT, "a", file())), Errno::EACCES);
    tree.add_file(ROOT, "a", 0o644);
    assert_eq!(tree.refuse(&create(ROOT, "a", file())), Errno::EEXIST);
}

#[test]
fn only_regular_files_are_opened_and_this_is_checked_before_the_name() {
    let mut tree = Tree::of_owner();
    tree.add_file(ROOT, "a", 0o644);
    let request = open("a", NewInode::directory(0o755), CreateFlags::EXCLUSIVE);
    assert_eq!(tree.refuse(&request), Errno::EINVAL);
}

#[test]
fn the_right_to_add_is_checked_before_what_is_added() {
    let mut tree = Tree::of_other();
    let device = create(ROOT, "a", node(FileKind::BlockDevice, 0));
    assert_eq!(tree.refuse(&device), Errno::EPERM);
    tree.attr(ROOT).mode = 0o755;
    assert_eq!(tree.refuse(&device), Errno::EACCES);
    tree.attr(ROOT).nlink = 0;
    assert_eq!(tree.refuse(&device), Errno::ENOENT, "the directory is removed");
}

#[test]
fn only_root_and_kernels_make_devices_but_all_users_make_whiteouts() {
    let (device, whiteout) = (node(FileKind::CharDevice, 1), node(FileKind::CharDevice, 0));
    let mut tree = Tree::of_owner();
    assert_eq!(tree.refuse(&create(ROOT, "a", device.clone())), Errno::EPERM);
    create_in(&mut tree, ROOT, whiteout);
    create_in(&mut Tree::of_root(), ROOT, device.clone());
    create_in(&mut Tree::new(crate::fixtures::checked(11)), ROOT, device);
}

#[test]
fn a_symbolic_link_alone_has_a_target() {
    let mut tree = Tree::of_owner();
    let mut refuse = |new| tree.refuse(&create(ROOT, "a", new));
    assert_eq!(refuse(NewInode::symlink(b"")), Errno::ENOENT);
    assert_eq!(refuse(NewInode::symlink(&vec![b'a'; SYMLINK_MAX + 1])), Errno::ENAMETOOLONG);
    assert_eq!(refuse(NewInode::symlink(b"a\0")), Errno::EINVAL);
    assert_eq!(refuse(NewInode { target: (*b"a").into(), ..file() }), Errno::EINVAL);
    let made = create_in(&mut tree, ROOT, NewInode::symlink(b"abc")).attr;
    assert_eq!((made.mode, made.size), (0o777, 3));
}

#[test]
fn a_file_that_exists_is_opened_by_its_own_rights_alone() {
    let mut tree = Tree::of_other();
    tree.attr(ROOT).mode = 0o555;
    let ino = tree.add_file(ROOT, "a", 0o666);
    let request = open("a", file(), CreateFlags::empty());
    let outcome = tree.carry_out(&request);
    let attr = *tree.attr(ino);
    assert_eq!(outcome, Outcome::Created { attr, found: true, open: Some(READ_WRITE) });
    tree.attr(ino).mode = 0o644;
    assert_eq!(tree.refuse(&request), Errno::EACCES);
    tree.inodes.remove(&ino);
    assert_eq!(tree.refuse(&request), Errno::ESTALE);
    assert_eq!(tree.refuse(&open("a", file(), CreateFlags::EXCLUSIVE)), Errno::EEXIST);
    tree.add_dir(ROOT, "d", 0o700);
    assert_eq!(tree.refuse(&open("d", file(), CreateFlags::empty())), Errno::EISDIR);
}

#[test]
fn a_file_of_another_cell_is_found_and_not_opened() {
    let mut tree = Tree::of_owner();
    let ino = Ino::new(ELSEWHERE, 7);
    tree.names.insert((ROOT, name("a")), ino);
    let plan = tree.plan(&open("a", file(), CreateFlags::empty())).expect("it is found");
    let outcome = Outcome::Entry { ino, kind: FileKind::Regular, attr: None };
    assert_eq!(plan, Plan { changes: Vec::new(), outcome });
}

#[test]
fn a_file_for_which_a_kernel_has_rules_of_its_own_is_refused_before_its_rights_are_checked() {
    let mut tree = Tree::of_other();
    let ino = tree.add_file(ROOT, "a", 0o700);
    let request = open("a", file(), CreateFlags::PLAIN);
    assert_eq!(tree.refuse(&request), Errno::ETXTBSY, "it may be running");
    tree.attr(ino).mode = 0o600;
    assert_eq!(tree.refuse(&request), Errno::EACCES);
    tree.attr(ROOT).mode |= STICKY;
    assert_eq!(tree.refuse(&request), Errno::ETXTBSY, "it is another user's");
    let unreadable = open("b", NewInode::regular(0o200), CreateFlags::PLAIN);
    assert_eq!(tree.refuse(&unreadable), Errno::ETXTBSY, "it could not be opened again");
}

#[test]
fn a_file_without_a_name_is_made_by_those_who_may_add_names() {
    let nameless = |dir, new, flags| {
        let flags = flags | CreateFlags::NAMELESS;
        Request::Create { dir, name: name("a"), new, flags, access: READ_WRITE }
    };
    let mut tree = Tree::of_other();
    assert_eq!(tree.refuse(&nameless(GONE, file(), CreateFlags::empty())), Errno::EINVAL);
    let directory = NewInode::directory(0o755);
    assert_eq!(tree.refuse(&nameless(GONE, directory, CreateFlags::OPEN)), Errno::EINVAL);
    assert_eq!(tree.refuse(&nameless(GONE, file(), CreateFlags::OPEN)), Errno::ESTALE);
    let request = nameless(ROOT, file(), CreateFlags::OPEN);
    tree.add_file(ROOT, "a", 0);
    let before = tree.inodes[&ROOT].clone();
    let Outcome::Created { attr, found: false, open } = tree.carry_out(&request) else {
        panic!("it is created");
    };
    assert_eq!(open, Some(READ_WRITE));
    assert_eq!((attr.nlink, tree.inodes[&attr.ino].attr), (0, attr));
    assert_eq!(tree.inodes[&ROOT], before);
    tree.attr(ROOT).mode = 0o755;
    assert_eq!(tree.refuse(&request), Errno::EACCES);
}

#[test]
fn a_directory_lies_where_the_view_places_it_and_a_file_beside_its_name() {
    let mut tree = Tree::of_owner();
    let dir = create_in(&mut tree, ROOT, NewInode::directory(0o755));
    assert_eq!((dir.attr.ino.shard(), dir.parent), (OF_DIRECTORIES, ROOT));
    let file = create_in(&mut tree, dir.attr.ino, file());
    assert_eq!((file.attr.ino.shard(), file.parent), (OF_DIRECTORIES, Ino(0)));
}

#[test]
fn a_set_gid_directory_passes_its_group_on() {
    let make = |new: NewInode, who| {
        let mut tree = Tree::new(who);
        tree.attr(ROOT).mode |= SET_GID;
        let attr = create_in(&mut tree, ROOT, new).attr;
        (attr.mode, attr.gid)
    };
    let other = || who(11, 21, &[]);
    assert_eq!(make(NewInode::directory(SET_UID | 0o755), other()), (SET_GID | 0o755, 20));
    assert_eq!(make(file(), other()), (0o644, 20));
    let program = NewInode::regular(SET_GID | 0o755);
    assert_eq!(make(program.clone(), other()), (0o755, 20), "it would act for the group");
    assert_eq!(make(program, who(11, 21, &[20])), (SET_GID | 0o755, 20));
    let mut tree = Tree::of_other();
    let attr = create_in(&mut tree, ROOT, NewInode::directory(SET_GID | 0o755)).attr;
    assert_eq!((attr.mode, attr.gid), (0o755, 21));
}

#[test]
fn the_default_list_of_the_directory_takes_the_place_of_the_umask() {
    let masked = |new: NewInode| NewInode { umask: 0o027, mode: 0o666, ..new };
    let mut tree = Tree::of_owner();
    let attr = create_in(&mut tree, ROOT, masked(file())).attr;
    assert_eq!((attr.mode, attr.flags), (0o640, InodeFlags::empty()));
    let with_list = || {
        let mut tree = Tree::of_owner();
        tree.attr(ROOT).flags = InodeFlags::DEFAULT_ACL;
        tree.default = Some(list_of_12());
        tree
    };
    let (list, mode) = list_of_12().inherited(0o666);
    let made = create_in(&mut with_list(), ROOT, masked(file()));
    assert_eq!((made.attr.mode, made.attr.flags), (mode, InodeFlags::ACL));
    assert_eq!(made.acl, Some(Box::new(list)));
    let made = create_in(&mut with_list(), ROOT, masked(NewInode::directory(0)));
    assert_eq!(made.attr.flags, InodeFlags::ACL | InodeFlags::DEFAULT_ACL);
    let made = create_in(&mut with_list(), ROOT, NewInode::symlink(b"a"));
    assert_eq!((made.attr.flags, made.acl), (InodeFlags::empty(), None));
}

#[test]
fn flags_are_inherited_unless_they_forbid_something() {
    let mut tree = Tree::of_owner();
    tree.attr(ROOT).flags = InodeFlags::NODUMP | InodeFlags::APPEND;
    assert_eq!(create_in(&mut tree, ROOT, file()).attr.flags, InodeFlags::NODUMP);
}
