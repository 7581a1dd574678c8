//! Computes the checkpoint that a replay of the logs can start from, for a pool that cannot be
//! opened as it is.
//!
//! The logs hold steps after the last checkpoint. So the result restores everything possible as of
//! that checkpoint, in a further checkpoint that changes no tree and keeps the logs. It names the
//! trees that cannot be restored: no step can be applied to those. The steps of a shard change only
//! its own tree, so all other trees reach their state at the end of the logs.
//!
//! Invariants:
//! * No block that a log may name is written: only slots, map, table and superblocks are.
//! * A page of the map is rebuilt from the records of all trees. If one tree is lost, its chunks
//!   are unknown, and no log can be replayed.
//! * The slots of a shard that is lost or in doubt stay so: the pool can only be opened without
//!   that shard.

use super::mend::Mend;
use super::outcome::{Repair, RepairError};
use super::repairer::Repairer;
use super::write::NewSlot;
use crate::read::{Progress, Read, UNREADABLE};
use crate::slots::in_doubt;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use warren_base::{BlockNo, ShardId};
use warren_disk::{
    LogTable, LogTableError, OWNERS_PER_PAGE, Owner, ROOT_SLOT_SIZE, RootSlot, Superblock, Value,
};

/// The basis for replaying the logs of a pool.
#[derive(Clone, Debug)]
pub struct Footing {
    /// Every shard whose tree is not as of the last checkpoint: no step of a log is applied to it.
    pub lost: BTreeSet<ShardId>,
    /// Nodes with one flipped bit, in their corrected form.
    pub corrected: BTreeMap<BlockNo, Box<[u8]>>,
    /// The number of cells that wrote the logs, at least one.
    pub logs: u16,
}

/// Why no log can be replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NoFooting {
    #[error("{0}")]
    Pool(#[from] RepairError),
    #[error("the start of the logs is unknown: {0}")]
    LogTable(#[from] LogTableError),
    #[error(
        "it is unknown which chunks were free: a page of the region map is lost or in doubt, and shard {0} as well"
    )]
    Map(ShardId),
}

/// The structures above the trees, and the chunks that the trees record.
#[derive(Default)]
struct Trees {
    slots: BTreeMap<ShardId, RootSlot>,
    /// Shards without a usable slot.
    slotless: BTreeSet<ShardId>,
    lost: BTreeSet<ShardId>,
    corrected: BTreeMap<BlockNo, Box<[u8]>>,
    /// Which shard records which chunk, for shards that are not lost.
    chunks: BTreeMap<u64, ShardId>,
}

/// Computes the basis for replaying the logs of the pool on a device of `device_blocks` blocks,
/// read through `read`, and the checkpoint, with logs, to write first.
pub fn footing(
    device_blocks: u64,
    read: Read<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Footing, Repair), NoFooting> {
    let mut repairer = Repairer::begin(device_blocks, read)?;
    // Faults of trees are reported when they are repaired.
    repairer.mends.reported = true;
    let (table, place) = repairer.log_table()?;
    if table.starts.is_empty() {
        return Err(LogTableError::Nonsense.into());
    }
    let mut trees = repairer.trees(progress);
    repairer.restore_map(&mut trees)?;
    let logs = u16::try_from(table.starts.len()).expect("as many as there are cells at most");
    let checkpoint = repairer.foundation(&trees, table, place);
    Ok((Footing { lost: trees.lost, corrected: trees.corrected, logs }, checkpoint))
}

