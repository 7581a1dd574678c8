//! The cell's boundary: one closed enum in, one out, and the shared memory behind a trait.
//!
//! A driver (the runtime's event loop, or the simulator) passes [`Event`]s to
//! [`crate::Cell::apply`] in the order in which they happen. It carries out the [`Effect`]s in the
//! order in which they come. Stores through [`Memory`] take effect at once, before the effects of
//! the same call: a lease word is cleared before the reply that makes the change known.

use std::ops::Range;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, ClientId, Errno, Ino, Instant, Lsn, SlotNo, Timestamp};
use warren_proto::control::{Order, Report, Suspicion};
use warren_proto::stream::StreamPos;
use warren_proto::{Answer, Beside, PeerReply, PeerRequest, Request, RequestHeader, Wire};

/// A slot of a client: it holds a request, and receives the reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotRef {
    pub client: ClientId,
    pub slot: SlotNo,
}

/// A 4 KiB frame of the cell's memory, which outlives its process: the buffer cache's, then those
/// of the op log's image, then those of the cache's table ([`crate::CellConfig::frames_total`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameNo(pub u32);

/// A record of a client's stream. The number of its request is that of its end.
#[derive(Clone, Debug)]
pub struct Record {
    pub header: RequestHeader,
    pub time: Timestamp,
    /// The number of the inode that the request makes.
    pub new: Option<Ino>,
    pub request: Request,
    pub end: StreamPos,
}

/// Why there is no record to execute where one was published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRecord {
    /// The client has written something else. Nothing behind it can be read.
    Malformed,
    /// Several processes of this cell have ended while they executed it. It is skipped.
    Refused { end: StreamPos },
    /// The record before has contained it ([`warren_proto::stream`]).
    Contained { end: StreamPos },
}

/// Names an I/O until it is done. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u64);

/// A message from one cell to another. Its contents depend on the sender's log up to `lsn`.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct PeerMessage {
    pub lsn: Lsn,
    pub body: PeerBody,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum PeerBody {
    Request(PeerRequest),
    Reply(PeerReply),
    /// A message from a cell's part of the distributed pool of free chunks to another cell's.
    Pool(warren_pool::PoolMessage<u64>),
}

/// The input of a cell.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client's slot rang. The driver has copied the line and body once and decoded them. It
    /// answers EPROTO itself if the bytes are no request, and drops requests of clients that were
    /// not admitted.
    Request {
        from: SlotRef,
        header: RequestHeader,
        request: Request,
    },
    /// The same, for a request during which several processes of this cell have ended, one after
    /// the other. It is answered EIO, unless one of them has executed it.
    Refuse {
        from: SlotRef,
        header: RequestHeader,
    },
    Peer {
        from: CellId,
        message: PeerMessage,
    },
    Order(Order),
    /// A client has published records that are not executed. The driver looks for them in the
    /// streams that [`Memory::watch_stream`] names.
    Posted {
        client: ClientId,
    },
    /// An I/O has finished: all of it was done, or nothing counts.
    IoDone {
        io: IoId,
        result: Result<(), Errno>,
    },
    /// The host could allocate so many blocks.
    HostMeasured {
        blocks: u64,
    },
    /// The time that [`Effect::Wake`] named has come (early and needless ticks do no harm).
    Tick,
    /// Look for what waits for too long: what has waited since the last review. The driver calls
    /// this about once a second as long as anything waits.
    Review,
}

/// An action that the driver carries out for the cell.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Answer request `seq` of the slot. The first `payload_len` bytes of its payload lane have
    /// been written through [`Memory`].
    Reply {
        to: SlotRef,
        seq: u32,
        answer: Answer,
        payload_len: u32,
        beside: Beside,
    },
    /// The slot's request waits for a file lock, without a time limit. Until it is answered it is
    /// no live task, and does not count for its user's share of them.
    AwaitsLock {
        from: SlotRef,
    },
    /// Messages to one peer arrive in order. The driver keeps messages for which the inbox has no
    /// room.
    Send {
        to: CellId,
        message: PeerMessage,
    },
    Report(Report),
    /// The peer has sent a message that no correct cell sends. It changed nothing here. The driver
    /// takes in no more of its messages, sends it nothing more, and reports it with the epoch of
    /// its link ([`Report::Suspect`]).
    Suspect {
        cell: CellId,
        why: Suspicion,
    },
    /// Read blocks `block..` into the frames, one after the other.
    Read {
        io: IoId,
        block: BlockNo,
        frames: Vec<FrameNo>,
    },
    /// Write the frames to blocks `block..`. The cell does not change them until the write is done.
    Write {
        io: IoId,
        block: BlockNo,
        frames: Vec<FrameNo>,
    },
    /// Write the frames to blocks `block..`, durably by the time that this is done. This does not
    /// cover earlier writes. After an error, earlier writes may be lost too, as after a failed
    /// flush.
    WriteThrough {
        io: IoId,
        block: BlockNo,
        frames: Vec<FrameNo>,
    },
    /// Make all earlier writes durable. Ends with [`Event::IoDone`].
    Flush {
        io: IoId,
    },
    /// Have the host allocate blocks `block..`, so that no write to them fails for lack of space:
    /// ENOSPC if there is no room. The blocks are of free chunks, and their contents may be lost.
    Reserve {
        io: IoId,
        block: BlockNo,
        count: u64,
    },
    /// Give the blocks of free chunks back to the host. EOPNOTSUPP if the host does not take blocks
    /// back.
    Discard {
        io: IoId,
        block: BlockNo,
        count: u64,
    },
    /// Measure the room that the host has: [`Event::HostMeasured`].
    MeasureHost,
    /// Call [`Event::Tick`] at this time. A later `Wake` replaces an earlier one.
    Wake(Instant),
}

