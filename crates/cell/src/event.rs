//! The cell's boundary: one closed enum in, one out, and the shared memory behind a trait.
//!
//! A driver (the runtime's event loop, or the simulator) feeds [`Event`]s to
//! [`crate::Cell::apply`] in the order in which they happen and carries out the [`Effect`]s in the
//! order in which they come. Stores through [`Memory`] take effect at once, before the effects of
//! the same call: a lease word is cleared before the reply that makes the change known.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, ClientId, Errno, Instant, Lsn, SlotNo, Timestamp};
use warren_proto::control::{Order, Report, Suspicion};
use warren_proto::{Answer, Capability, PeerReply, PeerRequest, Request, RequestHeader, Wire};

/// A slot of a client: where a request came from and its reply goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotRef {
    pub client: ClientId,
    pub slot: SlotNo,
}

/// A 4 KiB frame of the cell's memory, which outlives its process: the buffer cache's, then those
/// of the op log's image, then those of the cache's table ([`crate::CellConfig::frames_total`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameNo(pub u32);

/// Names an I/O until it is done. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u64);

/// A message from one cell to another. What it says rests on the sender's log up to `lsn`.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct PeerMessage {
    pub lsn: Lsn,
    pub body: PeerBody,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum PeerBody {
    Request(PeerRequest),
    Reply(PeerReply),
    /// Between the cells' shards of the pool of free chunks.
    Pool(warren_pool::PoolMessage<u64>),
}

/// What happens to a cell.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client's slot rang. The driver has copied the line and body once and decoded them; bytes
    /// that are no request never get here (the driver answers EPROTO). Requests of clients that
    /// were not admitted never get here either.
    Request {
        from: SlotRef,
        header: RequestHeader,
        request: Request,
    },
    /// The same, of a request that has ended process after process of this cell: it is answered
    /// EIO, unless one of them has executed it.
    Refuse {
        from: SlotRef,
        header: RequestHeader,
    },
    Peer {
        from: CellId,
        message: PeerMessage,
    },
    Order(Order),
    /// An I/O is done, all of it or not at all.
    IoDone {
        io: IoId,
        result: Result<(), Errno>,
    },
    /// The host could allocate so many blocks.
    HostMeasured {
        blocks: u64,
    },
    /// The time asked for by [`Effect::Wake`] has come (early and needless ticks do no harm).
    Tick,
}

/// What a cell wants done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Answer request `seq` of the slot. The first `payload_len` bytes of its payload lane have
    /// been written through [`Memory`].
    Reply {
        to: SlotRef,
        seq: u32,
        answer: Answer,
        payload_len: u32,
        /// For the inode that the answer leads to.
        granted: Capability,
    },
    /// The slot's request waits for a file lock, for as long as others please. Until it is answered
    /// it is no live task, and counts for no user's share of them.
    AwaitsLock {
        from: SlotRef,
    },
    /// Messages to one peer arrive in order. The driver keeps what finds the inbox full.
    Send {
        to: CellId,
        message: PeerMessage,
    },
    Report(Report),
    /// The peer has sent what no honest one does, which changed nothing here. Take in no more of
    /// it, send it nothing more, and report it with the epoch of its link ([`Report::Suspect`]).
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
    /// Write the frames to blocks `block..`. The cell leaves them alone until it is done.
    Write {
        io: IoId,
        block: BlockNo,
        frames: Vec<FrameNo>,
    },
    /// Write the frames to blocks `block..` so that they are durable when it is done. Nothing is
    /// said of what was written before; after an error that may be lost too, as after a failed
    /// flush.
    WriteThrough {
        io: IoId,
        block: BlockNo,
        frames: Vec<FrameNo>,
    },
    /// Make durable what was written so far. Ends with [`Event::IoDone`].
    Flush {
        io: IoId,
    },
    /// Have the host allocate blocks `block..`, so that no write to them fails for lack of space:
    /// ENOSPC if there is no room. They are of free chunks, and what they hold may be lost.
    Reserve {
        io: IoId,
        block: BlockNo,
        count: u64,
    },
    /// Give the blocks of free chunks back to the host. EOPNOTSUPP if it takes none.
    Discard {
        io: IoId,
        block: BlockNo,
        count: u64,
    },
    /// Find out how much room the host has: [`Event::HostMeasured`].
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
/// its slots. Offsets and lengths are within [`warren_base::limits::PAYLOAD_MAX`].
pub trait Memory {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE];

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE];

    /// Copies `len` bytes at `offset` of the client's payload lane to `at` in the frame. The client
    /// may be changing them; whatever is read is what it wrote.
    fn payload_to_frame(
        &mut self,
        from: SlotRef,
        offset: usize,
        frame: FrameNo,
        at: usize,
        len: usize,
    );

    /// Copies `len` bytes at `at` of the frame to `offset` of the reply's payload lane.
    fn frame_to_payload(
        &mut self,
        frame: FrameNo,
        at: usize,
        to: SlotRef,
        offset: usize,
        len: usize,
    );

    /// Zeroes `len` bytes at `offset` of the reply's payload lane.
    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize);

    /// From now on this request is executed, or none: with what a process died its successor reads
    /// there.
    fn executes(&mut self, _request: Option<(SlotRef, u32)>) {}

    /// Stores into lease word `word` of the client, with release order.
    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64);
}
