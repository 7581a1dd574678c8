//! Writes that need no record of their own: they change the last one of the stream, which is a
//! write of the same file that the cell has not begun to read (decision 84).
//!
//! ```text
//! a write that follows it    its bytes come behind those of the record
//! one that covers it         its bytes take the place of those of the record
//! ```
//!
//! A program that writes to the same place again and again, or appends short lines, so leaves the
//! cell one record, with many bytes, for each time that the cell looks.

use warren_base::Timestamp;
use warren_proto::stream::{RecordHeader, StreamPos, padded, pages_at};
use warren_proto::{Handle, Position, Request};

/// A record that a later write continues has room for so many times the bytes of the last one.
const GROWTH: usize = 4;
/// A record has room for further writes up to one part in so many of the ring.
const RING_PART: usize = 8;

/// The last record of a stream, if it is a write at a known place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastWrite {
    /// Where the record begins.
    pub at: StreamPos,
    pub header: RecordHeader,
    write: Write,
}

/// A write that does not depend on the state of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Write {
    handle: Handle,
    offset: u64,
    appends: bool,
    kill_privileges: bool,
}

/// The record as a further write changes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    pub header: RecordHeader,
    /// Where the bytes of the write begin in its payload.
    pub skip: usize,
    /// The credit that this takes beside that of the record.
    pub cost: u32,
}

impl Write {
    fn of(request: &Request) -> Option<Self> {
        let Request::Write { handle, position, kill_privileges, write_back: false, direct: false } =
            *request
        else {
            return None;
        };
        let (offset, appends) = match position {
            Position::At(offset) => (offset, false),
            Position::EndAt(offset) => (offset, true),
            Position::Current | Position::End => return None,
        };
        Some(Self { handle, offset, appends, kill_privileges })
    }

    /// Where the file is written if this one is continued there.
    fn is_at(&self, offset: u64, other: &Self) -> bool {
        *other == Self { offset, ..*self }
    }
}

impl LastWrite {
    /// The record of the request, which was published at this place.
    pub fn new(request: &Request, header: RecordHeader, at: StreamPos) -> Option<Self> {
        Some(Self { at, header, write: Write::of(request)? })
    }

    const fn len(&self) -> usize {
        self.header.payload_len as usize
    }

    fn end(&self) -> u64 {
        self.write.offset + u64::from(self.header.payload_len)
    }

    fn is_continued_by(&self, write: &Write) -> bool {
        self.write.is_at(self.end(), write)
    }

    fn is_covered_by(&self, write: &Write, len: usize) -> bool {
        self.write.is_at(self.write.offset, write) && len >= self.len()
    }

    /// The record with a further write of `len` bytes by the same user, if it has room for it.
    pub fn changed(&self, request: &Request, len: usize, time: Timestamp) -> Option<Changed> {
        let write = Write::of(request)?;
        let (header, skip) = if self.is_continued_by(&write) {
            (self.header.grown(self.len() + len)?, self.len())
        } else if self.is_covered_by(&write, len) {
            (self.header.replaced(len)?, 0)
        } else {
            return None;
        };
        // Of both, the record names the place of the first.
        let pages = |len: usize| pages_at(self.write.offset, len);
        let cost = pages(header.payload_len as usize) - pages(self.len());
        Some(Changed { header: RecordHeader { time, ..header }, skip, cost })
    }

    /// The spare room for a record of its own of a write of `len` bytes behind this one, in a ring
    /// of so many bytes: a program that has written twice to one place is likely to go on.
    pub fn spare_behind(&self, request: &Request, len: usize, ring: usize) -> u32 {
        let Some(write) = Write::of(request) else { return 0 };
        let most = ring / RING_PART;
        let room = if self.is_continued_by(&write) {
            padded(GROWTH * self.len().max(len)).min(most)
        } else if self.is_covered_by(&write, len) && 2 * padded(len) <= most {
            2 * padded(len)
        } else {
            return 0;
        };
        room.saturating_sub(padded(len)) as u32
    }
}

#[cfg(test)]
mod tests {
    use warren_base::Ino;
    use warren_base::limits::BLOCK_SIZE;
    use warren_proto::SetAttr;

