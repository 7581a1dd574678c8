//! A client's admission to a fleet: its segments, the shard map, the cells' bells.
//!
//! The admission lasts as long as its socket: the fleet expels a client that hangs up, and a client
//! whose fleet hangs up gets EIO from every call. Threads share a connection; each takes
//! [`Slot`]s of its own.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use warren_base::limits::{CELLS_MAX, SLOTS_MAX};
use warren_base::{CellId, ClientId, Errno, SlotNo};
use warren_shm::{
    ClientWriter, ReplyReader, ShardMap, ShardMapReader, VitalsReader, WakeFd, map_read_only,
    map_writable,
};

use crate::door;
use crate::error::FleetError;
use crate::link::Link;
use crate::message::{DOOR_VERSION, DoorReply, DoorRequest, welcome_descriptors};
use crate::slot::Slot;

/// How a client wants to be admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// Name uid and gid with every request, access having been checked. Only root and the fleet's
    /// own user may.
    pub front: bool,
    /// Requests in flight at a time, `1..=SLOTS_MAX`.
    pub slots: u16,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { front: false, slots: SLOTS_MAX as u16 }
    }
}

/// What a client holds of one cell.
pub(crate) struct CellDoor {
    pub replies: ReplyReader,
    pub vitals: VitalsReader,
    pub bell: WakeFd,
}

/// What all threads of a client share.
pub(crate) struct Shared {
    pub client: ClientId,
    pub shards: u16,
    pub requests: ClientWriter,
    pub cells: Vec<CellDoor>,
    map: ShardMapReader,
    /// The request in flight in every slot: see [`InFlight`].
    in_flight: Vec<AtomicU64>,
    /// Slots that nobody has taken, as bits.
    free: Mutex<u64>,
    socket: OwnedFd,
    dead: AtomicBool,
}

/// An admission to a fleet. Clones are the same admission.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    pool: PathBuf,
}

/// A request on its way, packed into a word: sequence number, cell, and whether there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InFlight {
    pub cell: CellId,
    pub seq: u32,
}

impl InFlight {
    const PRESENT: u64 = 1 << 16;

    fn pack(this: Option<Self>) -> u64 {
        this.map_or(0, |it| u64::from(it.seq) << 32 | Self::PRESENT | u64::from(it.cell.0))
    }

    fn unpack(word: u64) -> Option<Self> {
        (word & Self::PRESENT != 0)
            .then_some(Self { cell: CellId(word as u16), seq: (word >> 32) as u32 })
    }
}

impl Connection {
    /// Asks the fleet that serves the pool for admission.
    pub fn connect(pool: &Path, options: &ConnectOptions) -> Result<Self, FleetError> {
        let mut link = door::knock(pool)?;
        let request = DoorRequest::Enter {
            version: DOOR_VERSION,
            front: options.front,
            slots: options.slots,
        };
        let (reply, fds) = door::ask(&mut link, &request)?;
        let DoorReply::Welcome { client, slots, cells, shards } = reply else {
            return Err(FleetError::Refused(Errno::EPROTO));
        };
        let shared = Shared::open(link, client, (slots, cells, shards), fds)?;
        Ok(Self { shared: Arc::new(shared), pool: pool.to_path_buf() })
    }

    /// A slot that nobody uses; `None` if all are taken. Dropping it gives it back.
    pub fn slot(&self) -> Option<Slot> {
        let number = self.shared.take_slot()?;
        Some(Slot::new(Arc::clone(&self.shared), number))
    }

    /// The request that waits in a slot now: what a `Cancel` names.
    pub fn in_flight(&self, slot: SlotNo) -> Option<InFlight> {
        self.shared.in_flight(slot)
    }

    pub fn client(&self) -> ClientId {
        self.shared.client
    }

    pub fn pool(&self) -> &Path {
        &self.pool
    }

    pub fn cells(&self) -> u16 {
        self.shared.cells.len() as u16
    }

