//! Calls that a client answers itself, from the handles that it has kept ([`KeptHandles`]), and
//! those that a front answers from directories and names ([`FrontNames`]).
//!
//! [`KeptHandles`]: super::kept::KeptHandles
//! [`FrontNames`]: super::names::FrontNames

use warren_base::{CellId, Errno, Ino};
use warren_cell::SlotRef;
use warren_client::Op;
use warren_proto::{
    AccessMode, Answer, Capabilities, CreateFlags, Handle, Lease, LeasedAttrs, Reply, Request,
};

use super::World;
use super::claims::claim;
use super::clients::{At, Client, Slot, Whole};
use super::kept::{keeps, shared};
use crate::fleet::Fleet;
use crate::history::{Action, Outcome};

/// Bytes of a page of names: so few that many directories take several.
const PAGE_BYTES_MAX: u64 = 300;

/// One of so many calls is a claim.
const CLAIM_EVERY: u64 = 40;

/// How a client continues a call.
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
            world.record_whole(at, &whole, action, Outcome::of(Ok(Reply::Done)));
            world.think(at);
        }
        Some(Kept::Close(handle)) => {
            world.fleet.sim.count("a kept handle closed");
            let close = Op::Ino(Request::Close { handle }, Capabilities::default());
            let first = Whole::new(close.clone(), whole.invoked, whole.from, false);
            world.slot(at).deferred = Some((whole.op, bytes));
            world.start_call(at, close, first, Vec::new());
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
    let is_serving = client.front.as_ref().is_some_and(|front| !front.is_dead);
    let attr = client.kept.changed(*ino, &world.fleet.lanes.words_of(client.id));
    let Some(attr) = attr.filter(|_| is_serving && keeps(&world.swarm)) else { return false };
    let answer = Ok(Reply::Attr { attr, lease: Some(Lease { word: 0, stamp: 0 }) });
    let request = request.clone();
    world.note_asked(at, &request);
    world.note_answered(at, &request, &answer, &[]);
    world.record_whole(at, whole, Action::Request(request), Outcome::of(answer));
    world.fleet.sim.count("a front answered from what a change had left");
    world.think(at);
    true
}

/// The data that a cell's answer brings.
pub(super) fn payload_of<H>(
    fleet: &mut Fleet<H>,
    from: CellId,
    (to, seq): (SlotRef, u32),
    answer: &Answer,
) -> Vec<u8> {
    match answer {
        Ok(Reply::Read { len }) => fleet.lanes.reply(from, to, *len as usize),
        Ok(Reply::LongXattr { .. }) => {
            fleet.sim.count("a long value came");
            fleet.lanes.payload(from, to, seq)
        }
        Ok(reply) if reply.opened().is_some() => {
            let data = fleet.lanes.payload(from, to, seq);
            if !data.is_empty() {
                fleet.sim.count("data came with an open file");
            }
            data
        }
        _ => Vec::new(),
    }
}

