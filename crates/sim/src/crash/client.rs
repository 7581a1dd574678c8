//! A client: its directory's model, and the request in flight.

use warren_base::{CellId, ClientId, Instant, SlotNo};
use warren_cell::SlotRef;
use warren_proto::{Answer, Request};

use super::model::{Effect, LookAgain, Model};

#[derive(Default)]
pub(super) struct Client {
    pub id: ClientId,
    pub admitted: bool,
    pub seq: u32,
    /// `None` for the auditor.
    pub model: Option<Model>,
    /// The request in flight, and its effect if it succeeds.
    pub under_way: Option<(Request, Option<Effect>)>,
    /// The place in the order of events, and the time, of the request.
    pub asked: (u64, Instant),
    /// The file that it looks at again.
    pub looking: Option<LookAgain>,
    /// For the auditor: the answer, and its cell.
    pub answer: Option<(CellId, Answer)>,
    pub operations: u64,
}

impl Client {
    pub(super) fn slot(&self) -> SlotRef {
        SlotRef { client: self.id, slot: SlotNo(0) }
    }

    /// Everything that was answered is durable.
    pub(super) fn promise(&mut self) {
        self.model.iter_mut().for_each(Model::promise_all);
    }

    /// Prepares the next life: nothing is open or in flight.
    pub(super) fn reset(&mut self) {
        let Self { model, operations, .. } = std::mem::take(self);
        (self.model, self.operations) = (model, operations);
    }
}
