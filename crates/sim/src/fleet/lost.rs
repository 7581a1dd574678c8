//! What cells lose, and lies (decision 83): messages between cells, wake-ups of tasks, and cells
//! that accuse others at random. Afterwards all cells review what waits, as drivers make them do
//! about once a second.

use std::time::Duration;

use warren_base::{CellId, Epoch, Rng};
use warren_cell::{Event, PeerBody, PeerMessage, Plant};
use warren_proto::control::Report;
use warren_proto::{PeerReply, PeerRequest};
use warren_supervisor::Event as SupervisorEvent;

use super::drive::{happen_to, notify_supervisor};
use super::{Fleet, Happening, Surroundings};

/// The time between two reviews of a cell, and how many follow a loss.
const REVIEW_EVERY: Duration = Duration::from_secs(1);
const REVIEWS: u64 = 8;

/// The accusations of one liar, and the time between them, in which most trials end.
const LIES: u64 = 4;
const LIE_EVERY: Duration = Duration::from_micros(200);
/// The time between two looks at turns: runs are short.
const LOOK_EVERY: Duration = Duration::from_micros(2);

/// The most of each kind in a run, each of which takes seconds of virtual time.
const LOST_MAX: u64 = 3;

/// What a run may lose.
#[derive(Debug)]
pub(crate) struct Lost {
    /// Of its own, so that the mixes of the seeds stay what they are.
    rng: Rng,
    /// In 10,000: a message between cells is lost; a cell loses a wake-up with an event, or begins
    /// to lie.
    messages: u64,
    wakeups: u64,
    lies: u64,
    left: u64,
    /// Looks at the turns of the processes on trial are planned.
    looks: bool,
}

impl Lost {
    pub(crate) fn none() -> Self {
        Self { rng: Rng::new(0), messages: 0, wakeups: 0, lies: 0, left: 0, looks: false }
    }

    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1057);
        let messages = *rng.pick(&[0, 0, 5, 50]);
        let wakeups = *rng.pick(&[0, 0, 20, 200]);
        let lies = *rng.pick(&[0, 0, 0, 2]);
        let left = 1 + rng.below(LOST_MAX);
        Self { rng, messages, wakeups, lies, left, looks: false }
    }

    /// Nothing more is lost.
    pub(crate) const fn heal(&mut self) {
        self.left = 0;
    }

    /// All that was planned is gone.
    pub(super) const fn vanish(&mut self) {
        self.looks = false;
    }

    fn is_drawn(&mut self, chance: u64) -> bool {
        let is_drawn = self.left > 0 && chance > 0 && self.rng.chance(chance, 10_000);
        self.left -= u64::from(is_drawn);
        is_drawn
    }
}

/// Whether the loss of the message is found: not in a recovery, which has its own order, and not of
/// a free chunk.
const fn may_be_missed(message: &PeerMessage) -> bool {
    match &message.body {
        PeerBody::Request(request) => matches!(
            request,
            PeerRequest::Prepare { .. }
                | PeerRequest::Peek { .. }
                | PeerRequest::Commit { .. }
                | PeerRequest::Abort { .. }
                | PeerRequest::Count { .. }
                | PeerRequest::Clean { .. }
                | PeerRequest::Harden { .. }
                | PeerRequest::Inquire { .. }
        ),
        PeerBody::Reply(reply) => !matches!(reply, PeerReply::Probed { .. }),
        PeerBody::Pool(_) => false,
    }
}

impl<H> Fleet<H> {
    /// Whether the message is lost between two cells that serve.
    pub(super) fn loses(&mut self, from: CellId, to: CellId, message: &PeerMessage) -> bool {
        let serve = [from, to].iter().all(|cell| {
            let host = &self.cells[usize::from(cell.0)];
            !host.dead && host.slots.is_ready && !host.is_caretaker
        });
        if !serve || !self.is_served() || !may_be_missed(message) {
            return false;
        }
        let is_lost = self.lost.is_drawn(self.lost.messages);
        if is_lost {
            self.count("a message lost");
            self.plan_reviews();
        }
        is_lost
    }

    /// Whether the cell loses a wake-up of a task with its next event, if there is one.
    pub(super) fn draw_lost_wakeup(&mut self, id: CellId) -> bool {
        let Lost { wakeups, rng, .. } = &mut self.lost;
        let is_drawn = *wakeups > 0 && rng.chance(*wakeups, 10_000);
        // A cell that dies before the review may have executed the request, and lost the record of
        // that with a checkpoint.
        let is_only = self.faults.kills == 0 && self.faults.pauses == 0;
        is_drawn && is_only && self.may_fall_ill(id)
    }

