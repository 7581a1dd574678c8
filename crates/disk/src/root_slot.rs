//! Root slots: two for each shard. The newer one that the superblock covers is valid.
//!
//! ```text
//!   0     4     8      24           32    34    35 36       40         48         56     64
//!   |magic| crc | uuid | generation |shard|hght|0 |root crc |root block|next seq. |state | 0   |
//!   72       80          88
//!   | inodes | used blocks | zeros ... |  512
//! ```
//!
//! A checkpoint writes a slot for every shard that it changed, always the one that is not valid,
//! and is committed by the superblock. A slot whose generation is above the superblock's belongs to
//! a checkpoint that was never committed. Root block 0 means a tree without records. `mkfs` writes
//! both slots of every shard, so a slot of zeros is damaged: a device may return zeros for a block
//! that it has lost. State 1 marks a shard that was given up (decision 28): the rest of the slot is
//! that of the last checkpoint before.

use crate::codec::{Put, Take, crc_behind};
use crate::layout::ROOT_SLOT_SIZE;
use crate::node::{BlockPtr, ROOT_HEIGHT_MAX};
use crate::superblock::{Superblock, Uuid};
use thiserror::Error;
use warren_base::{BlockNo, Ino, ShardId};

const MAGIC: u32 = u32::from_le_bytes(*b"WRoo");
const COVERED_FROM: usize = 8;
const STATE_GIVEN_UP: u64 = 1;
const FIELDS_LEN: usize = 88;

const _: () = {
    assert!(FIELDS_LEN == 4 + 4 + 16 + 8 + 2 + 1 + 1 + 4 + 8 + 8 + 8 + 8 + 8 + 8);
    assert!(FIELDS_LEN <= ROOT_SLOT_SIZE);
};

/// The state of a shard at a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootSlot {
    pub uuid: Uuid,
    pub shard: ShardId,
    /// The checkpoint that wrote the slot.
    pub generation: u64,
    /// The place of the tree's root; `None` if and only if `height` is 0.
    pub root: Option<BlockPtr>,
    pub height: u8,
    /// The sequence number of the next inode, at least 1.
    pub next_sequence: u64,
    /// The shard is not served until it is repaired: its tree is as of the last checkpoint before
    /// it was given up.
    pub given_up: bool,
    pub inodes: u64,
    pub used_blocks: u64,
}

/// Why a slot cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RootSlotError {
    #[error("not a root slot")]
    BadMagic,
    #[error("the root slot's checksum is wrong")]
    BadChecksum,
    #[error("the root slot is of another pool")]
    OtherPool,
    #[error("the root slot is of {0:?}")]
    OtherShard(ShardId),
    #[error("the root slot makes no sense: {0}")]
    Nonsense(&'static str),
    #[error("neither root slot can be used")]
    Lost,
    #[error("a root slot is damaged and may have been the newer one")]
    InDoubt,
}

/// The state of one of the two slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// Intact, at or below the superblock's generation.
    Committed(RootSlot),
    /// Intact, of a checkpoint that was not committed.
    Uncommitted(RootSlot),
    Bad(RootSlotError),
}

/// The valid root slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChosenRoot {
    pub root: RootSlot,
    /// The slot that the next checkpoint writes.
    pub spare: usize,
    /// The present contents of that slot. If it is `Bad`, it may have been the newer one (a slot is
    /// written atomically, so a crash cannot damage it): then the shard is not opened for writing.
    pub spare_state: SlotState,
}

impl RootSlot {
    /// The slot of a shard without records, older than any checkpoint.
    pub const fn empty(uuid: Uuid, shard: ShardId) -> Self {
        Self {
            uuid,
            shard,
            generation: 0,
            root: None,
            height: 0,
            next_sequence: 1,
            given_up: false,
            inodes: 0,
            used_blocks: 0,
        }
    }

    /// Whether the shard has never had an inode.
    pub const fn is_empty(&self) -> bool {
        self.root.is_none() && self.next_sequence == 1 && !self.given_up
    }

    /// The 512 bytes of the slot.
    pub fn encode(&self) -> Box<[u8]> {
        assert_eq!(self.root.is_some(), self.height > 0);
        let (block, checksum) = self.root.map_or((0, 0), |root| (root.block.0, root.checksum));
        let mut out = Vec::with_capacity(ROOT_SLOT_SIZE);
        out.u32(MAGIC);
        out.u32(0);
        out.extend_from_slice(&self.uuid);
        out.u64(self.generation);
        out.u16(self.shard.0);
        out.u8(self.height);
        out.u8(0);
        out.u32(checksum);
        for field in [block, self.next_sequence, u64::from(self.given_up), 0] {
            out.u64(field);
        }
        out.u64(self.inodes);
        out.u64(self.used_blocks);
        debug_assert_eq!(out.len(), FIELDS_LEN);
        out.resize(ROOT_SLOT_SIZE, 0);
        let crc = crc_behind(&out, COVERED_FROM);
        out[4..COVERED_FROM].copy_from_slice(&crc.to_le_bytes());
        out.into()
    }

