//! The posted streams between clients and cells.

use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::{HashMap, HashSet};
use warren_base::{CellId, ClientId, Errno, SlotNo, Timestamp};
use warren_cell::{NoRecord, Record, SlotRef};
use warren_client::{Changed, LastWrite};
use warren_proto::stream::{RecordHeader, StreamPos};
use warren_proto::{Capabilities, Handle, Position, Request, RequestHeader};

use crate::fixed::Fixed;

/// A record as the client has published it.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub header: RecordHeader,
    pub request: Request,
    pub capabilities: Capabilities,
    pub payload: Rc<[u8]>,
}

impl Posted {
    /// The lengths in the header follow from the request.
    pub(crate) fn new(
        mut header: RecordHeader,
        (request, capabilities): (Request, Capabilities),
        payload: Rc<[u8]>,
    ) -> Self {
        let mut body = Vec::new();
        request.encode_body(capabilities, &mut body);
        (header.body_len, header.payload_len) = (body.len() as u32, payload.len() as u32);
        Self { header, request, capabilities, payload }
    }
}

/// The outcome of the record that ends at `executed`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct StreamOutcome {
    pub executed: StreamPos,
    pub errno: Option<Errno>,
    pub value: u64,
}

/// A write was added to the last record.
pub(crate) struct Added {
    pub cost: u32,
    pub end: StreamPos,
    /// The record's payload word with it, if the cell may have read it before. Then the write is to
    /// be published, too.
    pub contained: u32,
}

#[derive(Default)]
struct Stream {
    /// Written by the client.
    records: VecDeque<(StreamPos, Posted)>,
    end: StreamPos,
    /// The last record, and its payload, if a write may be added to it.
    last: Option<(LastWrite, Rc<[u8]>)>,
    /// Written by the cell.
    outcome: StreamOutcome,
    fixed: StreamPos,
    taken: (StreamPos, u32),
    /// The payload of the record that was read last.
    payload: Rc<[u8]>,
    /// The ends of records whose clients have found the lease valid afterwards.
    promised: HashSet<StreamPos, Fixed>,
    /// The records that were executed, or skipped, by their ends: when, in the order of all events.
    done: HashMap<StreamPos, Result<u64, Errno>, Fixed>,
}

/// The streams of all clients.
#[derive(Default)]
pub(crate) struct Streams {
    by_place: HashMap<(CellId, ClientId), Stream, Fixed>,
    watched: HashSet<(CellId, ClientId), Fixed>,
}

impl Streams {
    /// Publishes a record, unless the ring of so many bytes has no room. Returns its end.
    pub(crate) fn publish(
        &mut self,
        place: (CellId, ClientId),
        posted: Posted,
        ring: usize,
    ) -> Option<StreamPos> {
        let stream = self.by_place.entry(place).or_default();
        let end = stream.end.advance(posted.header.record_len());
        if end.since(stream.outcome.executed) > ring {
            return None;
        }
        let last = LastWrite::new(&posted.request, posted.header, stream.end);
        let last = last.filter(|_| posted.header.contained == 0);
        stream.last = last.map(|last| (last, posted.payload.clone()));
        stream.records.push_back((stream.end, posted));
        stream.end = end;
        Some(end)
    }

    /// The last record of a client's stream, if that is a write: its handle, place and length.
    pub(crate) fn last_write(&self, client: ClientId) -> Option<(Handle, Position, usize)> {
        let last = |(place, stream): (&(CellId, ClientId), &Stream)| {
            let (_, posted) = stream.records.back().filter(|_| place.1 == client)?;
            match posted.request {
                Request::Write { handle, position, .. } => {
                    Some((handle, position, posted.payload.len()))
                }
                _ => None,
            }
        };
        self.by_place.iter().find_map(last)
    }

    /// The spare room for the record of a write of `len` bytes.
    pub(crate) fn spare(
        &self,
        place: (CellId, ClientId),
        request: &Request,
        len: usize,
        ring: usize,
    ) -> u32 {
        let last = self.by_place.get(&place).and_then(|stream| stream.last.as_ref());
        last.map_or(0, |(last, _)| last.spare_behind(request, len, ring))
    }

    /// Adds a write to the last record, if that is possible. If the client `races` with the cell,
    /// it does so although the cell reads the record, or the cell does right afterwards.
    pub(crate) fn add_to_last(
        &mut self,
        place: (CellId, ClientId),
        (request, payload, time): (&Request, &[u8], Timestamp),
        races: bool,
    ) -> Option<Added> {
        let stream = self.by_place.get_mut(&place)?;
        let (mut last, before) = stream.last.clone()?;
        if last.at.is_before(stream.fixed) && !races {
            return None;
        }
        let Changed { header, skip, cost } = last.changed(request, payload.len(), time)?;
        let payload: Rc<[u8]> = [&before[..skip], payload].concat().into();
        if let Some((_, record)) = stream.records.iter_mut().find(|(at, _)| *at == last.at) {
            (record.header, record.payload) = (header, payload.clone());
        }
        last.header = header;
        let is_late = races;
        if is_late {
            stream.fixed = stream.end;
        }
        stream.last = (!is_late).then_some((last, payload));
        let contained = if is_late { header.payload_word() } else { 0 };
        Some(Added { cost, end: stream.end, contained })
    }

