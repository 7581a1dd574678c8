//! The region map: the owner of each chunk of the device.
//!
//! ```text
//!   0     4     8            16           20        32
//!   |magic| crc | generation | page number| zeros   | owner u16 x 2032 |  4096
//! ```
//!
//! Each page has two copies, and each write goes to the copy that is not valid. The valid copy is
//! the one with the highest generation that is not above the superblock's. Owners: 0xFFFF free,
//! 0xFFFE reserved (the chunk overlaps the structures before the chunks, or holds a page of the map
//! of a pool that has grown), else the number of a shard.
//!
//! A page of which only one copy can be read is *in doubt* if the other copy may have been the
//! newer: then the map is an old one, in which chunks are free that have owners. A write torn by a
//! power failure causes no doubt: its remains have the head of the old page, or that of a page that
//! was never committed.

use crate::BlockWrite;
use crate::codec::{Put, Take, crc_behind};
use crate::layout::{Layout, OWNERS_PER_PAGE, REGION_HEADER};
use crate::superblock::Superblock;
use std::collections::BTreeSet;
use thiserror::Error;
use warren_base::limits::{BLOCK_SIZE, SHARDS_MAX};
use warren_base::{BlockNo, ShardId};

const MAGIC: u32 = u32::from_le_bytes(*b"WReg");
const COVERED_FROM: usize = 8;
/// The unit that a device writes atomically.
const SECTOR: usize = 512;
const FREE: u16 = 0xFFFF;
const RESERVED: u16 = 0xFFFE;

const _: () = {
    assert!(SHARDS_MAX < RESERVED);
    assert!(REGION_HEADER == 4 + 4 + 8 + 4 + 12);
    assert!(REGION_HEADER + 2 * OWNERS_PER_PAGE as usize == BLOCK_SIZE);
};

/// The owner of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    Free,
    /// Overlaps superblocks, root slots or logs, or holds a page of the region map.
    Reserved,
    Shard(ShardId),
}

/// Why a region map cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RegionError {
    #[error("page {0} of the region map cannot be read in either copy")]
    Lost(u64),
    #[error("chunk {0} has an owner that it cannot have")]
    BadOwner(u64),
    #[error("the page at block {0} of the region map is damaged and may have been the newer copy")]
    InDoubt(BlockNo),
}

/// The state of one copy of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PageState {
    NeverWritten,
    Committed(u64),
    Uncommitted,
    /// Damaged, with the generation that its head still has, unverified.
    Bad(Option<u64>),
}

/// A copy of a page that could not be read although the other could.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPage {
    pub block: BlockNo,
    /// It may have been the newer of the two.
    pub in_doubt: bool,
}

/// The owners of all chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionMap {
    layout: Layout,
    owners: Vec<u16>,
    /// The valid copy of each page.
    copies: Vec<u8>,
    /// Pages that differ from their valid copy.
    dirty: BTreeSet<u64>,
    free: u64,
    bad_pages: Vec<BadPage>,
}

impl RegionMap {
    /// The map of a new pool: all pages dirty, to be written to copy 0.
    pub fn new(layout: Layout) -> Self {
        let owner = |chunk| if layout.is_reserved(chunk) { RESERVED } else { FREE };
        Self {
            layout,
            owners: (0..layout.chunks()).map(owner).collect(),
            copies: vec![1; layout.region_pages() as usize],
            dirty: (0..layout.region_pages()).collect(),
            free: layout.bounds().count(),
            bad_pages: Vec::new(),
        }
    }

    /// The map as of the superblock's checkpoint. `copies` are the bytes of the two copies, each
    /// `region_pages` blocks.
    pub fn load(superblock: &Superblock, copies: [&[u8]; 2]) -> Result<Self, RegionError> {
        let layout = superblock.layout;
        let mut map = Self::new(layout);
        map.dirty.clear();
        for page in 0..layout.region_pages() {
            let at = page as usize * BLOCK_SIZE;
            let pages = copies.map(|copy| copy.get(at..at + BLOCK_SIZE).unwrap_or(&[]));
            map.load_page(page, pages, superblock.generation)?;
        }
        map.free = map.owners.iter().filter(|owner| **owner == FREE).count() as u64;
        Ok(map)
    }

