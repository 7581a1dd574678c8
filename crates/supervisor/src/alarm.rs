//! Cells that accuse each other (decision 19).
//!
//! A cell that finds what no correct cell writes stops reading that peer and raises an *alarm*. It
//! cannot be known which of the two is damaged. So one of them is ended and gets a successor, and
//! the successor gets a new link to the other:
//!
//! ```text
//! the first alarm of a process within the window   ends the accused
//! each further alarm of it, against any peer       ends the accuser
//! ALARMS_MAX alarms of all cells in the window     end the fleet
//! ```
//!
//! Invariants:
//! * Each alarm between two running processes, of which neither is being ended yet, ends one of
//!   them, because the accuser no longer reads the accused.
//! * One damaged process ends at most one healthy process.

use std::time::Duration;

use warren_base::{CellId, Epoch, Instant};
use warren_proto::Wire;
use warren_proto::control::Suspicion;

use crate::event::{Failure, Verdict};

/// The time for which an alarm counts. A damaged process is found again sooner than this, and two
/// faults of a machine are rarely so close together.
pub(crate) const ALARM_WINDOW: Duration = Duration::from_secs(60);

/// So many alarms within the window cannot come from one process: the same number as the
/// successors that are started in a row.
pub const ALARMS_MAX: usize = 12;

/// A process of a cell.
pub(crate) type Process = (CellId, Epoch);

#[derive(Wire)]
struct Alarm {
    at: Instant,
    /// The process that raised it, and the process that was ended for it.
    by: Process,
    ended: Process,
}

/// The alarms within the window.
#[derive(Default, Wire)]
pub(crate) struct Alarms {
    recent: Vec<Alarm>,
}

impl Alarms {
    /// A process raises an alarm against a running process of another cell. Returns the process to
    /// end, `None` if one of the two is being ended already, or the failure if there were too many.
    pub(crate) fn raise(
        &mut self,
        at: Instant,
        by: Process,
        accused: Process,
        why: Suspicion,
    ) -> Result<Option<(Process, Verdict)>, Failure> {
        if self.is_ending(by) || self.is_ending(accused) {
            return Ok(None);
        }
        self.recent.retain(|alarm| alarm.at + ALARM_WINDOW > at);
        let has_accused = self.recent.iter().any(|alarm| alarm.by == by);
        let (ended, verdict) = match has_accused {
            false => (accused, Verdict::Accused { by: by.0, why }),
            true => (by, Verdict::AccusesAgain { of: accused.0, why }),
        };
        self.recent.push(Alarm { at, by, ended });
        let alarms = self.recent.len();
        if alarms >= ALARMS_MAX {
            return Err(Failure::Alarms { by: by.0, of: accused.0, alarms: alarms as u32, why });
        }
        Ok(Some((ended, verdict)))
    }

    /// Whether the process is being ended for an alarm.
    fn is_ending(&self, process: Process) -> bool {
        self.recent.iter().any(|alarm| alarm.ended == process)
    }
}
