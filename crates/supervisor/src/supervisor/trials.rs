//! Processes that hang or send invalid messages, or are said to.

use warren_base::{CellId, Epoch};
use warren_proto::control::{Order, Suspicion};

use super::Supervisor;
use crate::alarm::Process;
use crate::detector::Detector;
use crate::event::Effect;
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
        let (cell, _) = accused;
        // The report may be late, or name a process that never existed.
        if !lives(self, accused) || cell == by.0 {
            return;
        }
        match self.alarms.raise(turn.now, by, accused, why) {
            Ok(None) => {}
            Ok(Some((process, verdict))) => self.kill(process, verdict, turn.now, turn),
            Err(failure) => self.fail(failure, turn),
        }
    }

    /// The watch says that a process of a cell hangs: all others ask it. A process that would have
    /// no successor is resumed instead, if it is stopped.
    pub(super) fn accused(&mut self, accused: Process, why: Hint, turn: &mut Turn<'_>) {
        if !self.may_try(accused) {
            return resume(self, accused, why, turn);
        }
        let cell = accused.0;
        let Some(trial) = self.detector.accuse(accused, why, turn.now) else { return };
        let mut others = self.fleet.living();
        others.remove(cell);
        turn.send(others, &Order::Probe { cell, trial });
        self.set_wake(turn);
    }

    /// Whether the process can be tried: it lives, and would get a successor.
    pub fn may_try(&self, process: (CellId, Epoch)) -> bool {
        // If nothing can be recorded there are no successors.
        let records = self.committer.broken().is_none() && self.schedule.failing_since().is_none();
        lives(self, process) && self.replaces_cells() && records
    }

    /// The trials of cells.
    pub const fn detector(&self) -> &Detector {
        &self.detector
    }
}

fn resume(core: &Supervisor, (cell, epoch): Process, why: Hint, turn: &mut Turn<'_>) {
    if why == Hint::Stopped && lives(core, (cell, epoch)) {
        turn.push(Effect::Resume { cell, epoch });
    }
}

fn lives(core: &Supervisor, (cell, epoch): Process) -> bool {
    core.fleet.is_current(cell, epoch) && core.fleet.state(cell).is_running()
}
