//! Layout of the two segments between a client and a cell. Offsets in bytes; every page has one
//! writer, the owner of the segment.
//!
//! ```text
//! client segment (written by the client, one a client)
//!   0        header          magic, version, slots
//!   4096     doorbells       one 64-byte line a cell: word 0 = bitmap, toggled when a slot rings;
//!                            word 1 = answers that a sleeping thread found by its time-out;
//!                            word 2 = processes that have continued the client
//!   8192     request lines   one 64-byte line a slot
//!   12288    stream ends     one 64-byte line a cell (crate::stream)
//!   16384    idle inodes     8 bytes each
//!   ...      slot areas      a slot: body 8 KiB, then payload
//!   ...      streams         a ring a cell
//!
//! cell-to-client segment (written by the cell, one a pair)
//!   0        header          magic, version, cell, epoch
//!   64       u32 watched     the cell looks at the client's doorbell; else its bell must be rung
//!   128      stream          how far the cell has executed it (crate::stream)
//!   192      u32 fixed       how much of it the cell reads
//!   8192     reply lines     one 64-byte line a slot
//!   16384    lease words     8 bytes each
//!   ...      closed inodes   8 bytes each
//!   ...      slot areas      a slot: body 8 KiB, then payload
//!
//! lane size   payload   lease words   idle and closed inodes   stream
//! small        16 KiB           512                      512    64 KiB
//! medium      128 KiB         8,192                    2,048   512 KiB
//! large         1 MiB        65,536                    8,192     1 MiB
//! ```
//!
//! A client's [`Shape`], the number of its slots and the size of its lanes, is fixed while it is
//! admitted. A cell takes it from the supervisor's message, never from a segment. Memory is
//! allocated page by page when it is first written, so what a client does not use costs nothing.
//!
//! A cell grants leases on the words of the client's table only. Idle inodes are found by their
//! hash, so several of them share a word, the more the smaller the table is.
//!
//! A request is written in this order: the body, the line, the word with `seq` (release). Then the
//! client toggles the doorbell bit of the cell; because it is toggled, no second writer has to
//! clear it. A reply is written in the same order. A body of up to [`INLINE_MAX`] bytes is in the
//! line itself.
//!
//! An *idle inode* is one that the client has kept handles of ([`Opened::kept`](crate::Opened)) and
//! uses none of them. Its number is in one of the words that [`Shape::idle_at`] names. The client
//! removes it before it loads the lease word to use a handle again; a cell that closes kept handles
//! clears the lease word before it loads these words. So one of the two sees the other (Dekker).
//! The cell then stores the number at [`Shape::closed_at`], so that the client does not close the
//! handles again.
//!
//! ```text
//! request line                          reply line
//!   0  u32 seq                            0  u32 seq (futex word)
//!   4  u16 cell, u16 body length          4  i32 errno, 0 for none
//!   8  u32 uid                            8  u32 body length
//!  12  u32 gid                           12  u32 payload length
//!  16  u32 payload length                16  inline body, 48 bytes
//!  20  u32 map version
//!  24  inline body, 36 bytes
//!  60  u32 parked: the client sleeps on the reply's seq
//! ```

use alloc::vec::Vec;

use warren_base::limits::{BODY_MAX, CELLS_MAX, LEASE_WORDS, PAYLOAD_MAX, SLOTS_MAX};
use warren_base::{CellId, Ino, SlotNo};

use crate::wire::{Malformed, Reader, Wire};

pub const MAGIC: u64 = u64::from_le_bytes(*b"WarrenSg");
pub const VERSION: u32 = 1;
pub const LINE: usize = 64;

