//! The superblock: the identity of a pool, and its last checkpoint.
//!
//! Two copies, in blocks 0 and 1; the fields lie in the first 512 bytes, the rest is zero. The
//! commit of checkpoint `n` is the write of copy `n % 2`. After its flush the other copy is written
//! too, so that a later loss of one copy never takes the pool back to a state whose blocks were
//! used again. Every write of a superblock has a new generation, also one that only changes the
//! clean flag.
//!
//! In every version, the magic, the checksum (over everything behind it) and the version have the
//! same place, so that any version can distinguish a newer pool from a damaged one.

use crate::BlockWrite;
use crate::codec::{Put, Take, crc_behind};
use crate::layout::Layout;
use thiserror::Error;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, InodeNumbers, Timestamp};

/// The newest version of the format that this crate reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 9;

/// The version of a pool whose region map lies before the root slots: all that have not grown far.
/// Their superblocks are written so, because earlier software can use them.
const VERSION_BEFORE_GROWTH: u32 = 8;

/// Bytes of a pool's label.
pub(crate) const LABEL_MAX: usize = 64;

/// The first bytes of every pool.
pub(crate) type Uuid = [u8; 16];

/// A limit that no pool's number of checkpoints reaches. Adding to a number below it cannot
/// overflow.
const GENERATION_MAX: u64 = 1 << 62;

const MAGIC: [u8; 8] = *b"WARRENfs";
const COVERED_FROM: usize = 12;
const FIELDS_LEN: usize = 185;
const FLAG_CLEAN: u16 = 1;
const FLAG_RESERVED: u16 = 2;
/// Bits of the flags with the percentage that is kept for root, and one. Zero: the usual part.
const KEPT_SHIFT: u32 = 8;
/// The largest part of a pool that can be kept for root.
pub const KEPT_PERCENT_MAX: u8 = 50;

const _: () = {
    assert!(FIELDS_LEN == 8 + 4 + 4 + 16 + 10 * 8 + 2 + 2 + 4 + LABEL_MAX + 1);
    assert!(FIELDS_LEN <= 512);
};

/// The metadata of a pool that is known before its trees are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    pub uuid: Uuid,
    /// Seed of [`crate::name_hash`]. Only the servers may know it.
    pub secret: u64,
    /// The number of the last checkpoint.
    pub generation: u64,
    pub layout: Layout,
    pub created: Timestamp,
    /// At most [`LABEL_MAX`] bytes.
    pub label: String,
    /// Stopped in order: nothing to replay. There may be orphans, which the next start frees.
    pub clean: bool,
    /// The host has allocated all of the file and keeps it allocated: nothing is returned to it.
    pub reserved: bool,
    /// The part of the pool that only root and the fleet's owner may fill. `None`: the usual part.
    pub kept_percent: Option<u8>,
    /// Programs see dense inode numbers, as in all new pools: see [`InodeNumbers`]. Earlier
    /// software ignores this and clears it with its first checkpoint.
    pub dense_inos: bool,
}

/// Why a block is not a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SuperblockError {
    #[error("not a Warren pool")]
    NotAPool,
    #[error("format version {0} is not known (this is version {FORMAT_VERSION})")]
    UnknownVersion(u32),
    #[error("the superblock's checksum is wrong")]
    BadChecksum,
    #[error("the superblock makes no sense: {0}")]
    Nonsense(&'static str),
}

/// The relation of the two copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopiesState {
    /// Both have the same contents.
    Agree,
    /// This copy is behind: the last commit was interrupted before it was rewritten.
    Behind(usize),
    /// This copy cannot be read.
    Bad(usize, SuperblockError),
}

impl Superblock {
    /// The copy whose write commits `generation`.
    pub fn commit_copy(generation: u64) -> BlockNo {
        BlockNo(generation % 2)
    }

    /// The writes that commit this superblock, in order; a flush precedes and follows the first.
    pub fn commit(&self) -> [BlockWrite; 2] {
        let first = Self::commit_copy(self.generation);
        [first, BlockNo(1 - first.0)].map(|block| (block, self.encode()))
    }

    /// The chunks that ordinary users must leave to root and the fleet's owner.
    pub fn kept_chunks(&self) -> u64 {
        let chunks = self.layout.bounds().count();
        self.kept_percent.map_or_else(
            || warren_base::budget::reserve_of(chunks as usize) as u64,
            |percent| chunks * u64::from(percent) / 100,
        )
    }

