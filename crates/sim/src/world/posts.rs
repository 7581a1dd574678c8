//! Clients post changes of files that they alone use: they publish a record and return, unless the
//! lease has ended meanwhile (decision 84).
//!
//! ```text
//! publish ── another event or none ── load the word ──▶ done
//!                                          ╰─ 0 ──▶ any request to that cell ──▶ the outcome
//! ```
//!
//! Slots of one client take turns: while a record of one is published and not checked, the others
//! send requests.

use std::rc::Rc;

use warren_base::{CellId, Errno, Ino, Timestamp};
use warren_client::{Op, Post, Send};
use warren_proto::stream::RecordHeader;
use warren_proto::{
    AccessMode, Answer, Capabilities, CreateFlags, FileName, Handle, NewInode, Position, Reply,
    Request, RequestHeader, SetAttr, SetTime,
};

use super::World;
use super::call::{send_request, start_call};
use super::client::{Client, SlotState, Whole};
use super::event::At;
use super::kept::keeps;
use super::observe::note_reply;
use super::posting::{Posting, Posts};
use crate::fleet::Happening;
use crate::fleet::streams::Posted;
use crate::history::{Action, NEVER, Operation, Outcome};

/// Time between the publication and the load of the word, in nanoseconds.
const CHECK_NANOS: u64 = 100;
/// Files that a slot has open when it creates another one of its own.
const OWN_MAX: usize = 3;
/// One call in so many creates one, if the slot has none.
const CREATE_IN: u64 = 8;
/// Names of such files. A file that others have used is not delegated in the rest of a run.
const OWN_NAMES: u64 = 32;
/// One change in so many is a look at a file of another client instead.
const LOOK_IN: u64 = 8;
/// One write in so many has a time that cannot be true, so much later than the true one.
const UNTRUE_IN: u64 = 16;
const UNTRUE_NANOS: i64 = 24 * HOUR_NANOS;
/// The longest time until a cell executes a record, and more than a run takes.
const HOUR_NANOS: i64 = 3_600_000_000_000;

/// Lets clients that are no fronts open files for themselves, so that they may post.
pub(super) fn request_alone(world: &mut World, at: At, request: &mut Request) {
    let is_front = world.clients[at.client].front.is_some();
    if is_front
        || !world.posts.may_happen()
        || keeps(&world.swarm) && world.fleet.sim.rng.chance(1, 2)
    {
        return;
    }
    if let Request::Open { access, .. } | Request::Create { access, .. } = request
        && access.contains(AccessMode::WRITE)
    {
        access.remove(AccessMode::KEEP | AccessMode::DATA);
        access.insert(AccessMode::SOLE);
    }
}

/// Often draws a change of a file that the client alone uses, the creation of one, or a look at one
/// of another client.
pub(super) fn draw_change(world: &mut World, at: At) -> Option<(Op, Vec<u8>)> {
    let Posts { eager, .. } = world.posts;
    if eager == 0 || !world.fleet.sim.rng.chance(eager, 100) {
        return None;
    }
    let client = &world.clients[at.client];
    let held = client.slots[at.slot].holdings.handles.iter().map(|(handle, _)| *handle);
    let own: Vec<Handle> = held.filter(|held| client.cache.is_delegated(held.ino)).collect();
    if own.is_empty() && world.fleet.sim.rng.chance(1, CREATE_IN) {
        return draw_own_file(world, at);
    }
    if own.is_empty() || world.fleet.sim.rng.chance(1, LOOK_IN) {
        return draw_look(world, at);
    }
    let client = &world.clients[at.client];
    let holdings = &client.slots[at.slot].holdings;
    let is_root = client.credentials.uid == 0;
    let (swarm, now) = (&world.swarm, world.fleet.sim.wall());
    let (reach, longest) = (swarm.reach, swarm.write_max);
    let rng = &mut world.fleet.sim.rng;
    let handle = *rng.pick(&own);
    let may_close = !holdings.locks_by(handle);
    let set = SetAttr { kill_privileges: rng.chance(1, 3), ..SetAttr::default() };
    let times = [None, Some(SetTime::Now), Some(SetTime::At(now))];
    let set = match rng.below(16) {
        0 if may_close => {
            return Some((Op::Ino(Request::Close { handle }, Capabilities::default()), Vec::new()));
        }
        1 => SetAttr { mode: Some(*rng.pick(&[0o600, 0o644, 0o6755])), ..set },
        2 => SetAttr { atime: *rng.pick(&times), mtime: *rng.pick(&times), ..set },
        3 => SetAttr { size: Some(rng.below(reach)), ..set },
        4 => SetAttr { uid: is_root.then_some(1000), gid: Some(1000), ..set },
        _ => {
            let at_end = rng.chance(1, 2);
            let position = if at_end { Position::End } else { Position::At(rng.below(reach)) };
            let bytes = vec![rng.below(256) as u8; rng.below(longest + 1) as usize];
            let (kill_privileges, write_back, direct) = (!is_root, false, false);
            let write = Request::Write { handle, position, kill_privileges, write_back, direct };
            return Some((Op::Ino(write, Capabilities::default()), bytes));
        }
    };
    let request = Request::SetAttr { ino: handle.ino, handle: Some(handle), set };
    Some((Op::Ino(request, Capabilities::default()), Vec::new()))
}

