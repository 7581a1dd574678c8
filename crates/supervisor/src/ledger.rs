//! Roots of shards and owners of chunks on the device, and how a checkpoint changes them.
//!
//! The ledger holds the committed state. An [`Attempt`] is built beside it, and either replaces it
//! or is dropped.
//!
//! Root slots and pages of the region map have two places. The newer one counts if its generation
//! is not above that of the superblock. So the writes of an attempt that was never committed (of
//! this fleet, or of an earlier one that was killed) are dangerous: the next superblock would make
//! them count. The ledger records such places as *stale*, and the next attempt overwrites them,
//! with the committed state if they have no new one. A bad copy is stale too, because the
//! superblock after the next could not tell whether it was the newer one.
//!
//! A shard none of whose root slots can be used is *unreadable*: it is given up, and its slots are
//! left as they are for a repair. A slot of it that was never committed is blanked, because the
//! next superblock would make it count.
//!
//! Claims and releases of an attempt that failed have no effect: the cells report them again.
//!
//! A pool grows with a checkpoint. The pages of the region map that have new chunks are written
//! with it, and the superblock has the new size: it commits both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{BlockNo, CellId, Errno, Ino, Lsn, ShardId};
use warren_disk::{
    BlockPtr, BlockWrite, ChosenRoot, Layout, LogTable, LogTableError, Owner, ROOT_HEIGHT_MAX,
    ROOT_SLOT_SIZE, RegionError, RegionMap, RootSlot, RootSlotError, SlotState, Superblock,
};
use warren_proto::control::{ShardRoot, Written};

/// Byte of a region-map page at which its generation lies (`docs/disk-format.md`).
const PAGE_GENERATION: usize = 8;

/// Why a pool cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LedgerError {
    Region(RegionError),
    Logs(LogTableError),
    /// The device is shorter than the size in the superblock.
    TooShort,
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region(error) => error.fmt(f),
            Self::Logs(error) => error.fmt(f),
            Self::TooShort => f.write_str("the device ends before the pool does"),
        }
    }
}

impl std::error::Error for LedgerError {}

#[derive(Clone, Copy)]
struct ShardRecord {
    root: RootSlot,
    /// The slot that the next attempt may overwrite.
    spare: usize,
}

/// The committed state.
pub struct Ledger {
    superblock: Superblock,
    regions: RegionMap,
    shards: Vec<ShardRecord>,
    logs: LogTable,
    /// The copy of the log table that the next attempt overwrites.
    logs_spare: usize,
    /// The blocks of root slots as they were last written or read. A block holds the slots of eight
    /// shards, and only the supervisor writes it.
    root_blocks: BTreeMap<BlockNo, Box<[u8]>>,
    /// Shards whose spare slot was never committed, or is bad.
    stale_shards: BTreeSet<ShardId>,
    /// A chunk of each region-map page whose spare copy was never committed. The page may be one
    /// that only a reserved chunk is in.
    stale_chunks: BTreeSet<u64>,
    /// Shards whose slots cannot be used, and the slots of theirs that were never committed.
    unreadable: BTreeMap<ShardId, RootSlotError>,
    blanks: BTreeSet<(ShardId, usize)>,
}

/// A checkpoint that is being recorded.
pub(crate) struct Attempt {
    superblock: Superblock,
    regions: Option<RegionMap>,
    logs: LogTable,
    logs_place: BlockNo,
    shards: BTreeMap<ShardId, ShardRecord>,
    chunks: BTreeSet<u64>,
    root_blocks: BTreeMap<BlockNo, Box<[u8]>>,
    region_pages: Vec<BlockWrite>,
}

impl Ledger {
    /// Decodes what was read from the device: both copies of the region map, both arrays of root
    /// slots (`2 * roots_blocks` blocks), and both copies of the log table.
    pub fn load(
        superblock: Superblock,
        regions: [&[u8]; 2],
        root_slots: &[u8],
        log_tables: [&[u8]; 2],
    ) -> Result<Self, LedgerError> {
        Self::load_without(&BTreeSet::new(), superblock, regions, root_slots, log_tables)
    }