impl Repairer<'_> {
    /// Reads all trees.
    fn trees(&mut self, progress: &mut dyn FnMut(Progress)) -> Trees {
        let mut trees = Trees::default();
        for shard in self.shards() {
            match self.chosen_root(shard) {
                Err(_) => {
                    trees.slotless.insert(shard);
                    trees.lost.insert(shard);
                }
                Ok(chosen) if in_doubt(&chosen, &self.superblock) => {
                    trees.lost.insert(shard);
                }
                Ok(_) => self.add_tree(&mut trees, shard),
            }
            let (shards, blocks_read) = (self.superblock.layout.shards(), self.reader.blocks_read);
            progress(Progress { shards_done: shard.0 + 1, shards, blocks_read });
        }
        trees
    }

    fn add_tree(&mut self, trees: &mut Trees, shard: ShardId) {
        let found = self.collect(shard);
        trees.slots.extend(found.slot.map(|slot| (shard, slot)));
        if found.incomplete {
            trees.lost.insert(shard);
            return;
        }
        trees.corrected.extend(found.corrected);
        let chunks = found.records.iter().filter(|(_, value)| matches!(value, Value::Chunk(_)));
        for (key, _) in chunks {
            // If two shards record the same chunk, neither is believed.
            if let Some(other) = trees.chunks.insert(key.sub, shard) {
                trees.lost.extend([other, shard]);
            }
        }
    }

    /// Rebuilds the pages of the map that may be stale or are lost, from the records of the trees.
    fn restore_map(&mut self, trees: &mut Trees) -> Result<(), NoFooting> {
        let pages = self.doubtful_pages();
        let is_doubtful = |chunk: u64| pages.contains(&(chunk / OWNERS_PER_PAGE));
        for (chunk, shard) in &trees.chunks {
            let may_be = match self.region.owner(*chunk) {
                Some(Owner::Shard(owner)) if owner == *shard => true,
                Some(Owner::Shard(_) | Owner::Free) => is_doubtful(*chunk),
                Some(Owner::Reserved) | None => false,
            };
            if !may_be {
                trees.lost.insert(*shard);
            }
        }
        if pages.is_empty() {
            return Ok(());
        } else if let Some(shard) = trees.lost.first() {
            return Err(NoFooting::Map(*shard));
        }
        let owners: Vec<(u64, Owner)> =
            self.region.iter().filter(|(chunk, _)| is_doubtful(*chunk)).collect();
        for (chunk, owner) in owners {
            let recorded = trees.chunks.get(&chunk);
            if let Owner::Shard(_) = owner {
                self.region.release(chunk);
            }
            if let Some(shard) = recorded {
                self.region.claim(chunk, *shard);
            }
        }
        // The other pages were reported when the map was read.
        for page in pages {
            if !self.lost_pages.contains(&page) {
                self.report(Mend::RegionPage(page));
            }
        }
        Ok(())
    }

    fn doubtful_pages(&self) -> BTreeSet<u64> {
        let layout = self.superblock.layout;
        let in_doubt = self.region.bad_pages().iter().filter(|page| page.in_doubt);
        let in_doubt = in_doubt.filter_map(|page| layout.page_at(page.block));
        in_doubt.chain(self.lost_pages.iter().copied()).collect()
    }

    /// A checkpoint equal to the last, with the map repaired, and with its logs.
    fn foundation(mut self, trees: &Trees, table: LogTable, table_place: BlockNo) -> Repair {
        let generation = self.superblock.generation + 1;
        let (mut heads, mut tails) = self.region_pages(generation);
        let as_they_are = |slot: &RootSlot| RootSlot { generation, ..*slot };
        let slots = trees.slots.iter().map(|(shard, slot)| (*shard, as_they_are(slot))).collect();
        let (mut first, last) = self.new_slots(&slots);
        // A stale slot left there would become valid under the next superblock.
        let spoilt: Box<[u8]> = [UNREADABLE; ROOT_SLOT_SIZE].into();
        first.extend(trees.slotless.iter().flat_map(|shard| {
            [0, 1].map(|slot| NewSlot { shard: *shard, slot, bytes: spoilt.clone() })
        }));
        self.put_slots(first, last, &mut heads, &mut tails);
        heads.push((table_place, LogTable { generation, ..table }.encode()));
        let superblock = Superblock { generation, clean: false, ..self.superblock.clone() };
        Repair {
            mends: self.mends.list,
            further_mends: self.mends.further,
            farewell: Vec::new(),
            body: Vec::new(),
            heads,
            superblocks: superblock.commit(),
            tails,
        }
    }
}
