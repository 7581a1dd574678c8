//! The fleet's socket and a client's memory as bytes, without a library that keeps to rules.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as OsError;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};
use rustix::time::Timespec;
use warren_base::limits::{BODY_MAX, PAYLOAD_MAX, SLOTS_MAX};
use warren_base::{CellId, ClientId, Ino, SlotNo};
use warren_proto::slot::request::{GID, INLINE, INLINE_MAX, MAP_VERSION, PAYLOAD_LEN, POSTED, UID};
use warren_proto::slot::{DOORBELLS, LINE, LINES, Posted, Shape};
use warren_proto::{Answer, Beside, Capabilities, Capability, Reply, Request, Wire};
use warren_shm::{
    ReplyReader, ShardMap, ShardMapReader, Store, VitalsReader, WakeFd, WriteMap, map_read_only,
    map_writable,
};

/// The kernel's `SCM_MAX_FD`.
const DESCRIPTORS_MAX: usize = 253;
const REPLY_MAX: usize = 64 * 1024;

/// Inodes whose capabilities a client keeps.
const REACHED_MAX: usize = 4096;

/// The time in which a fleet under attack must answer at its socket.
const RESPONSE_MAX: Duration = Duration::from_secs(20);

/// First byte of a packet whose body is in it, and of one whose body is in a memfd beside it.
pub(super) const INLINE_PACKET: u8 = 0;
pub(super) const MEMFD_PACKET: u8 = 1;

/// First byte of a request to the supervisor, and of an answer.
pub(super) const ADMIT: u8 = 1;
pub(super) const STATUS: u8 = 2;
const STOP: u8 = 3;
const REFUSED: u8 = 1;
const WELCOME: u8 = 2;

/// A connection to the fleet's socket.
pub(super) struct Connection(OwnedFd);

/// The supervisor's answer.
pub(super) enum Response {
    Refused {
        version: u32,
        errno: i32,
    },
    Welcome(Box<RawClient>),
    Other,
    /// The supervisor closed the connection, or took too long.
    Nothing,
}

impl Connection {
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let address = SocketAddrUnix::new(socket).context("no address")?;
        let fd =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context("no socket")?;
        connect(&fd, &address).context("the fleet is gone")?;
        Ok(Self(fd))
    }

    /// Sends a packet whole, if the fleet takes it now.
    pub(super) fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), OsError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds[..fds.len().min(DESCRIPTORS_MAX)]));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[std::io::IoSlice::new(packet)], &mut control, flags).map(drop)
    }

    /// The answer to the request.
    pub(super) fn response(self) -> Result<Response> {
        self.response_within(RESPONSE_MAX)
    }

    /// The answer if it comes at once.
    pub(super) fn response_soon(self) -> Result<Response> {
        self.response_within(Duration::from_millis(1))
    }

    fn response_within(self, patience: Duration) -> Result<Response> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let patience = Timespec::try_from(patience).context("patience")?;
        if !poll(&mut fds, Some(&patience)).is_ok_and(|ready| ready > 0) {
            return Ok(Response::Nothing);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = vec![0; REPLY_MAX];
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let Ok(message) = recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        else {
            return Ok(Response::Nothing);
        };
        let rights = |message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        };
        let fds: Vec<OwnedFd> = control.drain().filter_map(rights).flatten().collect();
        match &bytes[..message.bytes] {
            [] => Ok(Response::Nothing),
            [INLINE_PACKET, REFUSED, rest @ ..] if rest.len() == 8 => Ok(Response::Refused {
                version: u32::from_le_bytes(rest[..4].try_into()?),
                errno: i32::from_le_bytes(rest[4..].try_into()?),
            }),
            [INLINE_PACKET, WELCOME, rest @ ..] if rest.len() == 16 => {
                let client = ClientId(u32::from_le_bytes(rest[..4].try_into()?));
                let shape = Shape::from_bytes(&rest[4..10])?;
                // Its rules are between them, and the kind of inode numbers is behind the shards.
                let cells = u16::from_le_bytes(rest[11..13].try_into()?);
                let client = RawClient::open(self.0, (client, shape), cells, fds)?;
                Ok(Response::Welcome(Box::new(client)))
            }
            _ => Ok(Response::Other),
        }
    }
}

/// The bytes of a request for admission.
pub(super) fn admission_request(version: u32, front: bool, slots: u16) -> Vec<u8> {
    let mut packet = vec![INLINE_PACKET, ADMIT];
    packet.extend(version.to_le_bytes());
    packet.push(u8::from(front));
    packet.extend(slots.to_le_bytes());
    packet.extend((PAYLOAD_MAX as u32).to_le_bytes());
    // Without rules and a mount.
    packet.push(0);
    packet.extend(0_u32.to_le_bytes());
    packet
}

