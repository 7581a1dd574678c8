//! The buffer cache's table: it names the page of each frame that is not durable, in memory that
//! outlives the process.
//!
//! ```text
//! frames:  cache | image of the op log | table
//!
//! entry of a frame, 32 bytes
//!   0  8  ino, 0 for none
//!   8  8  page
//!  16  8  LSN of the record of the change: the entry counts if the log has that record;
//!         of two entries with the same page the later counts
//!  24  4  crc of bytes 0..24
//!  28  4  checksum of the page, stored later; 0: there is none yet
//! ```
//!
//! A page has an entry from before its first acknowledged change until a record names its place and
//! its bytes there are durable: a flush that fails after the process has died may lose what the
//! process had written. A change is made in another frame, so that the record decides
//! between the two frames: with the record the new one counts, without it the old one.
//!
//! So the contents of a frame do not change while its entry names a page, and a frame that does not
//! have the checksum of its entry was damaged. A successor checks that before it uses the page
//! (`recovery/discard.rs`). Write-back takes the checksum from the entry, so damage that happens
//! meanwhile is found by the reader of the block.
//!
//! No request waits for checksums. They are made before the cell sleeps, or when a quarter of the
//! cache has none. A page that is changed again before needs none. One store of 4 bytes adds it,
//! which is there or not when the process dies.

use std::collections::VecDeque;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Ino, Lsn};

use crate::event::{FrameNo, Memory};
use crate::frames::PageNo;

const ENTRY: usize = 32;
const ENTRIES_PER_FRAME: u32 = (BLOCK_SIZE / ENTRY) as u32;

/// The offsets, in an entry, of its own crc and of the checksum of its page.
const CRC: usize = 24;
const CHECKSUM: usize = 28;
/// Stands for no checksum.
const NONE: u32 = 0;
/// The part of the cache that may have no checksums. Of more dirty pages the cell writes some back
/// (`checkpoint/writeback.rs`), for which it needs the checksums anyway.
const PENDING_PART: usize = 4;

/// The page that a frame holds and that is not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) at: PageNo,
    pub(crate) since: Lsn,
    pub(crate) checksum: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct FrameTable {
    first: FrameNo,
    frames: u32,
    /// Frames whose entries may have no checksum yet, the oldest first.
    pending: VecDeque<FrameNo>,
}

impl FrameTable {
    /// Frames that the table for so many frames takes.
    pub(crate) const fn frames_for(frames: u32) -> u32 {
        frames.div_ceil(ENTRIES_PER_FRAME)
    }

    pub(crate) const fn new(first: FrameNo, frames: u32) -> Self {
        Self { first, frames, pending: VecDeque::new() }
    }

    fn place(&self, frame: FrameNo) -> (FrameNo, usize) {
        assert!(frame.0 < self.frames, "only the cache's frames have entries");
        let table = FrameNo(self.first.0 + frame.0 / ENTRIES_PER_FRAME);
        (table, (frame.0 % ENTRIES_PER_FRAME) as usize * ENTRY)
    }

    /// The page is in the frame, whole, provided that the log gets a record at `since`.
    pub(crate) fn set(&mut self, frame: FrameNo, at: PageNo, since: Lsn, memory: &mut dyn Memory) {
        let mut entry = [0; ENTRY];
        entry[..8].copy_from_slice(&at.0.0.to_le_bytes());
        entry[8..16].copy_from_slice(&at.1.to_le_bytes());
        entry[16..24].copy_from_slice(&since.0.to_le_bytes());
        let crc = crc32c::crc32c(&entry[..CRC]);
        entry[CRC..CHECKSUM].copy_from_slice(&crc.to_le_bytes());
        let (table, offset) = self.place(frame);
        memory.frame_mut(table)[offset..offset + ENTRY].copy_from_slice(&entry);
        self.pending.push_back(frame);
        if self.pending.len() > self.frames as usize / PENDING_PART {
            self.add_checksums(1, memory);
        }
    }

    /// Adds the checksums of so many of the pages that have waited longest for them. Returns
    /// whether there are more.
    pub(crate) fn add_checksums(&mut self, most: usize, memory: &mut dyn Memory) -> bool {
        for _ in 0..most {
            let Some(frame) = self.pending.pop_front() else { return false };
            if self.read(frame, memory).is_some_and(|entry| entry.checksum.is_none()) {
                self.add_checksum(frame, memory);
            }
        }
        !self.pending.is_empty()
    }

