//! Finds the log records that were kept for shards that were given up, and says whether they can be
//! replayed.
//!
//! They hold steps after the tree's last checkpoint, and later steps rest on earlier ones. So they
//! can be replayed only if the whole tree can be read, perhaps after a flipped bit was corrected,
//! and only from the first on without a gap. The repair that follows frees their chunks.

use super::outcome::RepairError;
use super::records::Shard;
use super::records::put_shared;
use super::repairer::Repairer;
use super::space::Space;
use crate::metadata::kept_at;
use crate::read::{Progress, Read};
use crate::slots::{Slot, are_usable, choose};
use std::collections::BTreeMap;
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, ShardId};
use warren_disk::{KeptRecords, Key, Owner, RegionMap};

/// The log records that are kept for a shard that was given up.
#[derive(Clone, Debug)]
pub struct KeptLog {
    pub shard: ShardId,
    /// In the order of the log, from the first record on. No empty list if nothing is `against` it.
    pub records: Vec<KeptRecords>,
    /// Records that were found. Some may come behind a gap.
    pub count: u64,
    /// Why none of them can be replayed.
    pub against: Option<&'static str>,
    /// Nodes of the tree with one flipped bit, in their corrected form.
    pub corrected: BTreeMap<BlockNo, Box<[u8]>>,
    /// Flipped bits of the root slots. Their blocks have slots of other shards, too.
    pub flipped: Vec<(BlockNo, usize)>,
}

/// Finds what is kept for the shards of the pool on a device of `device_blocks` blocks, read
/// through `read`.
pub fn kept_logs(
    device_blocks: u64,
    read: Read<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<KeptLog>, RepairError> {
    let mut repairer = Repairer::begin(device_blocks, read)?;
    // Faults of trees are reported when they are repaired.
    repairer.mends.reported = true;
    let mut all = Vec::new();
    for shard in repairer.shards() {
        all.extend(repairer.kept_of(shard));
        let (shards, blocks_read) =
            (repairer.superblock.layout.shards(), repairer.reader.blocks_read);
        progress(Progress { shards_done: shard.0 + 1, shards, blocks_read });
    }
    Ok(all)
}

impl Repairer<'_> {
    fn kept_of(&mut self, shard: ShardId) -> Option<KeptLog> {
        let slots = self.reader.slots(&self.superblock, shard);
        let is_served =
            choose(&slots, &self.superblock, shard).is_ok_and(|chosen| !chosen.root.given_up);
        if is_served && are_usable(&slots, &self.superblock, shard) {
            return None;
        }
        let found = self.collect(shard);
        let against = match !found.is_newest || found.incomplete {
            true => Some("part of its tree is lost"),
            false if has_other_blocks(&self.region, &found) => {
                Some("its tree refers to blocks that it does not have")
            }
            false => None,
        };
        let parts = parts(self, &found);
        let count = parts.iter().map(|part| part.raw_records().count() as u64).sum();
        if count == 0 {
            return None;
        }
        let records = without_gaps(parts);
        let against = against.or(records.is_empty().then_some("the first of them are lost"));
        let flipped = slots.iter().filter_map(Slot::flipped).collect();
        Some(KeptLog { shard, records, count, against, corrected: found.corrected, flipped })
    }
}

/// Whether a block that the tree refers to may be taken for a free one, or is not the shard's.
fn has_other_blocks(region: &RegionMap, found: &Shard) -> bool {
    let mut space = Space::default();
    space.add(found.shard, found);
    let of_others = space.uses.iter().any(|((chunk, shard), uses)| {
        !owns(region, *shard, *chunk) || uses.referred() & !uses.recorded != 0
    });
    let is_miscounted = put_shared(&mut found.records.clone());
    of_others || is_miscounted || !space.contested.is_empty()
}

fn owns(region: &RegionMap, shard: ShardId, chunk: u64) -> bool {
    region.owner(chunk) == Some(Owner::Shard(shard))
}

/// Intact records that are later than the tree, in order, in chunks that it does not record.
pub(super) fn parts(repairer: &mut Repairer<'_>, found: &Shard) -> Vec<KeptRecords> {
    let Repairer { reader, region, superblock, .. } = repairer;
    let is_recorded = |chunk: u64| found.records.contains_key(&Key::chunk(chunk));
    let chunks = region.iter().map(|(chunk, _)| chunk);
    let chunks = chunks.filter(|chunk| owns(region, found.shard, *chunk) && !is_recorded(*chunk));
    let mut parts: Vec<KeptRecords> = chunks
        .filter_map(|chunk| kept_at(reader, BlockNo(chunk * CHUNK_BLOCKS), superblock.secret))
        .filter(|kept| kept.shard == found.shard && kept.checkpoint > found.newest)
        .collect();
    // An attempt at the checkpoint that failed may have left the same records.
    let last = parts.iter().map(|kept| kept.checkpoint).max();
    parts.retain(|kept| Some(kept.checkpoint) == last);
    parts.sort_by_key(|kept| kept.part);
    parts
}

/// The records up to the first that are missing.
fn without_gaps(parts: Vec<KeptRecords>) -> Vec<KeptRecords> {
    let mut records: Vec<KeptRecords> = Vec::new();
    for part in parts {
        let is_next = part.part as usize == records.len();
        let is_whole = |kept: &KeptRecords| {
            let of_records = kept.raw_records().map(|record| record.end.0 - record.lsn.0);
            of_records.sum::<u64>() == kept.records.len() as u64
        };
        if !is_next || !records.last().is_none_or(is_whole) {
            break;
        }
        records.push(part);
    }
    records
}
