//! The names of affinities, and which of them exclude each other.

use warren_base::ShardId;

/// A part of a cell's state in which one thread at a time may run.
///
/// File, stripe and range numbers are hashed over a fixed number; [`Shape`](crate::Shape) makes
/// them, so that equal parts are equal values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Affinity {
    /// Everything of the cell.
    Serial,
    /// Everything of the volume.
    Volume,
    /// One shard: its entries, inodes and numbers.
    Names(ShardId),
    /// The files of one shard whose numbers have the same hash: size, times, extents.
    File(ShardId, u16),
    /// 2 MiB pieces of such files whose offsets have the same hash.
    Stripe(ShardId, u16, u16),
    /// All free space of the volume.
    Space,
    /// One allocation range.
    Range(u32),
}

/// The kind of an affinity, for counters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Serial,
    Volume,
    Names,
    File,
    Stripe,
    Space,
    Range,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Serial,
        Self::Volume,
        Self::Names,
        Self::File,
        Self::Stripe,
        Self::Space,
        Self::Range,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Volume => "volume",
            Self::Names => "names",
            Self::File => "file",
            Self::Stripe => "stripe",
            Self::Space => "space",
            Self::Range => "range",
        }
    }
}

impl Affinity {
    pub const fn kind(self) -> Kind {
        match self {
            Self::Serial => Kind::Serial,
            Self::Volume => Kind::Volume,
            Self::Names(_) => Kind::Names,
            Self::File(..) => Kind::File,
            Self::Stripe(..) => Kind::Stripe,
            Self::Space => Kind::Space,
            Self::Range(_) => Kind::Range,
        }
    }

    /// The next coarser affinity; `Serial` has none.
    pub const fn parent(self) -> Option<Self> {
        match self {
            Self::Serial => None,
            Self::Volume => Some(Self::Serial),
            Self::Names(_) | Self::Space => Some(Self::Volume),
            Self::File(shard, _) => Some(Self::Names(shard)),
            Self::Stripe(shard, file, _) => Some(Self::File(shard, file)),
            Self::Range(_) => Some(Self::Space),
        }
    }

    /// This affinity and its ancestors, finest first.
    pub fn path(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |at| at.parent())
    }

    /// Whether a message that runs here may access what belongs to `other`.
    #[inline]
    pub fn covers(self, other: Self) -> bool {
        match self {
            Self::Serial => true,
            Self::Volume => !matches!(other, Self::Serial),
            _ => other.path().any(|at| at == self),
        }
    }

    /// Whether the two may not run at the same time: one covers the other.
    pub fn excludes(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The finest affinity that covers both: a message that needs both runs there (slow path).
    pub fn covering(self, other: Self) -> Self {
        self.path().find(|at| at.covers(other)).unwrap_or(Self::Serial)
    }
}

const _: () = assert!(size_of::<Affinity>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    const A: ShardId = ShardId(1);
    const B: ShardId = ShardId(2);

    #[test]
    fn only_ancestors_and_descendants_exclude() {
        let stripe = Affinity::Stripe(A, 3, 0);
        for coarse in [Affinity::Serial, Affinity::Volume, Affinity::Names(A), Affinity::File(A, 3)]
        {
            assert!(coarse.excludes(stripe) && stripe.excludes(coarse));
            assert!(coarse.covers(stripe) && !stripe.covers(coarse));
        }
        let beside =
            [Affinity::Names(B), Affinity::File(A, 2), Affinity::Space, Affinity::Range(0)];
        for other in beside.into_iter().chain([Affinity::Stripe(A, 3, 1)]) {
            assert!(!other.excludes(stripe), "{other:?}");
        }
        assert!(stripe.excludes(stripe));
    }

    #[test]
    fn the_slow_path_goes_to_the_nearest_common_ancestor() {
        let stripe = Affinity::Stripe(A, 3, 0);
        assert_eq!(stripe.covering(Affinity::Stripe(A, 3, 1)), Affinity::File(A, 3));
        assert_eq!(stripe.covering(Affinity::File(A, 2)), Affinity::Names(A));
        assert_eq!(stripe.covering(Affinity::Range(7)), Affinity::Volume);
        assert_eq!(stripe.covering(Affinity::Serial), Affinity::Serial);
        assert_eq!(Affinity::Names(A).covering(stripe), Affinity::Names(A));
    }
}
