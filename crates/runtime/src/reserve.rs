//! The reserve of the supervisor's descriptors, which clients cannot take.
//!
//! Each connection makes the supervisor open descriptors, so many clients could take them all. Then
//! reports that a cell sends in a memfd would be lost, and no cell could be started. The kernel
//! allocates the lowest free number, so a new descriptor's number is the number of those taken.
//! Descriptors that were sent to clients and not received yet count, too.

use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, getrlimit};

use crate::message::PEER_DESCRIPTORS;

/// Descriptors that clients must leave: for reports in a memfd, the pool, and the start of a cell
/// except its links.
const FOR_FLEET: u64 = 128;

/// The part of [`FOR_FLEET`] that an administrator may use.
const FOR_PRIVILEGED: u64 = 64;

const _: () = assert!(FOR_PRIVILEGED < FOR_FLEET);

/// The number of descriptors that clients must leave to a fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserve(u64);

impl Reserve {
    /// A starting cell gets a link to each other cell. The supervisor holds the other ends until
    /// these cells are sent them.
    pub(crate) fn of(cells: usize) -> Self {
        Self(FOR_FLEET + (cells * PEER_DESCRIPTORS) as u64)
    }

    pub(crate) fn count(self) -> u64 {
        self.0
    }

    /// Whether a descriptor that was opened for a connection is in the reserve.
    pub(crate) fn has(self, fd: impl AsFd) -> bool {
        !is_left(number_of(fd), self.0)
    }

    /// Whether it is in the part of the reserve that not even an administrator's client may use.
    pub(crate) fn needs(self, fd: impl AsFd) -> bool {
        !is_left(number_of(fd), self.0 - FOR_PRIVILEGED)
    }

    /// Whether the keeper may hold so many descriptors. Its limit is this process's.
    pub(crate) fn lets_hold(self, count: usize) -> bool {
        is_left(count as u64, self.0)
    }

    /// Whether so many descriptors may be in flight to clients that do not read. A user who is not
    /// root can have as many in flight as its process may have open; beyond that it can send none
    /// at all, not even to cells and the keeper (`ETOOMANYREFS`).
    pub(crate) fn lets_send(self, count: usize) -> bool {
        is_left(count as u64, self.0)
    }
}

fn number_of(fd: impl AsFd) -> u64 {
    u64::from(fd.as_fd().as_raw_fd().unsigned_abs())
}

/// Whether more than `reserve` are left besides those that are taken.
fn is_left(taken: u64, reserve: u64) -> bool {
    getrlimit(Resource::Nofile).current.is_none_or(|limit| taken + reserve < limit)
}
