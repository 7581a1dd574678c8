//! Posted streams: a client's records for a cell, and their outcomes, from both sides. Layout and
//! meaning: [`warren_proto::stream`].
//!
//! Order of a post: [`find_room`], the mark of an unused rest if there is one, header, body and
//! payload, then the end (release), full fence, load the lease word. If the word is still valid the
//! request is done for its program. Order of a look: store 0 into the lease word, full fence, load
//! the end (acquire), read the records up to it. One of the two fences comes first: either the
//! client sees that the lease is revoked, or the cell sees the record.
//!
//! The client may change the last record. Order of a change: bytes of payload where the record has
//! none, the time, the first word (release), full fence, load the place up to which records are
//! *fixed*. Order of a cell: load the end, store it as that place, full fence, load the first word
//! of each record before it (acquire) and then the rest. If the record is not fixed, the cell will
//! see the change. Otherwise the client publishes the same as a record of its own, marked as
//! contained in the one before: the cell stores how it reads each record, so it, or a successor,
//! knows whether that had the change. Only the time of a record may be that of a change which the
//! cell has not seen.
//!
//! The cell does not trust the segment. It loads each word of a header once, checks its own copy,
//! and copies the body once. The client may rewrite the payload while the cell copies it, which
//! changes only the client's own data.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use warren_base::limits::{BODY_MAX, CELLS_MAX};
use warren_base::{CellId, Errno};
use warren_proto::Malformed;
use warren_proto::slot::{
    LINE, STREAM_ENDS, STREAM_FIXED, STREAM_OUTCOME, STREAM_TAKEN, STREAM_VALUE, Shape,
};
use warren_proto::stream::{RECORD_HEADER, RecordHeader, StreamPos};

use crate::client::{ClientReader, ClientWriter, PREFETCH_MAX};
use crate::memory::{Load, Store};
use crate::reply::{ReplyReader, ReplyWriter};

/// The bytes of a record behind the one that is executed which are prefetched: most have no more.
const NEXT_RECORD: usize = 2 * LINE;

/// Finds the place of a record of `len` bytes in a ring of `ring` bytes, a power of two, that is
/// published up to `end` and executed up to `executed`. Also returns whether the record begins with
/// the ring, so that the rest of the ring at `end` must be marked as unused before. `None` if there
/// is no room.
pub fn find_room(
    end: StreamPos,
    executed: StreamPos,
    len: usize,
    ring: usize,
) -> Option<(StreamPos, bool)> {
    let rest = ring - end.in_ring(ring);
    let skips = len > rest;
    let at = if skips { end.advance(rest) } else { end };
    // A place in `executed` that no correct cell stores is further away than the ring is long.
    let has_room = end.since(executed) <= ring && at.since(executed) + len <= ring;
    has_room.then_some((at, skips))
}

fn end_at(cell: CellId) -> usize {
    assert!(usize::from(cell.0) < CELLS_MAX, "{cell:?}");
    STREAM_ENDS + usize::from(cell.0) * LINE
}

/// Whether a client segment of `size` bytes has a stream to the cell.
fn has_stream(size: usize, shape: Shape, cell: CellId) -> bool {
    size >= shape.client_segment_len(usize::from(cell.0) + 1)
}

impl<W: Store> ClientWriter<W> {
    /// Whether the segment is long enough for a stream to the cell.
    pub fn has_stream(&self, cell: CellId) -> bool {
        has_stream(self.memory.size(), self.shape, cell)
    }

    /// The end of the published stream. A front continues from it after a restart.
    pub fn stream_end(&self, cell: CellId) -> StreamPos {
        StreamPos(self.memory.load32(end_at(cell), Relaxed))
    }

    /// The offset of a record in the segment. It must be one that [`find_room`] can return.
    fn record_at(&self, cell: CellId, at: StreamPos, header: &RecordHeader) -> usize {
        assert!(self.has_stream(cell), "no stream to {cell:?}");
        let (ring, len) = (self.shape.lanes().stream(), header.record_len());
        let begin = at.in_ring(ring);
        assert!(len <= self.shape.record_max() && len <= ring - begin, "record of {len} at {at:?}");
        self.shape.stream_at(cell) + begin
    }

