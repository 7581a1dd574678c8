//! Repair: what a check finds wrong, put right in one new checkpoint.
//!
//! Order:
//! 1. *Survey.* Every tree is read as far as it can be; a node with one flipped bit is corrected by its checksum. What is
//!    wrong with an inode's own records is mended there and then (`repair/mend.rs`); which blocks are referred
//!    to (`repair/space.rs`) and which names lead where (`repair/names.rs`) is remembered.
//! 2. *Decisions.* Each chunk gets one owner, each block one user, each inode a name, a list of its names or an end.
//! 3. *Writing.* A shard about which anything was wrong gets a new tree, from all of its records
//!    (`repair/write.rs`); the others keep theirs.
//!
//! Invariants:
//! * Nothing that the last checkpoint refers to is overwritten, but the table of logs that are given up. What is returned is one checkpoint more, so a power failure
//!   leaves the old state or the new one, and a repair that was interrupted begins anew.
//! * What is in doubt stays so until everything else counts: what took its place before would make the older one count.
//! * Nothing changes without a [`Mend`] that says so.
//! * File data is never invented: a block with a wrong checksum keeps it, and reading it stays EIO.
//! * A set-id bit of an inode that had to be made anew is not guessed: it has no rights but its owner's, root.
//!
//! Memory: some hundred bytes for each inode, the records of one shard at a time, and the new trees.

mod collect;
mod footing;
mod mend;
mod names;
mod space;
mod write;

pub use footing::{Footing, NoFooting, footing};

use super::{Progress, Read, Reader, Report, is_whole, read_superblock};
use crate::BlockWrite;
use crate::key::Key;
use crate::node::NodeError;
use crate::region::RegionMap;
use crate::superblock::Superblock;
use crate::value::Value;
use collect::Shard;
use names::{Census, Edit};
use space::Space;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use warren_base::{BlockNo, FileKind, Ino, ShardId};

/// Mends that are kept by name; the others are counted.
pub const MENDS_MAX: usize = 10_000;

/// What a repair did, one line each, naming the place.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Mend {
    #[error("block {block}: its bit {bit} had flipped and was flipped back")]
    Corrected { block: BlockNo, bit: usize },
    #[error("shard {shard}: tree node at block {block} is lost, with what it led to: {error}")]
    NodeLost { shard: ShardId, block: BlockNo, error: NodeError },
    #[error(
        "shard {shard}: tree node at block {block} is lost, with what it led to: it cannot be read"
    )]
    NodeUnreadable { shard: ShardId, block: BlockNo },
    #[error("shard {0}: neither root slot can be read, all that it held is lost")]
    ShardLost(ShardId),
    #[error("shard {0}: a root slot that may have been the newer is given up")]
    SlotGivenUp(ShardId),
    #[error("region map: page {0} is made anew from what the trees refer to")]
    RegionPage(u64),
    #[error("chunk {chunk}: belongs to shard {to} from now on")]
    ChunkOwner { chunk: u64, to: ShardId },
    #[error("shard {0}: its tree is written anew")]
    TreeWritten(ShardId),
    #[error(
        "shard {shard}: its record of chunk {chunk}, which the device does not have, is dropped"
    )]
    NoChunk { shard: ShardId, chunk: u64 },
    #[error(
        "shard {shard}: {blocks} blocks were recorded as used, but nothing refers to them; freed"
    )]
    Leaked { shard: ShardId, blocks: u64 },
    #[error("shard {shard}: {blocks} blocks were used but recorded as free; recorded")]
    Recorded { shard: ShardId, blocks: u64 },
    #[error("shard {0}: its counts of inodes and blocks, or its next sequence, are set right")]
    Counts(ShardId),
    #[error("inode {ino}: {why}; its records are dropped")]
    Dropped { ino: Ino, why: &'static str },
    #[error("inode {ino}: its attributes were lost; it is a {kind:?} of root's from now on")]
    Invented { ino: Ino, kind: FileKind },
    #[error("inode {ino}: {what} dropped: {why}")]
    RecordDropped { ino: Ino, what: &'static str, why: &'static str },
    #[error("inode {ino}: {what} set right")]
    SetRight { ino: Ino, what: &'static str },
    #[error("inode {ino}: block {file_block} of the file is lost: {why}")]
    DataLost { ino: Ino, file_block: u64, why: &'static str },
    #[error(
        "inode {ino}: block {file_block} of the file, which had another use too, is copied to block {to}"
    )]
    Copied { ino: Ino, file_block: u64, to: BlockNo },
    #[error("inode {ino}: the name {:?} moved to where it is looked for", name.escape_ascii().to_string())]
    Rehashed { ino: Ino, name: Box<[u8]> },
    #[error("directory {dir}: entry {:?} removed: {why}", name.escape_ascii().to_string())]
    Unlinked { dir: Ino, name: Box<[u8]>, ino: Ino, why: &'static str },
    #[error("directory {dir}: entry {:?} says that inode {ino} is a {kind:?}, as it is", name.escape_ascii().to_string())]
    EntryKind { dir: Ino, name: Box<[u8]>, ino: Ino, kind: FileKind },
    #[error("inode {ino}: no name led to it; it is in /lost+found")]
    Found { ino: Ino },
    #[error("inode {ino}: has neither a name nor a link; it is reclaimed at the next start")]
    Reclaimed { ino: Ino },
    #[error("inode {ino}: is no orphan; its record as one is dropped")]
    NoOrphan { ino: Ino },
}

impl Mend {
    /// The inode whose path says where this is, if it is at an inode.
    pub fn ino(&self) -> Option<Ino> {
        match self {
            Self::Dropped { ino, .. }
            | Self::Invented { ino, .. }
            | Self::RecordDropped { ino, .. }
            | Self::SetRight { ino, .. }
            | Self::DataLost { ino, .. }
            | Self::Copied { ino, .. }
            | Self::Rehashed { ino, .. }
            | Self::Unlinked { dir: ino, .. }
            | Self::EntryKind { dir: ino, .. }
            | Self::Found { ino }
            | Self::Reclaimed { ino }
            | Self::NoOrphan { ino } => Some(*ino),
            _ => None,
        }
    }
}

/// Why a pool cannot be repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RepairError {
    #[error("neither superblock can be read")]
    NoSuperblock,
    #[error("the end of the device is cut off")]
    TooShort,
    #[error("no free space for what has to be written anew")]
    NoSpace,
    #[error("the shard of the root directory has no numbers of inodes left")]
    NoNumbers,
}