    /// The map as far as it can be read. Chunks of unreadable pages, and chunks with an invalid
    /// owner, are free; the pages are returned.
    pub fn salvage(superblock: &Superblock, copies: [&[u8]; 2]) -> (Self, Vec<u64>) {
        let layout = superblock.layout;
        let mut map = Self::new(layout);
        map.dirty.clear();
        let mut lost = Vec::new();
        for page in 0..layout.region_pages() {
            let at = page as usize * BLOCK_SIZE;
            let pages = copies.map(|copy| copy.get(at..at + BLOCK_SIZE).unwrap_or(&[]));
            if map.load_page(page, pages, superblock.generation).is_err() {
                lost.push(page);
                for chunk in map.chunks_of(page) {
                    let is_reserved = layout.is_reserved(chunk);
                    map.owners[chunk as usize] = if is_reserved { RESERVED } else { FREE };
                }
            }
        }
        map.free = map.owners.iter().filter(|owner| **owner == FREE).count() as u64;
        (map, lost)
    }

    /// Marks the page of this chunk as changed.
    pub fn soil_page_of(&mut self, chunk: u64) {
        self.dirty.insert(chunk / OWNERS_PER_PAGE);
    }

    /// Marks every page as changed.
    pub fn soil(&mut self) {
        self.dirty = (0..self.layout.region_pages()).collect();
    }

    /// Adds the chunks that the pool has in `layout` beyond its present ones. All pages that have
    /// new chunks are dirty. Both copies of the new pages must be written, because nothing is known
    /// of their places: [`Self::write_out`] returns the one that counts, and
    /// [`Self::blank_pages`] the others.
    pub fn grow(&mut self, layout: Layout) {
        assert!(layout.is_of_same_pool(&self.layout) && layout.chunks() > self.layout.chunks());
        let last = self.layout.region_pages() - 1;
        for chunk in self.layout.chunks()..layout.chunks() {
            let is_reserved = layout.is_reserved(chunk);
            self.owners.push(if is_reserved { RESERVED } else { FREE });
            self.free += u64::from(!is_reserved);
        }
        self.copies.resize(layout.region_pages() as usize, 1);
        self.dirty.extend(last..layout.region_pages());
        self.layout = layout;
    }

    /// The second copies of the pages from `first` on, which were never written: zeros.
    pub fn blank_pages(&self, first: u64) -> Vec<BlockWrite> {
        let pages = first..self.layout.region_pages();
        pages.map(|page| (self.layout.region_page(1, page), vec![0; BLOCK_SIZE].into())).collect()
    }

    fn load_page(
        &mut self,
        page: u64,
        copies: [&[u8]; 2],
        generation: u64,
    ) -> Result<(), RegionError> {
        let states = copies.map(|bytes| page_state(bytes, page, generation));
        let (copy, counts) = match states {
            [PageState::Committed(a), PageState::Committed(b)] if b > a => (1, b),
            [PageState::Committed(a), _] => (0, a),
            [_, PageState::Committed(b)] => (1, b),
            _ => return Err(RegionError::Lost(page)),
        };
        if let PageState::Bad(claimed) = states[1 - copy] {
            let block = self.layout.region_page(1 - copy, page);
            // No page is newer than the last checkpoint.
            let newer = counts + 1..=generation;
            let in_doubt = claimed.map_or(!newer.is_empty(), |claimed| newer.contains(&claimed));
            self.bad_pages.push(BadPage { block, in_doubt });
        }
        self.copies[page as usize] = copy as u8;
        let mut take = Take::new(&copies[copy][REGION_HEADER..]);
        for chunk in self.chunks_of(page) {
            let owner = take.u16().ok_or(RegionError::Lost(page))?;
            if !self.may_own(chunk, owner) {
                return Err(RegionError::BadOwner(chunk));
            }
            self.owners[chunk as usize] = owner;
        }
        Ok(())
    }

    fn chunks_of(&self, page: u64) -> std::ops::Range<u64> {
        let first = page * OWNERS_PER_PAGE;
        first..(first + OWNERS_PER_PAGE).min(self.layout.chunks())
    }