/// The bytes of a forced request to stop the fleet.
pub(super) fn stop_request(version: u32) -> Vec<u8> {
    [&[INLINE_PACKET, STOP][..], &version.to_le_bytes(), &[1, 0, 0]].concat()
}

/// A client's memory, to be written without restraint.
pub(super) struct RawClient {
    socket: OwnedFd,
    client: ClientId,
    pub shape: Shape,
    pub cells: u16,
    map: ShardMap,
    /// As many as the fleet granted.
    pub slots: u16,
    pub memory: WriteMap,
    pub replies: Vec<ReplyReader>,
    bells: Vec<WakeFd>,
    vitals: Vec<VitalsReader>,
    /// Wakes only cells that sleep, as the client library does.
    pub is_polite: Cell<bool>,
    /// The capabilities that answers have contained.
    reached: RefCell<BTreeMap<Ino, Capability>>,
    /// Requests sent, answers read.
    pub requests: Cell<u64>,
    pub answers: Cell<u64>,
}

/// A request's bytes with these capabilities.
pub(super) fn body(request: &Request, capabilities: Capabilities) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode_body(capabilities, &mut bytes);
    bytes
}

/// The fields of a request line.
#[derive(Clone, Copy, Default)]
pub(super) struct Line {
    pub seq: u32,
    pub map_version: u32,
    pub uid: u32,
    pub gid: u32,
    pub payload_len: u32,
    /// Instead of the body's own length.
    pub body_len: Option<u16>,
    /// Instead of the cell whose doorbell rings.
    pub addressee: Option<u16>,
}

impl RawClient {
    fn open(
        socket: OwnedFd,
        (client, shape): (ClientId, Shape),
        cells: u16,
        fds: Vec<OwnedFd>,
    ) -> Result<Self> {
        ensure!(fds.len() == 2 + 3 * usize::from(cells), "{} descriptors", fds.len());
        let mut fds = fds.into_iter();
        let mut next = || fds.next().context("a descriptor too few");
        let memory = map_writable(next()?.as_fd())?;
        let map = ShardMapReader::new(map_read_only(next()?.as_fd())?)?.read()?;
        let (mut replies, mut vitals, mut bells) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..cells {
            let segment = next()?;
            ensure!(map_writable(segment.as_fd()).is_err(), "a cell's memory is writable");
            replies.push(ReplyReader::new(map_read_only(segment.as_fd())?, shape)?);
            let segment = next()?;
            ensure!(map_writable(segment.as_fd()).is_err(), "a cell's vitals are writable");
            vitals.push(VitalsReader::new(map_read_only(segment.as_fd())?)?);
            bells.push(WakeFd::from_fd(next()?));
        }
        let (requests, answers) = (Cell::new(0), Cell::new(0));
        let (reached, is_polite) = (RefCell::default(), Cell::new(false));
        Ok(Self {
            socket,
            client,
            shape,
            cells,
            map,
            slots: shape.slots() as u16,
            memory,
            replies,
            bells,
            vitals,
            is_polite,
            reached,
            requests,
            answers,
        })
    }

    pub(super) fn line(slot: SlotNo) -> usize {
        LINES + usize::from(slot.0) * LINE
    }

    pub(super) fn area(slot: SlotNo) -> usize {
        Shape::large(1).request_area(slot)
    }

    /// Writes a request, legal or not, and rings the doorbell.
    pub(super) fn submit(&self, cell: CellId, slot: SlotNo, line: &Line, body: &[u8]) {
        let at = Self::line(slot);
        let body = &body[..body.len().min(BODY_MAX)];
        let body_at = if body.len() <= INLINE_MAX { at + INLINE } else { Self::area(slot) };
        self.memory.copy_in(body_at, body);
        self.memory.store32(at + MAP_VERSION, line.map_version, Relaxed);
        self.memory.store32(at + UID, line.uid, Relaxed);
        self.memory.store32(at + GID, line.gid, Relaxed);
        self.memory.store32(at + PAYLOAD_LEN, line.payload_len, Relaxed);
        let body_len = line.body_len.unwrap_or(body.len() as u16);
        let addressee = line.addressee.unwrap_or(cell.0);
        let posted = Posted { seq: line.seq, cell: addressee, body_len };
        self.memory.store64(at + POSTED, posted.pack(), Release);
        self.requests.set(self.requests.get() + 1);
        self.ring(cell, 1 << slot.0);
    }

    /// Flips bits of a cell's doorbell, and wakes the cell whether it sleeps or not, unless it is
    /// polite.
    pub(super) fn ring(&self, cell: CellId, bits: u64) {
        self.memory.xor64(DOORBELLS + usize::from(cell.0) * LINE, bits, Release);
        let at = usize::from(cell.0);
        let (bell, vitals, replies) = (&self.bells[at], &self.vitals[at], &self.replies[at]);
        if self.is_polite.get() {
            bell.call_if_unseen(self.client, vitals, replies);
        } else {
            bell.call(self.client);
        }
    }

