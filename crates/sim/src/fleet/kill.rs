//! Cells that are killed, and their successors.
//!
//! A process dies before an event, at any store while it is handled, or after it has carried out
//! some of the effects. I/O that it had submitted is still done, or not, in any order and late. Its
//! messages to other cells are in their inboxes, its answers in the clients' slots. Some of its
//! reports were read; the others come late and have no effect. Its frames stay.
//!
//! ```text
//! kill -> exit notice -> Lost: the other cells read the rest of their inboxes -> Restart
//! -> the last of its I/O is over -> the successor starts, and first receives its clients
//! -> Ready: it looks at all slots
//! ```
//!
//! Other cells lose a wake-up or a message, or lie (`lost`), and are found and killed.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, ClientId, Epoch, Ino};
use warren_cell::{Cell, Event, FrameNo, PeerBody, PeerMessage, Plant, SlotRef};
use warren_proto::control::{Order, Report};
use warren_proto::{Request, RequestHeader};
use warren_supervisor::{Event as SupervisorEvent, SUCCESSORS_MAX, VOTED_DOWN_MAX};

use super::drive::{carry_out, happen_to, notify_supervisor, obey};
use super::hang::Pause;
use super::lost::{LIE_EVERY, LIES, LOOK_EVERY, Lost, REVIEW_EVERY, is_of_recovery, may_be_missed};
use super::process::Death;
use super::{Fleet, Happening, Surroundings};

/// Places in the order of events reserved for requests that a process had executed and not
/// answered.
const UNANSWERED_MAX: u64 = 1000;
/// A process of a broken cell dies at one in so many events.
const DIES_EARLY: u64 = 3;
/// A late report takes up to so many times the longest delay of a message: until a successor is
/// there.
const LATE_REPORT: u64 = 20;
/// Bytes of an entry of a cell's table of frames, and where the checksum of the page is in it.
const ENTRY: usize = 32;
const CHECKSUM: usize = 28;
/// The longest delay of a message, in those that are usual: it stalls.
const SLOWEST: u64 = 100;
/// Wild stores of one process, and their bytes.
const WILD_STORES_MAX: u64 = 3;
const WILD_STORE: usize = 16;

impl<H> Fleet<H> {
    /// Whether the cell dies with the next event.
    pub(super) fn draw_death(&mut self, id: CellId) -> Option<Death> {
        let host = &self.cells[usize::from(id.0)];
        if host.is_broken && !host.is_caretaker && self.is_served() {
            return self.sim.rng.chance(1, DIES_EARLY).then(|| Death::draw(&mut self.sim.rng));
        }
        if self.sim.faults.kills == 0 || !self.may_be_lost(id) {
            return None;
        }
        let is_drawn = self.sim.rng.chance(self.sim.faults.kills, 10_000);
        is_drawn.then(|| Death::draw(&mut self.sim.rng))
    }

    /// Whether the fleet continues, and keeps what it has acknowledged, if the cell's process ends
    /// now.
    pub(crate) fn may_be_lost(&self, id: CellId) -> bool {
        self.is_served() && self.may_end(id) && self.lost.lets_die((id, self.epoch(id)))
    }

    /// Whether the supervisor retries if one more process of the cell ends, or the one that is to
    /// start.
    pub(super) fn may_end(&self, id: CellId) -> bool {
        self.cells[usize::from(id.0)].ended_in_a_row < SUCCESSORS_MAX
    }

    /// Counts ended processes by the supervisor's next event.
    pub(super) fn count_ended(&mut self, event: &SupervisorEvent) {
        match event {
            SupervisorEvent::Report { from, epoch, report: Report::Ready { .. } }
                if self.epoch(*from) == *epoch =>
            {
                self.host(*from).ended_in_a_row = 0;
            }
            SupervisorEvent::CellExited { cell, .. } => self.host(*cell).ended_in_a_row += 1,
            _ => {}
        }
    }

