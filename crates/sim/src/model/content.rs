//! The bytes of a regular file, block by block. Blocks that were never written are holes, or
//! allocated (`fallocate`).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::rc::Rc;

use warren_base::limits::BLOCK_SIZE;

use crate::fixed::Mix;

const BLOCK: u64 = BLOCK_SIZE as u64;

#[derive(Clone, Debug)]
struct Block {
    bytes: Rc<[u8; BLOCK_SIZE]>,
    hash: u64,
}

/// A file's size and blocks.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    blocks: BTreeMap<u64, Block>,
    /// Blocks that are allocated and were never written.
    unwritten: BTreeSet<u64>,
}

impl Content {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Blocks that are allocated.
    pub fn blocks(&self) -> u64 {
        (self.blocks.len() + self.unwritten.len()) as u64
    }

    /// Whether each block of these bytes is allocated, and how many there are.
    pub fn allocated(&self, offset: u64, len: u64) -> Option<u64> {
        let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
        let has = |at: u64| self.blocks.contains_key(&at) || self.unwritten.contains(&at);
        blocks.clone().all(has).then(|| blocks.end - blocks.start)
    }

    /// The first place from `offset` on that has data, or is in a hole or the end.
    pub fn find(&self, offset: u64, hole: bool) -> Option<u64> {
        let is_right = |at: &u64| self.blocks.contains_key(at) != hole;
        let found = (offset / BLOCK..self.size.div_ceil(BLOCK)).find(is_right);
        let place = found.map(|at| offset.max(at * BLOCK));
        if hole { Some(place.unwrap_or(self.size)) } else { place }
    }

    pub fn allocate(&mut self, offset: u64, end: u64) {
        for at in offset / BLOCK..end.div_ceil(BLOCK) {
            if !self.blocks.contains_key(&at) {
                self.unwritten.insert(at);
            }
        }
    }

    /// The bytes become zero. Whole blocks are holes then.
    pub fn punch(&mut self, offset: u64, end: u64) {
        self.unwritten.retain(|at| *at * BLOCK < offset || (*at + 1) * BLOCK > end);
        let blocks: Vec<u64> = self.blocks.keys().copied().collect();
        for at in blocks.into_iter().filter(|at| at * BLOCK < end && (at + 1) * BLOCK > offset) {
            let (from, to) = (offset.max(at * BLOCK), end.min((at + 1) * BLOCK));
            if to - from == BLOCK {
                self.blocks.remove(&at);
            } else {
                let part = (from - at * BLOCK) as usize..(to - at * BLOCK) as usize;
                self.change(at, |block| block[part].fill(0));
            }
        }
    }

    pub fn extend(&mut self, end: u64) {
        self.size = self.size.max(end);
    }

    pub fn fingerprint(&self) -> u64 {
        let mut mix = Mix::default();
        mix.write_u64(self.size);
        for (index, block) in &self.blocks {
            mix.write_u64(*index);
            mix.write_u64(block.hash);
        }
        self.unwritten.iter().for_each(|index| mix.write_u64(!*index));
        mix.finish()
    }

    /// `offset + bytes.len()` must not overflow.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let start = (at % BLOCK) as usize;
            let len = rest.len().min(BLOCK_SIZE - start);
            let (now, later) = rest.split_at(len);
            self.change(at / BLOCK, |block| block[start..start + len].copy_from_slice(now));
            at += len as u64;
            rest = later;
        }
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    /// Whether reading up to `len` bytes at `offset` returns exactly `got`.
    pub fn reads_as(&self, offset: u64, len: u64, got: &[u8]) -> bool {
        let len = len.min(self.size.saturating_sub(offset));
        if got.len() as u64 != len {
            return false;
        }
        let mut at = offset;
        let mut rest = got;
        while !rest.is_empty() {
            let start = (at % BLOCK) as usize;
            let len = rest.len().min(BLOCK_SIZE - start);
            let (now, later) = rest.split_at(len);
            let same = match self.blocks.get(&(at / BLOCK)) {
                Some(block) => block.bytes[start..start + len] == *now,
                None => now.iter().all(|&b| b == 0),
            };
            if !same {
                return false;
            }
            at += len as u64;
            rest = later;
        }
        true
    }

    pub fn truncate(&mut self, size: u64) {
        if size <= self.size {
            self.unwritten.split_off(&size.div_ceil(BLOCK));
            self.blocks.split_off(&size.div_ceil(BLOCK));
            let tail = (size % BLOCK) as usize;
            if tail > 0 && self.blocks.contains_key(&(size / BLOCK)) {
                self.change(size / BLOCK, |block| block[tail..].fill(0));
            }
        }
        self.size = size;
    }

    fn change(&mut self, index: u64, with: impl FnOnce(&mut [u8; BLOCK_SIZE])) {
        let zeros = || Block { bytes: Rc::new([0; BLOCK_SIZE]), hash: 0 };
        self.unwritten.remove(&index);
        let block = self.blocks.entry(index).or_insert_with(zeros);
        let bytes = Rc::make_mut(&mut block.bytes);
        with(bytes);
        let mut mix = Mix::default();
        mix.write(bytes.as_slice());
        block.hash = mix.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_what_truncate_cut_off_read_as_zeros() {
        let mut content = Content::default();
        content.write(BLOCK - 2, b"abcd");
        assert_eq!((content.size(), content.blocks()), (BLOCK + 2, 2));
        assert!(content.reads_as(BLOCK - 3, 9, b"\0abcd"));
        content.truncate(BLOCK - 1);
        content.truncate(3 * BLOCK);
        assert_eq!(content.blocks(), 1);
        assert!(content.reads_as(BLOCK - 2, 3, b"a\0\0"));
        assert!(!content.reads_as(BLOCK - 2, 3, b"ab\0"));
        assert!(!content.reads_as(BLOCK - 2, 3, b"a\0"), "a short read is wrong");
    }

    #[test]
    fn what_is_allocated_is_no_data_until_it_is_written() {
        let mut content = Content::default();
        content.allocate(10, 2 * BLOCK);
        assert_eq!((content.size(), content.blocks()), (0, 2));
        content.extend(4 * BLOCK);
        assert_eq!((content.find(0, false), content.find(9, true)), (None, Some(9)));
        content.write(BLOCK, b"data");
        assert_eq!((content.blocks(), content.allocated(5, BLOCK)), (2, Some(2)));
        assert_eq!(
            (content.find(0, false), content.find(BLOCK, true)),
            (Some(BLOCK), Some(2 * BLOCK))
        );
        content.punch(BLOCK, BLOCK + 2);
        assert!(content.reads_as(BLOCK, 4, b"\0\0ta"));
        content.punch(0, 3 * BLOCK);
        assert_eq!((content.blocks(), content.allocated(0, 1)), (0, None));
    }

    #[test]
    fn a_copy_does_not_change_with_the_original() {
        let mut content = Content::default();
        content.write(0, b"one");
        let copy = content.clone();
        content.write(0, b"two");
        assert!(copy.reads_as(0, 3, b"one") && content.reads_as(0, 3, b"two"));
        assert_ne!(copy.fingerprint(), content.fingerprint());
    }
}
