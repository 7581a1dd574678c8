//! The tree as numbers: every affinity of a shape has a dense index, so that look-ups need no hash
//! and no search.
//!
//! ```text
//! 0 Serial | 1 Volume | 2 Space | ranges ... | names ... | files ... | stripes ...
//! ```

use warren_base::ShardId;

use crate::Affinity;

/// The number of affinities of each kind. More than threads, so that a thread rarely finds no work,
/// and few enough that the nodes stay in a core's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub shards: u16,
    /// The number of `File` affinities over which the files of a shard are hashed. A power of two.
    pub files: u16,
    /// The number of `Stripe` affinities over which the stripes of such files are hashed. A power
    /// of two.
    pub stripes: u16,
    /// The number of allocation ranges.
    pub ranges: u32,
}

/// A node's number in its tree.
pub(crate) type NodeNo = u32;

pub(crate) const SERIAL: NodeNo = 0;
const VOLUME: NodeNo = 1;
const SPACE: NodeNo = 2;
const FIRST_RANGE: NodeNo = 3;

impl Shape {
    /// The shape for a volume of `shards`: with eight files and four stripes each, every core of
    /// the largest machine that we tune for can work in one shard.
    pub const fn of(shards: u16) -> Self {
        Self { shards, files: 8, stripes: 4, ranges: 64 }
    }

    pub(crate) fn check(&self) {
        assert!(self.shards > 0 && self.ranges > 0);
        assert!(self.files.is_power_of_two() && self.stripes.is_power_of_two());
        let nodes = u64::from(self.shards) * u64::from(self.files) * u64::from(self.stripes);
        assert!(nodes + u64::from(self.ranges) < 1 << 24, "more affinities than could ever run");
    }

    fn first_names(&self) -> u32 {
        FIRST_RANGE + self.ranges
    }

    fn first_file(&self) -> u32 {
        self.first_names() + u32::from(self.shards)
    }

    fn first_stripe(&self) -> u32 {
        self.first_file() + u32::from(self.shards) * u32::from(self.files)
    }

    /// The number of affinities.
    pub fn nodes(&self) -> usize {
        let stripes = u32::from(self.shards) * u32::from(self.files) * u32::from(self.stripes);
        (self.first_stripe() + stripes) as usize
    }

    /// The number of an affinity, which must be of this shape.
    #[inline(always)]
    pub(crate) fn index(&self, affinity: Affinity) -> NodeNo {
        match affinity {
            Affinity::Names(shard) if shard.0 < self.shards => {
                FIRST_RANGE + self.ranges + u32::from(shard.0)
            }
            other => self.index_of(other),
        }
    }

    fn index_of(&self, affinity: Affinity) -> NodeNo {
        match affinity {
            Affinity::Serial => SERIAL,
            Affinity::Volume => VOLUME,
            Affinity::Space => SPACE,
            Affinity::Range(range) => {
                assert!(range < self.ranges, "no such range");
                FIRST_RANGE + range
            }
            Affinity::Names(shard) => {
                assert!(shard.0 < self.shards, "no such shard");
                self.first_names() + u32::from(shard.0)
            }
            Affinity::File(shard, file) => self.first_file() + self.file_index(shard, file),
            Affinity::Stripe(shard, file, stripe) => {
                assert!(stripe < self.stripes, "no such stripe");
                let file = self.file_index(shard, file);
                self.first_stripe() + file * u32::from(self.stripes) + u32::from(stripe)
            }
        }
    }

    fn file_index(&self, shard: ShardId, file: u16) -> u32 {
        assert!(shard.0 < self.shards && file < self.files, "no such file affinity");
        u32::from(shard.0) * u32::from(self.files) + u32::from(file)
    }

    /// All affinities, in the order of their numbers.
    pub fn affinities(self) -> impl Iterator<Item = Affinity> {
        let shards = move || (0..self.shards).map(ShardId);
        let files = move || shards().flat_map(move |s| (0..self.files).map(move |f| (s, f)));
        let coarse = [Affinity::Serial, Affinity::Volume, Affinity::Space];
        coarse
            .into_iter()
            .chain((0..self.ranges).map(Affinity::Range))
            .chain(shards().map(Affinity::Names))
            .chain(files().map(|(shard, file)| Affinity::File(shard, file)))
            .chain(files().flat_map(move |(shard, file)| {
                (0..self.stripes).map(move |stripe| Affinity::Stripe(shard, file, stripe))
            }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_affinity_has_its_own_number() {
        let shape = Shape { shards: 3, files: 4, stripes: 2, ranges: 5 };
        let numbers: Vec<u32> = shape.affinities().map(|affinity| shape.index(affinity)).collect();
        let expected: Vec<u32> = (0..shape.nodes() as u32).collect();
        assert_eq!(numbers, expected);
    }

    #[test]
    #[should_panic(expected = "no such shard")]
    fn a_shard_outside_the_shape_is_a_bug() {
        Shape::of(2).index(Affinity::Names(ShardId(2)));
    }
}