/// Opens or closes a file without a request to its cell, if that is possible.
fn use_kept(world: &mut World, at: At, op: &Op) -> Option<Kept> {
    let client = &world.clients[at.client];
    let is_dead = client.front.as_ref().is_some_and(|front| front.is_dead);
    let may_keep = !is_dead && world.audit.is_none() && !world.fleet.incidents.has_damage();
    match *op {
        Op::Ino(Request::Close { handle }, _) => {
            if may_keep && keep(world, at, handle) {
                return Some(Kept::Done(Action::Keep(handle)));
            }
            // If the inode has no name, it ends with the close of the last handle in use. Of closes
            // that are under way together, the one that began last is the last.
            let is_last = is_last_unclosed(world, at, handle);
            let kept = &mut world.clients[at.client].kept;
            kept.forget(handle);
            is_last.then(|| kept.take_unused(handle.ino)).flatten().map(Kept::Close)
        }
        Op::Ino(Request::Open { ino, access }, _) => {
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
    let is_alone = !client.kept.unused.contains_key(&place) && is_last(world, at, handle);
    if !is_alone || creates(client) || !is_leased(world, at, handle) {
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
    } else if let Some(handle) = kept.first_unused(ino) {
        kept.pinned.insert(ino, (handle, [at.slot].into()));
        world.record_whole(at, whole, Action::Reopen(handle), Outcome::of(Ok(Reply::Done)));
    }
}

/// An `Open` is answered. If it was pinned, the client marks the inode as idle if no program uses
/// it.
pub(super) fn unpin(world: &mut World, at: At, ino: Ino, is_opened: bool) {
    let client = &mut world.clients[at.client];
    let Some((handle, pins)) = client.kept.pinned.get_mut(&ino) else { return };
    let was_pinned = pins.remove(&at.slot);
    let (handle, id) = (*handle, client.id);
    if !was_pinned || !pins.is_empty() {
        return;
    }
    client.kept.pinned.remove(&ino);
    if !client.kept.leased.contains_key(&handle) {
        return;
    }
    let is_unused = !is_opened && is_last_unclosed(world, at, handle);
    // While another handle is being closed, the mark would let the cell close that one too.
    let may_mark = is_last(world, at, handle) && !creates(&world.clients[at.client]);
    let is_idle = is_unused && may_mark && is_leased(world, at, handle);
    if is_unused && !is_idle {
        world.clients[at.client].kept.forget(handle);
        let close = Op::Ino(Request::Close { handle }, Capabilities::default());
        world.slot(at).deferred = Some((close, Vec::new()));
        return;
    }
    if is_idle {
        world.fleet.lanes.mark_idle(id, ino);
    }
    let op = Op::Ino(Request::Null, Capabilities::default());
    let mut whole = Whole::new(op, world.fleet.sim.place(), world.fleet.sim.wall(), false);
    whole.asked = true; // The request itself has not returned yet.
    world.record_whole(at, &whole, Action::Keep(handle), Outcome::of(Ok(Reply::Done)));
}

fn is_leased(world: &World, at: At, handle: Handle) -> bool {
    let client = &world.clients[at.client];
    client.kept.is_leased(handle, &world.fleet.lanes.words_of(client.id))
}

/// Whether no other open of the inode is in use or under way. A handle is in use until its close is
/// answered.
fn is_last(world: &World, at: At, handle: Handle) -> bool {
    !world.clients[at.client].slots.iter().any(|slot| uses_other(slot, handle, None))
}

/// The same, but a handle whose close is under way is no longer in use.
fn is_last_unclosed(world: &World, at: At, handle: Handle) -> bool {
    !world.clients[at.client].slots.iter().any(|slot| {
        let closing = match slot.under_way() {
            Some(Request::Close { handle }) => Some(*handle),
            _ => None,
        };
        uses_other(slot, handle, closing)
    })
}

/// Whether a create of the client is under way. It may have created any inode, and the mark would
/// let the cell close its handle. A real front keeps the handle and marks it later.
fn creates(client: &Client) -> bool {
    let opens = |slot: &Slot| match slot.under_way() {
        Some(Request::Create { flags, .. }) => flags.contains(CreateFlags::OPEN),
        _ => false,
    };
    client.slots.iter().any(opens)
}

/// Whether the slot uses or opens the inode with a handle that is neither this one nor `closing`.
fn uses_other(slot: &Slot, handle: Handle, closing: Option<Handle>) -> bool {
    let opens = match slot.under_way() {
        Some(Request::Open { ino, .. }) => *ino == handle.ino,
        Some(Request::Write { handle: other, .. }) => other.ino == handle.ino,
        _ => false,
    };
    let mut held = slot.holdings.handles.iter().map(|(held, _)| *held);
    opens || held.any(|held| held.ino == handle.ino && held != handle && Some(held) != closing)
}

/// A cell has answered a front's request. The slot may go on with a page of a listing.
pub(super) fn note_names(world: &mut World, at: At, request: &Request, answer: &Answer) {
    let is_over = world.audit.is_some() || !keeps(&world.swarm);
    let cell = world.fleet.map[usize::from(request.shard().unwrap_or_default().0)];
    let client = &mut world.clients[at.client];
    if is_over || client.is_gone {
        return;
    }
    if let Some(page) = client.kept.names.answered(at.slot, request, answer, cell) {
        let bytes_max = 1 + world.fleet.sim.rng.below(PAGE_BYTES_MAX) as u32;
        let (dir, cookie) = (page.dir, page.cookie);
        let list = Request::ReadDir { dir, cookie, bytes_max, leased: true };
        world.slot(at).deferred = Some((Op::Ino(list, Capabilities::default()), Vec::new()));
        world.fleet.sim.count("a front listed names because it missed some");
    }
}

/// Answers a lookup if the front knows that the name is absent.
fn answer_absent(world: &mut World, at: At, whole: &Whole) -> bool {
    let Op::Ino(request @ Request::Lookup { dir, name }, _) = &whole.op else { return false };
    let is_sound = !world.fleet.incidents.has_damage() && world.audit.is_none();
    let client = &mut world.clients[at.client];
    let is_serving = client.front.as_ref().is_some_and(|front| !front.is_dead);
    let words = world.fleet.lanes.words_of(client.id);
    if !is_serving || !is_sound || !client.kept.names.is_absent(*dir, name, &words) {
        return false;
    }
    let (request, answer) = (request.clone(), Err(Errno::ENOENT));
    world.note_asked(at, &request);
    world.note_answered(at, &request, &answer, &[]);
    world.record_whole(at, whole, Action::Request(request), Outcome::of(answer));
    world.fleet.sim.count("a front knew that a name is absent");
    world.think(at);
    true
}

/// A front takes the directories that a request has changed. Another client's call takes the
/// attributes itself.
pub(super) fn keep_changed(
    world: &mut World,
    client: usize,
    changed: &mut LeasedAttrs,
    cell: CellId,
) {
    let client = &mut world.clients[client];
    if client.front.is_some() {
        client.kept.note_changed(std::mem::take(changed), cell);
    }
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
