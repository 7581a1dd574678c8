//! A device with a volatile cache.
//!
//! A finished write is in the cache. It is *durable* after a flush that was submitted after the
//! write was finished. Until then a power cut may leave all of it, nothing, or any of its sectors,
//! independently of other writes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use hashbrown::HashMap;
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{BlockNo, Errno, Rng};
use warren_disk::format::{FormatOptions, image};

use super::sparse::Host;
use crate::fixed::Fixed;
use crate::simulation::wall::EPOCH;

/// The unit that a device writes atomically.
pub(crate) const SECTOR: usize = 512;
/// Bytes that were never written. Nothing may depend on them being zero.
pub(crate) const UNWRITTEN: Block = [0xa5; BLOCK_SIZE];
/// Findings of fsck that a failure shows.
const FINDINGS_SHOWN: usize = 20;

pub(crate) type Block = [u8; BLOCK_SIZE];
/// Blocks by number. Absent blocks were never written.
pub(crate) type Blocks = HashMap<BlockNo, Rc<Block>, Fixed>;

/// The events of a recorded device and its client.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// Writes are numbered in order.
    Write(BlockNo, Rc<Block>),
    /// A flush is over: these writes are durable.
    Flush(Covered),
    /// The client began the operation of this number, or was answered.
    Begun(usize),
    Answered(usize),
}

#[derive(Clone, Debug)]
pub enum Covered {
    /// The writes with lower numbers than this.
    Before(usize),
    Writes(Rc<BTreeSet<usize>>),
}

/// The effects of a power cut.
#[derive(Default)]
pub(crate) struct Cut {
    pub lost: u64,
    pub torn: u64,
}

pub(crate) struct Disk {
    /// The image below, perhaps shared by several disks, and the durable changes of it.
    image: Rc<Blocks>,
    durable: Blocks,
    /// Writes since then, in order: the number and contents of each.
    cached: BTreeMap<BlockNo, Vec<(usize, Rc<Block>)>>,
    /// The number of blocks written so far.
    writes: usize,
    /// Flushes that failed.
    pub errors: u64,
    /// The host of a pool in a sparse file.
    pub host: Option<Host>,
    /// `None` if the events are not recorded.
    pub record: Option<Vec<Recorded>>,
}

impl Disk {
    pub(crate) fn new(image: Vec<(BlockNo, Box<[u8]>)>) -> Self {
        let mut disk = Self::over(Rc::default(), Blocks::with_hasher(Fixed));
        for (block, bytes) in image {
            disk.write(block, &bytes);
        }
        disk.flush(disk.mark());
        disk
    }

    /// A new pool.
    pub(crate) fn format(size_bytes: u64, shards: u16, log_bytes: u64, secret: u64) -> Self {
        let options = FormatOptions {
            size_bytes,
            shards,
            log_bytes,
            uuid: [7; 16],
            secret,
            now: EPOCH,
            uid: 0,
            gid: 0,
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        Self::new(image(&options).expect("the options are sensible"))
    }

    /// Both are durable.
    pub(crate) fn over(image: Rc<Blocks>, durable: Blocks) -> Self {
        Self {
            image,
            durable,
            cached: BTreeMap::new(),
            writes: 0,
            errors: 0,
            host: None,
            record: None,
        }
    }

    pub(crate) fn block(&self, block: BlockNo) -> &Block {
        let cached = self.cached.get(&block).and_then(|writes| writes.last());
        cached.map_or_else(|| self.durable_block(block), |(_, bytes)| bytes)
    }

    fn durable_block(&self, block: BlockNo) -> &Block {
        let there = self.durable.get(&block).or_else(|| self.image.get(&block));
        there.map_or(&UNWRITTEN, |bytes| bytes)
    }

    /// A write of whole blocks, starting at `block`, is finished.
    pub(crate) fn write(&mut self, block: BlockNo, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(BLOCK_SIZE));
        for (at, bytes) in (0..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let (block, bytes) = (block.offset(at), Rc::new(bytes.try_into().expect("a block")));
            self.note(|| Recorded::Write(block, Rc::clone(&bytes)));
            self.cached.entry(block).or_default().push((self.writes, bytes));
            self.writes += 1;
        }
    }

