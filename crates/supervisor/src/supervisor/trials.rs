//! Processes that hang or send invalid messages, or are said to.

use warren_base::{CellId, Epoch};
use warren_proto::control::{Order, Suspicion};

use super::Supervisor;
use crate::alarm::Process;
use crate::detector::Detector;
use crate::turn::Turn;
use crate::watch::Hint;

impl Supervisor {
    /// A cell reports a process of another cell as faulty.
    pub(super) fn suspected(
        &mut self,
        by: Process,
        accused: Process,
        why: Suspicion,
        turn: &mut Turn<'_>,
    ) {
        let (cell, epoch) = accused;
        // The report may be late, or name a process that never existed.
        let lives = self.fleet.is_current(cell, epoch) && self.fleet.state(cell).is_running();
        if !lives || cell == by.0 {
            return;
        }
        match self.alarms.raise(turn.now, by, accused, why) {
            Ok(None) => {}
            Ok(Some((process, verdict))) => self.kill(process, verdict, turn.now, turn),
            Err(failure) => self.fail(failure, turn),
        }
    }

    /// The watch says that a process of a cell hangs: all others ask it.
    pub(super) fn accused(&mut self, accused: Process, why: Hint, turn: &mut Turn<'_>) {
        if !self.may_try(accused) {
            return;
        }
        let cell = accused.0;
        let Some(trial) = self.detector.accuse(accused, why, turn.now) else { return };
        let mut others = self.fleet.living();
        others.remove(cell);
        turn.send(others, &Order::Probe { cell, trial });
        self.set_wake(turn);
    }

    /// Whether the process can be tried: it lives, and would get a successor.
    pub fn may_try(&self, (cell, epoch): (CellId, Epoch)) -> bool {
        let lives = self.fleet.is_current(cell, epoch) && self.fleet.state(cell).is_running();
        // If nothing can be recorded any more there are no successors.
        lives && self.replaces_cells() && self.committer.broken().is_none()
    }

    /// The trials of cells.
    pub const fn detector(&self) -> &Detector {
        &self.detector
    }
}
