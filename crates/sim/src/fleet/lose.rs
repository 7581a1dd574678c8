//! Cells lose messages to each other and wake-ups of their tasks, and are found and killed
//! (decision 83).

use std::time::Duration;

use warren_base::CellId;
use warren_cell::{PeerBody, PeerMessage, Plant};

use super::lost::{Lost, is_of_recovery, may_be_missed};
use super::{CellHost, Fleet, Happening};

/// The time between two reviews of a cell.
const REVIEW_EVERY: Duration = Duration::from_secs(1);

/// Draws whether the message is lost: between two cells that serve, or in a recovery.
pub(super) fn draw_lost_message<H>(
    fleet: &mut Fleet<H>,
    from: CellId,
    to: CellId,
    message: &PeerMessage,
) -> bool {
    let hosts = [from, to].map(|cell| fleet.host(cell));
    if hosts.iter().any(|host| host.dead) || !may_be_missed(message) {
        return false;
    }
    let serve = hosts.iter().all(|host| host.slots.is_ready && !host.is_caretaker);
    let is_of_chunks = matches!(message.body, PeerBody::Pool(_));
    let is_lost = if is_of_chunks {
        fleet.lost.is_chunk_drawn()
    } else if serve && fleet.is_served() {
        fleet.lost.is_drawn(fleet.lost.messages)
    } else {
        is_of_recovery(message) && fleet.lost.is_recovery_drawn(message)
    };
    if is_lost {
        fleet.sim.count(match serve {
            _ if is_of_chunks => "a message about chunks lost",
            true => "a message lost",
            false => "a message of a recovery lost",
        });
        plan_reviews(fleet);
    }
    is_lost
}

/// Draws whether the cell loses a wake-up of a task with its next event, if there is one.
pub(super) fn draw_lost_wakeup<H>(fleet: &mut Fleet<H>, id: CellId) -> bool {
    let Lost { wakeups, rng, .. } = &mut fleet.lost;
    let is_drawn = *wakeups > 0 && rng.chance(*wakeups, 10_000);
    let is_only = || {
        let mut hosts = fleet.cells.iter();
        let lies = hosts.any(CellHost::is_lying);
        fleet.sim.faults.kills == 0 && fleet.sim.faults.pauses == 0 && !lies
    };
    is_drawn && is_only() && may_fall_ill(fleet, id)
}

/// The cell has lost a wake-up.
pub(super) fn note_lost_wakeup<H>(fleet: &mut Fleet<H>, id: CellId) {
    fleet.sim.count("a wake-up lost");
    fleet.lost.left -= 1;
    let process = (id, fleet.epoch(id));
    fleet.lost.wakeups_of.insert(process);
    plan_reviews(fleet);
}

/// Whether the cell works, and may be replaced.
pub(super) fn may_fall_ill<H>(fleet: &Fleet<H>, id: CellId) -> bool {
    let host = &fleet.host(id);
    fleet.lost.left > 0
        && host.slots.is_ready
        && !host.is_caretaker
        && fleet.is_served()
        && fleet.may_end(id)
        && fleet.sim.plant.is_none_or(|plant| plant == Plant::SpareAccusers)
}

/// From now on all cells review what waits: what a loss has stopped may show only much later, when
/// a cell that was out serves again.
fn plan_reviews<H>(fleet: &mut Fleet<H>) {
    if !std::mem::replace(&mut fleet.lost.reviews, true) {
        for cell in fleet.cell_ids() {
            plan_review(fleet, cell);
        }
    }
}

pub(super) fn plan_review<H>(fleet: &mut Fleet<H>, cell: CellId) {
    fleet.sim.plan(REVIEW_EVERY.as_nanos() as u64, Happening::Review { cell });
}
