//! The new checkpoint: trees of the shards with faults, and all structures above the trees.
//!
//! New nodes and copies go to blocks without a reference that are not recorded as used, in the
//! shard's own chunks and then in free ones; only if there are none, to blocks that are recorded as
//! used but have no reference.

use super::collect::NODE_COVERED;
use super::mend::Mend;
use super::names::Edit;
use super::outcome::{Repair, RepairError};
use super::records::{
    Records, Shard, add_entry, blank, counted, file_blocks, put_file_blocks, put_owed, put_shared,
};
use super::repairer::Repairer;
use super::space::{bit, blocks_of};
use crate::read::Progress;
use crate::slots::choose;
use std::collections::{BTreeMap, BTreeSet};
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, FileKind, Ino, ShardId};
use warren_disk::{
    BlockPtr, BlockWrite, ChosenRoot, DecodedNode, Dentry, Key, LogTable, LogTableError, Owner,
    Part, ROOT_SLOT_SIZE, RootSlot, Superblock, Tree, Value, name_hash,
};

/// The space of a shard that is being written.
struct Draft {
    shard: ShardId,
    /// All of its chunks, with the used blocks.
    used: BTreeMap<u64, u64>,
    /// The chunks before this one have no free block.
    full_before: u64,
    body: Vec<BlockWrite>,
}

/// The new content of one of a shard's slots.
pub(super) struct NewSlot {
    pub shard: ShardId,
    pub slot: usize,
    pub bytes: Box<[u8]>,
}