    /// The inode numbers that programs see.
    pub fn inode_numbers(&self) -> InodeNumbers {
        InodeNumbers::new(self.dense_inos, self.layout.shards().into())
    }

    pub fn encode(&self) -> Box<[u8]> {
        assert!(self.label.len() <= LABEL_MAX);
        let mut out = Vec::with_capacity(BLOCK_SIZE);
        out.extend_from_slice(&MAGIC);
        out.u32(0);
        out.u32(match self.layout.has_map_pages_in_chunks() {
            true => FORMAT_VERSION,
            false => VERSION_BEFORE_GROWTH,
        });
        out.extend_from_slice(&self.uuid);
        for field in [self.secret, self.generation, self.layout.total_blocks()] {
            out.u64(field);
        }
        self.layout_fields().iter().for_each(|(_, value)| out.u64(*value));
        out.u64(self.layout.log_blocks());
        out.i64(self.created.0);
        out.u16(self.layout.shards());
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let kept = self.kept_percent.map_or(0, |percent| u16::from(percent) + 1) << KEPT_SHIFT;
        out.u16(flag(self.clean, FLAG_CLEAN) | flag(self.reserved, FLAG_RESERVED) | kept);
        out.u32(self.label.len() as u32);
        out.extend_from_slice(self.label.as_bytes());
        out.resize(out.len() + LABEL_MAX - self.label.len(), 0);
        out.push(self.dense_inos.into());
        debug_assert_eq!(out.len(), FIELDS_LEN);
        out.resize(BLOCK_SIZE, 0);
        let crc = crc_behind(&out, COVERED_FROM);
        out[8..COVERED_FROM].copy_from_slice(&crc.to_le_bytes());
        out.into()
    }

    /// Fields that follow from others. They are stored for tools and as a check.
    fn layout_fields(&self) -> [(&'static str, u64); 5] {
        let layout = &self.layout;
        [
            ("start of the region map", layout.region_start().0),
            ("pages of the region map", layout.first_pages()),
            ("start of the root slots", layout.roots_start().0),
            ("start of the op logs", layout.log_start().0),
            ("first block that may be allocated", layout.metadata_blocks()),
        ]
    }

    /// The superblock in these 4096 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let short = SuperblockError::NotAPool;
        let mut take = Take::new(bytes);
        let (magic, crc) = (take.array().ok_or(short)?, take.u32().ok_or(short)?);
        let version = take.u32().ok_or(short)?;
        if bytes.len() != BLOCK_SIZE || magic != MAGIC {
            Err(SuperblockError::NotAPool)
        } else if crc != crc_behind(bytes, COVERED_FROM) {
            Err(SuperblockError::BadChecksum)
        } else if !(VERSION_BEFORE_GROWTH..=FORMAT_VERSION).contains(&version) {
            Err(SuperblockError::UnknownVersion(version))
        } else {
            Self::decode_fields(&mut take, version).unwrap_or(Err(short))
        }
    }

    fn decode_fields(take: &mut Take<'_>, version: u32) -> Option<Result<Self, SuperblockError>> {
        let uuid = take.array()?;
        let (secret, generation, total_blocks) = (take.u64()?, take.u64()?, take.u64()?);
        let stored = [take.u64()?, take.u64()?, take.u64()?, take.u64()?, take.u64()?];
        let log_blocks = take.u64()?;
        let created = Timestamp(take.i64()?);
        let (shards, flags) = (take.u16()?, take.u16()?);
        let label_len = usize::try_from(take.u32()?).ok()?;
        let label = take.bytes(LABEL_MAX)?.get(..label_len).map(<[u8]>::to_vec);
        let [dense_inos] = take.array()?;
        let nonsense = |what| Some(Err(SuperblockError::Nonsense(what)));
        let Some(label) = label.and_then(|label| String::from_utf8(label).ok()) else {
            return nonsense("label");
        };
        let [_, first_pages, ..] = stored;
        let Some(layout) = Layout::with_pages(total_blocks, first_pages, shards, log_blocks) else {
            return nonsense("sizes of the device, region map or logs, or number of shards");
        };
        if layout.has_map_pages_in_chunks() != (version == FORMAT_VERSION) {
            return nonsense("pages of the region map");
        }
        let [kept, few] = flags.to_be_bytes();
        let kept_percent = kept.checked_sub(1);
        if u16::from(few) & !(FLAG_CLEAN | FLAG_RESERVED) != 0 {
            return nonsense("flags");
        } else if kept_percent.is_some_and(|percent| percent > KEPT_PERCENT_MAX) {
            return nonsense("space that is kept for root");
        } else if dense_inos > 1 {
            return nonsense("inode numbers");
        } else if layout.logs_max() == 0 {
            return nonsense("size of the logs");
        } else if !(1..=GENERATION_MAX).contains(&generation) {
            return nonsense("generation");
        }
        let (clean, reserved) = (flags & FLAG_CLEAN != 0, flags & FLAG_RESERVED != 0);
        let superblock = Self {
            uuid,
            secret,
            generation,
            layout,
            created,
            label,
            clean,
            reserved,
            kept_percent,
            dense_inos: dense_inos == 1,
        };
        for ((what, computed), stored) in superblock.layout_fields().into_iter().zip(stored) {
            if computed != stored {
                return nonsense(what);
            }
        }
        Some(Ok(superblock))
    }

