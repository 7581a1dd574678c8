//! A cell's own transactions: locks are taken, the operation is decided, the other cells make their
//! changes.
//!
//! Invariants:
//! * A transaction waits only for a key that comes after all that it holds, in the order of
//!   [`LockKey`]. So there is no circle of waits. An earlier key is taken only if it is free.
//! * The record of a decision contains the changes of other cells. They are sent until each cell
//!   has acknowledged them.

use std::collections::BTreeMap;

use warren_base::{CellId, Epoch, Errno, Ino, TxnId};
use warren_proto::{Asked, Change, InodeValue, KeyValue, LockKey, LockMode, PeerRequest, Step};

use crate::driver::Driver;
use crate::fleet::Fleet;
use crate::plant::Plant;
use crate::recall::recall_names;
use crate::run::state::{Decided, TaskState};
use crate::run::task::Tasks;
use crate::run::txn::{Awaits, Txn};
use crate::run::wait::{Stop, TaskId, Wait, WaitKey, Waits};
use crate::shards::Shards;
use crate::turn::Turn;

/// A transaction that is decided, while other cells make their changes.
///
/// ```text
/// sent ──every entry is changed──▶ answered: this cell's keys are released
///   └──all have acknowledged──▶ the tree's cell is sent its part ──acknowledged──▶ finished
/// ```
#[derive(Debug)]
struct Committing {
    /// Cells that were sent their changes and have not acknowledged them.
    sent: BTreeMap<CellId, Vec<Change>>,
    /// The cell that is sent its changes last, because it holds the lock on the tree's shape.
    last: Option<(CellId, Vec<Change>)>,
    unlock_tree: bool,
    /// A predecessor has decided it. It is not known any more which cell holds the tree's shape for
    /// it.
    is_recovered: bool,
    /// The keys that stay locked here, and the task that does not answer, until all entries are
    /// changed.
    held: Vec<LockKey>,
    task: Option<TaskId>,
}

impl Committing {
    /// Whether an entry of another cell waits for its change.
    fn changes_entries(&self) -> bool {
        let last = self.last.iter().map(|(_, changes)| changes);
        self.sent.values().chain(last).flatten().any(Change::is_of_entry)
    }

    /// Whether `cell` has not made its part, or must keep the tree's shape locked, which it holds
    /// or may have held.
    fn waits_for(&self, cell: CellId, early: bool) -> bool {
        let is_last = self.last.as_ref().is_some_and(|(last, _)| *last == cell);
        self.is_recovered || is_last || self.sent.contains_key(&cell) && !early
    }
}

/// The transactions that this cell coordinates.
#[derive(Debug)]
pub(crate) struct Coordinator {
    next: u64,
    /// The tasks that wait for another cell's answer.
    tasks: BTreeMap<TxnId, TaskId>,
    committing: BTreeMap<TxnId, Committing>,
    /// Steps from a directory to its parent that moves of directories have taken.
    pub(crate) steps_up: u64,
}

/// The answer of a participant.
pub(crate) enum Outcome {
    Prepared(Vec<(LockKey, KeyValue)>),
    Peeked(Ino, Option<InodeValue>),
    Refused(Errno),
}

/// Whether the value fits the key.
const fn fits_key(key: &LockKey, value: &KeyValue) -> bool {
    matches!(
        (key, value),
        (LockKey::Tree, KeyValue::Tree)
            | (LockKey::Inode(_), KeyValue::Inode(_))
            | (LockKey::Name(..), KeyValue::Name(_))
            | (LockKey::New(_), KeyValue::New(_))
            | (LockKey::Logged(_), KeyValue::Logged)
    )
}

/// Whether the key is the inode of a name whose value is one of these, in the shard of the name. A
/// participant may lock it with the name.
fn is_led_to(key: &LockKey, values: &[(LockKey, KeyValue)]) -> bool {
    values.iter().any(|(name, value)| {
        matches!((name, value), (LockKey::Name(dir, _), KeyValue::Name(Some((ino, _))))
            if *key == LockKey::Inode(*ino) && ino.shard() == dir.shard())
    })
}

/// Releases a key that the transaction holds or waits for at this cell.
pub(super) fn unlock(
    shards: &mut Shards,
    key: &LockKey,
    txn: TxnId,
    fleet: &Fleet,
    waits: &mut Waits,
) {
    let Some(shard) = shards.get_mut(&key.shard()) else { return };
    let woken = shard.locks.unlock(key, txn);
    if !fleet.plants(Plant::LoseWakeup) {
        woken.into_iter().for_each(|task| waits.wake(task));
    }
}

