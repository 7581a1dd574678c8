//! The names of affinities, and which of them exclude each other.

use warren_base::ShardId;

/// A part of a cell's state in which one thread at a time may run.
///
/// File, stripe and range numbers are hashed over the fixed numbers of a [`Shape`](crate::Shape).
/// So equal parts are equal values.
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

impl Affinity {
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
}

const _: () = assert!(size_of::<Affinity>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    const A: ShardId = ShardId(1);
    const B: ShardId = ShardId(2);

    #[test]
    fn an_affinity_covers_itself_and_its_descendants() {
        let stripe = Affinity::Stripe(A, 3, 0);
        for coarse in [Affinity::Serial, Affinity::Volume, Affinity::Names(A), Affinity::File(A, 3)]
        {
            assert!(coarse.covers(stripe) && !stripe.covers(coarse));
        }
        let beside =
            [Affinity::Names(B), Affinity::File(A, 2), Affinity::Space, Affinity::Range(0)];
        for other in beside.into_iter().chain([Affinity::Stripe(A, 3, 1)]) {
            assert!(!other.covers(stripe) && !stripe.covers(other), "{other:?}");
        }
        assert!(stripe.covers(stripe));
    }
}
