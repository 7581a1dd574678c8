//! The host's space behind the pool's blocks (decision 18).
//!
//! A pool in a sparse file has more blocks than its host may have room for. So a chunk goes to a shard only when the host
//! has allocated all of its blocks: what a shard promises, it can write. Free chunks are given back to the host, but for
//! some that are kept for the next files.
//!
//! ```text
//! free, not allocated -> reserving -> free, allocated -> a shard's
//!        ^--------------- discarding <------'   ^-----------'  with the checkpoint that releases it
//! ```
//!
//! Invariants:
//! * Each chunk of a shard is allocated, and so are the blocks before the first chunk (`mkfs`).
//! * `allocated` names only chunks that lie in this cell's part of the pool. What comes from another cell counts as not
//!   allocated: to allocate it again costs little.
//! * A chunk that is being reserved or discarded lies in no pool: no shard gets it before that is over. If the
//!   process ends meanwhile it is found with the lost ones, after its predecessor's I/O (decision 9).
//!
//! Chunks are reserved in batches, ahead of need. Where a batch does not fit the host a single chunk is tried, and
//! where that does not fit either, tasks go on as they do in a full pool: they wait for a checkpoint, then it is ENOSPC.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, Errno, ShardId};
use warren_proto::Wire;

use crate::cell::Core;
use crate::chunk::Chunks;
use crate::event::{Effect, IoId, Memory};
use crate::run::wait::{Stop, Wait, WaitKey};
use crate::task::Task;
use crate::turn::Turn;

/// What lies behind a pool's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Backing {
    /// A sparse file: the host allocates blocks when they are wanted, and takes them back.
    OnDemand,
    /// A file whose blocks are all allocated, and stay so.
    Whole,
    /// A device: it has all of its blocks, and those that are free are discarded.
    Device,
}

/// Chunks of one batch: 16 MiB.
const BATCH: u64 = 64;
/// Allocated free chunks of a cell below which the next batch is begun: 4 MiB.
const AHEAD_MIN: usize = 16;
/// Allocated free chunks that a cell keeps: 32 MiB. Programs that write and delete again cost no more than that.
const KEEP: usize = 128;
/// Blocks that the host has left below which a cell keeps none, for other cells: 64 MiB.
const TIGHT: u64 = 1 << 14;
/// Chunks given back at a time: 64 MiB.
const DISCARD_BATCH: usize = 256;

/// What is known of the host's space at one cell.
#[derive(Debug)]
pub(crate) struct HostSpace {
    backing: Backing,
    allocated: BTreeSet<u64>,
    /// A batch that is to be reserved, and the runs of it that are being reserved.
    batch: Vec<u64>,
    reserving: BTreeMap<IoId, Vec<u64>>,
    /// Of that batch: how many chunks, and whether any was allocated.
    batch_len: usize,
    any_allocated: bool,
    /// Shards that wait for it.
    waiting: BTreeSet<ShardId>,
    discarding: BTreeMap<IoId, Vec<u64>>,
    keep: usize,
    takes_back: bool,
    /// Another batch is wanted soon.
    wants_batch: bool,
}

impl HostSpace {
    pub(crate) const fn new(backing: Backing) -> Self {
        Self {
            backing,
            allocated: BTreeSet::new(),
            batch: Vec::new(),
            reserving: BTreeMap::new(),
            batch_len: 0,
            any_allocated: false,
            waiting: BTreeSet::new(),
            discarding: BTreeMap::new(),
            keep: if matches!(backing, Backing::Device) { 0 } else { KEEP },
            takes_back: !matches!(backing, Backing::Whole),
            wants_batch: false,
        }
    }

    /// Whether all chunks are allocated, free ones too.
    pub(crate) const fn has_all(&self) -> bool {
        !matches!(self.backing, Backing::OnDemand)
    }

    pub(crate) fn is_reserving(&self) -> bool {
        !self.batch.is_empty() || !self.reserving.is_empty()
    }

