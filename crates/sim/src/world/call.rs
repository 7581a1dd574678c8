//! A call in a slot: its steps, its requests, and its end.

use std::rc::Rc;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Ino};
use warren_client::{Call, Missing, Op, PathOp, Send, Step};
use warren_proto::{Answer, Answered, Capabilities, Position, Reply, Request, RequestHeader};

use super::World;
use super::claims::is_reached;
use super::client::{Asked, SlotState, Whole};
use super::draws::{NAMES, draw_name};
use super::event::At;
use super::front::Front;
use super::observe::{drop_blocked, note_asked};
use super::paths::Stepped;
use super::posts::try_post;
use super::record::{action_of, record_whole};
use super::writeback::{go_on_deferred, next_write_back};
use crate::history::{Action, NEVER, Operation, Outcome};

/// Upper limit of entries with long names in one page of a listing.
const PAGE_MAX: usize = 30;
/// Bytes of a page of a delegated directory: so few that there are several.
const PAGE_BYTES_MAX: u64 = 300;
/// Time between two loads of a client, in nanoseconds.
const STEP_NANOS: u64 = 200;

pub(super) fn start_call(world: &mut World, at: At, op: Op, whole: Whole, bytes: Vec<u8>) {
    let client = &mut world.clients[at.client];
    client.paths.begin(at.slot, &op);
    let (caller, slot) = (client.caller.clone(), &mut client.slots[at.slot]);
    slot.payload = Rc::from(bytes);
    slot.call = Some(Call::with_payload(op, caller, slot.payload.len() as u32));
    slot.whole = Some(whole);
    slot.state = SlotState::Stepping;
    step_call(world, at, None);
}

pub(super) fn step_call(world: &mut World, at: At, input: Option<Answered>) {
    let client = &mut world.clients[at.client];
    let is_alone = client.slots.len() == 1;
    let slot = &mut client.slots[at.slot];
    let call = slot.call.as_mut().expect("a slot that steps is in a call");
    let words = world.fleet.lanes.words_of(client.id);
    match client.paths.step(at.slot, &words) {
        Some(Stepped::Going) => return world.plan_step(at, STEP_NANOS),
        Some(Stepped::Answer(answer)) => {
            world.fleet.sim.count("a path answered without a walk");
            return finish_call(world, at, answer);
        }
        None => {}
    }
    if is_alone {
        call.use_cache_alone();
    }
    match call.step(&mut client.cache, &client.map, &words, input) {
        Step::Send(send) => {
            if send.request.changes_names() {
                slot.changed = send.request.inode();
            }
            if let Some(send) = try_post(world, at, send) {
                send_after_records(world, at, send);
            }
        }
        Step::Yield => {
            slot.state = SlotState::Stepping;
            world.plan_step(at, STEP_NANOS);
        }
        Step::AwaitMap(_) => {
            // The map of a simulated fleet does not change, so this answer is wrong.
            world.fleet.sim.fail(format!("{at:?} was sent to wait for another shard map"));
        }
        Step::Done(answered) => {
            if let Some(whole) = &slot.whole {
                client.paths.end(&whole.op, call, &answered.answer);
            }
            finish_call(world, at, answered.answer);
        }
    }
}

/// Sends the request when the cell of the other inode that it names has executed what was posted to
/// it: a record may make this inode.
fn send_after_records(world: &mut World, at: At, send: Send) {
    let client = &world.clients[at.client];
    let other = send.request.other_inode().filter(|_| client.front.is_none());
    let owner = other.and_then(|ino| client.map.owner(ino.shard()));
    let is_behind = |cell: &CellId| {
        *cell != send.cell && world.fleet.lanes.streams.is_behind((*cell, client.id))
    };
    let Some(cell) = owner.filter(is_behind) else { return send_request(world, at, send) };
    world.fleet.sim.count("a request that waits for records at another cell");
    world.slot(at).after_records = Some(send);
    let header = RequestHeader::default();
    send_request(world, at, Send { cell, header, request: Request::Null });
}

pub(super) fn send_request(world: &mut World, at: At, mut send: Send) {
    if let Some(front) = world.clients[at.client].front.as_mut().filter(|front| front.is_dead) {
        // The kernel keeps the request.
        front.unsent.insert(at.slot, send);
        world.slot(at).state = SlotState::Waiting;
        return;
    }
    if let Request::Cancel { slot, .. } = send.request {
        // It goes to the cell of the other request or, if that is finished, to any cell.
        let other = At { client: at.client, slot: usize::from(slot.0) };
        send.cell = world.slot(other).asked.as_ref().map_or(send.cell, |asked| asked.cell);
    }
    let from = world.clients[at.client].slot_ref(at.slot);
    let process = world.clients[at.client].process_of(at.slot);
    let (invoked, wall) = (world.fleet.sim.place(), world.fleet.sim.wall());
    let client = &mut world.clients[at.client];
    let slot = &mut client.slots[at.slot];
    let mut payload = match &send.request {
        Request::Write { .. } | Request::SetXattr { .. } => slot.payload.clone(),
        _ => Rc::from([]),
    };
    world.fleet.lanes.put_request(from, &payload);
    let mut is_forged = false;
    if let Some(whole) = slot.whole.as_mut() {
        whole.asked = true;
        whole.direct |= matches!(&whole.op, Op::Ino(request, _) if *request == send.request);
        is_forged = whole.forged;
    }
    let reached =
        client.front.is_some() || is_reached(client.id, &send.request, send.header.capabilities);
    if !reached && !is_forged {
        let rule = format!("{at:?} cannot name what it walked to: {:?}", send.request);
        return world.fleet.sim.fail(rule);
    }
    let mut done = send.request.clone();
    if let (Request::Write { position, .. }, Some((at, bytes))) = (&mut done, &slot.stored) {
        (*position, payload) = (*at, bytes.clone());
    }
    let action = if reached { Action::Request(done) } else { Action::Forged(done) };
    slot.seq += 1;
    slot.state = SlotState::Waiting;
    let operation = Operation {
        client: client.id,
        credentials: client.credentials.clone(),
        payload,
        ..Operation::new(process, action, (invoked, NEVER), wall)
    };
    let request = send.request.clone();
    let is_again = slot.asks_again;
    slot.asked =
        Some(Asked { cell: send.cell, request, operation, is_cancelled: false, again: None });
    slot.asks_again = false;
    slot.last_sent = client.front.is_some().then(|| send.clone());
    let mut header = send.header;
    header.seq = slot.seq;
    if client.front.is_none() {
        client.cache.begin(&send.request);
    }
    if !is_again {
        note_asked(world, at, &send.request);
    }
    world.fleet.plan_request(send.cell, from, header, send.request);
}