    /// Writes the header and the body of a record. The cell does not see it before
    /// [`Self::publish`] is called.
    pub fn write_record(&self, cell: CellId, at: StreamPos, header: &RecordHeader, body: &[u8]) {
        assert!(body.len() <= BODY_MAX && body.len() == header.body_len as usize);
        let record = self.record_at(cell, at, header);
        for (word, value) in header.pack().into_iter().enumerate() {
            self.memory.store64(record + word * 8, value, Relaxed);
        }
        self.memory.copy_in(record + RECORD_HEADER, body);
    }

    /// Writes bytes of the payload of a record, from `offset` on.
    pub fn write_record_payload(
        &self,
        cell: CellId,
        at: StreamPos,
        header: &RecordHeader,
        (offset, bytes): (usize, &[u8]),
    ) {
        assert!(offset + bytes.len() <= header.payload_len as usize);
        let record = self.record_at(cell, at, header);
        self.memory.copy_in(record + header.payload_at() + offset, bytes);
    }

    /// Changes the last record that is published: its header is this one from now on, of which the
    /// time and the place of the payload are new. The caller has written the bytes there, and must
    /// load [`ReplyReader::fixed`] after this.
    pub fn change_record(&self, cell: CellId, at: StreamPos, header: &RecordHeader) {
        let record = self.record_at(cell, at, header);
        self.memory.store64(record + 8, header.time.0.cast_unsigned(), Relaxed);
        self.memory.store64(record, header.lengths(), Release);
        W::fence();
    }

    /// Marks the rest of the ring as unused: the next record begins with the ring.
    pub fn mark_unused(&self, cell: CellId, at: StreamPos) {
        assert!(self.has_stream(cell), "no stream to {cell:?}");
        let begin = at.in_ring(self.shape.lanes().stream());
        let first = self.shape.stream_at(cell) + begin;
        self.memory.store64(first, RecordHeader::unused(), Relaxed);
    }

    /// Prefetches the place of the next record, which the cell has read in an earlier round of the
    /// ring, if it will be about as long as the last one.
    #[inline]
    pub fn prefetch_record(&self, cell: CellId, at: StreamPos, len: usize) {
        let ring = self.shape.lanes().stream();
        let begin = at.in_ring(ring);
        let soon = len.next_multiple_of(LINE).min(PREFETCH_MAX).min(ring - begin);
        let first = self.shape.stream_at(cell) + begin;
        (first..first + soon).step_by(LINE).for_each(|line| self.memory.prefetch_own(line));
    }

    /// Publishes all records before `end`. The caller must load the lease word after this: the
    /// request is posted only if the word is still valid.
    pub fn publish(&self, cell: CellId, end: StreamPos) {
        self.memory.store32(end_at(cell), end.0, Release);
        W::fence();
    }
}

impl ClientWriter {
    /// The payload of a record, as long as the header says, to be filled by a system call.
    pub fn record_payload_raw(
        &self,
        cell: CellId,
        at: StreamPos,
        header: &RecordHeader,
    ) -> *mut u8 {
        let record = self.record_at(cell, at, header);
        self.memory.raw(record + header.payload_at(), header.payload_len as usize)
    }
}

impl<R: Load> ClientReader<R> {
    /// Whether the client's segment is long enough for a stream to the cell.
    fn has_stream(&self, cell: CellId) -> bool {
        has_stream(self.memory.size(), self.shape, cell)
    }

    /// The end of the client's stream. Any place is possible, if the client is hostile. The caller
    /// must have cleared the client's lease words before this, and fixes the records before it
    /// ([`ReplyWriter::fix_records`]) before it reads them.
    pub fn stream_end(&self, cell: CellId) -> StreamPos {
        R::fence();
        StreamPos(self.memory.load32(end_at(cell), Acquire))
    }

