//! Wakes a cell that sleeps in its device's queue, or names a client whose doorbell the cell does
//! not look at: a descriptor, written only if one of both is the case.
//!
//! A cell looks in each turn at the doorbells of clients that were active lately. The bytes that
//! another client writes to the bell name its *class*, so that the cell finds it without a look at
//! all doorbells. They are a hint: any client may write any bytes, and the bytes of a full bell are
//! lost. Classes are few, so that whatever is written costs little, and any bytes are legal.
//!
//! ```text
//! client  flip the doorbell, full fence, load watched: 0 -> write its class to the bell
//! cell    watched = 0, full fence, look at the doorbell once more
//! ```
//!
//! As with parking, either the cell sees the doorbell or the client sees that it is not watched.
//!
//! Any descriptor that counts or queues eight bytes will do. A fleet uses a pipe, because its
//! clients are hostile; [`WakeFd::new`] makes an eventfd, for processes that trust each other.

use alloc::borrow::ToOwned;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec, read, write};
use warren_base::ClientId;

use crate::memory::Load;
use crate::processor::Presence;
use crate::reply::ReplyReader;
use crate::segment::SegmentError;
use crate::vitals::VitalsReader;

/// The bytes of a ring: all are the same, because bytes may be lost between them.
const RING_BYTES: usize = 8;

/// The class of senders that are no client.
const NO_CLASS: u8 = 1;

/// The classes of clients, a byte each: none is 0, with which an eventfd does not wake.
const FIRST_CLASS: u32 = 2;
const CLASSES: u32 = u8::MAX as u32 + 1 - FIRST_CLASS;

/// Clients that a ring names. Numbers of clients are given out one after the other, so the classes
/// are of about equal size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RingClass(u8);

impl RingClass {
    pub const fn of(client: ClientId) -> Self {
        Self((FIRST_CLASS + client.0 % CLASSES) as u8)
    }

    /// The class that a byte of a bell names, if it is one of clients.
    pub fn named(byte: u8) -> Option<Self> {
        (u32::from(byte) >= FIRST_CLASS).then_some(Self(byte))
    }

    /// The byte that names it.
    pub const fn byte(self) -> u8 {
        self.0
    }

    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).filter_map(Self::named)
    }
}

/// The bell of a sleeping cell. Every process that sends to the cell has one.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    pub fn new() -> Result<Self, SegmentError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let name = || "eventfd".to_owned();
        let failed = |errno| SegmentError::Create { name: name(), len: 8, errno };
        eventfd(0, flags).map(Self).map_err(failed)
    }

    /// A bell that came from another process.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub fn try_clone(&self) -> rustix::io::Result<Self> {
        fcntl_dupfd_cloexec(&self.0, 0).map(Self)
    }

    /// Wakes the cell, whether it sleeps or not.
    pub fn wake(&self) {
        self.write(NO_CLASS);
    }

    fn write(&self, class: u8) {
        // EAGAIN means that it is full, which rings as well. If anything else fails, the cell's own
        // time-out ends its sleep.
        let _ = write(&self.0, &[class; RING_BYTES]);
    }

    /// The same, and names the client.
    pub fn call(&self, client: ClientId) {
        self.write(RingClass::of(client).0);
    }

    /// A client's ring, after that of its doorbell: wakes the cell if it sleeps, and names the
    /// client if the cell does not look at its doorbell. Returns where the cell is, and
    /// whether it slept.
    pub fn call_if_unseen<R: Load>(
        &self,
        client: ClientId,
        vitals: &VitalsReader<R>,
        replies: &ReplyReader<R>,
    ) -> Presence {
        // The fence for both words is in here.
        let cell = vitals.thread();
        if cell.sleeps || !replies.is_watched() {
            self.call(client);
        }
        cell
    }

    /// Wakes the cell if it sleeps, and returns whether it did. Must follow the store of the bell
    /// or tail.
    pub fn wake_if_parked<R: Load>(&self, vitals: &VitalsReader<R>) -> bool {
        let parked = vitals.thread().sleeps;
        if parked {
            self.wake();
        }
        parked
    }

    /// Removes all rings so far. Returns whether there was one.
    pub fn drain(&self) -> bool {
        let mut count = [0; 8];
        !matches!(read(&self.0, &mut count), Err(Errno::AGAIN))
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use warren_base::{CellId, Epoch};
    use warren_proto::slot::Shape;

    use super::*;
    use crate::reply::ReplyWriter;
    use crate::segment::{Segment, map_read_only};
    use crate::vitals::{VITALS_LEN, VitalsWriter};

    #[test]
    fn every_client_has_one_of_the_classes() {
        let all: std::collections::BTreeSet<_> = RingClass::all().collect();
        assert_eq!(all.len() as u32, CLASSES);
        let of_clients = (0..2 * CLASSES).map(|client| RingClass::of(ClientId(client)));
        assert_eq!(of_clients.collect::<std::collections::BTreeSet<_>>(), all);
        assert_eq!((RingClass::named(0), RingClass::named(NO_CLASS)), (None, None));
        assert_eq!(RingClass::of(ClientId(u32::MAX)), RingClass::of(ClientId(u32::MAX)));
    }

    #[test]
    fn a_client_that_is_watched_rings_only_a_parked_cell() {
        let shape = Shape::large(1);
        let segment = Segment::create("warren-test", VITALS_LEN).unwrap();
        let cell = VitalsWriter::new(segment.map().clone(), CellId(0), Epoch(1)).unwrap();
        let vitals = VitalsReader::new(map_read_only(segment.fd()).unwrap()).unwrap();
        let back = Segment::create("warren-test", shape.cell_segment_len()).unwrap();
        let replies = ReplyWriter::new(back.map().clone(), shape, CellId(0), Epoch(1)).unwrap();
        let reader = ReplyReader::new(map_read_only(back.fd()).unwrap(), shape).unwrap();
        let bell = WakeFd::new().unwrap();
        let call = || (bell.call_if_unseen(ClientId(3), &vitals, &reader).sleeps, bell.drain());
        assert_eq!(call(), (false, true), "it is not watched yet");
        replies.watch();
        assert_eq!(call(), (false, false));
        cell.park();
        assert_eq!(call(), (true, true));
        cell.unpark(false);
        replies.unwatch();
        assert_eq!(call(), (false, true));
    }

    #[test]
    fn only_a_parked_cell_is_woken() {
        let segment = Segment::create("warren-test", VITALS_LEN).unwrap();
        let cell = VitalsWriter::new(segment.map().clone(), CellId(0), Epoch(1)).unwrap();
        let vitals = VitalsReader::new(map_read_only(segment.fd()).unwrap()).unwrap();
        let bell = WakeFd::new().unwrap();
        assert!(!bell.wake_if_parked(&vitals));
        assert!(!bell.drain());
        cell.park();
        assert!(bell.wake_if_parked(&vitals));
        assert!(bell.try_clone().unwrap().wake_if_parked(&vitals));
        cell.unpark(false);
        assert!(bell.drain());
        assert!(!bell.drain());
    }
}
