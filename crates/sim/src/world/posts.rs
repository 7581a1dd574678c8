//! Clients post changes of what they alone use: they publish a record and return, unless the lease
//! has ended meanwhile (decision 84).
//!
//! ```text
//! publish ── another event or none ── load the word ──▶ done
//!                                          ╰─ 0 ──▶ any request to that cell ──▶ the outcome
//! ```
//!
//! Slots of one client take turns: while a record of one is published and not checked, the others
//! send requests. A change of names that the client knows to fail is not published. Its error
//! counts if the word holds afterwards.

use std::rc::Rc;

use warren_base::{Ino, Timestamp};
use warren_cell::Plant;
use warren_client::Send;
use warren_proto::stream::{RecordHeader, StreamPos};
use warren_proto::{AccessMode, Answer, Reply, Request};

use super::World;
use super::client::{Client, SlotState};
use super::event::At;
use super::posting::{Planned, Posting};
use crate::fleet::Happening;
use crate::fleet::streams::{Added, Posted};
use crate::history::{Action, NEVER, Operation, Outcome};

/// Time between the publication and the load of the word, in nanoseconds: that of a processor, or
/// of a scheduler.
const CHECK_NANOS: u64 = 100;
const LATE_NANOS: u64 = 20_000;
/// One check in so many is late.
const LATE_IN: u64 = 4;
/// One write in so many is added to the last record while the cell looks at it.
const RACE_IN: u64 = 3;
/// Spare room that records have although no write is likely to follow.
const SPARE_MAX: u32 = 4096;
/// One record that makes an inode in so many has a number that is not the client's, or is used.
const WRONG_NUMBER_IN: u64 = 32;
/// One change in so many has a time that cannot be true, so much later than the true one.
const UNTRUE_IN: u64 = 16;
const UNTRUE_NANOS: i64 = 24 * HOUR_NANOS;
/// The longest time until a cell executes a record, and more than a run takes.
const HOUR_NANOS: i64 = 3_600_000_000_000;

/// Posts the change, if that is possible. Otherwise gives it back.
pub(super) fn try_post(world: &mut World, at: At, send: Send) -> Option<Send> {
    let chance = world.posts.chance;
    let client = &world.clients[at.client];
    let is_forged = client.slots[at.slot].whole.as_ref().is_some_and(|whole| whole.forged);
    let is_turn = client.front.is_none() && !client.posts() && !is_forged && chance > 0;
    if !is_turn || world.audit.is_some() || !send.request.is_postable() {
        return Some(send);
    }
    let payload = match &send.request {
        Request::Write { .. } => client.slots[at.slot].payload.clone(),
        _ => Rc::from([]),
    };
    let Some(planned) = plan(world, at, &send.request, payload.len()) else { return Some(send) };
    if !world.fleet.sim.rng.chance(chance, 100) {
        return Some(send);
    }
    let is_untrue = shows_no_time(&send.request) && world.fleet.sim.rng.chance(1, UNTRUE_IN);
    let invoked = (world.fleet.sim.place(), world.fleet.sim.wall());
    let waits = false;
    let end = None;
    let new = planned.new_inode();
    let is_wrong = new.is_some() && world.fleet.sim.rng.chance(1, WRONG_NUMBER_IN);
    let new = if is_wrong { Some(wrong_number(world, at)) } else { new };
    let ended = Vec::new();
    let mut posting =
        Posting { planned, new, is_wrong, end, ended, send, payload, invoked, waits, is_untrue };
    if posting.planned.answer().is_ok() {
        posting.end = publish(world, at, &mut posting);
        if posting.end.is_none() {
            world.fleet.sim.count("a stream without room");
            return Some(posting.send);
        }
    }
    let slot = world.slot(at);
    slot.posting = Some(posting);
    slot.state = SlotState::Stepping;
    let is_late = world.fleet.sim.rng.chance(1, LATE_IN);
    let delay = if is_late { world.fleet.sim.rng.below(LATE_NANOS) } else { CHECK_NANOS };
    world.plan_step(at, delay);
    None
}

