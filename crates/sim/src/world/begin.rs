//! A program, or the audit, begins its next call.

use warren_base::SlotNo;
use warren_client::Op;
use warren_proto::{Answer, Capabilities, InodeRef, Request};

use super::World;
use super::call::{start_call, step_call, write_back};
use super::claims::{forge, is_reached};
use super::client::{Client, Slot, SlotState, Whole};
use super::copies::{begin_with_kept, claim_another};
use super::draws::{draw_change, learn_members, request_alone};
use super::event::{At, Own};
use super::kept::request_keeping;
use super::posted::check_posted;
use super::program::Draw;
use super::record::{action_of, record_whole};
use super::writeback::{must_write_back, store_in_mapping};
use crate::history::{KEY, Outcome};
use crate::swarm::Cuts;

/// One of so many calls on inodes is forged.
const FORGED_EVERY: u64 = 40;

/// Begins a call in the slot, or steps the call it is in.
pub(super) fn go_on(world: &mut World, at: At) {
    match world.slot(at).state {
        SlotState::Thinking => begin_call(world, at),
        SlotState::Stepping => step(world, at),
        SlotState::Absent | SlotState::Waiting | SlotState::Finished => {}
    }
}

/// The slot goes on with its call, or with the change that it has posted.
pub(super) fn step(world: &mut World, at: At) {
    if world.slot(at).posting.is_some() {
        check_posted(world, at)
    } else {
        step_call(world, at, None)
    }
}

fn begin_call(world: &mut World, at: At) {
    if world.slot(at).deferred.is_none() && store_in_mapping(world, at) {
        return world.think(at);
    }
    let deferred = world.slot(at).deferred.take();
    let Some((op, bytes)) = deferred.or_else(|| choose_call(world, at)) else {
        world.slot(at).state = SlotState::Finished;
        return;
    };
    if must_write_back(world, at, &op) {
        write_back(world, at.client);
        let slot = world.slot(at);
        (slot.state, slot.deferred) = (SlotState::Waiting, Some((op, bytes)));
        return;
    }
    let (mut op, forged) = add_capabilities(world, at, op);
    if let Op::Ino(request, _) = &mut op {
        request_keeping(request, &world.swarm);
        if let Some(front) = &world.clients[at.client].front {
            front.kernel.mark(request);
        }
    }
    request_alone(world, at, &mut op);
    let (invoked, from) = (world.fleet.sim.place(), world.fleet.sim.wall());
    if let Some((answer, payload)) = ask_kernel(world, at, &op) {
        let whole = Whole::new(op, invoked, from, forged);
        if let Some(action) = action_of(&whole.op) {
            let outcome = Outcome { answer, payload: payload.into() };
            record_whole(world, at, &whole, action, outcome);
        }
        return world.think(at);
    }
    let whole = Whole::new(op, invoked, from, forged);
    if let Some((whole, bytes)) = begin_with_kept(world, at, whole, bytes) {
        start_call(world, at, whole.op.clone(), whole, bytes);
    }
}

/// Answers from the kernel's copies, if it has them.
fn ask_kernel(world: &mut World, at: At, op: &Op) -> Option<(Answer, Vec<u8>)> {
    let Op::Ino(request, _) = op else { return None };
    let with_pages = are_pages_right(world, at, op);
    let client = &world.clients[at.client];
    let front = client.front.as_ref()?;
    if let Request::Read { handle, .. } = request
        && !client.slots[at.slot].holdings.may_read(*handle)
    {
        return None;
    }
    let answered = front.kernel.answer(request, with_pages)?;
    let recalled = front.is_recalled();
    world.fleet.sim.count(match request {
        Request::Lookup { .. } => "a kernel knew a name",
        Request::GetAttr { .. } => "a kernel knew attributes",
        _ => "a kernel knew pages",
    });
    if recalled {
        world.fleet.sim.count("a front used copies while others were recalled");
    }
    Some(answered)
}

/// Whether the copies of pages must be current. When a front shrinks a file that another
/// changes, other fronts may have older pages until their recall ends (decision 17). So only a
/// program that has locked the file reads them, and a program locks the file before it shrinks
/// it.
fn are_pages_right(world: &World, at: At, op: &Op) -> bool {
    let Op::Ino(Request::Read { handle, .. }, _) = op else { return true };
    if world.swarm.cuts == Cuts::Freely {
        return false;
    }
    world.swarm.cuts != Cuts::UnderLocks
        || world.clients[at.client].slots[at.slot].holdings.has_locked(handle.ino)
}

