//! Recalls of a front's copies, and the death of its process.

use warren_base::{CellId, SlotNo};
use warren_cell::{Plant, SlotRef};
use warren_proto::{Answer, Reply, Request, RequestHeader};

use super::call::{send_request, write_back};
use super::client::Slot;
use super::event::{At, Own};
use super::front::{Front, LANES};
use super::{Phase, World};

/// The longest time until a killed front has a successor, in nanoseconds.
const SUCCESSOR_NANOS: u64 = 500_000;

pub(super) fn listen_everywhere(world: &mut World, client: usize) {
    if world.clients[client].front.is_none() {
        return;
    }
    for listener in 0..Front::slots(world.fleet.cells.len()) {
        listen(world, client, listener, 0);
    }
}

fn listen(world: &mut World, client: usize, number: usize, acknowledged: u64) {
    let calls = world.clients[client].slots.len();
    let id = world.clients[client].id;
    let listener = &mut world.front(client).listeners[number];
    listener.seq += 1;
    let header = RequestHeader { seq: listener.seq, ..RequestHeader::default() };
    let from = SlotRef { client: id, slot: SlotNo((calls + number) as u16) };
    let (cell, pages) = (CellId((number / LANES) as u16), number % LANES == 1);
    world.fleet.plan_request(cell, from, header, Request::AwaitRecall { pages, acknowledged });
}

/// A cell answers a waiting slot with a recall.
pub(super) fn recalled(world: &mut World, at: At, seq: u32, answer: Answer) {
    let (client, listener_no) = (at.client, at.slot - world.clients[at.client].slots.len());
    if world.clients[client].is_gone {
        return;
    }
    let listener = &mut world.front(client).listeners[listener_no];
    let Ok(Reply::Recall { number, keys, .. }) = answer else {
        return world.fleet.sim.fail(format!("a front that listens was answered {answer:?}"));
    };
    if listener.seq != seq || listener.recall.is_some() {
        return world.fleet.sim.fail("a front is recalled that does not listen".to_owned());
    }
    listener.answer.clone_from(&keys);
    listener.recall = Some((number, keys.into_iter().collect()));
    world.fleet.sim.count("a recall");
    let mut delay = world.fleet.sim.message_delay();
    if world.fleet.sim.rng.chance(world.swarm.upsets.late_recall, 1000) {
        world.fleet.sim.count("a late acknowledgement");
        delay *= 200;
        // Late is either the drop or, if that is done now, the acknowledgement. Dropping pages
        // takes long.
        let is_soon = if listener_no % LANES == 1 { 1 } else { 3 };
        if world.fleet.sim.rng.chance(is_soon, 4) {
            drop_keys(world, client, listener_no);
        }
    }
    world.plan(delay, Own::DropCopies { client, listener: listener_no });
    if world.fleet.sim.rng.chance(world.swarm.upsets.front_kills, 100) {
        let delay = world.fleet.sim.rng.below(2 * delay);
        world.plan(delay, Own::KillFront { client });
    }
}

/// Has the kernel drop the recalled copies; acknowledges when all are dropped.
pub(super) fn drop_copies(world: &mut World, client: usize, listener: usize) {
    if world.clients[client].is_gone || world.front(client).is_dead {
        return;
    }
    if let Some(number) = drop_keys(world, client, listener) {
        world.front(client).listeners[listener].recall = None;
        listen(world, client, listener, number);
    }
    write_back(world, client);
}

/// A front's process is killed, between any two of its messages.
pub(super) fn kill_front(world: &mut World, client: usize) {
    let may_die = world.phase == Phase::Safety && !world.clients[client].is_gone;
    let Some(front) = &mut world.clients[client].front else { return };
    if !may_die || std::mem::replace(&mut front.is_dead, true) {
        return;
    }
    let is_recalled = front.is_recalled();
    let under_way = world.clients[client].slots.iter().any(|slot| slot.under_way().is_some());
    world.fleet.sim.count("a front killed");
    if is_recalled {
        world.fleet.sim.count("a front killed while it was recalled");
    }
    if under_way {
        world.fleet.sim.count("a front killed with a request under way");
    }
    let of = &mut world.clients[client];
    of.slots.iter_mut().for_each(Slot::lose_front);
    of.kept.forget_changed();
    let is_inherited = |(_, slot): &(usize, &Slot)| slot.under_way().is_some();
    let inherited = of.slots.iter().enumerate().filter(is_inherited);
    of.kept.names.lose(inherited.map(|(number, _)| number).collect());
    let delay = world.fleet.sim.rng.below(SUCCESSOR_NANOS);
    world.plan(delay, Own::StartFront { client });
}

/// The front's successor starts the recalls in its slots again, and sends the requests that the
/// kernel has kept.
pub(super) fn start_front(world: &mut World, client: usize) {
    if world.clients[client].is_gone {
        return;
    }
    let forgets = world.fleet.sim.plant == Some(Plant::ForgetRecalls);
    let front = world.front(client);
    front.is_dead = false;
    let unsent = std::mem::take(&mut front.unsent);
    for number in 0..front.listeners.len() {
        let listener = &mut world.front(client).listeners[number];
        let Some((recall_no, keys)) = &mut listener.recall else { continue };
        keys.extend(listener.answer.iter().cloned());
        if forgets {
            let recall_no = *recall_no;
            listener.recall = None;
            listen(world, client, number, recall_no);
            continue;
        }
        let delay = world.fleet.sim.message_delay();
        world.plan(delay, Own::DropCopies { client, listener: number });
    }
    for (slot, send) in unsent {
        send_request(world, At { client, slot }, send);
    }
    write_back(world, client);
}

/// Drops as much of a recall as can be dropped now. Returns its number when all is dropped.
fn drop_keys(world: &mut World, client: usize, listener: usize) -> Option<u64> {
    let front = world.clients[client].front.as_mut().expect("only fronts are recalled");
    front.drop_keys(&mut world.fleet.sim, client, listener)
}
