//! The supply of a shard's blocks: chunks of the distributed pool that the cells share.
//!
//! **Lost chunks.** The free chunks of a cell are lost with its process. A checkpoint counts the
//! free chunks of the other cells, and the supervisor hands out those that no cell has (its
//! `count.rs`). Until then it is not certain that no chunk is left, so a task that finds none waits
//! for another checkpoint.
//!
//! A message of a peer about chunks is checked before it reaches the pool. Each chunk must be one
//! that a shard may own and that this cell does not have, and each cell that it names must exist.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{CellId, ShardId};
use warren_disk::ChunkBounds;
use warren_pool::{Algorithm, Pool, Ticket, Tuning};
use warren_proto::control::{Exchanged, FreeChunks};

use crate::chunks::host::HostSpace;
use crate::config::{Backing, Recovery};

/// The cell's shard of the pool of free chunks.
#[derive(Debug)]
pub(crate) struct Chunks {
    pub(crate) pool: Pool<u64>,
    /// Free chunks that are kept for privileged users. They lie in no pool, so that no other cell
    /// gets them by a search.
    reserve: Vec<u64>,
    reserve_max: usize,
    pub(crate) host: HostSpace,
    /// The number of cells of the fleet, and the chunks that a shard may own.
    cells: u16,
    legal: ChunkBounds,
    /// Blocks of the whole pool. It may grow.
    total_blocks: u64,
    /// Chunks that can be added only when the other cells know this cell.
    early: Vec<u64>,
    /// Some of these chunks may be in use. No chunk is given before that is known.
    held_back: bool,
    pub(crate) waiting: BTreeMap<Ticket, ShardId>,
    /// Whether chunks may have been lost that were not found yet.
    certainty: Certainty,
    /// The most free chunks since the last checkpoint: those of every user, and the reserve.
    most: u64,
    most_reserved: u64,
}

/// Whether every free chunk lies at some cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Certainty {
    Certain,
    /// Every free chunk will lie at a cell when the checkpoint under way counts.
    Settling,
    Uncertain,
}

/// Chunks of the reserve that other cells get at a time: 2 MiB.
const RELEASED: usize = 8;
/// Runs of chunks in one message.
const RUNS_MAX: usize = 1000;

impl Chunks {
    /// `first` of the `cells` creates the pool, and the others join it there. `free` are the chunks
    /// that this cell brings.
    pub(crate) fn new(
        id: CellId,
        (first, cells): (CellId, u16),
        (legal, total_blocks): (ChunkBounds, u64),
        free: Vec<u64>,
        (recovery, backing, reserve): (Recovery, Backing, u64),
    ) -> Self {
        let (algorithm, tuning) = (Algorithm::Bulk, Tuning::default());
        let others = (0..cells).map(CellId).filter(|cell| *cell != id);
        let held_back = recovery == Recovery::Power;
        let pool = if recovery.is_of_process() {
            Pool::rejoin(id, others, algorithm, tuning)
        } else if first == id {
            Pool::create(id, algorithm, tuning)
        } else {
            Pool::join(id, first, algorithm, tuning)
        };
        let waiting = BTreeMap::new();
        let certainty = match recovery {
            Recovery::Process | Recovery::Caretaker => Certainty::Uncertain,
            _ => Certainty::Certain,
        };
        let mut chunks = Self {
            pool,
            reserve: Vec::new(),
            reserve_max: reserve as usize,
            host: HostSpace::new(backing),
            cells,
            legal,
            total_blocks,
            early: free,
            held_back,
            waiting,
            certainty,
            most: 0,
            most_reserved: 0,
        };
        chunks.add_early();
        chunks
    }

    /// Whether the chunk exists, and shards may write to it.
    pub(crate) fn is_legal(&self, chunk: u64) -> bool {
        self.legal.contain(chunk)
    }

    /// Blocks of the whole pool.
    pub(crate) const fn total_blocks(&self) -> u64 {
        self.total_blocks
    }

    /// The pool is to have so many blocks, or has them. Peers may have the new chunks before this
    /// cell gets its part of them.
    pub(crate) fn grow(&mut self, blocks: u64) {
        self.total_blocks = self.total_blocks.max(blocks);
        self.legal = self.legal.grown(self.total_blocks / CHUNK_BLOCKS);
    }

    /// Ordinary users must leave so many chunks at this cell from now on.
    pub(crate) const fn reserve(&mut self, chunks: u64) {
        self.reserve_max = chunks as usize;
    }

    /// Whether the fleet has such a cell.
    pub(crate) const fn has_cell(&self, cell: CellId) -> bool {
        cell.0 < self.cells
    }