/// Adds the capabilities for the inodes that the call names, as if the client had walked to
/// them: the harness knows the key. Sometimes it makes a capability wrong; then the call is
/// forged and must be refused.
fn add_capabilities(world: &mut World, at: At, op: Op) -> (Op, bool) {
    let may_forge = world.audit.is_none() && world.calls_left > 0;
    let Client { id, front, .. } = &world.clients[at.client];
    let id = *id;
    match op {
        op if front.is_some() => (op, false),
        Op::Ino(request, _) => {
            let mut capabilities = KEY.all_for(id, &request);
            if may_forge && world.fleet.sim.rng.chance(1, FORGED_EVERY) {
                capabilities =
                    forge(&mut world.fleet.sim.rng, &world.known.files, id, capabilities);
            }
            let forged = !is_reached(id, &request, capabilities);
            (Op::Ino(request, capabilities), forged)
        }
        Op::List(InodeRef { ino, .. }) => {
            (Op::List(InodeRef { ino, capability: KEY.capability(id, ino) }), false)
        }
        op => (op, false),
    }
}

fn choose_call(world: &mut World, at: At) -> Option<(Op, Vec<u8>)> {
    if let Some(audit) = &mut world.audit {
        return audit.next_call().map(|request| (request, Vec::new()));
    }
    if world.calls_left == 0 {
        let release = world.slot(at).holdings.release();
        let nothing = Capabilities::default();
        return release.map(|request| (Op::Ino(request, nothing), Vec::new()));
    }
    world.calls_left -= 1;
    if world.calls_left == 0 {
        world.heal();
    }
    if let Some(first) = world.opening.take() {
        return Some((first, Vec::new()));
    }
    if world.fleet.sim.rng.chance(world.swarm.upsets.hangups, 10_000) {
        let client = world.fleet.sim.rng.below(world.clients.len() as u64) as usize;
        let delay = world.fleet.sim.rng.below(50_000);
        world.plan(delay, Own::Hangup { client });
    }
    if world.fleet.sim.rng.chance(world.swarm.upsets.front_kills, 1000) {
        let delay = world.fleet.sim.rng.below(50_000);
        world.plan(delay, Own::KillFront { client: at.client });
    }
    if let Some(op) = cancel_another(world, at) {
        return Some((op, Vec::new()));
    }
    if let Some(op) = wanted_again(world, at.client).or_else(|| claim_another(world)) {
        return Some((op, Vec::new()));
    }
    learn_members(world);
    if let Some(drawn) = draw_change(world, at) {
        return Some(drawn);
    }
    let now = world.fleet.sim.wall();
    let client = &world.clients[at.client];
    let mut draw = Draw {
        swarm: &world.swarm,
        known: &world.known,
        holdings: &client.slots[at.slot].holdings,
        slot: SlotNo(at.slot as u16),
        uid: client.credentials.uid,
        front: client.front.is_some(),
        may_write: !world.swarm.one_writer || at.client == 0,
        now,
        rng: &mut world.fleet.sim.rng,
    };
    Some(draw.draw())
}

/// Sometimes cancels another slot of the client that waits for a lock.
fn cancel_another(world: &mut World, at: At) -> Option<Op> {
    if !world.fleet.sim.rng.chance(world.swarm.upsets.cancels, 100) {
        return None;
    }
    let waits = |(_, slot): &(usize, &Slot)| {
        slot.asked.as_ref().is_some_and(|a| matches!(a.request, Request::Lock { wait: true, .. }))
    };
    let slots = &mut world.clients[at.client].slots;
    let (other, _) = slots.iter().enumerate().find(waits)?;
    let slot = &mut slots[other];
    slot.asked.as_mut().expect("it waits").is_cancelled = true;
    let cancel = Request::Cancel { slot: SlotNo(other as u16), seq: slot.seq };
    world.fleet.sim.count("a wait for a lock cancelled");
    Some(Op::Ino(cancel, Capabilities::default()))
}

/// Often repeats the request whose copy was dropped.
fn wanted_again(world: &mut World, client: usize) -> Option<Op> {
    let wanted = world.clients[client].front.as_mut()?.wanted.take()?;
    Some(Op::Ino(wanted, Capabilities::default()))
}
