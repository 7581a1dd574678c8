//! A supervisor that is killed, and the one that takes over.
//!
//! Its process dies after it has noted the effects of an event and carried out some of them. (If it
//! dies before it has noted them, nothing has happened: the event is applied again.) Its I/O in
//! flight is done or not, and is over before the next one starts. The next supervisor carries out
//! the other effects. A receiver drops an effect that it gets twice, so here the second one is left
//! out. A successor of a cell whose start was among the effects is given up, unless all were
//! carried out and noted, as in the real processes.

use warren_base::{CellId, Epoch};
use warren_supervisor::{Effect, Predecessor, Supervisor};

use super::drive::follow;
use super::{Fleet, Happening, Surroundings, load_ledger};

impl<H> Fleet<H> {
    /// Whether the supervisor dies with these effects.
    pub(super) fn draw_supervisors_death(&mut self, effects: &[Effect]) -> bool {
        let may_die = started(effects).all(|(cell, _)| self.may_end(cell));
        may_die && self.sim.is_drawn(self.sim.faults.deaths, 10_000)
    }

    /// A successor that was about to start is not started, or is killed at once.
    fn give_up(&mut self, cell: CellId, epoch: Epoch) {
        self.sim.count("a successor given up by another supervisor");
        let host = self.host(cell);
        assert!(host.dead, "it starts later");
        (host.epoch, host.is_starting) = (epoch, false);
        host.orders.clear();
        let delay = self.sim.message_delay();
        self.sim.plan(delay, Happening::Exited { cell, epoch });
    }
}

/// Returns the effects that the next supervisor wants before any event.
pub(super) fn replace_supervisor<W: Surroundings>(
    world: &mut W,
    mut effects: Vec<Effect>,
) -> Vec<Effect> {
    let fleet = world.fleet_mut();
    fleet.sim.count("a supervisor killed");
    fleet.count_after_loss("a supervisor killed after a failed flush");
    let record = fleet.supervisor().record();
    let started: Vec<(CellId, Epoch)> = started(&effects).collect();
    let done = fleet.sim.rng.below(effects.len() as u64 + 1) as usize;
    let left = effects.split_off(done);
    let is_noted = left.is_empty() && fleet.sim.rng.chance(1, 2);
    follow(world, effects);
    let fleet = world.fleet_mut();
    let flushed = fleet.let_supervisors_io_land();
    fleet.supervisor.wake = None;
    fleet.supervisor.number += 1;
    let (ledger, copies) = load_ledger(&fleet.disk).expect("a pool that can be opened");
    let predecessor = Predecessor { record: &record, ledger, copies, flushed };
    let mut catching_up = Vec::new();
    let adopted = Supervisor::adopt(predecessor, fleet.sim.now, fleet.sim.wall(), &mut catching_up);
    fleet.supervisor.supervisor = Some(adopted.expect("its own record"));
    if !is_noted {
        started.into_iter().for_each(|(cell, epoch)| fleet.give_up(cell, epoch));
    }
    let repeatable =
        |effect: &Effect| effect.is_repeatable() && !matches!(effect, Effect::Restart { .. });
    follow(world, left.into_iter().filter(repeatable).collect());
    catching_up
}

fn started(effects: &[Effect]) -> impl Iterator<Item = (CellId, Epoch)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Restart { cell, epoch, .. } => Some((*cell, *epoch)),
        _ => None,
    })
}
