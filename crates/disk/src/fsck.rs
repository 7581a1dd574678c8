//! `fsck`: checks everything that must hold of a pool that no fleet is using.
//!
//! Order: superblocks; whether the device is as long as they say; region map; log table; then for each shard its root slots and its tree, record by record
//! (`fsck/shard.rs`), collecting which blocks are referred to (`fsck/space.rs`) and which names lead to which
//! inodes (`fsck/names.rs`); then what only the whole can show: space and names against each other.
//!
//! Where part of a tree cannot be read, what was in it is unknown; checks that would accuse the rest
//! because of that are left out, and the report says that it is incomplete.
//!
//! Nothing here changes the pool; what a repair would write is worked out in `fsck/repair.rs`.

mod finding;
mod names;
mod repair;
mod shard;
mod space;
#[cfg(test)]
mod tests;

pub use finding::{Finding, Severity};
pub use repair::{Footing, MENDS_MAX, Mend, NoFooting, Repair, RepairError, footing, repair};

use crate::layout::ROOT_SLOT_SIZE;
use crate::log::LogTable;
use crate::node::BlockPtr;
use crate::region::{BadPage, RegionError, RegionMap};
use crate::root_slot::{RootSlot, SlotState};
use crate::superblock::{CopiesState, Superblock};
use crate::tree::{Absent, Tree};
use crate::value::Value;
use crate::{Key, Kind};
use names::Names;
use space::Space;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno, Ino, ShardId};

/// Findings that a report keeps; the others are counted. A damaged index can cause one for every file.
pub const FINDINGS_MAX: usize = 1000;

/// The device could not read a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct ReadError(pub Errno);

/// What to check beyond the structure.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// Read all file data and compare its checksums.
    pub contents: bool,
    /// Tell the paths of these inodes too.
    pub paths_of: BTreeSet<Ino>,
}

/// How far a check has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    pub shards_done: u16,
    pub shards: u16,
    pub blocks_read: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// `None` if the device is no pool that can be read.
    pub superblock: Option<Superblock>,
    /// In the order of discovery, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub further_findings: u64,
    /// Some of it damage, also among the further ones.
    pub damaged: bool,
    /// Some of it damage whose repair may take something away.
    pub harmful: bool,
    /// Where the inodes that findings name or that were asked for are found, as far as that could be told.
    pub paths: BTreeMap<Ino, Box<[u8]>>,
    /// Part of a tree, or what leads to all of them, could not be read, so not everything was checked.
    pub incomplete: bool,
    /// File data was read too, and compared with its checksums.
    pub contents: bool,
    pub inodes: u64,
    pub directories: u64,
    pub nodes: u64,
    pub used_blocks: u64,
    pub blocks_read: u64,
}

impl Report {
    /// Whether nothing is wrong; notes do not count.
    pub fn is_sound(&self) -> bool {
        !self.damaged
    }

    /// Whether no repair would change anything: what is wrong, if anything is, is file data alone.
    pub fn is_past_repair(&self) -> bool {
        let lost = |it: &Finding| it.severity() == Severity::Note || it.is_lost_data();
        !self.incomplete && self.further_findings == 0 && self.findings.iter().all(lost)
    }

    fn add(&mut self, finding: Finding) {
        self.damaged |= finding.severity() == Severity::Damage;
        self.harmful |= !finding.is_harmless();
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.further_findings += 1;
        }
    }
}

type Read<'a> = &'a mut dyn FnMut(BlockNo, &mut [u8]) -> Result<(), ReadError>;

/// Checks the pool on a device of `device_blocks` blocks, which `read` reads.
pub fn check(
    options: Options,
    device_blocks: u64,
    read: Read<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    let mut reader = Reader { read, blocks_read: 0 };
    let mut report = Report { contents: options.contents, ..Report::default() };
    if let Some(superblock) = read_superblock(&mut reader, &mut report)
        && is_whole(&superblock, device_blocks, &mut report)
        && let Some(region) = read_region(&superblock, &mut reader, &mut report)
    {
        check_log_table(&superblock, &mut reader, &mut report);
        let (space, names) = (Space::default(), Names::default());
        let roots = BTreeMap::new();
        let mut checker =
            Checker { options, reader, report, superblock, region, space, names, roots };
        checker.check(progress);
        (reader, report) = (checker.reader, checker.report);
    } else {
        report.incomplete = true;
    }
    report.blocks_read = reader.blocks_read;
    report
}

