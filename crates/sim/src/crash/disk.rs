//! A device with a volatile cache.
//!
//! A write that is done is in the cache. It is *durable* once a flush is over that was asked for after
//! the write was done. Until then a power cut leaves of it what it likes: all, nothing, or any of its
//! sectors, whatever became of writes before and after it.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Rng};

use crate::fixed::Fixed;

/// What a device writes atomically.
const SECTOR: usize = 512;
/// Bytes that no one ever wrote. Nothing may depend on them being zero.
const UNWRITTEN: Block = [0xa5; BLOCK_SIZE];

type Block = [u8; BLOCK_SIZE];

/// What a power cut did.
#[derive(Default)]
pub struct Cut {
    pub lost: u64,
    pub torn: u64,
}

pub struct Disk {
    durable: HashMap<BlockNo, Box<Block>, Fixed>,
    /// Writes since, in order: when each was done, and what it wrote.
    cached: BTreeMap<BlockNo, Vec<(u64, Box<Block>)>>,
    writes: u64,
    /// Flushes that failed. Whoever flushes next hears of it, each once (as of a file: `errseq_t`).
    pub errors: u64,
}

impl Disk {
    pub fn new(image: Vec<(BlockNo, Box<[u8]>)>) -> Self {
        let mut disk = Self {
            durable: HashMap::with_hasher(Fixed),
            cached: BTreeMap::new(),
            writes: 0,
            errors: 0,
        };
        for (block, bytes) in image {
            disk.write(block, &bytes);
        }
        disk.flush(disk.mark());
        disk
    }

    pub fn read(&self, block: BlockNo, into: &mut [u8]) {
        into.copy_from_slice(self.block(block));
    }

    fn block(&self, block: BlockNo) -> &Block {
        let cached = self.cached.get(&block).and_then(|writes| writes.last());
        cached.map(|(_, bytes)| &**bytes).unwrap_or_else(|| self.durable_block(block))
    }

    fn durable_block(&self, block: BlockNo) -> &Block {
        self.durable.get(&block).map_or(&UNWRITTEN, |bytes| bytes)
    }

    /// A write of whole blocks, from `block` on, is done.
    pub fn write(&mut self, block: BlockNo, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(BLOCK_SIZE));
        self.writes += 1;
        for (at, bytes) in (0..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let bytes = Box::new(bytes.try_into().expect("a block"));
            self.cached.entry(block.offset(at)).or_default().push((self.writes, bytes));
        }
    }

    /// So many blocks, from `block` on, are durable as they are now, whatever becomes of others.
    pub fn harden(&mut self, block: BlockNo, count: u64) {
        for block in (0..count).map(|at| block.offset(at)) {
            let written = self.cached.remove(&block).and_then(|mut writes| writes.pop());
            self.durable.extend(written.map(|(_, bytes)| (block, bytes)));
        }
    }

    /// A flush that is asked for now is for the writes up to here.
    pub fn mark(&self) -> u64 {
        self.writes
    }

    pub fn flush(&mut self, mark: u64) {
        for (block, writes) in &mut self.cached {
            let done = writes.partition_point(|(at, _)| *at <= mark);
            if let Some((_, bytes)) = writes.drain(..done).next_back() {
                self.durable.insert(*block, bytes);
            }
        }
        self.cached.retain(|_, writes| !writes.is_empty());
    }

    /// A flush fails: of what was cached some is durable, and the rest is gone.
    pub fn fail(&mut self, rng: &mut Rng) {
        self.errors += 1;
        let kept = *rng.pick(&[0, 50, 95]);
        for (block, mut writes) in std::mem::take(&mut self.cached) {
            if rng.chance(kept, 100) {
                let (_, bytes) = writes.swap_remove(rng.below(writes.len() as u64) as usize);
                self.durable.insert(block, bytes);
            }
        }
    }

    /// The power is cut while writes are under way.
    pub fn cut(&mut self, under_way: Vec<(BlockNo, Vec<u8>)>, rng: &mut Rng) -> Cut {
        for (block, bytes) in under_way {
            self.write(block, &bytes);
        }
        self.errors = 0;
        let (lost, torn) = (*rng.pick(&[0, 10, 50, 90, 100]), *rng.pick(&[0, 10, 60]));
        let mut cut = Cut::default();
        for (block, writes) in std::mem::take(&mut self.cached) {
            let old = *self.durable_block(block);
            let any = |rng: &mut Rng| match rng.chance(lost, 100) {
                true => old,
                // The last is the likeliest, but the order says nothing.
                false if rng.chance(2, 3) => *writes[writes.len() - 1].1,
                false => *rng.pick(&writes).1,
            };
            let mut new = any(rng);
            if rng.chance(torn, 100) {
                for at in (0..BLOCK_SIZE).step_by(SECTOR) {
                    new[at..at + SECTOR].copy_from_slice(&any(rng)[at..at + SECTOR]);
                }
            }
            let is_whole = new == old || writes.iter().any(|(_, bytes)| **bytes == new);
            cut.torn += u64::from(!is_whole);
            cut.lost += u64::from(new == old);
            self.durable.insert(block, Box::new(new));
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BlockNo = BlockNo(7);

    fn byte(disk: &Disk) -> u8 {
        disk.block(A)[0]
    }

    #[test]
    fn only_what_was_written_before_the_flush_is_durable() {
        let mut rng = Rng::new(1);
        for _ in 0..100 {
            let mut disk = Disk::new(Vec::new());
            disk.write(A, &[1; BLOCK_SIZE]);
            let mark = disk.mark();
            disk.write(A, &[2; BLOCK_SIZE]);
            disk.flush(mark);
            assert_eq!(byte(&disk), 2);
            disk.cut(Vec::new(), &mut rng);
            assert!(disk.block(A).iter().all(|byte| [1, 2].contains(byte)));
        }
    }

    #[test]
    fn a_cut_leaves_old_new_and_torn_blocks() {
        let (mut rng, mut seen) = (Rng::new(1), [0; 3]);
        for _ in 0..300 {
            let mut disk = Disk::new(Vec::new());
            let cut = disk.cut(vec![(A, vec![1; BLOCK_SIZE])], &mut rng);
            let ones = disk.block(A).iter().filter(|byte| **byte == 1).count();
            assert_eq!(ones % SECTOR, 0);
            seen[(ones > 0) as usize + (ones == BLOCK_SIZE) as usize] += 1;
            assert_eq!(cut.torn == 1, ones > 0 && ones < BLOCK_SIZE);
        }
        assert!(seen.iter().all(|times| *times > 10), "{seen:?}");
    }
}
