//! A fleet of which a test plays the cells: it receives requests and answers them when and as it
//! likes.
//!
//! Client threads run beside the script. A script that ends, or panics, hangs up, so that a client
//! that still waits gets EIO instead of waiting for ever.

use core::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use warren_base::{ClientId, Epoch, Ino};
use warren_proto::slot::{LaneSize, Shape};
use warren_proto::stream::{RecordHeader, StreamPos};
use warren_proto::{Beside, Rules};
use warren_shm::{
    ClientReader, ClientWriter, Doorbell, Load, ReplyHeader, ReplyWriter, SHARD_MAP_LEN, Segment,
    ShardMapWriter, Store, VITALS_LEN, VitalsWriter, WakeFd, WriteMap, map_read_only,
};

use super::*;
use crate::admission::{Admission, Terms};
use crate::connection::Connection;
use crate::control::FLIGHTS_LEN;

/// The time for which a script waits for a request that must come.
const PATIENCE: Duration = Duration::from_secs(20);

const SLOTS: u16 = 3;

/// Where a shard map has its sequence number, which is odd while it is written, and its version.
const MAP_SEQUENCE: usize = 4096;

/// A request as a cell has received it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Received {
    pub slot: SlotNo,
    pub header: RequestHeader,
    pub request: Request,
    pub payload: Vec<u8>,
}

/// A record as a cell has read it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Record {
    pub header: RecordHeader,
    pub request: Request,
    pub capabilities: Capabilities,
    pub payload: Vec<u8>,
}

impl Received {
    /// The inode that the request names.
    pub(super) fn ino(&self) -> Ino {
        self.request.named().0.expect("a request on an inode")
    }
}

/// A cell that a test plays.
pub(super) struct FakeCell {
    cell: CellId,
    requests: ClientReader,
    pub replies: ReplyWriter,
    memory: Segment,
    bell: WakeFd,
    seen: Doorbell,
    /// Slots to look at, as bits.
    due: u64,
    taken: [u32; SLOTS as usize],
}

impl FakeCell {
    /// The next request, once its bell has rung.
    pub(super) fn receive(&mut self) -> Received {
        loop {
            self.due |= self.requests.rung(self.cell, &mut self.seen);
            while self.due != 0 {
                let slot = self.due.trailing_zeros() as u16;
                self.due &= self.due - 1;
                if let Some(received) = self.take(SlotNo(slot)) {
                    return received;
                }
            }
            self.sleep();
        }
    }

    fn sleep(&self) {
        let patience = Timespec::try_from(PATIENCE).expect("a short time");
        let mut fds = [PollFd::new(&self.bell, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&patience)).expect("poll");
        assert!(ready > 0, "no bell has rung");
        self.bell.drain();
    }

    fn take(&mut self, slot: SlotNo) -> Option<Received> {
        let last = &mut self.taken[usize::from(slot.0)];
        let mut body = Vec::new();
        let header = self.requests.take(self.cell, slot, *last, &mut body);
        let mut header = header.expect("a sound request")?;
        *last = header.seq;
        let request = Request::from_body(&body, &mut header.capabilities).expect("a request");
        let mut payload = vec![0; header.payload_len as usize];
        self.requests.copy_payload(slot, 0, &mut payload);
        Some(Received { slot, header, request, payload })
    }

    /// No request has come, whether or not a bell has rung.
    pub(super) fn has_none(&self) -> bool {
        (0..SLOTS)
            .map(SlotNo)
            .all(|slot| !self.requests.waits(self.cell, slot, self.taken[usize::from(slot.0)]))
    }

    /// Looks at the stream: its records must not change any more.
    pub(super) fn fix_records(&self) -> StreamPos {
        let end = self.requests.stream_end(self.cell);
        self.replies.fix_records(end);
        end
    }