    /// The valid copy, and its relation to the other. `a` and `b` are blocks 0 and 1.
    pub fn choose(a: &[u8], b: &[u8]) -> Result<(Self, CopiesState), SuperblockError> {
        match (Self::decode(a), Self::decode(b)) {
            (Ok(a), Ok(b)) => Self::choose_of_two(a, b),
            // A newer pool. Its other copy may be one that this version misreads.
            (Err(SuperblockError::UnknownVersion(version)), _)
            | (_, Err(SuperblockError::UnknownVersion(version))) => {
                Err(SuperblockError::UnknownVersion(version))
            }
            (Ok(a), Err(error)) => Ok((a, CopiesState::Bad(1, error))),
            (Err(error), Ok(b)) => Ok((b, CopiesState::Bad(0, error))),
            (Err(SuperblockError::NotAPool), Err(error)) | (Err(error), Err(_)) => Err(error),
        }
    }

    fn choose_of_two(a: Self, b: Self) -> Result<(Self, CopiesState), SuperblockError> {
        // A commit that made the pool larger may have been interrupted between the two.
        let [older, newer] = if a.generation < b.generation { [&a, &b] } else { [&b, &a] };
        let fits = older.layout == newer.layout
            || older.generation < newer.generation
                && older.layout.is_of_same_pool(&newer.layout)
                && older.layout.total_blocks() < newer.layout.total_blocks();
        if a.uuid != b.uuid || a.secret != b.secret || !fits {
            return Err(SuperblockError::Nonsense("the copies are of different pools"));
        } else if a == b {
            return Ok((a, CopiesState::Agree));
        }
        // Two copies with one generation are never written. Of such, the one that causes a replay.
        let rank = |superblock: &Self| (superblock.generation, !superblock.clean);
        if rank(&a) >= rank(&b) {
            Ok((a, CopiesState::Behind(1)))
        } else {
            Ok((b, CopiesState::Behind(0)))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::log::LOG_BLOCKS_MIN;
    use warren_base::Rng;

    pub(crate) fn superblock(generation: u64) -> Superblock {
        Superblock {
            uuid: *b"0123456789abcdef",
            secret: 42,
            generation,
            layout: Layout::new(1 << 20, 256, 2 + LOG_BLOCKS_MIN).unwrap(),
            created: Timestamp(1),
            label: "größe".to_owned(),
            clean: true,
            reserved: true,
            kept_percent: Some(7),
            dense_inos: true,
        }
    }

    fn tampered(at: usize, byte: u8) -> Result<Superblock, SuperblockError> {
        let mut bytes = superblock(7).encode();
        bytes[at] = byte;
        let crc = crc_behind(&bytes, COVERED_FROM);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        Superblock::decode(&bytes)
    }

    #[test]
    fn survives_its_bytes_within_one_sector() {
        let bytes = superblock(7).encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock(7)));
        assert!(bytes[FIELDS_LEN..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn says_what_is_wrong() {
        let zeros = [0; BLOCK_SIZE];
        assert_eq!(Superblock::decode(&zeros), Err(SuperblockError::NotAPool));
        assert_eq!(Superblock::decode(&zeros[..9]), Err(SuperblockError::NotAPool));
        let mut rotten = superblock(7).encode();
        rotten[4000] = 1;
        assert_eq!(Superblock::decode(&rotten), Err(SuperblockError::BadChecksum));
        assert_eq!(tampered(12, 10), Err(SuperblockError::UnknownVersion(10)));
        assert_eq!(tampered(12, 7), Err(SuperblockError::UnknownVersion(7)));
        assert!(matches!(tampered(12, 9), Err(SuperblockError::Nonsense(_))), "has not grown");
        assert!(matches!(tampered(56, 1), Err(SuperblockError::Nonsense(_))), "region map");
        assert!(matches!(tampered(113, 0xff), Err(SuperblockError::Nonsense(_))), "shards");
        assert!(matches!(tampered(115, 52), Err(SuperblockError::Nonsense(_))), "kept for root");
        assert_eq!(tampered(115, 51).map(|it| it.kept_percent), Ok(Some(50)));
        assert_eq!(tampered(115, 0).map(|it| it.kept_percent), Ok(None));
        assert!(matches!(tampered(184, 2), Err(SuperblockError::Nonsense(_))), "inode numbers");
        assert_eq!(tampered(184, 0).map(|it| it.dense_inos), Ok(false), "an earlier pool");
        assert!(matches!(tampered(47, 0x80), Err(SuperblockError::Nonsense(_))), "generation");
        let no_logs = Layout::new(1 << 20, 256, 64).unwrap();
        let no_logs = Superblock { layout: no_logs, ..superblock(7) }.encode();
        assert!(matches!(Superblock::decode(&no_logs), Err(SuperblockError::Nonsense(_))));
    }

    #[test]
    fn the_newer_copy_counts_and_one_is_enough() {
        let (old, new) = (superblock(6).encode(), superblock(7).encode());
        let rotten = [0; BLOCK_SIZE];
        let bad = |copy| CopiesState::Bad(copy, SuperblockError::NotAPool);
        let choose = |a: &[u8], b: &[u8]| {
            Superblock::choose(a, b).map(|(chosen, state)| (chosen.generation, state))
        };
        assert_eq!(choose(&new, &new), Ok((7, CopiesState::Agree)));
        assert_eq!(choose(&old, &new), Ok((7, CopiesState::Behind(0))));
        assert_eq!(choose(&new, &old), Ok((7, CopiesState::Behind(1))));
        assert_eq!(choose(&new, &rotten), Ok((7, bad(1))));
        assert_eq!(choose(&rotten, &new), Ok((7, bad(0))));
        assert_eq!(choose(&rotten, &rotten), Err(SuperblockError::NotAPool));
    }

    #[test]
    fn a_pool_that_has_grown_far_has_another_version_and_keeps_its_places() {
        let before = superblock(7);
        let grown = |blocks| {
            let layout = before.layout.grown(blocks).unwrap();
            Superblock { generation: 8, layout, ..before.clone() }
        };
        let (near, far) = (grown((1 << 20) + 64), grown(1 << 24));
        for (superblock, version) in [(&before, 8), (&near, 8), (&far, 9)] {
            let bytes = superblock.encode();
            assert_eq!((bytes[12], Superblock::decode(&bytes)), (version, Ok(superblock.clone())));
        }
        // A commit was interrupted between the two copies.
        for after in [near, far] {
            let (old, new) = (before.encode(), after.encode());
            assert_eq!(Superblock::choose(&new, &old), Ok((after.clone(), CopiesState::Behind(1))));
            // The newer copy of a pool is not the smaller one.
            let shrunk = Superblock { generation: 6, ..after }.encode();
            assert!(matches!(Superblock::choose(&shrunk, &old), Err(SuperblockError::Nonsense(_))));
        }
    }

    #[test]
    fn copies_of_different_pools_are_refused() {
        let mut other = superblock(9);
        other.uuid[3] ^= 1;
        let chosen = Superblock::choose(&superblock(7).encode(), &other.encode());
        assert!(matches!(chosen, Err(SuperblockError::Nonsense(_))));
    }

    #[test]
    fn random_damage_with_a_valid_checksum_never_panics() {
        let mut rng = Rng::new(2);
        for _ in 0..20_000 {
            let _ = tampered(12 + rng.below(172) as usize, rng.next_u64() as u8);
        }
    }
}
