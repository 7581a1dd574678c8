//! Calls that a client answers itself, from the handles that it has kept ([`KeptHandles`]), and
//! those that a front answers from directories and names ([`FrontNames`]).
//!
//! [`KeptHandles`]: super::kept::KeptHandles
//! [`FrontNames`]: super::names::FrontNames

use warren_base::{Errno, Ino};
use warren_client::Op;
use warren_proto::{AccessMode, Capabilities, Handle, Lease, Reply, Request};

use super::World;
use super::call::start_call;
use super::claims::claim;
use super::client::{Client, Slot, Whole};
use super::event::At;
use super::kept::{keeps, shared};
use super::observe::{is_leased, note_answered, note_asked};
use super::record::record_whole;
use crate::history::{Action, Outcome};

/// One of so many calls is a claim.
const CLAIM_EVERY: u64 = 40;

/// The way in which a client continues a call.
enum Kept {
    /// The call is done, without a request.
    Done(Action),
    /// The client closes this handle first.
    Close(Handle),
}

/// Begins a call, unless the client's kept handles serve it or one of them must be closed first.
/// Then the slot goes on with that.
pub(super) fn begin_with_kept(
    world: &mut World,
    at: At,
    whole: Whole,
    bytes: Vec<u8>,
) -> Option<(Whole, Vec<u8>)> {
    if whole.forged {
        return Some((whole, bytes));
    }
    if answer_from_changed(world, at, &whole) || answer_absent(world, at, &whole) {
        return None;
    }
    match use_kept(world, at, &whole.op) {
        Some(Kept::Done(action)) => {
            record_whole(world, at, &whole, action, Outcome::of(Ok(Reply::Done)));
            world.think(at);
        }
        Some(Kept::Close(handle)) => {
            world.fleet.sim.count("a kept handle closed");
            let close = Op::Ino(Request::Close { handle }, Capabilities::default());
            let first = Whole::new(close.clone(), whole.invoked, whole.from, false);
            world.slot(at).deferred = Some((whole.op, bytes));
            start_call(world, at, close, first, Vec::new());
        }
        None => {
            if let Op::Ino(Request::Open { ino, .. }, _) = whole.op {
                pin(world, at, ino, &whole);
            }
            return Some((whole, bytes));
        }
    }
    None
}

/// Answers a request for attributes from those that came with the reply to a change.
fn answer_from_changed(world: &mut World, at: At, whole: &Whole) -> bool {
    let Op::Ino(request @ Request::GetAttr { ino }, _) = &whole.op else { return false };
    let client = &world.clients[at.client];
    let is_serving = client.has_living_front();
    let attr = client.kept.changed(*ino, &world.fleet.lanes.words_of(client.id));
    let Some(attr) = attr.filter(|_| is_serving && keeps(&world.swarm)) else { return false };
    let answer = Ok(Reply::Attr { attr, lease: Some(Lease { word: 0, stamp: 0 }) });
    let request = request.clone();
    note_asked(world, at, &request);
    note_answered(world, at, &request, &answer, &[]);
    record_whole(world, at, whole, Action::Request(request), Outcome::of(answer));
    world.fleet.sim.count("a front answered from what a change had left");
    world.think(at);
    true
}

/// Opens or closes a file without a request to its cell, if that is possible.
fn use_kept(world: &mut World, at: At, op: &Op) -> Option<Kept> {
    let client = &world.clients[at.client];
    let is_dead = client.has_dead_front();
    let may_keep = !is_dead && world.audit.is_none() && !world.fleet.incidents.has_damage();
    match *op {
        Op::Ino(Request::Close { handle }, _) => {
            if may_keep && keep(world, at, handle) {
                return Some(Kept::Done(Action::Keep(handle)));
            }
            // If the inode has no name, it ends with the close of the last handle in use. Of closes
            // that are under way together, the one that began last is the last.
            let is_last = world.clients[at.client].is_last_unclosed(handle);
            let kept = &mut world.clients[at.client].kept;
            kept.forget(handle);
            is_last.then(|| kept.take_unused(handle.ino)).flatten().map(Kept::Close)
        }
        Op::Ino(Request::Open { ino, access }, _) => {
            // Used after the post, it would stay open.
            if client.kept.nameless.contains(&ino) {
                return None;
            }
            world.fleet.lanes.mark_used(client.id, ino);
            if !is_leased(world, at, client.kept.first_unused(ino)?) {
                return world.clients[at.client].kept.take_unused(ino).map(Kept::Close);
            }
            let unused = *client.kept.unused.get(&(ino, shared(access)))?;
            let is_pinned = client.kept.pinned.contains_key(&ino);
            if !may_keep || is_pinned || access.contains(AccessMode::TRUNCATE) {
                return None;
            }
            let kept = &mut world.clients[at.client].kept;
            kept.unused.remove(&(ino, shared(access)));
            let access = kept.leased[&unused].access;
            world.slot(at).holdings.handles.push((unused, access));
            world.fleet.sim.count("a kept handle used again");
            Some(Kept::Done(Action::Reopen(unused)))
        }
        _ => None,
    }
}