    /// The next record of the client's stream, and where it ends.
    pub(super) fn read_record(&self) -> Option<(Record, StreamPos)> {
        let (at, end) = (self.replies.executed(), self.fix_records());
        if at == end {
            return None;
        }
        let mut body = Vec::new();
        let read = self.requests.read_record(self.cell, at, end, &mut body);
        let (header, begin) = read.expect("a sound record");
        let mut capabilities = Capabilities::default();
        let request = Request::from_body(&body, &mut capabilities).expect("a request");
        let mut payload = vec![0; header.payload_len as usize];
        let place = begin.advance(header.payload_at());
        self.requests.copy_record_payload(self.cell, place, 0, &mut payload);
        Some((
            Record { header, request, capabilities, payload },
            begin.advance(header.record_len()),
        ))
    }

    /// Whether the client has woken the cell since this was last asked.
    pub(super) fn was_woken(&self) -> bool {
        self.bell.drain()
    }

    pub(super) fn answer(&self, to: &Received, answer: Answer) {
        self.send(to.slot, to.header.seq, answer, Capability::NONE, &[], b"");
    }

    /// An answer that names the request: its inode is an offset.
    pub(super) fn echo(&self, to: &Received) {
        self.answer(to, Ok(Reply::Offset(to.ino().0)));
    }

    /// The same, as if the cell did not see that the client sleeps: it looks at another client.
    pub(super) fn echo_without_waking(&self, to: &Received, other: &Self) {
        let mut body = Vec::new();
        Reply::Offset(to.ino().0).encode_body(&Beside::default(), &mut body);
        let header = ReplyHeader { errno: None, payload_len: 0 };
        self.replies.reply(&other.requests, to.slot, to.header.seq, header, &body);
    }

    /// An answer whose body is these bytes.
    pub(super) fn send_bytes(&self, slot: SlotNo, seq: u32, body: &[u8]) {
        let header = ReplyHeader { errno: None, payload_len: 0 };
        self.replies.reply(&self.requests, slot, seq, header, body);
    }

    pub(super) fn send(
        &self,
        slot: SlotNo,
        seq: u32,
        answer: Answer,
        granted: Capability,
        changed: &[(Attr, Lease)],
        payload: &[u8],
    ) {
        let mut body = Vec::new();
        let errno = match answer {
            Ok(reply) => {
                let changed = changed.to_vec();
                let beside = Beside { granted, changed, ..Beside::default() };
                reply.encode_body(&beside, &mut body);
                None
            }
            Err(errno) => Some(errno),
        };
        self.replies.write_payload(slot, 0, payload);
        let header = ReplyHeader { errno, payload_len: payload.len() as u32 };
        self.replies.reply(&self.requests, slot, seq, header, &body);
    }

    /// The cell ends, and a successor continues with its memory: it knows which requests have their
    /// answers, and looks at all slots.
    pub(super) fn succeed(&mut self) {
        let memory = self.memory.map().clone();
        self.replies = ReplyWriter::new(memory, shape(), self.cell, Epoch(2)).expect("replies");
        assert!(self.replies.is_inherited());
        self.requests.rung(self.cell, &mut self.seen);
        self.taken = core::array::from_fn(|slot| self.replies.last_seq(SlotNo(slot as u16)));
        self.due = u64::MAX >> (64 - SLOTS);
    }
}

/// The fleet's side.
pub(super) struct Fleet {
    pub cells: Vec<FakeCell>,
    pub map: ShardMapWriter,
    of_map: WriteMap,
    socket: OwnedFd,
    admission: Admission,
}

pub(super) fn shape() -> Shape {
    Shape::new(SLOTS, LaneSize::Small).expect("legal")
}

fn duplicate(fd: impl AsFd) -> OwnedFd {
    fcntl_dupfd_cloexec(fd, 0).expect("a descriptor")
}