    /// The same without the `lost` shards: their slots may be bad, and are not written.
    pub fn load_without(
        lost: &BTreeSet<ShardId>,
        superblock: Superblock,
        regions: [&[u8]; 2],
        root_slots: &[u8],
        log_tables: [&[u8]; 2],
    ) -> Result<Self, LedgerError> {
        let layout = superblock.layout;
        if root_slots.len() as u64 != 2 * layout.roots_blocks() * BLOCK_SIZE as u64 {
            return Err(LedgerError::TooShort);
        }
        let (logs, logs_spare) =
            LogTable::choose(log_tables, superblock.generation, layout.logs_max())
                .map_err(LedgerError::Logs)?;
        let mut ledger = Self {
            logs,
            logs_spare,
            regions: load_regions(&superblock, regions).map_err(LedgerError::Region)?,
            shards: Vec::with_capacity(usize::from(layout.shards())),
            root_blocks: (root_slots.chunks(BLOCK_SIZE).enumerate())
                .map(|(n, bytes)| (layout.roots_start().offset(n as u64), bytes.into()))
                .collect(),
            stale_shards: BTreeSet::new(),
            stale_chunks: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            blanks: BTreeSet::new(),
            superblock,
        };
        ledger.load_shards(lost);
        let torn = !ledger.regions.bad_pages().is_empty();
        if torn || has_uncommitted_page(regions, ledger.superblock.generation) {
            // Rare (the fleet was killed within milliseconds of a checkpoint), so all pages are
            // stale rather than the right ones.
            ledger.stale_chunks = (layout.reserved_chunks()..layout.chunks()).collect();
        }
        Ok(ledger)
    }

    fn load_shards(&mut self, lost: &BTreeSet<ShardId>) {
        let layout = self.superblock.layout;
        for shard in (0..layout.shards()).map(ShardId) {
            if lost.contains(&shard) {
                let root = RootSlot::empty(self.superblock.uuid, shard);
                self.shards.push(ShardRecord { root, spare: 0 });
                continue;
            }
            let slots = [0, 1].map(|slot| {
                let place = layout.root_slot(shard, slot);
                &self.root_blocks[&place.block][place.offset..][..ROOT_SLOT_SIZE]
            });
            let states = slots.map(|bytes| RootSlot::state(bytes, &self.superblock, shard));
            match RootSlot::choose(slots, &self.superblock, shard) {
                Err(error) => self.lose_shard(shard, error, states),
                Ok(ChosenRoot { root, spare_state: SlotState::Bad(_), .. })
                    if root.generation < self.superblock.generation =>
                {
                    self.lose_shard(shard, RootSlotError::InDoubt, states);
                }
                Ok(ChosenRoot { root, spare, spare_state }) => {
                    self.shards.push(ShardRecord { root, spare });
                    // A bad slot is the older one here. After the next checkpoint that would be
                    // unknown.
                    if matches!(spare_state, SlotState::Uncommitted(_) | SlotState::Bad(_)) {
                        self.stale_shards.insert(shard);
                    }
                }
            }
        }
    }

    /// Neither slot of the shard tells what it is: it counts as given up.
    fn lose_shard(&mut self, shard: ShardId, error: RootSlotError, states: [SlotState; 2]) {
        // A repair may be able to correct a bad slot.
        let is_bad = |slot: &usize| matches!(states[*slot], SlotState::Bad(_));
        let spare = (0..2).find(|slot| !is_bad(slot)).unwrap_or(0);
        let empty = RootSlot::empty(self.superblock.uuid, shard);
        let root = RootSlot { given_up: true, ..empty };
        self.shards.push(ShardRecord { root, spare });
        self.unreadable.insert(shard, error);
        let uncommitted = (0..2).filter(|slot| matches!(states[*slot], SlotState::Uncommitted(_)));
        self.blanks.extend(uncommitted.map(|slot| (shard, slot)));
    }

    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub const fn regions(&self) -> &RegionMap {
        &self.regions
    }

    /// The op logs, and from where each is to be replayed. If the pool is clean, they hold no
    /// records to replay.
    pub const fn logs(&self) -> &LogTable {
        &self.logs
    }

    /// Whether the chunk had no owner at the last checkpoint.
    pub fn is_free(&self, chunk: u64) -> bool {
        self.regions.owner(chunk) == Some(Owner::Free)
    }

