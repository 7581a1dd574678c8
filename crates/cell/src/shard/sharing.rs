//! Blocks that several places of files share, and how many places besides one have each.
//!
//! Invariant: the places are extents of the shard's own files. A shared block is used, and becomes
//! free with its last place.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::BlockNo;
use warren_base::limits::CHUNK_BLOCKS;
use warren_disk::{SHARED_MAX, SharedRun};

/// For each block of a chunk, the places besides one.
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

    fn others(&self, block: BlockNo) -> u16 {
        let (number, at) = split(block);
        self.chunks.get(&number).map_or(0, |others| others[at])
    }

    pub(crate) fn is_shared(&self, block: BlockNo) -> bool {
        self.others(block) > 0
    }

    /// Whether one more place may share the block.
    pub(crate) fn may_share(&self, block: BlockNo) -> bool {
        self.others(block) < SHARED_MAX
    }

    /// One more place has the block, which [may be](Self::may_share).
    pub(crate) fn share(&mut self, block: BlockNo) {
        let (number, at) = split(block);
        let others = self.chunks.entry(number).or_insert_with(|| Box::new(NONE));
        others[at] = others[at].saturating_add(1);
        self.stale.insert(number);
    }

    /// A place no longer has the block. Returns whether another one still has it.
    pub(crate) fn leave(&mut self, block: BlockNo) -> bool {
        let (number, at) = split(block);
        let Some(others) = self.chunks.get_mut(&number).filter(|others| others[at] > 0) else {
            return false;
        };
        others[at] -= 1;
        if **others == NONE {
            self.chunks.remove(&number);
        }
        self.stale.insert(number);
        true
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
        sharing.share(block);
        sharing.share(block);
        sharing.share(block.offset(1));
        assert_eq!(sharing.chunks(), 1);
        let run = |first, others| SharedRun { first, blocks: 1, others };
        assert_eq!(sharing.next_stale(), Some((3, vec![run(5, 2), run(6, 1)])));
        assert_eq!(sharing.next_stale(), None);
        assert!(sharing.leave(block) && sharing.leave(block) && !sharing.leave(block));
        assert!(!sharing.is_shared(block) && sharing.is_shared(block.offset(1)));
        assert!(sharing.leave(block.offset(1)));
        assert_eq!((sharing.chunks(), sharing.next_stale()), (0, Some((3, vec![]))));
    }

    #[test]
    fn what_the_tree_records_is_what_was_recorded() {
        let runs = [(0, 2, 1), (2, 61, SHARED_MAX), (63, 1, 4)];
        let runs = runs.map(|(first, blocks, others)| SharedRun { first, blocks, others });
        let mut sharing = Sharing::default();
        sharing.open_chunk(9, &runs);
        let full = BlockNo(9 * CHUNK_BLOCKS + 2);
        assert!(!sharing.may_share(full) && sharing.may_share(BlockNo(9 * CHUNK_BLOCKS)));
        sharing.stale.insert(9);
        assert_eq!(sharing.next_stale(), Some((9, runs.to_vec())));
    }
}
