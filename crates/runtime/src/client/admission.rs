//! An admission: the terms and the descriptors of a client, which can be kept and handed to another
//! process.
//!
//! It lasts as long as one copy of its socket is open, in whichever process. So a process that
//! serves nothing can hold the admission of a process that may die, and the successor continues
//! with it: [`super::Connection`] and [`super::Slot`] keep nothing that is not in the memory behind
//! these descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use warren_base::limits::{CELLS_MAX, SLOTS_MAX};
use warren_base::{ClientId, Errno};
use warren_proto::Wire;
use warren_proto::slot::{LaneSize, Shape};
use warren_shm::Segment;

use super::control;
use crate::error::{FleetError, system};
use crate::identity;
use crate::limit;
use crate::link::{Link, Received, Trust, Wait};
use crate::message::{
    CONTROL_VERSION, ControlReply, ControlRequest, FLIGHTS_LEN, IN_USE_MAX, Leave, OsBytes,
    path_of, welcome_descriptors,
};

/// Descriptors of an admission besides those of a `Welcome`: socket and flights.
const OWN_DESCRIPTORS: usize = 2;

/// How a client wants to be admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// Name uid and gid with every request; the client has checked access. Allowed to root and the
    /// fleet's own user.
    pub front: bool,
    /// Requests in flight at a time, `1..=SLOTS_MAX`.
    pub slots: u16,
    /// How much data a request can carry, and how many leases the client can hold.
    pub lanes: LaneSize,
}

impl ConnectOptions {
    /// For a program that makes small calls, in a few threads at a time.
    pub const SMALL: Self = Self { front: false, slots: 4, lanes: LaneSize::Small };
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { front: false, slots: SLOTS_MAX as u16, lanes: LaneSize::Large }
    }
}

/// What the fleet has granted, and to which client.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(super) struct Terms {
    pub pool: OsBytes,
    pub client: ClientId,
    pub shape: Shape,
    pub cells: u16,
    pub shards: u16,
}

/// A client's place in a fleet, whether or not a process uses it now.
#[derive(Debug)]
pub struct Admission {
    pub(super) terms: Terms,
    /// The fleet expels the client when the last copy of this is closed.
    pub(super) socket: OwnedFd,
    /// The segment that records the last call of each slot: see [`crate::InFlight`].
    pub(super) flights: OwnedFd,
    /// In the order of the `Welcome`.
    pub(super) segments: Vec<OwnedFd>,
    is_roots: bool,
}

impl Admission {
    /// Applies to the fleet that serves the pool.
    pub fn ask(pool: &Path, options: &ConnectOptions) -> Result<Self, FleetError> {
        Self::ask_mounted(pool, options, Path::new(""))
    }

    /// The same for a front, with the path of its mount.
    pub fn ask_mounted(
        pool: &Path,
        options: &ConnectOptions,
        mounted: &Path,
    ) -> Result<Self, FleetError> {
        use std::os::unix::ffi::OsStrExt;
        if options.front {
            limit::require(|| format!("{}: a mount", pool.display()), limit::of_front())?;
        }
        let request = ControlRequest::Enter {
            version: CONTROL_VERSION,
            front: options.front,
            slots: options.slots,
            payload: options.lanes.payload() as u32,
            mounted: mounted.as_os_str().as_bytes().into(),
        };
        let (socket, is_roots, reply, segments) =
            control::exchange(pool, control::reply_deadline(), |call| {
                let (reply, segments) = control::ask(&mut call.link, &request, call.until)?;
                let socket = call.link.share().map_err(system("keep an admission"))?.into_fd();
                let host = identity::of_peer(&socket).map_err(system("identify the fleet"))?;
                Ok((socket, host.uid == 0 && call.pool.is_roots(), reply, segments))
            })?;
        let ControlReply::Welcome { client, shape, cells, shards } = reply else {
            return Err(malformed());
        };
        let (flights, _) = Segment::create("warren-flights", FLIGHTS_LEN)?.into_parts();
        let pool = pool.as_os_str().as_bytes().into();
        let terms = Terms { pool, client, shape, cells, shards };
        Self { terms, socket, flights, segments, is_roots }.checked()
    }

    pub fn pool(&self) -> PathBuf {
        path_of(&self.terms.pool)
    }

    /// The next message of the fleet to the process that holds a front's admission. `None` if it is
    /// not for that process, for example another `Welcome` from a supervisor that takes over.
    pub fn receive_leave(&self) -> Option<(u32, Leave)> {
        let mut link = Link::new(self.socket.try_clone().ok()?, Trust::Host);
        let Ok(Received::Packet(packet)) = link.receive(Wait::No) else { return None };
        match ControlReply::from_bytes(&packet.bytes) {
            Ok(ControlReply::Leave { number, how }) => Some((number, how)),
            _ => None,
        }
    }

    /// Answers a `Leave` other than by closing the connection.
    pub fn send_in_use(&self, number: u32, by: &str) {
        let by = by.as_bytes()[..by.len().min(IN_USE_MAX)].into();
        let answer = ControlRequest::InUse { version: CONTROL_VERSION, number, by };
        let Ok(socket) = self.socket.try_clone() else { return };
        // A fleet that does not take it in time treats the mount as one that does not answer.
        let _ = Link::new(socket, Trust::Host).send(&answer.to_bytes(), &[], Wait::No);
    }

    /// Whether root alone controls the contents of the pool: root runs the fleet, and no other user
    /// may write to the pool. Only the process that was admitted knows it.
    pub fn is_roots(&self) -> bool {
        self.is_roots
    }

    /// The socket hangs up when the fleet is gone. Messages on it are for [`Self::receive_leave`].
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The parts from which [`Self::from_parts`] makes the admission again in another process.
    pub fn parts(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let own = [self.socket.as_fd(), self.flights.as_fd()];
        let fds = own.into_iter().chain(self.segments.iter().map(AsFd::as_fd));
        (self.terms.to_bytes(), fds.collect())
    }

    pub fn from_parts(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self, FleetError> {
        let terms = Terms::from_bytes(bytes).map_err(|_| malformed())?;
        let mut fds = fds.into_iter();
        let socket = fds.next().ok_or_else(malformed)?;
        let flights = fds.next().ok_or_else(malformed)?;
        Self { terms, socket, flights, segments: fds.collect(), is_roots: false }.checked()
    }

    fn checked(self) -> Result<Self, FleetError> {
        let cells = usize::from(self.terms.cells);
        if !(1..=CELLS_MAX).contains(&cells) || self.segments.len() != welcome_descriptors(cells) {
            return Err(malformed());
        }
        Ok(self)
    }
}

fn malformed() -> FleetError {
    FleetError::Refused(Errno::EPROTO)
}

const _: () = assert!(
    OWN_DESCRIPTORS + welcome_descriptors(CELLS_MAX) <= crate::link::DESCRIPTORS_MAX,
    "an admission fits a packet"
);
