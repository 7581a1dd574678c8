//! A client's streams: changes that it posts, and does not wait for (decision 84).
//!
//! One thread at a time posts. The caller loads the lease word after the publication, and waits if
//! it is not valid any more: any request to the cell in a slot is executed after all records, so
//! its reply says that [`Posts::outcome`] is that of the last one.

#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;

use warren_base::{CellId, Ino, Timestamp};
use warren_client::{Cache, Changed, LastWrite};
use warren_proto::stream::{RecordHeader, StreamPos, UNIT};
use warren_proto::{Capabilities, Request};
use warren_shm::{Processor, StreamOutcome, find_room};

use crate::segments::Segments;
use crate::slot::Slot;
use crate::spin::Spins;

/// The streams to all cells.
pub struct Posts {
    shared: Arc<Segments>,
    streams: Vec<Stream>,
    body: Vec<u8>,
    /// A slot for requests for more, which are made ahead.
    ahead: Option<Slot>,
    /// The inode of the request under way.
    extending: Option<Ino>,
    /// The spins for room in a ring.
    spins: Spins,
}

/// A client for which a ring has no room waits until one part in so many of it is free.
const SPIN_PART: usize = 8;

#[derive(Clone, Copy)]
struct Stream {
    end: StreamPos,
    /// The place up to which the cell had executed the stream when that was last needed.
    executed: StreamPos,
    /// The last record, if a later write may be added to it.
    last: Option<LastWrite>,
}

/// The outcome of a write that was added to the last record.
pub(crate) enum Added {
    /// The cell will see it, and takes so much credit.
    Seen { cost: u32 },
    /// The cell may have read the record before. The same write is to be published next, as
    /// contained in a record with this payload word: the cell executes it once.
    Late { contained: u32 },
}

impl Posts {
    pub(crate) fn new(shared: Arc<Segments>, ahead: Option<Slot>) -> Self {
        let streams = (0..shared.cells.len() as u16).map(|cell| {
            let executed = shared.cells[usize::from(cell)].replies.outcome().executed;
            let end = shared.requests.stream_end(CellId(cell));
            Stream { end, executed, last: None }
        });
        let (streams, spins) = (streams.collect(), Spins::new(shared.is_single_core));
        Self { streams, shared, body: Vec::new(), ahead, extending: None, spins }
    }

    /// Publishes the request as a record with `payload_len` bytes that `fill` writes. Returns false
    /// if there is no room for it.
    pub fn publish(
        &mut self,
        (cell, time): (CellId, Timestamp),
        (request, capabilities): (&Request, Capabilities),
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        self.publish_record((cell, time, None, 0), (request, capabilities), payload_len, fill)
    }

    /// The same for a request that makes an inode with the number `new`.
    pub fn publish_new(
        &mut self,
        (cell, time, new): (CellId, Timestamp, Option<Ino>),
        named: (&Request, Capabilities),
    ) -> bool {
        self.publish_record((cell, time, new, 0), named, 0, |_| ())
    }

    /// The same for a request that the last record may contain, if that has this payload word
    /// ([`Added::Late`]).
    pub(crate) fn publish_record(
        &mut self,
        (cell, time, new, contained): (CellId, Timestamp, Option<Ino>, u32),
        (request, capabilities): (&Request, Capabilities),
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        self.body.clear();
        request.encode_body(capabilities, &mut self.body);
        let (body_len, payload_len) = (self.body.len() as u32, payload_len as u32);
        let header =
            RecordHeader { time, body_len, payload_len, contained, new, ..RecordHeader::default() };
        let requests = &self.shared.requests;
        if header.record_len() > requests.shape().record_max() || !requests.has_stream(cell) {
            return false;
        }
        let Some((header, at, skips)) = self.place(cell, request, header) else { return false };
        let requests = &self.shared.requests;
        let stream = &mut self.streams[usize::from(cell.0)];
        if skips {
            requests.mark_unused(cell, stream.end);
        }
        requests.write_record(cell, at, &header, &self.body);
        if payload_len > 0 {
            let raw = requests.record_payload_raw(cell, at, &header);
            // SAFETY: the payload lies in the mapping of `shared`, where only this thread writes:
            // it is not published, and `&mut self` is the only borrow of the streams.
            fill(unsafe { core::slice::from_raw_parts_mut(raw, payload_len as usize) });
        }
        let before = stream.end.since(stream.executed);
        stream.end = at.advance(header.record_len());
        // The cell may find that it has executed this one before. Then it ignores what it contains.
        stream.last = LastWrite::new(request, header, at).filter(|_| contained == 0);
        requests.publish(cell, stream.end);
        requests.prefetch_record(cell, stream.end, header.record_len());
        let half = requests.shape().lanes().stream() / 2;
        if before <= half && stream.end.since(stream.executed) > half {
            self.call_if_late(cell, half);
        }
        true
    }

