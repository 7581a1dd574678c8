//! The state of a repair.

use super::mend::{Mend, Mends};
use super::names::{Census, Edit};
use super::outcome::RepairError;
use super::space::Space;
use crate::metadata::{is_whole, read_superblock};
use crate::read::{Read, Reader};
use crate::report::Report;
use std::collections::{BTreeMap, BTreeSet};
use warren_base::ShardId;
use warren_disk::{RegionMap, Superblock};

/// The state of a repair.
pub(super) struct Repairer<'a> {
    pub reader: Reader<'a>,
    pub superblock: Superblock,
    pub region: RegionMap,
    pub lost_pages: Vec<u64>,
    pub mends: Mends,
    pub space: Space,
    pub census: Census,
    /// Shards that get a new tree.
    pub dirty: BTreeSet<ShardId>,
    pub edits: BTreeMap<ShardId, Vec<Edit>>,
    /// No chunk before this one is free.
    pub chunks_searched: u64,
}

impl<'a> Repairer<'a> {
    /// Reads the structures above the trees.
    pub(super) fn begin(device_blocks: u64, read: Read<'a>) -> Result<Self, RepairError> {
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

    /// Reports the mend even while a shard is being read again.
    pub(super) fn report(&mut self, mend: Mend) {
        let reported = std::mem::take(&mut self.mends.reported);
        self.mends.add(mend);
        self.mends.reported = reported;
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.superblock.layout.shards()).map(ShardId)
    }
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
