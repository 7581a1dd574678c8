//! The bytes of a regular file, block by block. Blocks that were never written are holes.

use std::collections::BTreeMap;
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
}

impl Content {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Blocks that hold data.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub fn fingerprint(&self) -> u64 {
        let mut mix = Mix::default();
        mix.write_u64(self.size);
        for (index, block) in &self.blocks {
            mix.write_u64(*index);
            mix.write_u64(block.hash);
        }
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
        if size < self.size {
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
    fn a_copy_does_not_change_with_the_original() {
        let mut content = Content::default();
        content.write(0, b"one");
        let copy = content.clone();
        content.write(0, b"two");
        assert!(copy.reads_as(0, 3, b"one") && content.reads_as(0, 3, b"two"));
        assert_ne!(copy.fingerprint(), content.fingerprint());
    }
}
