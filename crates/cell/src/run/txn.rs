//! A transaction of a task, until it is decided: the keys that it has locked, and their values
//! (`txn.rs` describes the protocol).

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, Ino, ShardId, TxnId};
use warren_proto::{InodeValue, KeyValue, LockKey, LockMode};

use crate::run::ascent::Ascent;

/// A transaction at its coordinator, until it is decided.
#[derive(Clone, Debug)]
pub(crate) struct Txn {
    pub(crate) id: TxnId,
    /// Locked, or being locked right now.
    pub(crate) held: BTreeMap<LockKey, LockMode>,
    /// Still to be locked, smallest first.
    pub(crate) wanted: BTreeMap<LockKey, LockMode>,
    /// The values of other cells' keys (and numbers for new inodes).
    pub(crate) values: BTreeMap<LockKey, KeyValue>,
    /// The inode of another cell that the last peek has returned, without a lock.
    pub(crate) peeked: Option<(Ino, Option<InodeValue>)>,
    /// The position of the search upwards from a directory for another one, while the shape of the
    /// tree is locked.
    pub(crate) ascents: BTreeMap<(Ino, Ino), Ascent>,
    /// Cells that hold locks for it.
    pub(crate) participants: BTreeSet<CellId>,
    pub(crate) awaits: Awaits,
    /// Messages that other cells were sent and have to answer.
    pub(crate) messages: u32,
}

/// The event that a transaction waits for before its operation can run again.
#[derive(Clone, Debug)]
pub(crate) enum Awaits {
    Nothing,
    /// A lock of this cell's own.
    Lock(LockKey),
    /// The answer of a cell that was asked to prepare.
    Prepared(CellId),
    /// The answer of a cell that was asked for an inode.
    Peeked(CellId, Ino),
}

impl Txn {
    pub(crate) const fn new(id: TxnId) -> Self {
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
    pub(crate) fn await_answer(&mut self, awaits: Awaits) {
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

    /// Whether it has locked all of these, at least so far.
    pub(crate) fn holds(&self, touched: &BTreeMap<LockKey, LockMode>) -> bool {
        touched.iter().all(|(key, mode)| self.held.get(key).is_some_and(|held| held.covers(*mode)))
    }
}