    /// The chunk leaves this cell's part of the pool. Whether it may go to a shard.
    pub(crate) fn take(&mut self, chunk: u64) -> bool {
        self.allocated.remove(&chunk) | self.has_all()
    }

    /// The chunk leaves, and goes to no shard of this cell.
    pub(crate) fn forget(&mut self, chunk: u64) {
        self.allocated.remove(&chunk);
    }

    /// Chunks on their way, which lie in no pool.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = u64> + '_ {
        let io = self.reserving.values().chain(self.discarding.values()).flatten();
        self.batch.iter().chain(io).copied()
    }

    /// Of the free chunks here, those that are allocated.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated.len() as u64
    }
}

impl Chunks {
    /// A free chunk that may go to a shard at once.
    pub(crate) fn take_allocated(&mut self) -> Option<u64> {
        let Self { pool, host, .. } = self;
        let is_any = host.has_all();
        if !is_any && host.allocated.is_empty() {
            return None;
        }
        let chunk = pool.take_newest(1, |chunk| is_any || host.allocated.contains(chunk)).pop()?;
        host.allocated.remove(&chunk);
        host.wants_batch |= !is_any && host.allocated.len() < AHEAD_MIN;
        Some(chunk)
    }

    /// Has `first`, and chunks here that would come next, reserved for the shard.
    pub(crate) fn reserve_for(&mut self, shard: ShardId, first: u64) {
        self.host.waiting.insert(shard);
        if self.host.is_reserving() {
            return self.add(first);
        }
        self.host.batch.push(first);
        self.fill_batch();
    }

    /// The shard waits for the batch that is being reserved.
    pub(crate) fn await_batch(&mut self, shard: ShardId) {
        self.host.waiting.insert(shard);
    }

    /// Not all that lies here: others may need some meanwhile.
    fn fill_batch(&mut self) {
        let Self { pool, host, .. } = self;
        let count = (pool.local_size() / 4).clamp(1, BATCH) as usize - host.batch.len().min(1);
        host.batch.extend(pool.take_newest(count, |chunk| !host.allocated.contains(chunk)));
    }

    fn add_all(&mut self, mut chunks: Vec<u64>) {
        // The pool hands the newest out first, and files grow upwards.
        chunks.sort_unstable_by(|a, b| b.cmp(a));
        chunks.into_iter().for_each(|chunk| self.add(chunk));
    }
}

fn runs(mut chunks: Vec<u64>) -> Vec<Vec<u64>> {
    chunks.sort_unstable();
    chunks.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::to_vec).collect()
}

fn blocks_of(run: &[u64]) -> (BlockNo, u64) {
    (BlockNo(run[0] * CHUNK_BLOCKS), run.len() as u64 * CHUNK_BLOCKS)
}

