//! Plans over a few inodes in memory. Each test arranges that several errors are possible, and
//! checks which of them comes first.

mod create;
mod link;
mod predict;
mod remove;
mod rename;

use std::collections::BTreeMap;

use warren_base::{Errno, Ino, InodeFlags, ShardId, Timestamp};
use warren_proto::{
    AccessMode, Acl, Attr, Change, CreateFlags, Credentials, FileKind, FileName, HANDOVER_PREFIX,
    InodeValue, LockMode, NewInode, RenameFlags, Request,
};

use super::predict::{apply, created, new_inode};
use super::{Outcome, Plan, View, plan};
use crate::fixtures::who;

const ROOT: Ino = Ino::ROOT;
/// A number that no inode has.
const GONE: Ino = Ino(999);
/// The time at which everything was made.
const MADE: Timestamp = Timestamp(1);
const NOW: Timestamp = Timestamp(9);
/// The owner of everything, and its group.
const OWNER: (u32, u32) = (10, 20);
/// The shard in which new directories lie.
const OF_DIRECTORIES: ShardId = ShardId(3);
/// A shard of another cell.
const ELSEWHERE: ShardId = ShardId(5);

/// A tree of inodes of user 10 and group 20, and the user who makes requests.
struct Tree {
    who: Credentials,
    inodes: BTreeMap<Ino, InodeValue>,
    names: BTreeMap<(Ino, FileName), Ino>,
    default: Option<Acl>,
    next: u64,
    logged: Vec<Ino>,
}

fn name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a name")
}

impl Tree {
    /// Returns a root directory in which all users may do everything.
    fn new(who: Credentials) -> Self {
        let root = new_inode(ROOT, &NewInode::directory(0o777), OWNER.0, OWNER.1, ROOT, MADE);
        Self {
            who,
            inodes: [(ROOT, root)].into(),
            names: BTreeMap::new(),
            default: None,
            next: 100,
            logged: Vec::new(),
        }
    }

    fn of_owner() -> Self {
        Self::new(who(OWNER.0, OWNER.1, &[]))
    }

    fn of_other() -> Self {
        Self::new(who(11, 21, &[]))
    }

    fn of_root() -> Self {
        Self::new(who(0, 0, &[]))
    }

    /// Adds an inode and its name, and returns the inode.
    fn add(&mut self, dir: Ino, text: &str, new: &NewInode) -> Ino {
        let ino = self.new_ino(dir.shard()).expect("a number");
        let changes = [
            Change::NewInode {
                ino,
                new: new.clone(),
                uid: OWNER.0,
                gid: OWNER.1,
                parent: dir,
                now: MADE,
            },
            Change::AddEntry { dir, name: name(text), ino, kind: new.kind, now: MADE },
        ];
        self.make(&changes);
        ino
    }

    fn add_file(&mut self, dir: Ino, text: &str, mode: u16) -> Ino {
        self.add(dir, text, &NewInode::regular(mode))
    }

    fn add_dir(&mut self, dir: Ino, text: &str, mode: u16) -> Ino {
        self.add(dir, text, &NewInode::directory(mode))
    }

    fn attr(&mut self, ino: Ino) -> &mut Attr {
        &mut self.inodes.get_mut(&ino).expect("it exists").attr
    }

    fn plan(&mut self, request: &Request) -> Result<Plan, Errno> {
        plan(self, &request.on_names().expect("a request on names"))
    }

    fn refuse(&mut self, request: &Request) -> Errno {
        self.plan(request).expect_err("it is refused")
    }

    /// Makes the inodes that are predicted for the changes.
    fn make(&mut self, changes: &[Change]) {
        for change in changes {
            let gone = self.set_entry(change);
            match created(change) {
                Some(value) => assert_eq!(self.inodes.insert(change.home(), value), None),
                None => apply(change, self.inodes.get_mut(&change.home()).expect("it is"), gone),
            }
        }
    }

    /// Sets or removes the entry that the change is of. Returns the kind of the old inode.
    fn set_entry(&mut self, change: &Change) -> Option<FileKind> {
        let old = match change.clone() {
            Change::AddEntry { dir, name, ino, .. }
            | Change::ReplaceEntry { dir, name, ino, .. } => self.names.insert((dir, name), ino),
            Change::RemoveEntry { dir, name, .. } => self.names.remove(&(dir, name)),
            _ => None,
        };
        old.map(|ino| self.inodes[&ino].attr.kind)
    }

    /// Plans the request, and makes its changes.
    fn carry_out(&mut self, request: &Request) -> Outcome {
        let Plan { changes, outcome } = self.plan(request).expect("it is allowed");
        self.make(&changes);
        outcome
    }
}