    use super::*;

    const RING: usize = 64 << 10;
    const HANDLE: Handle = Handle { ino: Ino(5), open: 9 };
    const PAGE: u64 = BLOCK_SIZE as u64;
    const LATER: Timestamp = Timestamp(2);

    fn write(position: Position) -> Request {
        let (handle, kill_privileges, write_back, direct) = (HANDLE, false, false, false);
        Request::Write { handle, position, kill_privileges, write_back, direct }
    }

    fn last(position: Position, payload_len: u32, spare: u32) -> LastWrite {
        let header = RecordHeader { payload_len, spare, body_len: 8, ..RecordHeader::default() };
        LastWrite::new(&write(position), header, StreamPos(3)).expect("a write")
    }

    #[test]
    fn a_write_behind_the_last_one_is_added_and_takes_credit_for_new_pages() {
        let first = last(Position::At(PAGE - 10), 10, 8192);
        let added = |at, len| first.changed(&write(Position::At(at)), len, LATER);
        for (len, cost) in [(1, 1), (4096, 1), (4097, 2)] {
            let changed = added(PAGE, len).expect("there is room");
            assert_eq!((changed.skip, changed.cost), (10, cost), "{len}");
            assert_eq!(changed.header.payload_len as usize, 10 + len);
            assert_eq!(changed.header.time, LATER);
        }
        assert_eq!(added(PAGE, 8200), None, "no room");
        assert_eq!([added(PAGE - 1, 8), added(PAGE + 1, 8)], [None; 2]);
        let appended = last(Position::EndAt(0), 10, 64);
        assert!(appended.changed(&write(Position::EndAt(10)), 8, LATER).is_some());
        assert_eq!(appended.changed(&write(Position::At(10)), 8, LATER), None, "the offset");
    }

    #[test]
    fn a_write_over_the_last_one_takes_its_place() {
        let first = last(Position::At(0), 100, 200);
        let added = |it: &LastWrite, len| it.changed(&write(Position::At(0)), len, LATER);
        let changed = added(&first, 120).expect("there is room");
        assert_eq!((changed.skip, changed.cost), (0, 0));
        assert!(changed.header.is_second && changed.header.payload_len == 120);
        assert_eq!(added(&first, 99), None, "bytes of the last one would be left");
        assert_eq!(added(&first, 160), None, "no room");
        let second = LastWrite { header: changed.header, ..first };
        assert!(added(&second, 120).is_some_and(|third| !third.header.is_second));
    }

    #[test]
    fn other_changes_are_not_added() {
        let first = last(Position::At(0), 8, 4096);
        let other = Handle { open: 10, ..HANDLE };
        let (position, write_back, direct) = (Position::At(8), false, false);
        for (handle, kill_privileges) in [(other, false), (HANDLE, true)] {
            let write = Request::Write { handle, position, kill_privileges, write_back, direct };
            assert_eq!(first.changed(&write, 8, LATER), None);
        }
        let set = Request::SetAttr { ino: HANDLE.ino, handle: None, set: SetAttr::default() };
        for request in [set, write(Position::End), write(Position::Current)] {
            assert_eq!(first.changed(&request, 8, LATER), None);
            assert_eq!(LastWrite::new(&request, RecordHeader::default(), StreamPos(0)), None);
            assert_eq!(first.spare_behind(&request, 8, RING), 0);
        }
    }

    #[test]
    fn a_record_has_spare_room_if_it_continues_the_last_one() {
        let first = last(Position::At(0), 100, 0);
        let spare = |at, len| first.spare_behind(&write(Position::At(at)), len, RING);
        assert_eq!(spare(100, 50), 400 - 56, "four times as much as the last one");
        assert_eq!(spare(100, 1000), 3000);
        assert_eq!(spare(100, 4096), 4096, "an eighth of the ring in all");
        assert_eq!(spare(100, 9000), 0);
        assert_eq!(spare(0, 200), 200, "twice its own bytes, to take turns");
        assert_eq!([spare(0, 99), spare(50, 100), spare(0, 5000)], [0; 3]);
    }
}
