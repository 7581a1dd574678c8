//! Blocks that several places of files share, and how many places besides one have each.
//!
//! Invariant: the places are extents of the shard's own files. A shared block is used, and becomes
//! free with its last place.
//!
//! Blocks that follow each other are counted by chunk, because a copy shares hundreds at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use warren_base::BlockNo;
use warren_base::limits::CHUNK_BLOCKS;
use warren_disk::{SHARED_MAX, SharedRun};

/// The number of places of each block of a chunk, besides one.
type Others = [u16; CHUNK_BLOCKS as usize];

const NONE: Others = [0; CHUNK_BLOCKS as usize];

#[derive(Debug, Default)]
pub(crate) struct Sharing {
    chunks: BTreeMap<u64, Box<Others>>,
    /// Chunks whose record in the tree is out of date.
    stale: BTreeSet<u64>,
}

fn split(block: BlockNo) -> (u64, usize) {
    (block.0 / CHUNK_BLOCKS, (block.0 % CHUNK_BLOCKS) as usize)
}

/// The blocks from `first` on by chunk: its number, and where they are in it. A damaged image may
/// name any blocks.
pub(crate) fn by_chunk(first: BlockNo, count: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let (mut next, mut rest) = (first.0, count);
    std::iter::from_fn(move || {
        let (number, from) = split(BlockNo(next));
        let blocks = rest.min(CHUNK_BLOCKS - from as u64);
        (next, rest) = (next.wrapping_add(blocks), rest - blocks);
        (blocks > 0).then_some((number, from..from + blocks as usize))
    })
}

/// The bits of these blocks of a chunk.
pub(crate) fn bits(blocks: &Range<usize>) -> u64 {
    blocks.clone().fold(0, |bits, at| bits | 1 << at)
}

impl Sharing {
    /// A chunk as the tree records it.
    pub(crate) fn open_chunk(&mut self, number: u64, runs: &[SharedRun]) {
        let mut others = Box::new(NONE);
        for run in runs {
            others[run.first.into()..][..run.blocks.into()].fill(run.others);
        }
        self.chunks.insert(number, others);
    }

    /// Chunks with shared blocks.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    fn count_others(&self, block: BlockNo) -> u16 {
        let (number, at) = split(block);
        self.chunks.get(&number).map_or(0, |others| others[at])
    }

    pub(crate) fn is_shared(&self, block: BlockNo) -> bool {
        self.count_others(block) > 0
    }

    /// Whether one more place may share each of these blocks.
    pub(crate) fn may_share(&self, first: BlockNo, count: u64) -> bool {
        by_chunk(first, count).all(|(number, blocks)| {
            let others = self.chunks.get(&number);
            others.is_none_or(|others| others[blocks].iter().all(|it| *it < SHARED_MAX))
        })
    }

    /// One more place has these blocks, which [may be](Self::may_share).
    pub(crate) fn share(&mut self, first: BlockNo, count: u64) {
        for (number, blocks) in by_chunk(first, count) {
            let others = self.chunks.entry(number).or_insert_with(|| Box::new(NONE));
            others[blocks].iter_mut().for_each(|it| *it = it.saturating_add(1));
            self.stale.insert(number);
        }
    }

    /// A place no longer has these blocks of a chunk. Returns the bits of those that another one
    /// still has.
    pub(crate) fn leave(&mut self, number: u64, blocks: Range<usize>) -> u64 {
        let Some(others) = self.chunks.get_mut(&number) else { return 0 };
        let mut shared = 0;
        for at in blocks {
            if others[at] > 0 {
                others[at] -= 1;
                shared |= 1 << at;
            }
        }
        if shared != 0 {
            if **others == NONE {
                self.chunks.remove(&number);
            }
            self.stale.insert(number);
        }
        shared
    }

    /// The next record to write: the chunk, and its shared blocks. No runs: the record goes.
    pub(crate) fn next_stale(&mut self) -> Option<(u64, Vec<SharedRun>)> {
        let number = self.stale.pop_first()?;
        let mut runs: Vec<SharedRun> = Vec::new();
        let others = self.chunks.get(&number).map_or(&NONE, |others| &**others);
        for (at, others) in (0..).zip(others).filter(|(_, others)| **others > 0) {
            match runs.last_mut() {
                Some(run) if run.first + run.blocks == at && run.others == *others => {
                    run.blocks += 1;
                }
                _ => runs.push(SharedRun { first: at, blocks: 1, others: *others }),
            }
        }
        Some((number, runs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_shared_until_it_has_one_place() {
        let (mut sharing, block) = (Sharing::default(), BlockNo(3 * CHUNK_BLOCKS + 5));
        sharing.share(block, 1);
        sharing.share(block, 2);
        assert_eq!(sharing.chunks(), 1);
        let run = |first, others| SharedRun { first, blocks: 1, others };
        assert_eq!(sharing.next_stale(), Some((3, vec![run(5, 2), run(6, 1)])));
        assert_eq!(sharing.next_stale(), None);
        let left = [(); 3].map(|()| sharing.leave(3, 5..6));
        assert_eq!(left, [1 << 5, 1 << 5, 0]);
        assert!(!sharing.is_shared(block) && sharing.is_shared(block.offset(1)));
        assert_eq!(sharing.leave(3, 4..8), 1 << 6);
        assert_eq!((sharing.chunks(), sharing.next_stale()), (0, Some((3, vec![]))));
    }

    #[test]
    fn a_run_is_shared_and_left_as_its_blocks_are() {
        let first = BlockNo(4 * CHUNK_BLOCKS - 3);
        let count = CHUNK_BLOCKS + 7;
        let parts: Vec<_> = by_chunk(first, count).collect();
        assert_eq!(parts, [(3, 61..64), (4, 0..64), (5, 0..4)]);
        assert_eq!((bits(&(0..64)), bits(&(61..64)), bits(&(3..3))), (u64::MAX, 7 << 61, 0));
        let (mut whole, mut single) = (Sharing::default(), Sharing::default());
        whole.share(first, count);
        (0..count).for_each(|at| single.share(first.offset(at), 1));
        whole.share(first.offset(2), 2);
        (2..4).for_each(|at| single.share(first.offset(at), 1));
        assert_eq!(whole.chunks, single.chunks);
        for (number, blocks) in by_chunk(first, count) {
            let one = |at| single.leave(number, at..at + 1);
            assert_eq!(blocks.clone().map(one).fold(0, |bits, bit| bits | bit), bits(&blocks));
            assert_eq!(whole.leave(number, blocks.clone()), bits(&blocks));
        }
        assert_eq!(whole.chunks, single.chunks);
        assert_eq!((whole.chunks(), whole.is_shared(first.offset(3))), (2, true));
    }

    #[test]
    fn what_the_tree_records_is_what_was_recorded() {
        let runs = [(0, 2, 1), (2, 61, SHARED_MAX), (63, 1, 4)];
        let runs = runs.map(|(first, blocks, others)| SharedRun { first, blocks, others });
        let mut sharing = Sharing::default();
        sharing.open_chunk(9, &runs);
        let full = BlockNo(9 * CHUNK_BLOCKS + 2);
        assert!(!sharing.may_share(full, 1) && sharing.may_share(BlockNo(9 * CHUNK_BLOCKS), 2));
        assert!(!sharing.may_share(BlockNo(8 * CHUNK_BLOCKS), CHUNK_BLOCKS + 3));
        sharing.stale.insert(9);
        assert_eq!(sharing.next_stale(), Some((9, runs.to_vec())));
    }
}
