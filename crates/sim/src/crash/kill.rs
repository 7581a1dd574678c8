//! Cells that are killed while others work, in lives that a power cut ends: as in `world/kill.rs`, over a
//! device that forgets.

use warren_base::{CellId, Epoch};
use warren_cell::{Cell, Event, LogConfig, Recovery, SlotRef};
use warren_proto::control::{Order, Report};
use warren_proto::{Request, RequestHeader};
use warren_supervisor::{Event as Heard, SUCCESSORS_MAX, Stage as Served};

use super::World;
use super::fleet::Happening;
use crate::world::process::{Death, Link};

impl World {
    /// Whether the cell dies with the event that comes.
    pub(super) fn draw_death(&mut self, id: CellId) -> Option<Death> {
        let supervisor = self.fleet.supervisor.supervisor.as_ref().expect("between two events");
        let is_served = matches!(
            supervisor.stage(),
            Served::Serving | Served::Expelling | Served::LastCheckpoint { .. }
        );
        let may_be_lost = self.is_working
            && is_served
            && self.fleet.cells[usize::from(id.0)].ended_in_a_row < SUCCESSORS_MAX;
        let kills = self.mix.kills;
        let is_drawn = kills > 0 && may_be_lost && self.rng.chance(kills, 10_000);
        is_drawn.then(|| Death::draw(&mut self.rng))
    }

    /// What the supervisor is about to hear, as it counts processes that end.
    pub(super) fn count_ended(&mut self, event: &Heard) {
        match event {
            Heard::Report { from, report: Report::Ready { .. }, .. } => {
                self.host(*from).ended_in_a_row = 0;
            }
            Heard::CellExited { cell, .. } => self.host(*cell).ended_in_a_row += 1,
            _ => {}
        }
    }

    /// The cell's process is gone, whatever it was doing.
    pub(super) fn kill_cell(&mut self, id: CellId) {
        self.count("a cell killed");
        let host = self.host(id);
        let epoch = host.epoch;
        (host.cell, host.wake, host.dead) = (None, None, true);
        host.slots.forget();
        host.orders.clear();
        let reports = std::mem::take(&mut host.reports);
        for ((_, to), link) in &mut self.fleet.links {
            if *to == id {
                // Nobody reads it any more.
                *link = Link::default();
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
        let host = self.host(id);
        (host.epoch, host.is_starting, host.beginning) = (epoch, true, None);
        let delay = self.message_delay();
        self.plan(delay, Happening::Start { cell: id });
    }

    /// Fresh links between the cell and all others. Nobody can read them yet.
    pub(super) fn make_links(&mut self, id: CellId) {
        let cells = self.fleet.cells.len() as u16;
        for other in (0..cells).map(CellId).filter(|other| *other != id) {
            for pair in [(id, other), (other, id)] {
                self.fleet.links_made += 1;
                let number = self.fleet.links_made;
                self.fleet.links.insert(pair, Link { number, ..Link::default() });
            }
        }
    }

    fn open_link(&mut self, from: CellId, to: CellId) {
        let link = self.fleet.links.get_mut(&(from, to)).expect("made with the successor");
        link.is_open = true;
        let (is_empty, link) = (link.messages.is_empty(), link.number);
        if !is_empty {
            let delay = self.message_delay();
            self.plan(delay, Happening::Peer { from, to, link });
        }
    }

    pub(super) fn deliver_peer(&mut self, from: CellId, to: CellId, number: u64) {
        let link = self.fleet.links.get_mut(&(from, to)).expect("cells have links");
        if link.number != number {
            return;
        }
        let message = link.messages.pop_front().expect("there is a message");
        if !link.messages.is_empty() {
            let delay = self.message_delay();
            self.plan(delay, Happening::Peer { from, to, link: number });
        }
        self.happen_to(to, Event::Peer { from, message });
    }

    /// Starts the successor that is wanted, once nothing of its predecessors is under way.
    pub(super) fn start_successor(&mut self, id: CellId) {
        let host = self.host(id);
        if !host.is_starting || !host.in_flight.is_empty() {
            return;
        }
        let epoch = host.epoch;
        let supervisor = self.fleet.supervisor.supervisor.as_ref().expect("between two events");
        let (ledger, cells) = (supervisor.ledger(), self.fleet.cells.len() as u16);
        let log = LogConfig {
            area: ledger.superblock().layout.log_area(usize::from(id.0), usize::from(cells)),
            incarnation: ledger.logs().incarnation,
            start: ledger.logs().starts[usize::from(id.0)],
            recovery: Recovery::Process,
        };
        let config = self.cell_config((id, epoch), cells, ledger, log);
        let mut effects = Vec::new();
        let cell = Cell::new(config, self.clock(), &mut effects);
        let errors = self.disk.errors;
        let host = self.host(id);
        (host.cell, host.dead, host.is_starting) = (Some(cell), false, false);
        host.slots.forget();
        host.errors_seen = errors;
        let beginning = host.beginning.expect("all that came with the order to start it is said");
        let beginning: Vec<Order> = host.orders.drain(..beginning).collect();
        for other in (0..cells).map(CellId).filter(|other| *other != id) {
            self.open_link(other, id);
        }
        for order in beginning {
            self.obey(id, order);
            if self.host(id).dead {
                return;
            }
        }
        if !self.host(id).orders.is_empty() {
            let delay = self.message_delay();
            self.plan(delay, Happening::Order { to: id, epoch });
        }
        self.carry_out(id, effects);
    }

    /// What a driver does before its cell hears the order.
    pub(super) fn prepare_order(&mut self, to: CellId, order: &Order) {
        match order {
            Order::Lost { cell: lost, .. } => {
                while let Some(link) = self.fleet.links.get_mut(&(*lost, to))
                    && let Some(message) = link.messages.pop_front()
                {
                    link.number = 0;
                    self.happen_to(to, Event::Peer { from: *lost, message });
                }
            }
            Order::Joined { cell, .. } => self.open_link(*cell, to),
            // The device need not say so again.
            Order::Failed { broken: true, .. } => self.host(to).errors_seen = self.disk.errors,
            _ => {}
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
        if self.host(cell).slots.post(from, header, request.clone()) {
            self.happen_to(cell, Event::Request { from, header, request });
        }
    }

    /// A driver that serves looks at all slots of the clients that it knows.
    pub(super) fn look_at_slots(&mut self, id: CellId) {
        let slots = &self.host(id).slots;
        let waiting = if slots.is_ready { slots.waiting() } else { Vec::new() };
        for (from, header, request) in waiting {
            let delay = self.message_delay();
            self.plan(delay, Happening::Request { cell: id, from, header, request });
        }
    }
}
