//! The state that all threads of a client share: the mapped memory of its admission, and which
//! slots are taken.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use core::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;
use rustix::thread::futex;
use rustix::time::Timespec;
use warren_base::limits::LEASE_WORDS;
use warren_base::{CellId, ClientId, Errno, Ino, InodeNumbers, SlotNo};
use warren_client::{ShardMap, Words};
use warren_shm::{
    ClientWriter, Load, Presence, Region, ReplyReader, ShardMapError, ShardMapReader, Store,
    VitalsReader, WaitOutcome, WakeFd, WriteMap, map_read_only, map_writable, now,
};

use crate::admission::Admission;
use crate::control::FLIGHTS_LEN;
use crate::error::TransportError;

/// When a sleeping call first checks whether the fleet still exists. The pause doubles each time,
/// so that a call that waits for hours costs almost nothing.
pub(crate) const LOOK_AT_FLEET: Duration = Duration::from_millis(100);

/// The longest time until a sleeping call notices that the fleet is gone.
pub(crate) const LOOK_AT_FLEET_MAX: Duration = Duration::from_millis(1600);

/// A client's mappings and bell of one cell.
pub(crate) struct CellSegments {
    pub replies: ReplyReader,
    pub vitals: VitalsReader,
    pub bell: WakeFd,
}

impl CellSegments {
    /// After a ring of the doorbell: wakes the cell if it sleeps, and rings its bell if it does not
    /// look at this client's doorbell. Returns where it is, and
    /// whether it slept.
    pub(crate) fn wake(&self, client: ClientId) -> Presence {
        self.bell.call_if_unseen(client, &self.vitals, &self.replies)
    }
}

/// The state that all threads of a client share.
pub(crate) struct Segments {
    pub client: ClientId,
    pub shards: u16,
    /// The inode numbers that programs see.
    pub numbers: InodeNumbers,
    pub requests: ClientWriter,
    pub cells: Vec<CellSegments>,
    map: ShardMapReader,
    /// The last call of every slot, an [`InFlight`] each. A successor of this process reads it.
    flights: WriteMap,
    /// Free slots, as bits. Taken without a lock: a signal handler may interrupt a thread anywhere
    /// in here and take a slot itself.
    free: AtomicU64,
    /// Counts the slots that were given back: threads that wait for one sleep on it.
    given_back: AtomicU32,
    /// Threads that wait for a slot.
    waiting: AtomicU32,
    socket: OwnedFd,
    dead: AtomicBool,
    pub is_single_core: bool,
}

/// A slot's call, packed into a word: sequence number, cell, whether there is a call, and whether a
/// thread waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InFlight {
    pub cell: CellId,
    pub seq: u32,
}

impl InFlight {
    const PRESENT: u64 = 1 << 16;
    const WAITS: u64 = 1 << 17;

    fn pack(self, waits: bool) -> u64 {
        let waits = if waits { Self::WAITS } else { 0 };
        u64::from(self.seq) << 32 | waits | Self::PRESENT | u64::from(self.cell.0)
    }

    fn unpack(word: u64) -> Option<(Self, bool)> {
        let call = Self { cell: CellId(word as u16), seq: (word >> 32) as u32 };
        (word & Self::PRESENT != 0).then_some((call, word & Self::WAITS != 0))
    }
}

impl Segments {
    pub(crate) fn open(admission: Admission) -> Result<Self, TransportError> {
        let Admission { terms, socket, flights, segments } = admission;
        let (shape, cells) = (terms.shape, usize::from(terms.cells));
        let mut fds = segments.into_iter();
        let mut next = || fds.next().ok_or(TransportError::Malformed);
        let requests = ClientWriter::new(map_writable(next()?.as_fd())?, shape)?;
        let map = ShardMapReader::new(map_read_only(next()?.as_fd())?)?;
        let mut of_cells = Vec::with_capacity(cells);
        for _ in 0..cells {
            of_cells.push(CellSegments {
                replies: ReplyReader::new(map_read_only(next()?.as_fd())?, shape)?,
                vitals: VitalsReader::new(map_read_only(next()?.as_fd())?)?,
                bell: WakeFd::from_fd(next()?),
            });
        }
        let flights = map_writable(flights.as_fd())?;
        if flights.size() < FLIGHTS_LEN {
            return Err(TransportError::Malformed);
        }
        let segments = Self {
            client: terms.client,
            shards: terms.shards,
            numbers: terms.inode_numbers(),
            requests,
            cells: of_cells,
            map,
            flights,
            free: AtomicU64::new(u64::MAX >> (u64::BITS as usize - shape.slots())),
            given_back: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            socket,
            dead: AtomicBool::new(false),
            is_single_core: is_single_core(),
        };
        segments.take_over();
        Ok(segments)
    }

