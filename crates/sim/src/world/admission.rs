//! Clients connect, are admitted, and disconnect with requests under way; the cells then release
//! what these held.

use warren_base::{CellId, ClientId};
use warren_proto::slot::Shape;
use warren_proto::{Credentials, Rules};
use warren_supervisor::{Applicant, ConnectionNo, Event as SupervisorEvent};

use super::client::{Client, SlotState};
use super::event::At;
use super::front::Front;
use super::posts::lose_posting;
use super::recall::listen_everywhere;
use super::{Phase, World};
use crate::fleet::{MAP_VERSION, notify_supervisor};

/// The maximum of clients that connect after the first ones.
const NEWCOMERS_MAX: usize = 6;

pub(super) fn invite_clients(world: &mut World) {
    for _ in 0..world.swarm.clients {
        invite_client(world);
    }
}

fn invite_client(world: &mut World) {
    let number = world.clients.len();
    let uid = if world.swarm.plain_users { number as u32 % 3 } else { 0 };
    let is_front = number % world.swarm.clients < world.swarm.fronts;
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
    let near = CellId(world.fleet.sim.rng.below(u64::from(world.swarm.shape.cells)) as u16);
    let (slots, map) = (world.swarm.slots, &world.fleet.map);
    let mut client = Client::new(credentials, slots, map, MAP_VERSION, near);
    if is_front {
        client.front = Some(Front::new(world.fleet.cells.len()));
        client.add_writers();
    }
    client.process = world.history.new_processes(2 * client.slots.len() + 1);
    world.clients.push(client);
}

pub(super) fn connect_clients(world: &mut World) {
    for at in 0..world.clients.len() {
        connect(world, at);
    }
}

fn connect(world: &mut World, at: usize) {
    let client = &world.clients[at];
    let listeners = client.front.as_ref().map_or(0, |_| Front::slots(world.fleet.cells.len()));
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
    notify_supervisor(world, SupervisorEvent::Connect { connection, applicant });
}

pub(super) fn client_admitted(world: &mut World, client: ClientId) {
    let place = world.clients.iter().position(|c| c.id == client);
    let client = place.expect("the supervisor admits clients with a number");
    enable_faults(world);
    if world.clients[client].is_gone {
        return;
    }
    for slot in 0..world.clients[client].programs {
        let at = At { client, slot };
        world.slot(at).state = SlotState::Thinking;
        let think = world.think_time();
        world.plan_step(at, think);
    }
    listen_everywhere(world, client);
}

/// From the first admission on, a client can observe faults.
fn enable_faults(world: &mut World) {
    if !std::mem::replace(&mut world.admitted, true) && world.phase == Phase::Safety {
        world.fleet.sim.faults = world.swarm.faults;
    }
}

/// The client's process ends, or its connection breaks. It receives no answers to its requests
/// under way.
pub(super) fn hang_up(world: &mut World, client: usize) {
    let room = world.clients.len() < world.swarm.clients + NEWCOMERS_MAX;
    let living = world.clients.iter().filter(|client| !client.is_gone).count();
    // At least one client must remain.
    let may_go = world.phase == Phase::Safety && world.opening.is_none() && (room || living > 1);
    let gone = &mut world.clients[client];
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
    for slot in 0..world.clients[client].slots.len() {
        lose_posting(world, At { client, slot });
    }
    let gone = &world.clients[client];
    let holds = gone.slots.iter().any(|slot| slot.holdings.release().is_some());
    let recalled = gone.front.as_ref().is_some_and(Front::is_recalled);
    world.fleet.sim.count("a client hung up");
    if under_way {
        world.fleet.sim.count("a client hung up with a request under way");
    }
    if holds {
        world.fleet.sim.count("a client hung up that held files or locks");
    }
    if recalled {
        world.fleet.sim.count("a front hung up while it was recalled");
    }
    notify_supervisor(world, SupervisorEvent::Hangup { client: id });
    if room {
        invite_client(world);
        connect(world, world.clients.len() - 1);
    }
}