    /// The slot in these 512 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, RootSlotError> {
        let short = RootSlotError::BadMagic;
        let mut take = Take::new(bytes);
        let (magic, crc) = (take.u32().ok_or(short)?, take.u32().ok_or(short)?);
        if bytes.len() != ROOT_SLOT_SIZE || magic != MAGIC {
            Err(RootSlotError::BadMagic)
        } else if crc != crc_behind(bytes, COVERED_FROM) {
            Err(RootSlotError::BadChecksum)
        } else {
            let (slot, is_known) = Self::decode_fields(&mut take).ok_or(short)?;
            if is_known { slot.checked() } else { Err(RootSlotError::Nonsense("state")) }
        }
    }

    /// The fields, and whether the state is one that this version knows.
    fn decode_fields(take: &mut Take<'_>) -> Option<(Self, bool)> {
        let (uuid, generation) = (take.array()?, take.u64()?);
        let (shard, height, _zero) = (ShardId(take.u16()?), take.u8()?, take.u8()?);
        let (checksum, block) = (take.u32()?, BlockNo(take.u64()?));
        let root = (block.0 != 0).then_some(BlockPtr { block, checksum });
        let (next_sequence, state, zero) = (take.u64()?, take.u64()?, take.u64()?);
        let (inodes, used_blocks) = (take.u64()?, take.u64()?);
        let given_up = state == STATE_GIVEN_UP;
        let slot = Self {
            uuid,
            shard,
            generation,
            root,
            height,
            next_sequence,
            given_up,
            inodes,
            used_blocks,
        };
        Some((slot, (given_up || state == 0) && zero == 0))
    }

    fn checked(self) -> Result<Self, RootSlotError> {
        // One past the last sequence number: for a shard that has used them all.
        let sequences = 1..=Ino::SEQUENCE_MAX + 1;
        if self.height > ROOT_HEIGHT_MAX || self.root.is_some() != (self.height > 0) {
            Err(RootSlotError::Nonsense("height"))
        } else if !sequences.contains(&self.next_sequence) {
            Err(RootSlotError::Nonsense("next sequence"))
        } else {
            Ok(self)
        }
    }

    /// Chooses the valid slot of a shard under this superblock.
    pub fn choose(
        slots: [&[u8]; 2],
        superblock: &Superblock,
        shard: ShardId,
    ) -> Result<ChosenRoot, RootSlotError> {
        let states = slots.map(|bytes| Self::state(bytes, superblock, shard));
        let chosen =
            |root, spare: usize| Ok(ChosenRoot { root, spare, spare_state: states[spare] });
        match states {
            [SlotState::Committed(a), SlotState::Committed(b)] => {
                let newer = usize::from(b.generation > a.generation);
                chosen([a, b][newer], 1 - newer)
            }
            [SlotState::Committed(a), _] => chosen(a, 1),
            [_, SlotState::Committed(b)] => chosen(b, 0),
            _ => Err(RootSlotError::Lost),
        }
    }

    /// The state of one slot of the shard under this superblock.
    pub fn state(bytes: &[u8], superblock: &Superblock, shard: ShardId) -> SlotState {
        match Self::decode(bytes) {
            Err(error) => SlotState::Bad(error),
            Ok(slot) if slot.uuid != superblock.uuid => SlotState::Bad(RootSlotError::OtherPool),
            Ok(slot) if slot.shard != shard => {
                SlotState::Bad(RootSlotError::OtherShard(slot.shard))
            }
            Ok(slot) if slot.generation > superblock.generation => SlotState::Uncommitted(slot),
            Ok(slot) => SlotState::Committed(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::superblock;

    fn slot(generation: u64) -> RootSlot {
        RootSlot {
            uuid: superblock(1).uuid,
            shard: ShardId(3),
            generation,
            root: Some(BlockPtr { block: BlockNo(77), checksum: 5 }),
            height: 2,
            next_sequence: Ino::SEQUENCE_MAX + 1,
            given_up: false,
            inodes: 4,
            used_blocks: 5,
        }
    }

    fn choose(a: &[u8], b: &[u8]) -> Result<(u64, usize), RootSlotError> {
        let chosen = RootSlot::choose([a, b], &superblock(10), ShardId(3))?;
        Ok((chosen.root.generation, chosen.spare))
    }

    #[test]
    fn survives_its_bytes() {
        assert_eq!(RootSlot::decode(&slot(9).encode()), Ok(slot(9)));
        let empty = RootSlot { root: None, height: 0, ..slot(9) };
        assert_eq!(RootSlot::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn the_newest_committed_slot_counts() {
        let [s8, s9, s10, s11] = [8, 9, 10, 11].map(|generation| slot(generation).encode());
        assert_eq!(choose(&s9, &s10), Ok((10, 0)));
        assert_eq!(choose(&s9, &s8), Ok((9, 1)));
        assert_eq!(choose(&s9, &s11), Ok((9, 1)));
        assert_eq!(choose(&s11, &s9), Ok((9, 0)));
        assert_eq!(choose(&s11, &s11), Err(RootSlotError::Lost));
    }

    #[test]
    fn a_bad_slot_does_not_count() {
        let mut rotten = slot(10).encode();
        rotten[500] = 1;
        let (zeros, good) = (vec![0; ROOT_SLOT_SIZE], slot(9).encode());
        assert_eq!(choose(&rotten, &zeros), Err(RootSlotError::Lost));
        assert_eq!(choose(&zeros, &zeros), Err(RootSlotError::Lost));
        assert_eq!(choose(&slot(11).encode(), &rotten), Err(RootSlotError::Lost));
        assert_eq!(choose(&zeros, &good), Ok((9, 0)));
        let chosen = RootSlot::choose([&rotten, &good], &superblock(10), ShardId(3)).unwrap();
        assert_eq!(chosen.spare_state, SlotState::Bad(RootSlotError::BadChecksum));
        let foreign = RootSlot { uuid: [0; 16], ..slot(9) }.encode();
        assert_eq!(choose(&foreign, &zeros), Err(RootSlotError::Lost));
        let other = RootSlot { shard: ShardId(4), ..slot(9) }.encode();
        assert_eq!(choose(&other, &zeros), Err(RootSlotError::Lost));
        assert_eq!(choose(&[], &[]), Err(RootSlotError::Lost), "nothing was read");
    }
}
