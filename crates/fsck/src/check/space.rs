//! Compares the blocks that are referred to with those recorded as used.

use crate::finding::Finding;
use crate::report::Report;
use std::collections::{BTreeMap, BTreeSet};
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, ShardId};
use warren_disk::{Owner, RegionMap};

#[derive(Default)]
pub(super) struct Space {
    /// For each chunk, the blocks that something refers to.
    references: BTreeMap<u64, u64>,
    /// For each chunk, the shard that records it and the blocks that it records as used.
    records: BTreeMap<u64, (ShardId, u64)>,
    /// Shards whose trees are partly unknown.
    lost: BTreeSet<ShardId>,
}

impl Space {
    /// Counts a reference; false if the block already had one.
    pub(super) fn refer(&mut self, block: BlockNo) -> bool {
        let bits = self.references.entry(block.0 / CHUNK_BLOCKS).or_default();
        let bit = 1 << (block.0 % CHUNK_BLOCKS);
        let first = *bits & bit == 0;
        *bits |= bit;
        first
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

fn blocks_of(chunk: u64, bits: u64) -> impl Iterator<Item = BlockNo> {
    let first = BlockNo(chunk * CHUNK_BLOCKS);
    (0..CHUNK_BLOCKS).filter(move |n| bits >> n & 1 == 1).map(move |n| first.offset(n))
}