    /// The same without a fence: a hint, which may be older.
    #[inline]
    pub fn peek_stream_end(&self, cell: CellId) -> StreamPos {
        StreamPos(self.memory.load32(end_at(cell), Relaxed))
    }

    /// Copies the body of the record at this place to `body`. The record must end at `end`, which
    /// [`Self::stream_end`] has returned, or before. Also returns where it begins: behind an unused
    /// rest of the ring.
    pub fn read_record(
        &self,
        cell: CellId,
        at: StreamPos,
        end: StreamPos,
        body: &mut Vec<u8>,
    ) -> Result<(RecordHeader, StreamPos), Malformed> {
        let ring = self.shape.lanes().stream();
        let (mut begin, mut room) = (at, end.since(at));
        if room > ring || !self.has_stream(cell) {
            return Err(Malformed::new("an end that is not in the stream"));
        }
        let mut first = self.load_first(cell, begin, room)?;
        if RecordHeader::is_unused(first) {
            let rest = ring - begin.in_ring(ring);
            begin = begin.advance(rest);
            room = room.saturating_sub(rest);
            first = self.load_first(cell, begin, room)?;
        }
        let room = room.min(ring - begin.in_ring(ring)).min(self.shape.record_max());
        if room < RECORD_HEADER {
            return Err(Malformed::new("a record that does not fit its stream"));
        }
        let record = self.shape.stream_at(cell) + begin.in_ring(ring);
        let load = |word: usize| self.memory.load64(record + word * 8, Relaxed);
        let header = RecordHeader::unpack([first, load(1), load(2), load(3), load(4)], room)?;
        let body_len = header.body_len as usize;
        if body_len > BODY_MAX {
            return Err(Malformed::new("body longer than its lane"));
        }
        // It arrives while the request is checked.
        let soon = (header.payload_len as usize).min(PREFETCH_MAX);
        self.memory.prefetch(record + header.payload_at(), soon);
        // So does the next record, while this one is executed.
        let next = (begin.in_ring(ring) + header.record_len()) & (ring - 1);
        let soon = NEXT_RECORD.min(ring - next);
        self.memory.prefetch(self.shape.stream_at(cell) + next, soon);
        body.clear();
        body.resize(body_len, 0);
        self.memory.copy_out(record + RECORD_HEADER, body);
        Ok((header, begin))
    }

    /// The first word of a record, if there are bytes left of the stream.
    fn load_first(&self, cell: CellId, at: StreamPos, room: usize) -> Result<u64, Malformed> {
        if room == 0 {
            return Err(Malformed::new("no record where one was published"));
        }
        let begin = at.in_ring(self.shape.lanes().stream());
        Ok(self.memory.load64(self.shape.stream_at(cell) + begin, Acquire))
    }

    /// Copies `offset..` of the payload that begins at `payload`: behind the header and the body of
    /// a record that was read. The client may be changing it, so only the copy may be used.
    pub fn copy_record_payload(
        &self,
        cell: CellId,
        payload: StreamPos,
        offset: usize,
        into: &mut [u8],
    ) {
        assert!(self.has_stream(cell), "no stream to {cell:?}");
        let ring = self.shape.lanes().stream();
        let (begin, len) = (payload.in_ring(ring), into.len());
        let room = ring - begin;
        assert!(offset <= room && len <= room - offset, "payload {offset}+{len} of {room}");
        self.memory.copy_out(self.shape.stream_at(cell) + begin + offset, into);
    }
}

/// The outcome of the last record of a stream that was executed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StreamOutcome {
    /// Where the record ends: the stream is executed up to this place.
    pub executed: StreamPos,
    pub errno: Option<Errno>,
    /// The size of the file, if the record was a write.
    pub value: u64,
}