    /// The supervisor wants a successor.
    pub(super) fn restart_cell(&mut self, id: CellId, epoch: Epoch, is_caretaker: bool) {
        if !self.host(id).dead {
            return self
                .sim
                .fail(format!("cell {id} gets a successor, and its process is not gone"));
        }
        self.make_links(id);
        let host = self.host(id);
        host.is_caretaker = is_caretaker;
        (host.epoch, host.is_starting, host.beginning) = (epoch, true, None);
        host.is_to_end = false;
        let delay = self.sim.message_delay();
        self.sim.plan(delay, Happening::Start { cell: id });
    }

    /// A client that the supervisor forgets must be unknown to all cells.
    pub(super) fn check_forgotten(&mut self, client: ClientId) {
        let is_known = |cell: &CellId| !self.lanes.is_closed(*cell, client);
        if let Some(cell) = (0..self.cells.len() as u16).map(CellId).find(is_known) {
            self.sim.fail(format!("{client} is forgotten, but {cell} has not let it go"));
        }
    }
}

/// The cell's process is gone, whatever it was doing.
pub(crate) fn kill_cell<W: Surroundings>(world: &mut W, id: CellId) {
    let fleet = world.fleet_mut();
    fleet.sim.count("a cell killed");
    fleet.count_after_loss("a cell killed after a failed flush");
    let lost_at = fleet.sim.take_places(UNANSWERED_MAX);
    let host = fleet.host(id);
    let (was_ready, epoch) = (host.slots.is_ready, host.epoch);
    (host.cell, host.wake, host.dead) = (None, None, true);
    host.slots.forget();
    host.slots.lost_at = lost_at;
    host.orders.clear();
    store_wildly(fleet, id);
    let host = fleet.host(id);
    let reports = std::mem::take(&mut host.reports);
    if !was_ready {
        fleet.sim.count("a successor killed before it was ready");
    }
    fleet.close_links_to(id);
    let delivered = fleet.sim.rng.below(reports.len() as u64 + 1) as usize;
    let mut reports = reports.into_iter();
    for report in reports.by_ref().take(delivered) {
        notify_supervisor(world, SupervisorEvent::Report { from: id, epoch, report });
    }
    let fleet = world.fleet_mut();
    for report in reports {
        let delay = fleet.sim.rng.below(LATE_REPORT) * fleet.sim.message_delay();
        fleet.sim.plan(delay, Happening::LateReport { from: id, epoch, report });
    }
    let delay = fleet.sim.message_delay();
    fleet.sim.plan(delay, Happening::Exited { cell: id, epoch });
}

/// The process has damaged pages of its cache, perhaps.
fn store_wildly<H>(fleet: &mut Fleet<H>, id: CellId) {
    if fleet.sim.faults.wild == 0 || !fleet.sim.rng.chance(fleet.sim.faults.wild, 100) {
        return;
    }
    for _ in 0..=fleet.sim.rng.below(WILD_STORES_MAX) {
        let pages = pages_in_table(fleet, id);
        if pages.is_empty() {
            return;
        }
        let (ino, frame) = *fleet.sim.rng.pick(&pages);
        let at = fleet.sim.rng.below((BLOCK_SIZE - WILD_STORE) as u64) as usize;
        let byte = 1 + fleet.sim.rng.below(255) as u8;
        let stored = &mut fleet.host(id).frame_mut(frame)[at..at + WILD_STORE];
        stored.iter_mut().for_each(|it| *it ^= byte);
        fleet.incidents.wild.damaged.insert(ino);
        fleet.sim.count("a page damaged in its frame");
    }
}

/// The pages with checksums that the table of a dead process names, but for those that an I/O in
/// flight uses, and those that are spared.
fn pages_in_table<H>(fleet: &Fleet<H>, id: CellId) -> Vec<(Ino, FrameNo)> {
    let host = &fleet.cells[usize::from(id.0)];
    let cache = host.cache_frames;
    let first = host.frames.len() as u32 - cache.div_ceil((BLOCK_SIZE / ENTRY) as u32);
    let entry = |frame: u32| {
        let at = frame as usize * ENTRY;
        let table = host.frame(FrameNo(first + (at / BLOCK_SIZE) as u32));
        let entry = &table[at % BLOCK_SIZE..][..ENTRY];
        let ino = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
        let has_checksum = entry[CHECKSUM..].iter().any(|byte| *byte != 0);
        has_checksum.then_some((Ino(ino), FrameNo(frame)))
    };
    let is_used = |frame: &FrameNo| host.in_flight.values().any(|io| io.uses(*frame));
    let may_be = |(ino, frame): &(Ino, FrameNo)| {
        ino.0 != 0 && !fleet.incidents.wild.spared.contains(ino) && !is_used(frame)
    };
    (0..cache).filter_map(entry).filter(may_be).collect()
}