    fn may_own(&self, chunk: u64, owner: u16) -> bool {
        (owner == RESERVED) == self.layout.is_reserved(chunk)
            && (owner >= RESERVED || owner < self.layout.shards())
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The owner of a chunk; a chunk beyond the device has none.
    pub fn owner(&self, chunk: u64) -> Option<Owner> {
        self.owners.get(usize::try_from(chunk).ok()?).map(|owner| match *owner {
            FREE => Owner::Free,
            RESERVED => Owner::Reserved,
            shard => Owner::Shard(ShardId(shard)),
        })
    }

    pub fn free_chunks(&self) -> u64 {
        self.free
    }

    /// All chunks with their owners, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Owner)> + '_ {
        (0..self.layout.chunks()).filter_map(|chunk| Some((chunk, self.owner(chunk)?)))
    }

    /// Gives a free chunk to a shard.
    pub fn claim(&mut self, chunk: u64, shard: ShardId) {
        assert!(shard.0 < self.layout.shards());
        assert_eq!(self.owner(chunk), Some(Owner::Free), "chunk {chunk} is taken");
        self.set(chunk, shard.0);
        self.free -= 1;
    }

    /// Takes a chunk from its shard.
    pub fn release(&mut self, chunk: u64) {
        assert!(matches!(self.owner(chunk), Some(Owner::Shard(_))), "chunk {chunk} has no owner");
        self.set(chunk, FREE);
        self.free += 1;
    }

    fn set(&mut self, chunk: u64, owner: u16) {
        self.owners[chunk as usize] = owner;
        self.dirty.insert(chunk / OWNERS_PER_PAGE);
    }

    /// Copies of pages that could not be read when the map was loaded. The caller must check for
    /// pages in doubt before it writes.
    pub fn bad_pages(&self) -> &[BadPage] {
        &self.bad_pages
    }

    /// Encodes the dirty pages for checkpoint `generation`, in order, and marks them clean. They
    /// must be durable before the superblock of that generation is written.
    pub fn write_out(&mut self, generation: u64) -> Vec<BlockWrite> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut writes = Vec::with_capacity(dirty.len());
        for page in dirty {
            let copy = 1 - self.copies[page as usize];
            self.copies[page as usize] = copy;
            let block = self.layout.region_page(usize::from(copy), page);
            writes.push((block, self.encode_page(page, generation)));
        }
        writes
    }

    fn encode_page(&self, page: u64, generation: u64) -> Box<[u8]> {
        let mut out = Vec::with_capacity(BLOCK_SIZE);
        out.u32(MAGIC);
        out.u32(0);
        out.u64(generation);
        out.u32(u32::try_from(page).expect("fewer than 2^32 pages"));
        out.resize(REGION_HEADER, 0);
        for chunk in self.chunks_of(page) {
            out.u16(self.owners[chunk as usize]);
        }
        out.resize(BLOCK_SIZE, 0);
        let crc = crc_behind(&out, COVERED_FROM);
        out[4..COVERED_FROM].copy_from_slice(&crc.to_le_bytes());
        out.into()
    }
}