impl Coordinator {
    pub(crate) const fn new(epoch: Epoch) -> Self {
        let next = (epoch.0 as u64) << 40;
        Self { next, tasks: BTreeMap::new(), committing: BTreeMap::new(), steps_up: 0 }
    }

    fn new_id(&mut self, fleet: &Fleet) -> TxnId {
        self.next += 1;
        TxnId { cell: fleet.volume.id, seq: self.next }
    }

    /// Makes the task a transaction. The operation runs again to note what it touches.
    pub(crate) fn begin(&mut self, state: &mut TaskState, turn: &Turn<'_>) {
        state.txn = Some(Box::new(Txn::new(self.new_id(turn.fleet))));
    }

    /// Whether the transaction holds all keys that its operation touched. If not, it requests them,
    /// and the operation has to run again.
    pub(crate) fn hold_all(
        &mut self,
        shards: &mut Shards,
        state: &mut TaskState,
        touched: BTreeMap<LockKey, LockMode>,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Stop> {
        let txn = state.txn.as_mut().expect("a transaction");
        if txn.holds(&touched) {
            return Ok(true);
        }
        let last = txn.held.last_key_value().map(|(key, _)| key.clone());
        let is_early = |key: &LockKey| last.as_ref().is_some_and(|last| key <= last);
        let mut early = touched.iter().filter(|(key, _)| is_early(key));
        if early.all(|(key, mode)| Self::take_early(shards, txn, (key, *mode))) {
            txn.wanted =
                touched.into_iter().filter(|(key, _)| !txn.held.contains_key(key)).collect();
        } else {
            self.abort(shards, state, turn);
            let mut txn = Txn::new(self.new_id(turn.fleet));
            txn.wanted = touched;
            state.txn = Some(Box::new(txn));
        }
        self.acquire(shards, state, turn)?;
        Ok(false)
    }

    /// Whether the transaction holds a key that comes before others that it holds, or can lock it
    /// without a wait, because it is free and this cell's.
    fn take_early(shards: &mut Shards, txn: &mut Txn, (key, mode): (&LockKey, LockMode)) -> bool {
        if let Some(held) = txn.held.get(key) {
            return held.covers(mode);
        }
        let Some(shard) = shards.get_mut(&key.shard()).filter(|_| key.is_lock()) else {
            return false;
        };
        let is_free = shard.locks.try_lock(key, mode, txn.id);
        if is_free {
            txn.held.insert(key.clone(), mode);
        }
        is_free
    }

    /// Locks the wanted keys, in order. Waits as often as necessary; the caller calls it again each
    /// time.
    pub(crate) fn acquire(
        &mut self,
        shards: &mut Shards,
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let client = state.client.unwrap_or_default();
        let txn = state.txn.as_mut().expect("a transaction");
        if txn.held.is_empty() && turn.fleet.checkpoints.is_drained() {
            turn.waits.wait_for(WaitKey::Undrained, state.id);
            return Err(Stop::Wait(Wait::Registered));
        }
        if txn.held.is_empty() {
            recall_names(shards, txn.wanted.iter(), state.client, turn)?;
        }
        turn.begin_txn(txn.id);
        if let Awaits::Lock(key) = &txn.awaits {
            let shard = shards.get(&key.shard()).ok_or(Errno::EIO)?;
            if !shard.locks.is_held(key, txn.id) {
                return Err(Stop::Wait(Wait::Registered));
            }
            txn.awaits = Awaits::Nothing;
        }
        while let Some((key, mode)) = txn.wanted.pop_first() {
            // No operation touches a key without an owner, because the view checks that.
            let owner = turn.fleet.volume.owner(key.shard()).ok_or(Errno::ESTALE)?;
            if owner == turn.fleet.volume.id {
                txn.held.insert(key.clone(), mode);
                let shard = shards.get_mut(&key.shard()).ok_or(Errno::EIO)?;
                if let LockKey::New(_) = key {
                    let ino = shard.next_ino()?;
                    shard.use_sequence(ino);
                    txn.values.insert(key, KeyValue::New(ino));
                } else if key.is_lock() && !shard.locks.lock(&key, mode, txn.id, state.id) {
                    txn.awaits = Awaits::Lock(key);
                    return Err(Stop::Wait(Wait::Registered));
                }
                continue;
            }
            if turn.fleet.peers.is_lost(owner) {
                return Err(Stop::Wait(Wait::Joined(owner)));
            }
            let mut keys = vec![(key, mode)];
            while let Some(next) = txn.wanted.first_entry()
                && turn.fleet.volume.owner(next.key().shard()) == Some(owner)
            {
                keys.push(next.remove_entry());
            }
            txn.held.extend(keys.iter().cloned());
            txn.participants.insert(owner);
            txn.await_answer(Awaits::Prepared(owner));
            self.tasks.insert(txn.id, state.id);
            let is_privileged = state.is_privileged;
            let prepare = PeerRequest::Prepare { txn: txn.id, client, is_privileged, keys };
            turn.driver.send_request(owner, prepare);
            return Err(Stop::Wait(Wait::Registered));
        }
        Ok(())
    }

    /// Looks at an inode of another cell. Locks prevent changes meanwhile.
    pub(crate) fn peek(
        &mut self,
        state: &mut TaskState,
        ino: Ino,
        fleet: &Fleet,
        driver: &mut Driver<'_>,
    ) -> Stop {
        let Some(to) = fleet.volume.owner(ino.shard()) else { return Errno::EIO.into() };
        if fleet.peers.is_lost(to) {
            return Stop::Wait(Wait::Joined(to));
        }
        let txn = state.txn.as_mut().expect("only a transaction peeks");
        txn.await_answer(Awaits::Peeked(to, ino));
        self.tasks.insert(txn.id, state.id);
        driver.send_request(to, PeerRequest::Peek { txn: txn.id, ino });
        Stop::Wait(Wait::Registered)
    }

    /// A participant has answered.
    pub(crate) fn answered(
        &self,
        from: CellId,
        (id, outcome): (TxnId, Outcome),
        tasks: &mut Tasks,
        turn: &mut Turn<'_>,
    ) {
        // An answer to an unknown transaction is late or forged, and changes nothing.
        let Some(task_id) = self.tasks.get(&id).copied() else { return };
        let Some(task) = tasks.get_mut(task_id) else { return };
        let is_asked = |txn: &&mut Box<Txn>| txn.id == id && txn.awaited_cell() == Some(from);
        let Some(txn) = task.state.txn.as_mut().filter(is_asked) else { return };
        match outcome {
            Outcome::Prepared(values) => {
                let is_own = |key: &LockKey| turn.fleet.volume.owner(key.shard()) == Some(from);
                let is_locked =
                    |key: &LockKey| txn.held.contains_key(key) || is_led_to(key, &values);
                let is_right = |(key, value): &(LockKey, KeyValue)| {
                    is_own(key) && fits_key(key, value) && is_locked(key)
                };
                if !values.iter().all(is_right) {
                    return turn.driver.suspect(from);
                }
                for (key, _) in &values {
                    txn.held.entry(key.clone()).or_insert(LockMode::Write);
                }
                txn.values.extend(values);
                txn.peeked = None;
            }
            Outcome::Peeked(ino, value) => {
                if !matches!(txn.awaits, Awaits::Peeked(_, asked) if asked == ino) {
                    return turn.driver.suspect(from);
                }
                txn.peeked = Some((ino, value));
            }
            Outcome::Refused(errno) => turn.waits.signal(task_id).failed = Some(errno),
        }
        txn.awaits = Awaits::Nothing;
        turn.waits.wake(task_id);
    }

    /// The transaction happens: other cells are sent their changes.
    pub(crate) fn commit(
        &mut self,
        shards: &mut Shards,
        state: &mut TaskState,
        remote: Vec<Change>,
        turn: &mut Turn<'_>,
    ) {
        let txn = state.txn.take().expect("a transaction");
        let mut by_cell: BTreeMap<CellId, Vec<Change>> = BTreeMap::new();
        for change in remote {
            let owner = turn.fleet.volume.owner(change.shard());
            let owner = owner.filter(|cell| txn.participants.contains(cell));
            let owner = owner.expect("a change lies where something is locked");
            by_cell.entry(owner).or_default().push(change);
        }
        self.tasks.remove(&txn.id);
        // The shape of the tree stays locked until every cell has made its changes: the next
        // transaction that locks it looks at directories without locking them.
        let shape = txn.holds_tree();
        let owner = turn.fleet.volume.owner(LockKey::Tree.shard());
        let owner = owner.expect("every volume has its first shard");
        let last = (shape && owner != turn.fleet.volume.id)
            .then(|| (owner, by_cell.remove(&owner).unwrap_or_default()));
        let others = by_cell.values().chain(last.iter().map(|(_, changes)| changes));
        let others = others.flatten().cloned().collect();
        let committing = Committing {
            sent: BTreeMap::new(),
            last,
            unlock_tree: shape && owner == turn.fleet.volume.id,
            is_recovered: false,
            held: txn.held.into_keys().filter(|key| *key != LockKey::Tree).collect(),
            task: Some(state.id),
        };
        self.committing.insert(txn.id, committing);
        state.decided = Some(Box::new(Decided { txn: txn.id, others, answer: None }));
        for cell in txn.participants.iter().filter(|cell| !shape || **cell != owner) {
            let changes = by_cell.remove(cell).unwrap_or_default();
            self.send_commit(txn.id, *cell, changes, turn.fleet, &mut turn.driver);
        }
        self.advance(shards, txn.id, turn);
    }

    /// The tasks whose transactions are decided and that are not answered.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = TaskId> {
        self.committing.values().filter_map(|commit| commit.task)
    }

