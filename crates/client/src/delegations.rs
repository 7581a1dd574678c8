//! Inodes that the client alone uses, so that it may post changes of them without waiting (decision
//! 84).
//!
//! ```text
//! plan      the guard holds, the credit suffices, the rules allow it: predict the outcome
//! publish   the record is in the stream; the attributes are those after it
//! check     the guard holds still: the change is made. Else the caller waits for the outcome
//! ```
//!
//! Threads that share this take turns from `plan` to `publish`: the attributes that one sees are
//! those after all records that are published, neither earlier nor later ones.

use hashbrown::HashMap;
use warren_base::limits::FILE_SIZE_MAX;
use warren_base::{CellId, Errno, FixedState, Ino, InodeFlags, Timestamp};
use warren_proto::stream::Delegated;
use warren_proto::{
    ACL_ACCESS, AccessMode, Acl, Attr, Credentials, FileKind, InodeValue, Position, Reply, Request,
    SetAttr,
};
use warren_rules::{permission, predict, set_attr, write};

use crate::guard::{Guard, Words};
use crate::tree::Known;
use crate::trees::Trees;

/// Delegations that a client keeps. One more makes it forget all, and it gets them again.
const DELEGATIONS_MAX: usize = 1024;
/// The bits that `chmod` sets.
const MODE_BITS: u16 = 0o7777;

#[derive(Clone, Debug)]
struct Delegation {
    attr: Attr,
    guard: Guard,
    credit: u32,
    known: Known,
    /// The credit that came with the last reply, or 0 if there is no more to ask for now.
    full: u32,
}

/// A change that may be posted: where, under which guard, and what it leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Post {
    pub cell: CellId,
    pub guard: Guard,
    /// The reply of the cell, without a lease. `Done` also stands for attributes that only the cell
    /// knows.
    pub reply: Reply,
    pub time: Timestamp,
    attr: Attr,
    known: Known,
    cost: u32,
    /// The end of the file before it.
    end: u64,
    /// The root of the tree under whose guard it is posted.
    root: Option<Ino>,
    /// It closes the handle through which the file was changed.
    closes: bool,
}

impl Post {
    /// The inode that it changes.
    pub const fn ino(&self) -> Ino {
        self.attr.ino
    }

    /// The directory under whose delegation it is posted, if that is not the inode's own.
    pub const fn root(&self) -> Option<Ino> {
        self.root
    }

    /// The request for its record, if that is another one: a write that appends names the end.
    pub fn record(&self, request: &Request) -> Option<Request> {
        at_known_end(request, self.end)
    }

    /// The credit that it takes, if it has changed the last record.
    pub const fn take_only(&mut self, cost: u32) {
        self.cost = cost;
    }

    /// The reply after the cell has executed the record late, with this value as its outcome.
    #[must_use]
    pub fn late_reply(self, value: u64) -> Reply {
        match self.reply {
            Reply::Written { len, .. } => Reply::Written { len, size: value },
            reply => reply,
        }
    }

    /// The attributes of the inode after it, unless only the cell knows them.
    pub fn attr(&self) -> Option<&Attr> {
        self.known.is_exact.then_some(&self.attr)
    }
}

/// The delegations of a client.
#[derive(Clone, Default, Debug)]
pub(crate) struct Delegations {
    by_inode: HashMap<Ino, Delegation, FixedState>,
    pub(crate) trees: Trees,
}

impl Delegations {
    /// Keeps a delegation that came with a reply of `cell`. An earlier one may come after a later.
    pub(crate) fn keep(&mut self, cell: CellId, delegated: &Delegated) {
        let Delegated { attr, lease, credit, .. } = *delegated;
        let Some(guard) = Guard::new(cell, lease) else { return };
        let before = self.by_inode.get(&attr.ino);
        if before.is_some_and(|before| before.guard.stamp > guard.stamp) {
            return;
        }
        // One request in a slot cannot both allocate a page behind the end and leave a hole before
        // it.
        let has_all = attr.blocks == predict::pages_of(attr.size);
        let was_dense = before.is_some_and(|before| before.known.is_dense);
        let is_dense = has_all && (was_dense || attr.size == 0);
        let known = Known { is_dense, is_exact: true };
        if self.by_inode.len() >= DELEGATIONS_MAX {
            self.by_inode.clear();
        }
        let delegation = Delegation { attr, guard, credit, known, full: credit };
        self.by_inode.insert(attr.ino, delegation);
    }

