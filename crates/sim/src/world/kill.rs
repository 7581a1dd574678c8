//! Cells that are killed, and their successors.
//!
//! A process dies before an event, at any store while it is handled, or when it has carried out some of
//! the effects. What it had submitted to the device is still done, or not, in any order and late. What it
//! had said to other cells is in their inboxes, what it had answered in the clients' slots; of its reports
//! some were heard. Its frames stay.
//!
//! ```text
//! kill -> exit notice -> Lost: the others read what is left in their inboxes -> Restart
//!      -> the last of its I/O is over -> the successor starts, and hears who its clients are before anything
//!      -> Ready: it looks at all slots
//! ```

use warren_base::{CellId, Epoch};
use warren_cell::{Cell, Event, LogConfig, Plant, Recovery, SlotRef};
use warren_proto::control::{Order, Report};
use warren_proto::{Answer, Request, RequestHeader};
use warren_supervisor::{Event as Heard, SUCCESSORS_MAX, Stage};

use super::fleet::Happening;
use super::process::{Death, Link};
use super::{Phase, World};

impl World {
    /// Whether the cell dies with the event that comes.
    pub(super) fn draw_death(&mut self, id: CellId) -> Option<Death> {
        if self.swarm.kills == 0 || self.lives != 1 || !self.admitted || !self.may_be_lost(id) {
            return None;
        }
        if !self.rng.chance(self.swarm.kills, 10_000) {
            return None;
        }
        Some(Death::draw(&mut self.rng))
    }

    fn may_be_lost(&self, id: CellId) -> bool {
        let supervisor = self.supervisor.supervisor.as_ref().expect("between two events");
        let is_phase = match self.phase {
            Phase::Safety => true,
            Phase::Stopping => {
                matches!(supervisor.stage(), Stage::Expelling | Stage::LastCheckpoint { .. })
            }
            Phase::Heal | Phase::Stopped => false,
        };
        is_phase && self.may_end(id)
    }

    /// Whether the fleet goes on if the cell's process ends, or the one that is to start.
    pub(super) fn may_end(&self, id: CellId) -> bool {
        self.cells[usize::from(id.0)].ended_in_a_row < SUCCESSORS_MAX
    }

    /// What the supervisor is about to hear, as it counts processes that end.
    pub(super) fn count_ended(&mut self, event: &Heard) {
        match event {
            Heard::Report { from, report: Report::Ready { .. }, .. } => {
                self.cells[usize::from(from.0)].ended_in_a_row = 0;
            }
            Heard::CellExited { cell, .. } => self.cells[usize::from(cell.0)].ended_in_a_row += 1,
            _ => {}
        }
    }

    /// The cell's process is gone, whatever it was doing.
    pub(super) fn kill_cell(&mut self, id: CellId) {
        self.count("a cell killed");
        let lost_at = self.place();
        let host = &mut self.cells[usize::from(id.0)];
        let (was_ready, epoch) = (host.slots.is_ready, host.epoch);
        (host.cell, host.wake, host.dead) = (None, None, true);
        host.slots.forget();
        host.slots.lost_at = lost_at;
        host.orders.clear();
        let reports = std::mem::take(&mut host.reports);
        if !was_ready {
            self.count("a successor killed before it was ready");
        }
        for ((_, to), link) in &mut self.links {
            if *to == id {
                // Nobody reads it any more.
                link.is_open = false;
                link.number = 0;
                link.messages.clear();
            }
        }
        let heard = self.rng.below(reports.len() as u64 + 1) as usize;
        for report in reports.into_iter().take(heard) {
            self.tell_supervisor(Heard::Report { from: id, epoch, report });
        }
        let delay = self.message_delay();
        self.plan(delay, Happening::Exited { cell: id, epoch });
    }

    /// The supervisor wants a successor.
    pub(super) fn restart_cell(&mut self, id: CellId, epoch: Epoch) {
        self.make_links(id);
        let host = &mut self.cells[usize::from(id.0)];
        (host.epoch, host.is_starting, host.beginning) = (epoch, true, None);
        let delay = self.message_delay();
        self.plan(delay, Happening::Start { cell: id });
    }

    /// Fresh links between the cell and all others. Nobody can read them yet.
    pub(super) fn make_links(&mut self, id: CellId) {
        for other in (0..self.cells.len() as u16).map(CellId).filter(|other| *other != id) {
            for pair in [(id, other), (other, id)] {
                self.links_made += 1;
                let number = self.links_made;
                self.links.insert(pair, Link { number, ..Link::default() });
            }
        }
    }

    fn open_link(&mut self, from: CellId, to: CellId) {
        let link = self.links.get_mut(&(from, to)).expect("made when the cell was started again");
        link.is_open = true;
        let (is_empty, link) = (link.messages.is_empty(), link.number);
        if !is_empty {
            let delay = self.message_delay();
            self.plan(delay, Happening::Peer { from, to, link });
        }
    }

