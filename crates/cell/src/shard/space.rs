//! The blocks of one shard: which blocks of its chunks are used, and which may be used next.
//!
//! Invariants:
//! * A block that a durable root may refer to is never handed out: a freed block is *held* until
//!   the superblock names a checkpoint that was written after it was freed.
//! * Every block is used, held or free, and `free` counts the free ones.
//!
//! Order of a checkpoint: [`Space::seal`] (blocks freed before it become free with this
//! checkpoint), then [`Space::switched`] or [`Space::failed`]. Blocks that the tree was given for a
//! failed checkpoint are retracted: no durable root names them, and they become free once no write
//! to them is under way.
//!
//! Blocks of a chunk that is being emptied are not handed out, and do not count as free
//! (`space/emptying.rs`).

mod emptying;

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, Errno};
use warren_disk::SharedRun;

use crate::budget::{nodes_of_chunks, nodes_of_shared};
use crate::plant::{Plant, Planted};
use crate::shard::cleaning::Cleaning;
use crate::shard::sharing::{Sharing, bits, by_chunk};

#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    used: u64,
    held: u64,
    /// The chunk is being emptied.
    is_closed: bool,
}

impl Chunk {
    /// Its blocks that can be handed out.
    fn free(&self) -> u64 {
        if self.is_closed { 0 } else { u64::from((self.used | self.held).count_zeros()) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Space {
    chunks: BTreeMap<u64, Chunk>,
    free: u64,
    used: u64,
    /// The start of the next search for a free block: blocks written together lie together.
    cursor: u64,
    /// Chunks whose record in the tree is out of date.
    stale: BTreeSet<u64>,
    /// Blocks freed since the last `seal`, and those freed before it but not yet durably.
    freed: Vec<BlockNo>,
    sealed: Vec<BlockNo>,
    /// Chunks without a used block that leave with the checkpoint being written.
    departing: Vec<u64>,
    /// Chunks claimed since the last `seal`, and those claimed before it but not yet durably.
    claimed: Vec<u64>,
    sealed_claims: Vec<u64>,
    /// Blocks given for a checkpoint that failed, perhaps with writes under way.
    retracted: BTreeSet<BlockNo>,
    /// Chunks that are being emptied, and chunks with a block that could not be moved.
    closed: BTreeSet<u64>,
    immovable: BTreeSet<u64>,
    /// Free blocks of chunks that were kept for root, and that root has not used yet.
    private: u64,
    /// The used blocks that several places of files share.
    pub(crate) sharing: Sharing,
    pub(crate) cleaning: Cleaning,
    planted: Planted,
}

/// A shard with more free blocks gives unused chunks back, until it has so many free blocks.
const FREE_MAX: u64 = 4 * CHUNK_BLOCKS;
const FREE_MIN: u64 = CHUNK_BLOCKS;

fn split(block: BlockNo) -> (u64, u64) {
    (block.0 / CHUNK_BLOCKS, 1 << (block.0 % CHUNK_BLOCKS))
}

impl Space {
    /// A chunk as the tree records it.
    pub(crate) fn open_chunk(&mut self, number: u64, used: u64) {
        self.chunks.insert(number, Chunk { used, ..Chunk::default() });
        self.used += u64::from(used.count_ones());
        self.free += u64::from(used.count_zeros());
    }

    /// The shared blocks of a chunk as the tree records them. EIO if one of them is not used.
    pub(crate) fn open_shared(&mut self, number: u64, runs: &[SharedRun]) -> Result<(), Errno> {
        let blocks = runs.iter().flat_map(|run| (run.first..).take(run.blocks.into()));
        let shared = blocks.fold(0, |bits, at| bits | 1 << at);
        let used = self.chunks.get(&number).map_or(0, |chunk| chunk.used);
        if shared & !used != 0 {
            return Err(Errno::EIO);
        }
        self.sharing.open_chunk(number, runs);
        Ok(())
    }

    /// Whether the chunk is the shard's.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.chunks.contains_key(&number)
    }

    /// Whether the block is the shard's, and used.
    pub(crate) fn uses(&self, block: BlockNo) -> bool {
        self.uses_run(block, 1)
    }

    /// The same for all of consecutive blocks.
    pub(crate) fn uses_run(&self, first: BlockNo, count: u64) -> bool {
        by_chunk(first, count).all(|(number, blocks)| {
            self.chunks.get(&number).is_some_and(|chunk| !chunk.used & bits(&blocks) == 0)
        })
    }

    /// A free chunk becomes the shard's. False if it already is: a peer gave it away twice.
    pub(crate) fn claim(&mut self, number: u64) -> bool {
        if self.has(number) {
            return false;
        }
        self.chunks.insert(number, Chunk::default());
        self.free += CHUNK_BLOCKS;
        self.cursor = number;
        self.claimed.push(number);
        self.stale.insert(number);
        true
    }

    /// A chunk that the region map gives to the shard, and that its tree does not record, becomes
    /// an empty chunk of it: a kept log record says that the shard has claimed it.
    pub(crate) fn adopt(&mut self, number: u64) {
        self.open_chunk(number, 0);
        self.stale.insert(number);
    }

    /// Such chunks leave the shard with the next checkpoint. None of their blocks is handed out.
    pub(crate) fn release_unrecorded(&mut self, chunks: impl IntoIterator<Item = u64>) {
        self.departing.extend(chunks);
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.free
    }

    /// Free blocks that only privileged users may take. They are not private any more after a
    /// restart.
    pub(crate) const fn private(&self) -> u64 {
        self.private
    }

    /// The chunk that was just claimed was kept for root.
    pub(crate) const fn make_private(&mut self) {
        self.private += CHUNK_BLOCKS;
    }

    /// A privileged user takes so many blocks.
    pub(crate) fn use_private(&mut self, blocks: u64) {
        self.private = self.private.saturating_sub(blocks).min(self.free);
    }

    /// Blocks of the shard's chunks, including chunks that are about to leave.
    pub(crate) fn all_blocks(&self) -> u64 {
        (self.chunks.len() + self.departing.len()) as u64 * CHUNK_BLOCKS
    }

    pub(crate) fn used_blocks(&self) -> u64 {
        self.used
    }

    /// An upper bound of the tree nodes that the records of chunks and of shared blocks lie in.
    pub(crate) fn record_nodes(&self) -> u64 {
        nodes_of_chunks(self.chunks.len()) + nodes_of_shared(self.sharing.chunks() as u64)
    }

    pub(crate) fn alloc(&mut self) -> Option<BlockNo> {
        let open = |(_, chunk): &(&u64, &mut Chunk)| chunk.free() > 0;
        let number = match self.chunks.range_mut(self.cursor..).find(open) {
            Some((number, _)) => *number,
            None => *self.chunks.range_mut(..self.cursor).find(open)?.0,
        };
        let chunk = self.chunks.get_mut(&number).expect("just found");
        let bit = (chunk.used | chunk.held).trailing_ones();
        chunk.used |= 1 << bit;
        self.free -= 1;
        self.used += 1;
        self.cursor = number;
        self.stale.insert(number);
        Some(BlockNo(number * CHUNK_BLOCKS + u64::from(bit)))
    }

    /// Whether [`Self::alloc`] could hand the block out.
    pub(crate) fn is_free(&self, block: BlockNo) -> bool {
        let (number, bit) = split(block);
        self.chunks.get(&number).is_some_and(|chunk| (chunk.used | chunk.held) & bit == 0)
    }

    /// Takes a block that a replayed record uses. It [is free](Self::is_free).
    pub(crate) fn take(&mut self, block: BlockNo) {
        let (number, bit) = split(block);
        let chunk =
            self.chunks.get_mut(&number).expect("a placed block lies in a chunk of its shard");
        assert!((chunk.used | chunk.held) & bit == 0, "{block:?} is in use already");
        chunk.used |= bit;
        self.free -= 1;
        self.used += 1;
        self.stale.insert(number);
    }

    /// The same for consecutive blocks.
    pub(crate) fn take_run(&mut self, first: BlockNo, count: usize) {
        (0..count as u64).for_each(|at| self.take(first.offset(at)));
    }

    /// A place no longer has the block. It is free unless others share it. A block that is not the
    /// shard's, or not used, does not change: only a damaged image names one, and `fsck` reports
    /// it.
    pub(crate) fn free(&mut self, block: BlockNo) {
        self.free_run(block, 1);
    }

    /// The same for consecutive blocks.
    pub(crate) fn free_run(&mut self, first: BlockNo, count: u64) {
        for (number, blocks) in by_chunk(first, count) {
            let mut gone = bits(&blocks);
            let shared = self.sharing.leave(number, blocks);
            if self.planted != Some(Plant::FreeShared) {
                gone &= !shared;
            }
            self.free_of_chunk(number, gone);
        }
    }

    fn free_of_chunk(&mut self, number: u64, blocks: u64) {
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        let freed = chunk.used & blocks;
        if freed == 0 {
            return;
        }
        chunk.used &= !freed;
        chunk.held |= freed;
        self.used -= u64::from(freed.count_ones());
        self.stale.insert(number);
        if self.planted == Some(Plant::ReuseEmptied) && chunk.is_closed {
            chunk.held &= !freed;
            self.open_all();
            self.cursor = number;
            return;
        }
        if self.planted == Some(Plant::ReuseBlocks) && !chunk.is_closed {
            chunk.held &= !freed;
            self.free += u64::from(freed.count_ones());
            self.cursor = number;
            return;
        }
        let first = BlockNo(number * CHUNK_BLOCKS);
        let is_freed = |at: &u64| freed >> at & 1 != 0;
        self.freed.extend((0..CHUNK_BLOCKS).filter(is_freed).map(|at| first.offset(at)));
    }

    /// Takes back a block that was given but never written or named: nothing refers to it.
    pub(crate) fn give_back(&mut self, block: BlockNo) {
        let (number, bit) = split(block);
        let chunk = self.chunks.get_mut(&number).expect("it was handed out");
        chunk.used &= !bit;
        self.free += u64::from(!chunk.is_closed);
        self.used -= 1;
        self.stale.insert(number);
    }

    /// Takes back a block that was given for a checkpoint that failed. It is held until
    /// [`Self::reclaim`].
    pub(crate) fn retract(&mut self, block: BlockNo) {
        let (number, bit) = split(block);
        let chunk = self.chunks.get_mut(&number).expect("it was handed out");
        chunk.used &= !bit;
        chunk.held |= bit;
        self.used -= 1;
        self.stale.insert(number);
        self.retracted.insert(block);
    }

    /// No write to retracted blocks is under way any more.
    pub(crate) fn reclaim(&mut self) {
        for block in std::mem::take(&mut self.retracted) {
            let (number, bit) = split(block);
            let chunk = self.chunks.get_mut(&number).expect("such a chunk stays");
            chunk.held &= !bit;
            self.free += u64::from(!chunk.is_closed);
        }
    }

    /// Makes a used block free: [`crate::Plant::DoubleAllocate`].
    pub(crate) fn lose(&mut self, block: BlockNo) {
        let (number, bit) = split(block);
        let chunk = self.chunks.get_mut(&number).expect("a chunk of the shard");
        chunk.used &= !bit;
        self.free += u64::from(!chunk.is_closed);
        self.used -= 1;
        self.cursor = number;
    }

    /// The fault that the cell has, if any.
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// The next chunk record to write: its number and bitmap, `None` to remove it.
    pub(crate) fn next_stale(&mut self) -> Option<(u64, Option<u64>)> {
        let number = self.stale.pop_first()?;
        Some((number, self.chunks.get(&number).map(|chunk| chunk.used)))
    }

    /// Whether a chunk record has yet to be written.
    pub(crate) fn is_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Lets chunks without a used block depart, with their records. Keeps enough of them for `keep`
    /// free blocks.
    pub(crate) fn depart(&mut self, keep: u64) {
        let mut empty: BTreeSet<u64> = self.freed.iter().map(|block| split(*block).0).collect();
        if self.free > FREE_MAX {
            let unused = self.chunks.iter().filter(|(_, chunk)| chunk.used == 0);
            empty.extend(unused.map(|(number, _)| *number));
        }
        empty.extend(&self.closed);
        for number in empty {
            let blocks = BlockNo(number * CHUNK_BLOCKS)..BlockNo((number + 1) * CHUNK_BLOCKS);
            let is_written = self.retracted.range(blocks).next().is_some();
            let leaves_live = self.planted == Some(Plant::LeaveLive);
            let unused = |chunk: &&Chunk| {
                let is_missed = leaves_live && chunk.is_closed && chunk.used.count_ones() == 1;
                (chunk.used == 0 || is_missed) && !is_written
            };
            let Some(chunk) = self.chunks.get(&number).filter(unused) else { continue };
            let free = chunk.free();
            if chunk.is_closed || self.free >= free + keep.max(FREE_MIN) {
                self.chunks.remove(&number);
                self.closed.remove(&number);
                self.immovable.remove(&number);
                self.free -= free;
                // A chunk that leaves fills the reserve first, so root loses nothing.
                self.private = self.private.saturating_sub(CHUNK_BLOCKS);
                self.stale.insert(number);
                self.departing.push(number);
            }
        }
    }

    /// Whether blocks become free with a checkpoint.
    pub(crate) fn holds_freed(&self) -> bool {
        !(self.freed.is_empty() && self.sealed.is_empty() && self.retracted.is_empty())
    }

    /// Chunks that leave with the checkpoint being written.
    pub(crate) fn departing(&self) -> &[u64] {
        &self.departing
    }

    /// Blocks that were freed so far are not in the checkpoint that is being written. Returns the
    /// chunks that came and those that leave with it.
    pub(crate) fn seal(&mut self) -> (Vec<u64>, Vec<u64>) {
        self.sealed.append(&mut self.freed);
        // Other cells never see a chunk that came and leaves within one checkpoint.
        self.sealed_claims.append(&mut self.claimed);
        let (claimed, departing) = (&self.sealed_claims, &self.departing);
        let released = departing.iter().filter(|number| !claimed.contains(number)).copied();
        let kept = claimed.iter().filter(|number| !departing.contains(number)).copied();
        (kept.collect(), released.collect())
    }

    /// The checkpoint is durable. Returns the chunks that belong to no shard now.
    pub(crate) fn switched(&mut self) -> Vec<u64> {
        for block in std::mem::take(&mut self.sealed) {
            let (number, bit) = split(block);
            if let Some(chunk) = self.chunks.get_mut(&number) {
                chunk.held &= !bit;
                self.free += u64::from(!chunk.is_closed);
            }
        }
        self.sealed_claims.clear();
        std::mem::take(&mut self.departing)
    }

    /// The checkpoint failed: the last durable root still refers to blocks that were freed.
    pub(crate) fn failed(&mut self) {
        self.freed.append(&mut self.sealed);
        self.claimed.append(&mut self.sealed_claims);
        for number in std::mem::take(&mut self.departing) {
            let held = self.freed.iter().filter(|block| split(**block).0 == number);
            let held = held.fold(0, |bits, block| bits | split(*block).1);
            self.chunks.insert(number, Chunk { held, ..Chunk::default() });
            self.free += u64::from(held.count_zeros());
            self.stale.insert(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let mut space = Space::default();
        assert!(space.claim(3) && !space.claim(3));
        space
    }

    #[test]
    fn what_a_damaged_image_has_freed_changes_nothing() {
        let mut space = space();
        let block = space.alloc().unwrap();
        space.free(block);
        for wrong in [block, block.offset(1), BlockNo(0), BlockNo(u64::MAX)] {
            space.free(wrong);
        }
        assert_eq!((space.free_blocks(), space.used_blocks()), (CHUNK_BLOCKS - 1, 0));
        space.seal();
        space.switched();
        assert_eq!(space.free_blocks(), CHUNK_BLOCKS);
    }

    #[test]
    fn a_freed_block_comes_back_only_after_the_switch() {
        let mut space = space();
        let blocks: Vec<_> = (0..CHUNK_BLOCKS).map(|_| space.alloc().unwrap()).collect();
        assert_eq!(space.alloc(), None);
        space.free(blocks[5]);
        assert_eq!(space.alloc(), None);
        space.seal();
        assert_eq!(space.alloc(), None);
        space.switched();
        assert_eq!(space.alloc(), Some(blocks[5]));
    }

    #[test]
    fn a_block_that_was_not_used_is_free_at_once() {
        let mut space = space();
        let blocks: Vec<_> = (0..CHUNK_BLOCKS).map(|_| space.alloc().unwrap()).collect();
        space.give_back(blocks[5]);
        assert_eq!((space.free_blocks(), space.used_blocks()), (1, CHUNK_BLOCKS - 1));
        assert!(space.uses(blocks[4]) && !space.uses(blocks[5]));
        assert_eq!(space.alloc(), Some(blocks[5]));
    }

    #[test]
    fn a_retracted_block_is_free_when_it_is_reclaimed_and_keeps_its_chunk_until_then() {
        let mut space = space();
        space.claim(9);
        space.cursor = 9;
        let block = space.alloc().unwrap();
        assert_eq!(block, BlockNo(9 * CHUNK_BLOCKS));
        let other = space.alloc().unwrap();
        space.retract(block);
        space.free(other);
        assert!(!space.uses(block) && !space.is_free(block));
        space.depart(0);
        assert!(space.departing().is_empty());
        space.reclaim();
        assert!(space.is_free(block) && !space.is_free(other));
        space.depart(0);
        assert_eq!(space.departing(), [9]);
    }

    #[test]
    fn what_is_freed_while_a_checkpoint_is_written_waits_for_the_next() {
        let mut space = space();
        let blocks: Vec<_> = (0..CHUNK_BLOCKS).map(|_| space.alloc().unwrap()).collect();
        space.seal();
        space.free(blocks[0]);
        space.switched();
        assert_eq!(space.alloc(), None);
        space.seal();
        space.switched();
        assert_eq!(space.alloc(), Some(blocks[0]));
    }

    #[test]
    fn blocks_of_a_chunk_that_leaves_are_not_private_any_more() {
        let mut space = space();
        for number in 10..20 {
            space.claim(number);
            space.make_private();
            space.use_private(8);
            let blocks: Vec<_> = (0..8).map(|_| space.alloc().unwrap()).collect();
            assert_eq!(space.private(), CHUNK_BLOCKS - 8);
            blocks.into_iter().for_each(|block| space.free(block));
            space.depart(0);
            space.seal();
            assert_eq!((space.switched(), space.private()), (vec![number], 0));
        }
    }

    #[test]
    fn an_empty_chunk_leaves_and_comes_back_if_the_checkpoint_fails() {
        let mut space = space();
        space.claim(9);
        space.cursor = 9;
        let block = space.alloc().unwrap();
        space.free(block);
        space.depart(0);
        let (claimed, departing) = space.seal();
        assert_eq!((claimed, departing), (vec![3], vec![]));
        space.failed();
        assert_eq!(space.free_blocks(), 2 * CHUNK_BLOCKS - 1);
        space.depart(0);
        space.seal();
        assert_eq!(space.switched(), vec![9]);
        assert_eq!(space.free_blocks(), CHUNK_BLOCKS);
    }
}