    /// A write of whole blocks fails: nothing is written, or all, or any of the sectors.
    pub(crate) fn fail_write(&mut self, block: BlockNo, bytes: &[u8], rng: &mut Rng) {
        let written = *rng.pick(&[0, 50, 100]);
        if written == 0 {
            return;
        }
        for (at, bytes) in (0..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let mut new = *self.block(block.offset(at));
            for (there, sector) in new.chunks_exact_mut(SECTOR).zip(bytes.chunks_exact(SECTOR)) {
                if rng.chance(written, 100) {
                    there.copy_from_slice(sector);
                }
            }
            self.write(block.offset(at), &new);
        }
    }

    /// A flush that is submitted now covers the writes before this one.
    pub(crate) fn mark(&self) -> usize {
        self.writes
    }

    /// The host allocates chunks, of which the last may not fit.
    pub(crate) fn reserve(
        &mut self,
        block: BlockNo,
        count: u64,
        rng: &mut Rng,
    ) -> Result<(), Errno> {
        let Some(host) = &mut self.host else { return Ok(()) };
        host.change_room(rng);
        self.writes += 1;
        chunks(block, count).try_for_each(|chunk| host.reserve(chunk, self.writes - 1))
    }

    /// The contents of the blocks are gone, if the host takes blocks back.
    pub(crate) fn discard(&mut self, block: BlockNo, count: u64) -> Result<(), Errno> {
        if let Some(host) = &mut self.host {
            chunks(block, count).try_for_each(|chunk| host.discard(chunk))?;
        }
        for block in (0..count).map(|at| block.offset(at)) {
            if *self.block(block) != UNWRITTEN {
                self.write(block, &UNWRITTEN);
            }
        }
        Ok(())
    }

    /// The room on the host, in blocks.
    pub(crate) fn host_room(&self) -> u64 {
        self.host.as_ref().map_or(u64::MAX, |host| host.room() * CHUNK_BLOCKS)
    }

    /// Whether the host has allocated the written blocks; else the block that it has not.
    pub(crate) fn check_backed(&self, block: BlockNo, bytes: usize) -> Result<(), BlockNo> {
        let Some(host) = &self.host else { return Ok(()) };
        let mut blocks = (0..(bytes / BLOCK_SIZE) as u64).map(|at| block.offset(at));
        let open = blocks.find(|block| !host.has(block.0 / CHUNK_BLOCKS));
        open.map_or(Ok(()), Err)
    }

    pub(crate) fn flush(&mut self, mark: usize) {
        self.host.iter_mut().for_each(|host| host.flush(mark));
        self.note(|| Recorded::Flush(Covered::Before(mark)));
        for (block, writes) in &mut self.cached {
            let done = writes.partition_point(|(number, _)| *number < mark);
            if let Some((_, bytes)) = writes.drain(..done).next_back() {
                self.durable.insert(*block, bytes);
            }
        }
        self.cached.retain(|_, writes| !writes.is_empty());
    }

    /// Makes `count` blocks, starting at `block`, durable as they are now.
    pub(crate) fn harden(&mut self, block: BlockNo, count: usize) {
        // In a file this takes a flush.
        self.host.iter_mut().for_each(|host| host.flush(self.writes));
        let mut hardened = BTreeSet::new();
        for block in (0..count as u64).map(|at| block.offset(at)) {
            let written = self.cached.remove(&block).and_then(|mut writes| writes.pop());
            hardened.extend(written.iter().map(|(number, _)| *number));
            self.durable.extend(written.map(|(_, bytes)| (block, bytes)));
        }
        let hardened = Rc::new(hardened);
        self.note(|| Recorded::Flush(Covered::Writes(Rc::clone(&hardened))));
    }

    pub(crate) fn note(&mut self, what: impl Fn() -> Recorded) {
        self.record.iter_mut().for_each(|record| record.push(what()));
    }

    /// Its contents, as an image.
    pub(crate) fn into_image(mut self) -> Rc<Blocks> {
        self.flush(self.writes);
        Rc::make_mut(&mut self.image).extend(self.durable);
        self.image
    }

    /// Checks the first `blocks` of it with fsck.
    pub(crate) fn check(&self, blocks: u64) -> warren_fsck::Report {
        let mut read = |block: BlockNo, into: &mut [u8]| {
            into.copy_from_slice(self.block(block));
            Ok(())
        };
        let options = warren_fsck::Options { contents: true, ..warren_fsck::Options::default() };
        warren_fsck::check(options, blocks, &mut read, &mut |_| {})
    }

