//! The limits of a process against the needs of a fleet or a front: descriptors, files as long as
//! the pool, addresses.
//!
//! A fleet with too few descriptors would start and fail later, when nothing can be done about it.
//! So the start is refused, with the number that is needed. Addresses run out only when clients
//! connect: then the client is refused.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use warren_base::limits::CELLS_MAX;
use warren_transport::control::welcome_descriptors;

use crate::error::FleetError;
use crate::message::PEER_DESCRIPTORS;
use crate::reserve::Reserve;

/// Descriptors of a supervisor: standard streams, its links and journal, the pool, the map, the
/// control socket.
const OWN: usize = 16;

/// Descriptors of a supervisor for each cell: its memory, its process, the pool for the next one.
const OF_A_CELL: usize = 8;

/// Descriptors of a client, in the keeper and the supervisor while it is being admitted, besides
/// one for each cell. After that, each of the two keeps one, where the keeper's kernel has tables
/// for the others.
const OF_A_CLIENT: usize = 3;

/// Descriptors of a front and its mount keeper, without the admission: standard streams, device,
/// front state, links, signals, threads.
const OF_A_FRONT: usize = 60;

/// The descriptors that a fleet of so many cells needs to serve one client. While cells start, the
/// descriptors of all links may be in flight.
pub(crate) fn of_fleet(cells: usize) -> u64 {
    let links = cells * cells.saturating_sub(1) * PEER_DESCRIPTORS;
    let client = OF_A_CLIENT + cells + welcome_descriptors(cells);
    Reserve::of(cells).count() + (OWN + cells * OF_A_CELL + links + client) as u64
}

/// The descriptors of a keeper without clients.
pub(crate) fn of_keeper(cells: usize) -> usize {
    OWN + cells * OF_A_CELL
}

/// The descriptors of a front, whatever its fleet.
pub(crate) fn of_front() -> u64 {
    (OF_A_FRONT + welcome_descriptors(CELLS_MAX)) as u64
}

/// Bytes that a process may still map for itself besides its clients' memory.
const ADDRESSES_OF_ITS_OWN: u64 = 64 << 20;

/// Raises the soft limits that a fleet needs to their hard limits.
pub fn raise() {
    for resource in [Resource::Nofile, Resource::Fsize, Resource::As] {
        let limit = getrlimit(resource);
        let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Fails if files may not be that long. A process that writes beyond the limit is killed (SIGXFSZ).
pub(crate) fn require_files(what: impl FnOnce() -> String, bytes: u64) -> Result<(), FleetError> {
    match getrlimit(Resource::Fsize).maximum {
        Some(limit) if limit < bytes => {
            let (needed, limit) = (bytes.div_ceil(1024), limit / 1024);
            Err(FleetError::ShortFiles { what: what(), needed, limit })
        }
        _ => Ok(()),
    }
}

/// Whether a process with this one's limit may map so many bytes more. A cell that cannot map a
/// client's memory ends, and so do its successors.
pub(crate) fn lets_map(process: u32, bytes: u64) -> bool {
    let Some(limit) = getrlimit(Resource::As).current else { return true };
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm")).ok().and_then(|line| {
        let (pages, _) = line.split_once(' ')?;
        pages.parse::<u64>().ok()
    });
    // A process that is gone has a successor, which maps the clients known then.
    let mapped = pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64);
    mapped.saturating_add(bytes).saturating_add(ADDRESSES_OF_ITS_OWN) <= limit
}

/// Fails if [`raise`] cannot raise the limit that far.
pub(crate) fn require(what: impl FnOnce() -> String, needed: u64) -> Result<(), FleetError> {
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < needed => {
            Err(FleetError::FewDescriptors { what: what(), needed, limit })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_refused_with_the_number_that_is_needed() {
        assert!(of_fleet(1) < of_fleet(2) && of_fleet(2) < 256);
        let refused = require(|| "a thing".into(), u64::MAX);
        let Err(error) = refused else { return };
        let line = error.to_string();
        assert!(line.starts_with("a thing needs 18446744073709551615 "), "{line}");
        assert!(line.contains("ulimit -n 18446744073709551615"), "{line}");
        assert!(require(|| unreachable!(), 1).is_ok());
    }

    #[test]
    fn existing_mappings_count() {
        let limit = getrlimit(Resource::As).current;
        assert_eq!(lets_map(std::process::id(), u64::MAX), limit.is_none());
        assert!(lets_map(std::process::id(), 4096));
        let refused = require_files(|| "a thing".into(), u64::MAX).map_err(|it| it.to_string());
        let Err(line) = refused else { return };
        assert!(line.ends_with("raise the limit (ulimit -f 18014398509481984)"), "{line}");
    }
}