    /// Whether more credit, and numbers, should be asked for now for the file, or the root of a
    /// tree. Then the caller asks.
    pub(crate) fn wants_more(&mut self, ino: Ino) -> bool {
        let Some(own) = self.by_inode.get_mut(&ino) else { return self.trees.wants_more(ino) };
        let wants = own.credit < own.full / 2;
        if wants {
            own.full = 0;
        }
        wants
    }

    /// The answer to [`Request::Extend`].
    pub(crate) fn extended(&mut self, ino: Ino, delegated: Option<&Delegated>) {
        let Some(own) = self.by_inode.get_mut(&ino) else {
            return self.trees.extended(ino, delegated);
        };
        if let Some(Delegated { lease, credit, tree: None, .. }) = delegated
            && lease.stamp == own.guard.stamp
        {
            own.credit += credit;
            own.full = *credit;
        }
    }

    pub(crate) fn discard(&mut self, ino: Ino) {
        self.by_inode.remove(&ino);
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.by_inode.contains_key(&ino) || self.trees.find(ino).is_some()
    }

    /// Whether the inode is delegated itself, and not only as the member of a tree.
    pub(crate) fn has_own(&self, ino: Ino) -> bool {
        self.by_inode.contains_key(&ino)
    }

    /// Predicts the outcome of the request, if it may be posted now. `access`: that of the handle
    /// which it names.
    pub(crate) fn plan(
        &mut self,
        request: &Request,
        payload: usize,
        access: AccessMode,
        (who, now): (&Credentials, Timestamp),
        words: &impl Words,
    ) -> Option<Post> {
        let ino = request.inode().filter(|_| request.is_postable())?;
        if self.by_inode.get(&ino).is_some_and(|own| !own.guard.holds(words)) {
            self.discard(ino);
        }
        let member = || self.of_member(ino, request).map(|(it, root)| (it, Some(root)));
        // The delegation of a file that is a member has the newer attributes.
        let own = self.by_inode.get(&ino).map(|own| (own.clone(), None));
        let (delegation, root) = own.or_else(member)?;
        if let Some(root) = root.filter(|_| !delegation.guard.holds(words)) {
            self.trees.forget(root);
            return None;
        }
        // A time that the file has already is later than a clock that was set back.
        let now = now.max(delegation.attr.ctime);
        let end = delegation.attr.size;
        let appending = at_known_end(request, end);
        let cost = appending.as_ref().unwrap_or(request).post_cost(payload);
        if cost > delegation.credit {
            return None;
        }
        let (reply, attr, known) = outcome(&delegation, request, payload, access, who, now)?;
        let guard = delegation.guard;
        let closes = matches!(request, Request::Close { .. });
        let (cell, time) = (guard.cell, now);
        Some(Post { cell, guard, reply, time, attr, known, cost, end, root, closes })
    }

    /// The delegation of a member of a tree, for a request that may be posted under the guard of
    /// the tree.
    fn of_member(&self, ino: Ino, request: &Request) -> Option<(Delegation, Ino)> {
        let (node, tree, guard) = self.trees.find(ino)?;
        let is_of_attributes =
            matches!(request, Request::SetAttr { set: SetAttr { size: None, .. }, .. });
        let value = node.value.as_ref().filter(|_| node.is_open || is_of_attributes)?;
        let (attr, known, credit) = (value.attr, node.known, tree.credit);
        Some((Delegation { attr, guard, credit, known, full: 0 }, node.root))
    }

