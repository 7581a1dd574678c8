//! Messages between cells. Those of one cell to another arrive in order, and the first of them is
//! being delivered.

use std::collections::{BTreeMap, VecDeque};

use warren_base::CellId;
use warren_cell::PeerMessage;
use warren_proto::Wire;
use warren_supervisor::ALARMS_MAX;

use super::happening::{Happening, Sim};

/// Messages that an inbox has room for; further ones wait at the sender.
const INBOX_MAX: usize = 3;
/// Damaged messages in one life of a fleet: one more would end it.
const DAMAGED_MAX: usize = ALARMS_MAX - 1;

/// The messages of one cell to another.
#[derive(Debug, Default)]
struct Link {
    /// Identifies it among all links ever made; 0 if it is no longer read.
    number: u64,
    /// The receiver has it too.
    is_open: bool,
    /// The receiver has found damage: further messages on it are void.
    is_void: bool,
    messages: VecDeque<PeerMessage>,
}

/// The links between all cells, by sender and receiver.
#[derive(Default)]
pub(super) struct Links {
    links: BTreeMap<(CellId, CellId), Link>,
    /// Damaged messages of which this life's supervisor was, or will be, informed.
    alarms: usize,
}

impl Links {
    /// All processes begin, with links that can be read.
    pub(super) fn begin<H>(&mut self, sim: &mut Sim<H>, cells: u16) {
        self.alarms = 0;
        (0..cells).for_each(|cell| self.make(sim, cells, CellId(cell)));
        self.links.values_mut().for_each(|link| link.is_open = true);
    }

    /// Makes fresh links between the cell and all others. They cannot be read yet.
    pub(super) fn make<H>(&mut self, sim: &mut Sim<H>, cells: u16, id: CellId) {
        for other in (0..cells).map(CellId).filter(|other| *other != id) {
            for pair in [(id, other), (other, id)] {
                let number = sim.place();
                self.links.insert(pair, Link { number, ..Link::default() });
            }
        }
    }

    fn link(&mut self, from: CellId, to: CellId) -> &mut Link {
        self.links.get_mut(&(from, to)).expect("cells have links to each other")
    }

    pub(super) fn open<H>(&mut self, sim: &mut Sim<H>, from: CellId, to: CellId) {
        self.link(from, to).is_open = true;
        self.plan_next(sim, from, to);
    }

    /// The messages sent to the cell are no longer read.
    pub(super) fn close_to(&mut self, id: CellId) {
        let to_it = self.links.iter_mut().filter(|((_, to), _)| *to == id);
        to_it.for_each(|(_, link)| *link = Link::default());
    }

    /// All processes vanish.
    pub(super) fn vanish(&mut self) {
        self.links.clear();
    }

    /// Draws whether the message is damaged. The number of these is bounded, because each ends a
    /// process.
    pub(super) fn is_damaged<H>(&mut self, sim: &mut Sim<H>, message: &PeerMessage) -> bool {
        if self.alarms >= DAMAGED_MAX || !sim.is_drawn(sim.faults.damage, 10_000) {
            return false;
        }
        self.alarms += 1;
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let bit = sim.rng.below(8 * bytes.len() as u64) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        // The checksum finds it. The decoder must withstand it all the same.
        sim.count(match PeerMessage::from_bytes(&bytes) {
            Ok(_) => "a damaged message that can be decoded",
            Err(_) => "a damaged message that cannot be decoded",
        });
        true
    }

    /// The receiver reads nothing more from the link.
    pub(super) fn make_void<H>(&mut self, sim: &mut Sim<H>, from: CellId, to: CellId) {
        let link = self.link(from, to);
        if !link.messages.is_empty() {
            sim.count("messages behind a damaged one");
        }
        *link = Link { is_void: true, ..Link::default() };
    }

    pub(super) fn send<H>(
        &mut self,
        sim: &mut Sim<H>,
        from: CellId,
        to: CellId,
        message: PeerMessage,
    ) {
        // A cell sends nothing to a peer that it suspects.
        let is_void = |pair| self.links.get(&pair).is_some_and(|link| link.is_void);
        if is_void((from, to)) || is_void((to, from)) {
            return sim.count("a message between cells of which one is suspect");
        }
        let link = self.link(from, to);
        link.messages.push_back(message);
        let (len, is_open) = (link.messages.len(), link.is_open);
        if len > INBOX_MAX {
            sim.count("a full inbox");
        }
        if len == 1 && is_open {
            self.plan_next(sim, from, to);
        }
    }

    /// Plans the arrival of the next message, if there is one.
    fn plan_next<H>(&self, sim: &mut Sim<H>, from: CellId, to: CellId) {
        let link = &self.links[&(from, to)];
        if !link.messages.is_empty() {
            let delay = sim.message_delay();
            sim.plan(delay, Happening::Peer { from, to, link: link.number });
        }
    }

    /// The message that arrives, unless the link is no longer read.
    pub(super) fn next<H>(
        &mut self,
        sim: &mut Sim<H>,
        from: CellId,
        to: CellId,
        number: u64,
    ) -> Option<PeerMessage> {
        let link = self.links.get_mut(&(from, to)).filter(|link| link.number == number)?;
        let message = link.messages.pop_front().expect("there is a message");
        self.plan_next(sim, from, to);
        Some(message)
    }

    /// The messages that a lost cell had sent and that were not handled, one by one.
    pub(super) fn remaining<H>(
        &mut self,
        sim: &mut Sim<H>,
        lost: CellId,
        by: CellId,
    ) -> Option<PeerMessage> {
        let link = self.links.get_mut(&(lost, by))?;
        let message = link.messages.pop_front()?;
        link.number = 0;
        sim.count("remaining messages of a lost cell");
        Some(message)
    }
}
