//! A cell that cannot go on is taken out, and taken in again on request (`outage`).

use warren_base::{CellId, ShardId};
use warren_proto::control::Order;

use super::Supervisor;
use crate::event::{Failure, Verdict};
use crate::loss::SUCCESSORS_MAX;
use crate::outage::shards_of;
use crate::turn::Turn;

impl Supervisor {
    /// Too many processes of the cell have ended in a row. If these were its caretakers, the fleet
    /// cannot go on.
    pub(super) fn take_out(&mut self, cell: CellId, turn: &mut Turn<'_>) {
        if self.outages.is_out(cell) {
            return self.fail(Failure::NoSuccessor { cell, tries: SUCCESSORS_MAX }, turn);
        }
        self.outages.begin(cell, turn.wall);
        self.losses.begin_row(cell);
        for shard in shards_of(&self.owners, cell) {
            turn.send(self.fleet.living(), &Order::GivenUp { shard });
        }
    }

    /// An administrator wants the cell back: its caretaker ends.
    pub(super) fn rejoin(&mut self, cell: CellId, turn: &mut Turn<'_>) {
        if !self.stage.is_open() || !self.outages.rejoin(cell) {
            return;
        }
        self.losses.begin_row(cell);
        if self.fleet.state(cell).is_running() {
            let process = (cell, self.fleet.epoch(cell));
            self.kill(process, Verdict::Rejoins, turn.now, turn);
        }
    }

    /// A process of the cell is ready. If the cell was out and is back, the others place new
    /// directories there again.
    pub(super) fn end_outage(&mut self, cell: CellId, turn: &mut Turn<'_>) {
        if !self.outages.returned(cell) {
            return;
        }
        let is_served = |shard: &ShardId| !self.given_up.contains_key(shard);
        let served: Vec<ShardId> = shards_of(&self.owners, cell).filter(is_served).collect();
        for shard in served {
            turn.send(self.fleet.living(), &Order::Served { shard });
        }
    }
}
