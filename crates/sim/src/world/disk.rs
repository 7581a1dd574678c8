//! The simulated pool device: blocks, those of them that are only in its cache, and the image that a
//! fleet leaves behind.
//!
//! Latency, order and errors belong to whoever submits (`device.rs`): a write takes effect when it is
//! done, a read sees what is there when it is done, and what is under way together is unordered.

use hashbrown::HashMap;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Rng};

use crate::fixed::Fixed;

/// Bytes that no one ever wrote. Nothing may depend on them being zero.
const UNWRITTEN: u8 = 0xa5;

type Block = Box<[u8; BLOCK_SIZE]>;

/// What a write that is not durable replaced.
struct Undo {
    position: u64,
    block: BlockNo,
    old: Option<Block>,
}

pub struct Disk {
    blocks: HashMap<BlockNo, Block, Fixed>,
    /// Writes so far.
    position: u64,
    /// In the order of their writes.
    cached: Vec<Undo>,
}

impl Disk {
    /// What is in the image is durable.
    pub fn new(image: Vec<(BlockNo, Box<[u8]>)>) -> Self {
        let blocks = HashMap::with_hasher(Fixed);
        let mut disk = Self { blocks, position: 0, cached: Vec::new() };
        for (block, bytes) in image {
            disk.write(block, &bytes);
        }
        disk.flush(disk.position);
        disk
    }

    pub fn read(&self, block: BlockNo, into: &mut [u8]) {
        match self.blocks.get(&block) {
            Some(bytes) => into.copy_from_slice(bytes.as_slice()),
            None => into.fill(UNWRITTEN),
        }
    }

    /// Whole blocks, from `block` on.
    pub fn write(&mut self, block: BlockNo, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(BLOCK_SIZE));
        for (at, bytes) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            let block = block.offset(at as u64);
            let bytes = bytes.try_into().expect("a block");
            let old = self.blocks.insert(block, Box::new(bytes));
            self.cached.push(Undo { position: self.position, block, old });
            self.position += 1;
        }
    }

    /// So many blocks, from `block` on, are durable as they are now, whatever becomes of others.
    pub fn harden(&mut self, block: BlockNo, count: u64) {
        let hardened = block..block.offset(count);
        self.cached.retain(|undo| !hardened.contains(&undo.block));
    }

    /// Writes done from now on are later than this place.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What was written before `position` is durable.
    pub fn flush(&mut self, position: u64) {
        self.cached.retain(|undo| undo.position >= position);
    }

    /// A flush failed: of what was written before `position` and is not durable, any part is gone, and
    /// what remains counts as durable. As Linux has it: nobody will write it again.
    pub fn lose(&mut self, position: u64, rng: &mut Rng) {
        let everything = rng.chance(1, 2);
        let (lost, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.cached).into_iter().partition(|undo| undo.position < position);
        let later: Vec<BlockNo> = kept.iter().map(|undo| undo.block).collect();
        self.cached = kept;
        for undo in lost.into_iter().rev() {
            let gone = everything || rng.chance(1, 2);
            // What was written over it since is in the cache, and newer.
            if gone && !later.contains(&undo.block) {
                match undo.old {
                    Some(old) => drop(self.blocks.insert(undo.block, old)),
                    None => drop(self.blocks.remove(&undo.block)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_byte(disk: &Disk, block: u64) -> u8 {
        let mut bytes = [0; BLOCK_SIZE];
        disk.read(BlockNo(block), &mut bytes);
        bytes[0]
    }

    #[test]
    fn a_failed_flush_takes_what_was_not_durable_and_nothing_else() {
        let (mut kept, mut gone) = (0, 0);
        for seed in 0..50 {
            let mut disk = Disk::new(vec![(BlockNo(1), vec![1; BLOCK_SIZE].into())]);
            disk.write(BlockNo(1), &[2; BLOCK_SIZE]);
            disk.write(BlockNo(2), &[2; BLOCK_SIZE]);
            let position = disk.position();
            disk.write(BlockNo(3), &[3; BLOCK_SIZE]);
            disk.lose(position, &mut Rng::new(seed));
            assert_eq!(first_byte(&disk, 3), 3, "written after the flush was asked for");
            match (first_byte(&disk, 1), first_byte(&disk, 2)) {
                (1, UNWRITTEN) => gone += 1,
                (1 | 2, UNWRITTEN | 2) => kept += 1,
                other => panic!("never written: {other:?}"),
            }
            disk.flush(disk.position());
            let before = first_byte(&disk, 3);
            disk.lose(disk.position(), &mut Rng::new(seed));
            assert_eq!(first_byte(&disk, 3), before, "durable");
        }
        assert!(kept > 0 && gone > 0);
    }
}