    /// The cell has lost a wake-up.
    pub(super) fn lost_wakeup(&mut self) {
        self.count("a wake-up lost");
        self.lost.left -= 1;
        self.plan_reviews();
    }

    /// The cell begins to lie, perhaps.
    pub(super) fn draw_liar(&mut self, id: CellId) {
        let is_alone = self.cells.len() == 1;
        // Looks at a process that is stopped for long would be many.
        let is_unfit = is_alone || self.faults.pauses > 0;
        if is_unfit || !self.may_fall_ill(id) || !self.lost.is_drawn(self.lost.lies) {
            return;
        }
        self.count("a cell that lies");
        let others = (0..self.cells.len() as u16).map(CellId).filter(|other| *other != id);
        let others: Vec<CellId> = others.collect();
        let (of, epoch) = (*self.lost.rng.pick(&others), self.epoch(id));
        self.host(id).lies = Some(epoch);
        self.plan(0, Happening::Lie { cell: id, epoch, of, number: 0 });
    }

    /// Whether the cell works, and may be replaced.
    fn may_fall_ill(&self, id: CellId) -> bool {
        let host = &self.cells[usize::from(id.0)];
        self.lost.left > 0
            && host.slots.is_ready
            && !host.is_caretaker
            && self.may_be_lost(id)
            && self.plant.is_none_or(|plant| plant == Plant::SpareAccusers)
    }

    fn plan_reviews(&mut self) {
        for number in 1..=REVIEWS {
            let at = (REVIEW_EVERY * number as u32).as_nanos() as u64;
            for cell in (0..self.cells.len() as u16).map(CellId) {
                self.plan(at, Happening::Review { cell });
            }
        }
    }

    /// The processes on trial are looked at as long as a trial depends on their turns.
    pub(super) fn plan_looks_at_turns(&mut self) {
        let mut cells = (0..self.cells.len() as u16).map(CellId);
        if !self.lost.looks && cells.any(|cell| self.supervisor().counts_turns(cell)) {
            self.lost.looks = true;
            self.plan(LOOK_EVERY.as_nanos() as u64, Happening::Turns);
        }
    }
}

/// A cell reviews what waits.
pub(super) fn review<W: Surroundings>(world: &mut W, cell: CellId) {
    if world.fleet().cells[usize::from(cell.0)].slots.is_ready {
        happen_to(world, cell, Event::Review);
    }
}

/// The supervisor looks at the turns of all cells. A process has turned its loop if it is not
/// stopped, and has taken its orders. Its reports are there by then.
pub(super) fn look_at_turns<W: Surroundings>(world: &mut W) {
    world.fleet_mut().lost.looks = false;
    for cell in (0..world.fleet().cells.len() as u16).map(CellId) {
        let fleet = world.fleet_mut();
        let (now, epoch) = (fleet.now, fleet.epoch(cell));
        let host = fleet.host(cell);
        let is_done = host.orders.is_empty() && host.reports.is_empty();
        let turns = !host.dead && is_done && host.pause.end(now).is_none();
        if turns && fleet.supervisor().counts_turns(cell) {
            notify_supervisor(world, SupervisorEvent::Turns { cell, epoch });
        }
    }
    world.fleet_mut().plan_looks_at_turns();
}

/// A cell accuses another one, whatever that does. Rule: an accuser that was voted down twice is
/// ended at its next accusation.
pub(super) fn lie<W: Surroundings>(
    world: &mut W,
    (cell, epoch): (CellId, Epoch),
    of: CellId,
    number: u64,
) {
    let fleet = world.fleet_mut();
    if !fleet.is_running(cell, epoch) || !fleet.may_be_lost(cell) {
        return;
    }
    if fleet.host(cell).is_sentenced == Some(epoch) {
        return fleet
            .fail(format!("{cell} has accused {of} falsely again and again, and is spared"));
    }
    if number == LIES {
        return;
    }
    // The last accusation is still being tried.
    let is_tried = fleet.supervisor().counts_turns(cell);
    let next = if is_tried { number } else { number + 1 };
    fleet.plan(LIE_EVERY.as_nanos() as u64, Happening::Lie { cell, epoch, of, number: next });
    if is_tried {
        return;
    }
    let accused = (of, fleet.epoch(of));
    let is_judged = fleet.supervisor().voted_down(cell) >= 2 && fleet.supervisor().may_try(accused);
    let report = Report::Silent { cell: of };
    notify_supervisor(world, SupervisorEvent::Report { from: cell, epoch, report });
    let fleet = world.fleet_mut();
    if is_judged {
        fleet.host(cell).is_sentenced = Some(epoch);
    }
}