impl View for Tree {
    type Stop = Errno;

    fn who(&self) -> &Credentials {
        &self.who
    }

    fn now(&self) -> Timestamp {
        NOW
    }

    fn inode(&mut self, ino: Ino, _: LockMode) -> Result<Option<InodeValue>, Errno> {
        Ok(self.inodes.get(&ino).cloned())
    }

    fn name(
        &mut self,
        dir: Ino,
        name: &FileName,
        _: LockMode,
    ) -> Result<Option<(Ino, FileKind)>, Errno> {
        let Some(ino) = self.names.get(&(dir, name.clone())) else { return Ok(None) };
        // Nothing is known of an inode that is gone, or of another cell.
        let kind = self.inodes.get(ino).map_or(FileKind::Regular, |value| value.attr.kind);
        Ok(Some((*ino, kind)))
    }

    fn default_acl(&self, dir: &InodeValue) -> Result<Option<Acl>, Errno> {
        let has_one = dir.attr.flags.contains(InodeFlags::DEFAULT_ACL);
        Ok(self.default.clone().filter(|_| has_one))
    }

    fn place(&self, _: Ino, _: &FileName) -> ShardId {
        OF_DIRECTORIES
    }

    fn new_ino(&mut self, shard: ShardId) -> Result<Ino, Errno> {
        self.next += 1;
        Ok(Ino::new(shard, self.next))
    }

    fn opens_files_of(&self, shard: ShardId) -> bool {
        shard != ELSEWHERE
    }

    fn touch_logged(&mut self, ino: Ino) -> Result<(), Errno> {
        self.logged.push(ino);
        Ok(())
    }
}

fn create(dir: Ino, text: &str, new: NewInode) -> Request {
    let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::empty());
    Request::Create { dir, name: name(text), new, flags, access }
}

fn link(ino: Ino, dir: Ino, text: &str) -> Request {
    Request::Link { ino, dir, name: name(text) }
}

fn unlink(dir: Ino, text: &str) -> Request {
    Request::Unlink { dir, name: name(text) }
}

fn rmdir(dir: Ino, text: &str) -> Request {
    Request::Rmdir { dir, name: name(text) }
}

fn rename(from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Request {
    let (dir, new_name) = (to.0, name(to.1));
    Request::Rename { from: from.0, from_name: name(from.1), dir, name: new_name, flags }
}

/// Requests for all changes of the name `a` in the directory.
fn changes_of_a(dir: Ino) -> [Request; 6] {
    [
        create(dir, "a", NewInode::regular(0o644)),
        link(ROOT, dir, "a"),
        unlink(dir, "a"),
        rmdir(dir, "a"),
        rename((dir, "a"), (ROOT, "b"), RenameFlags::empty()),
        rename((ROOT, "c"), (dir, "a"), RenameFlags::empty()),
    ]
}

#[test]
fn a_directory_must_exist_be_one_and_be_searched_before_its_names_matter() {
    let mut tree = Tree::of_other();
    for request in changes_of_a(GONE) {
        assert_eq!(tree.refuse(&request), Errno::ESTALE);
    }
    let file = tree.add_file(ROOT, "c", 0);
    for request in changes_of_a(file) {
        assert_eq!(tree.refuse(&request), Errno::ENOTDIR);
    }
    let secret = tree.add_dir(ROOT, "secret", 0o766);
    for is_there in [false, true] {
        for request in changes_of_a(secret) {
            assert_eq!(tree.refuse(&request), Errno::EACCES, "{request:?} {is_there}");
        }
        tree.add_file(secret, "a", 0o666);
    }
}

#[test]
fn reserved_names_are_refused_before_all_else_but_can_be_removed() {
    let mut tree = Tree::of_owner();
    let reserved = str::from_utf8(HANDOVER_PREFIX).expect("text");
    let free = RenameFlags::empty();
    assert_eq!(tree.refuse(&create(GONE, reserved, NewInode::regular(0))), Errno::EPERM);
    assert_eq!(tree.refuse(&link(GONE, GONE, reserved)), Errno::EPERM);
    assert_eq!(tree.refuse(&rename((GONE, "a"), (GONE, reserved), free)), Errno::EPERM);
    assert_eq!(tree.refuse(&unlink(ROOT, reserved)), Errno::ENOENT);
    assert_eq!(tree.refuse(&rename((ROOT, reserved), (ROOT, "a"), free)), Errno::ENOENT);
}

#[test]
fn a_request_that_changes_no_names_has_no_plan() {
    let request = Request::Lookup { dir: ROOT, name: name("a") };
    assert_eq!(Tree::of_owner().refuse(&request), Errno::EINVAL);
}