    /// The change of the mode to which a new access list comes down, if that says no more than a
    /// mode and the inode has no list. Programs that copy files set such lists (`acl_set_fd(3)`).
    pub(crate) fn mode_of_list(&self, request: &Request) -> Option<Request> {
        let Request::SetXattr { ino, name, value, .. } = request else { return None };
        let list = Acl::from_xattr(value).ok()?.filter(|list| !list.is_extended())?;
        let attr = self.attr_without_list(*ino)?.0;
        let mode = Some(list.apply_to(attr.mode) & MODE_BITS);
        let set = SetAttr { mode, ..SetAttr::default() };
        let is_access = *name.as_bytes() == *ACL_ACCESS && attr.kind != FileKind::Symlink;
        is_access.then_some(Request::SetAttr { ino: *ino, handle: None, set })
    }

    /// The guard under which the removal of a list changes nothing, because the inode has none.
    pub(crate) fn has_no_list(&self, request: &Request, who: &Credentials) -> Option<Guard> {
        let Request::RemoveXattr { ino, name } = request else { return None };
        let (attr, guard) = self.attr_without_list(*ino).filter(|_| name.is_acl())?;
        let may_set: Result<(), Errno> = permission::check_owner(who, attr);
        // No file can have a default list. Its removal succeeds for any user.
        let is_of_file = *name.as_bytes() != *ACL_ACCESS && attr.kind != FileKind::Directory;
        (attr.kind != FileKind::Symlink && (is_of_file || may_set.is_ok())).then_some(guard)
    }

    /// The attributes of a member of a tree, if it has no list.
    fn attr_without_list(&self, ino: Ino) -> Option<(&Attr, Guard)> {
        let (node, _, guard) = self.trees.find(ino)?;
        let attr = &node.value.as_ref()?.attr;
        let lists = InodeFlags::ACL | InodeFlags::DEFAULT_ACL | InodeFlags::SETTABLE;
        (!attr.flags.intersects(lists)).then_some((attr, guard))
    }

    /// The record of the change is published.
    pub(crate) fn note_published(&mut self, post: &Post) {
        let ino = post.attr.ino;
        if let Some(root) = post.root {
            self.trees.note_post(true);
            self.trees.spend(root, post.cost);
        }
        if let Some(node) = self.trees.node_mut(ino) {
            node.known = post.known;
            node.is_open &= !post.closes;
            if let Some(value) = &mut node.value {
                value.attr = post.attr;
            }
        }
        if post.closes {
            return self.discard(ino);
        }
        if let Some(delegation) = self.by_inode.get_mut(&post.attr.ino)
            && delegation.guard == post.guard
        {
            delegation.attr = post.attr;
            delegation.known = post.known;
            delegation.credit -= post.cost;
        }
    }
}

/// The same write at this end of its file, if it appends.
fn at_known_end(request: &Request, end: u64) -> Option<Request> {
    match *request {
        Request::Write { handle, position: Position::End, kill_privileges, write_back, direct } => {
            let position = Position::EndAt(end);
            Some(Request::Write { handle, position, kill_privileges, write_back, direct })
        }
        _ => None,
    }
}