/// Reads blocks and counts them.
struct Reader<'a> {
    read: Read<'a>,
    blocks_read: u64,
}

impl Reader<'_> {
    fn block(&mut self, block: BlockNo) -> Result<Box<[u8]>, ReadError> {
        let mut bytes = vec![0; BLOCK_SIZE].into_boxed_slice();
        self.blocks_read += 1;
        (self.read)(block, &mut bytes)?;
        Ok(bytes)
    }

    /// The block, or bytes that are nothing.
    fn block_or_rot(&mut self, block: BlockNo) -> Box<[u8]> {
        self.block(block).unwrap_or_else(|_| vec![UNREADABLE; BLOCK_SIZE].into())
    }

    /// The block, or nothing at all and a finding.
    fn block_or_none(&mut self, block: BlockNo, report: &mut Report) -> Box<[u8]> {
        self.block(block).unwrap_or_else(|error| {
            report.add(Finding::Unreadable { block, error });
            Box::default()
        })
    }
}

fn read_superblock(reader: &mut Reader<'_>, report: &mut Report) -> Option<Superblock> {
    let [a, b] = [0, 1].map(|copy| reader.block_or_none(BlockNo(copy), report));
    match Superblock::choose(&a, &b) {
        Ok((superblock, state)) => {
            match state {
                CopiesState::Agree => {}
                CopiesState::Behind(copy) => report.add(Finding::SuperblockBehind { copy }),
                CopiesState::Bad(copy, error) => {
                    report.add(Finding::SuperblockCopy { copy, error });
                }
            }
            report.superblock = Some(superblock.clone());
            Some(superblock)
        }
        Err(error) => {
            report.add(Finding::Superblock(error));
            None
        }
    }
}

/// Nothing else is looked at on a device that is too short: what a forged superblock promises may be more
/// than this machine could hold the map of.
fn is_whole(superblock: &Superblock, has: u64, report: &mut Report) -> bool {
    let needs = superblock.layout.total_blocks();
    if needs > has {
        report.add(Finding::TooShort { has, needs });
    }
    needs <= has
}

fn read_region(
    superblock: &Superblock,
    reader: &mut Reader<'_>,
    report: &mut Report,
) -> Option<RegionMap> {
    let layout = superblock.layout;
    let copies = [0, 1].map(|copy| {
        let mut bytes = Vec::with_capacity(layout.region_pages() as usize * BLOCK_SIZE);
        for page in 0..layout.region_pages() {
            bytes.extend(reader.block_or_none(layout.region_page(copy, page), report));
            bytes.resize((page as usize + 1) * BLOCK_SIZE, UNREADABLE);
        }
        bytes
    });
    match RegionMap::load(superblock, [&copies[0], &copies[1]]) {
        Ok(region) => {
            for BadPage { block, in_doubt } in region.bad_pages().iter().copied() {
                report.add(match in_doubt {
                    true => Finding::Region(RegionError::InDoubt(block)),
                    false => Finding::RegionPage { block },
                });
            }
            Some(region)
        }
        Err(error) => {
            report.add(Finding::Region(error));
            None
        }
    }
}

fn check_log_table(superblock: &Superblock, reader: &mut Reader<'_>, report: &mut Report) {
    let layout = superblock.layout;
    let copies = [0, 1].map(|copy| reader.block_or_none(layout.log_table(copy), report));
    match LogTable::choose([&copies[0], &copies[1]], superblock.generation, layout.logs_max()) {
        Err(error) => report.add(Finding::LogTable(error)),
        Ok((_, copy)) => {
            if let Some(error) = LogTable::damage(&copies[copy]) {
                report.add(Finding::LogTableCopy { copy, error });
            }
        }
    }
}

/// What stands for a block that cannot be read: no magic, and not the zeros of a block never written.
const UNREADABLE: u8 = 0xEE;

/// The state of a check once superblock and region map are known.
struct Checker<'a> {
    options: Options,
    reader: Reader<'a>,
    report: Report,
    superblock: Superblock,
    region: RegionMap,
    space: Space,
    names: Names,
    /// The roots that counted, for looking names up again.
    roots: BTreeMap<ShardId, RootSlot>,
}

