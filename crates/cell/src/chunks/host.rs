//! The host's space behind the pool's blocks (decision 18).
//!
//! A pool in a sparse file has more blocks than its host may have room for. So a chunk goes to a
//! shard only when the host has allocated all of its blocks: a shard can write every block that it
//! promises. Free chunks are given back to the host, except some that are kept for the next files.
//!
//! ```text
//! free, not allocated -> reserving -> free, allocated -> a shard's
//!        ^--------------- discarding <------'   ^-----------'  with the releasing checkpoint
//! ```
//!
//! Invariants:
//! * Each chunk of a shard is allocated, and so are the blocks before the first chunk (`mkfs`).
//! * `allocated` names only chunks that lie in this cell's part of the pool. A cell that gives
//!   chunks to another marks those that are allocated. Chunks that were lost with a cell count as
//!   not allocated, because allocating them again costs little.
//! * A chunk that is being reserved or discarded lies in no pool, so no shard gets it before that
//!   is over. If the process ends meanwhile, the chunk is found with the lost ones, after its
//!   predecessor's I/O (decision 9).
//!
//! Chunks are reserved in batches, ahead of need. If the host has no room for a batch, the cell
//! tries a single chunk. If the host has no room for that either, tasks behave as in a full pool:
//! they wait for a checkpoint, and then fail with ENOSPC.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, ShardId};

use crate::config::Backing;
use crate::event::IoId;

/// Chunks of one batch: 16 MiB.
pub(super) const BATCH: u64 = 64;
/// A cell with fewer allocated free chunks begins the next batch: 4 MiB.
pub(super) const AHEAD_MIN: usize = 16;
/// Allocated free chunks that a cell keeps: 32 MiB. Programs that write and delete repeatedly use
/// no more than that.
const KEEP: usize = 128;
/// A host with fewer blocks left is tight: then a cell keeps none, and leaves them to other cells:
/// 64 MiB.
const TIGHT: u64 = 1 << 14;
/// Chunks given back at a time: 64 MiB.
pub(super) const DISCARD_BATCH: usize = 256;

/// Whether free chunks may be given back to the host.
pub(crate) enum Review {
    GiveBack,
    /// The host is asked for its room first.
    Measure,
    Nothing,
}

/// The space of the host, as far as the cell knows it.
#[derive(Debug)]
pub(crate) struct HostSpace {
    backing: Backing,
    pub(super) allocated: BTreeSet<u64>,
    /// A batch that the host will be asked to reserve, and the runs of it that are being reserved.
    pub(super) batch: Vec<u64>,
    pub(super) reserving: BTreeMap<IoId, Vec<u64>>,
    /// The number of chunks of that batch, and whether any was allocated.
    pub(super) batch_len: usize,
    pub(super) any_allocated: bool,
    /// Shards that wait for it.
    pub(super) waiting: BTreeSet<ShardId>,
    pub(super) discarding: BTreeMap<IoId, Vec<u64>>,
    pub(super) keep: usize,
    pub(super) takes_back: bool,
    /// Another batch is wanted soon.
    pub(super) wants_batch: bool,
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

    /// Whether all chunks are allocated, including free ones.
    pub(crate) const fn has_all(&self) -> bool {
        !matches!(self.backing, Backing::OnDemand)
    }

    /// Whether a batch is wanted, or one is filled that the host was not asked for.
    pub(crate) fn has_work(&self) -> bool {
        self.wants_batch || !self.batch.is_empty()
    }

    /// Another batch is wanted soon.
    pub(crate) const fn want_batch(&mut self) {
        self.wants_batch = true;
    }

    /// The runs of the batch, which the host is asked for now. None if no batch is filled.
    pub(crate) fn take_batch(&mut self) -> Vec<Vec<u64>> {
        if self.batch.is_empty() {
            return Vec::new();
        }
        let batch = std::mem::take(&mut self.batch);
        (self.batch_len, self.any_allocated) = (batch.len(), false);
        runs(batch)
    }

    /// The run is being reserved.
    pub(crate) fn reserves(&mut self, io: IoId, run: Vec<u64>) {
        self.reserving.insert(io, run);
    }

    /// The run is being given back.
    pub(crate) fn discards(&mut self, io: IoId, run: Vec<u64>) {
        self.discarding.insert(io, run);
    }

    /// Whether free chunks may be given back now.
    pub(crate) fn review(&self) -> Review {
        match self.backing {
            Backing::Device => Review::GiveBack,
            Backing::OnDemand if !self.allocated.is_empty() => Review::Measure,
            _ => Review::Nothing,
        }
    }

    /// The host has so many blocks left.
    pub(crate) fn measured(&mut self, blocks: u64) {
        if self.backing == Backing::OnDemand {
            self.keep = if blocks < TIGHT { 0 } else { KEEP };
        }
    }

    pub(crate) fn is_reserving(&self) -> bool {
        !self.batch.is_empty() || !self.reserving.is_empty()
    }

    /// The chunk leaves this cell's part of the pool. Returns whether it may go to a shard.
    pub(crate) fn take(&mut self, chunk: u64) -> bool {
        self.forget(chunk) | self.has_all()
    }

    /// The chunk leaves, and goes to no shard of this cell. Returns whether it was allocated.
    pub(crate) fn forget(&mut self, chunk: u64) -> bool {
        self.allocated.remove(&chunk)
    }

    /// Chunks that left their shards are free, and allocated.
    pub(crate) fn released(&mut self, chunks: &[u64]) {
        if self.backing != Backing::Whole {
            self.allocated.extend(chunks);
        }
    }

    /// Free chunks have arrived that another cell has marked as allocated.
    pub(crate) fn arrived(&mut self, chunks: &[u64]) {
        if self.backing != Backing::Whole {
            self.allocated.extend(chunks);
        }
    }

    /// Chunks on their way, which lie in no pool.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = u64> + '_ {
        let io = self.reserving.values().chain(self.discarding.values()).flatten();
        self.batch.iter().chain(io).copied()
    }

    /// Whether the free chunk is allocated.
    pub(crate) fn is_allocated(&self, chunk: u64) -> bool {
        self.allocated.contains(&chunk)
    }

    /// Returns the number of the free chunks here that are allocated.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated.len() as u64
    }
}

/// Runs of neighbouring chunks.
pub(super) fn runs(mut chunks: Vec<u64>) -> Vec<Vec<u64>> {
    chunks.sort_unstable();
    chunks.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::to_vec).collect()
}

/// The blocks of a run of chunks: the first, and their number.
pub(crate) fn blocks_of(run: &[u64]) -> (BlockNo, u64) {
    (BlockNo(run[0] * CHUNK_BLOCKS), run.len() as u64 * CHUNK_BLOCKS)
}