    /// One of these chunks that is not free, or is claimed twice.
    pub(crate) fn wrongly_claimed(&self, chunks: &[u64]) -> Option<u64> {
        let mut seen = BTreeSet::new();
        let mut is_right = |chunk: u64| self.is_free(chunk) && seen.insert(chunk);
        chunks.iter().copied().find(|chunk| !is_right(*chunk))
    }

    /// The chunks of every shard that has any, in order.
    pub fn chunks_of_shards(&self) -> BTreeMap<ShardId, Vec<u64>> {
        let mut chunks: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        for (chunk, owner) in self.regions.iter() {
            if let Owner::Shard(shard) = owner {
                chunks.entry(shard).or_default().push(chunk);
            }
        }
        chunks
    }

    /// Shards whose root slots cannot be used. They count as given up.
    pub const fn unreadable(&self) -> &BTreeMap<ShardId, RootSlotError> {
        &self.unreadable
    }

    /// The root slot that counts; `None` if the pool has no such shard.
    pub fn root(&self, shard: ShardId) -> Option<&RootSlot> {
        Some(&self.shards.get(usize::from(shard.0))?.root)
    }

    /// Builds checkpoint `number` from the reports of the cells. `None`: nothing changed. EPROTO:
    /// the report of a cell is invalid, and the checkpoint must fail.
    pub(crate) fn attempt(
        &self,
        number: u64,
        clean: bool,
        (written, owners): (&[(CellId, Written)], &[CellId]),
        grown: Option<Layout>,
    ) -> Result<Option<Attempt>, Errno> {
        assert!(number > self.superblock.generation);
        let starts = self.log_starts(written)?;
        let is_empty = |(_, part): &(_, Written)| {
            part.roots.is_empty()
                && part.claimed.is_empty()
                && part.released.is_empty()
                && part.given_up.is_empty()
        };
        let unchanged =
            written.iter().all(is_empty) && starts == self.logs.starts && grown.is_none();
        if unchanged && (!clean || self.superblock.clean) {
            return Ok(None);
        }
        let mut attempt = self.blank(number, clean, LogTable { starts, ..self.logs.clone() });
        self.add_chunks(&mut attempt, (written, owners), grown)?;
        for (cell, part) in written {
            for root in &part.roots {
                if owner(owners, root.shard) != Some(*cell) {
                    return Err(Errno::EPROTO);
                }
                self.add_root(&mut attempt, root)?;
            }
            for &shard in &part.given_up {
                if owner(owners, shard) != Some(*cell) || attempt.shards.contains_key(&shard) {
                    return Err(Errno::EPROTO);
                }
                self.add_mark(&mut attempt, shard);
            }
        }
        self.add_stale_shards(&mut attempt);
        Ok(Some(attempt))
    }

    /// The opening of a pool by a fleet of so many cells: it is no longer clean, and the logs are
    /// new and empty.
    pub(crate) fn opening(&self, number: u64, cells: usize) -> Attempt {
        let logs = LogTable { generation: 0, incarnation: number, starts: vec![Lsn(0); cells] };
        let mut attempt = self.blank(number, false, logs);
        // The superblock of the opening would make stale places count, as any other.
        self.add_chunks(&mut attempt, (&[], &[]), None).expect("nothing is claimed or released");
        self.add_stale_shards(&mut attempt);
        attempt
    }

    /// The growth of a pool that no fleet uses: the writes before the superblock, and that. Logs
    /// that count keep their places and their starts.
    pub fn growth(&self, layout: Layout) -> (Vec<BlockWrite>, Superblock) {
        let Superblock { generation, clean, .. } = self.superblock;
        let attempt = self.attempt(generation + 1, clean, (&[], &[]), Some(layout));
        let attempt = attempt.ok().flatten().expect("no cell takes part, and the size changes");
        (attempt.writes(), attempt.superblock)
    }

    fn blank(&self, number: u64, clean: bool, logs: LogTable) -> Attempt {
        let layout = self.superblock.layout;
        Attempt {
            superblock: Superblock { generation: number, clean, ..self.superblock.clone() },
            regions: None,
            logs: LogTable { generation: number, ..logs },
            logs_place: layout.log_table(self.logs_spare),
            shards: BTreeMap::new(),
            chunks: BTreeSet::new(),
            root_blocks: BTreeMap::new(),
            region_pages: Vec::new(),
        }
    }