/// Returns whether the handle stays open after its close.
fn keep(world: &mut World, at: At, handle: Handle) -> bool {
    let client = &world.clients[at.client];
    let Some(leased) = client.kept.leased.get(&handle) else { return false };
    let place = (handle.ino, shared(leased.access));
    let is_alone =
        !client.kept.unused.contains_key(&place) && world.clients[at.client].is_last(handle);
    if !is_alone || client.creates() || !is_leased(world, at, handle) {
        return false;
    }
    let client = &mut world.clients[at.client];
    client.slots[at.slot].holdings.handles.retain(|(held, _)| *held != handle);
    client.kept.unused.insert(place, handle);
    world.fleet.lanes.mark_idle(client.id, handle.ino);
    true
}

/// An `Open` of the inode is sent, which the client has marked as used. So until the answer the
/// handles that it has kept are open, although no program uses them.
fn pin(world: &mut World, at: At, ino: Ino, whole: &Whole) {
    let kept = &mut world.clients[at.client].kept;
    if let Some((_, pins)) = kept.pinned.get_mut(&ino) {
        pins.insert(at.slot);
    } else if let Some(handle) = kept.first_unused(ino).filter(|_| !kept.nameless.contains(&ino)) {
        kept.pinned.insert(ino, (handle, [at.slot].into()));
        record_whole(world, at, whole, Action::Reopen(handle), Outcome::of(Ok(Reply::Done)));
    }
}

/// Answers a lookup if the front knows that the name is absent.
fn answer_absent(world: &mut World, at: At, whole: &Whole) -> bool {
    let Op::Ino(request @ Request::Lookup { dir, name }, _) = &whole.op else { return false };
    let is_sound = !world.fleet.incidents.has_damage() && world.audit.is_none();
    let client = &mut world.clients[at.client];
    let is_serving = client.has_living_front();
    let words = world.fleet.lanes.words_of(client.id);
    if !is_serving || !is_sound || !client.kept.names.is_absent(*dir, name, &words) {
        return false;
    }
    let (request, answer) = (request.clone(), Err(Errno::ENOENT));
    note_asked(world, at, &request);
    note_answered(world, at, &request, &answer, &[]);
    record_whole(world, at, whole, Action::Request(request), Outcome::of(answer));
    world.fleet.sim.count("a front knew that a name is absent");
    world.think(at);
    true
}

/// Sometimes claims a file that a client has open or has kept, or any other. Clients that are not
/// fronts do so, too, and must be refused.
pub(super) fn claim_another(world: &mut World) -> Option<Op> {
    let rng = &mut world.fleet.sim.rng;
    if !rng.chance(1, CLAIM_EVERY) {
        return None;
    }
    let holder = &world.clients[rng.below(world.clients.len() as u64) as usize];
    let used = holder.slots.iter().flat_map(|slot| &slot.holdings.handles);
    let handles = used.map(|(handle, _)| handle).chain(holder.kept.unused.values());
    let held: Vec<Ino> = handles.map(|handle| handle.ino).collect();
    let is_open = !held.is_empty() && rng.chance(3, 4);
    let files = if is_open { &held } else { &world.known.files };
    let (request, what) = claim(rng, holder.id, files);
    world.fleet.sim.count(if is_open { what } else { "a claim of any file" });
    Some(Op::Ino(request, Capabilities::default()))
}

/// A client that is not a front keeps copies of a file's data while its lease on the opens of the
/// file is valid. A kernel changes mapped pages without a request. So never has a front a file open
/// for writing, and uses it, while another client has such a lease.
pub(super) fn check_kept(world: &mut World) {
    if !keeps(&world.swarm) || world.swarm.fronts == 0 {
        return;
    }
    let clients = || world.clients.iter().filter(|client| !client.is_gone);
    for front in clients().filter(|client| client.front.is_some()) {
        for ino in front.slots.iter().flat_map(writes) {
            let keeps_it = |other: &&Client| {
                let words = world.fleet.lanes.words_of(other.id);
                other.front.is_none() && other.kept.is_kept(ino, &words)
            };
            if let Some(keeper) = clients().find(keeps_it) {
                let (writer, keeper) = (front.id, keeper.id);
                let rule = format!("{keeper} keeps {ino}, which {writer} has open for writing");
                return world.fleet.sim.fail(rule);
            }
        }
    }
}

/// The files that a program of a front has open for writing.
fn writes(slot: &Slot) -> impl Iterator<Item = Ino> {
    let closing = match slot.under_way() {
        Some(Request::Close { handle }) => Some(*handle),
        _ => None,
    };
    let written = slot.holdings.handles.iter().filter(move |(handle, access)| {
        access.contains(AccessMode::WRITE) && Some(*handle) != closing
    });
    written.map(|(handle, _)| handle.ino)
}
