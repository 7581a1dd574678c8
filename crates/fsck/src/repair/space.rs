//! Which blocks the shards refer to, which they record as used, and which several of them claim.

use super::records::{Shard, file_blocks};
use std::collections::{BTreeMap, BTreeSet};
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, ShardId};
use warren_disk::Value;

/// A shard's use of a chunk; the chunk's first block is bit 0.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Use {
    pub nodes: u64,
    pub extents: u64,
    pub recorded: u64,
}

impl Use {
    pub(super) const fn referred(&self) -> u64 {
        self.nodes | self.extents
    }
}

#[derive(Default)]
pub(super) struct Space {
    pub uses: BTreeMap<(u64, ShardId), Use>,
    /// Blocks that extents with other contents claim, or an extent and a node, or several shards.
    pub contested: BTreeSet<BlockNo>,
    /// For the contested blocks that are not nodes, the shard that keeps each. A shard takes it
    /// once.
    pub keepers: BTreeMap<BlockNo, ShardId>,
}

impl Space {
    pub(super) fn add(&mut self, shard: ShardId, found: &Shard) {
        for block in &found.nodes {
            self.of(shard, *block).nodes |= bit(*block);
        }
        for (key, value) in &found.records {
            if let Value::Chunk(used) = value {
                self.uses.entry((key.sub, shard)).or_default().recorded |= used;
            }
        }
        let mut places = file_blocks(&found.records);
        places.sort_unstable_by_key(|(_, block, _)| *block);
        // Places with the same contents share their block.
        for same in places.chunk_by(|a, b| a.1 == b.1) {
            let (_, block, checksum) = same[0];
            let uses = self.of(shard, block);
            let is_node = uses.nodes & bit(block) != 0;
            uses.extents |= bit(block);
            if is_node || same.iter().any(|place| place.2 != checksum) {
                self.contested.insert(block);
            }
        }
    }

    fn of(&mut self, shard: ShardId, block: BlockNo) -> &mut Use {
        self.uses.entry((block.0 / CHUNK_BLOCKS, shard)).or_default()
    }

    /// The uses of a chunk by all shards.
    pub(super) fn of_chunk(&self, chunk: u64) -> impl Iterator<Item = (ShardId, Use)> + '_ {
        let all = (chunk, ShardId(0))..=(chunk, ShardId(u16::MAX));
        self.uses.range(all).map(|((_, shard), uses)| (*shard, *uses))
    }

    /// Blocks of a chunk that some shard refers to, and those that are recorded as used.
    pub(super) fn taken(&self, chunk: u64) -> (u64, u64) {
        self.of_chunk(chunk).fold((0, 0), |(referred, recorded), (_, uses)| {
            (referred | uses.referred(), recorded | uses.recorded)
        })
    }

    pub(super) fn is_node(&self, block: BlockNo) -> bool {
        let chunk = block.0 / CHUNK_BLOCKS;
        self.of_chunk(chunk).any(|(_, uses)| uses.nodes & bit(block) != 0)
    }

    /// Whether the shard's extent may stay where it is. Asking for a contested block takes it.
    pub(super) fn keep(&mut self, shard: ShardId, owned: bool, block: BlockNo) -> bool {
        if !owned {
            return false;
        } else if !self.contested.contains(&block) {
            return true;
        }
        let keeps = self.keepers.get(&block) == Some(&shard);
        if keeps {
            self.keepers.remove(&block);
        }
        keeps
    }

    pub(super) fn chunks(&self) -> Vec<u64> {
        let mut chunks: Vec<_> = self.uses.keys().map(|(chunk, _)| *chunk).collect();
        chunks.dedup();
        chunks
    }
}

pub(super) const fn bit(block: BlockNo) -> u64 {
    1 << (block.0 % CHUNK_BLOCKS)
}

pub(super) fn blocks_of(chunk: u64, bits: u64) -> impl Iterator<Item = BlockNo> {
    let first = BlockNo(chunk * CHUNK_BLOCKS);
    (0..CHUNK_BLOCKS).filter(move |n| bits >> n & 1 == 1).map(move |n| first.offset(n))
}