    /// A bit of a block flips.
    pub(crate) fn flip(&mut self, block: BlockNo, bit: usize) {
        self.spoil(block, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
    }

    /// The device loses part of a block, and returns zeros for it.
    pub(crate) fn blank(&mut self, block: BlockNo, part: Range<usize>) {
        self.spoil(block, |bytes| bytes[part.clone()].fill(0));
    }

    fn spoil(&mut self, block: BlockNo, change: impl Fn(&mut Block)) {
        let mut durable = *self.durable_block(block);
        change(&mut durable);
        self.durable.insert(block, Rc::new(durable));
        let cached = self.cached.get_mut(&block).into_iter().flatten();
        cached.for_each(|(_, bytes)| change(Rc::make_mut(bytes)));
    }

    /// The damage that fsck finds on the first `blocks` of it and that matters, as text.
    pub(crate) fn damage(
        &self,
        blocks: u64,
        matters: impl Fn(&warren_fsck::Finding, &[warren_fsck::Finding]) -> bool,
    ) -> Option<String> {
        let report = self.check(blocks);
        let is_damage = |finding: &&warren_fsck::Finding| {
            finding.severity() == warren_fsck::Severity::Damage
                && matters(finding, &report.findings)
        };
        let findings = report.findings.iter().filter(is_damage).take(FINDINGS_SHOWN);
        let findings: String = findings.map(|finding| format!("\n    {finding}")).collect();
        (!findings.is_empty()).then_some(findings)
    }

    /// A flush fails: some cached writes are durable, and the others are gone.
    pub(crate) fn fail(&mut self, rng: &mut Rng) {
        self.errors += 1;
        let kept = *rng.pick(&[0, 50, 95]);
        for (block, mut writes) in std::mem::take(&mut self.cached) {
            if rng.chance(kept, 100) {
                let (_, bytes) = writes.swap_remove(rng.below(writes.len() as u64) as usize);
                self.durable.insert(block, bytes);
            }
        }
    }

    /// The power is cut while writes are in flight.
    pub(crate) fn cut(&mut self, under_way: Vec<(BlockNo, Vec<u8>)>, rng: &mut Rng) -> Cut {
        for (block, bytes) in under_way {
            self.write(block, &bytes);
        }
        self.errors = 0;
        self.host.iter_mut().for_each(|host| host.cut(rng));
        let (lost, torn) = (*rng.pick(&[0, 10, 50, 90, 100]), *rng.pick(&[0, 10, 60]));
        let mut cut = Cut::default();
        for (block, writes) in std::mem::take(&mut self.cached) {
            let old = *self.durable_block(block);
            let any = |rng: &mut Rng| match rng.chance(lost, 100) {
                true => old,
                // The last write is the likeliest, but the order guarantees nothing.
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
            self.durable.insert(block, Rc::new(new));
        }
        cut
    }
}

fn chunks(block: BlockNo, count: u64) -> impl Iterator<Item = u64> {
    block.0 / CHUNK_BLOCKS..(block.0 + count).div_ceil(CHUNK_BLOCKS)
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
    fn what_is_hardened_is_durable_and_nothing_else() {
        let mut disk = Disk::new(Vec::new());
        disk.write(A, &[1; BLOCK_SIZE]);
        disk.write(A, &[2; 2 * BLOCK_SIZE]);
        disk.harden(A, 1);
        disk.fail(&mut Rng::new(1));
        assert_eq!(byte(&disk), 2);
        let next = A.offset(1);
        let kept = (0..20).filter(|seed| {
            disk.write(next, &[3; BLOCK_SIZE]);
            disk.harden(A, 1);
            disk.fail(&mut Rng::new(*seed));
            let kept = disk.block(next)[0] == 3;
            disk.durable.remove(&next);
            kept
        });
        assert!((1..20).contains(&kept.count()));
    }

    #[test]
    fn a_write_that_fails_is_there_or_not_or_in_part() {
        let (mut rng, mut seen) = (Rng::new(1), [0; 3]);
        for _ in 0..300 {
            let mut disk = Disk::new(Vec::new());
            disk.write(A, &[1; BLOCK_SIZE]);
            disk.fail_write(A, &[2; BLOCK_SIZE], &mut rng);
            let new = disk.block(A).chunks_exact(SECTOR).filter(|sector| **sector == [2; SECTOR]);
            let new = new.count();
            seen[(new > 0) as usize + (new == BLOCK_SIZE / SECTOR) as usize] += 1;
        }
        assert!(seen.iter().all(|times| *times > 50), "{seen:?}");
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
