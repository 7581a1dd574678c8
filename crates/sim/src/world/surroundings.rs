//! The surroundings of the fleet in this world: clients connect and disconnect, act between any two
//! stores of a cell, and record a history.

use warren_base::{CellId, ClientId, Errno};
use warren_cell::SlotRef;
use warren_proto::Answered;
use warren_supervisor::{ConnectionNo, Failure};

use super::admission::{client_admitted, connect_clients, hang_up};
use super::begin::{go_on, step};
use super::client::{Client, SlotState};
use super::event::{At, Own};
use super::recall::{drop_copies, kill_front, start_front};
use super::record::{note_expelled, note_unanswered};
use super::reply::client_answered;
use super::{Phase, World};
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
                    go_on(self, at);
                }
            }
            Own::DropCopies { client, listener } => drop_copies(self, client, listener),
            Own::Hangup { client } => hang_up(self, client),
            Own::KillFront { client } => kill_front(self, client),
            Own::StartFront { client } => start_front(self, client),
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
        client_answered(self, from, to, (seq, hint), answer);
    }

    fn fleet_is_ready(&mut self) {
        connect_clients(self);
    }

    fn numbered(&mut self, connection: ConnectionNo, client: ClientId) {
        self.clients[connection.0 as usize].id = client;
    }

    fn admit(&mut self, client: ClientId) {
        client_admitted(self, client);
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
                if self.fleet.host(cell).dead && self.phase == Phase::Stopping =>
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
        note_expelled(self, cell, client);
    }

    fn serves(&mut self, cell: CellId) {
        note_unanswered(self, cell);
    }

    fn store_word(&mut self, cell: CellId, client: ClientId, word: u32, stamp: u64) {
        let_clients_act(self);
        self.fleet.lanes.store(cell, client, word, stamp);
        let mut holders = self.clients.iter().filter(|holder| holder.id == client);
        if stamp == 0 && holders.any(Client::is_stepping) {
            self.fleet.sim.count("a lease cleared while its holder was in a call");
        }
        let_clients_act(self);
    }
}

/// Lets some clients act in the middle of a cell's turn.
fn let_clients_act(world: &mut World) {
    while world.fleet.sim.rng.chance(world.swarm.upsets.nested, 1000) {
        let client = world.fleet.sim.rng.below(world.clients.len() as u64) as usize;
        let slot = world.fleet.sim.rng.below(world.clients[client].slots.len() as u64) as usize;
        let at = At { client, slot };
        if world.slot(at).state != SlotState::Stepping {
            return;
        }
        world.fleet.sim.count("a client acted between two stores of a cell");
        step(world, at);
    }
}