    /// Continues after a process that used this memory. It may have been killed before it rang for
    /// a request, or its ring may not have been seen.
    fn take_over(&self) {
        let mut slots = (0..self.requests.shape().slots()).map(|slot| SlotNo(slot as u16));
        if slots.all(|slot| self.requests.last_seq(slot) == 0) {
            return;
        }
        for (cell, segments) in (0..).map(CellId).zip(&self.cells) {
            self.requests.ring_all(cell);
            segments.wake(self.client);
        }
    }

    /// Takes the wanted slot, or the lowest free one.
    pub(crate) fn take_slot(&self, wanted: Option<SlotNo>) -> Option<SlotNo> {
        let mut free = self.free.load(Relaxed);
        loop {
            let number = wanted.map_or(free.trailing_zeros(), |slot| u32::from(slot.0));
            let bit = 1_u64.checked_shl(number).filter(|bit| free & bit != 0)?;
            match self.free.compare_exchange_weak(free, free & !bit, Acquire, Relaxed) {
                Ok(_) => return Some(SlotNo(number as u16)),
                Err(now) => free = now,
            }
        }
    }

    /// Takes the lowest free slot, and waits for one if there is none. `None` after `timeout`.
    ///
    /// Either this thread sees the slot that another gives back, or that thread sees this one
    /// waiting: each stores before it loads, with full fences in between.
    pub(crate) fn await_slot(&self, timeout: Duration) -> Option<SlotNo> {
        let until = now() + timeout;
        loop {
            if let Some(slot) = self.take_slot(None) {
                return Some(slot);
            }
            self.waiting.fetch_add(1, SeqCst);
            let seen = self.given_back.load(SeqCst);
            let taken = self.take_slot(None);
            let left = until - now();
            if taken.is_none() && !left.is_zero() {
                // Also ends when a slot has been given back since `seen`, and by signals.
                let limit = Timespec::try_from(left).ok();
                let _ended =
                    futex::wait(&self.given_back, futex::Flags::PRIVATE, seen, limit.as_ref());
            }
            self.waiting.fetch_sub(1, SeqCst);
            if taken.is_some() || left.is_zero() {
                return taken;
            }
        }
    }

    pub(crate) fn give_back(&self, slot: SlotNo) {
        self.free.fetch_or(1 << slot.0, SeqCst);
        self.given_back.fetch_add(1, SeqCst);
        if self.waiting.load(SeqCst) != 0 {
            // Only a bad address can fail, and this one is valid.
            let _woken = futex::wake(&self.given_back, futex::Flags::PRIVATE, 1);
        }
    }

    pub(crate) fn in_flight(&self, slot: SlotNo) -> Option<InFlight> {
        let (call, waits) = InFlight::unpack(self.flights.load64(self.flight(slot)?, Acquire))?;
        waits.then_some(call)
    }

    /// The slot's last call, answered or not. `None` if there was none yet.
    pub(crate) fn last_call(&self, slot: SlotNo) -> Option<InFlight> {
        InFlight::unpack(self.flights.load64(self.flight(slot)?, Acquire)).map(|(call, _)| call)
    }

    /// Records that the slot makes this call, or has made it. Other threads of the client may see
    /// that late: a cell sees the request only afterwards, and a thread that wants to cancel the
    /// call and does not find it tries again.
    pub(crate) fn set_flight(&self, slot: SlotNo, call: InFlight, waits: bool) {
        let at = self.flight(slot).expect("a slot of ours");
        self.flights.store64(at, call.pack(waits), Release);
    }

