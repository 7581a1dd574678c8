//! An admission: the terms and the descriptors of a client, which can be kept and handed to another
//! process.
//!
//! It lasts as long as one copy of its socket is open, in whichever process. So a process that
//! serves nothing can hold the admission of a process that may die, and the successor continues
//! with it: [`crate::Connection`] and [`crate::Slot`] keep nothing that is not in the memory behind
//! these descriptors.

use alloc::vec;
use alloc::vec::Vec;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{fcntl_dupfd_cloexec, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};
use rustix::time::Timespec;
use warren_base::limits::{CELLS_MAX, SLOTS_MAX};
use warren_base::{ClientId, Errno, InodeNumbers, Instant};
use warren_proto::slot::{LaneSize, Shape};
use warren_proto::{Rules, Wire};
use warren_shm::{Segment, now};

use crate::control::{
    CONTROL_VERSION, ControlReply, ControlRequest, FLIGHTS_LEN, OsBytes, welcome_descriptors,
};
use crate::error::TransportError;
use crate::packet::{self, DESCRIPTORS_MAX, INLINE_MAX, TAG_INLINE};

/// Descriptors of an admission besides those of a `Welcome`: socket and flights.
const OWN_DESCRIPTORS: usize = 2;

/// Where the bells of the cells are among the descriptors of a `Welcome`.
const FIRST_BELL: usize = 4;
const DESCRIPTORS_OF_A_CELL: usize = 3;

const _: () = assert!(welcome_descriptors(2) == FIRST_BELL + 1 + DESCRIPTORS_OF_A_CELL);

/// The options of a client's admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// Name uid and gid with every request; the client has checked access. Allowed to root and the
    /// fleet's own user.
    pub front: bool,
    /// Requests in flight at a time, `1..=SLOTS_MAX`.
    pub slots: u16,
    /// The size of a request's data, and the number of leases that the client can hold.
    pub lanes: LaneSize,
    /// The options of the mount that it serves or uses.
    pub rules: Rules,
}

impl ConnectOptions {
    /// For a program that makes small calls, in a few threads at a time.
    pub const SMALL: Self =
        Self { front: false, slots: 4, lanes: LaneSize::Small, rules: Rules::empty() };

    /// The request for admission. `mounted` is the path of a front's mount.
    pub fn request(&self, mounted: &[u8]) -> ControlRequest {
        ControlRequest::Enter {
            version: CONTROL_VERSION,
            front: self.front,
            slots: self.slots,
            payload: self.lanes.payload() as u32,
            rules: self.rules,
            mounted: mounted.into(),
        }
    }
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let (slots, rules) = (SLOTS_MAX as u16, Rules::empty());
        Self { front: false, slots, lanes: LaneSize::Large, rules }
    }
}

/// The terms that the fleet has granted, and the client that has them.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct Terms {
    pub pool: OsBytes,
    pub client: ClientId,
    pub shape: Shape,
    pub rules: Rules,
    pub cells: u16,
    pub shards: u16,
    pub dense_inos: bool,
}

impl Terms {
    pub(crate) const fn inode_numbers(&self) -> InodeNumbers {
        // No pool has none. The fleet's word is checked, because the client need not trust it.
        let shards = if self.shards == 0 { 1 } else { self.shards };
        InodeNumbers::new(self.dense_inos, shards as u32)
    }
}

/// A client's place in a fleet, whether or not a process uses it now.
#[derive(Debug)]
pub struct Admission {
    pub(crate) terms: Terms,
    /// The fleet expels the client when the last copy of this is closed.
    pub(crate) socket: OwnedFd,
    /// The segment that records the last call of each slot: see [`crate::InFlight`].
    pub(crate) flights: OwnedFd,
    /// In the order of the `Welcome`.
    pub(crate) segments: Vec<OwnedFd>,
}

