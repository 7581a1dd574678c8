//! Transactions of other cells: the keys that they have locked at this cell, and their changes
//! here.
//!
//! Invariants:
//! * Every change that a prepared transaction may make is possible: blocks for it are set aside.
//! * A transaction's changes are made once, however often they are sent: the log names the
//!   transactions that were made.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, ClientId, Errno, Ino, ShardId, TxnId};
use warren_proto::{Change, KeyValue, LeaseKey, LockKey, LockMode, PeerReply};

use super::coordinator::unlock;
use crate::apply::fetch_change;
use crate::budget::{Growth, Need, Reservation};
use crate::change::{make, prepare};
use crate::data::cover::cover_replacement;
use crate::delegate::settle_locked;
use crate::driver::Driver;
use crate::fleet::Fleet;
use crate::give_up::retain_served;
use crate::plant::Plant;
use crate::recall::{recall, recall_names};
use crate::run::state::TaskState;
use crate::run::wait::{Stop, TaskId, Wait, Waits};
use crate::run::work::Work;
use crate::shards::Shards;
use crate::supply::claim::reserve;
use crate::turn::Turn;

/// A transaction of another cell.
#[derive(Debug)]
struct Participant {
    client: ClientId,
    keys: Vec<(LockKey, LockMode)>,
    /// Blocks of each shard that are set aside for it.
    promised: Vec<(ShardId, u64)>,
    state: State,
}

/// Another cell asks for locks.
pub(crate) struct Prepare<'a> {
    pub(crate) from: CellId,
    pub(crate) txn: TxnId,
    pub(crate) keys: &'a [(LockKey, LockMode)],
    /// The number of keys that earlier messages of the transaction have named.
    pub(crate) next: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// A task locks the keys of a prepare.
    Locking(TaskId),
    /// Every prepare is answered. A commit or an abort will follow.
    Prepared,
}

impl Participant {
    const fn new(client: ClientId, task: TaskId) -> Self {
        Self { client, keys: Vec::new(), promised: Vec::new(), state: State::Locking(task) }
    }

    /// The client that it acts for, and the room for its changes.
    fn promised(&self) -> (Option<ClientId>, Reservation) {
        let blocks = self.promised.iter().map(|(_, blocks)| *blocks);
        (Some(self.client), Reservation::of_promises(blocks))
    }
}

/// The transactions of other cells that take part here.
#[derive(Debug, Default)]
pub(crate) struct Participants {
    known: BTreeMap<TxnId, Participant>,
    /// Transactions whose changes were made here and that no checkpoint has made durable.
    applied: BTreeSet<TxnId>,
    /// Tasks that make changes again after a recovery.
    making_again: usize,
}

fn lease_of(key: &LockKey) -> Option<LeaseKey> {
    match key {
        LockKey::Inode(ino) => Some(LeaseKey::Attr(*ino)),
        LockKey::Name(dir, name) => Some(LeaseKey::Name(*dir, name.clone())),
        LockKey::Tree | LockKey::New(_) | LockKey::Logged(_) => None,
    }
}

fn is_write(mode: LockMode) -> bool {
    matches!(mode, LockMode::IntentWrite | LockMode::Write)
}

/// Whether no fault is planted that refuses one of these changes.
fn may_make(changes: &[Change], fleet: &Fleet) -> Result<(), Stop> {
    let is_refused = |change: &Change| fleet.plants(Plant::RefuseDecided(change.shard()));
    if changes.iter().any(is_refused) { Err(Errno::EIO.into()) } else { Ok(()) }
}

impl Participants {
    /// A transaction happened that may not be made here.
    pub(crate) fn make_missing(
        &mut self,
        shards: &Shards,
        from: CellId,
        (txn, changes): (TxnId, Vec<Change>),
        turn: &mut Turn<'_>,
    ) {
        let owned = |change: &Change| shards.contains_key(&change.shard());
        let locked = |change: &Change| self.has_locked(shards, txn, change);
        if txn.cell != from || !changes.iter().all(owned) {
            return turn.driver.suspect(from);
        }
        if !turn.fleet.readiness.is_recovered() || changes.iter().all(locked) {
            self.making_again += 1;
            turn.waits.start(Work::Again { from, txn, changes });
        } else if self.applied.contains(&txn) {
            turn.driver.send_reply(from, PeerReply::Committed { txn });
        } else {
            // A transaction that was not made still has its locks.
            turn.driver.suspect(from);
        }
    }

