//! Posted streams: requests that a client does not wait for (decision 84).
//!
//! A client has a stream for each cell: a ring in its segment, which it alone writes. A record is a
//! request with its capabilities and its data. The client stores the record, then the end of the
//! stream. The cell executes records in order, and stores how far it is.
//!
//! ```text
//! client segment                                cell-to-client segment
//!   12288  stream ends    64 bytes a cell:        128  u64 outcome: u32 executed, i32 errno of
//!                         u32 end                      the record that ends there, 0 for none
//!   ...    behind the areas, a ring a cell        136  u64 value: the size of the file, if that
//!                                                      record was a write
//! record, at a multiple of 8; it never wraps around
//!    0  u32 length, of the whole record
//!    4  u32 payload length       0 to 4: bit 31 alone: the rest of the ring is unused
//!    8  i64 time                 nanoseconds since 1970, chosen by the client
//!   16  u32 uid    20 u32 gid    as in a request line
//!   24  u32 body length
//!   32  u64 number of the inode that the request makes, 0 for none
//!   40  body, padded to 8 bytes; then the payload, padded
//! ```
//!
//! A place in a stream is a [`StreamPos`]. A record is at most a quarter of the ring long.

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::{Ino, Timestamp};

use crate::{Attr, Capability, Lease, Malformed, Wire};

/// Bytes before the body of a record.
pub const RECORD_HEADER: usize = 40;
/// Its words.
pub const HEADER_WORDS: usize = RECORD_HEADER / 8;
/// The places of streams and of their records are multiples of this.
pub const UNIT: usize = 8;
/// Bit of a record's length: there is no record here, and the next one is at the ring's beginning.
const UNUSED: u32 = 1 << 31;

/// A place in a stream: units of 8 bytes since the stream began, modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct StreamPos(pub u32);

impl StreamPos {
    /// The place so many bytes further on, a multiple of [`UNIT`].
    #[must_use]
    pub const fn advance(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add((bytes / UNIT) as u32))
    }

    /// Bytes from an earlier place to this one.
    pub const fn since(self, earlier: Self) -> usize {
        self.0.wrapping_sub(earlier.0) as usize * UNIT
    }

    /// Whether this place comes before another one that is less than 16 GiB away.
    pub const fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) > u32::MAX / 2
    }

    /// The later of two places.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }

    /// Where it is in a ring of so many bytes, a power of two.
    pub const fn in_ring(self, ring: usize) -> usize {
        (self.0 as usize * UNIT) & (ring - 1)
    }
}

/// Pads a length to whole units.
pub const fn padded(len: usize) -> usize {
    len.next_multiple_of(UNIT)
}

/// The beginning of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    pub time: Timestamp,
    pub uid: u32,
    pub gid: u32,
    pub body_len: u32,
    pub payload_len: u32,
    /// The number of the inode that the request makes: see [`Numbers`].
    pub new: Option<Ino>,
}

impl RecordHeader {
    /// Bytes of the whole record.
    pub const fn record_len(&self) -> usize {
        self.payload_at() + padded(self.payload_len as usize)
    }

    /// Where the payload is in the record.
    pub const fn payload_at(&self) -> usize {
        RECORD_HEADER + padded(self.body_len as usize)
    }

    /// The header as words.
    pub const fn pack(&self) -> [u64; HEADER_WORDS] {
        [
            self.record_len() as u64 | (self.payload_len as u64) << 32,
            self.time.0.cast_unsigned(),
            self.uid as u64 | (self.gid as u64) << 32,
            self.body_len as u64,
            match self.new {
                Some(ino) => ino.0,
                None => 0,
            },
        ]
    }

    /// The first word where no record is, because the next one begins with the ring.
    pub const fn unused() -> u64 {
        UNUSED as u64
    }

    /// Whether the first word shows that the rest of the ring is unused.
    pub const fn is_unused(first: u64) -> bool {
        first as u32 & UNUSED != 0
    }