fn fake_cell(cell: CellId, requests: &Segment, fds: &mut Vec<OwnedFd>) -> FakeCell {
    let memory = Segment::create("warren-test", shape().cell_segment_len()).expect("memory");
    let of_vitals = Segment::create("warren-test", VITALS_LEN).expect("memory");
    let bell = WakeFd::new().expect("a bell");
    let replies = ReplyWriter::new(memory.map().clone(), shape(), cell, Epoch(1));
    drop(VitalsWriter::new(of_vitals.map().clone(), cell, Epoch(1)).expect("vitals"));
    fds.extend([
        memory.read_only_fd().expect("a descriptor"),
        of_vitals.read_only_fd().expect("a descriptor"),
        duplicate(&bell),
    ]);
    let requests = map_read_only(requests.fd()).expect("a map");
    FakeCell {
        cell,
        requests: ClientReader::new(requests, shape()).expect("requests"),
        replies: replies.expect("replies"),
        memory,
        bell,
        seen: Doorbell::default(),
        due: 0,
        taken: [0; SLOTS as usize],
    }
}

impl Fleet {
    /// A fleet whose shards belong to these cells, by map 1.
    pub(super) fn new(cells: u16, owners: &[u16]) -> Self {
        let mut fleet = Self::without_map(cells);
        fleet.publish(1, owners);
        fleet
    }

    pub(super) fn without_map(cells: u16) -> Self {
        let len = shape().client_segment_len(usize::from(cells));
        let requests = Segment::create("warren-test", len).expect("memory");
        // The client stamps the segment as its own; cells open it later.
        drop(ClientWriter::new(requests.map().clone(), shape()).expect("requests"));
        let map = Segment::create("warren-test", SHARD_MAP_LEN).expect("memory");
        let writer = ShardMapWriter::new(map.map().clone()).expect("a map");
        let of_map = map.map().clone();
        let mut fds = vec![duplicate(requests.fd()), map.read_only_fd().expect("a descriptor")];
        let of_cells = (0..cells).map(|cell| fake_cell(CellId(cell), &requests, &mut fds));
        let of_cells = of_cells.collect();
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (socket, end) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("sockets");
        let flights = Segment::create("warren-test", FLIGHTS_LEN).expect("memory").into_parts().0;
        let terms = Terms {
            pool: (*b"pool").into(),
            client: ClientId(7),
            shape: shape(),
            rules: Rules::empty(),
            cells,
            shards: 2,
            dense_inos: true,
        };
        let admission = Admission { terms, socket: end, flights, segments: fds };
        Self { cells: of_cells, map: writer, of_map, socket, admission }
    }

    pub(super) fn publish(&mut self, version: u32, owners: &[u16]) {
        self.map.publish(&warren_shm::ShardMap {
            version: MapVersion(version),
            owners: owners.iter().copied().map(CellId).collect(),
            epochs: vec![Epoch(1); self.cells.len()],
        });
    }

    /// Begins to write a map of this version, which takes a while.
    pub(super) fn begin_map(&self, version: u32) {
        let sequence = self.of_map.load32(MAP_SEQUENCE, Ordering::Relaxed);
        self.of_map.store32(MAP_SEQUENCE, sequence | 1, Ordering::Relaxed);
        self.of_map.store32(MAP_SEQUENCE + 4, version, Ordering::Relaxed);
    }

    /// A process of the client; a further one is a successor of the ones before.
    pub(super) fn connect(&self) -> Connection {
        let (terms, fds) = self.admission.parts();
        let fds = fds.into_iter().map(duplicate).collect();
        Admission::from_parts(&terms, fds).expect("an admission").open().expect("a connection")
    }

    pub(super) fn hang_up(&self) {
        shutdown(&self.socket, Shutdown::Both).expect("shutdown");
    }

    /// Runs the client in a thread of its own, and the script of the cells in this one. Returns the
    /// client's result.
    pub(super) fn serve<T: core::marker::Send>(
        &mut self,
        client: impl FnOnce() -> T + core::marker::Send,
        script: impl FnOnce(&mut Self),
    ) -> T {
        let hang_up = HangUp(duplicate(&self.socket));
        let served = thread::scope(|scope| {
            let client = scope.spawn(client);
            let hang_up = hang_up;
            script(self);
            drop(hang_up);
            client.join()
        });
        served.expect("the client")
    }
}

/// Hangs up, also if a script panics.
struct HangUp(OwnedFd);

impl Drop for HangUp {
    fn drop(&mut self) {
        shutdown(&self.0, Shutdown::Both).expect("shutdown");
    }
}