/// Starts the wanted successor, once no I/O of its predecessors is in flight.
pub(super) fn start_successor<W: Surroundings>(world: &mut W, id: CellId) {
    let fleet = world.fleet_mut();
    let starts_early = fleet.plant == Some(Plant::StartEarly);
    let host = fleet.host(id);
    if !host.is_starting || !(host.in_flight.is_empty() || starts_early) {
        return;
    }
    let mut effects = Vec::new();
    let cell = Cell::new(fleet.successor_config(id), fleet.sim.clock(), &mut effects);
    let errors = fleet.disk.errors;
    let host = fleet.host(id);
    (host.cell, host.dead, host.is_starting) = (Some(cell), false, false);
    host.pause = Pause::default();
    // It has written nothing yet that a flush could have lost.
    host.errors_seen = errors;
    host.slots.forget();
    let beginning = host.beginning.expect("all that came with the order to start it is said");
    let beginning: Vec<Order> = host.orders.drain(..beginning).collect();
    let cells = fleet.cells.len() as u16;
    for other in (0..cells).map(CellId).filter(|other| *other != id) {
        fleet.open_link(other, id);
    }
    for order in beginning {
        obey(world, id, order);
        let fleet = world.fleet_mut();
        if fleet.host(id).dead {
            return fleet.sim.count("a successor killed before its first turn");
        }
    }
    let fleet = world.fleet_mut();
    fleet.plan_order(id);
    if std::mem::take(&mut fleet.host(id).is_to_end) {
        let epoch = fleet.epoch(id);
        fleet.sim.plan(0, Happening::Kill { cell: id, epoch });
    }
    carry_out(world, id, effects);
}

/// A request is in its slot. A cell that cannot take it finds it there later.
pub(super) fn offer<W: Surroundings>(
    world: &mut W,
    cell: CellId,
    from: SlotRef,
    header: RequestHeader,
    request: Request,
) {
    if world.fleet_mut().host(cell).slots.submit(from, header, request.clone()) {
        happen_to(world, cell, Event::Request { from, header, request });
    }
}

/// The driver of a serving cell looks at all slots of the clients that it knows.
pub(super) fn look_at_slots<H>(fleet: &mut Fleet<H>, id: CellId) {
    let slots = &fleet.host(id).slots;
    let waiting = if slots.is_ready { slots.waiting() } else { Vec::new() };
    if !waiting.is_empty() {
        fleet.sim.count("a successor found requests waiting");
    }
    for (from, header, request) in waiting {
        fleet.plan_request(id, from, header, request);
    }
}

