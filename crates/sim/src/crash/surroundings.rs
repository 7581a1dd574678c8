//! The surroundings of the fleet in this world: clients that work, and the auditor.

use warren_base::{CellId, ClientId, Errno};
use warren_cell::SlotRef;
use warren_proto::Answered;
use warren_supervisor::{ConnectionNo, Failure};

use super::{Own, Stage, World};
use crate::fleet::{Fleet, Surroundings, check_named};

impl Surroundings for World {
    type Own = Own;

    fn fleet(&self) -> &Fleet<Own> {
        &self.fleet
    }

    fn fleet_mut(&mut self) -> &mut Fleet<Own> {
        &mut self.fleet
    }

    fn happen(&mut self, own: Own) {
        match own {
            Own::Connect { client } => self.connect(client),
            Own::Step { client } => self.begin_operation(client),
            Own::Nudge => self.nudge(),
            Own::Grow => self.grow(),
        }
    }

    fn words(own: &Own) -> [u64; 4] {
        match own {
            Own::Step { client } => [3, *client as u64, 0, 0],
            Own::Nudge => [11, 0, 0, 0],
            Own::Connect { client } => [12, *client as u64, 0, 0],
            Own::Grow => [17, 0, 0, 0],
        }
    }

    fn answered(&mut self, from: CellId, to: SlotRef, seq: u32, _hint: u64, answer: Answered) {
        self.client_answered(from, to, seq, answer.answer);
    }

    fn fleet_is_ready(&mut self) {
        for client in 0..self.clients.len() {
            let delay = self.fleet.sim.message_delay();
            self.plan(delay, Own::Connect { client });
        }
    }

    fn numbered(&mut self, connection: ConnectionNo, client: ClientId) {
        self.clients[connection.0 as usize].id = client;
    }

    fn admit(&mut self, client: ClientId) {
        let known = self.clients.iter_mut().find(|known| known.id == client);
        known.expect("the supervisor admits only numbered clients").admitted = true;
        if self.clients.iter().all(|client| client.admitted) {
            self.stage = Stage::Serving;
        }
    }

    fn refuse(&mut self, connection: ConnectionNo, errno: Errno) {
        self.fleet.sim.fail(format!("{connection:?} was refused: {errno}"));
    }

    fn grown(&mut self, result: Result<(), Errno>) {
        self.growth_ended(result);
    }

    fn fleet_ended(&mut self, result: Result<(), Failure>) {
        if let Some(shard) = super::damage::given_up(&self.fleet).filter(|_| result.is_ok()) {
            check_named(&mut self.fleet, shard);
        }
        self.stage = Stage::Ended(result);
    }
}