pub const HEADER: usize = 0;
pub const DOORBELLS: usize = 4096;
/// In a doorbell's line: the count of answers of the cell that were found by a time-out.
pub const LATE: usize = 8;
/// In the same line: the count of processes that have continued the client.
pub const STARTS: usize = 16;
pub const LINES: usize = 8192;
/// The ends of the client's streams to cells.
pub const STREAM_ENDS: usize = 12288;
/// In the cell-to-client segment, on a line of its own.
pub const WATCHED: usize = 64;
/// In the same segment: how far the client's stream is executed, and the outcome of the record that
/// ends there.
pub const STREAM_OUTCOME: usize = 128;
/// Beside it: the value of that record.
pub const STREAM_VALUE: usize = STREAM_OUTCOME + 8;
/// Beside it: the payload word of the record that the cell has read last, and where it ends.
pub const STREAM_TAKEN: usize = STREAM_VALUE + 8;
/// On a line of its own: the place up to which the cell reads the client's stream.
pub const STREAM_FIXED: usize = 192;
/// The idle inodes of the client.
pub const IDLE: usize = 16384;
/// So many idle inodes with the same hash can be marked.
pub const IDLE_WAYS: usize = LINE / 8;
pub const WORDS: usize = 16384;

/// The sizes of a client's lanes, and of the tables that go with them. The set is small, so that a
/// segment of each size can be tested.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LaneSize {
    /// For a program that makes small calls: one page of lease words at each cell.
    Small,
    Medium,
    /// For a front, and for programs that move much data.
    Large,
}

impl LaneSize {
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// The size with lanes of so many bytes, if there is one.
    pub fn of(payload: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|size| size.payload() == payload as usize)
    }

    /// Bytes of file data of one request, each way.
    pub const fn payload(self) -> usize {
        match self {
            Self::Small => 16 << 10,
            Self::Medium => 128 << 10,
            Self::Large => PAYLOAD_MAX,
        }
    }

    /// Lease words of each cell for the client.
    pub const fn words(self) -> usize {
        match self {
            Self::Small => 512,
            Self::Medium => 8192,
            Self::Large => LEASE_WORDS,
        }
    }

    /// Bytes of the stream to each cell, a power of two.
    pub const fn stream(self) -> usize {
        match self {
            Self::Small => 64 << 10,
            Self::Medium => 512 << 10,
            Self::Large => 1 << 20,
        }
    }

    /// Words for idle inodes, and at each cell for closed ones.
    pub const fn idle_words(self) -> usize {
        match self {
            Self::Small => 512,
            Self::Medium => 2048,
            Self::Large => 8192,
        }
    }
}

/// The sizes of a client's segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    slots: u16,
    lanes: LaneSize,
}

impl Shape {
    /// For a cell's state machine alone, without segments: each of many requests may have a slot of
    /// its own. No message can name it.
    pub const UNBOUNDED: Self = Self { slots: u16::MAX, lanes: LaneSize::Large };

    /// `None` if a client cannot have so many slots.
    pub fn new(slots: u16, lanes: LaneSize) -> Option<Self> {
        (1..=SLOTS_MAX).contains(&usize::from(slots)).then_some(Self { slots, lanes })
    }

    /// The shape that a message names.
    pub fn of(slots: u16, payload: u32) -> Option<Self> {
        Self::new(slots, LaneSize::of(payload)?)
    }

    /// Returns a shape with large lanes.
    ///
    /// # Panics
    /// If a client cannot have so many slots.
    pub fn large(slots: usize) -> Self {
        let shape = u16::try_from(slots).ok().and_then(|slots| Self::new(slots, LaneSize::Large));
        shape.unwrap_or_else(|| panic!("{slots} slots"))
    }

    pub const fn slots(self) -> usize {
        self.slots as usize
    }

    pub const fn lanes(self) -> LaneSize {
        self.lanes
    }

    /// Bytes of a payload lane.
    pub const fn payload(self) -> usize {
        self.lanes.payload()
    }

    /// Bytes of a slot's area: body, then payload.
    pub const fn area_len(self) -> usize {
        BODY_MAX + self.payload()
    }