    /// Whether another cell has to change an entry before the transaction is answered.
    pub(crate) fn changes_entries(&self, txn: TxnId) -> bool {
        self.committing.get(&txn).is_some_and(Committing::changes_entries)
    }

    /// Whether some cell has not acknowledged a decision of a predecessor.
    pub(crate) fn has_recovered(&self) -> bool {
        self.committing.values().any(|commit| commit.is_recovered)
    }

    fn send_commit(
        &mut self,
        txn: TxnId,
        to: CellId,
        changes: Vec<Change>,
        fleet: &Fleet,
        driver: &mut Driver<'_>,
    ) {
        if let Some(commit) = self.committing.get_mut(&txn) {
            commit.sent.insert(to, changes.clone());
        }
        // A cell that recovers has nothing prepared.
        let request = match fleet.peers.is_recovering(to) {
            true => PeerRequest::Again { txn, changes },
            false => PeerRequest::Commit { txn, changes },
        };
        driver.send_request(to, request);
    }

    /// Sends `cell`, which has lost its state, its part of every transaction that it may not have
    /// made.
    pub(crate) fn send_again(&self, cell: CellId, driver: &mut Driver<'_>) {
        for (txn, commit) in &self.committing {
            if let Some(changes) = commit.sent.get(&cell) {
                let request = PeerRequest::Again { txn: *txn, changes: changes.clone() };
                driver.send_request(cell, request);
            }
        }
    }