    /// The cell looks at the stream, and reads what is there.
    pub(crate) fn fix(&mut self, place: (CellId, ClientId)) -> StreamPos {
        let Some(stream) = self.by_place.get_mut(&place) else { return StreamPos::default() };
        stream.fixed = stream.end;
        stream.end
    }

    pub(crate) fn end(&self, place: (CellId, ClientId)) -> StreamPos {
        self.by_place.get(&place).map_or(StreamPos::default(), |stream| stream.end)
    }

    /// Whether the cell has not executed all records yet.
    pub(crate) fn is_behind(&self, place: (CellId, ClientId)) -> bool {
        self.outcome(place).executed != self.end(place)
    }

    pub(crate) fn outcome(&self, place: (CellId, ClientId)) -> StreamOutcome {
        self.by_place.get(&place).map_or(StreamOutcome::default(), |stream| stream.outcome)
    }

    pub(crate) fn read(
        &mut self,
        place: (CellId, ClientId),
        at: StreamPos,
    ) -> Result<Record, NoRecord> {
        let stream = self.by_place.get_mut(&place).ok_or(NoRecord::Malformed)?;
        let found = stream.records.iter().find(|(begin, _)| *begin == at);
        let (_, posted) = found.ok_or(NoRecord::Malformed)?;
        let end = at.advance(posted.header.record_len());
        if posted.header.contained != 0 && stream.taken == (at, posted.header.contained) {
            return Err(NoRecord::Contained { end });
        }
        stream.taken = (end, posted.header.payload_word());
        stream.payload = posted.payload.clone();
        let header = RequestHeader {
            seq: end.0,
            uid: posted.header.uid,
            gid: posted.header.gid,
            payload_len: posted.header.payload_len,
            capabilities: posted.capabilities,
            ..RequestHeader::default()
        };
        let (time, new) = (posted.header.time, posted.header.new);
        Ok(Record { header, time, new, request: posted.request.clone(), end })
    }

    /// The payload of the record that was read last, if the slot is that of a stream.
    pub(crate) fn payload(&self, cell: CellId, from: SlotRef) -> Option<Rc<[u8]>> {
        let is_stream = from.slot == SlotNo::STREAM;
        is_stream.then(|| self.by_place.get(&(cell, from.client)))?.map(|it| it.payload.clone())
    }

    /// The client goes on without waiting for the record that ends there. Returns whether the
    /// record may still succeed, or has.
    pub(crate) fn promise(&mut self, place: (CellId, ClientId), end: StreamPos) -> bool {
        let stream = self.by_place.entry(place).or_default();
        stream.promised.insert(end);
        !matches!(stream.done.get(&end), Some(Err(_)))
    }

    /// Stores an outcome at this time. Returns whether its client does not need it, or it is a
    /// success.
    pub(crate) fn store(
        &mut self,
        place: (CellId, ClientId),
        outcome: StreamOutcome,
        at: u64,
    ) -> bool {
        let stream = self.by_place.entry(place).or_default();
        let StreamOutcome { executed, errno, .. } = outcome;
        stream.outcome = outcome;
        stream.done.insert(executed, errno.map_or(Ok(at), Err));
        stream.records.retain(|(at, _)| !at.is_before(executed));
        errno.is_none() || !stream.promised.contains(&executed)
    }

    /// The stream is executed up to this place, with the same outcome as before.
    pub(crate) fn repeat_outcome(&mut self, place: (CellId, ClientId), executed: StreamPos) {
        let stream = self.by_place.entry(place).or_default();
        if let Some(done) = stream.done.get(&stream.outcome.executed).copied() {
            stream.done.insert(executed, done);
        }
        stream.outcome.executed = executed;
        stream.records.retain(|(at, _)| !at.is_before(executed));
    }

    /// When the record that ends there was executed, or why it was not. `None` if the cell has not
    /// come to it.
    pub(crate) fn execution(
        &self,
        place: (CellId, ClientId),
        end: StreamPos,
    ) -> Option<Result<u64, Errno>> {
        self.by_place.get(&place)?.done.get(&end).copied()
    }

    pub(crate) fn watch(&mut self, place: (CellId, ClientId), is_watched: bool) {
        if is_watched {
            self.watched.insert(place);
        } else {
            self.watched.remove(&place);
        }
    }

    pub(crate) fn is_watched(&self, place: (CellId, ClientId)) -> bool {
        self.watched.contains(&place)
    }

    /// A process of the cell has ended, and its successor watches no stream yet.
    pub(crate) fn unwatch_all(&mut self, cell: CellId) {
        self.watched.retain(|(of, _)| *of != cell);
    }
}