    /// From where each log counts after the checkpoint.
    fn log_starts(&self, written: &[(CellId, Written)]) -> Result<Vec<Lsn>, Errno> {
        let mut starts = self.logs.starts.clone();
        for (cell, part) in written {
            let start = starts.get_mut(usize::from(cell.0)).ok_or(Errno::EPROTO)?;
            if part.log_start < *start {
                return Err(Errno::EPROTO);
            }
            *start = part.log_start;
        }
        Ok(starts)
    }

    /// Claims before releases: a chunk has one owner in the whole of a checkpoint. No cell can have
    /// claimed a chunk that the pool has only when it has grown.
    fn add_chunks(
        &self,
        attempt: &mut Attempt,
        (written, owners): (&[(CellId, Written)], &[CellId]),
        grown: Option<Layout>,
    ) -> Result<(), Errno> {
        let is_quiet =
            |(_, part): &(_, Written)| part.claimed.is_empty() && part.released.is_empty();
        if written.iter().all(is_quiet) && self.stale_chunks.is_empty() && grown.is_none() {
            return Ok(());
        }
        let mut regions = self.regions.clone();
        self.stale_chunks.iter().for_each(|&chunk| regions.soil_page_of(chunk));
        for (cell, part) in written {
            for &(chunk, shard) in &part.claimed {
                match regions.owner(chunk) {
                    Some(Owner::Free) if owner(owners, shard) == Some(*cell) => {
                        regions.claim(chunk, shard);
                    }
                    _ => return Err(Errno::EPROTO),
                }
                attempt.chunks.insert(chunk);
            }
        }
        for (cell, part) in written {
            for &chunk in &part.released {
                match regions.owner(chunk) {
                    Some(Owner::Shard(shard)) if owner(owners, shard) == Some(*cell) => {
                        regions.release(chunk);
                    }
                    _ => return Err(Errno::EPROTO),
                }
                attempt.chunks.insert(chunk);
            }
        }
        if let Some(layout) = grown {
            let before = *regions.layout();
            regions.grow(layout);
            attempt.region_pages = regions.blank_pages(before.region_pages());
            // If the attempt fails, this page is stale. Those that only the grown pool has count
            // for nothing until the next growth, which writes them anew.
            attempt.chunks.insert(before.chunks() - 1);
            attempt.superblock.layout = layout;
        }
        attempt.region_pages.extend(regions.write_out(attempt.superblock.generation));
        attempt.regions = Some(regions);
        Ok(())
    }

    fn add_root(&self, attempt: &mut Attempt, root: &ShardRoot) -> Result<(), Errno> {
        let regions = attempt.regions.as_ref().unwrap_or(&self.regions);
        let height_fits = root.root.is_some() == (root.height > 0);
        if attempt.shards.contains_key(&root.shard)
            || !height_fits
            || root.height > ROOT_HEIGHT_MAX
            || !(1..=Ino::SEQUENCE_MAX + 1).contains(&root.next_sequence)
            || root.root.is_some_and(|(block, _)| !owns(regions, root.shard, block))
        {
            return Err(Errno::EPROTO);
        }
        let slot = RootSlot {
            uuid: self.superblock.uuid,
            shard: root.shard,
            generation: attempt.superblock.generation,
            root: root.root.map(|(block, checksum)| BlockPtr { block, checksum }),
            height: root.height,
            next_sequence: root.next_sequence,
            given_up: false,
            inodes: root.inodes,
            used_blocks: root.blocks,
        };
        self.put_slot(attempt, slot);
        Ok(())
    }

    /// Marks the shard as given up. Its tree stays as it is.
    fn add_mark(&self, attempt: &mut Attempt, shard: ShardId) {
        let root = self.shards[usize::from(shard.0)].root;
        if !root.given_up {
            let generation = attempt.superblock.generation;
            self.put_slot(attempt, RootSlot { generation, given_up: true, ..root });
        }
    }