impl Core {
    /// Begins to reserve what is wanted.
    pub(crate) fn advance_host<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        let host = &mut turn.chunks.host;
        if std::mem::take(&mut host.wants_batch) && !host.is_reserving() {
            turn.chunks.fill_batch();
            if turn.chunks.host.batch.is_empty() {
                // Others have taken what there was.
                turn.waits.wake_all(WaitKey::Allocated);
            }
        }
        if turn.chunks.host.batch.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut turn.chunks.host.batch);
        (turn.chunks.host.batch_len, turn.chunks.host.any_allocated) = (batch.len(), false);
        for run in runs(batch) {
            let (io, (block, count)) = (turn.io.new_id(), blocks_of(&run));
            turn.io.start_reserve(io);
            turn.chunks.host.reserving.insert(io, run);
            turn.effects.push(Effect::Reserve { io, block, count });
        }
    }

    pub(crate) fn reserved<M: Memory>(
        &mut self,
        io: IoId,
        result: Result<(), Errno>,
        turn: &mut Turn<'_, M>,
    ) {
        let chunks = &mut turn.chunks;
        let run = chunks.host.reserving.remove(&io).expect("it was begun");
        if result.is_ok() {
            chunks.host.allocated.extend(&run);
            chunks.host.any_allocated = true;
        }
        chunks.add_all(run);
        if chunks.host.is_reserving() {
            return;
        }
        let waiting = std::mem::take(&mut chunks.host.waiting);
        if !chunks.host.any_allocated && chunks.host.batch_len > 1 && !waiting.is_empty() {
            chunks.host.batch = chunks.pool.take_newest(1, |_| true);
            if !chunks.host.batch.is_empty() {
                chunks.host.waiting = waiting;
                return;
            }
        }
        let any_allocated = chunks.host.any_allocated;
        for shard in waiting {
            if any_allocated {
                turn.waits.wake_all(WaitKey::Chunk(shard));
            } else {
                self.no_chunk_for(shard, turn);
            }
        }
        turn.waits.wake_all(WaitKey::Allocated);
    }

    /// A checkpoint cannot wait for chunks once it has begun to fix its state: it begins with some that are
    /// allocated, if there are any to allocate.
    pub(crate) fn stock_up<M: Memory>(
        &mut self,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let host = &turn.chunks.host;
        let is_stocked = host.has_all() || !host.allocated.is_empty();
        if is_stocked || turn.chunks.pool.local_size() == 0 || task.state.granted {
            return Ok(());
        }
        task.state.granted = true;
        turn.chunks.host.wants_batch = true;
        Err(Stop::Wait(Wait::Allocated))
    }

    /// Chunks that were shards' until the last checkpoint are free, and allocated.
    pub(crate) fn release_chunks<M: Memory>(&mut self, chunks: Vec<u64>, turn: &mut Turn<'_, M>) {
        if turn.chunks.host.backing != Backing::Whole {
            turn.chunks.host.allocated.extend(&chunks);
        }
        self.give_chunks(chunks, turn);
    }

    /// Sees whether some of what is free can be given back to the host.
    pub(crate) fn review_host<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        match turn.chunks.host.backing {
            Backing::Device => self.discard(turn),
            Backing::OnDemand if !turn.chunks.host.allocated.is_empty() => {
                turn.effects.push(Effect::MeasureHost);
            }
            _ => {}
        }
    }

    /// The host has room for so many blocks.
    pub(crate) fn host_measured<M: Memory>(&mut self, blocks: u64, turn: &mut Turn<'_, M>) {
        if turn.chunks.host.backing == Backing::OnDemand {
            turn.chunks.host.keep = if blocks < TIGHT { 0 } else { KEEP };
        }
        self.discard(turn);
        self.host_counted(blocks, turn);
    }

    /// Gives allocated chunks back, all but those that are kept.
    fn discard<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        let Chunks { pool, host, .. } = &mut turn.chunks;
        let surplus = host.allocated.len().saturating_sub(host.keep).min(DISCARD_BATCH);
        if surplus == 0 || !host.discarding.is_empty() || !host.takes_back {
            return;
        }
        let chunks = pool.take_newest(surplus, |chunk| host.allocated.contains(chunk));
        chunks.iter().for_each(|chunk| host.forget(*chunk));
        for run in runs(chunks) {
            let (io, (block, count)) = (turn.io.new_id(), blocks_of(&run));
            turn.io.start_discard(io);
            turn.chunks.host.discarding.insert(io, run);
            turn.effects.push(Effect::Discard { io, block, count });
        }
    }

    pub(crate) fn discarded<M: Memory>(
        &mut self,
        io: IoId,
        result: Result<(), Errno>,
        turn: &mut Turn<'_, M>,
    ) {
        let host = &mut turn.chunks.host;
        let run = host.discarding.remove(&io).expect("it was begun");
        if result.is_err() {
            // It is not asked again: that would be at each checkpoint.
            host.takes_back = false;
        }
        turn.chunks.add_all(run);
        self.discard(turn);
    }
}