impl<W: Store> ReplyWriter<W> {
    /// The client's stream is executed up to this place, with this outcome of its last record.
    pub fn store_outcome(&self, executed: StreamPos, errno: Option<Errno>, value: u64) {
        let errno = errno.map_or(0, Errno::raw).cast_unsigned();
        self.memory.store64(STREAM_VALUE, value, Relaxed);
        let word = u64::from(errno) << 32 | u64::from(executed.0);
        self.memory.store64(STREAM_OUTCOME, word, Release);
    }

    /// The cell is going to read the records before this place.
    pub fn fix_records(&self, end: StreamPos) {
        if self.memory.load32(STREAM_FIXED, Relaxed) != end.0 {
            self.memory.store32(STREAM_FIXED, end.0, Relaxed);
            W::fence();
        }
    }

    /// The cell has read this record, between these places. Returns whether the one before contains
    /// it, as this process has read that, or a process before it.
    pub fn take_record(&self, (at, end): (StreamPos, StreamPos), header: &RecordHeader) -> bool {
        let taken = |end: StreamPos, word: u32| u64::from(end.0) << 32 | u64::from(word);
        let before = self.memory.load64(STREAM_TAKEN, Relaxed);
        if header.contained != 0 && before == taken(at, header.contained) {
            // A successor that reads it again finds the same.
            return true;
        }
        self.memory.store64(STREAM_TAKEN, taken(end, header.payload_word()), Relaxed);
        false
    }

    /// The stream is executed up to this place, with the same outcome as before.
    pub fn repeat_outcome(&self, executed: StreamPos) {
        let errno = self.memory.load64(STREAM_OUTCOME, Relaxed) >> 32;
        self.memory.store64(STREAM_OUTCOME, errno << 32 | u64::from(executed.0), Release);
    }

    /// The place up to which this process or one before it has executed the client's stream.
    pub fn executed(&self) -> StreamPos {
        StreamPos(self.memory.load64(STREAM_OUTCOME, Relaxed) as u32)
    }
}

impl<R: Load> ReplyReader<R> {
    /// The place up to which the cell reads the stream. A change of a record behind it is seen if
    /// it was made before this load ([`ClientWriter::change_record`]).
    #[inline]
    pub fn fixed(&self) -> StreamPos {
        StreamPos(self.memory.load32(STREAM_FIXED, Relaxed))
    }

    /// Polls until the cell has executed the client's stream up to this place, during `spin`.
    /// Returns whether it has.
    pub fn spin_for_executed(&self, place: StreamPos, spin: Duration) -> bool {
        Self::spin_for(spin, || !self.outcome().executed.is_before(place))
    }