/// Draws the creation of a file that may be the client's own.
fn draw_own_file(world: &mut World, at: At) -> Option<(Op, Vec<u8>)> {
    if world.slot(at).holdings.handles.len() >= OWN_MAX {
        return None;
    }
    let name = format!("p{}", world.fleet.sim.rng.below(OWN_NAMES));
    let name = FileName::new(name.as_bytes()).expect("a legal name");
    let (dir, new, flags) = (Ino::ROOT, NewInode::regular(0o666), CreateFlags::OPEN);
    let access = AccessMode::READ | AccessMode::WRITE;
    let create = Request::Create { dir, name, new, flags, access };
    Some((Op::Ino(create, Capabilities::default()), Vec::new()))
}

/// Draws a look at a file that another client alone uses.
fn draw_look(world: &mut World, at: At) -> Option<(Op, Vec<u8>)> {
    let others =
        world.clients.iter().enumerate().filter(|(n, other)| *n != at.client && !other.is_gone);
    let delegated = others.flat_map(|(_, other)| {
        let held = other.slots.iter().flat_map(|slot| &slot.holdings.handles);
        held.map(|(handle, _)| handle.ino).filter(|ino| other.cache.is_delegated(*ino))
    });
    let delegated: Vec<Ino> = delegated.collect();
    if delegated.is_empty() {
        return None;
    }
    let ino = *world.fleet.sim.rng.pick(&delegated);
    Some((Op::Ino(Request::GetAttr { ino }, Capabilities::default()), Vec::new()))
}

/// Posts the change, if that is possible. Otherwise gives it back.
pub(super) fn try_post(
    world: &mut World,
    at: At,
    whole: Whole,
    bytes: Vec<u8>,
) -> Option<(Whole, Vec<u8>)> {
    let chance = world.posts.chance;
    let Op::Ino(request, capabilities) = &whole.op else { return Some((whole, bytes)) };
    let client = &world.clients[at.client];
    let is_turn = client.front.is_none() && !client.posts() && !whole.forged && chance > 0;
    if !is_turn || world.audit.is_some() || !request.is_postable() {
        return Some((whole, bytes));
    }
    let (request, capabilities) = (request.clone(), *capabilities);
    let Some(post) = plan(world, at, &request, bytes.len()) else { return Some((whole, bytes)) };
    if !world.fleet.sim.rng.chance(chance, 100) {
        return Some((whole, bytes));
    }
    let payload: Rc<[u8]> = bytes.clone().into();
    let place = (post.cell, world.clients[at.client].id);
    let credentials = &world.clients[at.client].credentials;
    // The reply to a write shows no time.
    let is_untrue =
        matches!(request, Request::Write { .. }) && world.fleet.sim.rng.chance(1, UNTRUE_IN);
    let ahead = if is_untrue { UNTRUE_NANOS } else { 0 };
    let header = RecordHeader {
        time: Timestamp(post.time.0 + ahead),
        uid: credentials.uid,
        gid: credentials.gid,
        body_len: 0,
        payload_len: 0,
    };
    let posted = Posted::new(header, (request.clone(), capabilities), payload.clone());
    if world.fleet.lanes.streams.publish(place, posted, world.posts.ring).is_none() {
        world.fleet.sim.count("a stream without room");
        return Some((whole, bytes));
    }
    world.clients[at.client].cache.note_published(&post);
    if is_untrue {
        world.fleet.sim.count("a record with an untrue time");
        // Only the cell knows the attributes.
        world.clients[at.client].cache.end_delegation(post.ino());
    }
    world.fleet.sim.note(&("published", at, &request, &post));
    let delay = world.fleet.sim.rng.below(world.posts.look);
    let look = Happening::Posted { cell: place.0, client: place.1 };
    world.fleet.sim.plan(delay, look);
    let invoked = (whole.invoked, whole.from);
    let slot = world.slot(at);
    let waits = false;
    slot.posting =
        Some(Posting { post, request, capabilities, payload, invoked, waits, is_untrue });
    slot.state = SlotState::Stepping;
    world.plan_step(at, CHECK_NANOS);
    None
}