/// A kernel walks a path again and sends a change of names once more that was refused.
pub(super) fn repeat_refused(world: &mut World, at: At) {
    if world.clients[at.client].is_gone {
        return;
    }
    world.fleet.sim.count("a kernel repeated a change that was refused");
    let send = world.slot(at).last_sent.clone().expect("a front's request");
    send_request(world, at, send);
}

fn finish_call(world: &mut World, at: At, answer: Answer) {
    let whole = world.slot(at).whole.take().expect("in a call");
    world.slot(at).call = None;
    let named = world.slot(at).changed.take();
    let changed = match &whole.op {
        Op::Ino(Request::ReadDir { dir, .. }, _) => answer.is_ok().then_some(*dir),
        _ => named,
    };
    let copied = matches!(whole.op, Op::Ino(Request::Lookup { .. } | Request::GetAttr { .. }, _));
    // The request that a cell refused is in the history by itself.
    let refused = whole.forged && whole.asked;
    if copied && !whole.asked {
        world.fleet.sim.count("answered from copies");
    }
    let walked = matches!(whole.op, Op::At(_, PathOp::Stat)) && !whole.asked;
    if walked {
        world.fleet.sim.count("a path walked over copies");
    }
    if ((copied && !whole.direct) || walked)
        && !refused
        && let Some(action) = action_of(&whole.op)
    {
        record_whole(world, at, &whole, action, Outcome::of(answer.clone()));
    }
    check_listing(world, &whole, &answer);
    learn(world, at, changed);
    if at.slot >= world.clients[at.client].programs {
        world.slot(at).state = SlotState::Finished;
        return wrote_back(world, at.client, &whole.op, &answer);
    }
    if let Some(audit) = &mut world.audit {
        audit.note_answer(&whole.op, &answer);
    }
    world.think(at);
}

/// The client has changed names of a directory. If that is delegated to it, it asks next for what
/// it does not know there: all names, or the inode of one.
fn learn(world: &mut World, at: At, dir: Option<Ino>) {
    let Some(dir) = dir.filter(|_| world.slot(at).deferred.is_none()) else { return };
    let cache = &world.clients[at.client].cache;
    let rng = &mut world.fleet.sim.rng;
    let name = draw_name(rng, 'n', NAMES);
    let change = Request::Unlink { dir, name };
    let request = match (cache.next_page(dir), cache.missing(&change)) {
        (Some(cookie), missing) if missing.is_none() || rng.chance(1, 2) => {
            world.fleet.sim.count("a delegated directory listed");
            let bytes_max = 1 + world.fleet.sim.rng.below(PAGE_BYTES_MAX) as u32;
            Request::ReadDir { dir, cookie, bytes_max, leased: false }
        }
        (_, Some(Missing::Name(dir, name))) => Request::Neighbours { dir, name },
        _ => return,
    };
    world.slot(at).deferred = Some((Op::Ino(request, Capabilities::default()), Vec::new()));
}

/// A listing must consist of exactly its pages and contain no name twice.
fn check_listing(world: &mut World, whole: &Whole, answer: &Answer) {
    let (Op::List(dir), Ok(Reply::Listing { entries, .. })) = (&whole.op, answer) else {
        return;
    };
    let mut names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() != whole.listed || entries.len() != whole.listed || !whole.ended {
        let (listed, named) = (entries.len(), names.len());
        let rule = format!(
            "a listing of {dir:?} has {listed} entries with {named} names; its pages had {}",
            whole.listed
        );
        return world.fleet.sim.fail(rule);
    }
    if entries.len() > PAGE_MAX {
        world.fleet.sim.count("a listing of several pages");
    }
}

/// Starts the write-backs that are required, as far as slots are free.
pub(super) fn write_back(world: &mut World, client: usize) {
    if world.clients[client].is_gone {
        return;
    }
    let files: Vec<Ino> = world.front(client).written_back.iter().copied().collect();
    for ino in files {
        while let Some((at, whole, bytes)) = next_write_back(world, client, ino) {
            start_call(world, at, whole.op.clone(), whole, bytes);
        }
        let Front { kernel, written_back, .. } = world.front(client);
        if !kernel.has_stored(ino) {
            written_back.remove(&ino);
        }
    }
}

/// A page was written back, or the write-back failed.
fn wrote_back(world: &mut World, client: usize, op: &Op, answer: &Answer) {
    let Op::Ino(Request::Write { handle, position: Position::At(at), .. }, _) = op else {
        return world.fleet.sim.fail(format!("a kernel writes {op:?} back"));
    };
    let page = at / BLOCK_SIZE as u64;
    world.front(client).kernel.wrote_back(handle.ino, page, answer.is_ok());
    write_back(world, client);
    go_on_deferred(world, client);
    drop_blocked(world, client);
}
