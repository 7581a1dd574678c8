//! The bytes of a regular file, block by block. Blocks that were never written are holes, or
//! allocated (`fallocate`).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::rc::Rc;

use warren_base::limits::BLOCK_SIZE;
use warren_proto::RangeCopy;

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
    /// Blocks that another place of a file may share.
    shared: BTreeSet<u64>,
}

impl Content {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Blocks that are allocated.
    pub fn blocks(&self) -> u64 {
        (self.blocks.len() + self.unwritten.len()) as u64
    }

    /// Whether each block of these bytes is allocated and not shared, and how many there are.
    pub fn allocated(&self, offset: u64, len: u64) -> Option<u64> {
        let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
        let is_own = |at: u64| self.blocks.contains_key(&at) && !self.shared.contains(&at);
        let has = |at: u64| is_own(at) || self.unwritten.contains(&at);
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
                self.shared.remove(&at);
                self.blocks.remove(&at);
            } else {
                let part = (from - at * BLOCK) as usize..(to - at * BLOCK) as usize;
                self.change(at, |block| block[part].fill(0));
            }
        }
    }

    /// Whether a change that ends or begins with this byte changes a shared block.
    pub fn cuts_shared(&self, byte: u64) -> bool {
        !byte.is_multiple_of(BLOCK) && self.shared.contains(&(byte / BLOCK))
    }

    /// Copies whole blocks. The last one may be cut by the end of the source, and then the target
    /// ends there. Both share what they have in common.
    pub fn copy(&mut self, source: &mut Self, copy: &RangeCopy) {
        let (from, to, count) = copy.blocks();
        self.punch(to * BLOCK, (to + count) * BLOCK);
        for at in 0..count {
            if let Some(block) = source.blocks.get(&(from + at)) {
                self.blocks.insert(to + at, block.clone());
                self.shared.insert(to + at);
                source.shared.insert(from + at);
            }
        }
        self.size = self.size.max(copy.to + copy.length);
    }

    /// The blocks that another state of the file shares are shared here too.
    pub fn share_all(&mut self, other: &Self) {
        let kept = other.shared.iter().filter(|at| self.blocks.contains_key(at));
        self.shared.extend(kept.copied().collect::<Vec<_>>());
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
        mix.write_usize(self.shared.len());
        self.shared.iter().for_each(|index| mix.write_u64(*index));
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
            self.shared.split_off(&size.div_ceil(BLOCK));
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
        self.shared.remove(&index);
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
    fn what_is_shared_is_not_promised_and_is_copied_when_it_changes() {
        let (mut source, mut target) = (Content::default(), Content::default());
        source.write(0, &[7; 2 * BLOCK_SIZE + 10]);
        source.punch(BLOCK, 2 * BLOCK);
        target.write(0, &[1; BLOCK_SIZE]);
        let copy = RangeCopy { from: 0, to: BLOCK, length: 2 * BLOCK + 10 };
        target.copy(&mut source, &copy);
        assert_eq!((target.size(), target.blocks()), (3 * BLOCK + 10, 3));
        assert!(target.reads_as(3 * BLOCK, 10, &[7; 10]) && target.reads_as(BLOCK, 1, &[7]));
        assert!(target.cuts_shared(BLOCK + 1) && !target.cuts_shared(BLOCK));
        assert_eq!((source.allocated(0, 1), target.allocated(0, 1)), (None, Some(1)));
        target.write(BLOCK, &[2]);
        assert!(source.reads_as(0, 1, &[7]) && target.reads_as(BLOCK, 2, &[2, 7]));
        assert_eq!(target.allocated(BLOCK, 1), Some(1));
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