    pub fn shards(&self) -> u16 {
        self.shared.shards
    }

    pub fn slots(&self) -> u16 {
        self.shared.requests.slots() as u16
    }

    /// Whether the fleet is there. Also `false` after it hung up.
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive()
    }

    /// Waits until the fleet hangs up; `false` if it is still there after `timeout`.
    pub fn wait_for_hangup(&self, timeout: Duration) -> bool {
        self.shared.wait_for_hangup(timeout)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?} of {})", self.shared.client, self.pool.display())
    }
}

impl Shared {
    fn open(
        link: Link,
        client: ClientId,
        (slots, cells, shards): (u16, u16, u16),
        fds: Vec<OwnedFd>,
    ) -> Result<Self, FleetError> {
        let nonsense = || FleetError::Refused(Errno::EPROTO);
        let (slots, cells) = (usize::from(slots), usize::from(cells));
        let in_range = (1..=SLOTS_MAX).contains(&slots) && (1..=CELLS_MAX).contains(&cells);
        if !in_range || fds.len() != welcome_descriptors(cells) {
            return Err(nonsense());
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(nonsense);
        let requests = ClientWriter::new(map_writable(next()?.as_fd())?, slots)?;
        let map = ShardMapReader::new(map_read_only(next()?.as_fd())?)?;
        let mut doors = Vec::with_capacity(cells);
        for _ in 0..cells {
            doors.push(CellDoor {
                replies: ReplyReader::new(map_read_only(next()?.as_fd())?, slots)?,
                vitals: VitalsReader::new(map_read_only(next()?.as_fd())?)?,
                bell: WakeFd::from_fd(next()?),
            });
        }
        Ok(Self {
            client,
            shards,
            requests,
            cells: doors,
            map,
            in_flight: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            free: Mutex::new(u64::MAX >> (u64::BITS as usize - slots)),
            socket: link.into_fd(),
            dead: AtomicBool::new(false),
        })
    }

    fn take_slot(&self) -> Option<SlotNo> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let lowest = free.trailing_zeros();
        if lowest == u64::BITS {
            return None;
        }
        *free &= *free - 1;
        Some(SlotNo(lowest as u16))
    }

    pub fn give_back(&self, slot: SlotNo) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) |= 1 << slot.0;
    }

    pub fn in_flight(&self, slot: SlotNo) -> Option<InFlight> {
        InFlight::unpack(self.in_flight.get(usize::from(slot.0))?.load(Ordering::SeqCst))
    }

    pub fn set_in_flight(&self, slot: SlotNo, request: Option<InFlight>) {
        self.in_flight[usize::from(slot.0)].store(InFlight::pack(request), Ordering::SeqCst);
    }

    /// The shard map if it is newer than `than` (`None`: in any case).
    pub fn newer_map(&self, than: &ShardMap) -> Result<Option<ShardMap>, Errno> {
        if self.map.version() == than.version {
            return Ok(None);
        }
        self.map.read().map(Some).map_err(|_| Errno::EIO)
    }

    pub fn is_alive(&self) -> bool {
        !self.wait_for_hangup(Duration::ZERO)
    }

    fn wait_for_hangup(&self, timeout: Duration) -> bool {
        if self.dead.load(Ordering::Relaxed) {
            return true;
        }
        // The fleet says nothing after its welcome; whatever comes is its end.
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let hung_up = matches!(poll(&mut fds, timeout.as_ref()), Ok(ready) if ready > 0);
        if hung_up {
            self.dead.store(true, Ordering::Relaxed);
        }
        hung_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_flight_survives_its_word() {
        for seq in [0, 1, u32::MAX] {
            for cell in [0, 63, u16::MAX] {
                let request = Some(InFlight { cell: CellId(cell), seq });
                assert_eq!(InFlight::unpack(InFlight::pack(request)), request);
            }
        }
        assert_eq!(InFlight::unpack(InFlight::pack(None)), None);
    }
}
