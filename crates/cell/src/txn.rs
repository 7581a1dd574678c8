//! Transactions over several cells: two-phase locking in one global order, then one decision.
//!
//! The cell that executes a request coordinates. Order of events:
//!
//! 1. The operation, run on this cell's state alone, meets a key of another cell.
//! 2. Every key that it touched is locked, in the order of [`LockKey`]. Keys of other cells are
//!    locked by `Prepare`, whose answer contains their values. A participant locks with a name the
//!    inode of the same shard to which it leads, if that is free. If a missing key turns out to
//!    come before one that is held, it is locked if it is this cell's and free. Otherwise
//!    everything is released and taken again in order.
//! 3. The operation runs again. If it touched only held keys, its outcome stands. This cell's
//!    changes are made, and the others receive theirs with `Commit`. The keys at other cells stay
//!    locked until their changes are made, so no client sees half of them.
//! 4. The client is answered, and this cell's keys are released, when no *entry* of another cell
//!    waits for its change any more. A change of an entry does not lock the rest of its directory.
//!    So a later operation on the same directory could come before it in that cell's log, and alone
//!    survive a power failure. An inode that is changed is locked whole, so nothing can come before
//!    that change.
//!
//! Revocation: a cell that locks a key for writing revokes its leases then, and grants none until
//! the lock is released.
//!
//! ```text
//! coordinator  acquiring ⇄ run again ──▶ decided: Commit is sent ──▶ answered ──▶ finished
//!                  └──▶ released: Abort is sent
//! participant  locking ──▶ prepared ──Commit──▶ applied: Committed is sent
//!                  └──────────┴──Abort──▶ released
//! ```

pub(crate) mod coordinator;
pub(crate) mod participant;

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, Ino, ShardId, TxnId};
use warren_proto::{InodeValue, KeyValue, LockKey, LockMode};

use crate::op::ascent::Ascent;

/// A transaction at its coordinator, until it is decided.
#[derive(Clone, Debug)]
pub(crate) struct Txn {
    pub(crate) id: TxnId,
    /// Locked, or being locked right now.
    held: BTreeMap<LockKey, LockMode>,
    /// Still to be locked, smallest first.
    wanted: BTreeMap<LockKey, LockMode>,
    /// The values of other cells' keys (and numbers for new inodes).
    pub(crate) values: BTreeMap<LockKey, KeyValue>,
    /// The inode of another cell that the last peek has returned, without a lock.
    pub(crate) peeked: Option<(Ino, Option<InodeValue>)>,
    /// How far up each directory was searched for another one, while the shape of the tree is
    /// locked.
    pub(crate) ascents: BTreeMap<(Ino, Ino), Ascent>,
    /// Cells that hold locks for it.
    participants: BTreeSet<CellId>,
    awaits: Awaits,
    /// Messages that other cells were sent and have to answer.
    messages: u32,
}

/// What a transaction waits for before its operation can run again.
#[derive(Clone, Debug)]
enum Awaits {
    Nothing,
    /// A lock of this cell's own.
    Lock(LockKey),
    /// The answer of a cell that was asked to prepare.
    Prepared(CellId),
    /// The answer of a cell that was asked for an inode.
    Peeked(CellId, Ino),
}

impl Txn {
    const fn new(id: TxnId) -> Self {
        Self {
            id,
            held: BTreeMap::new(),
            wanted: BTreeMap::new(),
            values: BTreeMap::new(),
            peeked: None,
            ascents: BTreeMap::new(),
            participants: BTreeSet::new(),
            awaits: Awaits::Nothing,
            messages: 0,
        }
    }

    /// Waits for the answer to a message that is being sent.
    fn asks(&mut self, awaits: Awaits) {
        self.awaits = awaits;
        self.messages = self.messages.wrapping_add(1);
    }

    pub(crate) fn is_acquiring(&self) -> bool {
        !self.wanted.is_empty() || matches!(self.awaits, Awaits::Lock(_))
    }

    /// The cell whose answer it waits for.
    pub(crate) const fn awaited_cell(&self) -> Option<CellId> {
        match self.awaits {
            Awaits::Prepared(cell) | Awaits::Peeked(cell, _) => Some(cell),
            Awaits::Nothing | Awaits::Lock(_) => None,
        }
    }

    /// Whether it cannot continue without the cell.
    pub(crate) fn rests_on(&self, cell: CellId) -> bool {
        self.participants.contains(&cell) || self.awaited_cell() == Some(cell)
    }

    /// Whether it has locked, or wants to lock, a key of the shard.
    pub(crate) fn touches(&self, shard: ShardId) -> bool {
        self.held.keys().chain(self.wanted.keys()).any(|key| key.shard() == shard)
    }

    /// Whether it blocks other tasks.
    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether no other transaction changes the shape of the tree now.
    pub(crate) fn holds_tree(&self) -> bool {
        self.held.contains_key(&LockKey::Tree)
    }

    fn holds(&self, touched: &BTreeMap<LockKey, LockMode>) -> bool {
        touched.iter().all(|(key, mode)| self.held.get(key).is_some_and(|held| held.covers(*mode)))
    }
}
