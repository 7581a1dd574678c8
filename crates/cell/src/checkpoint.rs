//! Write-back and checkpoints (WAFL's consistency points).
//!
//! Order of a fleet-wide checkpoint, as this cell sees it:
//!
//! 1. `Drain`: no transaction starts any more. The cell reports `Drained` when none is left.
//! 2. `Write`: every dirty page gets a place, in batches. Once no page is dirty, every dirty node
//!    gets one, in one step. This fixes the state that the checkpoint holds. The writes are issued.
//!    Requests continue; transactions do not yet, because another cell may not have fixed its
//!    state.
//! 3. When all writes are done, the cell reports `Written` with the new roots.
//! 4. `Switched`: blocks that were freed before step 2 may be used again. `Failed`: these blocks
//!    stay held, and the next checkpoint writes everything again. The blocks that the trees were
//!    given for the failed checkpoint may be used again, unless it is not known which superblock
//!    counts.

pub(crate) mod writeback;

use std::collections::BTreeSet;

use warren_base::{BlockNo, Errno, Lsn, ShardId, TxnId};
use warren_disk::{BlockWrite, DecodedNode, Key, Value};
use warren_proto::control::{Report, ShardRoot, Written};
use warren_proto::{Handle, Step};

use crate::budget::SESSION_BATCH;
use crate::caretaker::part_of_checkpoint;
use crate::checkpoint::writeback::place_all;
use crate::driver::Driver;
use crate::durable::{fail_if_held, free_log, hold_log_for_ever};
use crate::event::Effect;
use crate::fleet::Fleet;
use crate::frames::cache::Cache;
use crate::give_up::{stock_up_for_kept, write_given_up};
use crate::phase::Phase;
use crate::plant::Plant;
use crate::run::state::TaskState;
use crate::run::task::{Task, Tasks};
use crate::run::wait::{Stop, WaitKey, Waits};
use crate::run::work::Work;
use crate::shard::Shard;
use crate::shards::Shards;
use crate::supply::claim::claim_spare;
use crate::supply::host::{review_host, stock_up};
use crate::supply::pool::release_chunks;
use crate::turn::Turn;
use crate::txn::participant::Participants;

/// Turns between two counts of nodes: a turn adds few, and counting visits every shard.
const TURNS_PER_COUNT: u64 = 64;
/// Checkpoints that the device refuses while a log is full, before the fleet becomes read-only.
const REFUSALS_MAX: u32 = 2;

#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// Clean tree nodes that the cell keeps in memory at most.
    nodes_max: usize,
    turns: u64,
    /// The contents of the report when the writes are done.
    written: Written,
    /// Where a replay of the log begins once the checkpoint is durable.
    log_start: Lsn,
    /// The first write of a page that ended after the report, and so may not be durable with the
    /// checkpoint.
    next_write: Option<u64>,
    /// The shards whose trees were written, and the blocks. They are written again if the
    /// checkpoint fails.
    roots: Vec<(ShardId, Vec<BlockNo>)>,
    /// Checkpoints in a row that the device has refused while the log was full.
    refused: u32,
    /// Whether this checkpoint counts free chunks.
    count: bool,
    /// Transactions of other cells whose changes were made here before the state was fixed.
    applied: BTreeSet<TxnId>,
}

impl Checkpoint {
    pub(crate) fn new(nodes_max: usize) -> Self {
        Self {
            nodes_max,
            turns: 0,
            written: Written::default(),
            log_start: Lsn(0),
            next_write: None,
            roots: Vec::new(),
            refused: 0,
            count: false,
            applied: BTreeSet::new(),
        }
    }

    pub(crate) fn drain(&self, number: u64, turn: &mut Turn<'_>) {
        turn.fleet.checkpoints.begin(number);
        turn.waits.requeue(WaitKey::NextCheckpoint, WaitKey::Checkpoint(number));
        turn.report_if_drained();
    }