fn page_state(bytes: &[u8], page: u64, superblock_generation: u64) -> PageState {
    if bytes.len() != BLOCK_SIZE {
        return PageState::Bad(None);
    } else if bytes.iter().all(|byte| *byte == 0) {
        return PageState::NeverWritten;
    } else if bytes[..SECTOR].iter().all(|byte| *byte == 0) {
        // The first write of the page was torn, and its head was not written.
        return PageState::Bad(Some(0));
    }
    let mut take = Take::new(bytes);
    let header = (take.u32(), take.u32(), take.u64(), take.u32());
    let (Some(MAGIC), Some(crc), Some(generation), Some(number)) = header else {
        return PageState::Bad(None);
    };
    if u64::from(number) != page {
        PageState::Bad(None)
    } else if crc != crc_behind(bytes, COVERED_FROM) {
        PageState::Bad(Some(generation))
    } else if generation > superblock_generation {
        PageState::Uncommitted
    } else {
        PageState::Committed(generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::superblock;

    /// The two copies on a device.
    struct Copies([Vec<u8>; 2]);

    impl Copies {
        fn new(layout: &Layout) -> Self {
            let len = layout.region_pages() as usize * BLOCK_SIZE;
            Self([vec![0; len], vec![0; len]])
        }

        fn write(&mut self, layout: &Layout, writes: Vec<BlockWrite>) {
            for (block, bytes) in writes {
                let page = layout.page_at(block).unwrap();
                let copy = usize::from(layout.region_page(1, page) == block);
                let at = page as usize * BLOCK_SIZE;
                self.0[copy][at..at + BLOCK_SIZE].copy_from_slice(&bytes);
            }
        }

        fn load(&self, generation: u64) -> Result<RegionMap, RegionError> {
            RegionMap::load(&superblock(generation), [&self.0[0], &self.0[1]])
        }
    }

    #[test]
    fn each_checkpoint_keeps_the_one_before() {
        let layout = superblock(1).layout;
        let (mut map, mut copies) = (RegionMap::new(layout), Copies::new(&layout));
        assert_eq!(map.dirty.len(), 9);
        copies.write(&layout, map.write_out(1));
        assert_eq!(copies.load(1), Ok(map.clone()));
        let before = map.clone();
        map.claim(5000, ShardId(7));
        map.claim(5001, ShardId(8));
        map.release(5000);
        assert_eq!((map.dirty.len(), map.free_chunks()), (1, before.free_chunks() - 1));
        copies.write(&layout, map.write_out(2));
        assert_eq!(copies.load(1), Ok(before), "checkpoint 2 was not committed");
        let loaded = copies.load(2).unwrap();
        assert_eq!(loaded, map);
        assert_eq!(loaded.owner(5001), Some(Owner::Shard(ShardId(8))));
        assert_eq!(loaded.owner(0), Some(Owner::Reserved));
        assert_eq!(loaded.owner(layout.chunks()), None);
    }

    #[test]
    fn a_map_that_grows_is_the_old_one_until_it_is_committed() {
        let layout = superblock(1).layout;
        // The last page has room for more chunks, and two more pages follow.
        let grown = layout.grown((layout.region_pages() + 2) * OWNERS_PER_PAGE * 64 - 640).unwrap();
        let (mut map, mut copies) = (RegionMap::new(layout), Copies::new(&grown));
        // Nothing is known of the places of the new pages: these were another pool's.
        let mut stale = RegionMap::new(grown).write_out(3);
        stale.retain(|(block, _)| grown.page_at(*block) >= Some(layout.region_pages()));
        copies.write(&grown, stale);
        copies.0[1] = copies.0[0].clone();
        copies.write(&layout, map.write_out(1));
        map.claim(16_000, ShardId(3));
        copies.write(&layout, map.write_out(2));
        let before = map.clone();
        map.grow(grown);
        let pages = layout.region_pages();
        assert_eq!(map.free_chunks() - before.free_chunks(), 3 * 2032 - 128 - 10 - 2);
        copies.write(&grown, map.blank_pages(pages));
        copies.write(&grown, map.write_out(3));
        let load = |generation, layout| {
            let superblock = Superblock { layout, ..superblock(generation) };
            RegionMap::load(&superblock, [&copies.0[0], &copies.0[1]])
        };
        assert_eq!(load(2, layout), Ok(before));
        assert_eq!(load(3, grown), Ok(map.clone()));
        assert_eq!(map.owner(pages * OWNERS_PER_PAGE), Some(Owner::Reserved));
        assert_eq!(map.owner(16_000), Some(Owner::Shard(ShardId(3))));
        map.claim(grown.chunks() - 1, ShardId(1));
        copies.write(&grown, map.write_out(4));
        let superblock = Superblock { layout: grown, ..superblock(4) };
        assert_eq!(RegionMap::load(&superblock, [&copies.0[0], &copies.0[1]]), Ok(map));
    }

    #[test]
    fn bad_pages_and_bad_owners_are_found() {
        let layout = superblock(1).layout;
        let (mut map, mut copies) = (RegionMap::new(layout), Copies::new(&layout));
        copies.write(&layout, map.write_out(1));
        map.claim(5000, ShardId(7));
        copies.write(&layout, map.write_out(2));
        copies.0[0][2 * BLOCK_SIZE + 100] ^= 1;
        let bad = |copy, in_doubt| [BadPage { block: layout.region_page(copy, 2), in_doubt }];
        assert_eq!(copies.load(2).unwrap().bad_pages(), bad(0, false), "the older copy is");
        copies.0[1][2 * BLOCK_SIZE + 100] ^= 1;
        assert_eq!(copies.load(2), Err(RegionError::Lost(2)));
        map.owners[5000] = 256;
        map.dirty.insert(2);
        copies.write(&layout, map.write_out(2));
        assert_eq!(copies.load(2), Err(RegionError::BadOwner(5000)));
    }

    /// Page 2 of the map at checkpoints 1 and 3, with its newer copy changed at `at`, loaded at
    /// checkpoint `now`.
    fn bad_pages(now: u64, spoil: impl FnOnce(&mut [u8])) -> Vec<BadPage> {
        let layout = superblock(1).layout;
        let (mut map, mut copies) = (RegionMap::new(layout), Copies::new(&layout));
        copies.write(&layout, map.write_out(1));
        map.claim(5000, ShardId(7));
        copies.write(&layout, map.write_out(3));
        spoil(&mut copies.0[1][2 * BLOCK_SIZE..3 * BLOCK_SIZE]);
        let map = copies.load(now).unwrap();
        let seen = if map.bad_pages().is_empty() { Owner::Shard(ShardId(7)) } else { Owner::Free };
        assert_eq!(map.owner(5000), Some(seen));
        map.bad_pages().to_vec()
    }

    #[test]
    fn a_bad_copy_that_may_be_the_newer_one_is_in_doubt() {
        let block = superblock(1).layout.region_page(1, 2);
        assert_eq!(bad_pages(3, |_| {}), []);
        let in_doubt = [BadPage { block, in_doubt: true }];
        assert_eq!(bad_pages(3, |page| page[100] ^= 1), in_doubt, "rot");
        assert_eq!(bad_pages(9, |page| page[4] ^= 1), in_doubt, "a rotten checksum");
        assert_eq!(bad_pages(3, |page| page[0] ^= 1), in_doubt, "a rotten head");
        assert_eq!(bad_pages(3, |page| page.fill(0xee)), in_doubt, "unreadable");
        assert_eq!(bad_pages(3, |page| page[16] ^= 1), in_doubt, "another page");
    }

    #[test]
    fn a_torn_copy_is_not_in_doubt() {
        let block = superblock(1).layout.region_page(1, 2);
        let torn = [BadPage { block, in_doubt: false }];
        assert_eq!(bad_pages(2, |page| page[4000] ^= 1), torn, "checkpoint 3 was not committed");
        assert_eq!(bad_pages(2, |page| page[..SECTOR].fill(0)), torn, "nor had its head come");
        let old_head = |page: &mut [u8]| page[8..16].copy_from_slice(&0_u64.to_le_bytes());
        assert_eq!(bad_pages(3, old_head), torn, "the head is that of an older one");
    }

    #[test]
    fn beside_a_page_of_the_last_checkpoint_nothing_is_in_doubt() {
        let layout = superblock(1).layout;
        let (mut map, mut copies) = (RegionMap::new(layout), Copies::new(&layout));
        copies.write(&layout, map.write_out(1));
        map.claim(5000, ShardId(7));
        copies.write(&layout, map.write_out(3));
        copies.0[0][2 * BLOCK_SIZE..3 * BLOCK_SIZE].fill(0xee);
        let in_doubt = |now| copies.load(now).unwrap().bad_pages()[0].in_doubt;
        assert!(!in_doubt(3));
        assert!(in_doubt(4), "checkpoint 4 may have written it");
    }

    #[test]
    fn nothing_at_all_is_no_page() {
        let superblock = superblock(1);
        assert_eq!(RegionMap::load(&superblock, [&[], &[]]), Err(RegionError::Lost(0)));
    }

    #[test]
    #[should_panic(expected = "is taken")]
    fn a_chunk_has_one_owner() {
        let mut map = RegionMap::new(superblock(1).layout);
        map.claim(5000, ShardId(7));
        map.claim(5000, ShardId(8));
    }
}