/// Predicts the outcome of the change, if the client may post it now.
fn plan(world: &mut World, at: At, request: &Request, payload: usize) -> Option<Post> {
    let now = world.fleet.sim.clock().wall;
    let client = &mut world.clients[at.client];
    let handle = match request {
        Request::Write { handle, .. } | Request::Close { handle } => Some(*handle),
        Request::SetAttr { handle, .. } => *handle,
        _ => None,
    }?;
    let held = client.slots[at.slot].holdings.handles.iter().find(|(held, _)| *held == handle);
    let (_, access) = *held?;
    let words = world.fleet.lanes.words_of(client.id);
    let who = (&*client.credentials, now);
    let post = client.cache.plan_post(request, payload, access, who, &words)?;
    let is_known = post.reply != Reply::Done || matches!(request, Request::Close { .. });
    is_known.then_some(post)
}

/// Loads the word of a change that was published.
pub(super) fn check_posted(world: &mut World, at: At) {
    let client = &world.clients[at.client];
    let posting = client.slots[at.slot].posting.as_ref().expect("it is posted");
    let words = world.fleet.lanes.words_of(client.id);
    if posting.post.guard.holds(&words) {
        world.fleet.sim.count("a change posted");
        let answer = Ok(posting.post.reply.clone());
        return end_posting(world, at, answer);
    }
    world.fleet.sim.count("a change posted too late");
    let (cell, ino) = (posting.post.cell, posting.post.ino());
    let client = &mut world.clients[at.client];
    client.cache.end_delegation(ino);
    client.slots[at.slot].posting.as_mut().expect("it is posted").waits = true;
    let header = RequestHeader::default();
    send_request(world, at, Send { cell, header, request: Request::Null });
}

/// The request that was sent to wait for the outcome is answered.
pub(super) fn posting_answered(world: &mut World, at: At, from: CellId) {
    let client = &world.clients[at.client];
    let posting = client.slots[at.slot].posting.as_ref().expect("it is posted");
    let outcome = world.fleet.lanes.streams.outcome((from, client.id));
    match outcome.errno {
        None => {
            let answer = Ok(posting.post.clone().late_reply(outcome.value));
            end_posting(world, at, answer);
        }
        Some(Errno::EAGAIN) => {
            world.fleet.sim.count("a skipped record sent as a request");
            let slot = world.slot(at);
            let Posting { request, capabilities, payload, invoked, .. } =
                slot.posting.take().expect("it is posted");
            let op = Op::Ino(request, capabilities);
            let whole = Whole::new(op.clone(), invoked.0, invoked.1, false);
            start_call(world, at, op, whole, payload.to_vec());
        }
        Some(errno) => end_posting(world, at, Err(errno)),
    }
}

fn end_posting(world: &mut World, at: At, answer: Answer) {
    let posting = world.slot(at).posting.take().expect("it is posted");
    world.fleet.sim.note(&("posted", at, &answer));
    note_reply(world, at, &posting.request, &answer);
    let returned = world.fleet.sim.place();
    world.last_return = world.fleet.sim.now;
    record(world, at, &posting, returned, answer);
    world.think(at);
}

/// The client is gone while it was posting: the change may take effect.
pub(super) fn lose_posting(world: &mut World, at: At) {
    if let Some(posting) = world.slot(at).posting.take() {
        world.fleet.sim.count("a client that hung up while it posted");
        let answer = Ok(posting.post.reply.clone());
        record(world, at, &posting, NEVER, answer);
    }
}

fn record(world: &mut World, at: At, posting: &Posting, returned: u64, answer: Answer) {
    let client = &world.clients[at.client];
    let process = client.process_of(at.slot) + usize::from(posting.waits);
    let (invoked, wall) = posting.invoked;
    let action = Action::Request(posting.request.clone());
    let mut operation = Operation {
        client: client.id,
        credentials: client.credentials.clone(),
        payload: posting.payload.clone(),
        outcome: Some(Outcome::of(answer)),
        ..Operation::new(process, action, (invoked, returned), wall)
    };
    let late = if posting.is_untrue { HOUR_NANOS } else { 0 };
    operation.window.to = Timestamp(world.fleet.sim.wall().0 + late);
    world.history.operations.push(operation);
}

impl Client {
    /// Whether a record of the client is published and not checked.
    fn posts(&self) -> bool {
        self.slots.iter().any(|slot| slot.posting.is_some())
    }
}
