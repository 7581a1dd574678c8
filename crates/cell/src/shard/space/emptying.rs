//! Chunks that are being emptied, so that other shards can have them.
//!
//! A chunk is *closed* first: none of its blocks is handed out any more, and its free blocks do not
//! count as free. Then its used blocks are moved (`clean/moves.rs`). A closed chunk without a used
//! block leaves the shard with the next checkpoint. One that still has some is opened again.

use std::cmp::Reverse;

use warren_base::BlockNo;
use warren_base::limits::CHUNK_BLOCKS;

use super::{Chunk, Space, split};
use crate::shard::cleaning::Cleaning;

impl Space {
    /// Closes the chunks with the fewest used blocks, as long as the shard can spare their blocks:
    /// `spare` free blocks in all. The blocks that are moved out of them take free ones too. Stops
    /// when more than `moves` blocks would have to be moved. Returns how many chunks it has closed.
    pub(crate) fn close_sparsest(&mut self, mut spare: u64, moves: u64) -> u64 {
        let is_movable =
            |(number, chunk): &(&u64, &Chunk)| !chunk.is_closed && !self.immovable.contains(number);
        let movable = self.chunks.iter().filter(is_movable);
        let mut sparse: Vec<(u32, Reverse<u64>)> =
            movable.map(|(number, chunk)| (chunk.used.count_ones(), Reverse(*number))).collect();
        sparse.sort_unstable();
        let (mut closed, mut moved) = (0, 0);
        for (used, Reverse(number)) in sparse {
            let chunk = self.chunks.get_mut(&number).expect("just listed");
            let taken = CHUNK_BLOCKS - u64::from(chunk.held.count_ones());
            moved += u64::from(used);
            if taken > spare || moved > moves {
                break;
            }
            spare -= taken;
            self.free -= chunk.free();
            chunk.is_closed = true;
            self.closed.insert(number);
            closed += 1;
        }
        closed
    }

    /// Whether the block lies in a closed chunk.
    pub(crate) fn is_closed(&self, block: BlockNo) -> bool {
        !self.closed.is_empty() && self.closed.contains(&split(block).0)
    }

    /// The closed chunks that have no used block but those of `displaced` tree nodes, which become
    /// free with the next checkpoint.
    pub(crate) fn emptied(&self, displaced: &[BlockNo]) -> u64 {
        let is_empty = |number: &&u64| {
            let gone = displaced.iter().filter(|block| split(**block).0 == **number);
            let gone = gone.fold(0, |bits, block| bits | split(*block).1);
            self.chunks.get(number).is_some_and(|chunk| chunk.used & !gone == 0)
        };
        self.closed.iter().filter(is_empty).count() as u64
    }

    /// Opens the closed chunk with the most used blocks: the shard needs its free blocks itself.
    /// Returns whether there was one.
    pub(crate) fn open_fullest(&mut self) -> bool {
        let used = |number: &&u64| self.chunks.get(number).map(|chunk| chunk.used.count_ones());
        let fullest = self.closed.iter().max_by_key(used).copied();
        fullest.map(|number| self.open_closed(number)).is_some()
    }

    /// Opens all closed chunks.
    pub(crate) fn open_all(&mut self) {
        while let Some(number) = self.closed.first().copied() {
            self.open_closed(number);
        }
    }

    /// A block of the closed chunk cannot be moved. The chunk is opened, and not closed again.
    pub(crate) fn is_immovable(&mut self, block: BlockNo) {
        let (number, _) = split(block);
        if self.closed.contains(&number) {
            self.open_closed(number);
            self.immovable.insert(number);
        }
    }

    /// A checkpoint fixes the state of the shard. The chunks that were emptied leave with it.
    pub(crate) fn fix_cleaning(&mut self) {
        if self.cleaning == Cleaning::Walked {
            self.cleaning = Cleaning::Departing;
        }
    }

    /// That checkpoint is over. The closed chunks that could not be emptied are open again.
    pub(crate) fn end_cleaning(&mut self) {
        match &mut self.cleaning {
            Cleaning::Departing => {
                self.open_all();
                self.cleaning = Cleaning::Idle;
            }
            Cleaning::Walking(walk) => walk.moved.clear(),
            Cleaning::Idle | Cleaning::Walked => {}
        }
    }