    /// Makes the checksum of the page that the frame has now.
    pub(crate) fn add_checksum(&self, frame: FrameNo, memory: &mut dyn Memory) {
        let checksum = crc32c::crc32c(memory.frame(frame));
        let (table, offset) = self.place(frame);
        let place = offset + CHECKSUM..offset + ENTRY;
        memory.frame_mut(table)[place].copy_from_slice(&checksum.to_le_bytes());
    }

    pub(crate) fn clear(&self, frame: FrameNo, memory: &mut dyn Memory) {
        let (table, offset) = self.place(frame);
        memory.frame_mut(table)[offset..offset + ENTRY].fill(0);
    }

    /// The checksum of a dirty page.
    pub(crate) fn checksum(&self, frame: FrameNo, at: PageNo, memory: &dyn Memory) -> u32 {
        let entry = self.read(frame, memory).filter(|entry| entry.at == at);
        let known = entry.and_then(|entry| entry.checksum);
        known.unwrap_or_else(|| crc32c::crc32c(memory.frame(frame)))
    }

    /// The entry of a frame. `None` if it names no page, or is damaged.
    pub(crate) fn read(&self, frame: FrameNo, memory: &dyn Memory) -> Option<Entry> {
        let (table, offset) = self.place(frame);
        let entry = &memory.frame(table)[offset..offset + ENTRY];
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
        if word(0) == 0 || half(CRC) != crc32c::crc32c(&entry[..CRC]) {
            return None;
        }
        let at = (Ino(word(0)), word(8));
        let checksum = Some(half(CHECKSUM)).filter(|checksum| *checksum != NONE);
        Some(Entry { at, since: Lsn(word(16)), checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::test_memory::Frames;

    #[test]
    fn an_entry_counts_only_whole() {
        let mut table = FrameTable::new(FrameNo(2), 8);
        let mut memory = Frames(vec![[0; BLOCK_SIZE]; 3]);
        let entry = Entry { at: (Ino(9), 3), since: Lsn(512), checksum: None };
        table.set(FrameNo(1), entry.at, entry.since, &mut memory);
        assert_eq!(table.read(FrameNo(1), &memory), Some(entry));
        assert_eq!(table.read(FrameNo(0), &memory), None);
        for byte in 0..CHECKSUM {
            memory.frame_mut(FrameNo(2))[ENTRY + byte] ^= 1;
            assert_eq!(table.read(FrameNo(1), &memory), None, "byte {byte}");
            memory.frame_mut(FrameNo(2))[ENTRY + byte] ^= 1;
        }
        table.clear(FrameNo(1), &mut memory);
        assert_eq!(table.read(FrameNo(1), &memory), None);
    }

    #[test]
    fn checksums_come_later_and_not_for_pages_that_are_gone() {
        let frames = 9;
        let first = FrameNo(frames);
        let mut table = FrameTable::new(first, frames);
        let all = frames + FrameTable::frames_for(frames);
        let mut memory = Frames(vec![[0; BLOCK_SIZE]; all as usize]);
        let checksum = |table: &FrameTable, memory: &Frames, frame| {
            table.read(FrameNo(frame), memory).and_then(|entry| entry.checksum)
        };
        for frame in 0..4 {
            memory.frame_mut(FrameNo(frame)).fill(frame as u8);
            table.set(FrameNo(frame), (Ino(9), frame.into()), Lsn(512), &mut memory);
        }
        // The first two had to make room.
        let wanted = |frame: u32| Some(crc32c::crc32c(&[frame as u8; BLOCK_SIZE]));
        assert_eq!([0, 1].map(|frame| checksum(&table, &memory, frame)), [wanted(0), wanted(1)]);
        assert_eq!(checksum(&table, &memory, 2), None);
        table.clear(FrameNo(2), &mut memory);
        assert!(table.add_checksums(1, &mut memory));
        assert_eq!(table.read(FrameNo(2), &memory), None);
        assert_eq!(checksum(&table, &memory, 3), None);
        assert!(!table.add_checksums(1, &mut memory));
        assert_eq!(checksum(&table, &memory, 3), wanted(3));
    }
}
