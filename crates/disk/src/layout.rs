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
//!
//! The region map before the root slots has the pages that the pool needed when it was made. A pool
//! that has grown needs more, and nothing before its chunks can move. So each further page lies in
//! the first of the chunks that it describes: its two copies are the first two blocks of that
//! chunk, which is reserved too.

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
    /// Pages of the region map that lie before the root slots.
    first_pages: u64,
    shards: u16,
    log_blocks: u64,
}

/// The chunks of a pool that shards may own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkBounds {
    /// Chunks below overlap the structures before the chunks.
    reserved: u64,
    /// Whole chunks of the device.
    end: u64,
    first_pages: u64,
}

impl ChunkBounds {
    /// The chunks from `reserved` up to `end` that hold no page of the region map. So many pages of
    /// it lie before the root slots.
    pub const fn new(reserved: u64, end: u64, first_pages: u64) -> Self {
        Self { reserved, end, first_pages }
    }

    /// All chunks from `reserved` up to `end`, of a pool that has not grown.
    pub const fn of(reserved: u64, end: u64) -> Self {
        Self { reserved, end, first_pages: end.div_ceil(OWNERS_PER_PAGE) }
    }

    /// The bounds when the pool has grown to so many chunks.
    #[must_use]
    pub const fn grown(self, end: u64) -> Self {
        Self { end, ..self }
    }

    /// Whether a shard may own the chunk.
    pub const fn contain(&self, chunk: u64) -> bool {
        self.reserved <= chunk && chunk < self.end && !self.has_map_page(chunk)
    }

    /// Chunks that shards may own.
    pub const fn count(&self) -> u64 {
        self.end - self.reserved - (pages_of(self.end) - self.first_pages)
    }

    const fn has_map_page(&self, chunk: u64) -> bool {
        chunk.is_multiple_of(OWNERS_PER_PAGE) && chunk / OWNERS_PER_PAGE >= self.first_pages
    }
}

/// Pages of a region map of so many chunks.
const fn pages_of(chunks: u64) -> u64 {
    chunks.div_ceil(OWNERS_PER_PAGE)
}

/// The place of a root slot: a block, and the byte in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotPlace {
    pub block: BlockNo,
    pub offset: usize,
}

impl Layout {
    /// The layout of a new pool. `None` if the numbers are out of range or leave no chunk free.
    pub fn new(total_blocks: u64, shards: u16, log_blocks: u64) -> Option<Self> {
        Self::with_pages(total_blocks, pages_of(total_blocks / CHUNK_BLOCKS), shards, log_blocks)
    }

    /// The same of a pool that has perhaps grown: so many pages of its region map lie before the
    /// root slots.
    pub fn with_pages(
        total_blocks: u64,
        first_pages: u64,
        shards: u16,
        log_blocks: u64,
    ) -> Option<Self> {
        let in_range = total_blocks <= POOL_BLOCKS_MAX
            && log_blocks <= total_blocks
            && (1..=SHARDS_MAX).contains(&shards)
            && (1..=pages_of(total_blocks / CHUNK_BLOCKS)).contains(&first_pages);
        let layout = Self { total_blocks, first_pages, shards, log_blocks };
        // A page that follows lies in a chunk behind all that is reserved here.
        (in_range && layout.reserved_chunks() < layout.first_chunks()).then_some(layout)
    }

    /// The layout after the pool has grown to so many blocks. `None` if it does not grow by a
    /// chunk, or too far.
    pub fn grown(&self, total_blocks: u64) -> Option<Self> {
        let Self { first_pages, shards, log_blocks, .. } = *self;
        let grown = Self::with_pages(total_blocks, first_pages, shards, log_blocks)?;
        (grown.chunks() > self.chunks()).then_some(grown)
    }

    /// Bytes of a device of so many blocks that lie behind the pool and that it could grow into.
    pub fn bytes_behind(&self, device_blocks: u64) -> u64 {
        let end = device_blocks.min(POOL_BLOCKS_MAX);
        let could = self.grown(end).map_or(0, |grown| grown.total_blocks - self.total_blocks);
        could * BLOCK_SIZE as u64
    }

    /// Whether this is the layout of the same pool, before or after it has grown.
    pub fn is_of_same_pool(&self, other: &Self) -> bool {
        Self { total_blocks: other.total_blocks, ..*self } == *other
    }

    /// Whether some pages of the region map lie among the chunks, which formats before version 9 do
    /// not know.
    pub fn has_map_pages_in_chunks(&self) -> bool {
        self.first_pages < self.region_pages()
    }

    /// The chunks that the pages before the root slots describe.
    fn first_chunks(&self) -> u64 {
        self.chunks().min(self.first_pages * OWNERS_PER_PAGE)
    }

