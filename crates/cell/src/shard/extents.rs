//! The blocks of files: where each lies, and which are owed.
//!
//! ```text
//! hole ──fallocate──▶ unwritten ──place──▶ placed
//!   ▲                     │                  │
//!   └── truncate, punch ──┴──────────────────┘
//! ```
//!
//! A placed block may be shared: it is the place of several blocks of files (decision 63). Each of
//! them leaves it when it is placed again.
//!
//! An unwritten block reads as zeros and has no place yet. The shard owes it one: [`Shard::room`]
//! counts it as used (decision 58).

use std::ops::{ControlFlow, RangeInclusive};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Ino, Timestamp};
use warren_disk::{EXTENT_BLOCKS_MAX, Extent, Key, Kind, Owed, Value};
use warren_proto::{RangeChange, RangeCopy, RangeKind, Run};

use crate::frames::Placed;
use crate::run::wait::Stop;
use crate::shard::{RESIDENT, Shard};

const PAGE: u64 = BLOCK_SIZE as u64;
/// The last block that an extent may have.
const LAST: u64 = u64::MAX / PAGE;

/// The state of one block of a file, by the file's extents.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockState {
    Hole,
    Unwritten,
    Placed(Placed),
}

impl Shard {
    pub(crate) fn block_state(&self, ino: Ino, block: u64) -> Result<BlockState, Stop> {
        let mut state = BlockState::Hole;
        self.allocated(ino, block, block, |first, value| {
            state = match value {
                Value::Extent(extent) => {
                    let at = block - first;
                    let checksum = extent.checksums[at as usize];
                    BlockState::Placed(Placed { block: extent.start.offset(at), checksum })
                }
                _ => BlockState::Unwritten,
            };
        })?;
        Ok(state)
    }

    /// The place of page `page` of the file; `None` if it has none.
    pub(crate) fn placed(&self, ino: Ino, page: u64) -> Result<Option<Placed>, Stop> {
        Ok(match self.block_state(ino, page)? {
            BlockState::Placed(placed) => Some(placed),
            BlockState::Hole | BlockState::Unwritten => None,
        })
    }

    /// Whether the block is in no hole.
    pub(crate) fn is_allocated(&self, ino: Ino, block: u64) -> Result<bool, Stop> {
        Ok(!matches!(self.block_state(ino, block)?, BlockState::Hole))
    }

    /// Calls the visitor with the extents that hold any of the blocks `first..=last`, unwritten
    /// ones too. Afterwards the leaf of block `last + 1` is in memory too, because the rest of an
    /// extent behind `last` becomes a record there.
    pub(crate) fn allocated<'a>(
        &'a self,
        ino: Ino,
        first: u64,
        last: u64,
        mut visit: impl FnMut(u64, &'a Value),
    ) -> Result<(), Stop> {
        let from = Key::extent(ino, first.saturating_sub(EXTENT_BLOCKS_MAX as u64 - 1));
        let visit = |key: &'a Key, value: &'a Value| {
            if let Some(blocks) = value.file_blocks()
                && key.sub <= last
                && key.sub + blocks > first
            {
                visit(key.sub, value);
            }
            ControlFlow::Continue(())
        };
        let to = Key::extent(ino, last.saturating_add(1));
        self.tree.range(from, to, visit).map_err(|absent| self.wait_for_node(absent))
    }

    /// Reads the leaves that a change of these blocks touches.
    pub(crate) fn fetch_extents(&self, ino: Ino, first: u64, last: u64) -> Result<(), Stop> {
        self.allocated(ino, first, last, |_, _| {})
    }

    /// The holes among blocks `first..=last`.
    pub(crate) fn holes(
        &self,
        ino: Ino,
        first: u64,
        last: u64,
    ) -> Result<Vec<RangeInclusive<u64>>, Stop> {
        let (mut holes, mut next) = (Vec::new(), first);
        self.allocated(ino, first, last, |at, value| {
            if at > next {
                holes.push(next..=at - 1);
            }
            next = at + value.file_blocks().unwrap_or(0);
        })?;
        if next <= last {
            holes.push(next..=last);
        }
        Ok(holes)
    }

    /// The number of blocks of `first..=last` that have places.
    pub(crate) fn placed_blocks(&self, ino: Ino, first: u64, last: u64) -> Result<u64, Stop> {
        let mut placed = 0;
        self.allocated(ino, first, last, |at, value| {
            if let Value::Extent(extent) = value {
                placed += (at + extent.len()).min(last + 1) - at.max(first);
            }
        })?;
        Ok(placed)
    }

