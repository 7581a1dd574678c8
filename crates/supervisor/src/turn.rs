//! One call of the supervisor: the time of the event, and the list that takes the effects.

use warren_base::{Instant, Timestamp};
use warren_proto::control::Order;

use crate::event::{Effect, send};
use crate::set::CellSet;

pub(crate) struct Turn<'a> {
    pub now: Instant,
    pub wall: Timestamp,
    pub effects: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Sends an order to each of the cells.
    pub(crate) fn send(&mut self, cells: CellSet, order: &Order) {
        send(cells, order, self.effects);
    }
}
