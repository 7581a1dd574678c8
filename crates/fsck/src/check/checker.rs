//! The state of a check, and its queries of the device.

use super::names::Names;
use super::space::Space;
use crate::finding::Finding;
use crate::metadata::kept_at;
use crate::read::Reader;
use crate::report::{Options, Report};
use crate::slots::{choose, in_doubt};
use std::collections::BTreeMap;
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, Ino, ShardId};
use warren_disk::{
    Absent, BlockPtr, ChosenRoot, Key, Kind, RegionMap, RootSlot, RootSlotError, SlotState,
    Superblock, Tree, Value,
};

/// The state of a check after superblock and region map are known.
pub(super) struct Checker<'a> {
    pub options: Options,
    pub reader: Reader<'a>,
    pub report: Report,
    pub superblock: Superblock,
    pub region: RegionMap,
    pub space: Space,
    pub names: Names,
    /// The valid roots, for looking names up again.
    pub roots: BTreeMap<ShardId, RootSlot>,
}

impl Checker<'_> {
    /// The slot that counts; `None` if the shard is lost.
    pub(super) fn root_slot(&mut self, shard: ShardId) -> Option<RootSlot> {
        let slots = self.reader.slots(&self.superblock, shard);
        for (slot, read) in slots.iter().enumerate() {
            if let Some((block, bit)) = read.flipped() {
                self.report.add(Finding::RootSlotBit { shard, slot, block, bit });
            }
        }
        let error = match choose(&slots, &self.superblock, shard) {
            Ok(chosen) if in_doubt(&chosen, &self.superblock) => RootSlotError::InDoubt,
            Ok(ChosenRoot { root, spare: slot, spare_state }) => {
                if let SlotState::Bad(error) = spare_state {
                    self.report.add(Finding::RootSlotCopy { shard, slot, error });
                }
                return Some(root);
            }
            Err(error) => error,
        };
        self.report.add(Finding::RootSlot { shard, error });
        None
    }

    /// Checks the blocks that a shard which was given up has left beside its tree.
    pub(super) fn check_given_up(&mut self, slot: &RootSlot) {
        let shard = slot.shard;
        if slot.given_up {
            self.report.add(Finding::GivenUp { shard });
        }
        let chunks: Vec<u64> = self.space.unrecorded(&self.region, shard).collect();
        for chunk in chunks {
            let block = BlockNo(chunk * CHUNK_BLOCKS);
            if let Some(kept) = kept_at(&mut self.reader, block, self.superblock.secret)
                && kept.shard == shard
            {
                let (cell, bytes) = (kept.cell, kept.records.len());
                self.report.add(Finding::Kept { shard, cell, block, bytes });
            }
        }
    }

    /// The name of the entry of `dir` with this hash that leads to `ino`.
    pub(super) fn entry_name(&mut self, dir: Ino, hash: u64, ino: Ino) -> Option<Box<[u8]>> {
        let slot = *self.roots.get(&dir.shard())?;
        let mut tree = Tree::open(slot.shard, slot.root, slot.height);
        let key = Key::entry(dir, hash);
        loop {
            let Absent(ptr) = match tree.get(&key) {
                Ok(Some(Value::Entries(bucket))) => {
                    let dentry = bucket.iter().find(|dentry| dentry.ino == ino)?;
                    return Some(dentry.name.clone());
                }
                Ok(_) => return None,
                Err(absent) => absent,
            };
            let bytes = self.reader.block(ptr.block).ok()?;
            tree.load(ptr, &bytes).ok()?;
        }
    }

    /// Counts a reference to a block, by a node of the tree or by a file; false if the block cannot
    /// be used in this way.
    pub(super) fn refer(
        &mut self,
        (block, is_node): (BlockNo, bool),
        shard: ShardId,
        by: Key,
    ) -> bool {
        let layout = self.superblock.layout;
        if !layout.is_allocatable(block) {
            self.report.add(Finding::BlockOutOfRange { shard, block, by });
            return false;
        }
        let owned = self.space.belongs(&self.region, block, shard);
        let first = match is_node {
            true => self.space.refer_node(block),
            false => self.space.refer_data(block, shard),
        };
        if !owned {
            self.report.add(Finding::ForeignBlock { shard, block, by });
        }
        if !first {
            self.report.add(Finding::SharedBlock { shard, block, by });
        }
        first
    }

    /// Compares the blocks of an extent with their checksums.
    pub(super) fn check_contents(&mut self, key: &Key, start: BlockNo, checksums: &[u32]) {
        debug_assert_eq!(key.kind, Kind::Extent);
        for (n, checksum) in checksums.iter().enumerate() {
            let ptr = BlockPtr { block: start.offset(n as u64), checksum: *checksum };
            let (ino, file_block, block) = (Ino(key.ino), key.sub + n as u64, ptr.block);
            match self.reader.block(block) {
                Err(error) => {
                    self.report.add(Finding::UnreadableContents { ino, file_block, block, error });
                }
                Ok(bytes) if warren_disk::block_checksum(&bytes) != ptr.checksum => {
                    self.report.add(Finding::Contents { ino, file_block, block });
                }
                Ok(_) => {}
            }
        }
    }
}
