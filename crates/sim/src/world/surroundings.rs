//! The surroundings of the fleet in this world: clients connect and disconnect, act between any two
//! stores of a cell, and record a history.

use warren_base::{CellId, ClientId, Errno};
use warren_cell::SlotRef;
use warren_proto::Answered;
use warren_supervisor::{ConnectionNo, Failure};

use super::clients::{At, SlotState};
use super::{Own, Phase, World};
use crate::fleet::{Fleet, Surroundings};

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
            Own::Step { at, ticket } => {
                if self.slot(at).ticket == ticket {
                    self.go_on(at);
                }
            }
            Own::DropCopies { client, listener } => self.drop_copies(client, listener),
            Own::Hangup { client } => self.hang_up(client),
            Own::KillFront { client } => self.kill_front(client),
            Own::StartFront { client } => self.start_front(client),
        }
    }

    fn words(own: &Own) -> [u64; 4] {
        match own {
            Own::Step { at: At { client, slot }, ticket } => {
                [3, *client as u64, *slot as u64, *ticket]
            }
            Own::DropCopies { client, listener } => [11, *listener as u64, *client as u64, 0],
            Own::Hangup { client } => [12, *client as u64, 0, 0],
            Own::KillFront { client } => [13, *client as u64, 0, 0],
            Own::StartFront { client } => [14, *client as u64, 0, 0],
        }
    }

    fn answered(&mut self, from: CellId, to: SlotRef, seq: u32, hint: u64, answer: Answered) {
        self.client_answered(from, to, (seq, hint), answer);
    }

    fn fleet_is_ready(&mut self) {
        self.connect_clients();
    }

    fn numbered(&mut self, connection: ConnectionNo, client: ClientId) {
        self.clients[connection.0 as usize].id = client;
    }

    fn admit(&mut self, client: ClientId) {
        self.client_admitted(client);
    }

    fn refuse(&mut self, connection: ConnectionNo, errno: Errno) {
        // A fleet that ends after saving its state admits no client. `fleet_ended` checks whether
        // it may end.
        let mut ids = self.fleet.cell_ids();
        let may_end = errno == Errno::EIO && ids.any(|id| self.fleet.incidents.excuse_broken(id));
        if !may_end && !self.fleet.cells.iter().any(|host| host.dead) {
            self.fleet.sim.fail(format!("{connection:?} was refused: {errno}"));
        }
    }

    fn fleet_ended(&mut self, result: Result<(), Failure>) {
        match result {
            Ok(()) if self.is_lost() => {}
            Ok(()) => super::damage::check_status(&mut self.fleet),
            // The cell's death left the current checkpoint unknown.
            Err(Failure::CellExited { .. }) if self.fleet.device.faults.may_be_read_only() => {
                self.fleet.sim.count("a cell killed that could have no successor");
                self.lost = true;
            }
            Err(Failure::Unreadable { cell, errno: Errno::EIO })
                if self.fleet.incidents.excuse_broken(cell) =>
            {
                self.fleet.sim.count("a device that could not be read");
                self.lost = true;
            }
            // The cell had nothing left to do.
            Err(Failure::CellExited { cell, .. })
                if self.fleet.cells[usize::from(cell.0)].dead && self.phase == Phase::Stopping =>
            {
                self.fleet.sim.count("a cell killed after the last checkpoint");
            }
            Err(Failure::LastCheckpoint { .. } | Failure::LastFlush { .. })
                if self.fleet.device.faults.may_be_read_only() =>
            {
                self.fleet.sim.count("a last checkpoint failed");
                self.lost = true;
            }
            result => return self.fleet.sim.fail(format!("the fleet ended: {result:?}")),
        }
        self.phase = Phase::Stopped;
    }

    fn let_go(&mut self, cell: CellId, client: ClientId) {
        self.note_expelled(cell, client);
    }

    fn serves(&mut self, cell: CellId) {
        self.note_unanswered(cell);
    }

    fn store_word(&mut self, cell: CellId, client: ClientId, word: u32, stamp: u64) {
        self.let_clients_act();
        self.fleet.lanes.store(cell, client, word, stamp);
        if stamp == 0 && self.is_stepping(client) {
            self.fleet.sim.count("a lease cleared while its holder was in a call");
        }
        self.let_clients_act();
    }
}

impl World {
    /// Lets some clients act in the middle of a cell's turn.
    fn let_clients_act(&mut self) {
        while self.fleet.sim.rng.chance(self.swarm.nested, 1000) {
            let client = self.fleet.sim.rng.below(self.clients.len() as u64) as usize;
            let slot = self.fleet.sim.rng.below(self.clients[client].slots.len() as u64) as usize;
            let at = At { client, slot };
            if self.slot(at).state != SlotState::Stepping {
                return;
            }
            self.fleet.sim.count("a client acted between two stores of a cell");
            self.step_call(at, None);
        }
    }

    fn is_stepping(&self, client: ClientId) -> bool {
        let mut clients = self.clients.iter().filter(|c| c.id == client);
        clients.any(|c| c.slots.iter().any(|slot| slot.state == SlotState::Stepping))
    }
}