    /// Whether the transaction has locked the object of the change.
    fn has_locked(&self, shards: &Shards, txn: TxnId, change: &Change) -> bool {
        let key = match change {
            Change::AddEntry { dir, name, .. }
            | Change::RemoveEntry { dir, name, .. }
            | Change::ReplaceEntry { dir, name, .. } => LockKey::Name(*dir, name.clone()),
            Change::NewInode { ino, .. }
            | Change::NewOrphan { ino, .. }
            | Change::Inherit { ino, .. }
            | Change::AddLink { ino, .. }
            | Change::RemoveLink { ino, .. }
            | Change::SetParent { ino, .. }
            | Change::Touch { ino, .. } => LockKey::Inode(*ino),
        };
        let keys = self.known.get(&txn).map_or(&[][..], |participant| &participant.keys);
        keys.contains(&(key.clone(), LockMode::Write))
            && shards.get(&key.shard()).is_some_and(|shard| shard.locks.is_held(&key, txn))
    }

    /// Locks the keys one after the other, and what free inodes names lead to. Then answers with
    /// the values of all.
    pub(crate) fn prepare(
        &mut self,
        shards: &mut Shards,
        Prepare { from, txn, keys, next }: Prepare<'_>,
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let Some(participant) = self.known.get(&txn) else { return Ok(()) };
        if keys.iter().any(|(key, _)| shards.is_given_up(key.shard())) {
            return Err(Errno::EIO.into());
        }
        // How many of this message's keys are locked (or in a queue) already.
        let done = keys.len().min(participant.keys.len() - next);
        if participant.keys.is_empty() {
            let keys = keys.iter().map(|(key, mode)| (key, mode));
            recall_names(shards, keys, state.client, turn)?;
        }
        if let Some((key, _)) = participant.keys.last().filter(|_| done > 0)
            && key.is_lock()
            && !shards[&key.shard()].locks.is_held(key, txn)
        {
            return Err(Stop::Wait(Wait::Registered));
        }
        for (key, mode) in &keys[done..] {
            let participant = self.known.get_mut(&txn).expect("just there");
            participant.keys.push((key.clone(), *mode));
            let shard = shards.get_mut(&key.shard()).expect("checked when it came");
            let free = !key.is_lock() || shard.locks.lock(key, *mode, txn, state.id);
            if !free {
                return Err(Stop::Wait(Wait::Registered));
            }
        }
        let all = next + keys.len();
        self.follow_names(shards, txn, keys, turn.fleet)?;
        let keys = [keys, &self.known[&txn].keys[all..]].concat();
        let values = self.prepared(shards, txn, &keys, state, turn)?;
        self.known.get_mut(&txn).expect("just there").state = State::Prepared;
        turn.driver.send_reply(from, PeerReply::Prepared { txn, values });
        Ok(())
    }

    /// Locks the inodes to which the locked names lead, because the coordinator will need them. An
    /// inode must be in its name's shard, because the coordinator may still wait for keys of later
    /// shards. It must be free, because it may come before keys that are held.
    fn follow_names(
        &mut self,
        shards: &mut Shards,
        txn: TxnId,
        keys: &[(LockKey, LockMode)],
        fleet: &Fleet,
    ) -> Result<(), Stop> {
        let held = &mut self.known.get_mut(&txn).expect("known").keys;
        for (key, mode) in keys {
            let (LockKey::Name(dir, name), LockMode::Write) = (key, mode) else { continue };
            let shard = shards.shard(dir.shard());
            let Some((ino, _)) = shard.dentry(fleet.volume.secret, *dir, name)? else {
                continue;
            };
            let inode = LockKey::Inode(ino);
            let is_missing =
                ino.shard() == dir.shard() && held.iter().all(|(key, _)| *key != inode);
            if is_missing && shard.locks.try_lock(&inode, LockMode::Write, txn) {
                held.push((inode, LockMode::Write));
            }
        }
        Ok(())
    }

