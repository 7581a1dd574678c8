//! Transactions over several cells: two-phase locking in one global order, then one decision.
//!
//! The cell that executes a request coordinates. Order of events:
//!
//! 1. The operation, run on this cell's state alone, meets a key of another cell.
//! 2. Every key it touched is locked, in the order of [`LockKey`]; those of other cells by `Prepare`,
//!    whose answer says what they are worth. If a key turns out to be missing that comes before one
//!    that is held, everything is released and taken again in order.
//! 3. The operation runs again; if it touched only what is held, its outcome stands. This cell's
//!    changes are made, and the others get theirs with `Commit`. What others were locked for stays
//!    locked until their changes are made, so nobody sees half of it.
//! 4. The client is answered, and this cell's keys are released, when no *entry* of another cell waits
//!    for its change any more. Who changes an entry locks the rest of the directory for nobody. So a
//!    later operation on the same directory could come before it in that cell's log, and alone survive
//!    a power failure. An inode that is changed is locked whole: nothing can come before that.
//!
//! Revocation: a cell that locks a key for writing revokes its leases then, and grants none before
//! the lock is released.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, ClientId, Errno, Ino, ShardId, TxnId};
use warren_proto::{
    Answer, Change, InodeValue, KeyValue, LeaseKey, LockKey, LockMode, PeerReply, PeerRequest, Step,
};

use crate::apply::fetch_change;
use crate::ascent::Ascent;
use crate::cell::Core;
use crate::change::{make, ready};
use crate::chunks::claim::ensure_room;
use crate::data::cover::cover_replacement;
use crate::event::{Memory, SlotRef};
use crate::log::durable::{harden_for, hardened};
use crate::peer::{send_reply, send_request, suspect};
use crate::plant::Plant;
use crate::recall::recall;
use crate::run::wait::{Stop, TaskId, Wait, WaitKey};
use crate::run::work::Work;
use crate::shard::room::Growth;
use crate::task::{Decided, Task};
use crate::turn::Turn;

/// A transaction at its coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Txn {
    pub(crate) id: TxnId,
    /// Locked, or being locked right now.
    held: BTreeMap<LockKey, LockMode>,
    /// Still to be locked, smallest first.
    wanted: BTreeMap<LockKey, LockMode>,
    /// What other cells' keys (and numbers for new inodes) are worth.
    pub(crate) values: BTreeMap<LockKey, KeyValue>,
    /// The inode of another cell that was looked at last without a lock, and what was said of it.
    peeking: Option<Ino>,
    pub(crate) peeked: Option<(Ino, Option<InodeValue>)>,
    /// From each directory how far up it was looked for another one, while the shape of the tree is held.
    pub(crate) ascents: BTreeMap<(Ino, Ino), Ascent>,
    /// Cells that hold something for it.
    participants: BTreeSet<CellId>,
    /// For this cell's answer, or for a lock of our own.
    waiting: Option<CellId>,
    waiting_lock: Option<LockKey>,
}

impl Txn {
    fn new(id: TxnId) -> Self {
        Self {
            id,
            held: BTreeMap::new(),
            wanted: BTreeMap::new(),
            values: BTreeMap::new(),
            peeking: None,
            peeked: None,
            ascents: BTreeMap::new(),
            participants: BTreeSet::new(),
            waiting: None,
            waiting_lock: None,
        }
    }

    pub(crate) fn is_acquiring(&self) -> bool {
        !self.wanted.is_empty() || self.waiting_lock.is_some()
    }

    /// Whether it cannot go on without the cell.
    pub(crate) fn rests_on(&self, cell: CellId) -> bool {
        self.participants.contains(&cell) || self.waiting == Some(cell)
    }

    /// Whether it keeps others from going on.
    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether nobody else changes the shape of the tree now.
    pub(crate) fn holds_tree(&self) -> bool {
        self.held.contains_key(&LockKey::Tree)
    }

    fn holds(&self, touched: &BTreeMap<LockKey, LockMode>) -> bool {
        touched.iter().all(|(key, mode)| self.held.get(key).is_some_and(|held| held.covers(*mode)))
    }
}