    pub(crate) fn start_writing(&mut self, number: u64, count: bool, turn: &mut Turn<'_>) {
        if turn.fleet.checkpoints.number() == number {
            self.count = count;
            turn.chunks.begin_count(count);
            turn.fleet.checkpoints.enter(Phase::Fixing);
            turn.waits.start(Work::Fix);
        }
    }

    /// Fixes the state that the checkpoint holds. Waits for nodes as often as necessary, and lets
    /// other events in between batches of pages.
    pub(crate) fn fix(
        &mut self,
        shards: &mut Shards,
        participants: &mut Participants,
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        // The checkpoint was abandoned meanwhile.
        if turn.fleet.checkpoints.phase() != Phase::Fixing {
            return Ok(());
        }
        stock_up_for_kept(shards, state, turn.chunks)?;
        stock_up(state, turn.chunks)?;
        // Pages of failed writes are written again now, so only failures from here on count.
        turn.cache.io.take_write_error();
        place_all(shards, turn)?;
        turn.check_log()?;
        let ids = shards.ids().to_vec();
        // Nothing waits from here on: this is the state.
        let mut written = Written::default();
        for id in ids {
            self.write_tree(shards, id, &mut written, turn)?;
        }
        shards.values_mut().for_each(|shard| shard.space.fix_cleaning());
        // The record of chunks that were claimed for the trees comes before the snapshot of the
        // session.
        turn.seal();
        let kept = write_given_up(shards, &mut written, turn);
        turn.cache.io.queue_nodes(kept);
        written.log_start = match turn.log.snapshot() {
            Some(start) => start,
            None => snapshot_session(shards, turn),
        };
        if self.count {
            let departing = shards.values().flat_map(|shard| shard.space.departing());
            written.free = Some(turn.chunks.count(departing.copied()));
        }
        shards.values_mut().for_each(|shard| shard.behind.fixed());
        self.applied.append(participants.applied());
        turn.log.commits.fixed();
        self.written = written;
        turn.fleet.checkpoints.enter(Phase::Writing);
        Ok(())
    }

    /// The same for a caretaker, whose log has claimed these chunks.
    pub(crate) fn fix_kept(&mut self, claimed: &[u64], turn: &mut Turn<'_>) -> Result<(), Stop> {
        if turn.fleet.checkpoints.phase() != Phase::Fixing {
            return Ok(());
        }
        self.written = part_of_checkpoint(claimed, self.count, turn)?;
        turn.log.commits.fixed();
        turn.fleet.checkpoints.enter(Phase::Writing);
        Ok(())
    }

    /// The state could not be fixed, so this checkpoint fails.
    pub(crate) fn fix_failed(errno: Errno, fleet: &mut Fleet, driver: &mut Driver<'_>) {
        // The checkpoint was abandoned meanwhile.
        if fleet.checkpoints.phase() != Phase::Fixing {
            return;
        }
        fleet.checkpoints.enter(Phase::Reported);
        let (cell, number) = (fleet.volume.id, fleet.checkpoints.number());
        driver.report(Report::Written { cell, number, result: Err(errno) });
    }