    /// The chunks that leave with the checkpoint being written are gone at once:
    /// [`crate::Plant::GiveEarly`].
    pub(crate) fn give_early(&mut self) -> Vec<u64> {
        let is_planted = self.planted == Some(crate::plant::Plant::GiveEarly);
        if is_planted { std::mem::take(&mut self.departing) } else { Vec::new() }
    }

    fn open_closed(&mut self, number: u64) {
        self.closed.remove(&number);
        let chunk = self.chunks.get_mut(&number).expect("a closed chunk is the shard's");
        chunk.is_closed = false;
        self.free += chunk.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks with so many used blocks each.
    fn space(used: &[u64]) -> Space {
        let mut space = Space::default();
        for (number, used) in (3..).zip(used) {
            space.open_chunk(number, (1 << used) - 1);
        }
        space
    }

    fn free_counted(space: &Space) -> u64 {
        space.chunks.values().map(Chunk::free).sum()
    }

    #[test]
    fn the_sparsest_chunks_are_closed_as_far_as_the_shard_can_spare_them() {
        let mut space = space(&[40, 1, 63, 20]);
        assert_eq!(space.free_blocks(), 4 * CHUNK_BLOCKS - 124);
        assert_eq!(space.close_sparsest(CHUNK_BLOCKS - 1, u64::MAX), 0);
        assert_eq!(space.close_sparsest(2 * CHUNK_BLOCKS, u64::MAX), 2);
        assert!(space.is_closed(BlockNo(4 * CHUNK_BLOCKS)));
        assert!(space.is_closed(BlockNo(6 * CHUNK_BLOCKS + 63)));
        assert_eq!(space.free_blocks(), 2 * CHUNK_BLOCKS - 103);
        let handed_out: Vec<u64> =
            std::iter::from_fn(|| space.alloc()).map(|block| split(block).0).collect();
        assert!(handed_out.iter().all(|number| [3, 5].contains(number)));
        assert_eq!(space.free_blocks(), 0);
        assert!(space.open_fullest());
        assert_eq!(space.free_blocks(), CHUNK_BLOCKS - 20);
        space.open_all();
        assert_eq!(space.free_blocks(), free_counted(&space));
    }

    #[test]
    fn no_more_blocks_are_moved_than_allowed() {
        assert_eq!(space(&[10, 10, 10]).close_sparsest(u64::MAX, 25), 2);
    }

    #[test]
    fn an_emptied_chunk_leaves_with_the_checkpoint_and_one_with_a_block_stays() {
        let mut space = space(&[1, 1, 1]);
        assert_eq!(space.close_sparsest(2 * CHUNK_BLOCKS, u64::MAX), 2);
        let (node, page) = (BlockNo(5 * CHUNK_BLOCKS), BlockNo(4 * CHUNK_BLOCKS));
        assert_eq!(space.emptied(&[]), 0);
        assert_eq!(space.emptied(&[node]), 1);
        space.free(node);
        assert_eq!(space.emptied(&[]), 1);
        space.depart(1000);
        assert_eq!(space.departing(), [5]);
        space.open_all();
        assert!(space.uses(page));
        space.seal();
        assert_eq!(space.switched(), [5]);
        assert_eq!(space.free_blocks(), free_counted(&space));
    }

    #[test]
    fn what_departs_with_a_checkpoint_that_fails_is_open_again() {
        let mut space = space(&[1, 1]);
        assert_eq!(space.close_sparsest(CHUNK_BLOCKS, u64::MAX), 1);
        space.free(BlockNo(4 * CHUNK_BLOCKS));
        space.depart(0);
        space.seal();
        space.failed();
        assert_eq!(space.free_blocks(), 2 * CHUNK_BLOCKS - 2);
        assert_eq!(space.free_blocks(), free_counted(&space));
    }

    #[test]
    fn a_chunk_with_a_block_that_cannot_be_moved_is_not_closed_again() {
        let mut space = space(&[1, 1]);
        assert_eq!(space.close_sparsest(2 * CHUNK_BLOCKS, u64::MAX), 2);
        space.is_immovable(BlockNo(3 * CHUNK_BLOCKS));
        space.open_all();
        assert_eq!(space.close_sparsest(2 * CHUNK_BLOCKS, u64::MAX), 1);
        assert!(!space.is_closed(BlockNo(3 * CHUNK_BLOCKS)));
    }
}