    /// The answer to the slot's request, if it comes in time.
    pub(super) fn answer(
        &self,
        cell: CellId,
        slot: SlotNo,
        seq: u32,
        patience: Duration,
    ) -> Option<Answer> {
        const LOOK_EVERY: Duration = Duration::from_micros(50);
        let replies = &self.replies[usize::from(cell.0)];
        let deadline = Instant::now() + patience;
        while !replies.answered(slot, seq) {
            if Instant::now() >= deadline || self.is_over() {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let mut body = Vec::new();
        let header = replies.take(slot, seq, &mut body).ok()??;
        self.answers.set(self.answers.get() + 1);
        match header.errno {
            Some(errno) => Some(Err(errno)),
            None => {
                let mut beside = Beside::default();
                let reply = Reply::from_body(&body, &mut beside).ok()?;
                self.learn(&reply, beside.granted);
                Some(Ok(reply))
            }
        }
    }

    fn learn(&self, reply: &Reply, granted: Capability) {
        let ino = match reply {
            Reply::Entry(entry) | Reply::Created { entry, .. } => entry.ino,
            Reply::Listing { parent, .. } => *parent,
            _ => return,
        };
        let mut reached = self.reached.borrow_mut();
        if !granted.is_none() && reached.len() < REACHED_MAX {
            reached.insert(ino, granted);
        }
    }

    /// The capability for an inode, if it was reached.
    pub(super) fn capability(&self, ino: Ino) -> Capability {
        self.reached.borrow().get(&ino).copied().unwrap_or_default()
    }

    /// Whether a walk has reached the inode.
    pub(super) fn has_reached(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || !self.capability(ino).is_none()
    }

    /// The request with the capabilities that it needs.
    pub(super) fn body(&self, request: &Request) -> Vec<u8> {
        let (inode, other) = request.named();
        let of = |ino: Option<Ino>| ino.map_or(Capability::NONE, |ino| self.capability(ino));
        body(request, Capabilities { inode: of(inode), other: of(other) })
    }

    /// Whether the fleet has closed the connection.
    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// The cell that a request belongs to, or any cell if it belongs to none.
    pub(super) fn owner(&self, request: &Request) -> CellId {
        request.shard().and_then(|shard| self.map.owner(shard)).unwrap_or(CellId(0))
    }

    /// Sends a request by the rules. `None` if there is no answer.
    pub(super) fn ask(&self, slot: SlotNo, seq: &mut u32, request: &Request) -> Option<Answer> {
        self.ask_with(slot, seq, request, 0)
    }

    pub(super) fn ask_with(
        &self,
        slot: SlotNo,
        seq: &mut u32,
        request: &Request,
        payload_len: u32,
    ) -> Option<Answer> {
        self.ask_body(slot, seq, request, &self.body(request), payload_len)
    }

    /// Sends the request as these bytes.
    pub(super) fn ask_body(
        &self,
        slot: SlotNo,
        seq: &mut u32,
        request: &Request,
        body: &[u8],
        payload_len: u32,
    ) -> Option<Answer> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let cell = self.owner(request);
        *seq = seq.wrapping_add(1);
        let line = Line { seq: *seq, payload_len, ..Line::default() };
        self.submit(cell, slot, &line, body);
        self.answer(cell, slot, *seq, PATIENCE)
    }

    /// The first bytes of a reply's payload.
    pub(super) fn payload(&self, cell: CellId, slot: SlotNo, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.replies[usize::from(cell.0)].copy_payload(slot, 0, &mut bytes);
        bytes
    }
}

/// The protocol version of the fleet, which is in its refusal of another version. `None` if it is
/// too busy.
pub(super) fn version(socket: &Path) -> Result<Option<u32>> {
    let connection = Connection::connect(socket)?;
    let _sent = connection.send(&admission_request(0, false, 1), &[]);
    match connection.response()? {
        Response::Refused { version, .. } => Ok(Some(version)),
        _ => Ok(None),
    }
}

/// Requests admission with so many slots, or fewer; `None` if there is no room.
pub(super) fn be_admitted(socket: &Path, slots: u16) -> Result<Option<RawClient>> {
    assert!((1..=SLOTS_MAX).contains(&usize::from(slots)));
    let Some(version) = version(socket)? else { return Ok(None) };
    let connection = Connection::connect(socket)?;
    let _sent = connection.send(&admission_request(version, false, slots), &[]);
    match connection.response()? {
        Response::Welcome(admission) => Ok(Some(*admission)),
        Response::Refused { .. } | Response::Nothing => Ok(None),
        Response::Other => bail!("an answer to another question"),
    }
}