/// A transaction that is decided, while other cells make their changes.
#[derive(Debug)]
pub(crate) struct Committing {
    /// Cells that were told and have not answered, with what they were told.
    told: BTreeMap<CellId, Vec<Change>>,
    /// The cell that is told when all others have answered: it holds the lock on the tree's shape.
    last: Option<(CellId, Vec<Change>)>,
    unlock_tree: bool,
    /// A predecessor has decided it. Nobody knows any more who holds the lock on the tree's shape for it.
    recovered: bool,
    /// What stays locked here, and the task that does not answer, until all entries are changed.
    held: Vec<LockKey>,
    task: Option<TaskId>,
}

impl Committing {
    /// A decided transaction that a log tells of.
    pub(crate) const fn recovered(told: BTreeMap<CellId, Vec<Change>>) -> Self {
        let (last, unlock_tree, recovered) = (None, false, true);
        Self { told, last, unlock_tree, recovered, held: Vec::new(), task: None }
    }

    /// Whether an entry of another cell waits for its change.
    pub(crate) fn changes_entries(&self) -> bool {
        let last = self.last.iter().map(|(_, changes)| changes);
        self.told.values().chain(last).flatten().any(Change::is_of_entry)
    }

    pub(crate) const fn is_recovered(&self) -> bool {
        self.recovered
    }

    /// Whether `cell` must not release yet what it holds, or may have held, of the tree's shape.
    pub(crate) fn keeps_untold(&self, cell: CellId) -> bool {
        self.recovered || self.last.as_ref().is_some_and(|(last, _)| *last == cell)
    }
}

/// A transaction at a cell that takes part.
#[derive(Debug)]
pub(crate) struct Participant {
    pub(crate) client: ClientId,
    keys: Vec<(LockKey, LockMode)>,
    promised: Vec<(ShardId, u64)>,
    /// The task that is still locking.
    task: Option<TaskId>,
}

impl Participant {
    /// Whether it has not prepared all that it was asked to.
    pub(crate) const fn is_locking(&self) -> bool {
        self.task.is_some()
    }
}

fn lease_of(key: &LockKey) -> Option<LeaseKey> {
    match key {
        LockKey::Inode(ino) => Some(LeaseKey::Attr(*ino)),
        LockKey::Name(dir, name) => Some(LeaseKey::Name(*dir, name.clone())),
        LockKey::Tree | LockKey::New(_) | LockKey::Logged(_) => None,
    }
}

/// Whether a key can be worth that.
const fn is_worth(key: &LockKey, value: &KeyValue) -> bool {
    matches!(
        (key, value),
        (LockKey::Tree, KeyValue::Tree)
            | (LockKey::Inode(_), KeyValue::Inode(_))
            | (LockKey::Name(..), KeyValue::Name(_))
            | (LockKey::New(_), KeyValue::New(_))
            | (LockKey::Logged(_), KeyValue::Logged)
    )
}

fn writes(mode: LockMode) -> bool {
    matches!(mode, LockMode::IntentWrite | LockMode::Write)
}

impl Core {
    fn new_txn_id<M: Memory>(&mut self, turn: &mut Turn<'_, M>) -> TxnId {
        self.next_txn += 1;
        TxnId { cell: turn.volume.id, seq: self.next_txn }
    }

    /// Makes the task a transaction. The operation runs again to note what it touches.
    pub(crate) fn begin_txn<M: Memory>(&mut self, task: &mut Task, turn: &mut Turn<'_, M>) {
        task.txn = Some(Box::new(Txn::new(self.new_txn_id(turn))));
    }

