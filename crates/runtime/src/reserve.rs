//! The supervisor's descriptors: as many as it may have, the last of them for the fleet itself.
//!
//! Connections make it open descriptors, so a crowd of clients could take them all; what a cell
//! reports in a memfd would then be lost, and no cell could be started. The kernel gives out the
//! lowest number that is free, so a number says how many are taken. What was sent to clients and
//! not read is taken, too.

use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, getrlimit};

use crate::message::PEER_DESCRIPTORS;

/// What clients leave: reports that travel in a memfd, the pool, and a cell's start, but for its
/// links.
const FOR_FLEET: u64 = 128;

/// Of these, what an administrator may take.
const FOR_PRIVILEGED: u64 = 64;

const _: () = assert!(FOR_PRIVILEGED < FOR_FLEET);

/// How many descriptors clients leave to a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Reserve(u64);

impl Reserve {
    /// A cell that is started gets a link to each other, whose end is held until that cell is sent
    /// it.
    pub fn of(cells: usize) -> Self {
        Self(FOR_FLEET + (cells * PEER_DESCRIPTORS) as u64)
    }

    pub fn count(self) -> u64 {
        self.0
    }

    /// Whether what was opened for a connection is among the last.
    pub fn has(self, fd: impl AsFd) -> bool {
        !is_left(number_of(fd), self.0)
    }

    /// Whether it is among those that no client may take, not even an administrator's.
    pub fn needs(self, fd: impl AsFd) -> bool {
        !is_left(number_of(fd), self.0 - FOR_PRIVILEGED)
    }

    /// Whether so many may be on their way to clients that do not read. A user who is not root can
    /// have as many on the way as its process may have open; beyond that it can send none to
    /// anybody, to cells and the keeper neither (`ETOOMANYREFS`).
    pub fn lets_send(self, count: usize) -> bool {
        is_left(count as u64, self.0)
    }
}

fn number_of(fd: impl AsFd) -> u64 {
    u64::from(fd.as_fd().as_raw_fd().unsigned_abs())
}

/// Whether there are more than `reserve` beside those that are taken.
fn is_left(taken: u64, reserve: u64) -> bool {
    getrlimit(Resource::Nofile).current.is_none_or(|limit| taken + reserve < limit)
}
