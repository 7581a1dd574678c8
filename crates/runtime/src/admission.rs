//! An admission as things that can be kept and handed on: its terms and its descriptors.
//!
//! It lasts as long as one copy of its socket is open, whichever process has it. So a process that
//! serves nothing can hold the admission of one that may die, and the next one goes on with it:
//! [`Connection`] and [`crate::Slot`] keep nothing that is not in the memory behind these descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use warren_base::limits::{CELLS_MAX, SLOTS_MAX};
use warren_base::{ClientId, Errno};
use warren_proto::Wire;
use warren_shm::Segment;

use crate::connection::{ConnectOptions, Connection};
use crate::door;
use crate::error::{FleetError, system};
use crate::identity;
use crate::launch::path_of;
use crate::limit;
use crate::message::{
    DOOR_VERSION, DoorReply, DoorRequest, FLIGHTS_LEN, OsBytes, welcome_descriptors,
};

/// Descriptors of an admission beside those of a `Welcome`: socket and flights.
const OWN_DESCRIPTORS: usize = 2;

/// What was granted, and to whom.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct Terms {
    pub pool: OsBytes,
    pub client: ClientId,
    pub slots: u16,
    pub cells: u16,
    pub shards: u16,
}

/// A place in a fleet, whether or not anybody makes use of it now.
#[derive(Debug)]
pub struct Admission {
    pub(crate) terms: Terms,
    /// The fleet expels the client when the last copy of this is closed.
    pub(crate) socket: OwnedFd,
    /// Where the slots' last calls went: see [`crate::InFlight`].
    pub(crate) flights: OwnedFd,
    /// As they came beside the `Welcome`.
    pub(crate) segments: Vec<OwnedFd>,
    is_roots: bool,
}

impl Admission {
    /// Asks the fleet that serves the pool.
    pub fn ask(pool: &Path, options: &ConnectOptions) -> Result<Self, FleetError> {
        use std::os::unix::ffi::OsStrExt;
        if options.front {
            limit::require(|| format!("{}: a mount", pool.display()), limit::of_front())?;
        }
        let request = DoorRequest::Enter {
            version: DOOR_VERSION,
            front: options.front,
            slots: options.slots,
        };
        let (socket, is_roots, reply, segments) = door::converse(pool, door::patience(), |call| {
            let (reply, segments) = door::ask(&mut call.link, &request, call.until)?;
            let socket = call.link.share().map_err(system("keep an admission"))?.into_fd();
            let host = identity::of_peer(&socket).map_err(system("identify the fleet"))?;
            Ok((socket, host.uid == 0 && call.pool.is_roots(), reply, segments))
        })?;
        let DoorReply::Welcome { client, slots, cells, shards } = reply else {
            return Err(nonsense());
        };
        let (flights, _) = Segment::create("warren-flights", FLIGHTS_LEN)?.into_parts();
        let pool = pool.as_os_str().as_bytes().into();
        let terms = Terms { pool, client, slots, cells, shards };
        Self { terms, socket, flights, segments, is_roots }.checked()
    }

    /// Makes use of it. Only one process at a time may.
    pub fn open(self) -> Result<Connection, FleetError> {
        Connection::open(self)
    }

    pub fn pool(&self) -> PathBuf {
        path_of(&self.terms.pool)
    }

    /// Whether root alone decides what is in the pool: root runs the fleet, and no other user may write to the
    /// pool beside it. Known to the process that was admitted.
    pub fn is_roots(&self) -> bool {
        self.is_roots
    }

    /// Hung up when the fleet is gone. What there is to read of it says nothing.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What [`Self::from_parts`] makes an admission of again, in another process.
    pub fn parts(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let own = [self.socket.as_fd(), self.flights.as_fd()];
        let fds = own.into_iter().chain(self.segments.iter().map(AsFd::as_fd));
        (self.terms.to_bytes(), fds.collect())
    }

    pub fn from_parts(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self, FleetError> {
        let terms = Terms::from_bytes(bytes).map_err(|_| nonsense())?;
        let mut fds = fds.into_iter();
        let socket = fds.next().ok_or_else(nonsense)?;
        let flights = fds.next().ok_or_else(nonsense)?;
        Self { terms, socket, flights, segments: fds.collect(), is_roots: false }.checked()
    }

    fn checked(self) -> Result<Self, FleetError> {
        let (slots, cells) = (usize::from(self.terms.slots), usize::from(self.terms.cells));
        let in_range = (1..=SLOTS_MAX).contains(&slots) && (1..=CELLS_MAX).contains(&cells);
        if !in_range || self.segments.len() != welcome_descriptors(cells) {
            return Err(nonsense());
        }
        Ok(self)
    }
}

fn nonsense() -> FleetError {
    FleetError::Refused(Errno::EPROTO)
}

const _: () = assert!(
    OWN_DESCRIPTORS + welcome_descriptors(CELLS_MAX) <= crate::link::DESCRIPTORS_MAX,
    "an admission fits a packet"
);
