//! Clients, and the harness, take note of requests and answers.

use warren_base::{CellId, Errno, Ino};
use warren_client::Op;
use warren_proto::stream::StreamPos;
use warren_proto::{
    Answer, Capabilities, CreateFlags, Entry, Handle, LeasedAttrs, Neighbour, Reply, Request,
};

use super::World;
use super::client::Whole;
use super::damage::is_gone;
use super::event::{At, Own};
use super::kept::keeps;
use super::posting::Member;
use super::record::record_whole;
use crate::history::{Action, Outcome};

/// Inodes in directories in which clients work that are remembered.
const MEMBERS_MAX: usize = 100;
/// Bytes of a page of names: so few that many directories take several.
const PAGE_BYTES_MAX: u64 = 300;

/// A request of the front is sent.
pub(super) fn note_asked(world: &mut World, at: At, request: &Request) {
    let client = &mut world.clients[at.client];
    if let Some(front) = &mut client.front {
        let written = client.slots[at.slot].payload().len() as u64;
        front.kernel.ask(at.slot, request, written);
        if keeps(&world.swarm) {
            client.kept.names.begin(request);
        }
    }
}

/// A request is answered, so its pages are not locked any more.
pub(super) fn note_answered(
    world: &mut World,
    at: At,
    request: &Request,
    answer: &Answer,
    read: &[u8],
) {
    note_page(world, at, request, answer);
    let client = &mut world.clients[at.client];
    if let Some(front) = &mut client.front {
        front.kernel.answered(at.slot, answer, client.slots[at.slot].payload(), read);
    }
    // A client that is expelled has no handles. It may still read the answer of before.
    let is_gone = client.is_gone;
    if let Some(opened) = answer.as_ref().ok().and_then(Reply::opened).filter(|_| !is_gone) {
        let ino = opened.handle.ino;
        world.fleet.lanes.mark_used(client.id, ino);
        client.kept.note_opened(request, opened, world.fleet.map[usize::from(ino.shard().0)]);
    }
    if let Request::Open { ino, .. } = request
        && !is_gone
    {
        unpin(world, at, *ino, answer.is_ok());
    }
    if world.clients[at.client].front.is_none() {
        return;
    }
    note_names(world, at, request, answer);
    drop_blocked(world, at.client);
}

/// Counts the entries of a page of a listing.
fn note_page(world: &mut World, at: At, request: &Request, answer: &Answer) {
    let (Request::ReadDir { cookie, .. }, Ok(Reply::Listing { entries, end, .. })) =
        (request, answer)
    else {
        return;
    };
    if let Some(whole) = &mut world.slot(at).whole
        && matches!(whole.op, Op::List(_))
    {
        // A listing that was restarted counts from zero.
        whole.listed = if *cookie == 0 { entries.len() } else { whole.listed + entries.len() };
        whole.ended = *end;
    }
}

/// Retries the drops that waited for a request to be answered.
pub(super) fn drop_blocked(world: &mut World, client: usize) {
    for listener in world.front(client).blocked() {
        let delay = world.fleet.sim.message_delay();
        world.plan(delay, Own::DropCopies { client, listener });
    }
}

/// An `Open` is answered. If it was pinned, the client marks the inode as idle if no program uses
/// it.
fn unpin(world: &mut World, at: At, ino: Ino, is_opened: bool) {
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
    let is_unused = !is_opened && world.clients[at.client].is_last_unclosed(handle);
    // While another handle is being closed, the mark would let the cell close that one too.
    let may_mark = world.clients[at.client].is_last(handle) && !world.clients[at.client].creates();
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
    record_whole(world, at, &whole, Action::Keep(handle), Outcome::of(Ok(Reply::Done)));
}