    /// Starts the successor that is wanted, once nothing of its predecessors is under way.
    pub(super) fn start_successor(&mut self, id: CellId) {
        let host = &self.cells[usize::from(id.0)];
        let is_quiet = host.in_flight.is_empty() || self.plant == Some(Plant::StartEarly);
        if !host.is_starting || !is_quiet {
            return;
        }
        let epoch = host.epoch;
        let supervisor = self.supervisor.supervisor.as_ref().expect("between two events");
        let (ledger, cells) = (supervisor.ledger(), self.cells.len() as u16);
        let log = LogConfig {
            area: ledger.superblock().layout.log_area(usize::from(id.0), usize::from(cells)),
            incarnation: ledger.logs().incarnation,
            start: ledger.logs().starts[usize::from(id.0)],
            recovery: Recovery::Process,
        };
        let config = self.cell_config((id, epoch), cells, ledger, &[], log);
        let mut effects = Vec::new();
        let cell = Cell::new(config, self.clock(), &mut effects);
        let host = &mut self.cells[usize::from(id.0)];
        (host.cell, host.dead, host.is_starting) = (Some(cell), false, false);
        host.slots.forget();
        let beginning = host.beginning.expect("all that came with the order to start it is said");
        let beginning: Vec<Order> = host.orders.drain(..beginning).collect();
        for other in (0..cells).map(CellId).filter(|other| *other != id) {
            self.open_link(other, id);
        }
        for order in beginning {
            self.obey(id, order);
            if self.cells[usize::from(id.0)].dead {
                return self.count("a successor killed before its first turn");
            }
        }
        if !self.cells[usize::from(id.0)].orders.is_empty() {
            let delay = self.message_delay();
            self.plan(delay, Happening::Order { to: id, epoch });
        }
        self.carry_out(id, effects);
    }

    /// What a driver does before its cell hears the order.
    pub(super) fn prepare_order(&mut self, to: CellId, order: &Order) {
        match order {
            Order::Lost { cell: lost, .. } => self.read_last_words(*lost, to),
            Order::Joined { cell, .. } => self.open_link(*cell, to),
            // The device need not say so again.
            Order::Failed { broken: true, .. } => {
                self.cells[usize::from(to.0)].flush_failed = false;
            }
            Order::Admit { client, .. } => {
                let keep_words = self.plant == Some(Plant::KeepWords);
                self.lanes.reopen(to, *client, keep_words);
            }
            _ => {}
        }
    }

    /// Everything that the lost cell had sent is handled.
    fn read_last_words(&mut self, lost: CellId, by: CellId) {
        while let Some(link) = self.links.get_mut(&(lost, by))
            && let Some(message) = link.messages.pop_front()
        {
            link.number = 0;
            self.count("last words of a lost cell");
            self.happen_to(by, Event::Peer { from: lost, message });
        }
    }

    /// A request is in its slot. A cell that cannot take it finds it there later.
    pub(super) fn offer(
        &mut self,
        cell: CellId,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
    ) {
        let host = &mut self.cells[usize::from(cell.0)];
        if host.slots.post(from, header, request.clone()) {
            self.happen_to(cell, Event::Request { from, header, request });
        }
    }

    /// The cell serves: it looks at all slots.
    pub(super) fn cell_is_ready(&mut self, id: CellId) {
        self.note_unanswered(id);
        self.look_at_slots(id);
    }

    /// A driver that serves looks at all slots of the clients that it knows.
    pub(super) fn look_at_slots(&mut self, id: CellId) {
        let slots = &self.cells[usize::from(id.0)].slots;
        let waiting = if slots.is_ready { slots.waiting() } else { Vec::new() };
        if !waiting.is_empty() {
            self.count("a successor found requests waiting");
        }
        for (from, header, request) in waiting {
            self.plan_request(id, from, header, request);
        }
    }

    /// What a predecessor did for clients that are gone: nobody will hear of it, but it happened.
    fn note_unanswered(&mut self, id: CellId) {
        let host = &self.cells[usize::from(id.0)];
        let cell = host.cell.as_ref().expect("it is ready");
        let is_new = |(to, seq, _): &(SlotRef, u32, &Answer)| !host.slots.is_answered(*to, *seq);
        let executed = cell.unanswered().filter(is_new);
        let executed: Vec<_> = executed.map(|(to, seq, a)| (to, seq, a.clone())).collect();
        for (to, seq, answer) in executed {
            if self.clients.iter().any(|client| client.id == to.client && client.is_gone) {
                let hint = self.place();
                self.would_answer(id, to, seq, hint, answer);
            } else {
                let slots = &mut self.cells[usize::from(id.0)].slots;
                slots.hints.entry((to, seq)).or_insert(slots.lost_at);
            }
        }
    }
}
