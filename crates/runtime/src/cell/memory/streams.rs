//! The records that clients post to this cell: the loop looks for them, and the core reads them.
//!
//! ```text
//! end stored ──look: a new end──▶ Event::Posted ──core: read_record──▶ executed ──store_outcome──▶
//! ```
//!
//! A client may write anything. What is no record is malformed, and so is a request that no client
//! may post. A record with which several processes of this cell have died is refused as often as it
//! is read, until the stream is executed beyond it.

use tracing::warn;
use warren_base::{ClientId, Instant, MapVersion, SlotNo};
use warren_cell::{NoRecord, Record};
use warren_proto::stream::StreamPos;
use warren_proto::{Capabilities, Request, RequestHeader};
use warren_shm::Culprit;

use super::{KNOWN, SharedMemory};

const STREAM: SlotNo = SlotNo::STREAM;

impl SharedMemory {
    /// Reads the record of the client at this place, for [`warren_cell::Memory::read_record`].
    pub(super) fn read_posted(
        &mut self,
        client: ClientId,
        at: StreamPos,
        end: StreamPos,
    ) -> Result<Record, NoRecord> {
        let place = *self.places.get(&client).expect(KNOWN);
        let memory = self.clients[place.0 as usize].as_mut().expect(KNOWN);
        let body = &mut self.streams.body;
        let read = memory.requests.read_record(self.cell, at, end, body);
        let (record, begin) = read.map_err(|_| NoRecord::Malformed)?;
        let end = begin.advance(record.record_len());
        if memory.replies.take_record((at, end), &record) {
            return Err(NoRecord::Contained { end });
        }
        let is_culprit = |it: Culprit| (it.client, it.slot, it.seq) == (client, STREAM, end.0);
        if self.culprit.is_some_and(is_culprit) {
            return Err(NoRecord::Refused { end });
        }
        let mut capabilities = Capabilities::default();
        let request = Request::from_body(body, &mut capabilities);
        let request = request.ok().filter(Request::is_postable).ok_or(NoRecord::Malformed)?;
        memory.stream.read(&record, begin);
        let header = RequestHeader {
            seq: end.0,
            map_version: MapVersion::default(),
            uid: record.uid,
            gid: record.gid,
            payload_len: record.payload_len,
            capabilities,
        };
        Ok(Record { header, time: record.time, new: record.new, request, end })
    }

    /// The stream is executed up to this place. A culprit that is not behind it is no longer one:
    /// after 32 GiB another record has its number.
    pub(super) fn pass_culprit(&mut self, client: ClientId, executed: StreamPos) {
        let is_passed = |it: &mut Culprit| {
            (it.client, it.slot) == (client, STREAM) && !executed.is_before(StreamPos(it.seq))
        };
        if let Some(Culprit { seq, deaths, .. }) = self.culprit.take_if(is_passed)
            && executed.0 == seq
        {
            let cell = self.cell;
            warn!(
                "a posted request of client {client} is refused: {deaths} processes of cell {cell} died with it"
            );
        }
    }

    /// Looks for new records of the client from now on, or no more.
    pub(super) fn watch_posted(&mut self, client: ClientId, is_watched: bool) {
        let place = *self.places.get(&client).expect(KNOWN);
        let memory = self.at_mut(place);
        if std::mem::replace(&mut memory.stream.is_watched, is_watched) == is_watched {
            return;
        }
        if is_watched {
            memory.stream.seen = memory.replies.executed();
            self.streams.watch(place);
        } else {
            self.streams.unwatch(place);
        }
    }

    /// The number of watched streams.
    pub(in crate::cell) fn watched_streams(&self) -> usize {
        self.streams.watched()
    }