/// Whether the reply shows no time of the change.
const fn shows_no_time(request: &Request) -> bool {
    matches!(
        request,
        Request::Write { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
    )
}

/// Predicts the outcome of the change, if the client may post it now.
fn plan(world: &mut World, at: At, request: &Request, payload: usize) -> Option<Planned> {
    let now = world.fleet.sim.clock().wall;
    let client = &mut world.clients[at.client];
    let words = world.fleet.lanes.words_of(client.id);
    let who = (&*client.credentials, now);
    if request.changes_names() {
        return client.cache.plan_names(request, who, &words).map(Planned::Names);
    }
    let handle = match request {
        Request::Write { handle, .. } | Request::Close { handle } => Some(*handle),
        Request::SetAttr { handle, .. } => *handle,
        _ => return None,
    };
    let access = match handle {
        None => AccessMode::empty(),
        Some(handle) => {
            let mut held = client.slots[at.slot].holdings.handles.iter();
            held.find(|(held, _)| *held == handle)?.1
        }
    };
    let post = client.cache.plan_post(request, payload, access, who, &words)?;
    let is_known = post.reply != Reply::Done || matches!(request, Request::Close { .. });
    is_known.then_some(Planned::File(post))
}

/// A number that the client may not use.
fn wrong_number(world: &mut World, at: At) -> Ino {
    let id = world.clients[at.client].id;
    let used: Vec<Ino> =
        world.members.iter().filter(|it| it.client == id).map(|it| it.ino).collect();
    world.fleet.sim.count("a record with a wrong number");
    if used.is_empty() { Ino::ROOT } else { *world.fleet.sim.rng.pick(&used) }
}

/// Publishes the record, or adds the change to the last one. Returns its end, if the stream has
/// room for it.
fn publish(world: &mut World, at: At, posting: &mut Posting) -> Option<StreamPos> {
    let Posting { is_untrue, is_wrong, .. } = *posting;
    let end = match add_to_last(world, at, posting) {
        Some(Added { end, contained: 0, .. }) => end,
        added => publish_record(world, at, posting, added.map_or(0, |added| added.contained))?,
    };
    let Posting { planned, send, .. } = posting;
    let client = &mut world.clients[at.client];
    let place = (planned.cell(), client.id);
    match planned {
        _ if is_wrong => client.cache.lose(planned.guard()),
        Planned::File(post) => client.cache.note_published(post),
        Planned::Names(post) => posting.ended = client.cache.note_names(post),
    }
    if is_untrue {
        world.fleet.sim.count("a record with an untrue time");
        // Only the cell knows the attributes.
        client.cache.lose(planned.guard());
        if let Planned::File(post) = planned {
            client.cache.end_delegation(post.ino());
        }
    }
    world.fleet.sim.note(&("published", at, &send.request, planned));
    let delay = world.fleet.sim.rng.below(world.posts.look);
    let look = Happening::Posted { cell: place.0, client: place.1 };
    world.fleet.sim.plan(delay, look);
    Some(end)
}

/// Adds a write to the last record, if that is possible and the posting is an honest one.
fn add_to_last(world: &mut World, at: At, posting: &mut Posting) -> Option<Added> {
    let Posting { planned: Planned::File(post), send, payload, .. } = posting else { return None };
    if posting.is_untrue || posting.is_wrong {
        return None;
    }
    let at_end = post.record(&send.request);
    let request = at_end.as_ref().unwrap_or(&send.request);
    let races = world.fleet.sim.rng.chance(1, RACE_IN);
    let place = (post.cell, world.clients[at.client].id);
    let write = (request, &payload[..], post.time);
    let mut added = world.fleet.lanes.streams.add_to_last(place, write, races)?;
    if world.fleet.sim.plant == Some(Plant::AddToRead) {
        added.contained = 0;
    }
    if added.contained == 0 {
        post.take_only(added.cost);
    }
    world.fleet.sim.count(match added.contained {
        0 => "a write added to the last record",
        _ => "a write added to a record that is being read",
    });
    Some(added)
}

/// Publishes a record of its own, which the last one may contain.
fn publish_record(
    world: &mut World,
    at: At,
    posting: &Posting,
    contained: u32,
) -> Option<StreamPos> {
    let Posting { planned, send, payload, new, is_untrue, .. } = posting;
    let client = &world.clients[at.client];
    let (place, ring) = ((planned.cell(), client.id), world.posts.ring);
    let ahead = if *is_untrue { UNTRUE_NANOS } else { 0 };
    let at_end = match planned {
        Planned::File(post) => post.record(&send.request),
        Planned::Names(_) => None,
    };
    let request = at_end.unwrap_or_else(|| send.request.clone());
    let most = *world.fleet.sim.rng.pick(&[0, SPARE_MAX]);
    let streams = &mut world.fleet.lanes.streams;
    let spare = streams.spare(place, &request, payload.len(), ring).max(most);
    let header = RecordHeader {
        time: Timestamp(planned.time().0 + ahead),
        uid: client.credentials.uid,
        gid: client.credentials.gid,
        spare,
        contained,
        new: *new,
        ..RecordHeader::default()
    };
    let named = (request, send.header.capabilities);
    let posted = Posted::new(header, named, payload.clone());
    // A client waits for room if the last record may contain this one.
    streams.publish(place, posted, if contained == 0 { ring } else { usize::MAX })
}

/// The client is gone while it was posting: the change may take effect.
pub(super) fn lose_posting(world: &mut World, at: At) {
    if let Some(posting) = world.slot(at).posting.take() {
        world.fleet.sim.count("a client that hung up while it posted");
        let answer = posting.planned.answer();
        if let Some(end) = posting.end
            && answer.is_ok()
            && !posting.is_wrong
        {
            let place = (posting.planned.cell(), world.clients[at.client].id);
            world.lost_posts.push((world.history.operations.len(), place, end));
            record_post(world, at, &posting, NEVER, answer);
        }
    }
}

/// Notes what became of the posts whose clients were gone.
pub(super) fn note_lost_posts(world: &mut World) {
    for (at, place, end) in std::mem::take(&mut world.lost_posts) {
        let operation = &mut world.history.operations[at];
        match world.fleet.lanes.streams.execution(place, end) {
            // An expulsion in the same event follows it.
            Some(Ok(when)) => operation.hint = when.saturating_sub(1),
            Some(Err(_)) => operation.outcome = None,
            None => {}
        }
    }
}

/// Adds the post to the history.
pub(super) fn record_post(
    world: &mut World,
    at: At,
    posting: &Posting,
    returned: u64,
    answer: Answer,
) {
    let client = &world.clients[at.client];
    let process = client.process_of(at.slot) + usize::from(posting.waits);
    let (invoked, wall) = posting.invoked;
    let action = Action::Request(posting.send.request.clone());
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
    /// Whether a change of the client is planned and not checked.
    fn posts(&self) -> bool {
        self.slots.iter().any(|slot| slot.posting.is_some())
    }
}