    /// Sleeps until the request is answered, or the fleet is gone.
    pub(crate) fn await_answer(&self, slot: SlotNo, InFlight { cell, seq }: InFlight) {
        let Some(CellSegments { replies, .. }) = self.cells.get(usize::from(cell.0)) else {
            return;
        };
        let mut pause = LOOK_AT_FLEET;
        loop {
            let deadline = Some(now() + pause);
            let outcome = replies.wait(&self.requests, slot, seq, Duration::ZERO, deadline);
            if outcome == WaitOutcome::Answered || !self.is_alive() {
                return;
            }
            pause = (2 * pause).min(LOOK_AT_FLEET_MAX);
        }
    }

    fn flight(&self, slot: SlotNo) -> Option<usize> {
        let slot = usize::from(slot.0);
        (slot < self.requests.shape().slots()).then_some(slot * size_of::<u64>())
    }

    /// The shard map if it is newer than `than` and can be read now. While a map is being written
    /// the old one stays in use: a cell answers requests that follow it wrongly with `Moved`. EIO
    /// if the map is damaged.
    pub(crate) fn newer_map(&self, than: &ShardMap) -> Result<Option<ShardMap>, Errno> {
        if self.map.version() == than.version() {
            return Ok(None);
        }
        match self.map.read() {
            Ok(map) if map.owners.is_empty() => Err(Errno::EIO),
            Ok(map) => Ok(Some(ShardMap::new(map.version, map.owners))),
            Err(ShardMapError::Busy) => Ok(None),
            Err(ShardMapError::Corrupt) => Err(Errno::EIO),
        }
    }

    /// 0 if there is no such word.
    pub(crate) fn load_word(&self, cell: CellId, word: u32) -> u64 {
        match self.cells.get(usize::from(cell.0)) {
            Some(of_cell) if (word as usize) < LEASE_WORDS => of_cell.replies.load_word(word),
            _ => 0,
        }
    }

    pub(crate) fn is_closed(&self, cell: CellId, ino: Ino) -> bool {
        let of_cell = self.cells.get(usize::from(cell.0));
        of_cell.is_some_and(|of_cell| of_cell.replies.is_closed(ino))
    }

    /// Where all its memory is.
    pub(crate) fn regions(&self) -> impl Iterator<Item = Region> {
        let of_cells = self.cells.iter();
        let of_cells = of_cells.flat_map(|it| [it.replies.region(), it.vitals.region()]);
        of_cells.chain([self.requests.region(), self.map.region(), self.flights.region()])
    }

    /// No call waits for an answer any more.
    pub(crate) fn end(&self) {
        self.dead.store(true, Relaxed);
    }

    /// Whether the process has given the admission up, or has seen that the fleet is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.dead.load(Relaxed)
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.wait_for_hangup(Duration::ZERO)
    }

    pub(crate) fn wait_for_hangup(&self, timeout: Duration) -> bool {
        if self.has_ended() {
            return true;
        }
        // Polls for the hang-up alone: the socket may be readable because a supervisor that takes
        // over has sent another `Welcome`.
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let hung_up = matches!(poll(&mut fds, timeout.as_ref()), Ok(ready) if ready > 0);
        if hung_up {
            self.dead.store(true, Relaxed);
        }
        hung_up
    }
}

/// Whether the machine has a single core. The number of cores of this thread does not count: its
/// cell may run on another core.
fn is_single_core() -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(list) = open("/sys/devices/system/cpu/online", flags, Mode::empty()) else {
        return false;
    };
    let mut text = [0; 16];
    // The list of a single core is its number.
    read(&list, &mut text).is_ok_and(|len| text[..len].trim_ascii().iter().all(u8::is_ascii_digit))
}

impl Words for Segments {
    fn load(&self, cell: CellId, word: u32) -> u64 {
        self.load_word(cell, word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_flight_survives_its_word() {
        for seq in [0, 1, u32::MAX] {
            for (cell, waits) in [(0, true), (63, false), (u16::MAX, true)] {
                let call = InFlight { cell: CellId(cell), seq };
                assert_eq!(InFlight::unpack(call.pack(waits)), Some((call, waits)));
            }
        }
        assert_eq!(InFlight::unpack(0), None);
    }
}
