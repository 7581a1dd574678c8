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

use super::{Fleet, Happening, load_ledger};

/// A supervisor that died among the effects of an event.
pub(super) struct SupervisorDeath {
    /// The effects that it carried out.
    pub done: Vec<Effect>,
    left: Vec<Effect>,
    record: Vec<u8>,
    /// The successors of cells whose start was among the effects.
    started: Vec<(CellId, Epoch)>,
    /// All effects were carried out and noted.
    is_noted: bool,
}

/// Draws whether the supervisor dies with these effects.
pub(super) fn draw_supervisors_death<H>(fleet: &mut Fleet<H>, effects: &[Effect]) -> bool {
    let may_die = started(effects).all(|(cell, _)| fleet.may_end(cell));
    may_die && fleet.sim.is_drawn(fleet.sim.faults.deaths, 10_000)
}

/// The supervisor dies. The caller carries out the effects that it has done, and then has the next
/// one take over.
pub(super) fn kill_supervisor<H>(
    fleet: &mut Fleet<H>,
    mut effects: Vec<Effect>,
) -> SupervisorDeath {
    fleet.sim.count("a supervisor killed");
    fleet.count_after_loss("a supervisor killed after a failed flush");
    let record = fleet.supervisor().record();
    let started = started(&effects).collect();
    let done = fleet.sim.rng.below(effects.len() as u64 + 1) as usize;
    let left = effects.split_off(done);
    let is_noted = left.is_empty() && fleet.sim.rng.chance(1, 2);
    SupervisorDeath { done: effects, left, record, started, is_noted }
}

/// The next supervisor takes over. Returns the effects that its predecessor has left, and those
/// that it wants before any event.
pub(super) fn take_over<H>(
    fleet: &mut Fleet<H>,
    death: SupervisorDeath,
) -> (Vec<Effect>, Vec<Effect>) {
    let SupervisorDeath { left, record, started, is_noted, .. } = death;
    let flushed = fleet.device.let_supervised_land(&mut fleet.sim, &mut fleet.incidents);
    fleet.supervisor.wake = None;
    fleet.supervisor.number += 1;
    let (ledger, copies) = load_ledger(&fleet.device.disk).expect("a pool that can be opened");
    let predecessor = Predecessor { record: &record, ledger, copies, flushed };
    let mut catching_up = Vec::new();
    let (now, wall) = (fleet.sim.now, fleet.sim.wall());
    let adopted = Supervisor::adopt(predecessor, now, wall, &mut catching_up);
    fleet.supervisor.supervisor = Some(adopted.expect("its own record"));
    if !is_noted {
        started.into_iter().for_each(|(cell, epoch)| give_up(fleet, cell, epoch));
    }
    let repeatable =
        |effect: &Effect| effect.is_repeatable() && !matches!(effect, Effect::Restart { .. });
    (left.into_iter().filter(repeatable).collect(), catching_up)
}

/// A successor that was about to start is not started, or is killed at once.
fn give_up<H>(fleet: &mut Fleet<H>, cell: CellId, epoch: Epoch) {
    fleet.sim.count("a successor given up by another supervisor");
    let host = fleet.host_mut(cell);
    assert!(host.dead, "it starts later");
    (host.epoch, host.is_starting) = (epoch, false);
    host.orders.clear();
    let delay = fleet.sim.message_delay();
    fleet.sim.plan(delay, Happening::Exited { cell, epoch });
}

fn started(effects: &[Effect]) -> impl Iterator<Item = (CellId, Epoch)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Restart { cell, epoch, .. } => Some((*cell, *epoch)),
        _ => None,
    })
}