    /// Everything is locked. Now revokes leases, sets blocks aside, and reads the values.
    fn prepared(
        &mut self,
        shards: &mut Shards,
        txn: TxnId,
        keys: &[(LockKey, LockMode)],
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) -> Result<Vec<(LockKey, KeyValue)>, Stop> {
        if turn.sessions.streams.has_any() {
            for (key, _) in keys {
                if let LockKey::Inode(ino) = key {
                    settle_locked(shards.shard(ino.shard()), *ino, state, turn)?;
                }
            }
        }
        if !revoke_leases(shards, keys, state, turn) {
            return Err(Stop::Wait(Wait::Recall));
        }
        let mut values = Vec::with_capacity(keys.len());
        for (key, mode) in keys {
            if let LockKey::Logged(ino) = key {
                cover_replacement(shards.shard(ino.shard()), *ino, turn)?;
            }
            let shard = &shards[&key.shard()];
            if let (LockKey::Name(dir, name), true) = (key, is_write(*mode))
                && shard.linked_or_open(*dir)?.is_some()
            {
                // A decision of the coordinator cannot be refused later.
                let entry = shard.entry(turn.fleet.volume.secret, *dir, name)?;
                shard.check_entry(*dir, name, entry)?;
            }
            if let Some(value) = Self::value_of(shards, key, turn.fleet)? {
                values.push((key.clone(), value));
            }
        }
        self.promise(shards, txn, keys, state, turn)?;
        for (key, _) in keys {
            if let LockKey::New(shard) = key {
                let shard = shards.get_mut(shard).expect("checked when it came");
                let ino = shard.next_ino()?;
                shard.use_sequence(ino);
                // Its client may know the number before this cell knows the inode.
                let new = LockKey::Inode(ino);
                assert!(shard.locks.lock(&new, LockMode::Write, txn, state.id));
                let participant = self.known.get_mut(&txn).expect("known");
                participant.keys.push((new, LockMode::Write));
                values.push((key.clone(), KeyValue::New(ino)));
            }
        }
        Ok(values)
    }

    /// Sets blocks aside for what the transaction may change under these keys.
    fn promise(
        &mut self,
        shards: &mut Shards,
        txn: TxnId,
        keys: &[(LockKey, LockMode)],
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let homes: BTreeSet<ShardId> = keys.iter().map(|(key, _)| key.shard()).collect();
        let mut promised = Vec::new();
        for home in homes {
            let own = || keys.iter().filter(|(key, _)| key.shard() == home);
            let shard = &shards[&home];
            let budget = shard.budget();
            let blocks = own().map(|(key, mode)| budget.change_under(key, *mode)).sum();
            // The transaction may add an entry if the name does not exist yet.
            let grows = own().any(|(key, mode)| match key {
                LockKey::New(_) => true,
                LockKey::Name(dir, name) if is_write(*mode) => {
                    !matches!(shard.dentry(turn.fleet.volume.secret, *dir, name), Ok(Some(_)))
                }
                _ => false,
            });
            if blocks > 0 {
                let growth = if grows { Growth::Grows } else { Growth::Frees };
                let room = reserve(shards.shard(home), Need { blocks, growth }, state, turn)?;
                promised.push((home, room.into_promise()));
            }
        }
        for (home, blocks) in &promised {
            shards.get_mut(home).expect("owned").promised += blocks;
        }
        self.known.get_mut(&txn).expect("known").promised.extend(promised);
        Ok(())
    }

    /// The value of a key at this cell. The number of a new inode is handed out later.
    fn value_of(shards: &Shards, key: &LockKey, fleet: &Fleet) -> Result<Option<KeyValue>, Stop> {
        let shard = &shards[&key.shard()];
        Ok(Some(match key {
            LockKey::Tree => KeyValue::Tree,
            LockKey::Inode(ino) => KeyValue::Inode(shard.linked_or_open(*ino)?),
            LockKey::Name(dir, name) => {
                KeyValue::Name(shard.dentry(fleet.volume.secret, *dir, name)?)
            }
            LockKey::Logged(_) => KeyValue::Logged,
            LockKey::New(_) => return Ok(None),
        }))
    }