    /// Other cells have to make a transaction that a predecessor has decided.
    fn take_over(&mut self, txn: TxnId, others: Vec<Change>, fleet: &Fleet) {
        let mut sent: BTreeMap<CellId, Vec<Change>> = BTreeMap::new();
        for change in others {
            let owner = fleet.volume.owner(change.shard()).expect("this cell has made the record");
            sent.entry(owner).or_default().push(change);
        }
        let (last, unlock_tree, is_recovered) = (None, false, true);
        let (held, task) = (Vec::new(), None);
        let commit = Committing { sent, last, unlock_tree, is_recovered, held, task };
        self.committing.insert(txn, commit);
    }

    /// Continues the decisions of a predecessor: sends each to its cells, and only then `AllSaid`.
    pub(crate) fn resume(
        &mut self,
        shards: &mut Shards,
        decided: BTreeMap<TxnId, Vec<Change>>,
        turn: &mut Turn<'_>,
    ) {
        let txns: Vec<TxnId> = decided.keys().copied().collect();
        decided.into_iter().for_each(|(txn, others)| self.take_over(txn, others, turn.fleet));
        for cell in turn.fleet.peers.all() {
            self.send_again(cell, &mut turn.driver);
        }
        // Some wait for no cell.
        txns.into_iter().for_each(|txn| self.advance(shards, txn, turn));
        self.send_all_said(turn);
    }

    /// A cell has made its part of the transaction.
    pub(crate) fn acknowledged(
        &mut self,
        shards: &mut Shards,
        from: CellId,
        txn: TxnId,
        turn: &mut Turn<'_>,
    ) {
        if let Some(commit) = self.committing.get_mut(&txn) {
            commit.sent.remove(&from);
            self.advance(shards, txn, turn);
        }
    }

