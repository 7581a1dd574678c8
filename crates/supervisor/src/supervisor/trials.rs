//! Processes that hang, or are said to, and cells that accuse others.

use warren_base::{CellId, Epoch};
use warren_proto::control::Order;

use super::Supervisor;
use crate::alarm::Process;
use crate::detector::Accusation;
use crate::event::Verdict;
use crate::turn::Turn;
use crate::watch::Hint;

impl Supervisor {
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

    /// A cell accuses another one, which does not answer it. All cells ask the accused, also the
    /// accuser, and the supervisor asks it too.
    pub(super) fn charged(&mut self, by: Process, cell: CellId, turn: &mut Turn<'_>) {
        if !self.fleet.has(cell) || cell == by.0 {
            return;
        }
        let accused = (cell, self.fleet.epoch(cell));
        if !self.may_try(accused) {
            return;
        }
        match self.detector.charge(by, accused, turn.now) {
            Accusation::Ignored => {}
            Accusation::OfCorrupt => self.kill(by, Verdict::VotedDown { of: cell }, turn.now, turn),
            Accusation::Tried(trial) => {
                turn.send(self.fleet.living(), &Order::Probe { cell, trial });
            }
        }
    }

    /// Whether the process can be tried: it lives, and would get a successor.
    pub fn may_try(&self, (cell, epoch): (CellId, Epoch)) -> bool {
        let lives = self.fleet.is_current(cell, epoch) && self.fleet.state(cell).is_running();
        // If nothing can be recorded any more there are no successors.
        lives && self.replaces_cells() && self.committer.broken().is_none()
    }

    /// Whether the driver must say when the process of the cell turns ([`Event::Turns`]).
    pub fn counts_turns(&self, cell: CellId) -> bool {
        self.detector.counts_turns(cell)
    }

    /// How often accusations of the cell's process were voted down, those against one cell.
    pub fn voted_down(&self, cell: CellId) -> u32 {
        self.detector.voted_down((cell, self.fleet.epoch(cell)))
    }

    /// Ends the processes that hang by the outcome of their trials.
    pub(super) fn judge(&mut self, turn: &mut Turn<'_>) {
        for (process, verdict, began) in self.detector.verdicts(turn.now) {
            self.kill(process, verdict, began, turn);
        }
    }

    /// A cell reports that it has lost a wake-up.
    pub(super) fn lost_wakeup(&mut self, process: Process, turn: &mut Turn<'_>) {
        if self.may_try(process) {
            self.kill(process, Verdict::LostWakeup, turn.now, turn);
        }
    }
}
