//! Messages in flight between processes: messages between cells, orders and reports. Each kind
//! arrives in order, and the first of each is being delivered.

use std::collections::VecDeque;

use warren_base::CellId;
use warren_cell::PeerMessage;
use warren_proto::Wire;
use warren_proto::control::{Order, Report, Suspicion};
use warren_supervisor::ALARMS_MAX;

use super::{Fleet, Happening};

/// Messages that an inbox has room for; further ones wait at the sender.
const INBOX_MAX: usize = 3;
/// Damaged messages in one life of a fleet: one more would end it.
const DAMAGED_MAX: usize = ALARMS_MAX - 1;

/// The messages of one cell to another.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Identifies it among all links ever made; 0 if it is no longer read.
    number: u64,
    /// The receiver has it too.
    pub is_open: bool,
    /// The receiver has found damage: further messages on it are void.
    is_void: bool,
    messages: VecDeque<PeerMessage>,
}

impl<H> Fleet<H> {
    /// Makes fresh links between the cell and all others. They cannot be read yet.
    pub(super) fn make_links(&mut self, id: CellId) {
        for other in (0..self.cells.len() as u16).map(CellId).filter(|other| *other != id) {
            for pair in [(id, other), (other, id)] {
                let number = self.sim.place();
                self.links.insert(pair, Link { number, ..Link::default() });
            }
        }
    }

    pub(super) fn open_link(&mut self, from: CellId, to: CellId) {
        let link = self.links.get_mut(&(from, to)).expect("made when the cell was started again");
        link.is_open = true;
        self.plan_peer(from, to);
    }

    /// The messages sent to the cell are no longer read.
    pub(super) fn close_links_to(&mut self, id: CellId) {
        let to_it = self.links.iter_mut().filter(|((_, to), _)| *to == id);
        to_it.for_each(|(_, link)| *link = Link::default());
    }

    /// Whether the message is damaged. The number of these is bounded, because each ends a process.
    pub(super) fn is_damaged(&mut self, from: CellId, to: CellId, message: &PeerMessage) -> bool {
        let may_end = [from, to].iter().all(|cell| self.may_be_lost(*cell));
        if !may_end
            || self.alarms >= DAMAGED_MAX
            || !self.sim.is_drawn(self.sim.faults.damage, 10_000)
        {
            return false;
        }
        self.alarms += 1;
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let bit = self.sim.rng.below(8 * bytes.len() as u64) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        // The checksum finds it. The decoder must withstand it all the same.
        self.sim.count(match PeerMessage::from_bytes(&bytes) {
            Ok(_) => "a damaged message that can be decoded",
            Err(_) => "a damaged message that cannot be decoded",
        });
        true
    }

    /// The receiver reads nothing more from the link, and reports the sender.
    pub(super) fn suspect(&mut self, from: CellId, to: CellId) {
        let link = self.links.get_mut(&(from, to)).expect("a message came on it");
        if !link.messages.is_empty() {
            self.sim.count("messages behind a damaged one");
        }
        let link = self.links.get_mut(&(from, to)).expect("a message came on it");
        *link = Link { is_void: true, ..Link::default() };
        let (epoch, why) = (self.epoch(from), Suspicion::Record);
        self.send_report(to, Report::Suspect { cell: from, epoch, why });
    }

    pub(super) fn send_peer(&mut self, from: CellId, to: CellId, message: PeerMessage) {
        // A cell sends nothing to a peer that it suspects.
        let is_void = |pair| self.links.get(&pair).is_some_and(|link| link.is_void);
        if is_void((from, to)) || is_void((to, from)) {
            return self.sim.count("a message between cells of which one is suspect");
        }
        let link = self.links.get_mut(&(from, to)).expect("cells have links to each other");
        link.messages.push_back(message);
        let (len, is_open) = (link.messages.len(), link.is_open);
        if len > INBOX_MAX {
            self.sim.count("a full inbox");
        }
        if len == 1 && is_open {
            self.plan_peer(from, to);
        }
    }

    /// Delivers the next message, if there is one.
    fn plan_peer(&mut self, from: CellId, to: CellId) {
        let link = &self.links[&(from, to)];
        if !link.messages.is_empty() {
            let (link, delay) = (link.number, self.sim.message_delay());
            self.sim.plan(delay, Happening::Peer { from, to, link });
        }
    }

    /// The message that arrives, unless the link is no longer read.
    pub(super) fn next_of_link(
        &mut self,
        from: CellId,
        to: CellId,
        number: u64,
    ) -> Option<PeerMessage> {
        let link = self.links.get_mut(&(from, to)).filter(|link| link.number == number)?;
        let message = link.messages.pop_front().expect("there is a message");
        self.plan_peer(from, to);
        Some(message)
    }

    /// The messages that a lost cell had sent and that were not handled, one by one.
    pub(super) fn remaining_message(&mut self, lost: CellId, by: CellId) -> Option<PeerMessage> {
        let link = self.links.get_mut(&(lost, by))?;
        let message = link.messages.pop_front()?;
        link.number = 0;
        self.sim.count("remaining messages of a lost cell");
        Some(message)
    }

    pub(super) fn send_order(&mut self, to: CellId, order: Order) {
        match order {
            Order::Switched { number, .. } => {
                self.switched_at = self.sim.place();
                self.incidents.switched(number, self.switched_at);
                self.sim.count("a checkpoint");
                self.incidents.is_checkpointing = false;
            }
            Order::Drain { .. } => self.incidents.is_checkpointing = true,
            Order::Abandoned { .. } => self.incidents.is_checkpointing = false,
            Order::Failed { .. } => {
                self.sim.count("a checkpoint that failed");
                self.incidents.is_checkpointing = false;
            }
            Order::Replay => self.sim.count("logs replayed"),
            _ => {}
        }
        let host = self.host(to);
        if host.dead && !host.is_starting {
            return;
        }
        host.orders.push_back(order);
        if host.orders.len() == 1 && !host.dead {
            self.plan_order(to);
        }
    }

    pub(super) fn plan_order(&mut self, to: CellId) {
        if !self.host(to).orders.is_empty() {
            let (epoch, delay) = (self.epoch(to), self.sim.message_delay());
            self.sim.plan(delay, Happening::Order { to, epoch });
        }
    }

    pub(super) fn next_order(&mut self, to: CellId) -> Order {
        let order = self.host(to).orders.pop_front().expect("there is an order");
        self.plan_order(to);
        order
    }

    pub(super) fn send_report(&mut self, from: CellId, report: Report) {
        let host = self.host(from);
        host.reports.push_back(report);
        if host.reports.len() == 1 {
            self.plan_report(from);
        }
    }

    fn plan_report(&mut self, from: CellId) {
        if !self.host(from).reports.is_empty() {
            let (epoch, delay) = (self.epoch(from), self.sim.message_delay());
            self.sim.plan(delay, Happening::Report { from, epoch });
        }
    }

    pub(super) fn next_report(&mut self, from: CellId) -> Report {
        let report = self.host(from).reports.pop_front().expect("there is a report");
        self.plan_report(from);
        self.reserve_replayed(&report);
        report
    }
}