impl Repairer<'_> {
    pub(super) fn write(
        mut self,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Repair, RepairError> {
        let generation = self.superblock.generation + 1;
        let mut body = Vec::new();
        let mut slots = BTreeMap::new();
        for shard in self.shards() {
            let slot = if self.dirty.contains(&shard) {
                self.report(Mend::TreeWritten(shard));
                self.write_shard(shard, generation, &mut body)?
            } else {
                self.kept_slot(shard, generation)
            };
            slots.insert(shard, slot);
            let (shards, blocks_read) = (self.superblock.layout.shards(), self.reader.blocks_read);
            progress(Progress { shards_done: shard.0 + 1, shards, blocks_read });
        }
        let (mut heads, mut tails) = self.region_pages(generation);
        let (first, last) = self.new_slots(&slots);
        self.put_slots(first, last, &mut heads, &mut tails);
        let mut farewell = self.log_tables(generation);
        if self.superblock.clean {
            heads.append(&mut farewell);
        }
        let superblock = Superblock { generation, clean: true, ..self.superblock.clone() };
        let superblocks = superblock.commit();
        let (mends, further_mends) = (self.mends.list, self.mends.further);
        Ok(Repair { mends, further_mends, farewell, body, heads, superblocks, tails })
    }

    /// The slot of a shard without faults, except perhaps in its counts.
    fn kept_slot(&mut self, shard: ShardId, generation: u64) -> RootSlot {
        let found = self.collect(shard);
        let slot = found.slot.unwrap_or_else(|| RootSlot::empty(self.superblock.uuid, shard));
        let right = RootSlot { generation, ..self.counted_slot(&found, slot) };
        if right != (RootSlot { generation, ..slot }) {
            self.report(Mend::Counts(shard));
        }
        right
    }

    fn counted_slot(&self, found: &Shard, slot: RootSlot) -> RootSlot {
        let used = found.records.values().map(|value| match value {
            Value::Chunk(used) => u64::from(used.count_ones()),
            _ => 0,
        });
        let inodes = found.records.values().filter(|value| matches!(value, Value::Inode(_)));
        RootSlot {
            inodes: inodes.count() as u64,
            used_blocks: used.sum(),
            next_sequence: self.census.next_sequence(found),
            ..slot
        }
    }

    fn write_shard(
        &mut self,
        shard: ShardId,
        generation: u64,
        body: &mut Vec<BlockWrite>,
    ) -> Result<RootSlot, RepairError> {
        let mut found = self.shard(shard);
        let next_sequence = self.census.next_sequence(&found);
        found.records.retain(|_, value| !matches!(value, Value::Chunk(_)));
        for edit in self.edits.remove(&shard).unwrap_or_default() {
            self.carry_out(&mut found.records, edit);
        }
        recount(&mut found.records);
        put_owed(&mut found.records);
        let owned = self.region.iter().filter(|(_, owner)| *owner == Owner::Shard(shard));
        let used = owned.map(|(chunk, _)| (chunk, 0)).collect();
        let mut draft = Draft { shard, used, full_before: 0, body: Vec::new() };
        self.place_data(&mut draft, &mut found.records)?;
        put_shared(&mut found.records);
        let inodes = found.records.values().filter(|value| matches!(value, Value::Inode(_)));
        let inodes = inodes.count() as u64;
        let (root, height) = self.plant(&mut draft, found.records, generation)?;
        body.append(&mut draft.body);
        Ok(RootSlot {
            uuid: self.superblock.uuid,
            shard,
            generation,
            root,
            height,
            next_sequence,
            given_up: false,
            inodes,
            used_blocks: draft.used.values().map(|used| u64::from(used.count_ones())).sum(),
        })
    }

    fn carry_out(&mut self, records: &mut Records, edit: Edit) {
        let secret = self.superblock.secret;
        match edit {
            Edit::Unlink { dir, name } => change_bucket(records, secret, dir, &name, |bucket| {
                bucket.retain(|dentry| dentry.name != name);
            }),
            Edit::EntryKind { dir, name, kind } => {
                change_bucket(records, secret, dir, &name, |bucket| {
                    let named = bucket.iter_mut().filter(|dentry| dentry.name == name);
                    named.for_each(|dentry| dentry.kind = kind);
                });
            }
            Edit::Link { dir, name, ino, kind } => {
                let mut entry = Dentry { name: name.clone(), ino, kind };
                let mut further = 1_u64..;
                while !add_entry(records, secret, dir, entry.clone()) {
                    let suffix = further.next().map(|n| format!("~{n}")).unwrap_or_default();
                    entry.name = [&*name, suffix.as_bytes()].concat().into();
                }
            }
            Edit::Links { ino, nlink } => {
                if let Some(Value::Inode(inode)) = records.get_mut(&Key::inode(ino)) {
                    inode.nlink = nlink;
                }
            }
            Edit::Parent { ino, dir } => {
                if let Some(Value::Inode(inode)) = records.get_mut(&Key::inode(ino)) {
                    inode.parent = dir;
                }
            }
            Edit::Directory { ino } => {
                let inode = Value::Inode(Box::new(blank(FileKind::Directory)));
                records.insert(Key::inode(ino), inode);
                records.insert(Key::part(ino, 0), Value::Part(Box::default()));
            }
            Edit::AddOrphan { ino } => drop(records.insert(Key::orphan(ino), Value::Orphan)),
            Edit::DropOrphan { ino } => drop(records.remove(&Key::orphan(ino))),
        }
    }

    /// Each block of a file stays if it may, else it is copied.
    fn place_data(&mut self, draft: &mut Draft, records: &mut Records) -> Result<(), RepairError> {
        let files: BTreeSet<u64> = records
            .iter()
            .filter(|(_, value)| matches!(value, Value::Extent(_)))
            .map(|(key, _)| key.ino)
            .collect();
        for ino in files.into_iter().map(Ino) {
            let all = Key::extent(ino, 0)..=Key::extent(ino, u64::MAX);
            let extents = records.range(all).map(|(key, value)| (*key, value.clone())).collect();
            let blocks = file_blocks(&extents);
            let mut kept = Vec::with_capacity(blocks.len());
            for &(at, block, checksum) in &blocks {
                let chunk = block.0 / CHUNK_BLOCKS;
                let owned = self.region.owner(chunk) == Some(Owner::Shard(draft.shard));
                if self.space.keep(draft.shard, owned, block) {
                    *draft.used.entry(chunk).or_default() |= bit(block);
                    kept.push((at, block, checksum));
                } else if let Some(to) = self.copy(draft, ino, at, block)? {
                    kept.push((at, to, checksum));
                }
            }
            if kept != blocks {
                put_file_blocks(ino, records, &kept);
            }
            if let Some(Value::Inode(inode)) = records.get_mut(&Key::inode(ino)) {
                inode.blocks -= (blocks.len() - kept.len()) as u64;
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        draft: &mut Draft,
        ino: Ino,
        file_block: u64,
        from: BlockNo,
    ) -> Result<Option<BlockNo>, RepairError> {
        let Ok(bytes) = self.reader.block(from) else {
            self.report(Mend::DataLost { ino, file_block, why: "it cannot be read" });
            return Ok(None);
        };
        let to = self.take_block(draft)?;
        self.report(Mend::Copied { ino, file_block, to });
        draft.body.push((to, bytes));
        Ok(Some(to))
    }

    /// The tree of these records, with a Chunk record for every chunk, including those of the tree.
    fn plant(
        &mut self,
        draft: &mut Draft,
        records: Records,
        generation: u64,
    ) -> Result<(Option<BlockPtr>, u8), RepairError> {
        let mut tree = Tree::open(draft.shard, None, 0);
        for (key, value) in records {
            tree.insert(key, value).expect("a tree that is made here is in memory");
        }
        if tree.dirty_nodes() == 0 && draft.used.is_empty() {
            return Ok((None, 0));
        }
        for chunk in draft.used.keys() {
            tree.insert(Key::chunk(*chunk), Value::Chunk(0)).expect("as above");
        }
        let mut places = Vec::new();
        while places.len() < tree.dirty_nodes() {
            let place = self.take_block(draft)?;
            places.push(place);
            // The chunk may have been claimed for this place. Its record never makes the tree
            // smaller.
            let chunk = place.0 / CHUNK_BLOCKS;
            tree.insert(Key::chunk(chunk), Value::Chunk(0)).expect("as above");
        }
        for (chunk, used) in &draft.used {
            tree.insert(Key::chunk(*chunk), Value::Chunk(*used)).expect("as above");
        }
        let (root, height, writes) = tree.write_out(generation, &places);
        writes.iter().try_for_each(|node| readable(draft.shard, node))?;
        draft.body.extend(writes);
        Ok((root, height))
    }

    fn take_block(&mut self, draft: &mut Draft) -> Result<BlockNo, RepairError> {
        if let Some(block) = self.own_free_block(draft, false) {
            return Ok(block);
        }
        let chunk = self.unused_chunk();
        if let Some(chunk) = chunk {
            self.region.claim(chunk, draft.shard);
            draft.used.insert(chunk, 0);
        }
        draft.full_before = chunk.unwrap_or(0);
        self.own_free_block(draft, chunk.is_none()).ok_or(RepairError::NoSpace)
    }

    /// A chunk that no shard has or refers to. The search continues after the last one found.
    fn unused_chunk(&mut self) -> Option<u64> {
        let is_unused = |chunk: &u64| {
            self.region.owner(*chunk) == Some(Owner::Free) && self.space.taken(*chunk) == (0, 0)
        };
        let found = (self.chunks_searched..self.superblock.layout.chunks()).find(is_unused);
        self.chunks_searched = found.map_or(self.superblock.layout.chunks(), |chunk| chunk + 1);
        found
    }

    fn own_free_block(&self, draft: &mut Draft, recorded_too: bool) -> Option<BlockNo> {
        for (chunk, used) in draft.used.range_mut(draft.full_before..) {
            let (referred, recorded) = self.space.taken(*chunk);
            let recorded = if recorded_too { 0 } else { recorded };
            let free = !(referred | recorded | *used);
            if let Some(block) = blocks_of(*chunk, free).next() {
                *used |= bit(block);
                draft.full_before = *chunk;
                return Some(block);
            }
        }
        draft.full_before = u64::MAX;
        None
    }

    /// Every page of the map, at the copy that is not valid. The second list has the copies in
    /// doubt and, for lost pages, the other copy.
    pub(super) fn region_pages(&mut self, generation: u64) -> (Vec<BlockWrite>, Vec<BlockWrite>) {
        let layout = self.superblock.layout;
        let in_doubt = self.region.bad_pages().iter().filter(|page| page.in_doubt);
        let in_doubt: BTreeSet<BlockNo> = in_doubt.map(|page| page.block).collect();
        self.region.soil();
        let (mut heads, mut tails) = (Vec::new(), Vec::new());
        for (page, (block, bytes)) in (0..).zip(self.region.write_out(generation)) {
            if self.lost_pages.contains(&page) {
                let other = [0, 1].map(|copy| layout.region_page(copy, page));
                let other = other.into_iter().filter(|other| *other != block);
                tails.extend(other.map(|other| (other, bytes.clone())));
                heads.push((block, bytes));
            } else if in_doubt.contains(&block) {
                tails.push((block, bytes));
            } else {
                heads.push((block, bytes));
            }
        }
        (heads, tails)
    }

    /// Every shard's slot, at the place that is not valid, so that no stale slot remains. The
    /// second list is written when the first counts: it has the slots that are bad and hold a
    /// shard's newest root, or may hold it.
    pub(super) fn new_slots(
        &mut self,
        roots: &BTreeMap<ShardId, RootSlot>,
    ) -> (Vec<NewSlot>, Vec<NewSlot>) {
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for (&shard, root) in roots {
            let new = |slot| NewSlot { shard, slot, bytes: root.encode() };
            let slots = self.reader.slots(&self.superblock, shard);
            let is_bad = |slot: usize| slots[slot].error().is_some();
            match choose(&slots, &self.superblock, shard) {
                Ok(ChosenRoot { root, spare, .. }) => {
                    let is_old = root.generation < self.superblock.generation;
                    // A bad slot keeps a fleet from opening the shard.
                    if is_bad(1 - spare) {
                        first.push(new(spare));
                        last.push(new(1 - spare));
                    } else if is_bad(spare) && is_old {
                        last.push(new(spare));
                    } else {
                        first.push(new(spare));
                    }
                }
                Err(_) => {
                    // Of two with the same generation the first is valid, so without a bad one it
                    // is the second.
                    let bad = usize::from(!is_bad(0) || is_bad(1));
                    first.push(new(1 - bad));
                    last.push(new(bad));
                }
            }
        }
        (first, last)
    }

    /// Adds the blocks with the slots, as they are when the first are written, and with the last.
    pub(super) fn put_slots(
        &mut self,
        first: Vec<NewSlot>,
        last: Vec<NewSlot>,
        heads: &mut Vec<BlockWrite>,
        tails: &mut Vec<BlockWrite>,
    ) {
        let mut blocks = BTreeMap::new();
        self.copy_slots(first, &mut blocks);
        heads.extend(blocks.clone());
        let late = self.copy_slots(last, &mut blocks);
        tails.extend(blocks.into_iter().filter(|(block, _)| late.contains(block)));
    }

    /// Copies slots into their blocks, starting from `blocks` or the device, and returns these
    /// block numbers.
    fn copy_slots(
        &mut self,
        slots: Vec<NewSlot>,
        blocks: &mut BTreeMap<BlockNo, Box<[u8]>>,
    ) -> BTreeSet<BlockNo> {
        let mut put = BTreeSet::new();
        for NewSlot { shard, slot, bytes } in slots {
            let place = self.superblock.layout.root_slot(shard, slot);
            let block = blocks.entry(place.block);
            let block = block.or_insert_with(|| self.reader.block_or_rot(place.block));
            block[place.offset..][..ROOT_SLOT_SIZE].copy_from_slice(&bytes);
            put.insert(place.block);
        }
        put
    }

    /// A table without logs, at the place that is not valid; at both if the logs are in use or
    /// neither table is valid.
    fn log_tables(&mut self, generation: u64) -> Vec<BlockWrite> {
        let table = LogTable { generation, incarnation: generation, starts: Vec::new() }.encode();
        match self.log_table() {
            Ok((_, place)) if self.superblock.clean => vec![(place, table)],
            _ => [0, 1].map(|copy| (self.superblock.layout.log_table(copy), table.clone())).into(),
        }
    }

    /// The valid log table, and the place of the other.
    pub(super) fn log_table(&mut self) -> Result<(LogTable, BlockNo), LogTableError> {
        let layout = self.superblock.layout;
        let places = [0, 1].map(|copy| layout.log_table(copy));
        let [a, b] = places.map(|block| self.reader.block_or_rot(block));
        let counts = LogTable::choose([&a, &b], self.superblock.generation, layout.logs_max());
        counts.map(|(table, spare)| (table, places[spare]))
    }
}

/// Checks a node that is to be written by the rules of its readers: a cell refuses a whole node for
/// one illegal record, and a further repair would drop what is in it.
fn readable(shard: ShardId, (block, bytes): &BlockWrite) -> Result<(), RepairError> {
    let checksum = crc32c::crc32c(&bytes[NODE_COVERED..]);
    let node = DecodedNode::decode(BlockPtr { block: *block, checksum }, shard, bytes);
    node.map(drop).map_err(RepairError::Unreadable)
}

fn change_bucket(
    records: &mut Records,
    secret: u64,
    dir: Ino,
    name: &[u8],
    change: impl FnOnce(&mut Vec<Dentry>),
) {
    let key = Key::entry(dir, name_hash(secret, name));
    let Some(Value::Entries(bucket)) = records.remove(&key) else { return };
    let mut bucket = bucket.into_vec();
    change(&mut bucket);
    if !bucket.is_empty() {
        records.insert(key, Value::Entries(bucket.into()));
    }
}

/// Sets the counts of every directory's parts to its actual content.
fn recount(records: &mut Records) {
    let parts: Vec<(Key, Part)> = records
        .iter()
        .filter_map(|(key, value)| match value {
            Value::Part(part) => Some((*key, **part)),
            _ => None,
        })
        .collect();
    for (key, part) in parts {
        let (entries, subdirs) = counted(Ino(key.ino), records);
        records.insert(key, Value::Part(Box::new(Part { entries, subdirs, ..part })));
    }
}
