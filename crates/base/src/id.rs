//! Newtypes for everything that has a number, so that numbers of different kinds cannot be
//! confused.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($raw:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $raw);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// A cell: one server process, the unit of failure, of restart and of scaling.
    CellId(u16), "cell "
);
id!(
    /// A fixed slice of a volume's name space and inodes.
    ShardId(u16), "shard "
);
id!(
    /// An admitted client. Never reused while a fleet lives.
    ClientId(u32), "client "
);
id!(
    /// A slot of a client's segment: one request in flight.
    SlotNo(u16), "slot "
);
id!(
    /// The number of a cell's starts. Messages of an earlier epoch are refused as stale.
    Epoch(u32), "epoch "
);
id!(
    /// Version of the shard map; grows by one with every change.
    MapVersion(u32), "map v"
);
id!(
    /// A log sequence number: a byte position in a cell's op log that is never reused.
    Lsn(u64), "lsn "
);
id!(
    /// A 4 KiB block of the pool device, counted from its start.
    BlockNo(u64), "block "
);

impl SlotNo {
    /// The client's stream of posted records, which executes like a slot (`warren_proto::stream`).
    pub const STREAM: Self = Self(u16::MAX);
}

impl BlockNo {
    /// The block `n` blocks further on.
    pub const fn offset(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

/// A transaction over several cells: the coordinator and its running number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TxnId {
    pub cell: CellId,
    pub seq: u64,
}

/// An inode number. It contains its shard for life: `shard : sequence`, 16 and 48 bits, and a
/// sequence number is never used twice. The root directory is inode 1 of shard 0, so its number is
/// 1, as FUSE requires.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ino(pub u64);

impl Ino {
    pub const ROOT: Self = Self(1);
    const SEQUENCE_BITS: u32 = 48;
    /// The largest sequence number of a shard.
    pub const SEQUENCE_MAX: u64 = (1 << Self::SEQUENCE_BITS) - 1;

    /// Inode `sequence` of `shard`. `sequence` is in `1..=SEQUENCE_MAX`.
    pub const fn new(shard: ShardId, sequence: u64) -> Self {
        assert!(sequence >= 1 && sequence <= Self::SEQUENCE_MAX);
        Self(((shard.0 as u64) << Self::SEQUENCE_BITS) | sequence)
    }

    pub const fn shard(self) -> ShardId {
        ShardId((self.0 >> Self::SEQUENCE_BITS) as u16)
    }

    pub const fn sequence(self) -> u64 {
        self.0 & Self::SEQUENCE_MAX
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ino {}:{}", self.shard().0, self.sequence())
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_inode_one() {
        assert_eq!(Ino::new(ShardId(0), 1), Ino::ROOT);
    }

    #[test]
    fn an_inode_names_its_shard() {
        let ino = Ino::new(ShardId(4095), Ino::SEQUENCE_MAX);
        assert_eq!(ino.shard(), ShardId(4095));
        assert_eq!(ino.sequence(), Ino::SEQUENCE_MAX);
    }
}
