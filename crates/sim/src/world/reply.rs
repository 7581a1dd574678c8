//! A cell's answer arrives at its client.

use warren_base::CellId;
use warren_cell::SlotRef;
use warren_client::Send;
use warren_proto::stream::Delegated;
use warren_proto::{Answered, Reply, Request};

use super::World;
use super::answers::{check_answer, may_have_locked, payload_of};
use super::call::{repeat_refused, send_request, step_call};
use super::claims::is_rightly_granted;
use super::client::Asked;
use super::event::At;
use super::observe::{keep_changed, note_answered, note_reply};
use super::posted::posting_answered;
use super::recall::recalled;
use crate::fleet::Happening;
use crate::history::{Action, Excuses, Operation, Outcome};

/// The longest time until a front's successor reads an answer that is in the slot.
const ANSWER_READ_NANOS: u64 = 20_000;

/// Delivers an answer to the client. It must be the answer to the slot's request.
pub(super) fn client_answered(
    world: &mut World,
    from: CellId,
    to: SlotRef,
    (seq, hint): (u32, u64),
    Answered { answer, granted, mut changed, delegated }: Answered,
) {
    let Some(client) = world.clients.iter().position(|client| client.id == to.client) else {
        return world.fleet.sim.fail(format!("{from} answers a client that does not exist"));
    };
    let at = At { client, slot: usize::from(to.slot.0) };
    if !world.clients[client].is_gone && world.clients[client].has_dead_front() {
        // The answer stays in the slot until a successor reads it.
        let answer = Answered { answer, granted, changed, delegated };
        let reply = Happening::Reply { from, to, seq, hint, answer };
        return world.fleet.sim.plan(ANSWER_READ_NANOS, reply);
    }
    if at.slot >= world.clients[client].slots.len() {
        return recalled(world, at, seq, answer);
    }
    // When a successor reported what a lost cell had done for this client, that was recorded.
    if world.clients[client].is_gone && world.slot(at).asked.is_none() {
        return;
    }
    let slot = world.slot(at);
    let fits = slot.seq == seq && slot.asked.as_ref().is_some_and(|asked| asked.cell == from);
    if !fits {
        return world
            .fleet
            .sim
            .fail(format!("{from} answers a request that {at:?} does not wait for"));
    }
    let asked = slot.asked.take().expect("it is asked");
    let Asked { request, mut operation, is_cancelled, again, .. } = asked;
    let again = again.filter(|_| !world.clients[client].is_gone);
    world.last_return = world.fleet.sim.now;
    if let Some(delegated) = &delegated {
        world.fleet.sim.count(name_of(delegated));
    }
    let payload = payload_of(&mut world.fleet, from, (to, seq), &answer);
    if again.is_none() {
        keep_changed(world, client, &mut changed, from);
        note_answered(world, at, &request, &answer, &payload);
    }
    if request.was_refused(&answer) {
        return repeat_refused(world, at);
    }
    let receiver = &world.clients[client];
    if !is_rightly_granted((receiver.id, receiver.front.is_some()), &answer, granted) {
        world.fleet.sim.fail(format!("{at:?} was granted something else with {answer:?}"));
    }
    let is_audit = world.audit.is_some();
    check_answer(&mut world.fleet, is_audit, (&request, operation.invoked), &answer);
    if !matches!(answer, Ok(Reply::Moved(_))) {
        operation.returned = world.fleet.sim.place();
        operation.hint = hint;
        operation.window.to = world.fleet.sim.wall();
        operation.excuses = world.excuses(&request, from, operation.invoked);
        operation.excuses.set(Excuses::CANCELLED, is_cancelled);
        match &operation.action {
            Action::Forged(_) => world.fleet.sim.count("a forged capability"),
            _ => note_reply(world, at, (&request, None), &answer),
        }
        operation.outcome = Some(Outcome { answer: answer.clone(), payload: payload.into() });
        note_refused(world, at, &mut operation);
        world.history.operations.push(operation);
    }
    let answered = Answered { answer, granted, changed, delegated };
    go_on(world, (at, from), again, (&request, answered));
}

const fn name_of(delegated: &Delegated) -> &'static str {
    match &delegated.tree {
        None => "a file delegated",
        Some(tree) if tree.continues.is_some() => "a directory that stays delegated",
        Some(_) => "a directory delegated",
    }
}

/// The slot goes on with this answer of the cell.
fn go_on(
    world: &mut World,
    (at, from): (At, CellId),
    again: Option<Send>,
    (request, answered): (&Request, Answered),
) {
    let client = &mut world.clients[at.client];
    if client.front.is_none() {
        client.cache.end(request, &answered);
    }
    if let Some(send) = again {
        ask_again(world, at, send);
    } else if world.slot(at).posting.is_some() {
        posting_answered(world, at, from);
    } else if let Some(send) = world.slot(at).after_records.take() {
        if !world.clients[at.client].is_gone {
            send_request(world, at, send);
        }
    } else if !world.clients[at.client].is_gone {
        step_call(world, at, Some(answered));
    }
}

/// A front's successor repeats a request of its predecessor.
fn ask_again(world: &mut World, at: At, send: Send) {
    world.fleet.sim.count("a front's successor asked again");
    world.slot(at).asks_again = true;
    send_request(world, at, send);
}

fn note_refused(world: &mut World, at: At, operation: &mut Operation) {
    let holdings = &mut world.clients[at.client].slots[at.slot].holdings;
    if may_have_locked(&world.outage, holdings, operation) {
        world.fleet.sim.count("a call refused that may have its lock");
        operation.process = world.history.new_processes(1);
    }
}
