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
//!                                                 144  u64 taken: the payload word of the record
//!                                                      that the cell has read last, u32 its end
//!                                                 192  u32 fixed: the cell reads the records
//!                                                      before this place
//! record, at a multiple of 8; it never wraps around
//!    0  u32 length, of the whole record, perhaps with room for more payload
//!    4  u32 payload word         0 to 4: bit 31 alone: the rest of the ring is unused
//!                                4 to 8: the payload's length; bit 31: it is in the second half of
//!                                its room
//!    8  i64 time                 nanoseconds since 1970, chosen by the client
//!   16  u32 uid    20 u32 gid    as in a request line
//!   24  u32 body length
//!   28  u32 contained            the payload word of a record before which contains this one, or 0
//!   32  u64 number of the inode that the request makes, 0 for none
//!   40  body, padded to 8 bytes; then the room for the payload
//! ```
//!
//! A place in a stream is a [`StreamPos`]. A record is at most a quarter of the ring long.
//!
//! The client may change the payload of the last record that it has published, until the cell reads
//! it. It writes the new bytes where none are that the record has, and then the first word, which
//! makes them those of the record. So the cell sees all of a change or nothing. If the client
//! cannot tell which, it posts the same as a record of its own, which says how the one before looks
//! if it contains the change. The cell remembers how it has read that.

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::limits::BLOCK_SIZE;
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
/// Bit of a payload's length: it is in the second half of its room.
const SECOND: u32 = 1 << 31;

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

/// The pages of a file in which so many bytes lie that begin at this offset.
pub const fn pages_at(offset: u64, len: usize) -> u32 {
    (offset as usize % BLOCK_SIZE + len).div_ceil(BLOCK_SIZE) as u32
}

/// The beginning of a record.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RecordHeader {
    pub time: Timestamp,
    pub uid: u32,
    pub gid: u32,
    pub body_len: u32,
    pub payload_len: u32,
    /// Bytes of the room for the payload behind as many as it has: a multiple of [`UNIT`].
    pub spare: u32,
    /// The payload is in the second half of its room.
    pub is_second: bool,
    /// The payload word of the record before, if that contains this one: then the cell may have
    /// executed this one already. 0 if it is not contained.
    pub contained: u32,
    /// The number of the inode that the request makes: see [`Numbers`].
    pub new: Option<Ino>,
}

impl RecordHeader {
    /// Bytes of the whole record.
    pub const fn record_len(&self) -> usize {
        self.room_at() + self.room()
    }

    /// Where the room for the payload is in the record.
    const fn room_at(&self) -> usize {
        RECORD_HEADER + padded(self.body_len as usize)
    }

    /// The most bytes of payload that the record may have.
    const fn room(&self) -> usize {
        padded(self.payload_len as usize) + self.spare as usize
    }

    /// Bytes of the first half of the room, rounded down.
    const fn half(&self) -> usize {
        self.room() / 2 / UNIT * UNIT
    }

    /// Where the payload is in the record.
    pub const fn payload_at(&self) -> usize {
        self.room_at() + if self.is_second { self.half() } else { 0 }
    }

    /// The same record with more payload behind that which it has. `None` without room.
    #[must_use]
    pub fn grown(self, payload_len: usize) -> Option<Self> {
        let fits = !self.is_second && payload_len <= self.room();
        fits.then(|| self.with_payload(payload_len))
    }

    /// The same record with another payload, in the other half of the room. `None` if that is too
    /// short.
    #[must_use]
    pub fn replaced(self, payload_len: usize) -> Option<Self> {
        let is_apart = payload_len <= self.half() && self.payload_len as usize <= self.half();
        let is_second = !self.is_second;
        is_apart.then(|| Self { is_second, ..self.with_payload(payload_len) })
    }

    const fn with_payload(self, payload_len: usize) -> Self {
        let spare = (self.room() - padded(payload_len)) as u32;
        Self { payload_len: payload_len as u32, spare, ..self }
    }