    pub(crate) fn answer_peek(
        shards: &Shards,
        (from, txn, ino): (CellId, TxnId, Ino),
        driver: &mut Driver<'_>,
    ) -> Result<(), Stop> {
        let value = match shards.get(&ino.shard()) {
            Some(shard) => shard.linked_or_open(ino)?,
            None if shards.is_given_up(ino.shard()) => return Err(Errno::EIO.into()),
            None => None,
        };
        driver.send_reply(from, PeerReply::Peeked { txn, ino, value });
        Ok(())
    }

    /// Makes a transaction's changes on this cell, which were decided elsewhere.
    pub(crate) fn commit(
        &mut self,
        shards: &mut Shards,
        (from, txn, changes): (CellId, TxnId, &[Change]),
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let changes = retain_served(shards, changes.to_vec());
        let Some((client, promised)) = self.known.get(&txn).map(Participant::promised) else {
            return Ok(());
        };
        may_make(&changes, turn.fleet)?;
        let room = prepare(shards, &changes, client, state, Some(promised), turn)?;
        make(shards, (&changes, false), client, room, turn);
        self.applied.insert(txn);
        self.leave(shards, txn, turn);
        turn.driver.send_reply(from, PeerReply::Committed { txn });
        Ok(())
    }

    /// Makes a decided transaction's changes on this cell unless they were made, after a recovery
    /// of either side. Its keys are locked, or no client is served yet.
    pub(crate) fn make_again(
        &mut self,
        shards: &mut Shards,
        (from, txn, changes): (CellId, TxnId, &[Change]),
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let changes = retain_served(shards, changes.to_vec());
        if !self.applied.contains(&txn) {
            may_make(&changes, turn.fleet)?;
            let (client, room) = match self.known.get(&txn).map(Participant::promised) {
                Some((client, promised)) => {
                    (client, prepare(shards, &changes, client, state, Some(promised), turn)?)
                }
                // Copies were recalled when it was prepared, and none was granted since.
                None => {
                    let fetch = |change: &Change| {
                        fetch_change(&shards[&change.shard()], change, turn.fleet)
                    };
                    changes.iter().try_for_each(fetch)?;
                    (None, Reservation::unbounded())
                }
            };
            make(shards, (&changes, false), client, room, turn);
            self.applied.insert(txn);
        }
        self.leave(shards, txn, turn);
        self.making_again -= 1;
        // What a caretaker owed was acknowledged when it was logged.
        if from != turn.fleet.volume.id {
            turn.driver.send_reply(from, PeerReply::Committed { txn });
        }
        Ok(())
    }

    /// Releases the keys of a transaction in which this cell takes part. Returns the task that
    /// still takes locks for it, which the caller drops.
    pub(crate) fn leave(
        &mut self,
        shards: &mut Shards,
        txn: TxnId,
        turn: &mut Turn<'_>,
    ) -> Option<TaskId> {
        let participant = self.known.remove(&txn)?;
        turn.log.end_txn();
        for (shard, blocks) in &participant.promised {
            if let Some(shard) = shards.get_mut(shard) {
                shard.promised -= blocks;
            }
        }
        for (key, _) in &participant.keys {
            unlock(shards, key, txn, turn.fleet, turn.waits);
        }
        match participant.state {
            State::Locking(task) => Some(task),
            State::Prepared => None,
        }
    }

    /// The transactions of a cell that take part here. If `locking`, only those that are not
    /// prepared.
    pub(crate) fn txns_of(&self, cell: CellId, locking: bool) -> Vec<TxnId> {
        let is_wanted = |(txn, participant): &(&TxnId, &Participant)| {
            txn.cell == cell && (!locking || matches!(participant.state, State::Locking(_)))
        };
        self.known.iter().filter(is_wanted).map(|(txn, _)| *txn).collect()
    }

    /// Whether a task takes locks for the transaction, and will answer.
    pub(crate) fn is_locking(&self, txn: TxnId) -> bool {
        let known = self.known.get(&txn);
        known.is_some_and(|participant| matches!(participant.state, State::Locking(_)))
    }