    /// Gives the tree's dirty nodes places and queues them to be written.
    fn write_tree(
        &mut self,
        shards: &mut Shards,
        id: ShardId,
        written: &mut Written,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let mut places: Vec<BlockNo> = Vec::new();
        loop {
            let shard = shards.get_mut(&id).expect("owned");
            let displaced = shard.tree.take_displaced();
            displaced.into_iter().for_each(|block| shard.space.free(block));
            let nodes = shard.tree.dirty_nodes().saturating_sub(places.len()) as u64;
            shard.space.depart(nodes + shard.space.record_nodes() + shard.kept_blocks());
            while places.len() < shard.tree.dirty_nodes() {
                match shard.space.alloc() {
                    Some(block) => places.push(block),
                    None => break,
                }
            }
            if places.len() < shard.tree.dirty_nodes() {
                if claim_spare(shards.shard(id), turn) {
                    continue;
                }
                let shard = shards.get_mut(&id).expect("owned");
                places.into_iter().for_each(|block| shard.space.give_back(block));
                return Err(Stop::Fail(Errno::ENOSPC));
            }
            // Writing the chunks' records may make more nodes dirty.
            record_chunks(shard);
            shard.record_owed();
            record_shared(shard);
            if places.len() > shard.tree.dirty_nodes() {
                let block = places.pop().expect("more than needed");
                shard.space.give_back(block);
                continue;
            }
            if places.len() == shard.tree.dirty_nodes()
                && !shard.tree.has_displaced()
                && !shard.space.is_stale()
            {
                break;
            }
        }
        if places.is_empty() && !shards.shard(id).changed {
            return Ok(());
        }
        let shard = shards.shard(id);
        let (root, height, nodes) = shard.tree.write_out(turn.fleet.checkpoints.number(), &places);
        check_nodes(id, &nodes);
        shard.changed = false;
        let (claimed, released) = shard.space.seal();
        turn.chunks.add_all(shard.space.give_early());
        written.claimed.extend(claimed.iter().map(|chunk| (*chunk, id)));
        written.released.extend(released);
        written.roots.push(ShardRoot {
            shard: id,
            root: root.map(|pointer| (pointer.block, pointer.checksum)),
            height,
            next_sequence: shard.next_sequence,
            inodes: shard.inodes,
            blocks: shard.space.used_blocks(),
        });
        self.roots.push((id, places));
        turn.cache.io.queue_nodes(nodes);
        Ok(())
    }

