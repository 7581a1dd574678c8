//! The places of all structures on a pool device: computed from its size, its shards and its logs,
//! never stored twice.
//!
//! ```text
//!   block 0     superblock, copy A
//!         1     superblock, copy B
//!         2     region map, copy 0        one u16 a chunk, 2032 a page
//!               region map, copy 1
//!               root slots, slot 0        512 bytes a shard, 8 a block
//!               root slots, slot 1
//!               op logs                   two copies of their table, then one area a cell
//!               chunks                    64 blocks each, up to the last whole one
//! ```
//!
//! Chunk `n` is blocks `64 n .. 64 n + 64` of the device, so chunks that overlap the structures
//! before them exist too and are reserved.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, POOL_BLOCKS_MAX, SHARDS_MAX};
use warren_base::{BlockNo, ShardId};

/// Bytes of a root slot: the unit that a device writes atomically.
pub const ROOT_SLOT_SIZE: usize = 512;

/// Owners in one page of the region map, behind its header.
pub const OWNERS_PER_PAGE: u64 = ((BLOCK_SIZE - REGION_HEADER) / 2) as u64;
pub(crate) const REGION_HEADER: usize = 32;
const SLOTS_PER_BLOCK: u64 = (BLOCK_SIZE / ROOT_SLOT_SIZE) as u64;
const REGION_START: u64 = 2;

const _: () = {
    assert!(OWNERS_PER_PAGE == 2032 && SLOTS_PER_BLOCK == 8);
    // A page of the region map has a number of 32 bits.
    assert!(POOL_BLOCKS_MAX / CHUNK_BLOCKS / OWNERS_PER_PAGE < u32::MAX as u64);
};

/// The regions of a pool device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    total_blocks: u64,
    shards: u16,
    log_blocks: u64,
}

/// The place of a root slot: a block, and the byte in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotPlace {
    pub block: BlockNo,
    pub offset: usize,
}

impl Layout {
    /// `None` if the numbers are out of range or leave no chunk free.
    pub fn new(total_blocks: u64, shards: u16, log_blocks: u64) -> Option<Self> {
        let in_range = total_blocks <= POOL_BLOCKS_MAX
            && log_blocks <= total_blocks
            && (1..=SHARDS_MAX).contains(&shards);
        let layout = Self { total_blocks, shards, log_blocks };
        (in_range && layout.reserved_chunks() < layout.chunks()).then_some(layout)
    }

    pub fn total_blocks(&self) -> u64 {
        self.total_blocks
    }

    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Whole chunks of the device, including the reserved ones.
    pub fn chunks(&self) -> u64 {
        self.total_blocks / CHUNK_BLOCKS
    }

    /// Chunks `0..reserved_chunks()` overlap the regions before them.
    pub fn reserved_chunks(&self) -> u64 {
        self.metadata_blocks().div_ceil(CHUNK_BLOCKS)
    }

    /// Blocks before the first that may be allocated.
    pub fn metadata_blocks(&self) -> u64 {
        self.roots_start().0 + 2 * self.roots_blocks() + self.log_blocks
    }

    pub fn superblock(&self, copy: usize) -> BlockNo {
        assert!(copy < 2);
        BlockNo(copy as u64)
    }

    pub fn region_start(&self) -> BlockNo {
        BlockNo(REGION_START)
    }

    /// Pages of one copy of the region map.
    pub fn region_pages(&self) -> u64 {
        self.chunks().div_ceil(OWNERS_PER_PAGE)
    }

    pub fn region_page(&self, copy: usize, page: u64) -> BlockNo {
        assert!(copy < 2 && page < self.region_pages());
        self.region_start().offset(copy as u64 * self.region_pages() + page)
    }

    pub fn roots_start(&self) -> BlockNo {
        self.region_start().offset(2 * self.region_pages())
    }

    /// Blocks of one of the two arrays of root slots.
    pub fn roots_blocks(&self) -> u64 {
        u64::from(self.shards).div_ceil(SLOTS_PER_BLOCK)
    }

    pub fn root_slot(&self, shard: ShardId, slot: usize) -> SlotPlace {
        assert!(slot < 2 && shard.0 < self.shards);
        let shard = u64::from(shard.0);
        let block = slot as u64 * self.roots_blocks() + shard / SLOTS_PER_BLOCK;
        let offset = (shard % SLOTS_PER_BLOCK) as usize * ROOT_SLOT_SIZE;
        SlotPlace { block: self.roots_start().offset(block), offset }
    }

    /// The first block of the op logs; block 0 if there are none.
    pub fn log_start(&self) -> BlockNo {
        match self.log_blocks {
            0 => BlockNo(0),
            _ => self.roots_start().offset(2 * self.roots_blocks()),
        }
    }

    pub fn log_blocks(&self) -> u64 {
        self.log_blocks
    }

    /// Whether the block lies in a chunk that a shard may own.
    pub fn is_allocatable(&self, block: BlockNo) -> bool {
        (self.reserved_chunks()..self.chunks()).contains(&(block.0 / CHUNK_BLOCKS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_follow_each_other_without_a_gap() {
        let layout = Layout::new(1 << 20, 257, 100).unwrap();
        assert_eq!(layout.region_pages(), (16384_u64).div_ceil(2032));
        assert_eq!(layout.region_page(1, 8), BlockNo(2 + 9 + 8));
        assert_eq!(layout.roots_start(), BlockNo(20));
        let last = layout.root_slot(ShardId(256), 1);
        assert_eq!(last, SlotPlace { block: BlockNo(20 + 33 + 32), offset: 0 });
        assert_eq!(layout.log_start(), last.block.offset(1));
        assert_eq!(layout.metadata_blocks(), 186);
        assert_eq!(layout.reserved_chunks(), 3);
        assert!(layout.is_allocatable(BlockNo(192)) && !layout.is_allocatable(BlockNo(191)));
        assert!(!layout.is_allocatable(BlockNo(1 << 20)));
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert_eq!(Layout::new(64, 1, 0), None);
        assert!(Layout::new(128, 1, 0).is_some());
        assert_eq!(Layout::new(1 << 20, 0, 0), None);
        assert_eq!(Layout::new(1 << 20, SHARDS_MAX + 1, 0), None);
        assert!(Layout::new(POOL_BLOCKS_MAX, 1, 0).is_some());
        assert_eq!(Layout::new(POOL_BLOCKS_MAX + 1, 1, 0), None);
        assert_eq!(Layout::new(u64::MAX, 1, 0), None);
        assert_eq!(Layout::new(1 << 20, 1, u64::MAX), None);
    }
}