    /// The chunks that shards may own.
    pub fn bounds(&self) -> ChunkBounds {
        ChunkBounds {
            reserved: self.reserved_chunks(),
            end: self.chunks(),
            first_pages: self.first_pages,
        }
    }

    /// Whether the chunk exists and no shard may own it.
    pub fn is_reserved(&self, chunk: u64) -> bool {
        chunk < self.chunks() && !self.bounds().contain(chunk)
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
        pages_of(self.chunks())
    }

    /// So many pages of one copy lie before the root slots; the others lie in later chunks.
    pub fn first_pages(&self) -> u64 {
        self.first_pages
    }

    pub fn region_page(&self, copy: usize, page: u64) -> BlockNo {
        assert!(copy < 2 && page < self.region_pages());
        if page < self.first_pages {
            return self.region_start().offset(copy as u64 * self.first_pages + page);
        }
        BlockNo(page * OWNERS_PER_PAGE * CHUNK_BLOCKS + copy as u64)
    }

    /// The blocks of one copy of the region map, in runs: the first block and the number of blocks.
    pub fn region_runs(&self, copy: usize) -> impl Iterator<Item = (BlockNo, u64)> + use<> {
        let layout = *self;
        let first = (self.region_page(copy, 0), self.first_pages);
        let further = self.first_pages..self.region_pages();
        let further = further.map(move |page| (layout.region_page(copy, page), 1));
        core::iter::once(first).chain(further)
    }

    /// The page of the region map of which a copy lies in this block.
    pub fn page_at(&self, block: BlockNo) -> Option<u64> {
        let before = block.0.checked_sub(self.region_start().0)?;
        if before < 2 * self.first_pages {
            return Some(before % self.first_pages);
        }
        let chunk = block.0 / CHUNK_BLOCKS;
        let is_page = self.is_reserved(chunk)
            && chunk >= self.reserved_chunks()
            && block.0 % CHUNK_BLOCKS < 2;
        is_page.then_some(chunk / OWNERS_PER_PAGE)
    }

    pub fn roots_start(&self) -> BlockNo {
        self.region_start().offset(2 * self.first_pages)
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
        self.bounds().contain(block.0 / CHUNK_BLOCKS)
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
    fn a_pool_that_grows_keeps_its_structures_where_they_are() {
        let made = Layout::new(1 << 17, 257, 100).unwrap();
        assert_eq!((made.chunks(), made.first_pages()), (2048, 2));
        let same_pages = made.grown(4064 * 64).unwrap();
        assert_eq!((same_pages.region_pages(), same_pages.bounds().count()), (2, 4064 - 3));
        assert!(!same_pages.has_map_pages_in_chunks());
        let grown = same_pages.grown((4064 * 64) + (1 << 20)).unwrap();
        assert!(grown.has_map_pages_in_chunks() && grown.is_of_same_pool(&made));
        assert_eq!(grown.region_pages(), 11);
        for layout in [made, same_pages, grown] {
            assert_eq!(layout.log_start(), made.log_start());
            assert_eq!(layout.metadata_blocks(), made.metadata_blocks());
        }
        let free = (0..grown.chunks()).filter(|chunk| !grown.is_reserved(*chunk));
        assert_eq!(free.count() as u64, grown.bounds().count());
        assert_eq!(grown.region_page(1, 2), BlockNo(4064 * 64 + 1));
        assert!(!grown.is_allocatable(BlockNo(4064 * 64)) && grown.is_reserved(4064));
        assert!(grown.is_allocatable(BlockNo(4065 * 64)));
        for page in 0..grown.region_pages() {
            for copy in 0..2 {
                let block = grown.region_page(copy, page);
                assert_eq!(grown.page_at(block), Some(page));
                assert!(!grown.is_allocatable(block));
            }
        }
        assert_eq!(grown.page_at(BlockNo(4064 * 64 + 2)), None);
        let runs: Vec<_> = grown.region_runs(1).collect();
        assert_eq!((runs[0], runs.len()), ((BlockNo(4), 2), 10));
    }

    #[test]
    fn a_pool_grows_by_whole_chunks_and_never_shrinks() {
        let layout = Layout::new(1 << 17, 1, 0).unwrap();
        for too_small in [0, 1 << 16, 1 << 17, (1 << 17) + 63] {
            assert_eq!(layout.grown(too_small), None, "{too_small}");
        }
        assert!(layout.grown((1 << 17) + 64).is_some());
        assert!(layout.grown(POOL_BLOCKS_MAX).is_some());
        assert_eq!(layout.grown(POOL_BLOCKS_MAX + 1), None);
        let behind = [0, 1 << 17, (1 << 17) + 63, (1 << 17) + 64, u64::MAX];
        let most = (POOL_BLOCKS_MAX - (1 << 17)) * 4096;
        assert_eq!(behind.map(|end| layout.bytes_behind(end)), [0, 0, 0, 64 * 4096, most]);
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
