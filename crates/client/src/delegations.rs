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
use warren_base::{CellId, Errno, FixedState, Ino, Timestamp};
use warren_proto::stream::Delegated;
use warren_proto::{AccessMode, Attr, Credentials, FileKind, InodeValue, Position, Reply, Request};
use warren_rules::{permission, predict, set_attr, write};

use crate::guard::{Guard, Words};

/// Delegations that a client keeps. One more makes it forget all, and it gets them again.
const DELEGATIONS_MAX: usize = 1024;

#[derive(Clone, Debug)]
struct Delegation {
    attr: Attr,
    guard: Guard,
    credit: u32,
    known: Known,
}

/// The knowledge of the client about the blocks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    /// Each page up to the size is allocated, and none behind it.
    is_dense: bool,
    /// The number of blocks is right.
    is_exact: bool,
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
}

impl Post {
    /// The inode that it changes.
    pub const fn ino(&self) -> Ino {
        self.attr.ino
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
}

impl Delegations {
    /// Keeps a delegation that came with a reply of `cell`. An earlier one may come after a later.
    pub(crate) fn keep(&mut self, cell: CellId, delegated: &Delegated) {
        let Delegated { attr, lease, credit } = *delegated;
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
        self.by_inode.insert(attr.ino, Delegation { attr, guard, credit, known });
    }

    pub(crate) fn discard(&mut self, ino: Ino) {
        self.by_inode.remove(&ino);
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
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
        let delegation = self.by_inode.get(&ino)?;
        if !delegation.guard.holds(words) {
            self.discard(ino);
            return None;
        }
        // A time that the file has already is later than a clock that was set back.
        let now = now.max(delegation.attr.ctime);
        let cost = request.post_cost(payload);
        if cost > delegation.credit {
            return None;
        }
        let (reply, attr, known) = outcome(delegation, request, payload, access, who, now)?;
        let guard = delegation.guard;
        Some(Post { cell: guard.cell, guard, reply, time: now, attr, known, cost })
    }

    /// The record of the change is published.
    pub(crate) fn note_published(&mut self, post: &Post) {
        if let Some(delegation) = self.by_inode.get_mut(&post.attr.ino)
            && delegation.guard == post.guard
        {
            delegation.attr = post.attr;
            delegation.known = post.known;
            delegation.credit -= post.cost;
        }
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
                Position::Current => return None,
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
        Request::SetAttr { handle: Some(_), set, .. } => {
            let value = InodeValue { attr: *attr, parent: Ino(0), entries: 0, acl: None };
            let writable = access.contains(AccessMode::WRITE);
            if set.size.is_some() && !writable || attr.kind != FileKind::Regular {
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