    /// The first block from `from` on that has a place.
    pub(crate) fn next_placed(&self, ino: Ino, from: u64) -> Result<Option<u64>, Stop> {
        let (mut found, before) = (None, from.saturating_sub(EXTENT_BLOCKS_MAX as u64 - 1));
        self.records(ino, Kind::Extent, before, |key, value| match value {
            Value::Extent(extent) if key.sub + extent.len() > from => {
                found = Some(key.sub.max(from));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })?;
        Ok(found)
    }

    /// The end of the blocks with places that follow each other from `from` on.
    pub(crate) fn end_of_placed(&self, ino: Ino, from: u64) -> Result<u64, Stop> {
        let (mut end, before) = (from, from.saturating_sub(EXTENT_BLOCKS_MAX as u64 - 1));
        self.records(ino, Kind::Extent, before, |key, value| {
            let after = key.sub + value.file_blocks().unwrap_or(0);
            if after <= end {
                return ControlFlow::Continue(());
            }
            if key.sub > end || !matches!(value, Value::Extent(_)) {
                return ControlFlow::Break(());
            }
            end = after;
            ControlFlow::Continue(())
        })?;
        Ok(end)
    }

    /// Replaces blocks `first..=last` by `new` (runs of blocks, each with its place and checksums)
    /// and holes, and frees the old blocks. Returns how many were allocated before. The extents
    /// were read in the same run.
    pub(crate) fn replace_extents(&mut self, ino: Ino, first: u64, last: u64, new: &[Run]) -> u64 {
        let mut records: Vec<(u64, Value)> = Vec::new();
        for Run { page, block: start, checksums } in new {
            for (index, run) in checksums.chunks(EXTENT_BLOCKS_MAX).enumerate() {
                let skip = (index * EXTENT_BLOCKS_MAX) as u64;
                let extent = Extent { start: start.offset(skip), checksums: run.into() };
                records.push((page + skip, Value::Extent(Box::new(extent))));
            }
        }
        let mut old: Vec<(u64, Value)> = Vec::new();
        let seen = self.allocated(ino, first, last, |at, value| old.push((at, value.clone())));
        seen.expect(RESIDENT);
        let mut freed = 0;
        for (at, value) in &old {
            let blocks = value.file_blocks().unwrap_or(0);
            let before = first.saturating_sub(*at).min(blocks);
            let after = last.saturating_add(1).saturating_sub(*at).min(blocks);
            records.extend(piece_of(*at, value, 0, before));
            records.extend(piece_of(*at, value, after, blocks));
            freed += after - before;
            if let Value::Extent(extent) = value {
                self.space.free_run(extent.start.offset(before), after - before);
            }
        }
        old.iter().for_each(|(_, value)| self.forget_owed(value));
        // Insert before removing: a leaf that lost its last record could vanish, together with the
        // place of a new record.
        old.retain(|(at, _)| records.iter().all(|(new, _)| new != at));
        for (at, value) in records {
            self.note_owed(&value);
            self.put_record(Key::extent(ino, at), value);
        }
        for (at, _) in old {
            self.take_record(&Key::extent(ino, at));
        }
        freed
    }

    /// Makes the holes among blocks `first..=last` unwritten, and returns them. The extents were
    /// read in the same run.
    fn fill_holes(&mut self, ino: Ino, first: u64, last: u64) -> Vec<RangeInclusive<u64>> {
        let holes = self.holes(ino, first, last).expect(RESIDENT);
        for hole in &holes {
            let mut at = *hole.start();
            while at <= *hole.end() {
                let blocks = (hole.end() - at + 1).min(EXTENT_BLOCKS_MAX as u64);
                let value = Value::Unwritten(blocks as u8);
                self.note_owed(&value);
                self.put_record(Key::extent(ino, at), value);
                at += blocks;
            }
        }
        holes
    }

    /// Changes the extents of a range. Returns how many blocks lost their allocation, and the holes
    /// that were filled. The extents were read in the same run.
    pub(crate) fn change_extents(
        &mut self,
        ino: Ino,
        change: &RangeChange,
        size: u64,
    ) -> (u64, Vec<RangeInclusive<u64>>) {
        let emptied = change.emptied(size);
        let freed = emptied.map_or(0, |(first, last)| self.replace_extents(ino, first, last, &[]));
        let (first, last) = change.blocks();
        let filled = match change.kind {
            RangeKind::PunchHole => Vec::new(),
            RangeKind::Allocate | RangeKind::Zero => self.fill_holes(ino, first, last),
        };
        (freed, filled)
    }

    /// The blocks of the copied range of `ino` are those of `source` from now on, and are shared.
    /// Returns how many of them were allocated before, and how many are now. The extents were read
    /// in the same run.
    pub(crate) fn share_extents(&mut self, ino: Ino, source: Ino, copy: &RangeCopy) -> (u64, u64) {
        let (from, to, count) = copy.blocks();
        let runs = runs_of(self, source, from, from + count - 1, to);
        for run in &runs {
            self.space.sharing.share(run.block, run.checksums.len() as u64);
        }
        let placed = runs.iter().map(|run| run.checksums.len() as u64).sum();
        (self.replace_extents(ino, to, to + count - 1, &runs), placed)
    }

    /// Whether the file shares this block of it. Then a change of the block takes one for good.
    pub(crate) fn is_shared(&self, ino: Ino, block: u64) -> Result<bool, Stop> {
        if self.space.sharing.chunks() == 0 {
            return Ok(false);
        }
        let place = self.placed(ino, block)?;
        Ok(place.is_some_and(|place| self.space.sharing.is_shared(place.block)))
    }

    /// Sets a file's size, and removes the extents beyond it unless the file becomes longer.
    pub(crate) fn truncate_extents(&mut self, ino: Ino, size: u64, now: Timestamp) {
        let inode = self.inode_mut(ino);
        let old = std::mem::replace(&mut inode.size, size);
        (inode.mtime, inode.ctime) = (now, now);
        if size <= old {
            self.drop_extents_beyond(ino, size);
        }
    }

    /// Removes the extents beyond `size`, also those that were allocated beyond the end.
    pub(crate) fn drop_extents_beyond(&mut self, ino: Ino, size: u64) {
        let freed = self.replace_extents(ino, size.div_ceil(PAGE), LAST, &[]);
        let inode = self.inode_mut(ino);
        inode.blocks = inode.blocks.saturating_sub(freed);
    }

    /// A record of an inode that ends is removed: its blocks are free.
    pub(crate) fn free_record(&mut self, value: &Value) {
        if let Value::Extent(extent) = value {
            self.space.free_run(extent.start, extent.len());
        }
        self.forget_owed(value);
    }

    fn note_owed(&mut self, value: &Value) {
        if let Value::Unwritten(blocks) = value {
            self.owed.blocks += u64::from(*blocks);
            self.owed.extents += 1;
            self.is_owed_stale = true;
        }
    }

    fn forget_owed(&mut self, value: &Value) {
        if let Value::Unwritten(blocks) = value {
            // A damaged image may record too little.
            self.owed.blocks = self.owed.blocks.saturating_sub(u64::from(*blocks));
            self.owed.extents = self.owed.extents.saturating_sub(1);
            self.is_owed_stale = true;
        }
    }

    /// Enters in the tree what the shard owes, for a checkpoint.
    pub(crate) fn record_owed(&mut self) {
        if std::mem::take(&mut self.is_owed_stale) {
            if self.owed == Owed::default() {
                self.take_record(&Key::owed());
            } else {
                self.put_record(Key::owed(), Value::Owed(self.owed));
            }
        }
    }
}

/// The blocks `first..=last` of the file that have places, as runs from block `to` on. The
/// extents were read in the same run.
fn runs_of(shard: &Shard, ino: Ino, first: u64, last: u64, to: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    let seen = shard.allocated(ino, first, last, |at, value| {
        if let Value::Extent(extent) = value {
            let from = first.saturating_sub(at);
            let until = (last + 1 - at).min(extent.len());
            let checksums = extent.checksums[from as usize..until as usize].into();
            let (page, block) = (to + (at + from - first), extent.start.offset(from));
            runs.push(Run { page, block, checksums });
        }
    });
    seen.expect(RESIDENT);
    runs
}

/// Reads the leaves that a copy of a range touches. Returns whether one more place may share
/// each of its blocks.
pub(crate) fn may_be_copied(
    shard: &Shard,
    ino: Ino,
    source: Ino,
    copy: &RangeCopy,
) -> Result<bool, Stop> {
    let (from, to, count) = copy.blocks();
    shard.fetch_extents(ino, to, to.saturating_add(count))?;
    let (mut may_be, end) = (true, from.saturating_add(count));
    shard.allocated(source, from, end.saturating_sub(1), |_, value| {
        if let Value::Extent(extent) = value {
            let (start, blocks) = (extent.start, extent.len());
            may_be &= shard.space.uses_run(start, blocks);
            may_be &= shard.space.sharing.may_share(start, blocks);
        }
    })?;
    Ok(may_be)
}

/// Blocks `from..to` of an extent that starts at block `at` of the file, as an extent of their own.
fn piece_of(at: u64, whole: &Value, from: u64, to: u64) -> Option<(u64, Value)> {
    if from >= to {
        return None;
    }
    let value = match whole {
        Value::Extent(whole) => {
            let checksums = whole.checksums[from as usize..to as usize].into();
            Value::Extent(Box::new(Extent { start: whole.start.offset(from), checksums }))
        }
        _ => Value::Unwritten((to - from) as u8),
    };
    Some((at + from, value))
}
