//! The supervisor's watch looks at cells that are stopped, and at the turns of cells on trial.

use warren_base::{CellId, Epoch};
use warren_supervisor::{Event as SupervisorEvent, Hint, LOOK_EVERY, Seen};

use super::supervise::{notify_supervisor, plan_looks_at_turns};
use super::{Happening, Surroundings};

/// The supervisor's watch looks at a cell that was stopped, or (`errs`) accuses it first although
/// it may work.
pub(super) fn look_at_cell<W: Surroundings>(world: &mut W, id: CellId, epoch: Epoch, errs: bool) {
    let fleet = world.fleet_mut();
    // A successor too many would end the fleet.
    if !fleet.host(id).is_running(epoch) || !fleet.may_be_lost(id) {
        return;
    }
    if errs {
        fleet.sim.count("a hint that is wrong");
        let why = Hint::Sleeps;
        notify_supervisor(world, SupervisorEvent::Hangs { cell: id, epoch, why });
    }
    let fleet = world.fleet_mut();
    let now = fleet.sim.now;
    let seen = fleet.host_mut(id).pause.look(now);
    if fleet.host(id).pause.end(now).is_some() || seen != Seen::Nothing {
        let next = Happening::Look { cell: id, epoch, errs: false };
        fleet.sim.plan(LOOK_EVERY.as_nanos() as u64, next);
    }
    match seen {
        Seen::Nothing => {}
        Seen::Hangs(why) => {
            fleet.sim.count("a hint that a cell hangs");
            notify_supervisor(world, SupervisorEvent::Hangs { cell: id, epoch, why });
        }
        Seen::Moves => {
            fleet.sim.count("an accused cell that moves again");
            notify_supervisor(world, SupervisorEvent::Moves { cell: id, epoch });
        }
    }
}

/// The supervisor looks at the turns of all cells. A process has turned its loop if it is not
/// stopped, and has taken its orders. Its reports are there by then.
pub(super) fn look_at_turns<W: Surroundings>(world: &mut W) {
    world.fleet_mut().lost.looks = false;
    for cell in world.fleet().cell_ids() {
        let fleet = world.fleet_mut();
        let (now, epoch) = (fleet.sim.now, fleet.epoch(cell));
        let host = fleet.host(cell);
        let is_done = host.orders.is_empty() && host.reports.is_empty();
        let turns = !host.dead && is_done && host.pause.end(now).is_none();
        if turns && fleet.supervisor().detector().counts_turns(cell) {
            notify_supervisor(world, SupervisorEvent::Turns { cell, epoch });
        }
    }
    plan_looks_at_turns(world.fleet_mut());
}