    /// Decodes a header of which a copy was made. The record must lie within `room` bytes.
    pub fn unpack(words: [u64; HEADER_WORDS], room: usize) -> Result<Self, Malformed> {
        let header = Self {
            time: Timestamp(words[1].cast_signed()),
            uid: words[2] as u32,
            gid: (words[2] >> 32) as u32,
            body_len: words[3] as u32,
            payload_len: (words[0] >> 32) as u32,
            new: (words[4] != 0).then_some(Ino(words[4])),
        };
        let is_bounded = header.body_len as usize <= room && header.payload_len as usize <= room;
        if !is_bounded
            || header.record_len() != words[0] as u32 as usize
            || header.record_len() > room
        {
            return Err(Malformed::new("a record that does not fit its stream"));
        }
        Ok(header)
    }
}

/// A delegation: while the lease lasts, its client alone uses the inode, and may post requests on
/// it. It comes behind a reply, again with each reply that has changed the attributes.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Delegated {
    pub attr: Attr,
    pub lease: Lease,
    /// Pages that may be written by posts until the next reply. Each request takes at least one:
    /// see [`Request::post_cost`](crate::Request::post_cost). What [`Extend`] brings is added to
    /// what is left.
    ///
    /// [`Extend`]: crate::Request::Extend
    pub credit: u32,
    /// If the inode is a directory.
    pub tree: Option<Box<DelegatedTree>>,
}

/// The part of a delegation of a directory: its client alone changes names there, and in each
/// directory that it makes under the delegation.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct DelegatedTree {
    /// The directory that is delegated. The attributes are those of the directory that the request
    /// has changed: the root, or one below it.
    pub root: Ino,
    /// The number of names of that directory.
    pub entries: u64,
    /// The stamp of the lease that the client had of the directory before this one, if nothing was
    /// changed in between but by this request. A client that knows the directory as that lease and
    /// its posts have left it keeps what it knows; any other knows nothing.
    pub continues: Option<u64>,
    /// The request has made the inode in the reply, and it belongs to the tree. If the reply has
    /// also opened it, the client alone has it open.
    pub has_made: bool,
    pub numbers: Numbers,
}

/// Numbers for the inodes that a client makes by posts under a delegation, in order, each once.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Numbers {
    pub first: Ino,
    /// For each number, beginning with the first: what the reply to a request would bring that
    /// makes the inode.
    pub each: Vec<Numbered>,
}

/// The rest of a reply to a request that makes an inode, for a number of [`Numbers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Numbered {
    pub capability: Capability,
    /// The lease on its opens: see [`Opened::kept`](crate::Opened).
    pub opens: Lease,
}

impl Delegated {
    pub const fn ino(&self) -> Ino {
        self.attr.ino
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ordered_although_they_wrap() {
        let start = StreamPos(u32::MAX - 3);
        let next = start.advance(64);
        assert_eq!((next, next.since(start)), (StreamPos(4), 64));
        assert!(start.is_before(next) && !next.is_before(start) && !start.is_before(start));
        assert_eq!((start.max(next), next.max(start)), (next, next));
        assert_eq!(next.in_ring(64), 32);
    }

    #[test]
    fn a_header_survives_its_words_and_must_fit() {
        let header = RecordHeader {
            time: Timestamp(-5),
            uid: 7,
            gid: u32::MAX,
            body_len: 13,
            payload_len: 4097,
            new: Some(Ino(77)),
        };
        assert_eq!(header.record_len(), 40 + 16 + 4104);
        assert_eq!(RecordHeader::unpack(header.pack(), header.record_len()), Ok(header));
        assert!(RecordHeader::unpack(header.pack(), header.record_len() - 8).is_err());
        for word in 0..HEADER_WORDS {
            let mut words = header.pack();
            words[word] = u64::MAX;
            let decoded = RecordHeader::unpack(words, 1 << 20);
            assert_eq!(decoded.is_err(), [0, 3].contains(&word), "{word}");
        }
        assert!(RecordHeader::is_unused(RecordHeader::unused()));
        assert!(!RecordHeader::is_unused(header.pack()[0]));
    }
}