impl Checker<'_> {
    fn check(&mut self, progress: &mut dyn FnMut(Progress)) {
        let shards = self.superblock.layout.shards();
        for shard in 0..shards {
            match self.root_slot(ShardId(shard)) {
                Some(Some(slot)) => {
                    self.roots.insert(slot.shard, slot);
                    self.check_shard(&slot);
                }
                Some(None) => {}
                None => {
                    self.space.lose(ShardId(shard));
                    self.report.incomplete = true;
                }
            }
            let blocks_read = self.reader.blocks_read;
            progress(Progress { shards_done: shard + 1, shards, blocks_read });
        }
        self.space.compare(&self.region, &mut self.report);
        if !self.report.incomplete {
            self.check_names();
        }
        self.find_paths();
    }

    /// The slot that counts, `Some(None)` for a shard never used, `None` if it is lost.
    fn root_slot(&mut self, shard: ShardId) -> Option<Option<RootSlot>> {
        let layout = self.superblock.layout;
        let slots = [0, 1].map(|slot| {
            let place = layout.root_slot(shard, slot);
            let bytes = self.reader.block_or_none(place.block, &mut self.report);
            let slot = bytes.get(place.offset..place.offset + ROOT_SLOT_SIZE);
            slot.map_or(vec![UNREADABLE; ROOT_SLOT_SIZE], <[u8]>::to_vec)
        });
        match RootSlot::choose([&slots[0], &slots[1]], &self.superblock, shard) {
            Ok(chosen) => {
                if let SlotState::Bad(error) = chosen.spare_state {
                    self.report.add(Finding::RootSlotCopy { shard, slot: chosen.spare, error });
                }
                Some(chosen.root)
            }
            Err(error) => {
                self.report.add(Finding::RootSlot { shard, error });
                None
            }
        }
    }

    /// The name of the entry of `dir` with this hash that leads to `ino`.
    fn entry_name(&mut self, dir: Ino, hash: u64, ino: Ino) -> Option<Box<[u8]>> {
        let slot = *self.roots.get(&dir.shard())?;
        let mut tree = Tree::open(slot.shard, slot.root, slot.height);
        let key = Key::entry(dir, hash);
        loop {
            let Absent(ptr) = match tree.get(&key) {
                Ok(Some(Value::Entries(bucket))) => {
                    let dentry = bucket.iter().find(|dentry| dentry.ino == ino)?;
                    return Some(dentry.name.clone());
                }
                Ok(_) => return None,
                Err(absent) => absent,
            };
            let bytes = self.reader.block(ptr.block).ok()?;
            tree.load(ptr, &bytes).ok()?;
        }
    }

    /// Counts a reference to a block; false if the block cannot be what it is referred to as.
    fn refer(&mut self, block: BlockNo, shard: ShardId, by: Key) -> bool {
        let layout = self.superblock.layout;
        if !layout.is_allocatable(block) {
            self.report.add(Finding::BlockOutOfRange { shard, block, by });
            return false;
        }
        let owned = self.space.belongs(&self.region, block, shard);
        let first = self.space.refer(block);
        if !owned {
            self.report.add(Finding::ForeignBlock { shard, block, by });
        }
        if !first {
            self.report.add(Finding::SharedBlock { shard, block, by });
        }
        first
    }

    /// Compares the blocks of an extent with their checksums.
    fn check_contents(&mut self, key: &Key, start: BlockNo, checksums: &[u32]) {
        debug_assert_eq!(key.kind, Kind::Extent);
        for (n, checksum) in checksums.iter().enumerate() {
            let ptr = BlockPtr { block: start.offset(n as u64), checksum: *checksum };
            let (ino, file_block, block) = (Ino(key.ino), key.sub + n as u64, ptr.block);
            match self.reader.block(block) {
                Err(error) => {
                    self.report.add(Finding::UnreadableContents { ino, file_block, block, error });
                }
                Ok(bytes) if crate::block_checksum(&bytes) != ptr.checksum => {
                    self.report.add(Finding::Contents { ino, file_block, block });
                }
                Ok(_) => {}
            }
        }
    }
}
