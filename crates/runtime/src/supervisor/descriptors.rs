//! The supervisor's descriptors: as many as it may have, the last of them for the fleet itself.
//!
//! Visitors make it open descriptors, so a crowd of them could take them all; what a cell reports in a
//! memfd would then be lost. The kernel gives out the lowest number that is free, so a number says how
//! many are taken. What was sent to visitors and not read is taken, too.

use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What visitors leave: reports that travel in a memfd, the pool, and a cell's start.
const RESERVE: u64 = 128;

/// Cells in pairs and clients take descriptors; a low limit stays where it is, with its errors.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Whether what was opened for a visitor is among the last.
pub fn is_of_reserve(fd: impl AsFd) -> bool {
    let taken = u64::from(fd.as_fd().as_raw_fd().unsigned_abs());
    getrlimit(Resource::Nofile).current.is_some_and(|limit| taken + RESERVE >= limit)
}

/// Whether so many may be on their way to visitors who do not read. A user who is not root can have as many on
/// the way as its process may have open; beyond that it can send none to anybody, to cells and the keeper neither
/// (`ETOOMANYREFS`).
pub fn may_be_on_their_way(count: usize) -> bool {
    getrlimit(Resource::Nofile).current.is_none_or(|limit| count as u64 + RESERVE <= limit)
}