    /// The outcome of the last record that the cell has executed. Its value may be that of a later
    /// record, unless the caller knows that the cell executes none meanwhile. An errno that no
    /// correct cell stores is EIO.
    pub fn outcome(&self) -> StreamOutcome {
        let word = self.memory.load64(STREAM_OUTCOME, Acquire);
        let value = self.memory.load64(STREAM_VALUE, Relaxed);
        let errno = match (word >> 32) as i32 {
            0 => None,
            raw => Some(Errno::from_raw(raw).unwrap_or(Errno::EIO)),
        };
        StreamOutcome { executed: StreamPos(word as u32), errno, value }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use warren_base::{Epoch, Ino, Rng, Timestamp};
    use warren_proto::slot::LaneSize;
    use warren_proto::stream::UNIT;

    use super::*;
    use crate::map::WriteMap;
    use crate::restless::Restless;
    use crate::segment::{Segment, map_read_only};

    const CELL: CellId = CellId(1);
    const RING: usize = LaneSize::Small.stream();
    const RECORD_MAX: usize = RING / 4;

    fn shape() -> Shape {
        Shape::new(2, LaneSize::Small).expect("legal")
    }

    struct Pair {
        writer: ClientWriter,
        reader: ClientReader,
        raw: WriteMap,
        /// Where the next record goes, and how far the stream is executed.
        end: StreamPos,
        executed: StreamPos,
        body: Vec<u8>,
    }

    /// A client with streams to two cells. The one to `CELL` begins at this place.
    fn pair(start: StreamPos) -> Pair {
        let segment = Segment::create("warren-test", shape().client_segment_len(2)).unwrap();
        let writer = ClientWriter::new(segment.map().clone(), shape()).unwrap();
        let fd = segment.read_only_fd().unwrap();
        let reader = ClientReader::new(map_read_only(fd.as_fd()).unwrap(), shape()).unwrap();
        let raw = segment.map().clone();
        Pair { writer, reader, raw, end: start, executed: start, body: Vec::new() }
    }

    fn header(body_len: usize, payload_len: usize) -> RecordHeader {
        let (body_len, payload_len) = (body_len as u32, payload_len as u32);
        RecordHeader {
            time: Timestamp(-9),
            uid: 7,
            gid: 8,
            body_len,
            payload_len,
            spare: 0,
            is_second: false,
            contained: 0,
            new: Some(Ino(9)),
        }
    }

    impl Pair {
        /// Appends a record to the stream. False if there is no room.
        fn append(&mut self, header: &RecordHeader, fill: u8) -> bool {
            let room = find_room(self.end, self.executed, header.record_len(), RING);
            let Some((at, skips)) = room else { return false };
            if skips {
                self.writer.mark_unused(CELL, self.end);
            }
            self.writer.write_record(CELL, at, header, &vec![fill; header.body_len as usize]);
            let payload = vec![fill ^ 0xff; header.payload_len as usize];
            self.writer.write_record_payload(CELL, at, header, (0, &payload));
            self.end = at.advance(header.record_len());
            self.writer.publish(CELL, self.end);
            true
        }

        /// Reads the next record as a cell does, and compares it.
        fn expect(&mut self, header: &RecordHeader, fill: u8) {
            let end = self.reader.stream_end(CELL);
            let read = self.reader.read_record(CELL, self.executed, end, &mut self.body);
            let (found, begin) = read.expect("a record");
            assert_eq!(found, *header);
            assert_eq!(self.body, vec![fill; header.body_len as usize]);
            let mut payload = vec![0; header.payload_len as usize];
            let place = begin.advance(header.payload_at());
            let half = payload.len() / 2;
            self.reader.copy_record_payload(CELL, place, half, &mut payload[half..]);
            self.reader.copy_record_payload(CELL, place, 0, &mut payload[..half]);
            assert_eq!(payload, vec![fill ^ 0xff; header.payload_len as usize]);
            self.executed = begin.advance(header.record_len());
        }

        fn read(&mut self, at: StreamPos, end: StreamPos) -> Option<(RecordHeader, StreamPos)> {
            self.reader.read_record(CELL, at, end, &mut self.body).ok()
        }
    }

    #[test]
    fn records_arrive_in_order_round_the_ring_and_round_the_numbers() {
        for start in [0, 5, u32::MAX - 700] {
            let mut p = pair(StreamPos(start));
            let mut rng = Rng::new(u64::from(start));
            let (mut skips, mut posted) = (0, 0_usize);
            while posted < 5 * RING {
                let records: Vec<_> = (0..1 + rng.below(9))
                    .map(|_| header(rng.below(60) as usize, rng.below(9000) as usize))
                    .collect();
                let before = p.end;
                let count = records.iter().enumerate().take_while(|(i, it)| p.append(it, *i as u8));
                let count = count.count();
                posted += p.end.since(before);
                skips += usize::from(p.end.in_ring(RING) < before.in_ring(RING));
                assert_eq!(p.reader.peek_stream_end(CELL), p.end);
                records.iter().take(count).enumerate().for_each(|(i, it)| p.expect(it, i as u8));
                assert_eq!(p.executed, p.end);
            }
            assert!(skips >= 4, "{skips}");
            assert_eq!((p.writer.stream_end(CELL), p.writer.stream_end(CellId(0)).0), (p.end, 0));
        }
    }

    #[test]
    fn the_last_record_may_change_within_its_room() {
        let mut p = pair(StreamPos(5));
        let at = p.end;
        let short = RecordHeader { spare: 40, ..header(12, 5) };
        assert!(p.append(&short, 3));
        let end = p.end;
        let grown = short.grown(20).expect("room");
        p.writer.write_record_payload(CELL, at, &grown, (5, &[!3; 15]));
        let second = grown.replaced(24).expect("room");
        p.writer.write_record_payload(CELL, at, &second, (0, &[!3; 24]));
        let second = RecordHeader { time: Timestamp(77), ..second };
        p.writer.change_record(CELL, at, &second);
        assert_eq!(p.reader.stream_end(CELL), end);
        p.expect(&second, 3);
        assert_eq!(p.executed, end);
    }

    #[test]
    fn a_full_ring_takes_no_record_until_one_is_executed() {
        let mut p = pair(StreamPos(0));
        let longest = header(8, RECORD_MAX - RECORD_HEADER - 8);
        assert_eq!(longest.record_len(), RECORD_MAX);
        let posted = (0..9).take_while(|i| p.append(&longest, *i)).count();
        assert_eq!((posted, p.end.since(p.executed)), (4, RING));
        assert!(!p.append(&header(0, 0), 9));
        p.expect(&longest, 0);
        assert!(p.append(&longest, 4));
        (1..5).for_each(|i| p.expect(&longest, i));
    }

    #[test]
    fn the_payload_may_be_filled_by_a_system_call() {
        let p = pair(StreamPos(0));
        let (header, at) = (header(4, 10), StreamPos(16));
        let payload = p.writer.record_payload_raw(CELL, at, &header);
        let begin = shape().stream_at(CELL) + 16 * UNIT + RECORD_HEADER + 8;
        assert_eq!(payload.addr(), p.writer.region().0 + begin);
    }

    #[test]
    fn room_is_found_at_the_end_or_at_the_beginning_of_the_ring() {
        let place = |end, executed, len| find_room(StreamPos(end), StreamPos(executed), len, 256);
        let at = |place, skips| Some((StreamPos(place), skips));
        assert_eq!(place(0, 0, 64), at(0, false));
        assert_eq!(place(24, 0, 64), at(24, false), "exactly to the end of the ring");
        assert_eq!(place(25, 0, 64), None, "what is not executed begins with the ring");
        assert_eq!(place(25, 7, 64), None);
        assert_eq!(place(25, 8, 64), at(32, true), "exactly full");
        assert_eq!(place(32, 0, 8), None, "full");
        assert_eq!(place(32, 1, 8), at(32, false));
        // Round the numbers.
        let last = u32::MAX;
        assert_eq!(place(last, last, 64), at(0, true));
        assert_eq!(place(last, last, 8), at(last, false));
        assert_eq!(place(2, last - 8, 64), at(2, false));
        assert_eq!(place(2, last - 28, 8), at(2, false), "exactly full");
        assert_eq!(place(2, last - 29, 8), None);
        // No correct cell is ahead of its client.
        assert_eq!((place(8, 9, 64), place(8, 8 + (1 << 31), 64)), (None, None));
        assert_eq!(place(25, 30, 64), None);
    }

    #[test]
    fn ends_that_are_no_ends_of_records_are_refused() {
        let mut p = pair(StreamPos(0));
        let record = header(8, 100);
        assert!(p.append(&record, 1));
        let (start, end) = (StreamPos(0), p.end);
        let units = record.record_len() / UNIT;
        for short in 0..units {
            assert_eq!(p.read(start, StreamPos(short as u32)), None, "{short} units");
        }
        assert_eq!(p.read(start, end), Some((record, start)));
        assert_eq!(p.read(start, start.advance(RING)), Some((record, start)));
        assert_eq!(p.read(start, start.advance(RING + UNIT)), None, "further than the ring");
        assert_eq!(p.read(end, start), None, "before the place");
        assert_eq!(p.read(end, end.advance(64)), None, "no header there");
    }

    #[test]
    fn an_unused_rest_is_skipped_once_and_only_within_the_end() {
        let mut p = pair(StreamPos(0));
        let at = StreamPos((RING / UNIT - 1) as u32);
        (p.end, p.executed) = (at, at);
        let record = header(8, 0);
        assert!(p.append(&record, 1));
        assert_eq!(p.read(at, p.end), Some((record, at.advance(UNIT))));
        assert_eq!(p.read(at, at.advance(UNIT)), None, "the end is where the ring ends");
        assert_eq!(p.read(at, at.advance(RECORD_HEADER)), None);
        p.writer.mark_unused(CELL, StreamPos(0));
        assert_eq!(p.read(at, p.end), None, "unused again");
        assert_eq!(p.read(StreamPos(0), StreamPos(0).advance(RING)), None, "all is unused");
    }

    #[test]
    fn hostile_headers_are_refused() {
        // A header, and a body of up to 8 bytes.
        const SHORT: usize = RECORD_HEADER + UNIT;
        let mut p = pair(StreamPos(0));
        let first = shape().stream_at(CELL);
        let end = StreamPos(0).advance(RING);
        let mut write = |header: &RecordHeader| {
            for (word, value) in header.pack().into_iter().enumerate() {
                p.raw.store64(first + word * 8, value, Relaxed);
            }
            p.read(StreamPos(0), end)
        };
        for good in [header(0, 0), header(BODY_MAX, 0), header(1, RECORD_MAX - SHORT)] {
            assert_eq!(write(&good), Some((good, StreamPos(0))));
        }
        for bad in [
            header(BODY_MAX + 1, 0),
            header(1, RECORD_MAX - SHORT + 1),
            header(0, u32::MAX as usize),
        ] {
            assert_eq!(write(&bad), None, "{bad:?}");
        }
        // It would wrap.
        let late = StreamPos(((RING - SHORT) / UNIT) as u32);
        let record = header(8, 8);
        for (word, value) in record.pack().into_iter().enumerate() {
            p.raw.store64(first + RING - SHORT + word * 8, value, Relaxed);
        }
        assert_eq!(p.read(late, late.advance(RING)), None);
    }

    /// The cell survives all contents and all ends.
    #[test]
    fn whatever_a_client_writes_the_record_lies_in_the_ring() {
        let (mut p, mut read) = (pair(StreamPos(0)), 0);
        let first = shape().stream_at(CELL);
        let mut rng = Rng::new(3);
        for _ in 0..20_000 {
            let at = StreamPos(rng.below(1 << 32) as u32);
            let end = at.advance(rng.below(RING as u64 + 64) as usize);
            let place = if rng.below(4) == 0 { 0 } else { at.in_ring(RING) };
            for word in (place..RING.min(place + RECORD_HEADER)).step_by(8) {
                p.raw.store64(first + word, restless_word(word - place, &mut rng), Relaxed);
            }
            let Some((header, begin)) = p.read(at, end) else { continue };
            assert!(
                begin.in_ring(RING) + header.record_len() <= RING
                    && header.record_len() <= RECORD_MAX
            );
            assert!(begin.since(at) + header.record_len() <= end.since(at));
            let mut payload = vec![0; header.payload_len as usize];
            p.reader.copy_record_payload(CELL, begin.advance(header.payload_at()), 0, &mut payload);
            read += 1;
        }
        assert!(read > 500, "{read}");
    }

    /// A word of a header, by its place in the record.
    fn restless_word(at: usize, rng: &mut Rng) -> u64 {
        match at % RECORD_HEADER {
            0 if rng.below(8) == 0 => RecordHeader::unused(),
            0 => (32 + 8 * rng.below(5)) | (8 * rng.below(3)) << 32,
            24 => 8 * rng.below(3),
            _ => rng.below(u64::MAX),
        }
    }

    /// So a check and a use always see the same value, whatever the client writes meanwhile.
    #[test]
    fn nothing_of_a_record_is_loaded_twice() {
        let (mut taken, mut body) = (0, Vec::new());
        for seed in 0..2000 {
            let restless = |at, rng: &mut Rng| restless_word(at - shape().stream_at(CELL), rng);
            let memory = Restless::new(seed, 1, restless);
            let reader = ClientReader { memory, shape: shape() };
            let at = StreamPos(if seed % 2 == 0 { 0 } else { (RING - 32) as u32 / UNIT as u32 });
            let end = at.advance(RING / 2);
            if let Ok((header, _)) = reader.read_record(CELL, at, end, &mut body) {
                assert_eq!(header.body_len as usize, body.len());
                taken += 1;
            }
        }
        assert!((100..1900).contains(&taken), "{taken}");
    }

    #[test]
    fn the_length_of_the_segment_decides_about_streams() {
        let short = Segment::create("warren-test", shape().client_segment_len(1)).unwrap();
        let writer = ClientWriter::new(short.map().clone(), shape()).unwrap();
        let reader = ClientReader::new(map_read_only(short.fd()).unwrap(), shape()).unwrap();
        assert!(writer.has_stream(CellId(0)) && !writer.has_stream(CELL));
        writer.publish(CELL, StreamPos(9));
        let end = reader.stream_end(CELL);
        assert_eq!(end, StreamPos(9));
        assert!(reader.read_record(CELL, StreamPos(0), end, &mut Vec::new()).is_err());
    }

    #[test]
    #[should_panic(expected = "record of")]
    fn a_record_that_would_wrap_is_our_own_bug() {
        let p = pair(StreamPos(0));
        p.writer.write_record(CELL, StreamPos((RING / UNIT - 4) as u32), &header(1, 0), b"x");
    }

    #[test]
    fn outcomes_outlive_a_process() {
        let back = Segment::create("warren-test", shape().cell_segment_len()).unwrap();
        let open =
            |epoch| ReplyWriter::new(back.map().clone(), shape(), CELL, Epoch(epoch)).unwrap();
        let first = open(1);
        let reader = ReplyReader::new(map_read_only(back.fd()).unwrap(), shape()).unwrap();
        assert_eq!(reader.outcome(), StreamOutcome::default());
        let executed = StreamPos(u32::MAX);
        for errno in [None, Some(Errno::ENOSPC)] {
            first.store_outcome(executed, errno, 1 << 40);
            assert_eq!(reader.outcome(), StreamOutcome { executed, errno, value: 1 << 40 });
        }
        first.fix_records(executed);
        let places = [8, 16, 24].map(StreamPos);
        assert!(!first.take_record((places[0], places[1]), &header(8, 4)));
        let next = open(2);
        next.clear_words();
        assert_eq!((next.executed(), reader.outcome().errno), (executed, Some(Errno::ENOSPC)));
        assert_eq!(reader.fixed(), executed);
        let contained = |contained| RecordHeader { contained, ..header(8, 9) };
        for writer in [&next, &first, &next] {
            assert!(!writer.take_record((places[0], places[1]), &header(8, 4)));
            let again = (places[1], places[2]);
            assert!((0..2).all(|_| writer.take_record(again, &contained(4))), "a successor, too");
            assert!((0..2).all(|_| !writer.take_record(again, &contained(9))), "its own length");
        }
        next.repeat_outcome(StreamPos(7));
        let repeated = StreamOutcome { executed: StreamPos(7), ..reader.outcome() };
        assert_eq!((repeated.errno, repeated.value), (Some(Errno::ENOSPC), 1 << 40));
        assert_eq!(reader.outcome(), repeated);
        for bad in [-1_i32, i32::MIN, Errno::MAX + 1] {
            back.map().store64(STREAM_OUTCOME, u64::from(bad.cast_unsigned()) << 32, Relaxed);
            assert_eq!(reader.outcome().errno, Some(Errno::EIO));
        }
    }
}
