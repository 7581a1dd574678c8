//! Whether a process may have as many descriptors as a fleet or a front takes.
//!
//! With too few it would start and then fail where nothing can be done about it. So a start is refused, and says how
//! many there must be.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use warren_base::limits::CELLS_MAX;

use crate::error::FleetError;
use crate::message::{PEER_DESCRIPTORS, welcome_descriptors};
use crate::supervisor::descriptors::Reserve;

/// Of a supervisor: standard streams, its links and notes, the pool, the map, the door.
const OWN: usize = 16;

/// Of a supervisor, for each cell: its memory, its process, the pool for the next one.
const OF_A_CELL: usize = 8;

/// Of a client, with the keeper and the supervisor, beside one a cell.
const OF_A_CLIENT: usize = 3;

/// Of a front and its custodian beside the admission: standard streams, device, ledger, links, signals, threads.
const OF_A_FRONT: usize = 60;

/// Descriptors without which a fleet of so many cells may not come to serve one client: while cells start, what
/// links each two of them may all be on the way.
pub fn of_fleet(cells: usize) -> u64 {
    let links = cells * cells.saturating_sub(1) * PEER_DESCRIPTORS;
    let client = OF_A_CLIENT + cells + welcome_descriptors(cells);
    Reserve::of(cells).count() + (OWN + cells * OF_A_CELL + links + client) as u64
}

/// Those of a front, whatever its fleet.
pub fn of_front() -> u64 {
    (OF_A_FRONT + welcome_descriptors(CELLS_MAX)) as u64
}

/// Takes as many as may be had.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Refuses to go on where [`raise`] cannot make room for so many.
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
}