    /// The slot's area in the client segment.
    pub const fn request_area(self, slot: SlotNo) -> usize {
        IDLE + self.lanes.idle_words() * 8 + slot.0 as usize * self.area_len()
    }

    /// The slot's area in a cell-to-client segment.
    pub const fn reply_area(self, slot: SlotNo) -> usize {
        self.words_end() + slot.0 as usize * self.area_len()
    }

    /// Where lease word `word` is. A number beyond the table leads to one within.
    pub const fn word_at(self, word: u32) -> usize {
        WORDS + (word as usize & (self.lanes.words() - 1)) * 8
    }

    /// The words of the client segment that can mark the inode as idle: a cache line. Many inodes
    /// share them; each word marks one at a time.
    pub fn idle_at(self, ino: Ino) -> impl Iterator<Item = usize> {
        let line = self.idle_line(ino);
        (line..line + IDLE_WAYS).map(|word| IDLE + word * 8)
    }

    /// The number of the first of these words.
    pub const fn idle_line(self, ino: Ino) -> usize {
        self.idle_word(ino) / IDLE_WAYS * IDLE_WAYS
    }

    /// Where in the cell-to-client segment the inode is marked as closed. Another inode may take
    /// its place there. Then the client closes the handles once more, which has no effect.
    pub const fn closed_at(self, ino: Ino) -> usize {
        WORDS + (self.lanes.words() + self.idle_word(ino)) * 8
    }

    /// The end of the lease words and the closed inodes, which begin at [`WORDS`].
    pub const fn words_end(self) -> usize {
        WORDS + (self.lanes.words() + self.lanes.idle_words()) * 8
    }

    /// Where in the client segment the ring of the stream to a cell begins.
    pub const fn stream_at(self, cell: CellId) -> usize {
        self.request_area(SlotNo(self.slots)) + cell.0 as usize * self.lanes.stream()
    }

    /// Bytes of the longest record of a stream.
    pub const fn record_max(self) -> usize {
        self.lanes.stream() / 4
    }

    /// Bytes of the client segment in a fleet of so many cells.
    pub const fn client_segment_len(self, cells: usize) -> usize {
        self.stream_at(CellId(cells as u16))
    }

    /// Bytes of a cell-to-client segment.
    pub const fn cell_segment_len(self) -> usize {
        self.reply_area(SlotNo(self.slots))
    }

    const fn idle_word(self, ino: Ino) -> usize {
        // Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4).
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        (ino.0.wrapping_mul(GOLDEN) >> (64 - self.lanes.idle_words().ilog2())) as usize
    }
}

/// Slots as `u16`, then the bytes of a lane as `u32`.
impl Wire for Shape {
    fn encode(&self, out: &mut Vec<u8>) {
        self.slots.encode(out);
        (self.payload() as u32).encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (slots, payload) = (u16::decode(from)?, u32::decode(from)?);
        Self::of(slots, payload).ok_or(Malformed::new("no shape of a client's segments"))
    }
}

/// Offsets within a request line.
pub mod request {
    /// One word of 64 bits, so that a number is never seen with another request's cell or length.
    pub const POSTED: usize = 0;
    pub const UID: usize = 8;
    pub const GID: usize = 12;
    pub const PAYLOAD_LEN: usize = 16;
    pub const MAP_VERSION: usize = 20;
    pub const INLINE: usize = 24;
    pub const INLINE_MAX: usize = 36;
    /// Where the slot's thread is, and whether it sleeps.
    pub const THREAD: usize = 60;
}

/// Offsets within a reply line.
pub mod reply {
    pub const SEQ: usize = 0;
    pub const ERRNO: usize = 4;
    pub const BODY_LEN: usize = 8;
    pub const PAYLOAD_LEN: usize = 12;
    pub const INLINE: usize = 16;
    pub const INLINE_MAX: usize = 48;
}

/// The first word of a request line.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Posted {
    pub seq: u32,
    /// The receiver: the requests of a slot go to any cell, one after the other.
    pub cell: u16,
    pub body_len: u16,
}