    /// Makes at most `looks` looks at streams, until one finds records that are not executed.
    /// Returns the client, and its user unless it is a front.
    pub(in crate::cell) fn next_posted(
        &mut self,
        now: Instant,
        looks: &mut usize,
    ) -> Option<(ClientId, Option<u32>)> {
        while *looks > 0 {
            *looks -= 1;
            let place = self.streams.next()?;
            let cell = self.cell;
            let memory = self.at_mut(place);
            let end = memory.requests.peek_stream_end(cell);
            if memory.silent || std::mem::replace(&mut memory.stream.seen, end) == end {
                continue;
            }
            let posted = (end != memory.replies.executed()).then_some((memory.client, memory.user));
            self.streams.found(now);
            if posted.is_some() {
                return posted;
            }
        }
        None
    }

    /// Whether a look has found new records lately, so that more are likely.
    pub(in crate::cell) fn has_busy_streams(&self, now: Instant) -> bool {
        self.streams.is_busy(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warren_base::{CellId, Epoch, Errno, Ino, Timestamp};
    use warren_cell::{FrameNo, Memory, SlotRef};
    use warren_proto::slot::{LaneSize, Shape};
    use warren_proto::stream::RecordHeader;
    use warren_proto::{Capability, Handle, Position};
    use warren_shm::{
        ClientWriter, Frames, ReplyHeader, ReplyReader, Segment, StreamOutcome, VITALS_LEN,
        VitalsWriter, find_room, map_read_only,
    };

    use super::*;

    const CELL: CellId = CellId(1);
    const CLIENT: ClientId = ClientId(7);
    const OF_STREAM: SlotRef = SlotRef { client: CLIENT, slot: STREAM };
    const START: StreamPos = StreamPos(0);
    const USER: u32 = 1000;
    const NOW: Instant = Instant(1);

    struct Posting {
        memory: SharedMemory,
        writer: ClientWriter,
        replies: ReplyReader,
        end: StreamPos,
        contained: u32,
    }

    /// A client that may post, and the cell's memory for it.
    fn posting(user: Option<u32>) -> Posting {
        let shape = Shape::new(1, LaneSize::Small).expect("legal");
        let segment = |len| Segment::create("warren-test", len).expect("segment");
        let (requests, replies) =
            (segment(shape.client_segment_len(2)), segment(shape.cell_segment_len()));
        let writer = ClientWriter::new(requests.map().clone(), shape).expect("writer");
        let own = replies.fd().try_clone_to_owned().expect("fd");
        let mut memory = SharedMemory::new(Frames::create(1).expect("frames"), CELL, Epoch(1));
        let fds = [requests.read_only_fd().expect("fd"), own];
        memory.admit(NOW, CLIENT, (shape, user), fds).expect("admit");
        let replies = map_read_only(replies.fd()).expect("map");
        let replies = ReplyReader::new(replies, shape).expect("reader");
        Posting { memory, writer, replies, end: START, contained: 0 }
    }

    impl Posting {
        /// Publishes a record with this body. Returns where it begins.
        fn publish(&mut self, body: &[u8], payload: &[u8]) -> StreamPos {
            let (body_len, payload_len) = (body.len() as u32, payload.len() as u32);
            let time = Timestamp(5);
            let contained = self.contained;
            let of_user = RecordHeader { uid: 11, gid: 12, contained, ..RecordHeader::default() };
            let header = RecordHeader { time, body_len, payload_len, ..of_user };
            let ring = self.writer.shape().lanes().stream();
            let room = find_room(self.end, self.end, header.record_len(), ring);
            let (at, _) = room.expect("room");
            self.writer.write_record(CELL, at, &header, body);
            self.writer.write_record_payload(CELL, at, &header, (0, payload));
            self.end = at.advance(header.record_len());
            self.writer.publish(CELL, self.end);
            at
        }

        fn publish_request(&mut self, request: &Request, payload: &[u8]) -> StreamPos {
            let mut body = Vec::new();
            let inode = Capability(9);
            request.encode_body(Capabilities { inode, ..Capabilities::default() }, &mut body);
            self.publish(&body, payload)
        }

        fn read(&mut self, at: StreamPos) -> Result<Record, NoRecord> {
            let end = self.memory.stream_end(CLIENT);
            self.memory.read_record(CLIENT, at, end)
        }

        /// All clients for which a look finds records.
        fn looks(&mut self, now: Instant) -> Vec<ClientId> {
            let mut looks = 2 * self.memory.watched_streams();
            std::iter::from_fn(|| self.memory.next_posted(now, &mut looks))
                .map(|(client, _)| client)
                .collect()
        }
    }

    fn write() -> Request {
        let handle = Handle { ino: Ino(3), open: 4 };
        Request::Write {
            handle,
            position: Position::At(0),
            kill_privileges: true,
            write_back: false,
            direct: false,
        }
    }

    #[test]
    fn a_record_is_read_with_its_payload() {
        let mut p = posting(Some(USER));
        let at = p.publish_request(&write(), b"over there");
        let record = p.read(at).expect("a record");
        assert_eq!((record.end, record.time, record.request), (p.end, Timestamp(5), write()));
        let header = record.header;
        assert_eq!((header.seq, header.uid, header.gid), (p.end.0, 11, 12));
        assert_eq!((header.payload_len, header.capabilities.inode), (10, Capability(9)));
        p.memory.payload_to_frame(OF_STREAM, 5, FrameNo(0), 4091..4096);
        assert_eq!(&p.memory.frame(FrameNo(0))[4091..], b"there");
        let mut all = [0; 10];
        p.memory.read_payload(OF_STREAM, &mut all);
        assert_eq!(&all, b"over there");
        assert_eq!(p.memory.stream_executed(CLIENT), START);
        p.memory.store_outcome(CLIENT, p.end, Some(Errno::ENOSPC), 8);
        let outcome = StreamOutcome { executed: p.end, errno: Some(Errno::ENOSPC), value: 8 };
        assert_eq!((p.replies.outcome(), p.memory.stream_executed(CLIENT)), (outcome, p.end));
    }

    #[test]
    fn a_record_that_the_one_before_contained_is_none() {
        for contained in [4, 5] {
            let mut p = posting(Some(USER));
            let first = p.publish_request(&write(), b"data");
            p.contained = contained;
            let again = p.publish_request(&write(), b"data");
            let first = p.read(first).expect("a record");
            p.memory.store_outcome(CLIENT, first.end, None, 8);
            let read = p.read(again);
            if contained != 4 {
                read.expect("the one before was another one");
                continue;
            }
            assert!(matches!(read, Err(NoRecord::Contained { end }) if end == p.end));
            p.memory.repeat_outcome(CLIENT, p.end);
            let outcome = StreamOutcome { executed: p.end, errno: None, value: 8 };
            assert_eq!((p.replies.outcome(), p.replies.fixed()), (outcome, p.end));
        }
    }

    #[test]
    #[should_panic(expected = "payload 9+2 of 10")]
    fn the_payload_ends_with_its_record() {
        let mut p = posting(Some(USER));
        let at = p.publish_request(&write(), b"over there");
        p.read(at).expect("a record");
        p.memory.payload_to_frame(OF_STREAM, 9, FrameNo(0), 0..2);
    }

    #[test]
    fn what_is_not_posted_is_malformed() {
        let mut p = posting(Some(USER));
        let is_malformed = |read: Result<_, _>| matches!(read, Err(NoRecord::Malformed));
        let link = Request::ReadLink { ino: Ino(3) };
        for request in [Request::Null, Request::Sync, link] {
            let at = p.publish_request(&request, b"");
            assert!(is_malformed(p.read(at)), "{request:?}");
        }
        let at = p.publish(&[0xff; 30], b"");
        assert!(is_malformed(p.read(at)));
        assert!(is_malformed(p.read(p.end)), "there is none");
        let at = p.publish_request(&write(), b"data");
        assert!(p.read(at).is_ok());
        p.writer.publish(CELL, at.advance(1 << 20));
        assert!(is_malformed(p.read(at)), "further than the ring");
    }

    /// Three processes die, the last of them before it has read the record.
    #[test]
    fn a_record_that_ends_processes_is_refused_until_it_is_passed() {
        let mut p = posting(Some(USER));
        let vitals = Segment::create("warren-test", VITALS_LEN).expect("segment");
        let process = |epoch| {
            let map = vitals.map().clone();
            VitalsWriter::new(map, CELL, Epoch(epoch)).expect("vitals")
        };
        let at = p.publish_request(&write(), b"");
        let seq = p.end.0;
        for epoch in 1..3 {
            p.memory = p.memory.with_vitals(process(epoch), None);
            p.memory.executes(Some((OF_STREAM, seq)));
            let culprit = process(epoch).take_culprit().expect("a culprit");
            assert_eq!((culprit.slot, culprit.seq, culprit.deaths), (STREAM, seq, epoch));
        }
        p.memory = p.memory.with_vitals(process(3), process(3).take_culprit());
        for _ in 0..2 {
            let refused = p.read(at).expect_err("refused");
            assert_eq!(refused, NoRecord::Refused { end: p.end });
        }
        let slot = SlotRef { client: CLIENT, slot: SlotNo(0) };
        assert_eq!(p.memory.take_culprit(slot, seq), None);
        p.memory.store_outcome(CLIENT, at, None, 0);
        assert!(p.read(at).is_err(), "not passed");
        p.memory.store_outcome(CLIENT, p.end, Some(Errno::EIO), 0);
        assert!(p.read(at).is_ok(), "another one has its number");
    }

    #[test]
    fn a_record_is_charged_to_its_user() {
        for (user, charged) in [(Some(USER), USER), (None, 11)] {
            let mut p = posting(user);
            let at = p.publish_request(&write(), b"");
            let record = p.read(at).expect("a record");
            p.memory.executes(Some((OF_STREAM, record.header.seq)));
            p.memory.executes(None);
            let mut users = Vec::new();
            p.memory.meter().read(NOW, |uid, _| users.push(uid));
            assert_eq!(users, [charged]);
        }
    }

    #[test]
    fn a_stream_is_no_slot() {
        let mut p = posting(Some(USER));
        let at = p.publish_request(&write(), b"");
        p.read(at).expect("a record");
        p.memory.end_turn(OF_STREAM);
        p.memory.await_lock(OF_STREAM);
        p.memory.reply(OF_STREAM, 1, ReplyHeader { errno: None, payload_len: 0 }, &[]);
        assert_eq!(p.memory.in_progress(USER), 0);
    }

    #[test]
    fn records_of_watched_clients_are_found_once() {
        let mut p = posting(Some(USER));
        let at = p.publish_request(&write(), b"");
        assert_eq!(p.looks(NOW), [], "it is not watched");
        for _ in 0..2 {
            p.memory.watch_stream(CLIENT, true);
        }
        assert_eq!((p.memory.watched_streams(), p.memory.has_busy_streams(NOW)), (1, false));
        assert_eq!(p.looks(NOW), [CLIENT]);
        assert_eq!(p.looks(NOW), []);
        assert!(
            p.memory.has_busy_streams(NOW)
                && !p.memory.has_busy_streams(NOW + Duration::from_millis(10))
        );
        p.publish_request(&write(), b"");
        assert_eq!(p.looks(NOW), [CLIENT], "not even the first is executed");
        p.publish_request(&write(), b"");
        p.memory.store_outcome(CLIENT, p.end, None, 0);
        let later = NOW + Duration::from_secs(1);
        assert_eq!(p.looks(later), [], "it is executed already");
        assert!(p.memory.has_busy_streams(later), "and yet the client posts");
        p.memory.watch_stream(CLIENT, false);
        p.publish_request(&write(), b"");
        assert_eq!(p.looks(NOW), []);
        p.memory.watch_stream(CLIENT, true);
        p.memory.silence(CLIENT);
        assert_eq!(p.looks(NOW), []);
        assert!(p.read(at).is_ok(), "the core still executes them");
        p.memory.forget(CLIENT);
        assert_eq!(p.memory.watched_streams(), 0);
    }
}