/// A cell has answered a front's request. The slot may go on with a page of a listing.
fn note_names(world: &mut World, at: At, request: &Request, answer: &Answer) {
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

/// Updates what the client and the harness know from an answer. `record`: the request was posted,
/// and its record ends there.
pub(super) fn note_reply(
    world: &mut World,
    at: At,
    (request, record): (&Request, Option<(CellId, StreamPos)>),
    answer: &Answer,
) {
    match answer {
        Ok(reply) => {
            world.slot(at).holdings.note(request, reply);
            let is_made =
                |ino: Ino| world.members.iter().all(|it| it.ino != ino || it.record.is_none());
            if [request.inode(), request.other_inode()].into_iter().flatten().all(is_made) {
                world.known.note(request);
            }
            if let Reply::Created { entry, .. } | Reply::Entry(entry) = reply {
                note_made(world, at, (request, record), entry);
            }
            if let Reply::Neighbours(found) = reply {
                world.fleet.sim.count("a name looked up with its neighbours");
                let is_covered = |one: &Neighbour| {
                    let Entry { lease, attr, .. } = one.entry;
                    lease.is_some() && attr.is_some_and(|(_, of_attr)| of_attr == lease)
                };
                if found.iter().any(is_covered) {
                    world.fleet.sim.count("an older inode became a member of a tree");
                }
                found.iter().for_each(|one| world.known.add(one.entry.ino, one.entry.kind));
            }
            count_success(world, request);
        }
        Err(errno) => note_error(world, at, request, *errno),
    }
}

/// An inode was made or found. In most runs, only calls on names in directories in which clients
/// work know what lies there.
fn note_made(
    world: &mut World,
    at: At,
    (request, record): (&Request, Option<(CellId, StreamPos)>),
    &Entry { ino, kind, .. }: &Entry,
) {
    let members = &mut world.members;
    let is_of_member = request.inode().is_some_and(|dir| members.iter().any(|it| it.ino == dir));
    let is_root = matches!(request, Request::Create { name, .. } if name.as_bytes()[0] == b'd');
    if members.iter().any(|it| it.ino == ino) {
        return;
    }
    if is_root || is_of_member || record.is_some() {
        let client = world.clients[at.client].id;
        members.push(Member { client, ino, kind, record });
        if members.len() > MEMBERS_MAX {
            members.remove(0);
        }
    } else {
        world.known.add(ino, kind);
    }
}

fn note_error(world: &mut World, at: At, request: &Request, errno: Errno) {
    match errno {
        Errno::EINTR => world.fleet.sim.count("a wait for a lock interrupted"),
        Errno::ENOSPC => world.fleet.sim.count("ENOSPC answered"),
        Errno::EIO => world.fleet.sim.count("EIO answered"),
        Errno::ESTALE => world.fleet.sim.count("a stale inode refused"),
        Errno::EDEADLK => world.fleet.sim.count("a deadlock of record locks found"),
        Errno::EACCES | Errno::EPERM => world.fleet.sim.count("permission denied"),
        Errno::ENOTEMPTY => world.fleet.sim.count("a full directory kept"),
        Errno::EINVAL if matches!(request, Request::Rename { .. }) => {
            world.fleet.sim.count("a rename into itself refused");
        }
        _ => {}
    }
    // An inode that is gone has nothing left to release.
    if is_gone(&world.fleet, request, errno) {
        let holdings = &mut world.slot(at).holdings;
        if let Request::Close { handle } = request {
            holdings.handles.retain(|(held, _)| held != handle);
        }
        // A handle that is not open for this changes no lock, and its existing locks stay.
        if let Request::Lock { handle, spec, .. } = request
            && (errno == Errno::ESTALE || holdings.would_unlock(*handle, spec.lock))
        {
            holdings.locks.retain(|(held, _)| held.ino != handle.ino);
        }
        if let Some(gone) = subject(request).filter(|_| errno == Errno::ESTALE)
            && world.fleet.sim.rng.chance(3, 4)
        {
            world.known.forget(gone);
            world.members.retain(|it| it.ino != gone);
        }
    }
}

fn count_success(world: &mut World, request: &Request) {
    let owner = |ino: Ino| world.fleet.map.get(usize::from(ino.shard().0)).copied();
    world.fleet.sim.count(match request {
        Request::Rename { from, dir, .. } if owner(*from) != owner(*dir) => "rename over two cells",
        Request::Link { ino, dir, .. } if owner(*ino) != owner(*dir) => "link over two cells",
        Request::Create { flags, .. } if flags.contains(CreateFlags::EXISTING) => {
            "a name looked up to open it"
        }
        Request::Rename { .. } => "rename in one cell",
        Request::Rmdir { .. } => "rmdir",
        Request::CopyRange { .. } => "a range copied",
        Request::Lock { wait: true, .. } => "lock granted to a waiting call",
        _ => return,
    });
}

/// The inode that a request refers to by number.
const fn subject(request: &Request) -> Option<Ino> {
    match request {
        Request::GetAttr { ino }
        | Request::SetAttr { ino, .. }
        | Request::Open { ino, .. }
        | Request::ReadLink { ino } => Some(*ino),
        Request::Lookup { dir, .. }
        | Request::Neighbours { dir, .. }
        | Request::Create { dir, .. }
        | Request::Unlink { dir, .. }
        | Request::Rmdir { dir, .. }
        | Request::ReadDir { dir, .. } => Some(*dir),
        _ => None,
    }
}

pub(super) fn is_leased(world: &World, at: At, handle: Handle) -> bool {
    let client = &world.clients[at.client];
    client.kept.is_leased(handle, &world.fleet.lanes.words_of(client.id))
}