impl Posted {
    pub const fn pack(self) -> u64 {
        self.seq as u64 | (self.cell as u64) << 32 | (self.body_len as u64) << 48
    }

    pub const fn unpack(word: u64) -> Self {
        Self { seq: word as u32, cell: (word >> 32) as u16, body_len: (word >> 48) as u16 }
    }
}

const _: () = {
    assert!(DOORBELLS + CELLS_MAX * LINE <= LINES);
    assert!(LINES + SLOTS_MAX * LINE <= STREAM_ENDS && LINES + SLOTS_MAX * LINE <= WORDS);
    assert!(STREAM_ENDS + CELLS_MAX * LINE <= IDLE && WATCHED + LINE <= STREAM_OUTCOME);
    assert!(WATCHED >= LINE && STREAM_OUTCOME + LINE <= STREAM_FIXED);
    assert!(STREAM_FIXED + LINE <= LINES);
    assert!(request::INLINE + request::INLINE_MAX == request::THREAD);
    assert!(reply::INLINE + reply::INLINE_MAX == LINE);
    assert!(BODY_MAX <= u16::MAX as usize);
    let mut at = 0;
    while at < LaneSize::ALL.len() {
        let size = LaneSize::ALL[at];
        let shape = Shape { slots: SLOTS_MAX as u16, lanes: size };
        assert!(shape.area_len().is_multiple_of(4096) && size.payload() <= PAYLOAD_MAX);
        assert!(size.words().is_power_of_two() && size.words() <= LEASE_WORDS);
        assert!(size.idle_words().is_power_of_two() && size.idle_words() >= IDLE_WAYS);
        assert!(size.stream().is_power_of_two() && shape.record_max() > BODY_MAX + LINE);
        assert!(shape.request_area(SlotNo(0)).is_multiple_of(4096));
        assert!(shape.reply_area(SlotNo(0)).is_multiple_of(4096));
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shapes_of_the_set_are_legal() {
        for lanes in LaneSize::ALL {
            for slots in [1, 64] {
                let shape = Shape::new(slots, lanes).expect("legal");
                assert_eq!(Shape::from_bytes(&shape.to_bytes()), Ok(shape));
            }
            assert_eq!(Shape::new(0, lanes), None);
            assert_eq!(Shape::new(65, lanes), None);
        }
        for payload in [0, 1, 4096, (16 << 10) + 1, 1 << 21, u32::MAX] {
            assert_eq!(Shape::of(1, payload), None);
            let bytes = [1_u16.to_bytes(), payload.to_bytes()].concat();
            assert!(Shape::from_bytes(&bytes).is_err(), "{payload}");
        }
    }

    #[test]
    fn parts_of_a_segment_do_not_overlap() {
        for lanes in LaneSize::ALL {
            let shape = Shape::new(3, lanes).expect("legal");
            let last_word = (0..4 * LEASE_WORDS as u32).map(|word| shape.word_at(word)).max();
            let inodes = || (1..100_000).map(Ino);
            let (first, last) = (
                inodes().map(|ino| shape.closed_at(ino)).min(),
                inodes().map(|ino| shape.closed_at(ino)).max(),
            );
            assert!(last_word < first && last < Some(shape.reply_area(SlotNo(0))));
            let idle = inodes().flat_map(|ino| shape.idle_at(ino)).max();
            assert!(idle < Some(shape.request_area(SlotNo(0))));
            assert_eq!(shape.stream_at(CellId(0)), shape.request_area(SlotNo(3)));
            assert_eq!(shape.client_segment_len(2), shape.stream_at(CellId(2)));
            assert_eq!(shape.cell_segment_len(), shape.reply_area(SlotNo(3)));
        }
        let large = Shape::large(1);
        assert_eq!(large.request_area(SlotNo(0)), 81_920);
        assert_eq!(large.reply_area(SlotNo(0)), 606_208);
    }
}