    /// Reports when the checkpoint's writes are done.
    pub(crate) fn advance(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) {
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS_PER_COUNT)
            && turn.fleet.checkpoints.phase() == Phase::Idle
        {
            self.evict_nodes(shards, turn.fleet, &mut turn.driver);
        }
        if turn.fleet.checkpoints.phase() != Phase::Writing || !turn.cache.io.writes_are_done() {
            return;
        }
        turn.fleet.checkpoints.enter(Phase::Reported);
        let written = std::mem::take(&mut self.written);
        self.log_start = written.log_start;
        self.next_write = Some(turn.cache.frames.next_write());
        let result = turn.cache.io.take_write_error().map_or(Ok(written), Err);
        let (cell, number) = (turn.fleet.volume.id, turn.fleet.checkpoints.number());
        turn.driver.report(Report::Written { cell, number, result });
    }

    fn evict_nodes(&self, shards: &mut Shards, fleet: &mut Fleet, driver: &mut Driver<'_>) {
        let resident: usize = shards.values().map(|shard| shard.tree.resident_nodes()).sum();
        let most = self.nodes_max;
        if resident <= most {
            return;
        }
        let share = most / shards.ids().len().max(1);
        for shard in shards.values_mut() {
            shard.tree.evict(share);
        }
        let dirty: usize = shards.values().map(|shard| shard.tree.dirty_nodes()).sum();
        // The timer's next checkpoint may come too late, because dirty nodes cannot be evicted.
        if dirty > most / 2 {
            fleet.want_checkpoint(driver);
        }
    }

    pub(crate) fn switched(&mut self, shards: &mut Shards, number: u64, turn: &mut Turn<'_>) {
        if turn.fleet.checkpoints.number() != number {
            return;
        }
        for (id, _) in std::mem::take(&mut self.roots) {
            let chunks = shards.space_mut(id).expect("owned").switched();
            release_chunks(shards, chunks, turn);
        }
        shards.values_mut().for_each(|shard| shard.space.end_cleaning());
        shards.note_recorded(true);
        review_host(turn);
        self.applied.clear();
        turn.chunks.end_count();
        turn.log.commits.switched();
        shards.values_mut().for_each(|shard| shard.behind.switched());
        if let Some(end) = self.next_write.take() {
            for frame in turn.cache.frames.flushed(end) {
                turn.cache.table.clear(frame, turn.driver.memory);
            }
            turn.waits.wake_all(WaitKey::Frames);
        }
        self.refused = 0;
        free_log(self.log_start, turn);
        end(turn.fleet, turn.waits);
        turn.waits.wake_all(WaitKey::Checkpoint(number));
    }

    pub(crate) fn failed(
        &mut self,
        shards: &mut Shards,
        (participants, tasks): (&mut Participants, &Tasks),
        (number, errno, broken): (u64, Errno, bool),
        turn: &mut Turn<'_>,
    ) {
        if turn.fleet.checkpoints.number() != number {
            return;
        }
        // No later checkpoint is begun.
        let may_count = broken && !turn.log.commits.is_last();
        self.undo(shards, participants, may_count, turn.cache);
        if broken {
            hold_log_for_ever(errno, turn.log);
            turn.waits.wake_all(WaitKey::LogRoom);
        }
        fail_if_held(errno, turn);
        end(turn.fleet, turn.waits);
        if !broken {
            self.count_refusal(errno, turn);
        }
        // No other cell may ask for the next checkpoint.
        turn.waits.requeue(WaitKey::LogRoom, WaitKey::NextCheckpoint);
        if turn.waits.waiting_for(WaitKey::NextCheckpoint) > 0 {
            turn.want_checkpoint();
        }
        if turn.plants(Plant::IgnoreFailure) {
            return turn.waits.wake_all(WaitKey::Checkpoint(number));
        }
        let goes_on = |task: &Task| errno != Errno::ENOSPC && task.is_of_session();
        for id in turn.waits.take_queue(WaitKey::Checkpoint(number)) {
            if tasks.get(id).is_some_and(goes_on) {
                turn.waits.wake(id);
            } else {
                turn.waits.fail(id, errno);
            }
        }
    }

    /// The device has refused a checkpoint while the log was full. One such failure may pass. After
    /// the next one the fleet stops accepting changes, so that reads continue: reads need opens,
    /// and opens are in the log. (A full host does not count: it has room for checkpoints, decision
    /// 18.)
    fn count_refusal(&mut self, errno: Errno, turn: &mut Turn<'_>) {
        let is_refused = errno != Errno::ENOSPC && !turn.log_has_room();
        self.refused = if is_refused { self.refused + 1 } else { 0 };
        if self.refused == REFUSALS_MAX {
            turn.driver
                .effects
                .push(Effect::Report(Report::Stuck { cell: turn.fleet.volume.id, errno }));
        }
    }

    /// The checkpoint was abandoned. Tasks that wait for it wait for the next one, which needs no
    /// request.
    pub(crate) fn abandoned(
        &mut self,
        shards: &mut Shards,
        participants: &mut Participants,
        number: u64,
        turn: &mut Turn<'_>,
    ) {
        if turn.fleet.checkpoints.number() == number
            && turn.fleet.checkpoints.phase() != Phase::Idle
        {
            self.undo(shards, participants, false, turn.cache);
            end(turn.fleet, turn.waits);
            turn.waits.requeue(WaitKey::Checkpoint(number), WaitKey::NextCheckpoint);
        }
    }

    /// Undoes the checkpoint. If `may_count`, its superblock may be on the device and may count
    /// after the fleet is gone.
    fn undo(
        &mut self,
        shards: &mut Shards,
        participants: &mut Participants,
        may_count: bool,
        cache: &mut Cache,
    ) {
        cache.io.forget_queued_nodes();
        for (id, mut places) in std::mem::take(&mut self.roots) {
            let Some(shard) = shards.get_mut(&id) else {
                shards.space_mut(id).expect("owned").failed();
                continue;
            };
            shard.space.failed();
            // The device may not have what was written, so everything in memory is written again.
            shard.tree.soil_all();
            shard.changed = true;
            places.sort_unstable();
            for block in shard.tree.take_displaced() {
                match places.binary_search(&block) {
                    Ok(_) if !may_count => shard.space.retract(block),
                    _ => shard.space.free(block),
                }
            }
        }
        shards.values_mut().for_each(|shard| shard.space.end_cleaning());
        shards.note_recorded(false);
        reclaim_retracted(shards, cache);
        participants.applied().append(&mut self.applied);
    }
}

