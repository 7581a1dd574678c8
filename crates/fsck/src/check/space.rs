//! Compares the blocks that are referred to with those recorded as used.

use crate::finding::Finding;
use crate::report::Report;
use std::collections::{BTreeMap, BTreeSet};
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, ShardId};
use warren_disk::{Owner, RegionMap, SharedRun};

#[derive(Default)]
pub(super) struct Space {
    /// For each chunk, the blocks that something refers to.
    references: BTreeMap<u64, u64>,
    /// The same of tree nodes.
    nodes: BTreeMap<u64, u64>,
    /// For each shared block, the shard that records it, the places besides one that it records,
    /// and those that were found.
    shared: BTreeMap<BlockNo, (ShardId, u16, u32)>,
    /// For each chunk, the shard that records it and the blocks that it records as used.
    records: BTreeMap<u64, (ShardId, u64)>,
    /// Shards whose trees are partly unknown.
    lost: BTreeSet<ShardId>,
}

impl Space {
    /// Counts a node's reference; false if the block already had one.
    pub(super) fn refer_node(&mut self, block: BlockNo) -> bool {
        *self.nodes.entry(block.0 / CHUNK_BLOCKS).or_default() |= bit(block);
        self.refer(block)
    }

    /// Counts a file's reference; false if the block already has another use, unless it is
    /// recorded as shared.
    pub(super) fn refer_data(&mut self, block: BlockNo, shard: ShardId) -> bool {
        if self.refer(block) {
            return true;
        }
        let nodes = self.nodes.get(&(block.0 / CHUNK_BLOCKS)).copied().unwrap_or(0);
        let shared = self.shared.get_mut(&block).filter(|_| nodes & bit(block) == 0);
        let Some((_, recorded, found)) = shared.filter(|(by, ..)| *by == shard) else {
            return false;
        };
        *found += 1;
        *found <= u32::from(*recorded)
    }

    fn refer(&mut self, block: BlockNo) -> bool {
        let bits = self.references.entry(block.0 / CHUNK_BLOCKS).or_default();
        let first = *bits & bit(block) == 0;
        *bits |= bit(block);
        first
    }

    /// Adds a shard's record of the shared blocks of a chunk.
    pub(super) fn record_shared(&mut self, shard: ShardId, chunk: u64, runs: &[SharedRun]) {
        let first = BlockNo(chunk.saturating_mul(CHUNK_BLOCKS));
        for run in runs {
            for at in (run.first..).take(run.blocks.into()) {
                self.shared.insert(first.offset(at.into()), (shard, run.others, 0));
            }
        }
    }

    /// Shared blocks of complete shards that have fewer places than recorded.
    pub(super) fn compare_shared(&self, report: &mut Report) {
        for (block, (shard, recorded, found)) in &self.shared {
            let (block, shard) = (*block, *shard);
            let (recorded, found) = ((*recorded).into(), *found);
            if found < recorded && !self.lost.contains(&shard) {
                report.add(Finding::Places { shard, block, recorded, found });
            }
        }
    }

    pub(super) fn belongs(&self, region: &RegionMap, block: BlockNo, shard: ShardId) -> bool {
        region.owner(block.0 / CHUNK_BLOCKS) == Some(Owner::Shard(shard))
    }

    /// Adds a shard's Chunk record; false if the shard does not own the chunk.
    pub(super) fn record(
        &mut self,
        region: &RegionMap,
        shard: ShardId,
        chunk: u64,
        used: u64,
    ) -> bool {
        let owned = region.owner(chunk) == Some(Owner::Shard(shard));
        if owned {
            self.records.insert(chunk, (shard, used));
        }
        owned
    }

    /// The shard's chunks that its tree does not record.
    pub(super) fn unrecorded(
        &self,
        region: &RegionMap,
        shard: ShardId,
    ) -> impl Iterator<Item = u64> {
        let owned = region.iter().filter(move |(_, owner)| *owner == Owner::Shard(shard));
        owned.map(|(chunk, _)| chunk).filter(|chunk| !self.records.contains_key(chunk))
    }

    /// Notes that part of the shard's tree could not be read. So blocks without a user are not
    /// reported as leaked.
    pub(super) fn lose(&mut self, shard: ShardId) {
        self.lost.insert(shard);
    }

    /// Blocks in use without a record of it, and recorded blocks that are not in use.
    pub(super) fn compare(&self, region: &RegionMap, report: &mut Report) {
        for (chunk, owner) in region.iter() {
            let Owner::Shard(shard) = owner else { continue };
            let (_, recorded) = self.records.get(&chunk).copied().unwrap_or((shard, 0));
            let referred = self.references.get(&chunk).copied().unwrap_or(0);
            report.used_blocks += u64::from(referred.count_ones());
            if self.lost.contains(&shard) {
                continue;
            }
            for block in blocks_of(chunk, referred & !recorded) {
                report.add(Finding::NotRecorded { shard, block });
            }
            for block in blocks_of(chunk, recorded & !referred) {
                report.add(Finding::Leaked { shard, block });
            }
        }
    }
}

const fn bit(block: BlockNo) -> u64 {
    1 << (block.0 % CHUNK_BLOCKS)
}

fn blocks_of(chunk: u64, bits: u64) -> impl Iterator<Item = BlockNo> {
    let first = BlockNo(chunk * CHUNK_BLOCKS);
    (0..CHUNK_BLOCKS).filter(move |n| bits >> n & 1 == 1).map(move |n| first.offset(n))
}