    /// Whether the pool has all chunks that this cell has brought.
    pub(crate) fn is_open(&self) -> bool {
        self.early.is_empty() && self.pool.is_member()
    }

    /// Free chunks at this cell.
    pub(crate) fn count_local(&self) -> u64 {
        self.count_unreserved() + self.reserve.len() as u64
    }

    /// Free chunks at this cell that every user may have.
    pub(crate) fn count_unreserved(&self) -> u64 {
        let under_way = self.host.under_way().count();
        self.pool.local_size() + (self.early.len() + under_way) as u64
    }

    /// Chunks that ordinary users must leave at this cell, whether they are free now or not.
    pub(crate) const fn count_reserved(&self) -> u64 {
        self.reserve_max as u64
    }

    /// Free chunks of this cell that a shard of any cell could have, as far as is known.
    pub(crate) fn count_at_hand(&self) -> u64 {
        if self.host.has_all() {
            return self.count_unreserved();
        }
        let ready = self.pool.elements().filter(|chunk| self.host.is_allocated(**chunk)).count();
        // Those on their way are allocated soon, or make room on the host.
        (ready + self.host.under_way().count()) as u64
    }

    /// Lets other cells have some of the chunks that are kept for root.
    pub(crate) fn release_reserve(&mut self) {
        let left = self.reserve.len().saturating_sub(RELEASED);
        for chunk in self.reserve.split_off(left) {
            self.add_to_pool(chunk);
        }
    }

    /// A chunk that is kept for root goes to a shard. None if the host has allocated none of them.
    pub(crate) fn take_reserved(&mut self) -> Option<u64> {
        let is_ready = |chunk: &u64| self.host.has_all() || self.host.is_allocated(*chunk);
        let at = self.reserve.iter().rposition(is_ready)?;
        let chunk = self.reserve.remove(at);
        self.host.forget(chunk);
        Some(chunk)
    }

    /// A chunk that is kept for root, and that the host has to allocate.
    pub(crate) fn take_unallocated_reserved(&mut self) -> Option<u64> {
        self.reserve.pop()
    }

    /// Whether half of the chunks that every user may have, or half of the reserve, are gone since
    /// the last checkpoint. A checkpoint that begins now makes freed blocks available before the
    /// rest is gone. A pool that is only filled asks once for each half of what is left.
    pub(crate) fn is_half_gone(&mut self, is_privileged: bool) -> bool {
        let (left, most) = if is_privileged {
            (self.reserve.len() as u64, &mut self.most_reserved)
        } else {
            (self.count_unreserved(), &mut self.most)
        };
        *most = left.max(*most);
        2 * left < *most
    }

    /// A checkpoint is over.
    pub(crate) const fn checkpointed(&mut self) {
        (self.most, self.most_reserved) = (0, 0);
    }

    /// Removes chunks that are in use. The caller calls it before any chunk is given.
    pub(crate) fn exclude(&mut self, taken: &[u64]) {
        let taken: BTreeSet<u64> = taken.iter().copied().collect();
        let early = std::mem::take(&mut self.early);
        self.early = early.into_iter().filter(|chunk| !taken.contains(chunk)).collect();
        self.held_back = false;
        self.add_early();
    }

    /// A lost cell has a successor. The chunks that had been sent to it are its own if its log
    /// names them. Otherwise they are found with the lost ones.
    pub(crate) fn peer_joined(&mut self, cell: CellId) {
        self.pool.peer_replaced(cell);
    }

    /// A cell is lost, with the chunks that it had.
    pub(crate) const fn peer_lost(&mut self) {
        self.certainty = Certainty::Uncertain;
    }

    /// A checkpoint begins, which counts chunks if `count`.
    pub(crate) fn begin_count(&mut self, count: bool) {
        if !count && self.certainty == Certainty::Uncertain {
            self.certainty = Certainty::Settling;
        }
    }

    /// That checkpoint has counted.
    pub(crate) fn end_count(&mut self) {
        if self.certainty == Certainty::Settling {
            self.certainty = Certainty::Certain;
        }
    }

    pub(crate) fn is_certain(&self) -> bool {
        self.certainty == Certainty::Certain
    }

