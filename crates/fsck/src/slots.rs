//! The root slots of a shard on a damaged device. A slot in which one bit has flipped is used as it
//! was before.

use crate::bit::flipped_bit;
use crate::read::Reader;
use warren_base::{BlockNo, ShardId};
use warren_disk::{
    ChosenRoot, ROOT_SLOT_SIZE, RootSlot, RootSlotError, SlotPlace, SlotState, Superblock,
};

/// Magic and checksum. The checksum covers what follows.
const HEADER: usize = 8;

/// One of the two slots of a shard.
pub(crate) struct Slot {
    place: SlotPlace,
    bytes: Box<[u8]>,
    /// As the device has it.
    error: Option<RootSlotError>,
    /// The bit that was flipped back.
    bit: Option<usize>,
}

impl Slot {
    fn new(place: SlotPlace, bytes: Box<[u8]>, superblock: &Superblock, shard: ShardId) -> Self {
        let error_of = |bytes: &[u8]| match RootSlot::state(bytes, superblock, shard) {
            SlotState::Bad(error) => Some(error),
            SlotState::Committed(_) | SlotState::Uncommitted(_) => None,
        };
        let error = error_of(&bytes);
        let mut slot = Self { place, bytes, error, bit: None };
        if error.is_some() {
            let checksum = slot.bytes[HEADER / 2..HEADER].try_into().expect("four bytes");
            let covered = flipped_bit(&slot.bytes, HEADER, u32::from_le_bytes(checksum));
            slot.bit = (0..8 * HEADER).chain(covered).find(|bit| {
                slot.bytes[bit / 8] ^= 1 << (bit % 8);
                let is_right = error_of(&slot.bytes).is_none();
                if !is_right {
                    slot.bytes[bit / 8] ^= 1 << (bit % 8);
                }
                is_right
            });
        }
        slot
    }

    /// Why the slot cannot be used as the device has it.
    pub(crate) fn error(&self) -> Option<RootSlotError> {
        self.error
    }

    /// The block and the bit in it that has flipped.
    pub(crate) fn flipped(&self) -> Option<(BlockNo, usize)> {
        Some((self.place.block, 8 * self.place.offset + self.bit?))
    }
}

impl Reader<'_> {
    /// Both slots of a shard.
    pub(crate) fn slots(&mut self, superblock: &Superblock, shard: ShardId) -> [Slot; 2] {
        [0, 1].map(|slot| {
            let place = superblock.layout.root_slot(shard, slot);
            let block = self.block_or_rot(place.block);
            let bytes = block[place.offset..][..ROOT_SLOT_SIZE].into();
            Slot::new(place, bytes, superblock, shard)
        })
    }
}

/// The slot that counts.
pub(crate) fn choose(
    slots: &[Slot; 2],
    superblock: &Superblock,
    shard: ShardId,
) -> Result<ChosenRoot, RootSlotError> {
    RootSlot::choose([&slots[0].bytes, &slots[1].bytes], superblock, shard)
}

/// Whether the invalid slot may have been the newer one.
pub(crate) fn in_doubt(chosen: &ChosenRoot, superblock: &Superblock) -> bool {
    matches!(chosen.spare_state, SlotState::Bad(_))
        && chosen.root.generation < superblock.generation
}

/// Whether a fleet opens the shard, by the slots as the device has them.
pub(crate) fn are_usable(slots: &[Slot; 2], superblock: &Superblock, shard: ShardId) -> bool {
    choose(slots, superblock, shard).is_ok_and(|ChosenRoot { root, spare, .. }| {
        let is_sound = |slot: usize| slots[slot].error().is_none();
        is_sound(1 - spare) && (is_sound(spare) || root.generation == superblock.generation)
    })
}
