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
//!  28  4  zero
//! ```
//!
//! A page has an entry from before its first acknowledged change until a record names its place and
//! its bytes there are durable: a flush that fails after the process has died may lose what the
//! process had written. A change is made in another frame, so that the record decides
//! between the two frames: with the record the new one counts, without it the old one.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Ino, Lsn};

use crate::event::{FrameNo, Memory};
use crate::frames::PageNo;

const ENTRY: usize = 32;
const ENTRIES_PER_FRAME: u32 = (BLOCK_SIZE / ENTRY) as u32;

#[derive(Debug)]
pub(crate) struct FrameTable {
    first: FrameNo,
    frames: u32,
}

impl FrameTable {
    /// Frames that the table for so many frames takes.
    pub(crate) const fn frames_for(frames: u32) -> u32 {
        frames.div_ceil(ENTRIES_PER_FRAME)
    }

    pub(crate) const fn new(first: FrameNo, frames: u32) -> Self {
        Self { first, frames }
    }

    fn place(&self, frame: FrameNo) -> (FrameNo, usize) {
        assert!(frame.0 < self.frames, "only the cache's frames have entries");
        let table = FrameNo(self.first.0 + frame.0 / ENTRIES_PER_FRAME);
        (table, (frame.0 % ENTRIES_PER_FRAME) as usize * ENTRY)
    }

    /// The page is in the frame, provided that the log gets a record at `since`.
    pub(crate) fn set(&self, frame: FrameNo, at: PageNo, since: Lsn, memory: &mut dyn Memory) {
        let mut entry = [0; ENTRY];
        entry[..8].copy_from_slice(&at.0.0.to_le_bytes());
        entry[8..16].copy_from_slice(&at.1.to_le_bytes());
        entry[16..24].copy_from_slice(&since.0.to_le_bytes());
        let crc = crc32c::crc32c(&entry[..24]);
        entry[24..28].copy_from_slice(&crc.to_le_bytes());
        let (table, offset) = self.place(frame);
        memory.frame_mut(table)[offset..offset + ENTRY].copy_from_slice(&entry);
    }

    pub(crate) fn clear(&self, frame: FrameNo, memory: &mut dyn Memory) {
        let (table, offset) = self.place(frame);
        memory.frame_mut(table)[offset..offset + ENTRY].fill(0);
    }

    /// The page and the LSN of a predecessor's entry.
    pub(crate) fn read(&self, frame: FrameNo, memory: &dyn Memory) -> Option<(PageNo, Lsn)> {
        let (table, offset) = self.place(frame);
        let entry = &memory.frame(table)[offset..offset + ENTRY];
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
        let crc = u32::from_le_bytes(entry[24..28].try_into().expect("4 bytes"));
        if word(0) == 0 || crc != crc32c::crc32c(&entry[..24]) {
            return None;
        }
        Some(((Ino(word(0)), word(8)), Lsn(word(16))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::test_memory::Frames;

    #[test]
    fn an_entry_counts_only_whole() {
        let table = FrameTable::new(FrameNo(1), 2);
        let mut memory = Frames(vec![[0; BLOCK_SIZE]; 2]);
        let at = (Ino(9), 3);
        table.set(FrameNo(1), at, Lsn(512), &mut memory);
        assert_eq!(table.read(FrameNo(1), &memory), Some((at, Lsn(512))));
        assert_eq!(table.read(FrameNo(0), &memory), None);
        for byte in 0..28 {
            memory.frame_mut(FrameNo(1))[ENTRY + byte] ^= 1;
            assert_eq!(table.read(FrameNo(1), &memory), None, "byte {byte}");
            memory.frame_mut(FrameNo(1))[ENTRY + byte] ^= 1;
        }
        table.clear(FrameNo(1), &mut memory);
        assert_eq!(table.read(FrameNo(1), &memory), None);
    }
}