/// The reply of the cell, the attributes afterwards, and what is known of the blocks. `None` if the
/// cell may refuse the request, or only the cell knows the reply.
fn outcome(
    delegation: &Delegation,
    request: &Request,
    payload: usize,
    access: AccessMode,
    who: &Credentials,
    now: Timestamp,
) -> Option<(Reply, Attr, Known)> {
    let Delegation { attr, known: Known { is_dense, is_exact }, .. } = delegation;
    match *request {
        Request::Write { position, kill_privileges, write_back: false, direct: false, .. } => {
            let offset = match position {
                Position::At(offset) => offset,
                Position::End => attr.size,
                Position::Current | Position::EndAt(_) => return None,
            };
            let end = offset.checked_add(payload as u64).filter(|end| *end <= FILE_SIZE_MAX)?;
            let may_write = access.contains(AccessMode::WRITE)
                && payload > 0
                && write::check_flags(attr.flags, access, position) == Ok(());
            let strips = (kill_privileges || permission::is_bound(who)).then_some(who);
            let range = (offset, payload as u64);
            let (attr, is_dense) = predict::written(attr, *is_dense, range, strips, now);
            let reply = Reply::Written { len: payload as u32, size: end.max(attr.size) };
            may_write.then_some((reply, attr, Known { is_dense, is_exact: is_dense }))
        }
        Request::SetAttr { set, .. } => {
            let value = InodeValue { attr: *attr, parent: Ino(0), entries: 0, acl: None };
            let writable = access.contains(AccessMode::WRITE);
            if set.size.is_some() && !writable {
                return None;
            }
            let checked: Result<(), Errno> = set_attr::check_set(&set, &value, writable, who);
            checked.ok()?;
            let (attr, is_dense) = predict::set(attr, *is_dense, &set, who, now);
            let is_exact = is_dense || *is_exact && set.size.is_none();
            let reply = if is_exact { Reply::Attr { attr, lease: None } } else { Reply::Done };
            Some((reply, attr, Known { is_dense, is_exact }))
        }
        Request::Close { .. } => Some((Reply::Done, *attr, delegation.known)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use warren_base::InodeFlags;
    use warren_base::limits::BLOCK_SIZE;
    use warren_proto::stream::{DelegatedTree, Numbers};
    use warren_proto::{
        ACL_DEFAULT, Answered, CreateFlags, Entry, FileName, Handle, Lease, NewInode, SetTime,
        XattrMode, XattrName,
    };

    use super::*;

    const CELL: CellId = CellId(1);
    const INO: Ino = Ino(5);
    const PAGE: u64 = BLOCK_SIZE as u64;
    const NOW: Timestamp = Timestamp(100);
    const WRITE: AccessMode = AccessMode::WRITE;
    const HANDLE: Handle = Handle { ino: INO, open: 9 };

    /// All words have this stamp.
    struct Same(Cell<u64>);

    impl Words for Same {
        fn load(&self, _: CellId, _: u32) -> u64 {
            self.0.get()
        }
    }

    fn words(stamp: u64) -> Same {
        Same(Cell::new(stamp))
    }

    fn attr(ino: Ino, size: u64) -> Attr {
        let zero = Timestamp(0);
        Attr {
            ino,
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 10,
            gid: 10,
            rdev: 0,
            size,
            blocks: predict::pages_of(size),
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            flags: InodeFlags::empty(),
        }
    }

    fn delegated(attr: Attr, stamp: u64, credit: u32) -> Delegated {
        Delegated { attr, lease: Lease { word: 3, stamp }, credit, tree: None }
    }

    /// The delegation of an empty file, under stamp 1.
    fn kept(credit: u32) -> Delegations {
        let mut delegations = Delegations::default();
        delegations.keep(CELL, &delegated(attr(INO, 0), 1, credit));
        delegations
    }

    fn who(uid: u32) -> Credentials {
        Credentials { uid, gid: uid, ..Credentials::default() }
    }

    fn write(position: Position) -> Request {
        let (handle, kill_privileges, write_back, direct) = (HANDLE, false, false, false);
        Request::Write { handle, position, kill_privileges, write_back, direct }
    }

    fn set(set: SetAttr) -> Request {
        Request::SetAttr { ino: INO, handle: Some(HANDLE), set }
    }

    fn plan_at(
        it: &mut Delegations,
        request: &Request,
        len: usize,
        now: Timestamp,
    ) -> Option<Post> {
        it.plan(request, len, WRITE, (&who(10), now), &words(1))
    }

    fn plan(it: &mut Delegations, request: &Request, len: usize) -> Option<Post> {
        plan_at(it, request, len, NOW)
    }

    /// Posts an append, and returns the size after it.
    fn append(it: &mut Delegations, len: usize) -> Option<u64> {
        let post = plan(it, &write(Position::End), len)?;
        it.note_published(&post);
        match post.reply {
            Reply::Written { len: written, size } if written as usize == len => Some(size),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_post_sees_those_before_it() {
        let mut it = kept(100);
        assert_eq!([10, 5000].map(|len| append(&mut it, len)), [Some(10), Some(5010)]);
        let post = plan(&mut it, &write(Position::At(2)), 3).expect("a plan");
        assert_eq!(post.reply, Reply::Written { len: 3, size: 5010 });
        let cut = plan(&mut it, &set(SetAttr { size: Some(7), ..SetAttr::default() }), 0);
        let cut = cut.expect("a plan");
        assert_eq!(cut.attr().map(|attr| (attr.size, attr.blocks, attr.mtime)), Some((7, 1, NOW)));
        assert_eq!(append(&mut it, 1), Some(5011), "the truncation was not published");
        it.note_published(&cut);
        assert_eq!(append(&mut it, 1), Some(8));
        assert_eq!((cut.cell, cut.ino(), cut.time), (CELL, INO, NOW));
    }

    #[test]
    fn the_credit_is_spent_by_pages_and_renewed_by_replies() {
        let mut it = kept(4);
        // A write at the end may begin anywhere in a page.
        assert_eq!(append(&mut it, 1), Some(1));
        assert_eq!(append(&mut it, BLOCK_SIZE), Some(PAGE + 1));
        assert_eq!(append(&mut it, BLOCK_SIZE + 1), None, "three pages of one");
        assert!(it.has(INO), "the delegation stands");
        let chmod = set(SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let post = plan(&mut it, &chmod, 0).expect("a request without data counts as a page");
        it.note_published(&post);
        assert_eq!(append(&mut it, 1), None);
        assert_eq!(plan(&mut it, &chmod, 0), None);
        it.keep(CELL, &delegated(attr(INO, 7), 1, 2));
        assert_eq!(append(&mut it, 1), Some(8));
    }

    #[test]
    fn more_credit_is_asked_for_once_and_added_under_the_same_lease() {
        let mut it = kept(4);
        assert_eq!(append(&mut it, 1), Some(1));
        assert!(!it.wants_more(INO), "half is left");
        assert_eq!(append(&mut it, 1), Some(2));
        assert_eq!(append(&mut it, 1), Some(3));
        assert_eq!([it.wants_more(INO), it.wants_more(INO)], [true, false]);
        it.extended(INO, Some(&delegated(attr(INO, 0), 2, 100)));
        assert_eq!(append(&mut it, BLOCK_SIZE + 1), None, "it is for another lease");
        it.keep(CELL, &delegated(attr(INO, 3), 1, 1));
        it.extended(INO, Some(&delegated(attr(INO, 0), 1, 100)));
        let size = Some(PAGE + 4);
        assert_eq!(append(&mut it, BLOCK_SIZE + 1), size, "with what the client itself knows");
        let mut used = 2;
        while !it.wants_more(INO) {
            used += 1;
            append(&mut it, 1).expect("there is credit");
        }
        assert_eq!(used, 52, "when less than half is left of what came last");
        it.extended(INO, None);
        while append(&mut it, 1).is_some() {
            assert!(!it.wants_more(INO), "there was no more");
        }
    }

    #[test]
    fn a_guard_that_does_not_hold_ends_the_delegation() {
        let mut it = kept(100);
        let plan = |it: &mut Delegations, stamp| {
            let who = who(10);
            it.plan(&write(Position::End), 1, WRITE, (&who, NOW), &words(stamp))
        };
        assert_eq!(plan(&mut it, 0), None);
        assert!(!it.has(INO) && plan(&mut it, 1).is_none());
        let mut it = kept(100);
        assert_eq!(plan(&mut it, 2), None, "another lease has the word");
        // An acknowledged lease guards nothing.
        let mut it = Delegations::default();
        it.keep(CELL, &delegated(attr(INO, 0), 0, 100));
        assert!(!it.has(INO));
    }

    #[test]
    fn an_earlier_delegation_does_not_replace_a_later_one() {
        let mut it = kept(100);
        it.keep(CELL, &delegated(attr(INO, 30), 3, 100));
        it.keep(CELL, &delegated(attr(INO, 20), 2, 100));
        let post = it.plan(&write(Position::End), 1, WRITE, (&who(10), NOW), &words(3));
        assert_eq!(post.map(|post| post.reply), Some(Reply::Written { len: 1, size: 31 }));
    }

    #[test]
    fn a_publication_under_an_earlier_delegation_changes_nothing_of_a_later_one() {
        let mut it = kept(100);
        let post = plan(&mut it, &write(Position::End), 9).expect("a plan");
        it.keep(CELL, &delegated(attr(INO, 9), 2, 1));
        it.note_published(&post);
        let post = it.plan(&write(Position::End), 1, WRITE, (&who(10), NOW), &words(2));
        assert_eq!(post.map(|post| post.reply), Some(Reply::Written { len: 1, size: 10 }));
        it.discard(INO);
        it.note_published(
            &kept(1)
                .plan(&write(Position::At(0)), 1, WRITE, (&who(10), NOW), &words(1))
                .expect("a plan"),
        );
        assert!(!it.has(INO));
    }

    #[test]
    fn blocks_are_known_of_dense_files_alone() {
        let blocks = |it: &mut Delegations, position, len| {
            let post = plan(it, &write(position), len).expect("a plan");
            it.note_published(&post);
            post.attr().map(|attr| attr.blocks)
        };
        let mut it = kept(1000);
        assert_eq!(blocks(&mut it, Position::At(0), 5), Some(1));
        assert_eq!(blocks(&mut it, Position::At(PAGE), 1), Some(2), "the next page");
        assert_eq!(blocks(&mut it, Position::At(3 * PAGE), 1), None, "a hole");
        assert_eq!(blocks(&mut it, Position::At(2 * PAGE), 1), None, "only the cell knows");
        let chmod = set(SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let post = plan(&mut it, &chmod, 0).expect("a plan");
        assert_eq!((post.reply.clone(), post.attr()), (Reply::Done, None), "nor the attributes");
        let empty = set(SetAttr { size: Some(0), ..SetAttr::default() });
        let post = plan(&mut it, &empty, 0).expect("a plan");
        assert!(matches!(post.reply, Reply::Attr { lease: None, .. }), "an empty file is dense");
        it.note_published(&post);
        assert_eq!(blocks(&mut it, Position::End, 1), Some(1));
    }

    /// A reply of the cell has as many blocks as pages, which alone does not show where they are.
    #[test]
    fn a_file_is_dense_if_it_was_or_is_empty() {
        let exact = |it: &mut Delegations, stamp| {
            let who = who(10);
            let post = it.plan(&write(Position::End), 1, WRITE, (&who, NOW), &words(stamp));
            post.expect("a plan").attr().is_some()
        };
        let mut it = Delegations::default();
        it.keep(CELL, &delegated(attr(INO, 3 * PAGE), 1, 100));
        assert!(!exact(&mut it, 1));
        let chmod = set(SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let post = plan(&mut it, &chmod, 0).expect("a plan");
        assert!(post.attr().is_some(), "the attributes that came are right");
        it.keep(CELL, &delegated(attr(INO, 0), 2, 100));
        assert!(exact(&mut it, 2));
        it.keep(CELL, &delegated(attr(INO, 2 * PAGE), 3, 100));
        assert!(exact(&mut it, 3), "it was dense, and has all pages");
        it.keep(CELL, &delegated(Attr { blocks: 1, ..attr(INO, 2 * PAGE) }, 4, 100));
        assert!(!exact(&mut it, 4));
    }

    #[test]
    fn what_the_cell_may_refuse_is_not_posted() {
        let mut it = kept(1000);
        let refused = |it: &mut Delegations, request: &Request, len, access, uid| {
            it.plan(request, len, access, (&who(uid), NOW), &words(1)).is_none()
        };
        let end = write(Position::End);
        assert!(refused(&mut it, &end, 1, AccessMode::READ, 10));
        assert!(refused(&mut it, &end, 0, WRITE, 10), "an empty write");
        assert!(refused(&mut it, &write(Position::Current), 1, WRITE, 10));
        assert!(refused(&mut it, &write(Position::At(FILE_SIZE_MAX)), 1, WRITE, 10));
        assert!(refused(&mut it, &write(Position::At(u64::MAX)), 1, WRITE, 10));
        for (write_back, direct) in [(true, false), (false, true)] {
            let (handle, position, kill_privileges) = (HANDLE, Position::End, false);
            let request = Request::Write { handle, position, kill_privileges, write_back, direct };
            assert!(refused(&mut it, &request, 1, WRITE, 10));
        }
        let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert!(refused(&mut it, &set(chmod), 0, WRITE, 11), "another user's file");
        assert!(!refused(&mut it, &set(chmod), 0, AccessMode::READ, 10));
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        assert!(refused(&mut it, &set(cut), 0, AccessMode::READ, 10));
        let chown = SetAttr { uid: Some(11), ..SetAttr::default() };
        assert!(refused(&mut it, &set(chown), 0, WRITE, 10));
        let by_path = Request::SetAttr { ino: INO, handle: None, set: chmod };
        assert!(!refused(&mut it, &by_path, 0, AccessMode::empty(), 10));
        assert!(refused(&mut it, &Request::GetAttr { ino: INO }, 0, WRITE, 10));
        let elsewhere = Request::Close { handle: Handle { ino: Ino(6), open: 9 } };
        assert!(refused(&mut it, &elsewhere, 0, WRITE, 10), "it is not delegated");
        assert!(it.has(INO), "the delegation stands");
        for flags in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
            let mut it = Delegations::default();
            it.keep(CELL, &delegated(Attr { flags, ..attr(INO, 0) }, 1, 100));
            assert!(refused(&mut it, &write(Position::At(0)), 1, WRITE | AccessMode::APPEND, 10));
        }
    }

    /// A member of a tree may have a delegation of its own, whose attributes are the newer ones.
    #[test]
    fn attributes_by_path_are_planned_under_the_delegation_of_the_file() {
        let mut it = kept(100);
        let (dir, tree_word) = (Attr { kind: FileKind::Directory, ..attr(Ino(4), 0) }, 8);
        let file = attr(INO, 0);
        let entry =
            Entry { ino: INO, kind: FileKind::Regular, lease: None, attr: Some((file, None)) };
        let answered = Answered::from(Ok(Reply::Created { entry, opened: None }));
        let create = Request::Create {
            dir: dir.ino,
            name: FileName::new(b"file").expect("a legal name"),
            new: NewInode::regular(0o644),
            flags: CreateFlags::EXCLUSIVE,
            access: AccessMode::SOLE,
        };
        let numbers = Numbers { first: Ino(50), each: Vec::new() };
        let root = dir.ino;
        let tree = DelegatedTree { root, entries: 1, continues: None, has_made: true, numbers };
        let lease = Lease { word: tree_word, stamp: 1 };
        let delegated = Delegated { attr: dir, lease, credit: 100, tree: None };
        it.trees.keep(CELL, (&create, &answered), &delegated, &tree);
        let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let by_path = Request::SetAttr { ino: INO, handle: None, set: chmod };
        let post = plan(&mut it, &by_path, 0).expect("a plan");
        assert_eq!(post.guard.word, 3);
        it.discard(INO);
        let post = plan(&mut it, &by_path, 0).expect("a plan");
        assert_eq!(post.guard.word, tree_word);
    }

    /// `acl_set_fd(3)` with a list that says no more than a mode, as programs use it that copy.
    #[test]
    fn a_list_that_says_no_more_than_a_mode_is_a_mode() {
        let mut it = Delegations::default();
        let dir = Attr { kind: FileKind::Directory, mode: 0o2700, ..attr(Ino(4), 0) };
        let numbers = Numbers { first: Ino(50), each: Vec::new() };
        let tree =
            DelegatedTree { root: dir.ino, entries: 0, continues: None, has_made: false, numbers };
        let lease = Lease { word: 8, stamp: 1 };
        let delegated = Delegated { attr: dir, lease, credit: 100, tree: None };
        let (request, answered) =
            (Request::GetAttr { ino: dir.ino }, Answered::from(Err(Errno::EIO)));
        it.trees.keep(CELL, (&request, &answered), &delegated, &tree);
        let name = |bytes| XattrName::new(bytes).expect("a legal name");
        let list = |entries: &[(u16, u16, u32)]| {
            let mut value = 2u32.to_le_bytes().to_vec();
            for (tag, rights, id) in entries {
                value.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
                value.extend(id.to_le_bytes());
            }
            let (name, mode) = (name(ACL_ACCESS), XattrMode::Any);
            let (value, kill_set_gid) = (value.into(), false);
            Request::SetXattr { ino: dir.ino, name, value, mode, kill_set_gid }
        };
        let short = [(1, 7, u32::MAX), (4, 5, u32::MAX), (32, 0, u32::MAX)];
        let set = SetAttr { mode: Some(0o2750), ..SetAttr::default() };
        let expected = Request::SetAttr { ino: dir.ino, handle: None, set };
        assert_eq!(it.mode_of_list(&list(&short)), Some(expected));
        let named = [short[0], (2, 7, 5), short[1], (16, 7, u32::MAX), short[2]];
        assert_eq!(it.mode_of_list(&list(&named)), None);
        let removal = |name| Request::RemoveXattr { ino: dir.ino, name };
        let has_none = |it: &Delegations, request: &Request, uid| {
            it.has_no_list(request, &who(uid)).map(|guard| guard.word)
        };
        assert_eq!(has_none(&it, &removal(name(ACL_DEFAULT)), 10), Some(8));
        assert_eq!(has_none(&it, &removal(name(ACL_DEFAULT)), 11), None, "not the owner");
        assert_eq!(has_none(&it, &removal(name(b"user.a")), 10), None);
    }

    #[test]
    fn a_time_does_not_go_back() {
        let mut it = Delegations::default();
        it.keep(CELL, &delegated(Attr { ctime: Timestamp(500), ..attr(INO, 0) }, 1, 100));
        let post = plan_at(&mut it, &write(Position::End), 1, NOW).expect("a plan");
        assert_eq!(
            (post.time, post.attr().map(|attr| attr.mtime)),
            (Timestamp(500), Some(Timestamp(500)))
        );
        let touch = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let post = plan_at(&mut it, &set(touch), 0, Timestamp(600)).expect("a plan");
        assert_eq!(post.attr().map(|attr| attr.mtime), Some(Timestamp(600)));
    }

    #[test]
    fn a_late_reply_shows_the_size_that_the_cell_has_found() {
        let mut it = kept(100);
        let post = plan(&mut it, &write(Position::End), 4).expect("a plan");
        assert_eq!(post.late_reply(44), Reply::Written { len: 4, size: 44 });
        let close = plan(&mut it, &Request::Close { handle: HANDLE }, 0).expect("a plan");
        assert_eq!(close.late_reply(44), Reply::Done);
        let chmod = set(SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let post = plan(&mut it, &chmod, 0).expect("a plan");
        assert_eq!(post.clone().late_reply(44), post.reply);
    }

    #[test]
    fn a_write_takes_set_id_bits_away() {
        let mut it = Delegations::default();
        it.keep(CELL, &delegated(Attr { mode: 0o6755, ..attr(INO, 0) }, 1, 100));
        for (uid, mode) in [(10, 0o755), (0, 0o6755)] {
            let who = who(uid);
            let post = it.plan(&write(Position::End), 1, WRITE, (&who, NOW), &words(1));
            assert_eq!(post.expect("a plan").attr().map(|attr| attr.mode), Some(mode), "{uid}");
        }
    }

    #[test]
    fn one_delegation_too_many_makes_the_client_forget_all() {
        let mut it = Delegations::default();
        let keep = |it: &mut Delegations, n: u64, stamp| {
            it.keep(CELL, &delegated(attr(Ino(n), 0), stamp, 1));
        };
        for n in 0..DELEGATIONS_MAX as u64 {
            keep(&mut it, n, 1);
        }
        assert_eq!(it.by_inode.len(), DELEGATIONS_MAX);
        keep(&mut it, u64::MAX, 1);
        assert_eq!(it.by_inode.len(), 1);
        assert!(it.has(Ino(u64::MAX)) && !it.has(Ino(0)));
    }
}