/// Ends the process if a node is not valid: its memory is damaged. With a right checksum the damage
/// would be on the device for all time. A successor makes the tree again from the last checkpoint
/// and the log.
fn check_nodes(shard: ShardId, nodes: &[BlockWrite]) {
    for (block, bytes) in nodes {
        if let Err(error) = DecodedNode::decode_stray(*block, bytes) {
            panic!("a node of {shard:?} is damaged in memory: {error}");
        }
    }
}

/// Logs the session again that was logged before the checkpoint. Returns where these records begin.
fn snapshot_session(shards: &Shards, turn: &mut Turn<'_>) -> Lsn {
    let start = turn.log.begin_anew(turn.driver.memory);
    let opened = |(handle, file): &(Handle, crate::shard::open::OpenFile)| Step::Opened {
        handle: *handle,
        client: file.client,
        access: file.access,
        offset: file.offset,
        uid: file.uid,
    };
    let locked = |(ino, client, spec, uid)| Step::Locked { ino, client, spec, uid };
    let opens: Vec<_> = shards.values().flat_map(|shard| shard.opens.all()).collect();
    let locks = shards.values().flat_map(|shard| shard.file_locks.all());
    let numbers = turn.sessions.numbers.all();
    let numbered = |(client, first, count)| Step::Numbered { client, first, count };
    let numbers = numbers.into_iter().map(numbered);
    let session = opens.iter().map(opened).chain(locks.map(locked)).chain(numbers);
    let session: Vec<Step> = session.collect();
    for batch in session.chunks(SESSION_BATCH) {
        batch.iter().for_each(|step| turn.note(step));
        turn.seal();
    }
    turn.sessions.answers.forget_gone(&turn.sessions.clients);
    // Each answer gets a log record of its own, because two may be longer than a record can be.
    for request in turn.sessions.answers.latest_within(turn.log.budget().unanswered()) {
        turn.note(&Step::Unanswered { request });
        turn.seal();
    }
    turn.log.snapshot_taken(start);
    start
}

/// Blocks of failed checkpoints may be used again when no node is being written. Otherwise a late
/// write could overwrite a new one.
pub(crate) fn reclaim_retracted(shards: &mut Shards, cache: &Cache) {
    if !cache.io.writes_nodes() {
        shards.values_mut().for_each(|shard| shard.space.reclaim());
    }
}

fn end(fleet: &mut Fleet, waits: &mut Waits) {
    fleet.checkpoints.enter(Phase::Idle);
    waits.wake_all(WaitKey::Undrained);
}

/// Enters in the tree which blocks of its chunks the shard uses.
fn record_chunks(shard: &mut Shard) {
    while let Some((chunk, used)) = shard.space.next_stale() {
        match used {
            Some(used) => shard.put_record(Key::chunk(chunk), Value::Chunk(used)),
            None => drop(shard.take_record(&Key::chunk(chunk))),
        }
    }
}

/// Enters in the tree which blocks are shared.
fn record_shared(shard: &mut Shard) {
    while let Some((chunk, runs)) = shard.space.sharing.next_stale() {
        if runs.is_empty() {
            shard.take_record(&Key::shared(chunk));
        } else {
            shard.put_record(Key::shared(chunk), Value::Shared(runs.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use warren_base::Ino;
    use warren_disk::{Dentry, FileKind, Tree};

    use super::*;

    fn nodes_with_entry(ino: Ino) -> Vec<BlockWrite> {
        let dentry = Dentry { name: Box::from(*b"name"), ino, kind: FileKind::Regular };
        let mut tree = Tree::open(ShardId(0), None, 0);
        let entry = Value::Entries([dentry].into());
        tree.insert(Key::entry(Ino::ROOT, 7), entry).expect("an empty tree");
        tree.write_out(1, &[BlockNo(9)]).2
    }

    #[test]
    fn sound_nodes_are_written() {
        check_nodes(ShardId(0), &nodes_with_entry(Ino(5)));
    }

    /// A stray store has made the number of no inode.
    #[test]
    #[should_panic(expected = "is damaged in memory")]
    fn nodes_that_are_damaged_in_memory_are_not() {
        check_nodes(ShardId(0), &nodes_with_entry(Ino(0)));
    }
}