    /// The header and the place of a record, and whether the rest of the ring is skipped. The
    /// record has spare room if more writes are likely to follow. Where the ring is full, this
    /// spins until the cell has made room, as far as that pays.
    fn place(
        &mut self,
        cell: CellId,
        request: &Request,
        header: RecordHeader,
    ) -> Option<(RecordHeader, StreamPos, bool)> {
        let ring = self.shared.requests.shape().lanes().stream();
        let last = self.streams[usize::from(cell.0)].last;
        let len = header.payload_len as usize;
        let spare = last.map_or(0, |last| last.spare_behind(request, len, ring));
        let roomy = RecordHeader { spare, ..header };
        let mut found = self.find_room(cell, roomy.record_len());
        if found.is_none() && self.spin_for_room(cell, roomy.record_len() + ring / SPIN_PART) {
            found = self.find_room(cell, roomy.record_len());
        }
        match found {
            Some((at, skips)) => Some((roomy, at, skips)),
            None => {
                self.find_room(cell, header.record_len()).map(|(at, skips)| (header, at, skips))
            }
        }
    }

    /// Spins until so many bytes of the ring are free. Returns whether they are.
    fn spin_for_room(&mut self, cell: CellId, len: usize) -> bool {
        let of_cell = &self.shared.cells[usize::from(cell.0)];
        let ring = self.shared.requests.shape().lanes().stream();
        let stream = &mut self.streams[usize::from(cell.0)];
        let used = stream.end.since(stream.executed);
        let Some(missing) = (used + len).checked_sub(ring) else { return true };
        let presence = of_cell.vitals.thread();
        let Some(spin) = self.spins.of(presence, Processor::current()) else { return false };
        let goal = stream.executed.advance(missing.min(used).next_multiple_of(UNIT));
        let has_come = of_cell.replies.spin_for_executed(goal, spin.limit());
        spin.adapt(has_come);
        has_come
    }

    /// Adds a write of `len` bytes to the last record, if that is possible: nothing is published.
    pub(crate) fn add_to_last(
        &mut self,
        (cell, time): (CellId, Timestamp),
        request: &Request,
        len: usize,
        fill: impl Fn(&mut [u8]),
    ) -> Option<Added> {
        let Segments { requests, cells, .. } = &*self.shared;
        let replies = &cells.get(usize::from(cell.0))?.replies;
        let stream = &mut self.streams[usize::from(cell.0)];
        let last = stream.last.as_mut()?;
        if last.at.is_before(replies.fixed()) {
            return None;
        }
        let Changed { header, skip, cost } = last.changed(request, len, time)?;
        let raw = requests.record_payload_raw(cell, last.at, &header);
        // SAFETY: the bytes lie in the mapping of `shared`, where only this thread writes: they are
        // no part of what is published, and `&mut self` is the only borrow of the streams.
        fill(unsafe { core::slice::from_raw_parts_mut(raw.add(skip), len) });
        requests.change_record(cell, last.at, &header);
        last.header = header;
        if last.at.is_before(replies.fixed()) {
            return Some(Added::Late { contained: header.payload_word() });
        }
        Some(Added::Seen { cost })
    }

    /// The place of a record of so many bytes. The cell is asked how far it is only if there seems
    /// to be no room.
    fn find_room(&mut self, cell: CellId, len: usize) -> Option<(StreamPos, bool)> {
        let ring = self.shared.requests.shape().lanes().stream();
        let stream = &mut self.streams[usize::from(cell.0)];
        find_room(stream.end, stream.executed, len, ring).or_else(|| {
            stream.executed = self.shared.cells[usize::from(cell.0)].replies.outcome().executed;
            find_room(stream.end, stream.executed, len, ring)
        })
    }

    /// Wakes a cell that has left more than half of the ring unexecuted.
    fn call_if_late(&mut self, cell: CellId, half: usize) {
        let of_cell = &self.shared.cells[usize::from(cell.0)];
        let stream = &mut self.streams[usize::from(cell.0)];
        stream.executed = of_cell.replies.outcome().executed;
        if stream.end.since(stream.executed) > half {
            of_cell.wake(self.shared.client);
        }
    }

    /// Whether the cell has not executed all records yet.
    pub(crate) fn is_behind(&mut self, cell: CellId) -> bool {
        let Some(of_cell) = self.shared.cells.get(usize::from(cell.0)) else { return false };
        let stream = &mut self.streams[usize::from(cell.0)];
        if stream.executed != stream.end {
            stream.executed = of_cell.replies.outcome().executed;
        }
        stream.executed != stream.end
    }

    /// Asks for more of what was used under the delegation of a file or a directory, if half of it
    /// is used.
    pub(crate) fn ask_for_more(&mut self, cache: &mut Cache, ino: Ino) {
        if let Some(ahead) = self.ahead.as_mut().filter(|_| self.extending.is_none())
            && cache.wants_more(ino)
        {
            ahead.submit(Capabilities::default(), Request::Extend { ino });
            self.extending = Some(ino);
        }
    }

    /// Takes what was asked for, if it has come or `waits`. Returns whether it has.
    pub(crate) fn take_more(&mut self, cache: &mut Cache, waits: bool) -> bool {
        let (Some(ino), Some(ahead)) = (self.extending, &mut self.ahead) else { return false };
        if !waits && !ahead.is_answered() {
            return false;
        }
        self.extending = None;
        ahead.settle();
        cache.extended(ino, ahead.take_delegated().as_deref());
        true
    }

    /// The outcome of the last record that the cell has executed.
    pub fn outcome(&self, cell: CellId) -> Option<StreamOutcome> {
        Some(self.shared.cells.get(usize::from(cell.0))?.replies.outcome())
    }
}