    fn add_stale_shards(&self, attempt: &mut Attempt) {
        // A cell that serves the shard still may have a new root for it.
        let is_blank = |(shard, _): &&(ShardId, usize)| !attempt.shards.contains_key(shard);
        let blanks: Vec<_> = self.blanks.iter().filter(is_blank).copied().collect();
        for (shard, slot) in blanks {
            self.put_bytes(attempt, (shard, slot), &[0; ROOT_SLOT_SIZE]);
        }
        for &shard in &self.stale_shards {
            if !attempt.shards.contains_key(&shard) {
                let generation = attempt.superblock.generation;
                let root = self.shards[usize::from(shard.0)].root;
                self.put_slot(attempt, RootSlot { generation, ..root });
            }
        }
    }

    fn put_slot(&self, attempt: &mut Attempt, slot: RootSlot) {
        let spare = self.shards[usize::from(slot.shard.0)].spare;
        self.put_bytes(attempt, (slot.shard, spare), &slot.encode());
        attempt.shards.insert(slot.shard, ShardRecord { root: slot, spare: 1 - spare });
    }

    /// Puts bytes into a slot of the shard. The other slots of the block stay.
    fn put_bytes(&self, attempt: &mut Attempt, (shard, slot): (ShardId, usize), bytes: &[u8]) {
        let place = self.superblock.layout.root_slot(shard, slot);
        let block = (attempt.root_blocks.entry(place.block))
            .or_insert_with(|| self.root_blocks[&place.block].clone());
        block[place.offset..][..ROOT_SLOT_SIZE].copy_from_slice(bytes);
    }

    /// The attempt is durable: it is the committed state from now on.
    pub(crate) fn commit(&mut self, attempt: Attempt) {
        self.superblock = attempt.superblock;
        self.logs = attempt.logs;
        self.logs_spare = 1 - self.logs_spare;
        if let Some(regions) = attempt.regions {
            self.regions = regions;
            self.stale_chunks.clear();
        }
        self.stale_shards.clear();
        for (shard, record) in attempt.shards {
            self.shards[usize::from(shard.0)] = record;
            if self.unreadable.remove(&shard).is_some() {
                // Its other slot is bad.
                self.stale_shards.insert(shard);
            }
        }
        self.root_blocks.extend(attempt.root_blocks);
        self.blanks.clear();
    }

    /// The attempt has failed, but any part of it may be on the device.
    pub(crate) fn abandon(&mut self, attempt: Attempt) {
        for shard in attempt.shards.keys() {
            if self.unreadable.contains_key(shard) {
                self.blanks.insert((*shard, self.shards[usize::from(shard.0)].spare));
            } else {
                self.stale_shards.insert(*shard);
            }
        }
        self.stale_chunks.extend(attempt.chunks);
    }
}

impl Attempt {
    /// The blocks that must be durable before the superblock is written.
    pub(crate) fn writes(&self) -> Vec<BlockWrite> {
        let roots = self.root_blocks.iter().map(|(block, bytes)| (*block, bytes.clone()));
        let logs = (self.logs_place, self.logs.encode());
        self.region_pages.iter().cloned().chain(roots).chain([logs]).collect()
    }

    pub(crate) const fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}

/// The map, unless it may be an old one, in which chunks are free that have owners now.
fn load_regions(superblock: &Superblock, copies: [&[u8]; 2]) -> Result<RegionMap, RegionError> {
    let regions = RegionMap::load(superblock, copies)?;
    match regions.bad_pages().iter().find(|page| page.in_doubt) {
        Some(page) => Err(RegionError::InDoubt(page.block)),
        None => Ok(regions),
    }
}

fn owner(owners: &[CellId], shard: ShardId) -> Option<CellId> {
    owners.get(usize::from(shard.0)).copied()
}

fn owns(regions: &RegionMap, shard: ShardId, block: BlockNo) -> bool {
    regions.owner(block.0 / CHUNK_BLOCKS) == Some(Owner::Shard(shard))
}

/// Whether the generation of a page is that of a checkpoint that was never committed. A damaged
/// page may have such a generation too; overwriting it is harmless.
fn has_uncommitted_page(copies: [&[u8]; 2], committed: u64) -> bool {
    copies.iter().flat_map(|copy| copy.chunks(BLOCK_SIZE)).any(|page| {
        let generation = page.get(PAGE_GENERATION..PAGE_GENERATION + 8);
        let generation = generation.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        generation.is_some_and(|generation| generation > committed)
    })
}

#[cfg(test)]
#[path = "ledger/tests.rs"]
mod tests;
