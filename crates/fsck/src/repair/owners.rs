//! Decides which shard owns what it refers to: each chunk has one owner, each block one user.
//!
//! A block that is an intact tree node stays one and holds no file data. If several extents claim a
//! block, the first one of the chunk's owner keeps it, in the order of shards and keys, and the
//! others get copies. The reader verifies each copied block by its checksum.

use super::mend::Mend;
use super::repairer::Repairer;
use super::space::{bit, blocks_of};
use std::collections::BTreeMap;
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, ShardId};
use warren_disk::Owner;

impl Repairer<'_> {
    /// Gives every chunk an owner and every contested block a keeper, and marks the shards that
    /// must be rewritten for it.
    pub(super) fn decide_space(&mut self) {
        for chunk in self.space.chunks() {
            self.decide_owner(chunk);
            self.find_contested(chunk);
        }
        self.compare_records();
        for block in self.space.contested.clone() {
            if !self.space.is_node(block)
                && let Some(Owner::Shard(owner)) = self.region.owner(block.0 / CHUNK_BLOCKS)
            {
                self.space.keepers.insert(block, owner);
            }
        }
    }

    /// The shard that the map names, if it refers to the chunk; else the first that does.
    fn decide_owner(&mut self, chunk: u64) {
        let users = self.space.of_chunk(chunk).filter(|(_, uses)| uses.referred() != 0);
        let users: Vec<ShardId> = users.map(|(shard, _)| shard).collect();
        let owner = self.region.owner(chunk);
        let Some(&first) = users.first() else { return };
        match owner {
            Some(Owner::Shard(owner)) if users.contains(&owner) => {}
            Some(Owner::Shard(owner)) => {
                self.dirty.insert(owner);
                self.region.release(chunk);
                self.region.claim(chunk, first);
                self.report(Mend::ChunkOwner { chunk, to: first });
            }
            Some(Owner::Free) => {
                self.region.claim(chunk, first);
                self.report(Mend::ChunkOwner { chunk, to: first });
            }
            Some(Owner::Reserved) | None => {}
        }
        let owner = self.region.owner(chunk);
        self.dirty.extend(users.into_iter().filter(|user| owner != Some(Owner::Shard(*user))));
    }

    fn find_contested(&mut self, chunk: u64) {
        let (mut seen, mut twice) = (0, 0);
        let mut users = Vec::new();
        for (shard, uses) in self.space.of_chunk(chunk) {
            twice |= seen & uses.referred();
            seen |= uses.referred();
            users.push((shard, uses));
        }
        self.space.contested.extend(blocks_of(chunk, twice));
        let here = BlockNo(chunk * CHUNK_BLOCKS)..BlockNo((chunk + 1) * CHUNK_BLOCKS);
        let contested = self.space.contested.range(here).fold(0, |bits, block| bits | bit(*block));
        let involved = users.iter().filter(|(_, uses)| uses.referred() & contested != 0);
        self.dirty.extend(involved.map(|(shard, _)| *shard));
    }

    /// Finds shards whose Chunk records differ from their references.
    fn compare_records(&mut self) {
        let mut differences = BTreeMap::<ShardId, (u64, u64)>::new();
        for ((chunk, shard), uses) in &self.space.uses {
            let leaked = u64::from((uses.recorded & !uses.referred()).count_ones());
            let missing = u64::from((uses.referred() & !uses.recorded).count_ones());
            let owned = self.region.owner(*chunk) == Some(Owner::Shard(*shard));
            if !owned || leaked > 0 || missing > 0 {
                let sums = differences.entry(*shard).or_default();
                *sums = (sums.0 + leaked, sums.1 + missing);
            }
        }
        for (shard, (leaked, missing)) in differences {
            // For a shard that lost records the difference is already known.
            let known = !self.dirty.insert(shard);
            if leaked > 0 && !known {
                self.report(Mend::Leaked { shard, blocks: leaked });
            }
            if missing > 0 && !known {
                self.report(Mend::Recorded { shard, blocks: missing });
            }
        }
    }
}
