//! Layout of the two segments between a client and a cell. Offsets in bytes; every page has one
//! writer, the owner of the segment.
//!
//! ```text
//! client segment (written by the client, one a client)
//!   0        header          magic, version, slots
//!   4096     doorbells       one 64-byte line a cell: word 0 = bitmap, bit toggled when slot rings
//!   8192     request lines   one 64-byte line a slot
//!   16384    slot areas      a slot: body 8 KiB, then payload 1 MiB
//!
//! cell-to-client segment (written by the cell, one a pair)
//!   0        header          magic, version, cell, epoch
//!   8192     reply lines     one 64-byte line a slot
//!   16384    lease words     65,536 of 8 bytes
//!   540672   slot areas      a slot: body 8 KiB, then payload 1 MiB
//! ```
//!
//! A request is written in this order: the body, the line, the word with `seq` (release). Then the
//! client toggles the doorbell bit of the cell; because it is toggled, no second writer has to
//! clear it. A reply is written in the same order. A body of up to [`INLINE_MAX`] bytes is in the
//! line itself.
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

use warren_base::limits::{BODY_MAX, CELLS_MAX, LEASE_WORDS, PAYLOAD_MAX, SLOTS_MAX};

pub const MAGIC: u64 = u64::from_le_bytes(*b"WarrenSg");
pub const VERSION: u32 = 1;
pub const LINE: usize = 64;

pub const HEADER: usize = 0;
pub const DOORBELLS: usize = 4096;
pub const LINES: usize = 8192;
pub const REQUEST_AREAS: usize = 16384;
pub const WORDS: usize = 16384;
pub const REPLY_AREAS: usize = WORDS + LEASE_WORDS * 8;
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
    assert!(LINES + SLOTS_MAX * LINE <= REQUEST_AREAS);
    assert!(LINES + SLOTS_MAX * LINE <= WORDS);
    assert!(REPLY_AREAS == 540_672);
    assert!(request::INLINE + request::INLINE_MAX == request::PARKED);
    assert!(reply::INLINE + reply::INLINE_MAX == LINE);
    assert!(BODY_MAX <= u16::MAX as usize);
    assert!(AREA.is_multiple_of(4096));
};
