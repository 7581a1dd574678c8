//! A client's streams: changes that it posts, and does not wait for (decision 84).
//!
//! One thread at a time posts. The caller loads the lease word after the publication, and waits if
//! it is not valid any more: any request to the cell in a slot is executed after all records, so
//! its reply says that [`Posts::outcome`] is that of the last one.

#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;

use warren_base::{CellId, Ino, Timestamp};
use warren_client::Cache;
use warren_proto::stream::{RecordHeader, StreamPos};
use warren_proto::{Capabilities, Request};
use warren_shm::{StreamOutcome, find_room};

use crate::segments::Segments;
use crate::slot::Slot;

/// The streams to all cells.
pub struct Posts {
    shared: Arc<Segments>,
    streams: Vec<Stream>,
    body: Vec<u8>,
    /// A slot for requests for more, which are made ahead.
    ahead: Option<Slot>,
    /// The inode of the request under way.
    extending: Option<Ino>,
}

#[derive(Clone, Copy)]
struct Stream {
    end: StreamPos,
    /// The place up to which the cell had executed the stream when that was last needed.
    executed: StreamPos,
}

impl Posts {
    pub(crate) fn new(shared: Arc<Segments>, ahead: Option<Slot>) -> Self {
        let streams = (0..shared.cells.len() as u16).map(|cell| {
            let executed = shared.cells[usize::from(cell)].replies.outcome().executed;
            Stream { end: shared.requests.stream_end(CellId(cell)), executed }
        });
        Self { streams: streams.collect(), shared, body: Vec::new(), ahead, extending: None }
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
        self.publish_new((cell, time, None), (request, capabilities), payload_len, fill)
    }

    /// The same for a request that makes an inode with the number `new`.
    pub fn publish_new(
        &mut self,
        (cell, time, new): (CellId, Timestamp, Option<Ino>),
        (request, capabilities): (&Request, Capabilities),
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        self.body.clear();
        request.encode_body(capabilities, &mut self.body);
        let (body_len, payload_len) = (self.body.len() as u32, payload_len as u32);
        let header = RecordHeader { time, uid: 0, gid: 0, body_len, payload_len, new };
        let requests = &self.shared.requests;
        if header.record_len() > requests.shape().record_max() || !requests.has_stream(cell) {
            return false;
        }
        let Some((at, skips)) = self.find_room(cell, header.record_len()) else { return false };
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
        requests.publish(cell, stream.end);
        requests.prefetch_record(cell, stream.end, header.record_len());
        let half = requests.shape().lanes().stream() / 2;
        if before <= half && stream.end.since(stream.executed) > half {
            self.call_if_late(cell, half);
        }
        true
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
