//! The supervisor's descriptors: as many as it may have, the last of them for the fleet itself.
//!
//! Visitors make it open descriptors, so a crowd of them could take them all; what a cell reports in a
//! memfd would then be lost, and no cell could be started. The kernel gives out the lowest number that is
//! free, so a number says how many are taken. What was sent to visitors and not read is taken, too.

use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, getrlimit};

use crate::message::PEER_DESCRIPTORS;

/// What strangers leave: reports that travel in a memfd, the pool, and a cell's start, but for its links.
const FOR_FLEET: u64 = 128;

/// Of these, what who looks after the fleet may take.
const FOR_PRIVILEGED: u64 = 64;

const _: () = assert!(FOR_PRIVILEGED < FOR_FLEET);

/// How many descriptors visitors leave to a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Reserve(u64);

impl Reserve {
    /// A cell that is started gets a link to each other, whose end is held until that one is told.
    pub fn of(cells: usize) -> Self {
        Self(FOR_FLEET + (cells * PEER_DESCRIPTORS) as u64)
    }

    pub fn count(self) -> u64 {
        self.0
    }

    /// Whether what was opened for a visitor is among the last.
    pub fn has(self, fd: impl AsFd) -> bool {
        !is_left(number_of(fd), self.0)
    }

    /// Whether it is among those that nobody may take, not even who looks after the fleet.
    pub fn needs(self, fd: impl AsFd) -> bool {
        !is_left(number_of(fd), self.0 - FOR_PRIVILEGED)
    }

    /// Whether so many may be on their way to visitors who do not read. A user who is not root can have as many
    /// on the way as its process may have open; beyond that it can send none to anybody, to cells and the keeper
    /// neither (`ETOOMANYREFS`).
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