impl Admission {
    /// Applies over a socket that is connected to the fleet of the pool.
    pub fn ask(
        pool: &[u8],
        options: &ConnectOptions,
        socket: OwnedFd,
        until: Instant,
    ) -> Result<Self, TransportError> {
        let system = |doing| move |errno| TransportError::System { doing, errno };
        let request = options.request(&[]).to_bytes();
        packet::send(&socket, TAG_INLINE, &request, &[], SendFlags::empty())
            .map_err(system("apply for admission"))?;
        let left = Timespec::try_from(until - now()).ok();
        let mut ready = [PollFd::new(&socket, PollFlags::IN)];
        let doing = "receive the fleet's answer";
        if retry_on_intr(|| poll(&mut ready, left.as_ref())).map_err(system(doing))? == 0 {
            return Err(system(doing)(rustix::io::Errno::TIMEDOUT));
        }
        let mut buffer = vec![0; INLINE_MAX + 1];
        let (len, fds) = packet::receive(&socket, &mut buffer, true, RecvFlags::DONTWAIT)
            .map_err(system(doing))?;
        let [TAG_INLINE, body @ ..] = &buffer[..len] else { return Err(TransportError::Malformed) };
        let reply = ControlReply::from_bytes(body).map_err(|_| TransportError::Malformed)?;
        Self::welcomed(pool, reply, socket, fds)
    }

    /// The admission that a reply with these descriptors grants.
    pub fn welcomed(
        pool: &[u8],
        reply: ControlReply,
        socket: OwnedFd,
        segments: Vec<OwnedFd>,
    ) -> Result<Self, TransportError> {
        let pool = pool.into();
        let terms = match reply {
            ControlReply::Welcome { client, shape, rules, cells, shards, dense_inos } => {
                Terms { pool, client, shape, rules, cells, shards, dense_inos }
            }
            ControlReply::Refused { errno, .. } => {
                let errno = Errno::from_raw(errno).unwrap_or(Errno::EPROTO);
                return Err(TransportError::Refused(errno));
            }
            _ => return Err(TransportError::Malformed),
        };
        let (flights, _) = Segment::create("warren-flights", FLIGHTS_LEN)?.into_parts();
        Self { terms, socket, flights, segments }.checked()
    }

    /// The path of the pool, as the process that was admitted has named it.
    pub fn pool(&self) -> &[u8] {
        &self.terms.pool
    }

    /// The inode numbers that programs see.
    pub const fn inode_numbers(&self) -> InodeNumbers {
        self.terms.inode_numbers()
    }

    /// The rules for the client's requests: those that it has asked for, and perhaps more.
    pub const fn rules(&self) -> Rules {
        self.terms.rules
    }

    /// The socket hangs up when the fleet is gone.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Moves the descriptors that stay open once the admission is open, the socket and the cells'
    /// bells, to the lowest free numbers from `first` on. Returns the numbers.
    pub fn move_descriptors(&mut self, first: RawFd) -> Result<Vec<RawFd>, TransportError> {
        let bells = self.segments.iter_mut().skip(FIRST_BELL).step_by(DESCRIPTORS_OF_A_CELL);
        let mut numbers = Vec::new();
        for fd in bells.chain([&mut self.socket]) {
            let system = |errno| TransportError::System { doing: "move a descriptor", errno };
            *fd = fcntl_dupfd_cloexec(&*fd, first).map_err(system)?;
            numbers.push(fd.as_raw_fd());
        }
        Ok(numbers)
    }

    /// The parts from which [`Self::from_parts`] makes the admission again in another process.
    pub fn parts(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let own = [self.socket.as_fd(), self.flights.as_fd()];
        let fds = own.into_iter().chain(self.segments.iter().map(AsFd::as_fd));
        (self.terms.to_bytes(), fds.collect())
    }

    pub fn from_parts(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self, TransportError> {
        let terms = Terms::from_bytes(bytes).map_err(|_| TransportError::Malformed)?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(TransportError::Malformed);
        let (socket, flights) = (next()?, next()?);
        Self { terms, socket, flights, segments: fds.collect() }.checked()
    }

    fn checked(self) -> Result<Self, TransportError> {
        let cells = usize::from(self.terms.cells);
        if !(1..=CELLS_MAX).contains(&cells) || self.segments.len() != welcome_descriptors(cells) {
            return Err(TransportError::Malformed);
        }
        Ok(self)
    }
}

const _: () = assert!(
    OWN_DESCRIPTORS + welcome_descriptors(CELLS_MAX) <= DESCRIPTORS_MAX,
    "an admission fits a packet"
);
