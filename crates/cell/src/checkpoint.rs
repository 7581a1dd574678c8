//! Write-back and checkpoints (WAFL's consistency points).
//!
//! Order of a fleet-wide checkpoint, as this cell sees it:
//!
//! 1. `Drain`: no transaction starts any more; `Drained` is reported when none is left.
//! 2. `Write`: every dirty page gets a place, then every dirty node, in one go: that is the state which
//!    the checkpoint holds. The writes are issued; requests go on, transactions do not yet (another
//!    cell may not have come to this point).
//! 3. All writes done: `Written` is reported with the new roots.
//! 4. `Switched`: blocks freed before step 2 may be used again. `Failed`: they stay held, everything is
//!    dirty enough to be written again by the next checkpoint, and what the trees were given for this one may be
//!    used again, unless it is not known which superblock counts.

use std::collections::BTreeSet;

use warren_base::{BlockNo, Errno, Ino, Lsn, ShardId, TxnId};
use warren_disk::{Key, Value};
use warren_proto::control::{Report, ShardRoot, Written};
use warren_proto::{Handle, Step};

use crate::cell::Core;
use crate::chunks::claim::claim_spare;
use crate::chunks::host::reserve::{release_chunks, review_host, stock_up};
use crate::data::writeback::place_run;
use crate::event::{Effect, Memory};
use crate::frames::transfer::read_node;
use crate::log::durable::{free_log, hold_log_for_good, still_held};
use crate::plant::Plant;
use crate::run::wait::{Stop, Wait, WaitKey};
use crate::run::work::Work;
use crate::task::Task;
use crate::turn::{Checkpoints, Turn};

/// Turns after which nodes are counted: a turn adds few, and counting visits every shard.
const TURNS_PER_COUNT: u64 = 64;
/// Checkpoints that the device refuses while a log is full before the fleet is read-only.
const REFUSALS_MAX: u32 = 2;
/// Pages that write-back gives places to in one go.
const WRITE_BACK_BATCH: usize = 1024;
/// Writes under way beyond which write-back starts no more.
const WRITES_MAX: usize = 16;

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Draining {
        reported: bool,
    },
    /// The state is being fixed (this may wait for nodes to be read).
    Fixing,
    Writing,
    Reported,
}

#[derive(Debug)]
pub(crate) struct Checkpoint {
    phase: Phase,
    number: u64,
    turns: u64,
    /// What will be reported when the writes are done.
    written: Written,
    /// From where the log counts once it is durable.
    log_start: Lsn,
    /// The shards whose trees were written, which must be written again if it fails, and where.
    roots: Vec<(ShardId, Vec<BlockNo>)>,
    /// Checkpoints in a row that the device has refused while the log was full.
    refused: u32,
    /// Whether free chunks are to be counted.
    count: bool,
    /// Transactions of others that were made here before the state was fixed.
    applied: BTreeSet<TxnId>,
}

impl Checkpoint {
    pub(crate) fn new(generation: u64) -> Self {
        Self {
            phase: Phase::Idle,
            number: generation,
            turns: 0,
            written: Written::default(),
            log_start: Lsn(0),
            roots: Vec::new(),
            refused: 0,
            count: false,
            applied: BTreeSet::new(),
        }
    }

    /// Whether transactions must wait.
    pub(crate) fn is_drained(&self) -> bool {
        self.phase != Phase::Idle
    }

    fn enter(&mut self, phase: Phase, known: &mut Checkpoints) {
        known.will_write = matches!(phase, Phase::Draining { .. } | Phase::Fixing | Phase::Writing);
        self.phase = phase;
    }
}

impl Core {
    pub(crate) fn drain<M: Memory>(&mut self, number: u64, turn: &mut Turn<'_, M>) {
        self.checkpoint.enter(Phase::Draining { reported: false }, turn.checkpoints);
        self.checkpoint.number = number;
        turn.checkpoints.asked = false;
        turn.waits.requeue(WaitKey::NextCheckpoint, WaitKey::Checkpoint(number));
        self.report_if_drained(turn);
    }

