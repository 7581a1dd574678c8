//! The inode numbers that programs see.
//!
//! An [`Ino`] has its shard in the upper 16 bits, so all but those of shard 0 are above 2^48. A
//! 32-bit program without large-file support gets EOVERFLOW for each file whose number is above
//! 2^32. So programs see another number, which is small while few inodes were made:
//!
//! ```text
//!  63           bits         0
//!  | sequence - 1 | shard    |  + 1        2^bits is the number of shards, rounded up
//! ```
//!
//! The number of shards is constant for a pool's life, and so is an inode's number. The root
//! directory has number 1, and no inode has number 0. Only what programs see has such numbers:
//! messages between processes, structures on the device and the kernel's node ids have the [`Ino`].

use crate::{Ino, ShardId};

/// The numbering of a pool's inodes for programs. The default shows the stored numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InodeNumbers {
    /// The bits of a shard in a dense number. `None`: programs see the [`Ino`].
    shard_bits: Option<u8>,
}

impl InodeNumbers {
    /// The numbers of a pool that was made before there were dense ones.
    pub const STORED: Self = Self { shard_bits: None };
    const CODE_STORED: u8 = u8::MAX;
    /// Bits of a shard in an [`Ino`].
    const SHARD_BITS_MAX: u8 = 16;

    /// The numbers of a pool with so many shards, 1 to 65536. If `dense`, they are small.
    pub const fn new(dense: bool, shards: u32) -> Self {
        assert!(shards >= 1 && shards <= 1 << Self::SHARD_BITS_MAX);
        let bits = (u32::BITS - (shards - 1).leading_zeros()) as u8;
        Self { shard_bits: if dense { Some(bits) } else { None } }
    }

    /// The number that programs see of this inode. An `ino` that the pool cannot have, because it
    /// names no shard of it, stays as it is: no inode of the pool has that number.
    pub const fn number(self, ino: Ino) -> u64 {
        let (Some(bits), shard) = (self.shard_bits, ino.shard().0 as u64) else { return ino.0 };
        if ino.sequence() == 0 || shard >> bits != 0 {
            return ino.0;
        }
        ((ino.sequence() - 1) << bits | shard) + 1
    }

    /// The inode that programs see with this number. The inverse of [`Self::number`].
    pub const fn ino(self, number: u64) -> Ino {
        let Some(bits) = self.shard_bits else { return Ino(number) };
        let Some(from_zero) = number.checked_sub(1) else { return Ino(0) };
        let (shard, sequence) = (from_zero & ((1 << bits) - 1), from_zero >> bits);
        if sequence >= Ino::SEQUENCE_MAX {
            return Ino(number);
        }
        Ino::new(ShardId(shard as u16), sequence + 1)
    }

    /// This in one byte, for [`Self::from_code`].
    pub const fn code(self) -> u8 {
        match self.shard_bits {
            Some(bits) => bits,
            None => Self::CODE_STORED,
        }
    }

    /// The numbers with this code. An unknown one stands for the stored numbers.
    pub const fn from_code(code: u8) -> Self {
        Self { shard_bits: if code <= Self::SHARD_BITS_MAX { Some(code) } else { None } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use std::collections::BTreeSet;

    const SEQUENCES: [u64; 6] = [1, 2, 255, 1 << 24, Ino::SEQUENCE_MAX - 1, Ino::SEQUENCE_MAX];

    fn check(numbers: InodeNumbers, ino: Ino) {
        let number = numbers.number(ino);
        assert_ne!(number, 0, "{ino:?}");
        assert_eq!(numbers.ino(number), ino, "{number}");
        assert_eq!(InodeNumbers::from_code(numbers.code()), numbers);
    }

    #[test]
    fn numbers_and_inodes_correspond_for_every_number_of_shards() {
        let mut rng = Rng::new(1);
        for shards in 1..=1 << 16 {
            for numbers in [true, false].map(|dense| InodeNumbers::new(dense, shards)) {
                let some = rng.below(u64::from(shards)) as u32;
                for shard in [0, some, shards - 1].map(|shard| ShardId(shard as u16)) {
                    SEQUENCES.iter().for_each(|it| check(numbers, Ino::new(shard, *it)));
                    check(numbers, Ino::new(shard, 1 + rng.below(Ino::SEQUENCE_MAX)));
                }
            }
        }
    }

    #[test]
    fn no_two_inodes_share_a_number_and_the_root_has_the_first() {
        for shards in [1, 2, 3, 8, 100, 256] {
            let numbers = InodeNumbers::new(true, shards);
            let shard_ids = || (0..shards as u16).map(ShardId);
            let inos = shard_ids().flat_map(|shard| (1..50).map(move |at| Ino::new(shard, at)));
            let all: BTreeSet<u64> = inos.map(|ino| numbers.number(ino)).collect();
            assert_eq!(all.len(), shards as usize * 49);
            assert!(
                all.last().is_some_and(|last| *last <= u64::from(shards.next_power_of_two()) * 49)
            );
            assert_eq!(numbers.number(Ino::ROOT), 1);
        }
    }

    #[test]
    fn the_first_number_above_32_bits_follows_from_the_number_of_shards() {
        for (shards, last) in [(1, 1 << 32), (8, 1 << 29), (256, 1 << 24), (4096, 1 << 20)] {
            let numbers = InodeNumbers::new(true, shards);
            let of = |sequence| numbers.number(Ino::new(ShardId(shards as u16 - 1), sequence));
            assert_eq!((of(last - 1) >> 32, of(last), of(last + 1) >> 32), (0, 1 << 32, 1));
        }
    }

    #[test]
    fn what_is_no_inode_of_the_pool_keeps_its_number() {
        let numbers = InodeNumbers::new(true, 4);
        for ino in [Ino(0), Ino::new(ShardId(4), 1), Ino(u64::MAX)] {
            assert_eq!(numbers.number(ino), ino.0);
            assert_eq!(numbers.ino(ino.0), ino);
        }
        assert_eq!(InodeNumbers::STORED.number(Ino::new(ShardId(3), 7)), 3 << 48 | 7);
        assert_eq!(InodeNumbers::default(), InodeNumbers::STORED);
    }
}