    /// The chunks that lie here now, and `more` that will.
    pub(crate) fn count(&self, more: impl Iterator<Item = u64>) -> FreeChunks {
        let here = self.pool.elements().chain(&self.early).chain(&self.reserve);
        let mut all: Vec<u64> = here.copied().collect();
        all.extend(self.host.under_way().chain(more));
        all.sort_unstable();
        let runs: Vec<(u64, u64)> =
            all.chunk_by(|a, b| a + 1 == *b).map(|run| (run[0], run.len() as u64)).collect();
        let runs = Some(runs).filter(|runs| runs.len() <= RUNS_MAX);
        let exchanged = self.pool.members().map(|with| {
            let (given, taken) = warren_pool::exchanged(&self.pool, with);
            Exchanged { with, given, taken }
        });
        FreeChunks { runs, exchanged: exchanged.collect() }
    }

    /// Adds the early chunks, the lowest last: the pool hands out the newest first, so a file grows
    /// upwards.
    pub(crate) fn add_early(&mut self) {
        if self.pool.is_member() && !self.held_back {
            for chunk in std::mem::take(&mut self.early).into_iter().rev() {
                self.add(chunk);
            }
        }
    }

    /// A free chunk. The reserve is filled first.
    pub(crate) fn add(&mut self, chunk: u64) {
        if self.reserve.len() < self.reserve_max {
            return self.reserve.push(chunk);
        }
        self.add_to_pool(chunk);
    }

    fn add_to_pool(&mut self, chunk: u64) {
        if let Err(refused) = self.pool.add(chunk) {
            self.early.push(refused.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_pool::Get;

    #[test]
    fn chunks_are_handed_out_from_the_lowest_up() {
        let free = vec![6, 7, 8];
        let kind = (Recovery::None, Backing::Whole, 0);
        let bounds = (ChunkBounds::of(3, 40), 40 * CHUNK_BLOCKS);
        let mut chunks = Chunks::new(CellId(0), (CellId(0), 1), bounds, free, kind);
        assert!(chunks.is_open());
        let got: Vec<_> = (0..3).map(|_| chunks.pool.get()).collect();
        assert_eq!(got, [6, 7, 8].map(Get::Got));
    }

    #[test]
    fn less_than_half_of_the_chunks_since_the_last_checkpoint_is_few() {
        let kind = (Recovery::None, Backing::Whole, 4);
        let bounds = (ChunkBounds::of(3, 40), 40 * CHUNK_BLOCKS);
        let mut chunks = Chunks::new(CellId(0), (CellId(0), 1), bounds, (4..16).collect(), kind);
        let asked = |chunks: &mut Chunks, is_privileged| {
            let is_gone = chunks.is_half_gone(is_privileged);
            if is_gone {
                chunks.checkpointed();
            }
            is_gone
        };
        let ordinary = (0..8).map(|_| {
            let is_gone = asked(&mut chunks, false);
            assert!(matches!(chunks.pool.get(), Get::Got(_)));
            is_gone
        });
        // With 8, 7, 6, 5, 4, 3, 2 and 1 left.
        let expected = [false, false, false, false, false, true, false, false];
        assert_eq!(ordinary.collect::<Vec<_>>(), expected);
        let reserved = (0..4).map(|_| {
            let is_gone = asked(&mut chunks, true);
            assert!(chunks.take_reserved().is_some());
            is_gone
        });
        assert_eq!(reserved.collect::<Vec<_>>(), [false, false, false, true]);
        chunks.add(20);
        assert!(!chunks.is_half_gone(true), "more than since the last checkpoint");
    }

    #[test]
    fn new_chunks_of_a_grown_pool_are_legal_and_fill_the_reserve_first() {
        let kind = (Recovery::None, Backing::Whole, 1);
        let bounds = (ChunkBounds::of(3, 40), 40 * CHUNK_BLOCKS + 5);
        let mut chunks = Chunks::new(CellId(0), (CellId(0), 1), bounds, vec![6, 7], kind);
        assert_eq!(
            (chunks.count_local(), chunks.count_unreserved(), chunks.count_reserved()),
            (2, 1, 1)
        );
        assert!(!chunks.is_legal(40));
        chunks.grow(5000 * CHUNK_BLOCKS);
        assert!(chunks.is_legal(40) && chunks.is_legal(4999) && !chunks.is_legal(5000));
        assert!(!chunks.is_legal(2032), "it holds a page of the region map");
        chunks.grow(50 * CHUNK_BLOCKS);
        assert_eq!(chunks.total_blocks(), 5000 * CHUNK_BLOCKS, "a pool does not shrink");
        chunks.reserve(3);
        (40..44).for_each(|chunk| chunks.add(chunk));
        assert_eq!(
            (chunks.count_local(), chunks.count_unreserved(), chunks.count_reserved()),
            (6, 3, 3)
        );
    }
}
