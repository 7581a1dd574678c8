//! Cells that accuse each other (decision 19).
//!
//! A cell that finds what no honest cell writes stops reading that peer and raises an *alarm*. Who of the two is damaged cannot
//! be known, so one of them is ended and has a successor, and their link is made anew:
//!
//! ```text
//! the first alarm of a process within the window   ends the accused
//! every further one, whoever it accuses            ends the accuser
//! ALARMS_MAX alarms of all cells in the window     end the fleet
//! ```
//!
//! Invariants:
//! * Every alarm between two processes that live, and of which neither is being ended already, ends one of them: the
//!   accuser reads nothing of the accused any more.
//! * One process ends at most one other that did nothing.

use std::time::Duration;

use warren_base::{CellId, Epoch, Instant};
use warren_proto::Wire;
use warren_proto::control::Suspicion;

use crate::event::{Effect, Failure, Verdict};
use crate::fleet::CellState;
use crate::supervisor::{Supervisor, Turn};

/// How long an alarm is remembered: a damaged process shows itself again sooner, and two faults of a machine are
/// rarely so near each other.
pub const ALARM_WINDOW: Duration = Duration::from_secs(60);

/// So many alarms in that time are no matter of one process: as many as successors are tried that end in a row.
pub const ALARMS_MAX: usize = 12;

#[derive(Wire)]
struct Alarm {
    at: Instant,
    /// The process that has raised it, and the one that was ended for it.
    by: (CellId, Epoch),
    ended: (CellId, Epoch),
}

/// The alarms of the last while.
#[derive(Default, Wire)]
pub(crate) struct Alarms {
    recent: Vec<Alarm>,
}

impl Alarms {
    /// Whether the process is being ended for an alarm.
    fn is_ending(&self, process: (CellId, Epoch)) -> bool {
        self.recent.iter().any(|alarm| alarm.ended == process)
    }

    /// Notes an alarm and returns who is ended for it, accuser or accused.
    fn judge(
        &mut self,
        at: Instant,
        by: (CellId, Epoch),
        accused: (CellId, Epoch),
    ) -> (CellId, Epoch) {
        self.recent.retain(|alarm| alarm.at + ALARM_WINDOW > at);
        let has_accused = self.recent.iter().any(|alarm| alarm.by == by);
        let ended = if has_accused { by } else { accused };
        self.recent.push(Alarm { at, by, ended });
        ended
    }
}

impl Supervisor {
    /// A cell takes a process of another one for faulty.
    pub(crate) fn suspected(
        &mut self,
        by: (CellId, Epoch),
        accused: (CellId, Epoch),
        why: Suspicion,
        turn: &mut Turn<'_>,
    ) {
        let (cell, epoch) = accused;
        // Of one that is gone already, or that there never was.
        let lives = self.fleet.is_current(cell, epoch)
            && matches!(self.fleet.state(cell), CellState::Starting | CellState::Ready);
        let is_ending = self.alarms.is_ending(by) || self.alarms.is_ending(accused);
        if !lives || is_ending || cell == by.0 {
            return;
        }
        let ended = self.alarms.judge(turn.now, by, accused);
        let alarms = self.alarms.recent.len();
        if alarms >= ALARMS_MAX {
            let (by, alarms) = (by.0, alarms as u32);
            return self.fail(Failure::Alarms { by, of: cell, alarms, why }, turn);
        }
        let verdict = match ended == accused {
            true => Verdict::Accused { by: by.0, why },
            false => Verdict::AccusesAgain { of: cell, why },
        };
        let (cell, epoch) = ended;
        turn.effects.push(Effect::Kill { cell, epoch, verdict });
    }
}
