//! A client's use of its admission: its segments, the shard map, the cells' bells.
//!
//! The admission lasts as long as its socket. The fleet expels a client that closes the socket, and
//! a client whose fleet closes it gets EIO from every call. Threads share a connection; each takes
//! its own [`Slot`]s.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use warren_base::limits::CELLS_MAX;
use warren_base::{CellId, ClientId, Ino, InodeNumbers, SlotNo};
use warren_client::{Marks, Words};
use warren_shm::Region;

use crate::admission::Admission;
use crate::error::TransportError;
use crate::posts::Posts;
use crate::segments::{InFlight, Segments};
use crate::slot::Slot;

/// Parts of the memory of an admission at most: two for each cell, and those of all cells.
pub const REGIONS_MAX: usize = 2 * CELLS_MAX + 3;

/// An open admission to a fleet. Clones are the same admission.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Segments>,
}

impl Connection {
    /// This slot, if it is free.
    pub fn slot_at(&self, number: SlotNo) -> Option<Slot> {
        self.shared.take_slot(Some(number))?;
        Some(Slot::new(Arc::clone(&self.shared), number))
    }

    /// A free slot; `None` if all are taken. Dropping it gives it back.
    pub fn slot(&self) -> Option<Slot> {
        let number = self.shared.take_slot(None)?;
        Some(Slot::new(Arc::clone(&self.shared), number))
    }

    /// A free slot; waits for one if all are taken, because threads beyond the slots share them.
    /// `None` if none was given back in time. A signal handler that interrupts a thread with the
    /// only slot would wait for itself, so it must take [`Self::slot`].
    pub fn await_slot(&self, timeout: Duration) -> Option<Slot> {
        let number = self.shared.await_slot(timeout)?;
        Some(Slot::new(Arc::clone(&self.shared), number))
    }

    /// The streams of the client, which one part of the process uses.
    pub fn posts(&self) -> Posts {
        Posts::new(Arc::clone(&self.shared), self.slot())
    }

    /// The current value of a cell's lease word.
    pub fn load_word(&self, cell: CellId, word: u32) -> u64 {
        self.shared.load_word(cell, word)
    }

    /// Whether the cell has closed all handles of the inode that this client had kept.
    pub fn is_closed(&self, cell: CellId, ino: Ino) -> bool {
        self.shared.is_closed(cell, ino)
    }

    /// The number of watched inodes, in the lower half, and of changes of that. 0 if none ever was
    /// watched.
    #[inline]
    pub fn watches(&self) -> u64 {
        let of_cells = self.shared.cells.iter().map(|of_cell| of_cell.vitals.watches());
        of_cells.fold(0, u64::wrapping_add)
    }

    /// Whether the inode may be watched: its changes are to be made by a kernel.
    pub fn is_watched(&self, ino: Ino) -> bool {
        self.shared.cells.iter().any(|of_cell| of_cell.vitals.is_watched(ino))
    }

    /// See [`ClientWriter::mark_idle`](warren_shm::ClientWriter::mark_idle). One thread at a time
    /// marks inodes.
    pub fn mark_idle(&self, ino: Ino) -> Option<Ino> {
        self.shared.requests.mark_idle(ino)
    }

    pub fn mark_used(&self, ino: Ino) {
        self.shared.requests.mark_used(ino);
    }

    /// The request that is in flight in a slot, for a `Cancel`.
    pub fn in_flight(&self, slot: SlotNo) -> Option<InFlight> {
        self.shared.in_flight(slot)
    }

    /// Sleeps until a request that a slot has submitted is answered, or the fleet is gone. It
    /// neither allocates nor uses the slot, so that its owner may lock it meanwhile.
    pub fn await_answer(&self, slot: SlotNo, call: InFlight) {
        self.shared.await_answer(slot, call);
    }

    pub fn client(&self) -> ClientId {
        self.shared.client
    }

    pub fn cells(&self) -> u16 {
        self.shared.cells.len() as u16
    }

    pub fn shards(&self) -> u16 {
        self.shared.shards
    }

    /// The inode numbers that programs see.
    pub fn inode_numbers(&self) -> InodeNumbers {
        self.shared.numbers
    }

    pub fn slots(&self) -> u16 {
        self.shared.requests.shape().slots() as u16
    }

    /// Words for marks of idle inodes.
    pub fn idle_words(&self) -> usize {
        self.shared.requests.shape().lanes().idle_words()
    }

    /// Bytes of file data of one request, each way.
    pub fn payload_max(&self) -> usize {
        self.shared.requests.shape().payload()
    }

    /// The memory of the admission, at most [`REGIONS_MAX`] parts. A child of `fork` has none of
    /// it, and needs something in its place if it goes on in the middle of a call. So does a
    /// process that gives its admission up while threads may be in the middle of calls.
    pub fn regions(&self) -> impl Iterator<Item = Region> {
        self.shared.regions()
    }

    /// The process gives the admission up, and closes its socket next: no thread waits for an
    /// answer any more. For a connection that is never dropped.
    pub fn end(&self) {
        self.shared.end();
    }

    /// Whether the fleet still exists: `false` once it has closed the socket.
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive()
    }

    /// Waits until the fleet closes the socket. `false` if it is still open after `timeout`.
    pub fn wait_for_hangup(&self, timeout: Duration) -> bool {
        self.shared.wait_for_hangup(timeout)
    }
}

impl Admission {
    /// Opens the admission. Only one process may use it at a time.
    pub fn open(self) -> Result<Connection, TransportError> {
        Ok(Connection { shared: Arc::new(Segments::open(self)?) })
    }
}

impl Marks for Connection {
    fn line(&self, ino: Ino) -> usize {
        self.shared.requests.shape().idle_line(ino)
    }

    fn set(&self, word: usize, ino: Option<Ino>) {
        self.shared.requests.set_mark(word, ino);
    }
}

impl Words for Connection {
    fn load(&self, cell: CellId, word: u32) -> u64 {
        self.load_word(cell, word)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?})", self.shared.client)
    }
}
