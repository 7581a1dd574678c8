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

mod batch;
pub(crate) mod reserve;

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, ShardId};

use crate::config::Backing;
use crate::event::IoId;

/// Chunks of one batch: 16 MiB.
const BATCH: u64 = 64;
/// A cell with fewer allocated free chunks begins the next batch: 4 MiB.
const AHEAD_MIN: usize = 16;
/// Allocated free chunks that a cell keeps: 32 MiB. Programs that write and delete repeatedly use
/// no more than that.
const KEEP: usize = 128;
/// A host with fewer blocks left is tight: then a cell keeps none, and leaves them to other cells:
/// 64 MiB.
const TIGHT: u64 = 1 << 14;
/// Chunks given back at a time: 64 MiB.
const DISCARD_BATCH: usize = 256;

/// What the cell knows of the host's space.
#[derive(Debug)]
pub(crate) struct HostSpace {
    backing: Backing,
    allocated: BTreeSet<u64>,
    /// A batch that the host will be asked to reserve, and the runs of it that are being reserved.
    batch: Vec<u64>,
    reserving: BTreeMap<IoId, Vec<u64>>,
    /// The number of chunks of that batch, and whether any was allocated.
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

    /// Whether all chunks are allocated, including free ones.
    pub(crate) const fn has_all(&self) -> bool {
        !matches!(self.backing, Backing::OnDemand)
    }

    /// Whether [`reserve::advance_host`] has anything to do.
    pub(crate) fn has_work(&self) -> bool {
        self.wants_batch || !self.batch.is_empty()
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

fn runs(mut chunks: Vec<u64>) -> Vec<Vec<u64>> {
    chunks.sort_unstable();
    chunks.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::to_vec).collect()
}

fn blocks_of(run: &[u64]) -> (BlockNo, u64) {
    (BlockNo(run[0] * CHUNK_BLOCKS), run.len() as u64 * CHUNK_BLOCKS)
}