    pub(crate) fn report_if_drained<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        if self.checkpoint.phase == (Phase::Draining { reported: false })
            && self.live_txns.is_empty()
        {
            self.checkpoint.enter(Phase::Draining { reported: true }, turn.checkpoints);
            let (cell, number) = (turn.volume.id, self.checkpoint.number);
            turn.effects.push(Effect::Report(Report::Drained { cell, number }));
        }
    }

    pub(crate) fn start_writing<M: Memory>(
        &mut self,
        number: u64,
        count: bool,
        turn: &mut Turn<'_, M>,
    ) {
        if self.checkpoint.number == number {
            self.checkpoint.count = count;
            turn.chunks.begin_count(count);
            self.checkpoint.enter(Phase::Fixing, turn.checkpoints);
            turn.waits.start(Work::Fix);
        }
    }

    /// Fixes the state that the checkpoint holds. Waits for nodes as often as need be.
    pub(crate) fn fix<M: Memory>(
        &mut self,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        // It was given up meanwhile.
        if self.checkpoint.phase != Phase::Fixing {
            return Ok(());
        }
        stock_up(task, turn)?;
        // What a failed write left dirty is written again now: only failures from here on count.
        turn.io.take_write_error();
        while turn.cache.dirty_pages() > 0 {
            self.place_pages(usize::MAX, turn)?;
            turn.seal();
        }
        turn.check_log()?;
        let ids = self.shards.ids().to_vec();
        // From here on nothing waits: this is the state.
        let mut written = Written::default();
        for id in ids {
            self.write_tree(id, &mut written, turn)?;
        }
        // Chunks that were claimed for the trees go before, the session that goes on comes behind.
        turn.seal();
        written.log_start = match turn.log.snapshot() {
            Some(start) => start,
            None => self.snapshot_session(turn),
        };
        if self.checkpoint.count {
            let departing = self.shards.values().flat_map(|shard| shard.space.departing());
            written.free = Some(turn.chunks.count(departing.copied()));
        }
        self.shards.values_mut().for_each(|shard| shard.behind.fixed());
        self.checkpoint.applied.append(&mut self.replay.applied);
        turn.log.fixed();
        self.checkpoint.written = written;
        self.checkpoint.enter(Phase::Writing, turn.checkpoints);
        Ok(())
    }

    /// Logs anew what of the session was logged before the checkpoint. Returns where that begins.
    fn snapshot_session<M: Memory>(&mut self, turn: &mut Turn<'_, M>) -> Lsn {
        /// Steps of one record, of at most about 64 bytes.
        const BATCH: usize = 512;
        let start = turn.log.begin_anew(turn.memory);
        let opened = |(handle, file): &(Handle, crate::shard::open::OpenFile)| Step::Opened {
            handle: *handle,
            client: file.client,
            access: file.access,
            offset: file.offset,
            uid: file.uid,
        };
        let locked = |(ino, client, spec, uid)| Step::Locked { ino, client, spec, uid };
        let opens: Vec<_> = self.shards.values().flat_map(|shard| shard.opens.all()).collect();
        let session = opens.iter().map(opened).chain(turn.file_locks.all().map(locked));
        let session: Vec<Step> = session.collect();
        for batch in session.chunks(BATCH) {
            batch.iter().for_each(|step| turn.note(step));
            turn.seal();
        }
        self.forget_executed_of_gone(turn);
        // One a record: an answer may be long.
        for request in self.unanswered_within(turn.log.unanswered_bytes()) {
            turn.note(&Step::Unanswered { request });
            turn.seal();
        }
        turn.log.snapshot_taken(start);
        start
    }

    /// The state could not be fixed: there is no checkpoint this time.
    pub(crate) fn fix_failed<M: Memory>(&mut self, errno: Errno, turn: &mut Turn<'_, M>) {
        // It was given up meanwhile.
        if self.checkpoint.phase != Phase::Fixing {
            return;
        }
        self.checkpoint.enter(Phase::Reported, turn.checkpoints);
        let (cell, number) = (turn.volume.id, self.checkpoint.number);
        turn.effects.push(Effect::Report(Report::Written { cell, number, result: Err(errno) }));
    }

    /// Gives the tree's dirty nodes places and queues them to be written.
    fn write_tree<M: Memory>(
        &mut self,
        id: ShardId,
        written: &mut Written,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let mut places: Vec<BlockNo> = Vec::new();
        loop {
            let shard = self.shards.get_mut(&id).expect("owned");
            let displaced = shard.tree.take_displaced();
            displaced.into_iter().for_each(|block| shard.space.free(block));
            let nodes = shard.tree.dirty_nodes().saturating_sub(places.len()) as u64;
            shard.space.depart(nodes + shard.space.record_nodes());
            while places.len() < shard.tree.dirty_nodes() {
                match shard.space.alloc() {
                    Some(block) => places.push(block),
                    None => break,
                }
            }
            if places.len() < shard.tree.dirty_nodes() {
                if claim_spare(self.shard_mut(id), turn) {
                    continue;
                }
                let shard = self.shards.get_mut(&id).expect("owned");
                places.into_iter().for_each(|block| shard.space.give_back(block));
                return Err(Stop::Fail(Errno::ENOSPC));
            }
            // Writing the chunks' records may make more nodes dirty.
            while let Some((chunk, used)) = shard.space.next_stale() {
                match used {
                    Some(used) => shard.put(Key::chunk(chunk), Value::Chunk(used)),
                    None => drop(shard.take(&Key::chunk(chunk))),
                }
            }
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
        let shard = self.shards.get_mut(&id).expect("owned");
        if places.is_empty() && !shard.changed {
            return Ok(());
        }
        let (root, height, nodes) = shard.tree.write_out(self.checkpoint.number, &places);
        shard.changed = false;
        let (claimed, released) = shard.space.seal();
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
        self.checkpoint.roots.push((id, places));
        turn.io.queue_nodes(nodes);
        Ok(())
    }

    /// Reports when the checkpoint's writes are done.
    pub(crate) fn advance_checkpoint<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        self.checkpoint.turns += 1;
        if self.checkpoint.phase == Phase::Idle
            && self.checkpoint.turns.is_multiple_of(TURNS_PER_COUNT)
        {
            self.evict_nodes(turn);
        }
        if self.checkpoint.phase != Phase::Writing || !turn.io.writes_are_done() {
            return;
        }
        self.checkpoint.enter(Phase::Reported, turn.checkpoints);
        let written = std::mem::take(&mut self.checkpoint.written);
        self.checkpoint.log_start = written.log_start;
        let result = turn.io.take_write_error().map_or(Ok(written), Err);
        let (cell, number) = (turn.volume.id, self.checkpoint.number);
        turn.effects.push(Effect::Report(Report::Written { cell, number, result }));
    }

    fn evict_nodes<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        let resident: usize = self.shards.values().map(|shard| shard.tree.resident_nodes()).sum();
        let most = self.nodes_max;
        if resident <= most {
            return;
        }
        let share = most / self.shards.ids().len().max(1);
        for shard in self.shards.values_mut() {
            shard.tree.evict(share);
        }
        let dirty: usize = self.shards.values().map(|shard| shard.tree.dirty_nodes()).sum();
        // The timer's next checkpoint may be too late: dirty nodes cannot be evicted.
        if dirty > most / 2 {
            turn.want_checkpoint();
        }
    }

    pub(crate) fn switched<M: Memory>(&mut self, number: u64, turn: &mut Turn<'_, M>) {
        if self.checkpoint.number != number {
            return;
        }
        for (id, _) in std::mem::take(&mut self.checkpoint.roots) {
            let chunks = self.shards.get_mut(&id).expect("owned").space.switched();
            release_chunks(&mut self.shards, chunks, turn);
        }
        review_host(turn);
        self.checkpoint.applied.clear();
        turn.chunks.end_count();
        turn.log.switched();
        self.shards.values_mut().for_each(|shard| shard.behind.switched());
        self.checkpoint.refused = 0;
        free_log(self.checkpoint.log_start, turn);
        self.end_checkpoint(turn);
        turn.waits.wake_all(WaitKey::Checkpoint(number));
    }

    pub(crate) fn checkpoint_failed<M: Memory>(
        &mut self,
        number: u64,
        errno: Errno,
        broken: bool,
        turn: &mut Turn<'_, M>,
    ) {
        if self.checkpoint.number != number {
            return;
        }
        // Later ones are not even begun.
        let may_count = broken && !turn.log.is_last();
        self.undo_checkpoint(may_count, turn);
        if broken {
            hold_log_for_good(errno, turn);
            turn.waits.wake_all(WaitKey::LogRoom);
        }
        still_held(errno, turn);
        self.end_checkpoint(turn);
        if !broken {
            self.count_refusal(errno, turn);
        }
        // Nobody else may ask for the next.
        turn.waits.requeue(WaitKey::LogRoom, WaitKey::NextCheckpoint);
        if turn.waits.waiting_for(WaitKey::NextCheckpoint) > 0 {
            turn.want_checkpoint();
        }
        if turn.plants(Plant::IgnoreFailure) {
            return turn.waits.wake_all(WaitKey::Checkpoint(number));
        }
        let goes_on = |task: &Task| errno != Errno::ENOSPC && task.is_of_session();
        for id in turn.waits.take_queue(WaitKey::Checkpoint(number)) {
            if self.tasks.get(id).is_some_and(goes_on) {
                turn.waits.wake(id);
            } else {
                turn.waits.fail(id, errno);
            }
        }
    }

    /// One such failure may pass. After the next the fleet gives up changes, so that reads go on: they open files, and
    /// what is open is in the log. (A full host is waited for: it has room for checkpoints, decision 18.)
    fn count_refusal<M: Memory>(&mut self, errno: Errno, turn: &mut Turn<'_, M>) {
        let is_refused = errno != Errno::ENOSPC && !turn.log_has_room();
        self.checkpoint.refused = if is_refused { self.checkpoint.refused + 1 } else { 0 };
        if self.checkpoint.refused == REFUSALS_MAX {
            turn.effects.push(Effect::Report(Report::Stuck { cell: turn.volume.id, errno }));
        }
    }

    /// It was given up: who waits for it waits for the next, which comes unasked.
    pub(crate) fn checkpoint_abandoned<M: Memory>(&mut self, number: u64, turn: &mut Turn<'_, M>) {
        if self.checkpoint.number == number && self.checkpoint.phase != Phase::Idle {
            self.undo_checkpoint(false, turn);
            self.end_checkpoint(turn);
            turn.waits.requeue(WaitKey::Checkpoint(number), WaitKey::NextCheckpoint);
        }
    }

    /// Its superblock may be on the device, and come to count when the fleet is gone, if `may_count`.
    fn undo_checkpoint<M: Memory>(&mut self, may_count: bool, turn: &mut Turn<'_, M>) {
        turn.io.forget_queued_nodes();
        for (id, mut places) in std::mem::take(&mut self.checkpoint.roots) {
            let shard = self.shards.get_mut(&id).expect("owned");
            shard.space.failed();
            // What was written may not be there: everything in memory is written again.
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
        self.reclaim_retracted(turn);
        self.replay.applied.append(&mut self.checkpoint.applied);
    }

    /// Blocks of checkpoints that failed may be used again once no node is being written: a late write would
    /// overtake a new one.
    pub(crate) fn reclaim_retracted<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        if !turn.io.writes_nodes() {
            self.shards.values_mut().for_each(|shard| shard.space.reclaim());
        }
    }

    fn end_checkpoint<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        self.checkpoint.enter(Phase::Idle, turn.checkpoints);
        turn.waits.wake_all(WaitKey::Undrained);
    }

    /// Writes dirty pages before the cache is full of them.
    pub(crate) fn write_back<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        // Which blocks are free is known only when all records are replayed.
        if self.replay.needs_image() {
            return;
        }
        // What has failed is tried again by checkpoints alone: each try takes some of the log.
        if turn.log.leaves_writes_to_checkpoints() {
            return;
        }
        // A checkpoint writes everything itself, and waits for all writes that were started.
        if matches!(self.checkpoint.phase, Phase::Fixing | Phase::Writing) {
            return;
        }
        let limit = turn.cache.frames() as usize / 4;
        while turn.cache.dirty_pages() > limit && turn.io.writes_under_way() < WRITES_MAX {
            match self.place_pages(WRITE_BACK_BATCH, turn) {
                Ok(()) => turn.seal(),
                Err(Stop::Wait(Wait::Node(shard, pointer))) => {
                    read_node(shard, pointer, turn);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Gives up to `limit` dirty pages places, in the order of their files, and starts to write them.
    fn place_pages<M: Memory>(&mut self, limit: usize, turn: &mut Turn<'_, M>) -> Result<(), Stop> {
        let Some(first) = turn.cache.dirty_from((Ino(0), 0)).next() else { return Ok(()) };
        place_run(self.shard_mut(first.0.shard()), first, limit, turn)
    }
}
