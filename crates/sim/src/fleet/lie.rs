//! Cells that accuse others at random, and are found and killed (decision 83).

use std::time::Duration;

use warren_base::{CellId, Epoch};
use warren_proto::control::Report;
use warren_supervisor::{Event as SupervisorEvent, VOTED_DOWN_MAX};

use super::lose::may_fall_ill;
use super::supervise::notify_supervisor;
use super::{Fleet, Happening, Surroundings};

/// The accusations of one liar, and the time between them, in which most trials end.
const LIES: u64 = 4;
const LIE_EVERY: Duration = Duration::from_micros(200);
/// The longest delay of a message, that of one that stalls, in the longest usual ones.
const SLOWEST: u64 = 100;

/// The cell begins to lie, perhaps.
pub(super) fn draw_liar<H>(fleet: &mut Fleet<H>, id: CellId) {
    let is_alone = fleet.cells.len() == 1;
    let lies = fleet.host(id).is_lying();
    // Looks at a process that is stopped for long would be many.
    let is_unfit = is_alone || lies || fleet.sim.faults.pauses > 0 || !fleet.may_be_lost(id);
    if is_unfit || !may_fall_ill(fleet, id) || !fleet.lost.is_drawn(fleet.lost.lies) {
        return;
    }
    fleet.sim.count("a cell that lies");
    let others = fleet.cell_ids().filter(|other| *other != id);
    let others: Vec<CellId> = others.collect();
    let (of, epoch) = (*fleet.lost.rng.pick(&others), fleet.epoch(id));
    fleet.host_mut(id).lies = Some(epoch);
    fleet.sim.plan(0, Happening::Lie { cell: id, epoch, of, number: 0 });
}

/// A cell accuses another one, whatever that does. Rule: an accuser that was voted down
/// [`VOTED_DOWN_MAX`] times is ended at its next accusation.
pub(super) fn lie<W: Surroundings>(
    world: &mut W,
    (cell, epoch): (CellId, Epoch),
    of: CellId,
    number: u64,
) {
    let fleet = world.fleet_mut();
    if !fleet.host(cell).is_running(epoch) || !fleet.may_be_lost(cell) {
        return;
    }
    if fleet.host(cell).is_sentenced == Some(epoch) {
        return fleet
            .sim
            .fail(format!("{cell} has accused {of} falsely again and again, and is spared"));
    }
    if number == LIES {
        return;
    }
    // The last accusation is still being tried.
    let is_tried = fleet.supervisor().detector().counts_turns(cell);
    let next = if is_tried { number } else { number + 1 };
    let accused = (of, fleet.epoch(of));
    let corrupt = fleet.supervisor().detector().voted_down((cell, epoch)) >= VOTED_DOWN_MAX;
    let is_judged = corrupt && fleet.supervisor().may_try(accused);
    if is_tried || !is_judged {
        fleet
            .sim
            .plan(LIE_EVERY.as_nanos() as u64, Happening::Lie { cell, epoch, of, number: next });
    }
    if is_tried {
        return;
    }
    let report = Report::Silent { cell: of };
    notify_supervisor(world, SupervisorEvent::Report { from: cell, epoch, report });
    let fleet = world.fleet_mut();
    if is_judged {
        fleet.host_mut(cell).is_sentenced = Some(epoch);
        // Also a slow verdict has come by then.
        let late = SLOWEST * fleet.sim.pace.message;
        fleet.sim.plan(late, Happening::Lie { cell, epoch, of, number: LIES });
    }
}
