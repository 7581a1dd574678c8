//! A supervisor that is killed, and the one that takes over.
//!
//! Its process dies when it has noted what an event led to, and carried out some of the effects. (Before it
//! has noted it, nothing has happened: the event comes again.) What it had given the device is done or not,
//! and over before the next one starts. Of the effects the next one does what is left; who would get one for
//! the second time drops it, so here it is left out. A successor of a cell whose start was among the
//! effects is given up, unless all was done and noted: so do the real processes.

use warren_base::{CellId, Epoch};
use warren_supervisor::{Effect, Estate, Stage, Supervisor};

use super::fleet::Happening;
use super::{Phase, World};

impl World {
    /// Whether the supervisor dies with these effects.
    pub(super) fn draw_supervisors_death(&mut self, effects: &[Effect]) -> bool {
        let supervisor = self.supervisor.supervisor.as_ref().expect("between two events");
        let is_phase = matches!(self.phase, Phase::Safety | Phase::Stopping);
        if self.swarm.deaths == 0 || self.lives != 1 || !self.admitted || !is_phase {
            return false;
        }
        if matches!(supervisor.stage(), Stage::Starting | Stage::Opening) {
            return false;
        }
        if started(effects).any(|(cell, _)| !self.may_end(cell)) {
            return false;
        }
        self.rng.chance(self.swarm.deaths, 10_000)
    }

    /// Gives what the next one wants done before it hears anything.
    pub(super) fn replace_supervisor(&mut self, mut effects: Vec<Effect>) -> Vec<Effect> {
        self.count("a supervisor killed");
        let record = self.supervisor.supervisor.as_ref().expect("it has applied an event").record();
        let started: Vec<(CellId, Epoch)> = started(&effects).collect();
        let done = self.rng.below(effects.len() as u64 + 1) as usize;
        let left = effects.split_off(done);
        let is_noted = left.is_empty() && self.rng.chance(1, 2);
        self.do_all_for_supervisor(effects);
        let flushed = self.let_supervisors_io_land();
        self.supervisor.wake = None;
        self.supervisor.number += 1;
        let (superblock, copies) = self.read_superblock();
        let ledger = self.load_ledger(superblock);
        let estate = Estate { record: &record, ledger, copies, flushed };
        let mut catching_up = Vec::new();
        let adopted = Supervisor::adopt(estate, self.now, self.wall(), &mut catching_up);
        self.supervisor.supervisor = Some(adopted.expect("its own record"));
        let repeatable =
            |effect: &Effect| effect.is_repeatable() && !matches!(effect, Effect::Restart { .. });
        if !is_noted {
            started.into_iter().for_each(|(cell, epoch)| self.give_up(cell, epoch));
        }
        self.do_all_for_supervisor(left.into_iter().filter(repeatable).collect());
        catching_up
    }

    /// A successor that was about to start is not started, or is killed at once.
    fn give_up(&mut self, cell: CellId, epoch: Epoch) {
        self.count("a successor given up by another supervisor");
        let host = &mut self.cells[usize::from(cell.0)];
        assert!(host.dead, "it starts later");
        (host.epoch, host.is_starting) = (epoch, false);
        host.orders.clear();
        let delay = self.message_delay();
        self.plan(delay, Happening::Exited { cell, epoch });
    }
}

fn started(effects: &[Effect]) -> impl Iterator<Item = (CellId, Epoch)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Restart { cell, epoch } => Some((*cell, *epoch)),
        _ => None,
    })
}