    /// The header as words.
    pub const fn pack(&self) -> [u64; HEADER_WORDS] {
        [
            self.lengths(),
            self.time.0.cast_unsigned(),
            self.uid as u64 | (self.gid as u64) << 32,
            self.body_len as u64 | (self.contained as u64) << 32,
            match self.new {
                Some(ino) => ino.0,
                None => 0,
            },
        ]
    }

    /// The first word: the lengths, and where the payload is.
    pub const fn lengths(&self) -> u64 {
        self.record_len() as u64 | (self.payload_word() as u64) << 32
    }

    /// The length of the payload, and in which half of its room it is.
    pub const fn payload_word(&self) -> u32 {
        self.payload_len | if self.is_second { SECOND } else { 0 }
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
        let (len, payload) = (words[0] as u32 as usize, (words[0] >> 32) as u32);
        let header = Self {
            time: Timestamp(words[1].cast_signed()),
            uid: words[2] as u32,
            gid: (words[2] >> 32) as u32,
            body_len: words[3] as u32,
            payload_len: payload & !SECOND,
            spare: 0,
            is_second: payload & SECOND != 0,
            contained: (words[3] >> 32) as u32,
            new: (words[4] != 0).then_some(Ino(words[4])),
        };
        let bounds = [header.body_len as usize, header.payload_len as usize, len];
        if bounds.into_iter().all(|it| it <= room)
            && let Some(spare) = len.checked_sub(header.record_len())
        {
            let header = Self { spare: spare as u32, ..header };
            let payload_end = header.payload_at() + header.payload_len as usize;
            if spare.is_multiple_of(UNIT) && payload_end <= len {
                return Ok(header);
            }
        }
        Err(Malformed::new("a record that does not fit its stream"))
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
            spare: 24,
            is_second: false,
            contained: 4096,
            new: Some(Ino(77)),
        };
        assert_eq!(header.record_len(), 40 + 16 + 4104 + 24);
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

    const SHORT: RecordHeader = RecordHeader {
        time: Timestamp(1),
        uid: 0,
        gid: 0,
        body_len: 8,
        payload_len: 10,
        spare: 24,
        is_second: false,
        contained: 0,
        new: None,
    };

    #[test]
    fn a_payload_grows_within_its_record() {
        for (len, spare) in [(10, 24), (17, 16), (25, 8), (40, 0)] {
            let grown = SHORT.grown(len).expect("it fits");
            assert_eq!((grown.payload_len, grown.spare), (len as u32, spare));
            assert_eq!(grown.record_len(), SHORT.record_len());
            assert_eq!(grown.payload_at(), SHORT.payload_at());
            assert_eq!(RecordHeader::unpack(grown.pack(), grown.record_len()), Ok(grown));
        }
        assert_eq!(SHORT.grown(41), None);
        let mut words = SHORT.pack();
        words[0] -= 4;
        assert!(RecordHeader::unpack(words, 1 << 20).is_err(), "no whole units");
    }

    #[test]
    fn a_payload_is_replaced_in_the_other_half_of_its_room() {
        let second = SHORT.replaced(16).expect("it fits");
        assert_eq!((second.payload_at(), second.record_len()), (40 + 8 + 16, SHORT.record_len()));
        assert_eq!(RecordHeader::unpack(second.pack(), second.record_len()), Ok(second));
        let first = second.replaced(3).expect("it fits");
        assert_eq!((first.payload_at(), first.record_len()), (40 + 8, SHORT.record_len()));
        assert_eq!((SHORT.replaced(17), second.grown(16)), (None, None));
        assert_eq!(SHORT.grown(17).and_then(|grown| grown.replaced(1)), None, "it is in both");
        let odd = RecordHeader { spare: 32, ..SHORT };
        assert_eq!((odd.half(), odd.room()), (24, 48));
        let uneven = RecordHeader { spare: 16, ..SHORT };
        assert_eq!((uneven.half(), uneven.room()), (16, 32));
        let long = RecordHeader { payload_len: 30, spare: 8, is_second: true, ..SHORT };
        assert!(RecordHeader::unpack(long.pack(), 1 << 20).is_err(), "it is longer than a half");
    }
}