/// A repair that is ready to be written, in the order of its fields; [`Repair::into_stages`] says where flushes are.
#[derive(Clone, Debug)]
pub struct Repair {
    /// In the order in which they were decided on, at most [`MENDS_MAX`].
    pub mends: Vec<Mend>,
    pub further_mends: u64,
    /// Of a pool with logs, which are given up, a log table without any, in both places: what follows may be written over what
    /// the logs name, so first of all nobody replays them any more.
    pub farewell: Vec<BlockWrite>,
    /// New tree nodes and copies of file data, where nothing is referred to.
    pub body: Vec<BlockWrite>,
    /// Root slots, region map and log table, as far as they do not count.
    pub heads: Vec<BlockWrite>,
    pub superblocks: [BlockWrite; 2],
    /// Slots and pages of the map over those that are in doubt or lost. As long as one of these lies there the pool is not
    /// opened, or not with anything of the past: the rest of the repair counts before they go.
    pub tails: Vec<BlockWrite>,
}

impl Repair {
    /// What is to be written, and flushed before the next of it is: within each in any order.
    pub fn into_stages(self) -> Vec<Vec<BlockWrite>> {
        let [first, second] = self.superblocks;
        let superblocks = [vec![first], vec![second]];
        let before = [self.farewell, self.body, self.heads].into_iter();
        let all = before.chain(superblocks).chain([self.tails]);
        all.filter(|stage| !stage.is_empty()).collect()
    }
}

/// What was done, as it comes about.
#[derive(Default)]
struct Mends {
    list: Vec<Mend>,
    count: u64,
    /// A shard is being read once more: what is wrong with it was told.
    told: bool,
    further: u64,
}

impl Mends {
    fn add(&mut self, mend: Mend) {
        self.count += 1;
        if !self.told && self.list.len() < MENDS_MAX {
            self.list.push(mend);
        } else if !self.told {
            self.further += 1;
        }
    }
}

/// The state of a repair.
struct Repairer<'a> {
    reader: Reader<'a>,
    superblock: Superblock,
    region: RegionMap,
    lost_pages: Vec<u64>,
    mends: Mends,
    space: Space,
    census: Census,
    /// Shards that get a new tree.
    dirty: BTreeSet<ShardId>,
    edits: BTreeMap<ShardId, Vec<Edit>>,
    /// Before this one no chunk is free.
    chunks_searched: u64,
}

