//! Layout of the two segments between a client and a cell. Offsets in bytes; every page has one
//! writer, the owner of the segment.
//!
//! ```text
//! client segment (written by the client, one a client)
//!   0        header          magic, version, slots
//!   4096     doorbells       one 64-byte line a cell: word 0 = bitmap, bit toggled when slot rings
//!   8192     request lines   one 64-byte line a slot
//!   16384    idle inodes     8,192 of 8 bytes
//!   81920    slot areas      a slot: body 8 KiB, then payload 1 MiB
//!
//! cell-to-client segment (written by the cell, one a pair)
//!   0        header          magic, version, cell, epoch
//!   8192     reply lines     one 64-byte line a slot
//!   16384    lease words     65,536 of 8 bytes
//!   540672   closed inodes   8,192 of 8 bytes
//!   606208   slot areas      a slot: body 8 KiB, then payload 1 MiB
//! ```
//!
//! A request is written in this order: the body, the line, the word with `seq` (release). Then the
//! client toggles the doorbell bit of the cell; because it is toggled, no second writer has to
//! clear it. A reply is written in the same order. A body of up to [`INLINE_MAX`] bytes is in the
//! line itself.
//!
//! An *idle inode* is one that the client has kept handles of ([`Opened::kept`](crate::Opened)) and
//! uses none of them. Its number is in the word that [`idle_at`] names. The client removes it
//! before it loads the lease word to use a handle again; a cell that closes kept handles clears the
//! lease word before it loads this word. So one of the two sees the other (Dekker). The cell then
//! stores the number at [`closed_at`], so that the client does not close the handles again.
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

use warren_base::Ino;
use warren_base::limits::{BODY_MAX, CELLS_MAX, LEASE_WORDS, PAYLOAD_MAX, SLOTS_MAX};

pub const MAGIC: u64 = u64::from_le_bytes(*b"WarrenSg");
pub const VERSION: u32 = 1;
pub const LINE: usize = 64;

pub const HEADER: usize = 0;
pub const DOORBELLS: usize = 4096;
pub const LINES: usize = 8192;
/// The idle inodes of the client.
pub const IDLE: usize = 16384;
pub const IDLE_WORDS: usize = 8192;
pub const REQUEST_AREAS: usize = IDLE + IDLE_WORDS * 8;
pub const WORDS: usize = 16384;
/// The inodes of which the cell has closed all kept handles.
pub const CLOSED: usize = WORDS + LEASE_WORDS * 8;
pub const REPLY_AREAS: usize = CLOSED + IDLE_WORDS * 8;
/// Bytes of a slot's area: body, then payload.
pub const AREA: usize = BODY_MAX + PAYLOAD_MAX;

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
    pub const PARKED: usize = 60;
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

/// Where in the client segment the inode is marked as idle. Inodes share words; a client marks one
/// of them at a time.
pub const fn idle_at(ino: Ino) -> usize {
    IDLE + idle_word(ino) * 8
}

/// Where in the cell-to-client segment the inode is marked as closed. Before another inode takes
/// its place there, the client has marked that one as idle in place of this one.
pub const fn closed_at(ino: Ino) -> usize {
    CLOSED + idle_word(ino) * 8
}

const fn idle_word(ino: Ino) -> usize {
    // Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4).
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    (ino.0.wrapping_mul(GOLDEN) >> (64 - IDLE_WORDS.ilog2())) as usize
}

/// Bytes of a client segment with this many slots.
pub const fn client_segment_len(slots: usize) -> usize {
    REQUEST_AREAS + slots * AREA
}

/// Bytes of a cell-to-client segment with this many slots.
pub const fn cell_segment_len(slots: usize) -> usize {
    REPLY_AREAS + slots * AREA
}

const _: () = {
    assert!(DOORBELLS + CELLS_MAX * LINE <= LINES);
    assert!(LINES + SLOTS_MAX * LINE <= IDLE);
    assert!(IDLE_WORDS.is_power_of_two());
    assert!(REQUEST_AREAS == 81_920);
    assert!(LINES + SLOTS_MAX * LINE <= WORDS);
    assert!(REPLY_AREAS == 606_208);
    assert!(request::INLINE + request::INLINE_MAX == request::PARKED);
    assert!(reply::INLINE + reply::INLINE_MAX == LINE);
    assert!(BODY_MAX <= u16::MAX as usize);
    assert!(AREA.is_multiple_of(4096));
};
