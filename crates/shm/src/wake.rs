//! Wakes a cell that sleeps in its device's queue: a descriptor, written only if the cell is
//! parked.
//!
//! Any descriptor that counts or queues eight bytes will do. A fleet uses a pipe, because its
//! clients are hostile; [`WakeFd::new`] makes an eventfd, for processes that trust each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use crate::memory::Load;
use crate::segment::SegmentError;
use crate::vitals::VitalsReader;

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

    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Wakes the cell, whether it sleeps or not.
    pub fn wake(&self) {
        // EAGAIN means that it is full, which rings as well. If anything else fails, the cell's own
        // time-out ends its sleep.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Wakes the cell if it sleeps, and returns whether it did. Must follow the store of the bell
    /// or tail.
    pub fn wake_if_parked<R: Load>(&self, vitals: &VitalsReader<R>) -> bool {
        let parked = vitals.must_wake();
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

    use super::*;
    use crate::segment::{Segment, map_read_only};
    use crate::vitals::{VITALS_LEN, VitalsWriter};

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
        cell.unpark();
        assert!(bell.drain());
        assert!(!bell.drain());
    }
}