/// Works out the repair of the pool on a device of `device_blocks` blocks, which `read` reads. The logs of a pool
/// without the clean mark are given up: whoever wants what they hold replays them first.
pub fn repair(
    device_blocks: u64,
    read: Read<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Repair, RepairError> {
    let mut repairer = Repairer::begin(device_blocks, read)?;
    repairer.survey(progress);
    repairer.decide_space();
    repairer.decide_names()?;
    repairer.write(progress)
}

fn salvage_region(
    superblock: &Superblock,
    reader: &mut Reader<'_>,
    mends: &mut Mends,
) -> (RegionMap, Vec<u64>) {
    let layout = superblock.layout;
    let copies = [0, 1].map(|copy| {
        let pages = (0..layout.region_pages()).map(|page| layout.region_page(copy, page));
        pages.flat_map(|block| reader.block_or_rot(block)).collect::<Vec<u8>>()
    });
    let (region, lost) = RegionMap::salvage(superblock, [&copies[0], &copies[1]]);
    lost.iter().for_each(|page| mends.add(Mend::RegionPage(*page)));
    (region, lost)
}

impl<'a> Repairer<'a> {
    /// Reads what leads to the trees.
    fn begin(device_blocks: u64, read: Read<'a>) -> Result<Self, RepairError> {
        let mut reader = Reader { read, blocks_read: 0 };
        let mut report = Report::default();
        let superblock = read_superblock(&mut reader, &mut report);
        let superblock = superblock.ok_or(RepairError::NoSuperblock)?;
        if !is_whole(&superblock, device_blocks, &mut report) {
            return Err(RepairError::TooShort);
        }
        let mut mends = Mends::default();
        let (region, lost_pages) = salvage_region(&superblock, &mut reader, &mut mends);
        Ok(Self {
            reader,
            superblock,
            region,
            lost_pages,
            mends,
            space: Space::default(),
            census: Census::default(),
            dirty: BTreeSet::new(),
            edits: BTreeMap::new(),
            chunks_searched: 0,
        })
    }

    fn survey(&mut self, progress: &mut dyn FnMut(Progress)) {
        let shards = self.superblock.layout.shards();
        for shard in (0..shards).map(ShardId) {
            let before = self.mends.count;
            let found = self.shard(shard);
            self.space.add(shard, &found);
            self.census.add(&found);
            if found.incomplete || self.mends.count != before {
                self.dirty.insert(shard);
            }
            let blocks_read = self.reader.blocks_read;
            progress(Progress { shards_done: shard.0 + 1, shards, blocks_read });
        }
        self.mends.told = true;
    }

    /// The records of a shard, each inode's own put right.
    fn shard(&mut self, shard: ShardId) -> Shard {
        let mut found = self.collect(shard);
        self.mend(&mut found);
        found
    }

    /// Tells the mend whatever is being read again.
    fn tell(&mut self, mend: Mend) {
        let told = std::mem::take(&mut self.mends.told);
        self.mends.add(mend);
        self.mends.told = told;
    }

    fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.superblock.layout.shards()).map(ShardId)
    }
}

/// The polynomial of crc32c, its bits in the order of the checksum's.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The bit that has to be flipped so that the bytes from `covered` on have this checksum. A checksum is linear: what
/// one flipped bit changes in it depends on the bit's distance from the end alone. Within a block no two bits
/// change the same, so there is one answer or none.
fn flipped_bit(bytes: &[u8], covered: usize, checksum: u32) -> Option<usize> {
    let change = crc32c::crc32c(&bytes[covered..]) ^ checksum;
    let mut changes: [u32; 8] = std::array::from_fn(|bit| 1 << bit);
    for at in (covered..bytes.len()).rev() {
        changes = changes.map(behind_a_byte);
        if let Some(bit) = changes.iter().position(|of_bit| *of_bit == change) {
            return Some(8 * at + bit);
        }
    }
    None
}

/// What a change of the checksum becomes once another byte was taken in.
fn behind_a_byte(change: u32) -> u32 {
    (0..8).fold(change, |at, _| (at >> 1) ^ if at & 1 == 1 { POLYNOMIAL } else { 0 })
}

/// The records of one shard.
type Records = BTreeMap<Key, Value>;
