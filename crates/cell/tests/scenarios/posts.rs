//! Posts of clients: records in their streams to a cell. No cell looks at a stream before a test
//! lets it ([`Pair::look_at`]), or a request makes it.

use std::collections::BTreeMap;

use warren_base::{CellId, ClientId, Errno, Ino, Timestamp};
use warren_cell::{Event, NoRecord, Record};
use warren_proto::stream::{Delegated, RecordHeader, StreamPos};
use warren_proto::{
    AccessMode, Capabilities, CreateFlags, Handle, NewInode, Position, Reply, Request,
    RequestHeader,
};

use crate::bytes::{PAGE, page};
use crate::client::write;
use crate::image::name;
use crate::pair::{A, IN_A, KEY, Pair, Setup};

/// A record as its client has published it.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub time: Timestamp,
    /// The number of the inode that the request makes.
    pub new: Option<Ino>,
    pub request: Request,
    pub capabilities: Capabilities,
    pub payload: Vec<u8>,
}

impl Posted {
    /// Bytes of the record.
    fn len(&self) -> usize {
        let mut body = Vec::new();
        self.request.encode_body(self.capabilities, &mut body);
        let (body_len, payload_len) = (body.len() as u32, self.payload.len() as u32);
        let (time, new) = (self.time, self.new);
        RecordHeader { time, body_len, payload_len, new, ..RecordHeader::default() }.record_len()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Outcome {
    pub executed: StreamPos,
    pub errno: Option<Errno>,
    pub value: u64,
}

/// A stream to a cell, from both sides.
#[derive(Default)]
pub(crate) struct Stream {
    records: BTreeMap<u32, Posted>,
    pub end: StreamPos,
    pub outcome: Outcome,
    pub is_watched: bool,
    /// The ends of records that no process of the cell may execute.
    pub refused: Vec<StreamPos>,
    /// The ends of records that the ones before contain.
    pub contained: Vec<StreamPos>,
    /// The process of the cell is about to die: it does not reach the stores of outcomes.
    pub loses_outcomes: bool,
    /// The places at which records were read, and which of them was read last.
    pub reads: Vec<StreamPos>,
}

impl Stream {
    /// Publishes a record. Returns its end.
    pub(crate) fn publish(&mut self, posted: Posted) -> StreamPos {
        let at = self.end;
        self.end = at.advance(posted.len());
        self.records.insert(at.0, posted);
        self.end
    }

    /// Publishes bytes that are no record.
    pub(crate) fn publish_garbage(&mut self) {
        self.end = self.end.advance(64);
    }

    pub(crate) fn read(&mut self, at: StreamPos, end: StreamPos) -> Result<Record, NoRecord> {
        let posted = self.records.get(&at.0).ok_or(NoRecord::Malformed)?;
        let after = at.advance(posted.len());
        assert!(!end.is_before(after), "the cell reads what is published");
        if self.refused.contains(&after) {
            return Err(NoRecord::Refused { end: after });
        }
        if self.contained.contains(&after) {
            return Err(NoRecord::Contained { end: after });
        }
        self.reads.push(at);
        let header = RequestHeader {
            seq: after.0,
            payload_len: posted.payload.len() as u32,
            capabilities: posted.capabilities,
            ..RequestHeader::default()
        };
        let Posted { time, new, ref request, .. } = *posted;
        Ok(Record { header, time, new, request: request.clone(), end: after })
    }

    /// The payload of the record that was read last.
    pub(crate) fn payload(&self) -> &[u8] {
        let at = self.reads.last().expect("a record was read");
        &self.records[&at.0].payload
    }
}

/// A handle through which a client may post.
pub(crate) const SOLE: AccessMode =
    AccessMode::READ.union(AccessMode::WRITE).union(AccessMode::SOLE);

pub(crate) fn append(handle: Handle) -> Request {
    write(handle, Position::End)
}

impl Pair {
    /// Creates a file in `/a` that its client alone writes. It is delegated.
    pub(crate) fn own_file(&mut self, client: ClientId, text: &str) -> (Handle, Delegated) {
        let (flags, new) = (CreateFlags::OPEN, NewInode::regular(0o666));
        let create = Request::Create { dir: IN_A, name: name(text), new, flags, access: SOLE };
        let call = self.send(client, create);
        match self.answer(call) {
            Some(Ok(Reply::Created { opened: Some(opened), .. })) => {
                (opened.handle, self.delegated(call).expect("a delegation"))
            }
            other => panic!("{text} is not created: {other:?}"),
        }
    }

    pub(crate) fn open_own(&mut self, client: ClientId, ino: Ino) -> (Handle, Option<Delegated>) {
        let call = self.send(client, Request::Open { ino, access: SOLE });
        match self.answer(call) {
            Some(Ok(Reply::Opened(opened))) => (opened.handle, self.delegated(call)),
            other => panic!("it is not opened: {other:?}"),
        }
    }

    pub(crate) fn record(
        &self,
        client: ClientId,
        request: Request,
        bytes: impl AsRef<[u8]>,
    ) -> Posted {
        let capabilities = KEY.all_for(client, &request);
        let (time, payload) = (self.clock().wall, bytes.as_ref().to_vec());
        Posted { time, new: None, request, capabilities, payload }
    }

    /// Publishes a record, which wakes no cell. Returns its end.
    pub(crate) fn post(
        &mut self,
        client: ClientId,
        request: Request,
        bytes: impl AsRef<[u8]>,
    ) -> StreamPos {
        let cell = request.inode().map_or(A, |ino| self.home(ino));
        let posted = self.record(client, request, bytes);
        self.stream_at(cell, client).publish(posted)
    }

    pub(crate) fn stream(&mut self, client: ClientId) -> &mut Stream {
        self.stream_at(A, client)
    }

    fn stream_at(&mut self, cell: CellId, client: ClientId) -> &mut Stream {
        self.member(cell).machine.streams.entry(client).or_default()
    }

    /// The cell looks at the stream.
    pub(crate) fn look_at(&mut self, client: ClientId) {
        self.plan_event(A, Event::Posted { client });
        self.drive();
    }

    /// The outcome of its stream, as the client sees it.
    pub(crate) fn outcome(&mut self, client: ClientId) -> Outcome {
        self.stream(client).outcome
    }

    /// Whether the client may return without waiting after it has posted.
    pub(crate) fn may_post(&self, client: ClientId, delegated: &Delegated) -> bool {
        self.is_valid(A, client, delegated.lease)
    }
}

/// Writes from this page on until ENOSPC. Returns the number of pages.
pub(crate) fn fill(pair: &mut Pair, client: ClientId, file: Handle) -> usize {
    for at in 0.. {
        let call = pair.send_write(client, file, at * PAGE, page(7));
        match pair.answer(call) {
            Some(Ok(_)) => {}
            Some(Err(Errno::ENOSPC)) => return at,
            other => panic!("{other:?}"),
        }
    }
    unreachable!("the pool is finite")
}

/// A pool with room for some hundred pages.
pub(crate) fn small() -> Pair {
    Pair::with(Setup { cells: 1, free_chunks: 6, ..Setup::default() })
}

/// The pages that can be written now. They are free again afterwards.
pub(crate) fn free_pages(pair: &mut Pair, client: ClientId) -> usize {
    let file = pair.create(client, IN_A, "filler");
    let pages = fill(pair, client, file);
    pair.unlink(client, IN_A, "filler");
    pair.close(client, file);
    pair.sync(client);
    pair.sync(client);
    pages
}