/// Both times at which an event happens.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub monotonic: Instant,
    pub wall: Timestamp,
}

/// Memory that the cell shares with others. `client` is always an admitted one and `slot` within
/// its slots. Offsets and lengths are within the client's lanes, whose size `Order::Admit` named.
pub trait Memory {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE];

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE];

    /// Copies bytes from `offset` of the client's payload lane on to `at` in the frame. The client
    /// may be changing them; the bytes read are always its own.
    fn payload_to_frame(&mut self, from: SlotRef, offset: usize, frame: FrameNo, at: Range<usize>);

    /// Copies the bytes at `at` of the frame to `offset` of the reply's payload lane.
    fn frame_to_payload(&mut self, frame: FrameNo, at: Range<usize>, to: SlotRef, offset: usize);

    /// Copies the first bytes of the client's payload lane. The client may be changing them.
    fn read_payload(&mut self, from: SlotRef, into: &mut [u8]);

    /// Copies the bytes to the beginning of the reply's payload lane.
    fn write_payload(&mut self, to: SlotRef, bytes: &[u8]);

    /// Zeroes `len` bytes at `offset` of the reply's payload lane.
    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize);

    /// Names the request that is being executed from now on, or none. If the process dies, its
    /// successor finds here the request during which it died.
    fn executes(&mut self, _request: Option<(SlotRef, u32)>) {}

    /// Stores into lease word `word` of the client, with release order. The word is in the table
    /// whose size `Order::Admit` named.
    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64);

    /// Whether the client has marked the inode as idle: it uses none of the handles of it that it
    /// has kept. The stores into lease words before this are visible to the client before.
    fn is_idle(&self, _client: ClientId, _ino: Ino) -> bool {
        false
    }

    /// Tells the client that all handles of the inode that it has kept are closed.
    fn mark_closed(&mut self, _client: ClientId, _ino: Ino) {}

    /// Tells all clients that the inode is watched from now on, or not any more.
    fn watch(&mut self, _ino: Ino, _is_watched: bool) {}

    /// Marks the object with this hash as granted to a front. The mark outlives the process.
    fn mark(&mut self, _hash: u64) {}

    /// Whether the cell's process, or one before it, has marked the object or one that has the same
    /// mark.
    fn is_marked(&self, _hash: u64) -> bool {
        true
    }

    /// The end of the client's stream to this cell. Any place is possible, if the client is
    /// hostile. The stores into lease words before this are visible to the client before.
    fn stream_end(&mut self, _client: ClientId) -> StreamPos {
        StreamPos::default()
    }

    /// The place up to which processes of this cell have stored that they have executed the stream.
    fn stream_executed(&self, _client: ClientId) -> StreamPos {
        StreamPos::default()
    }

    /// Copies and decodes the record at this place of the stream, which must end before `end`. Its
    /// payload is that of slot [`SlotNo::STREAM`] until the next record is read.
    fn read_record(
        &mut self,
        _client: ClientId,
        _at: StreamPos,
        _end: StreamPos,
    ) -> Result<Record, NoRecord> {
        Err(NoRecord::Malformed)
    }

    /// The stream is executed up to this place, with this outcome of the record that ends there.
    fn store_outcome(
        &mut self,
        _client: ClientId,
        _executed: StreamPos,
        _errno: Option<Errno>,
        _value: u64,
    ) {
    }

    /// The stream is executed up to this place, with the same outcome as before.
    fn repeat_outcome(&mut self, _client: ClientId, _executed: StreamPos) {}

    /// The driver looks for new records of the client from now on ([`Event::Posted`]), or no more.
    fn watch_stream(&mut self, _client: ClientId, _is_watched: bool) {}
}
