//! Clients connect, are admitted, and disconnect with requests under way; the cells then release
//! what these held.

use std::rc::Rc;

use warren_base::{CellId, ClientId, ShardId};
use warren_proto::slot::Shape;
use warren_proto::{Credentials, Rules};
use warren_supervisor::{Applicant, ConnectionNo, Event as SupervisorEvent};

use super::clients::{At, Client, SlotState};
use super::front::Front;
use super::{Phase, World};
use crate::fleet::{MAP_VERSION, notify_supervisor};
use crate::history::{Action, Excuses, Operation, Window};

/// The maximum of clients that connect after the first ones.
const NEWCOMERS_MAX: usize = 6;

impl World {
    pub(super) fn invite_clients(&mut self) {
        for _ in 0..self.swarm.clients {
            self.invite_client();
        }
    }

    fn invite_client(&mut self) {
        let number = self.clients.len();
        let uid = if self.swarm.plain_users { number as u32 % 3 } else { 0 };
        let is_front = number % self.swarm.clients < self.swarm.fronts;
        // Two users who share a group, beside root. A front's kernel checks its groups.
        let credentials = match uid {
            0 => Credentials { checked_by_kernel: is_front, ..Credentials::default() },
            uid => Credentials {
                uid: 999 + uid,
                gid: 999 + uid,
                groups: if is_front { Vec::new() } else { vec![1000] },
                checked_by_kernel: is_front,
            },
        };
        let near = CellId(self.fleet.sim.rng.below(u64::from(self.swarm.cells)) as u16);
        let (slots, map) = (self.swarm.slots, &self.fleet.map);
        let mut client = Client::new(credentials, slots, map, MAP_VERSION, near);
        if is_front {
            client.front = Some(Front::new(self.fleet.cells.len()));
            client.add_writers();
        }
        client.process = self.new_processes(2 * client.slots.len() + 1);
        self.clients.push(client);
    }

    pub(super) fn connect_clients(&mut self) {
        for at in 0..self.clients.len() {
            self.connect(at);
        }
    }

    fn connect(&mut self, at: usize) {
        let client = &self.clients[at];
        let listeners = client.front.as_ref().map_or(0, |_| Front::slots(self.fleet.cells.len()));
        let applicant = Applicant {
            credentials: (*client.credentials).clone(),
            pid: 1000 + at as u32,
            front: client.front.is_some(),
            privileged: client.front.is_some() || client.credentials.uid == 0,
            shape: Shape::large(client.slots.len() + listeners),
            rules: Rules::empty(),
            mounted: Box::default(),
        };
        let connection = ConnectionNo(at as u64);
        notify_supervisor(self, SupervisorEvent::Connect { connection, applicant });
    }

    pub(super) fn client_admitted(&mut self, client: ClientId) {
        let place = self.clients.iter().position(|c| c.id == client);
        let client = place.expect("the supervisor admits clients with a number");
        self.enable_faults();
        if self.clients[client].is_gone {
            return;
        }
        for slot in 0..self.clients[client].programs {
            let at = At { client, slot };
            self.slot(at).state = SlotState::Thinking;
            let think = self.think_time();
            self.plan_step(at, think);
        }
        self.listen_everywhere(client);
    }

    /// From the first admission on, a client can observe faults.
    fn enable_faults(&mut self) {
        if !std::mem::replace(&mut self.admitted, true) && self.phase == Phase::Safety {
            self.fleet.sim.faults = self.swarm.faults();
        }
    }

    /// The client's process ends, or its connection breaks. It receives no answers to its requests
    /// under way.
    pub(super) fn hang_up(&mut self, client: usize) {
        let room = self.clients.len() < self.swarm.clients + NEWCOMERS_MAX;
        let living = self.clients.iter().filter(|client| !client.is_gone).count();
        // At least one client must remain.
        let may_go = self.phase == Phase::Safety && self.opening.is_none() && (room || living > 1);
        let gone = &mut self.clients[client];
        if !may_go || gone.is_gone {
            return;
        }
        gone.is_gone = true;
        let id = gone.id;
        let mut under_way = false;
        for slot in &mut gone.slots {
            under_way |= slot.state == SlotState::Waiting;
            slot.state = SlotState::Finished;
        }
        let holds = gone.slots.iter().any(|slot| slot.holdings.release().is_some());
        let recalled = gone.front.as_ref().is_some_and(Front::is_recalled);
        self.fleet.sim.count("a client hung up");
        if under_way {
            self.fleet.sim.count("a client hung up with a request under way");
        }
        if holds {
            self.fleet.sim.count("a client hung up that held files or locks");
        }
        if recalled {
            self.fleet.sim.count("a front hung up while it was recalled");
        }
        notify_supervisor(self, SupervisorEvent::Hangup { client: id });
        if room {
            self.invite_client();
            self.connect(self.clients.len() - 1);
        }
    }

    /// `cell` reports that it has released everything of the client.
    pub(super) fn note_expelled(&mut self, cell: CellId, id: ClientId) {
        self.note_pending_locks(cell, id);
        let Some(client) = self.clients.iter().find(|c| c.id == id && c.is_gone) else { return };
        let process = client.process + 2 * client.slots.len();
        let credentials = client.credentials.clone();
        let of_cell = |shard: &ShardId| self.fleet.map[usize::from(shard.0)] == cell;
        let shards = (0..self.fleet.map.len() as u16).map(ShardId).filter(of_cell).collect();
        let (invoked, returned, wall) =
            (self.fleet.event_began, self.fleet.sim.place(), self.fleet.sim.wall());
        self.history.push(Operation {
            process,
            client: id,
            credentials,
            action: Action::Expel(shards),
            payload: Rc::from([]),
            invoked,
            returned,
            hint: invoked,
            window: Window { from: wall, to: wall, steps: false },
            excuses: Excuses::default(),
            outcome: None,
        });
    }
}