    /// Whether the transaction holds all that its operation touched. If not, sees to it that it will;
    /// the operation then has to run again.
    pub(crate) fn hold_all<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        touched: BTreeMap<LockKey, LockMode>,
        turn: &mut Turn<'_, M>,
    ) -> Result<bool, Stop> {
        let txn = task.txn.as_mut().expect("a transaction");
        if txn.holds(&touched) {
            return Ok(true);
        }
        let last = txn.held.last_key_value().map(|(key, _)| key);
        let missing = |(key, mode): &(&LockKey, &LockMode)| {
            txn.held.get(*key).is_none_or(|held| !held.covers(**mode))
        };
        let in_order =
            touched.iter().filter(missing).all(|(key, _)| last.is_none_or(|last| key > last));
        if in_order {
            txn.wanted =
                touched.into_iter().filter(|(key, _)| !txn.held.contains_key(key)).collect();
        } else {
            self.release_txn(task, turn);
            let fresh = self.new_txn_id(turn);
            let txn = task.txn.as_mut().expect("a transaction");
            **txn = Txn::new(fresh);
            txn.wanted = touched;
        }
        self.acquire(id, task, turn)?;
        Ok(false)
    }

    /// Locks what is wanted, in order. Waits as often as need be; called again each time.
    pub(crate) fn acquire<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let client = task.state.client.unwrap_or_default();
        let txn = task.txn.as_mut().expect("a transaction");
        if txn.held.is_empty() && self.checkpoint.is_drained() {
            turn.waits.wait_for(WaitKey::Undrained, id);
            return Err(Stop::Wait(Wait::Registered));
        }
        if self.live_txns.insert(txn.id) {
            turn.log.begin_txn();
        }
        if let Some(key) = &txn.waiting_lock {
            if !self.shards[&key.shard()].locks.is_held(key, txn.id) {
                return Err(Stop::Wait(Wait::Registered));
            }
            txn.waiting_lock = None;
        }
        while let Some((key, mode)) = txn.wanted.pop_first() {
            // A key without an owner is none that an operation touches: the view saw to that.
            let owner =
                turn.volume.map.get(usize::from(key.shard().0)).copied().ok_or(Errno::ESTALE)?;
            if owner == turn.volume.id {
                txn.held.insert(key.clone(), mode);
                let shard = self.shards.get_mut(&key.shard()).expect("owned");
                if let LockKey::New(_) = key {
                    let ino = shard.next_ino()?;
                    shard.use_sequence(ino);
                    txn.values.insert(key, KeyValue::New(ino));
                } else if key.is_lock() && !shard.locks.lock(&key, mode, txn.id, id) {
                    txn.waiting_lock = Some(key);
                    return Err(Stop::Wait(Wait::Registered));
                }
                continue;
            }
            if self.peers.is_lost(owner) {
                return Err(Stop::Wait(Wait::Joined(owner)));
            }
            let mut keys = vec![(key, mode)];
            while let Some(next) = txn.wanted.first_entry()
                && turn.volume.map.get(usize::from(next.key().shard().0)) == Some(&owner)
            {
                keys.push(next.remove_entry());
            }
            txn.held.extend(keys.iter().cloned());
            txn.participants.insert(owner);
            txn.waiting = Some(owner);
            self.tasks_of_txns.insert(txn.id, id);
            let message = PeerRequest::Prepare { txn: txn.id, client, keys };
            send_request(owner, message, turn);
            return Err(Stop::Wait(Wait::Registered));
        }
        Ok(())
    }

    /// Looks at an inode of another cell, under locks that keep what is looked at from changing.
    pub(crate) fn peek<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        ino: Ino,
        turn: &mut Turn<'_, M>,
    ) -> Stop {
        let Some(to) = turn.volume.owner(ino.shard()) else { return Errno::EIO.into() };
        if self.peers.is_lost(to) {
            return Stop::Wait(Wait::Joined(to));
        }
        let txn = task.txn.as_mut().expect("only a transaction peeks");
        (txn.waiting, txn.peeking) = (Some(to), Some(ino));
        self.tasks_of_txns.insert(txn.id, id);
        let message = PeerRequest::Peek { txn: txn.id, ino };
        send_request(to, message, turn);
        Stop::Wait(Wait::Registered)
    }

    /// Whether the task still waits for another cell's answer.
    pub(crate) fn is_waiting_for_peer(task: &Task) -> bool {
        task.txn.as_ref().is_some_and(|txn| txn.waiting.is_some())
    }

    /// The transaction happens: other cells get their changes.
    pub(crate) fn commit_txn<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        remote: Vec<Change>,
        turn: &mut Turn<'_, M>,
    ) {
        let txn = task.txn.take().expect("a transaction");
        let mut by_cell: BTreeMap<CellId, Vec<Change>> = BTreeMap::new();
        for change in remote {
            let owner =
                turn.volume.owner(change.shard()).filter(|cell| txn.participants.contains(cell));
            let owner = owner.expect("a change lies where something is locked");
            by_cell.entry(owner).or_default().push(change);
        }
        self.tasks_of_txns.remove(&txn.id);
        // The shape of the tree stays locked until every cell has made its changes: whoever locks it
        // next looks at directories without locking them.
        let shape = txn.held.contains_key(&LockKey::Tree);
        let owner =
            turn.volume.owner(LockKey::Tree.shard()).expect("every volume has its first shard");
        let last = (shape && owner != turn.volume.id)
            .then(|| (owner, by_cell.remove(&owner).unwrap_or_default()));
        let others =
            by_cell.values().flatten().cloned().chain(last.iter().flat_map(|(_, c)| c.clone()));
        let others = others.collect();
        let unlock_tree = shape && owner == turn.volume.id;
        let held = txn.held.into_keys().filter(|key| *key != LockKey::Tree).collect();
        let committing = Committing {
            told: BTreeMap::new(),
            last,
            unlock_tree,
            recovered: false,
            held,
            task: Some(id),
        };
        self.committing.insert(txn.id, committing);
        task.decided = Some(Box::new(Decided { txn: txn.id, others, answer: None }));
        for cell in txn.participants.iter().filter(|cell| !shape || **cell != owner) {
            let changes = by_cell.remove(cell).unwrap_or_default();
            self.send_commit(txn.id, *cell, changes, turn);
        }
        self.advance_commit(txn.id, turn);
    }

    /// Requests that were executed and wait for other cells before they are answered.
    pub fn decided(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        let waiting = self.committing.values().filter_map(|commit| commit.task);
        waiting.filter_map(|id| self.tasks.decided(id))
    }

    fn send_commit<M: Memory>(
        &mut self,
        txn: TxnId,
        to: CellId,
        changes: Vec<Change>,
        turn: &mut Turn<'_, M>,
    ) {
        if let Some(commit) = self.committing.get_mut(&txn) {
            commit.told.insert(to, changes.clone());
        }
        // Whoever recovers has nothing prepared.
        let request = match self.peers.is_untold(to) {
            true => PeerRequest::Again { txn, changes },
            false => PeerRequest::Commit { txn, changes },
        };
        send_request(to, request, turn);
    }

    /// Tells `cell`, which has lost what it held, its part of every transaction that it may not have made.
    pub(crate) fn say_again<M: Memory>(&mut self, cell: CellId, turn: &mut Turn<'_, M>) {
        for (txn, commit) in &self.committing {
            if let Some(changes) = commit.told.get(&cell) {
                let request = PeerRequest::Again { txn: *txn, changes: changes.clone() };
                send_request(cell, request, turn);
            }
        }
    }

    /// A transaction that a predecessor has decided is to be made by others.
    fn take_over<M: Memory>(&mut self, txn: TxnId, others: Vec<Change>, turn: &mut Turn<'_, M>) {
        let mut told: BTreeMap<CellId, Vec<Change>> = BTreeMap::new();
        for change in others {
            let owner = turn.volume.owner(change.shard()).expect("this cell has made the record");
            told.entry(owner).or_default().push(change);
        }
        self.committing.insert(txn, Committing::recovered(told));
    }

    /// Goes on with what a predecessor has decided: says all of it to everybody, and only then that this
    /// is all.
    pub(crate) fn resume_commits<M: Memory>(
        &mut self,
        decided: BTreeMap<TxnId, Vec<Change>>,
        turn: &mut Turn<'_, M>,
    ) {
        let txns: Vec<TxnId> = decided.keys().copied().collect();
        decided.into_iter().for_each(|(txn, others)| self.take_over(txn, others, turn));
        for cell in self.peers.all() {
            self.say_again(cell, turn);
        }
        // Some wait for nobody.
        txns.into_iter().for_each(|txn| self.advance_commit(txn, turn));
        self.say_all(turn);
    }

    /// Goes on with a decided transaction: answers when all entries are changed, and takes the next step
    /// when everybody who was told has made the changes.
    fn advance_commit<M: Memory>(&mut self, id: TxnId, turn: &mut Turn<'_, M>) {
        let Some(commit) = self.committing.get_mut(&id) else { return };
        let is_told = commit.told.is_empty();
        if !commit.changes_entries() {
            let (held, task) = (std::mem::take(&mut commit.held), commit.task.take());
            held.iter().for_each(|key| self.unlock(key, id, turn));
            task.into_iter().for_each(|task| turn.waits.wake(task));
        }
        if !is_told {
            return;
        }
        let commit = self.committing.get_mut(&id).expect("just seen");
        if let Some((cell, changes)) = commit.last.take() {
            self.send_commit(id, cell, changes, turn);
            return self.say_all(turn);
        }
        let commit = self.committing.remove(&id).expect("just seen");
        if commit.unlock_tree {
            self.unlock(&LockKey::Tree, id, turn);
        }
        turn.note(&Step::Finished { txn: id });
        self.end_txn(id, turn);
        self.say_all(turn);
        self.heard_all(turn);
    }

    fn unlock_held<M: Memory>(&mut self, txn: &Txn, turn: &mut Turn<'_, M>) {
        for key in txn.held.keys() {
            self.unlock(key, txn.id, turn);
        }
    }

    fn unlock<M: Memory>(&mut self, key: &LockKey, txn: TxnId, turn: &mut Turn<'_, M>) {
        let Some(shard) = self.shards.get_mut(&key.shard()) else { return };
        let woken = shard.locks.unlock(key, txn);
        if !turn.plants(Plant::LoseWakeup) {
            woken.into_iter().for_each(|task| turn.waits.wake(task));
        }
    }

    /// Releases everything the task's transaction holds, here and elsewhere.
    pub(crate) fn release_txn<M: Memory>(&mut self, task: &mut Task, turn: &mut Turn<'_, M>) {
        let Some(txn) = task.txn.as_ref() else { return };
        self.tasks_of_txns.remove(&txn.id);
        if !turn.plants(Plant::SkipAbort) {
            for cell in &txn.participants {
                send_request(*cell, PeerRequest::Abort { txn: txn.id }, turn);
            }
        }
        self.unlock_held(txn, turn);
        self.end_txn(txn.id, turn);
    }

    /// The transaction is over for every cell that matters.
    fn end_txn<M: Memory>(&mut self, id: TxnId, turn: &mut Turn<'_, M>) {
        if self.live_txns.remove(&id) {
            turn.log.end_txn();
        }
        self.report_if_drained(turn);
    }

    /// A participant's answer.
    pub(crate) fn peer_reply<M: Memory>(
        &mut self,
        from: CellId,
        reply: PeerReply,
        turn: &mut Turn<'_, M>,
    ) {
        let (id, outcome) = match reply {
            PeerReply::Committed { txn } => return self.committed(from, txn, turn),
            PeerReply::Hardened { lsn, result } => return hardened(from, lsn, result, turn),
            PeerReply::Counted { ask, count } => return self.counted(from, ask, count, turn),
            PeerReply::Prepared { txn, values } => (txn, Ok((values, None))),
            PeerReply::Peeked { txn, ino, value } => (txn, Ok((Vec::new(), Some((ino, value))))),
            PeerReply::Refused { txn, errno } => (txn, Err(errno)),
        };
        // An answer to a transaction that is not known here is late or forged: it changes nothing.
        let Some(task_id) = self.tasks_of_txns.get(&id).copied() else { return };
        let Some(task) = self.tasks.get_mut(task_id) else { return };
        let Some(txn) = task.txn.as_mut().filter(|txn| txn.id == id && txn.waiting == Some(from))
        else {
            return;
        };
        txn.waiting = None;
        match outcome {
            Ok((values, peeked)) => {
                let map = &turn.volume.map;
                let own = |key: &LockKey| map.get(usize::from(key.shard().0)) == Some(&from);
                let answers = values.iter().all(|(key, value)| own(key) && is_worth(key, value))
                    && peeked.as_ref().is_none_or(|(ino, _)| txn.peeking == Some(*ino));
                if !answers {
                    txn.waiting = Some(from);
                    return suspect(from, turn);
                }
                txn.values.extend(values);
                txn.peeked = peeked;
            }
            Err(errno) => turn.waits.signal(task_id).failed = Some(errno),
        }
        turn.waits.wake(task_id);
    }

    fn committed<M: Memory>(&mut self, from: CellId, txn: TxnId, turn: &mut Turn<'_, M>) {
        if let Some(commit) = self.committing.get_mut(&txn) {
            commit.told.remove(&from);
            self.advance_commit(txn, turn);
        }
    }

    /// Another cell's transaction wants something of this one.
    pub(crate) fn peer_request<M: Memory>(
        &mut self,
        from: CellId,
        request: PeerRequest,
        turn: &mut Turn<'_, M>,
    ) {
        if self.is_early(from, &request) {
            return;
        }
        match request {
            PeerRequest::Harden { lsn } => harden_for(from, lsn, turn),
            PeerRequest::Again { txn, changes } => {
                self.again(from, txn, changes, turn);
            }
            PeerRequest::AllSaid => self.all_said(from, turn),
            // A checkpoint makes room, and that waits for transactions: this one has to begin anew.
            PeerRequest::Prepare { txn, .. } if !turn.log_has_room() => {
                send_reply(from, PeerReply::Refused { txn, errno: Errno::EAGAIN }, turn);
            }
            PeerRequest::Prepare { txn, client, keys } => {
                let owned = keys.iter().all(|(key, _)| self.shards.contains_key(&key.shard()));
                if !owned || txn.cell != from {
                    return suspect(from, turn);
                }
                let participant = self.participants.entry(txn).or_insert_with(|| {
                    turn.log.begin_txn();
                    Participant { client, keys: Vec::new(), promised: Vec::new(), task: None }
                });
                let work = Work::Prepare { from, txn, client, keys, next: participant.keys.len() };
                let id = turn.waits.start(work);
                self.participants.get_mut(&txn).expect("just there").task = Some(id);
            }
            PeerRequest::Peek { txn, ino } => {
                turn.waits.start(Work::Peek { from, txn, ino });
            }
            PeerRequest::Commit { txn, changes } => {
                let locked = changes.iter().all(|change| self.has_locked(txn, change));
                if !locked || txn.cell != from || !self.participants.contains_key(&txn) {
                    return suspect(from, turn);
                }
                turn.waits.start(Work::Commit { from, txn, changes });
            }
            PeerRequest::Count { ask } => {
                let count = self.count(turn);
                send_reply(from, PeerReply::Counted { ask, count }, turn);
            }
            PeerRequest::Abort { txn } if txn.cell == from => self.leave_txn(txn, turn),
            PeerRequest::Abort { .. } => suspect(from, turn),
        }
    }

    /// A transaction happened that may not be made here.
    fn again<M: Memory>(
        &mut self,
        from: CellId,
        txn: TxnId,
        mut changes: Vec<Change>,
        turn: &mut Turn<'_, M>,
    ) {
        changes.retain(|change| !self.lost.contains(&change.shard()));
        let owned = |change: &Change| self.shards.contains_key(&change.shard());
        let locked = |change: &Change| self.has_locked(txn, change);
        if txn.cell != from || !changes.iter().all(owned) {
            return suspect(from, turn);
        }
        if !self.replay.is_done() || changes.iter().all(locked) {
            self.again += 1;
            turn.waits.start(Work::Again { from, txn, changes });
        } else if self.replay.applied.contains(&txn) {
            send_reply(from, PeerReply::Committed { txn }, turn);
        } else {
            // What is not made has its locks.
            suspect(from, turn);
        }
    }

    /// Whether the change is of something here that the transaction has locked for it.
    fn has_locked(&self, txn: TxnId, change: &Change) -> bool {
        let key = match change {
            Change::AddEntry { dir, name, .. }
            | Change::RemoveEntry { dir, name, .. }
            | Change::ReplaceEntry { dir, name, .. } => LockKey::Name(*dir, name.clone()),
            Change::NewInode { ino, .. }
            | Change::AddLink { ino, .. }
            | Change::RemoveLink { ino, .. }
            | Change::SetParent { ino, .. }
            | Change::Touch { ino, .. } => LockKey::Inode(*ino),
        };
        let keys = self.participants.get(&txn).map_or(&[][..], |participant| &participant.keys);
        keys.contains(&(key.clone(), LockMode::Write))
            && self.shards.get(&key.shard()).is_some_and(|shard| shard.locks.is_held(&key, txn))
    }

    /// A prepare or peek failed. What is locked stays so until the coordinator says abort.
    pub(crate) fn refuse<M: Memory>(
        &mut self,
        to: CellId,
        txn: TxnId,
        errno: Errno,
        turn: &mut Turn<'_, M>,
    ) {
        if let Some(participant) = self.participants.get_mut(&txn) {
            participant.task = None;
        }
        send_reply(to, PeerReply::Refused { txn, errno }, turn);
    }

    /// Locks the keys one after the other, then answers what they are worth.
    pub(crate) fn prepare<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let Work::Prepare { from, txn, client, keys, next } = task.work.clone() else {
            unreachable!("called for this work only");
        };
        let Some(participant) = self.participants.get(&txn) else { return Ok(()) };
        // How many of this message's keys are locked (or in a queue) already.
        let done = participant.keys.len() - next;
        if let Some((key, _)) = participant.keys.last().filter(|_| done > 0)
            && key.is_lock()
            && !self.shards[&key.shard()].locks.is_held(key, txn)
        {
            return Err(Stop::Wait(Wait::Registered));
        }
        for (key, mode) in &keys[done..] {
            let participant = self.participants.get_mut(&txn).expect("just there");
            participant.keys.push((key.clone(), *mode));
            let shard = self.shards.get_mut(&key.shard()).expect("checked when it came");
            let free = !key.is_lock() || shard.locks.lock(key, *mode, txn, id);
            if !free {
                return Err(Stop::Wait(Wait::Registered));
            }
        }
        let values = self.prepared((id, txn), client, &keys, task, turn)?;
        self.participants.get_mut(&txn).expect("just there").task = None;
        send_reply(from, PeerReply::Prepared { txn, values }, turn);
        Ok(())
    }

    /// Everything is locked: revokes, sets blocks aside, and reads.
    fn prepared<M: Memory>(
        &mut self,
        (id, txn): (TaskId, TxnId),
        client: ClientId,
        keys: &[(LockKey, LockMode)],
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<Vec<(LockKey, KeyValue)>, Stop> {
        let mut free = true;
        for (key, mode) in keys {
            if let Some(lease) = lease_of(key).filter(|_| writes(*mode)) {
                free &= recall(&lease, Some(client), turn);
                let kept = [Some(Plant::ForgetRevoke), Some(Plant::RevokeAfterCommit)];
                if !kept.iter().any(|plant| turn.volume.plant == *plant) {
                    turn.leases.revoke(&lease, turn.memory);
                }
            }
        }
        if !free {
            return Err(Stop::Wait(Wait::Recall));
        }
        let mut values = Vec::with_capacity(keys.len());
        for (key, mode) in keys {
            if let LockKey::Logged(ino) = key {
                cover_replacement(self.shard_mut(ino.shard()), *ino, turn)?;
            }
            let shard = &self.shards[&key.shard()];
            if let (LockKey::Name(dir, name), true) = (key, writes(*mode))
                && shard.linked_or_open(*dir)?.is_some()
            {
                // What the coordinator decides cannot be refused later.
                shard.check_entry(turn.volume.secret, *dir, name)?;
            }
            if !matches!(key, LockKey::New(_)) {
                values.push((key.clone(), self.value_of(key, turn)?));
            }
        }
        self.promise(txn, keys, task, turn)?;
        for (key, _) in keys {
            if let LockKey::New(shard) = key {
                let shard = self.shards.get_mut(shard).expect("checked when it came");
                let ino = shard.next_ino()?;
                shard.use_sequence(ino);
                // Its client may know the number before this cell knows the inode.
                let new = LockKey::Inode(ino);
                assert!(shard.locks.lock(&new, LockMode::Write, txn, id));
                let participant = self.participants.get_mut(&txn).expect("known");
                participant.keys.push((new, LockMode::Write));
                values.push((key.clone(), KeyValue::New(ino)));
            }
        }
        Ok(values)
    }

    /// Sets blocks aside for what the transaction may change under these keys.
    fn promise<M: Memory>(
        &mut self,
        txn: TxnId,
        keys: &[(LockKey, LockMode)],
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let homes: BTreeSet<ShardId> = keys.iter().map(|(key, _)| key.shard()).collect();
        let mut promised = Vec::new();
        for home in homes {
            let own = || keys.iter().filter(|(key, _)| key.shard() == home);
            let shard = &self.shards[&home];
            let nodes = own().map(|(key, mode)| shard.nodes_under(key, *mode)).sum();
            // An entry comes where there is no name yet.
            let grows = own().any(|(key, mode)| match key {
                LockKey::New(_) => true,
                LockKey::Name(dir, name) if writes(*mode) => {
                    !matches!(shard.dentry(turn.volume.secret, *dir, name), Ok(Some(_)))
                }
                _ => false,
            });
            if nodes > 0 {
                let growth = if grows { Growth::Grows } else { Growth::Frees };
                ensure_room(self.shard_mut(home), nodes, growth, &mut task.state, turn)?;
                promised.push((home, nodes));
            }
        }
        for (home, nodes) in &promised {
            self.shards.get_mut(home).expect("owned").promised += nodes;
        }
        self.participants.get_mut(&txn).expect("known").promised.extend(promised);
        Ok(())
    }

    fn value_of<M: Memory>(&self, key: &LockKey, turn: &mut Turn<'_, M>) -> Result<KeyValue, Stop> {
        let shard = &self.shards[&key.shard()];
        Ok(match key {
            LockKey::Tree => KeyValue::Tree,
            LockKey::Inode(ino) => KeyValue::Inode(shard.linked_or_open(*ino)?),
            LockKey::Name(dir, name) => {
                KeyValue::Name(shard.dentry(turn.volume.secret, *dir, name)?)
            }
            LockKey::Logged(_) => KeyValue::Logged,
            LockKey::New(_) => unreachable!("handed turn, not read"),
        })
    }

    pub(crate) fn answer_peek<M: Memory>(
        &mut self,
        (from, txn, ino): (CellId, TxnId, Ino),
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let value = match self.shards.get(&ino.shard()) {
            Some(shard) => shard.linked_or_open(ino)?,
            None => None,
        };
        send_reply(from, PeerReply::Peeked { txn, ino, value }, turn);
        Ok(())
    }

    /// Makes a transaction's changes on this cell, which were decided elsewhere.
    pub(crate) fn commit<M: Memory>(
        &mut self,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let Work::Commit { from, txn, changes } = &task.work else {
            unreachable!("called for this work only");
        };
        let (from, txn, changes) = (*from, *txn, changes.clone());
        let Some(client) = self.participants.get(&txn).map(|participant| participant.client) else {
            return Ok(());
        };
        ready(&mut self.shards, &changes, Some(client), &mut task.state, true, turn)?;
        make(&mut self.shards, &changes, Some(client), turn);
        self.replay.applied.insert(txn);
        self.leave_txn(txn, turn);
        send_reply(from, PeerReply::Committed { txn }, turn);
        Ok(())
    }

    /// Makes a decided transaction's changes on this cell unless they are made: after a recovery of
    /// either side. Its keys are locked, or nobody is served yet.
    pub(crate) fn make_again<M: Memory>(
        &mut self,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let Work::Again { from, txn, changes } = &task.work else {
            unreachable!("called for this work only");
        };
        let (from, txn, changes) = (*from, *txn, changes.clone());
        if !self.replay.applied.contains(&txn) {
            let client = self.participants.get(&txn).map(|participant| participant.client);
            match client {
                Some(_) => ready(&mut self.shards, &changes, client, &mut task.state, true, turn)?,
                // Copies were recalled when it was prepared, and none was granted since.
                None => changes.iter().try_for_each(|change| {
                    fetch_change(&self.shards[&change.shard()], change, turn)
                })?,
            }
            make(&mut self.shards, &changes, client, turn);
            self.replay.applied.insert(txn);
        }
        self.leave_txn(txn, turn);
        self.again -= 1;
        send_reply(from, PeerReply::Committed { txn }, turn);
        self.heard_all(turn);
        Ok(())
    }

    /// A cell has named all transactions that it, or a predecessor, decided and that may not be made here.
    /// A predecessor's others did not happen; a cell that lives has none here that recovers, nor says this
    /// to any other.
    fn all_said<M: Memory>(&mut self, from: CellId, turn: &mut Turn<'_, M>) {
        let undecided: Vec<TxnId> =
            self.participants.keys().filter(|txn| txn.cell == from).copied().collect();
        undecided.into_iter().for_each(|txn| self.leave_txn(txn, turn));
        self.heard(from, turn);
    }

    /// Releases what the transaction holds at this cell, which takes part in it.
    pub(crate) fn leave_txn<M: Memory>(&mut self, txn: TxnId, turn: &mut Turn<'_, M>) {
        let Some(participant) = self.participants.remove(&txn) else { return };
        turn.log.end_txn();
        if let Some(task) = participant.task {
            self.tasks.remove(task);
        }
        for (shard, nodes) in &participant.promised {
            self.shards.get_mut(shard).expect("owned").promised -= nodes;
        }
        for (key, _) in &participant.keys {
            self.unlock(key, txn, turn);
        }
    }
}
