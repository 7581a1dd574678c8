//! The tree as numbers: every affinity of a shape has a dense index, so that look-ups need no hash
//! and no search.
//!
//! ```text
//! 0 Serial | 1 Volume | 2 Space | ranges ... | names ... | files ... | stripes ...
//! ```

use warren_base::{Ino, ShardId};

use crate::Affinity;

/// Bytes of one stripe of a file (Waffinity, section 3).
pub const STRIPE_BYTES: u64 = 2 << 20;

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

    /// The affinity of a shard's names.
    pub fn names(&self, shard: ShardId) -> Affinity {
        assert!(shard.0 < self.shards, "no such shard");
        Affinity::Names(shard)
    }

    /// The affinity of a file's attributes and extents.
    pub fn file(&self, ino: Ino) -> Affinity {
        let Affinity::Names(shard) = self.names(ino.shard()) else { unreachable!() };
        Affinity::File(shard, spread(ino.sequence(), self.files))
    }

    /// The affinity of a file's bytes around `offset`.
    pub fn stripe(&self, ino: Ino, offset: u64) -> Affinity {
        let Affinity::File(shard, file) = self.file(ino) else { unreachable!() };
        // The inode's number is added, so that the first stripes of small files spread.
        let stripe = spread(ino.sequence().wrapping_add(offset / STRIPE_BYTES), self.stripes);
        Affinity::Stripe(shard, file, stripe)
    }

    /// The affinity of an allocation range.
    pub fn range(&self, number: u64) -> Affinity {
        Affinity::Range((number % u64::from(self.ranges)) as u32)
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

/// Spreads consecutive numbers over `count`, a power of two, by their hash (Knuth's multiplier, top
/// bits).
fn spread(number: u64, count: u16) -> u16 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    mixed as u16 & (count - 1)
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
    fn files_and_stripes_spread() {
        let shape = Shape::of(2);
        let ino = |sequence| Ino::new(ShardId(1), sequence);
        let files: std::collections::BTreeSet<_> = (1..200).map(|n| shape.file(ino(n))).collect();
        assert_eq!(files.len(), usize::from(shape.files));
        let stripes = (0..200).map(|n| shape.stripe(ino(1), n * STRIPE_BYTES));
        let stripes: std::collections::BTreeSet<_> = stripes.collect();
        assert_eq!(stripes.len(), usize::from(shape.stripes));
        assert!(stripes.iter().all(|stripe| shape.file(ino(1)).covers(*stripe)));
        assert_eq!(shape.stripe(ino(1), 0), shape.stripe(ino(1), STRIPE_BYTES - 1));
    }

    #[test]
    #[should_panic(expected = "no such shard")]
    fn a_shard_outside_the_shape_is_a_bug() {
        Shape::of(2).names(ShardId(2));
    }
}