    /// The transactions that wait for a decision of their coordinators.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = TxnId> + '_ {
        let known = self.known.iter();
        let prepared = known.filter(|(_, it)| matches!(it.state, State::Prepared));
        prepared.map(|(txn, _)| *txn)
    }

    /// A prepare or peek failed. What is locked stays so until the coordinator sends `Abort`.
    pub(crate) fn refuse(&mut self, to: CellId, txn: TxnId, errno: Errno, driver: &mut Driver<'_>) {
        if let Some(participant) = self.known.get_mut(&txn) {
            participant.state = State::Prepared;
        }
        driver.send_reply(to, PeerReply::Refused { txn, errno });
    }

    /// A coordinator asks for these locks.
    pub(crate) fn receive_prepare(
        &mut self,
        shards: &Shards,
        from: CellId,
        (txn, client, is_privileged): (TxnId, ClientId, bool),
        keys: Vec<(LockKey, LockMode)>,
        turn: &mut Turn<'_>,
    ) {
        // A checkpoint makes room, and it waits for transactions. So this one has to begin again.
        if !turn.log_has_room() {
            return turn.driver.send_reply(from, PeerReply::Refused { txn, errno: Errno::EAGAIN });
        }
        let owned = keys.iter().all(|(key, _)| shards.contains_key(&key.shard()));
        if !owned || txn.cell != from {
            return turn.driver.suspect(from);
        }
        if !self.known.contains_key(&txn) {
            turn.log.begin_txn();
        }
        let next = self.known.get(&txn).map_or(0, |participant| participant.keys.len());
        let work = Work::Prepare { from, txn, client, is_privileged, keys, next };
        let task = turn.waits.start(work);
        let participant = self.known.entry(txn).or_insert_with(|| Participant::new(client, task));
        participant.state = State::Locking(task);
    }

    /// A coordinator has decided these changes.
    pub(crate) fn receive_commit(
        &self,
        shards: &Shards,
        from: CellId,
        (txn, changes): (TxnId, Vec<Change>),
        waits: &mut Waits,
        driver: &mut Driver<'_>,
    ) {
        let locked = changes.iter().all(|change| self.has_locked(shards, txn, change));
        if !locked || txn.cell != from || !self.known.contains_key(&txn) {
            return driver.suspect(from);
        }
        waits.start(Work::Commit { from, txn, changes });
    }

    /// Whether every change is made that was sent again to this recovering cell.
    pub(crate) const fn has_made_all_again(&self) -> bool {
        self.making_again == 0
    }

    /// The log names the transaction as made here, or as owed. Returns whether that is news.
    pub(crate) fn note_applied(&mut self, txn: TxnId) -> bool {
        self.applied.insert(txn)
    }

    /// A predecessor owes its part of a transaction. It is made unless a later record has it.
    pub(crate) fn make_owed(
        &mut self,
        (txn, changes): (TxnId, Vec<Change>),
        fleet: &Fleet,
        waits: &mut Waits,
    ) {
        self.making_again += 1;
        waits.start(Work::Again { from: fleet.volume.id, txn, changes });
    }

    /// The transactions whose changes were made here and that no checkpoint has made durable.
    pub(crate) const fn applied(&mut self) -> &mut BTreeSet<TxnId> {
        &mut self.applied
    }
}

/// Revokes the leases on what the transaction may change. Returns false while a front has copies to
/// drop.
fn revoke_leases(
    shards: &mut Shards,
    keys: &[(LockKey, LockMode)],
    state: &TaskState,
    turn: &mut Turn<'_>,
) -> bool {
    let mut free = true;
    for (key, mode) in keys {
        if let Some(lease) = lease_of(key).filter(|_| is_write(*mode)) {
            let shard = shards.shard(key.shard());
            free &= recall(shard, &lease, state.client, turn);
            let kept = [Some(Plant::ForgetRevoke), Some(Plant::RevokeAfterCommit)];
            if !kept.iter().any(|plant| turn.fleet.volume.plant == *plant) {
                turn.revoke(&mut shard.leases, &lease);
            }
            if let LockKey::Inode(ino) = key {
                // With the last name, kept handles are closed. Once the request is answered, no
                // client uses them again.
                let opens = LeaseKey::Opens(*ino);
                turn.revoke(&mut shard.leases, &opens);
            }
            if let LockKey::Name(dir, _) = key
                && !turn.plants(Plant::KeepListings)
            {
                let (client, stamps) = (state.client, &mut turn.sessions.leases.stamps);
                let memory = &mut *turn.driver.memory;
                shard.leases.words.revoke_listings(*dir, client, stamps, memory);
            }
        }
    }
    free
}