    /// Continues a decided transaction: answers when all entries are changed, and takes the next
    /// step when every cell that was sent its changes has made them.
    fn advance(&mut self, shards: &mut Shards, id: TxnId, turn: &mut Turn<'_>) {
        let Some(commit) = self.committing.get_mut(&id) else { return };
        if !commit.changes_entries() {
            let (held, task) = (std::mem::take(&mut commit.held), commit.task.take());
            held.iter().for_each(|key| unlock(shards, key, id, turn.fleet, turn.waits));
            task.into_iter().for_each(|task| turn.waits.wake(task));
        }
        if !commit.sent.is_empty() {
            return self.send_all_said(turn);
        }
        if let Some((cell, changes)) = commit.last.take() {
            self.send_commit(id, cell, changes, turn.fleet, &mut turn.driver);
            return self.send_all_said(turn);
        }
        if commit.unlock_tree {
            unlock(shards, &LockKey::Tree, id, turn.fleet, turn.waits);
        }
        self.committing.remove(&id);
        turn.note(&Step::Finished { txn: id });
        turn.end_txn(id);
        self.send_all_said(turn);
    }

    /// Releases all keys of the task's transaction, here and elsewhere. The task has no transaction
    /// afterwards.
    pub(crate) fn abort(
        &mut self,
        shards: &mut Shards,
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) {
        let Some(txn) = state.txn.take() else { return };
        self.tasks.remove(&txn.id);
        if !turn.plants(Plant::SkipAbort) {
            for cell in &txn.participants {
                turn.driver.send_request(*cell, PeerRequest::Abort { txn: txn.id });
            }
        }
        for key in txn.held.keys() {
            unlock(shards, key, txn.id, turn.fleet, turn.waits);
        }
        turn.end_txn(txn.id);
    }

    /// Other cells were asked these, and have not answered.
    pub(crate) fn open_asks<'a>(
        &'a self,
        tasks: &'a Tasks,
    ) -> impl Iterator<Item = (CellId, Asked)> + 'a {
        self.tasks.iter().filter_map(|(id, task)| {
            let txn = tasks.get(*task)?.state.txn.as_ref().filter(|txn| txn.id == *id)?;
            Some((txn.awaited_cell()?, Asked::Txn { txn: *id, message: txn.messages }))
        })
    }

    /// Other cells were sent these decisions, and have not acknowledged them.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = (CellId, Asked)> + '_ {
        self.committing.iter().flat_map(|(txn, commit)| {
            commit.sent.keys().map(|cell| (*cell, Asked::Commit { txn: *txn }))
        })
    }

    /// Whether the transaction is not over. Only then may another cell take part in it.
    pub(crate) fn knows(&self, txn: TxnId) -> bool {
        self.tasks.contains_key(&txn) || self.committing.contains_key(&txn)
    }

    /// Whether the task is answered when other cells have made their changes.
    pub(crate) fn answers(&self, task: TaskId) -> bool {
        self.committing.values().any(|commit| commit.task == Some(task))
    }

    /// The task that waits for an answer in the transaction.
    pub(crate) fn task_of(&self, txn: TxnId) -> Option<TaskId> {
        self.tasks.get(&txn).copied()
    }

    /// Sends the changes of the transaction to the cell again, which has lost them or its answer.
    pub(crate) fn repeat_commit(&self, txn: TxnId, cell: CellId, driver: &mut Driver<'_>) {
        let changes = self.committing.get(&txn).and_then(|commit| commit.sent.get(&cell));
        if let Some(changes) = changes.cloned() {
            driver.send_request(cell, PeerRequest::Again { txn, changes });
        }
    }

    /// Sends `AllSaid` to each recovering cell that has acknowledged all decisions of this cell. If
    /// it were sent before, and a decision were lost, the cell would serve without its changes.
    pub(crate) fn send_all_said(&self, turn: &mut Turn<'_>) {
        if !turn.log.image.is_open() {
            return;
        }
        let early = turn.plants(Plant::SayAllEarly);
        for cell in turn.fleet.peers.recovering() {
            if !self.committing.values().any(|commit| commit.waits_for(cell, early)) {
                turn.fleet.peers.was_sent_all(cell);
                turn.driver.send_request(cell, PeerRequest::AllSaid { is_repeated: false });
            }
        }
    }

    /// Sends `AllSaid` again to a recovering cell that has not received it.
    pub(crate) fn repeat_all_said(&self, cell: CellId, fleet: &Fleet, driver: &mut Driver<'_>) {
        if !fleet.peers.is_recovering(cell) {
            driver.send_request(cell, PeerRequest::AllSaid { is_repeated: true });
        }
    }
}