/// Whether the message is lost: between two cells that serve, or in a recovery.
pub(super) fn loses<H>(
    fleet: &mut Fleet<H>,
    from: CellId,
    to: CellId,
    message: &PeerMessage,
) -> bool {
    let hosts = [from, to].map(|cell| &fleet.cells[usize::from(cell.0)]);
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

/// Whether the cell loses a wake-up of a task with its next event, if there is one.
pub(super) fn draw_lost_wakeup<H>(fleet: &mut Fleet<H>, id: CellId) -> bool {
    let Lost { wakeups, rng, .. } = &mut fleet.lost;
    let is_drawn = *wakeups > 0 && rng.chance(*wakeups, 10_000);
    let is_only = || {
        let mut hosts = fleet.cells.iter();
        let lies = hosts.any(|host| host.lies == Some(host.epoch));
        fleet.sim.faults.kills == 0 && fleet.sim.faults.pauses == 0 && !lies
    };
    is_drawn && is_only() && may_fall_ill(fleet, id)
}

/// The cell has lost a wake-up.
pub(super) fn lost_wakeup<H>(fleet: &mut Fleet<H>, id: CellId) {
    fleet.sim.count("a wake-up lost");
    fleet.lost.left -= 1;
    let process = (id, fleet.epoch(id));
    fleet.lost.wakeups_of.insert(process);
    plan_reviews(fleet);
}

/// The cell begins to lie, perhaps.
pub(super) fn draw_liar<H>(fleet: &mut Fleet<H>, id: CellId) {
    let is_alone = fleet.cells.len() == 1;
    let lies = fleet.cells[usize::from(id.0)].lies == Some(fleet.epoch(id));
    // Looks at a process that is stopped for long would be many.
    let is_unfit = is_alone || lies || fleet.sim.faults.pauses > 0 || !fleet.may_be_lost(id);
    if is_unfit || !may_fall_ill(fleet, id) || !fleet.lost.is_drawn(fleet.lost.lies) {
        return;
    }
    fleet.sim.count("a cell that lies");
    let others = (0..fleet.cells.len() as u16).map(CellId).filter(|other| *other != id);
    let others: Vec<CellId> = others.collect();
    let (of, epoch) = (*fleet.lost.rng.pick(&others), fleet.epoch(id));
    fleet.host(id).lies = Some(epoch);
    fleet.sim.plan(0, Happening::Lie { cell: id, epoch, of, number: 0 });
}

/// Whether the cell works, and may be replaced.
fn may_fall_ill<H>(fleet: &Fleet<H>, id: CellId) -> bool {
    let host = &fleet.cells[usize::from(id.0)];
    fleet.lost.left > 0
        && host.slots.is_ready
        && !host.is_caretaker
        && fleet.is_served()
        && fleet.may_end(id)
        && fleet.plant.is_none_or(|plant| plant == Plant::SpareAccusers)
}

/// From now on all cells review what waits: what a loss has stopped may show only much later, when
/// a cell that was out serves again.
fn plan_reviews<H>(fleet: &mut Fleet<H>) {
    if !std::mem::replace(&mut fleet.lost.reviews, true) {
        for cell in (0..fleet.cells.len() as u16).map(CellId) {
            plan_review(fleet, cell);
        }
    }
}

fn plan_review<H>(fleet: &mut Fleet<H>, cell: CellId) {
    fleet.sim.plan(REVIEW_EVERY.as_nanos() as u64, Happening::Review { cell });
}

/// The processes on trial are looked at as long as a trial depends on their turns.
pub(super) fn plan_looks_at_turns<H>(fleet: &mut Fleet<H>) {
    let mut cells = (0..fleet.cells.len() as u16).map(CellId);
    if !fleet.lost.looks && cells.any(|cell| fleet.supervisor().detector().counts_turns(cell)) {
        fleet.lost.looks = true;
        fleet.sim.plan(LOOK_EVERY.as_nanos() as u64, Happening::Turns);
    }
}

/// A cell reviews what waits, and will again.
pub(super) fn review<W: Surroundings>(world: &mut W, cell: CellId) {
    plan_review(world.fleet_mut(), cell);
    if !world.fleet().cells[usize::from(cell.0)].dead {
        happen_to(world, cell, Event::Review);
    }
}

/// The supervisor looks at the turns of all cells. A process has turned its loop if it is not
/// stopped, and has taken its orders. Its reports are there by then.
pub(super) fn look_at_turns<W: Surroundings>(world: &mut W) {
    world.fleet_mut().lost.looks = false;
    for cell in (0..world.fleet().cells.len() as u16).map(CellId) {
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

/// A cell accuses another one, whatever that does. Rule: an accuser that was voted down
/// [`VOTED_DOWN_MAX`] times is ended at its next accusation.
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
        fleet.host(cell).is_sentenced = Some(epoch);
        // Also a slow verdict has come by then.
        let late = SLOWEST * fleet.sim.pace.message;
        fleet.sim.plan(late, Happening::Lie { cell, epoch, of, number: LIES });
    }
}
