//! Reads a shard as far as possible: its root slot, and the records of all nodes reachable from it.

use super::kept::parts;
use super::mend::Mend;
use super::records::{Records, Shard};
use super::repairer::Repairer;
use crate::bit::flipped_bit;
use crate::rules::Bounds;
use crate::slots::{Slot, are_usable, choose, in_doubt};
use std::collections::{BTreeMap, BTreeSet};
use warren_base::ShardId;
use warren_disk::{
    BlockPtr, ChosenRoot, DecodedBody, DecodedNode, Key, NodeError, RootSlot, RootSlotError,
    restore_magic,
};

/// The offset at which the part of a node covered by its checksum begins.
pub(super) const NODE_COVERED: usize = 8;

impl Repairer<'_> {
    pub(super) fn collect(&mut self, shard: ShardId) -> Shard {
        let slots = self.reader.slots(&self.superblock, shard);
        for (block, bit) in slots.iter().filter_map(Slot::flipped) {
            self.mends.add(Mend::Corrected { block, bit });
        }
        let chosen = choose(&slots, &self.superblock, shard);
        let is_newest = match chosen {
            Err(_) => {
                self.mends.add(Mend::ShardLost(shard));
                false
            }
            Ok(chosen) if in_doubt(&chosen, &self.superblock) => {
                self.mends.add(Mend::SlotGivenUp(shard));
                false
            }
            Ok(_) => true,
        };
        let slot = chosen.ok().map(|chosen| chosen.root);
        let mut found = Shard {
            shard,
            slot,
            is_newest,
            records: Records::new(),
            nodes: BTreeSet::new(),
            corrected: BTreeMap::new(),
            newest: 0,
            incomplete: chosen.is_err(),
        };
        if let Some(slot) = slot
            && let Some(root) = slot.root
        {
            let (level, generation) = (slot.height - 1, slot.generation);
            let bounds = Bounds { level, generation, lower: Key::MIN, upper: None };
            self.collect_node(&mut found, root, bounds);
        }
        // A fleet has given the shard up if it found no usable slot, and could not mark one.
        if !are_usable(&slots, &self.superblock, shard) && !parts(self, &found).is_empty() {
            found.slot = found.slot.map(|slot| RootSlot { given_up: true, ..slot });
        }
        if found.slot.is_some_and(|slot| slot.given_up) {
            self.mends.add(Mend::Served(shard));
        }
        found
    }

    pub(super) fn chosen_root(&mut self, shard: ShardId) -> Result<ChosenRoot, RootSlotError> {
        choose(&self.reader.slots(&self.superblock, shard), &self.superblock, shard)
    }

    fn collect_node(&mut self, found: &mut Shard, ptr: BlockPtr, bounds: Bounds) {
        let (shard, block) = (found.shard, ptr.block);
        // A node that is reached twice is used once; the tree then lacks its other part and is
        // incomplete.
        if !self.superblock.layout.is_allocatable(block) || found.nodes.contains(&block) {
            let error = NodeError::WrongBlock(block);
            self.mends.add(Mend::NodeLost { shard, block, error });
            found.incomplete = true;
            return;
        }
        let Ok(bytes) = self.reader.block(block) else {
            self.mends.add(Mend::NodeUnreadable { shard, block });
            found.incomplete = true;
            return;
        };
        match self.read_node(found, ptr, &bytes, bounds) {
            Ok(node) => {
                found.nodes.insert(block);
                self.collect_records(found, node, bounds);
            }
            Err(error) => {
                self.mends.add(Mend::NodeLost { shard, block, error });
                found.incomplete = true;
            }
        }
    }

    /// The node in the block, perhaps after flipping one bit back.
    fn read_node(
        &mut self,
        found: &mut Shard,
        ptr: BlockPtr,
        bytes: &[u8],
        bounds: Bounds,
    ) -> Result<DecodedNode, NodeError> {
        let error = match DecodedNode::decode(ptr, found.shard, bytes) {
            Ok(node) => return bounds.checked(node),
            Err(error) => error,
        };
        let (node, bit, bytes) = corrected(ptr, found.shard, bytes).ok_or(error)?;
        let node = bounds.checked(node)?;
        self.mends.add(Mend::Corrected { block: ptr.block, bit });
        found.corrected.insert(ptr.block, bytes);
        Ok(node)
    }

    fn collect_records(&mut self, found: &mut Shard, node: DecodedNode, bounds: Bounds) {
        let (keys, generation) = (node.keys, node.generation);
        found.newest = found.newest.max(generation);
        match node.body {
            DecodedBody::Leaf(values) => found.records.extend(keys.into_iter().zip(values)),
            DecodedBody::Internal(children) => {
                for (at, child) in children.iter().enumerate() {
                    let upper = keys.get(at + 1).copied().or(bounds.upper);
                    let level = bounds.level - 1;
                    let below = Bounds { level, generation, lower: keys[at], upper };
                    self.collect_node(found, *child, below);
                }
            }
        }
    }
}

/// The node that the parent's pointer names, perhaps after flipping one bit back, with that bit and
/// the node's bytes. The bit may be in the covered part, in the magic, or in the node's own copy of
/// the checksum.
fn corrected(
    ptr: BlockPtr,
    shard: ShardId,
    bytes: &[u8],
) -> Option<(DecodedNode, usize, Box<[u8]>)> {
    let mut bytes = bytes.to_vec();
    bytes[4..NODE_COVERED].copy_from_slice(&ptr.checksum.to_le_bytes());
    let mut bit = restore_magic(&mut bytes);
    if crc32c::crc32c(&bytes[NODE_COVERED..]) != ptr.checksum {
        bit = flipped_bit(&bytes, NODE_COVERED, ptr.checksum)?;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    Some((DecodedNode::decode(ptr, shard, &bytes).ok()?, bit, bytes.into()))
}
