//! The history of what clients observed.
//!
//! Every answered request is an operation of the history, and so is a call answered from copies
//! alone. A call that needed both is one more operation, in a separate process, because its
//! requests are in the slot's process.

use std::rc::Rc;

use warren_base::{CellId, ClientId, Errno, ShardId};
use warren_cell::SlotRef;
use warren_client::Op;
use warren_proto::{Answer, Reply, Request};

use super::answers::payload_of;
use super::client::{Asked, Whole};
use super::event::At;
use super::{World, damage};
use crate::history::{Action, Excuses, Operation, Outcome, Window};

/// A call that was answered from copies or with kept handles.
pub(super) fn record_whole(
    world: &mut World,
    at: At,
    whole: &Whole,
    action: Action,
    outcome: Outcome,
) {
    let returned = world.fleet.sim.place();
    world.last_return = world.fleet.sim.now;
    let client = &world.clients[at.client];
    let mut excuses = Excuses::default();
    // A read changes the access time without waiting for the fronts' copies of it.
    excuses.set(Excuses::OLD_ATIME, client.front.is_some());
    excuses.set(Excuses::DAMAGED, world.may_be_refused(whole.invoked));
    let is_excused = world.fleet.incidents.excuse_calls(whole.invoked);
    excuses.set(Excuses::IO, outcome.answer == Err(Errno::EIO) && is_excused);
    let process = client.process_of(at.slot) + usize::from(whole.asked);
    world.history.operations.push(Operation {
        client: client.id,
        credentials: client.credentials.clone(),
        hint: whole.invoked.midpoint(returned),
        window: Window { from: whole.from, to: world.fleet.sim.wall(), steps: false },
        excuses,
        outcome: Some(outcome),
        ..Operation::new(process, action, (whole.invoked, returned), whole.from)
    });
}

/// The call's action in the history. `None` for a call that consists of several requests.
pub(super) fn action_of(op: &Op) -> Option<Action> {
    match op {
        Op::Ino(request, _) => Some(Action::Request(request.clone())),
        Op::At(path, _) => {
            Some(Action::Stat { path: Rc::from(&*path.bytes), follow_last: path.follow_last })
        }
        _ => None,
    }
}

/// Records an answer that no client waits for. The call has taken effect: also a read has
/// changed an access time and put its bytes into the lane.
pub(super) fn would_answer(
    world: &mut World,
    from: CellId,
    to: SlotRef,
    seq: u32,
    hint: u64,
    answer: Answer,
) {
    if matches!(answer, Ok(Reply::Moved(_))) {
        return;
    }
    let payload = payload_of(&mut world.fleet, from, (to, seq), &answer);
    let Some(client) = world.clients.iter_mut().find(|client| client.id == to.client) else {
        return;
    };
    let Some(slot) = client.slots.get_mut(usize::from(to.slot.0)) else { return };
    let asked = slot.asked.take_if(|_| slot.seq == seq);
    if let Some(Asked { request, mut operation, is_cancelled, .. }) = asked {
        operation.hint = hint;
        operation.window.to = world.fleet.sim.wall();
        operation.excuses = world.excuses(&request, from, operation.invoked);
        operation.excuses.set(Excuses::CANCELLED, is_cancelled);
        operation.outcome = Some(Outcome { answer, payload: payload.into() });
        world.history.operations.push(operation);
    }
}

/// A request may have been granted a lock before its client was expelled, and not been answered
/// because pages had to be dropped first. Other owners were refused because of it meanwhile.
pub(super) fn note_pending_locks(world: &mut World, cell: CellId, id: ClientId) {
    let client = world.clients.iter_mut().find(|client| client.id == id && client.is_gone);
    for slot in client.into_iter().flat_map(|client| &mut client.slots) {
        let awaits_lock = |asked: &mut Asked| {
            asked.cell == cell && matches!(asked.request, Request::Lock { wait: true, .. })
        };
        if let Some(Asked { mut operation, .. }) = slot.asked.take_if(awaits_lock) {
            operation.outcome = Some(Outcome::of(Ok(Reply::Done)));
            world.history.operations.push(operation);
        }
    }
}

/// Records what a predecessor executed for clients that are gone, and that took effect.
pub(super) fn note_unanswered(world: &mut World, id: CellId) {
    let host = world.fleet.host(id);
    let cell = host.cell.as_ref().expect("it is ready");
    let is_new = |(to, seq, _): &(SlotRef, u32, &Answer)| !host.slots.is_answered(*to, *seq);
    let executed = cell.unanswered().filter(is_new);
    let executed: Vec<_> = executed.map(|(to, seq, a)| (to, seq, a.clone())).collect();
    let lost_at = host.slots.lost_at;
    for (hint, (to, seq, answer)) in (lost_at..).zip(executed) {
        if world.clients.iter().any(|client| client.id == to.client && client.is_gone) {
            would_answer(world, id, to, seq, hint, answer);
        } else {
            let slots = &mut world.fleet.host_mut(id).slots;
            slots.executed.entry((to, seq)).or_insert((hint, answer));
        }
    }
}

/// `cell` reports that it has released everything of the client.
pub(super) fn note_expelled(world: &mut World, cell: CellId, id: ClientId) {
    note_pending_locks(world, cell, id);
    let Some(client) = world.clients.iter().find(|c| c.id == id && c.is_gone) else { return };
    let process = client.process + 2 * client.slots.len();
    let credentials = client.credentials.clone();
    let of_cell = |shard: &ShardId| world.fleet.map[usize::from(shard.0)] == cell;
    let shards = (0..world.fleet.map.len() as u16).map(ShardId).filter(of_cell).collect();
    let (invoked, returned, wall) =
        (world.fleet.event_began, world.fleet.sim.place(), world.fleet.sim.wall());
    let action = Action::Expel(shards);
    world.history.operations.push(Operation {
        client: id,
        credentials,
        ..Operation::new(process, action, (invoked, returned), wall)
    });
}

pub(super) fn note_damage(world: &mut World) {
    let process = world.history.new_processes(1);
    let damaged = damage::damaged(&world.fleet);
    world.history.operations.push(damage::operation(&mut world.fleet, process, damaged));
}
