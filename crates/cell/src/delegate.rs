//! Delegations are granted, and end; requests wait until what other clients have posted is executed
//! (decision 84).
//!
//! ```text
//! a look by another client      A end of the stream, execute up to it, then look
//! a change by another client    store 0 into the word, F, A end, execute up to it, then change
//! a change by the client itself the same: another thread of it may post meanwhile
//! ```
//!
//! The client stores the end of its stream before it loads the word, with a fence between, so
//! either it sees 0 and waits, or the cell sees its record. A task reads the end once, after it has
//! ended the delegation: what is posted later is concurrent with it.

use warren_base::{ClientId, Errno, Ino, InodeFlags};
use warren_proto::stream::Delegated;
use warren_proto::{
    AccessMode, Answer, FileKind, LeaseKey, LockKey, LockMode, Reply, Request, Step,
};

use crate::apply::step;
use crate::budget::Reservation;
use crate::plant::Plant;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::lease::Delegation;
use crate::shards::Shards;
use crate::turn::Turn;

/// Pages that a client may write by posts between two replies, from the most that is set aside to
/// the least that pays.
const CREDITS: [u32; 4] = [1024, 256, CREDIT_WANTED, 16];
/// For so many pages the shard takes more chunks, while most of them are free.
const CREDIT_WANTED: u32 = 64;

/// The use that a task makes of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Looks,
    Changes,
}

/// The use that the request makes of the inode that it names.
pub(crate) const fn use_of(request: &Request) -> Use {
    match request {
        Request::Open { .. } => Use::Changes,
        _ if request.is_change() => Use::Changes,
        _ => Use::Looks,
    }
}

/// Waits until everything that another client has posted on the inode is executed. If the task
/// changes it, the delegation ends first.
pub(crate) fn settle(
    shard: &mut Shard,
    ino: Ino,
    how: Use,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    let Some(&Delegation { client: holder, .. }) = shard.leases.delegations.find(ino) else {
        return await_inherited(shard, ino, state, turn);
    };
    if state.client == Some(holder) {
        // Another thread of the client must not predict results without a change that is under way.
        return match how {
            Use::Changes => settle_change(shard, ino, state, turn),
            Use::Looks => Ok(()),
        };
    }
    if how == Use::Changes {
        shard.leases.delegations.rest(ino, turn.driver.now.monotonic);
        return settle_change(shard, ino, state, turn);
    }
    if turn.plants(Plant::LookUndrained) {
        return Ok(());
    }
    await_stream(holder, state, turn)
}

/// A task changes the inode, and its holder, if that is its client, does not get to know the
/// attributes. The delegation ends, and then everything that was posted under it is executed.
pub(crate) fn settle_change(
    shard: &mut Shard,
    ino: Ino,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if shard.leases.delegations.find(ino).is_none() {
        return await_inherited(shard, ino, state, turn);
    }
    end(shard, ino, turn);
    match shard.leases.delegations.find(ino) {
        Some(&Delegation { client, ends_at: Some(at), .. }) => {
            state.note_end(client, at);
            await_stream(client, state, turn)
        }
        _ => Ok(()),
    }
}

/// A predecessor may have delegated the inode. Only an inode that one client alone had open was
/// delegated, and the log says which files are open.
fn await_inherited(
    shard: &Shard,
    ino: Ino,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if !turn.sessions.streams.has_inherited() {
        return Ok(());
    }
    match shard.opens.only_client_of(ino) {
        Some(holder)
            if Some(holder) != state.client && turn.sessions.streams.is_inherited(holder) =>
        {
            await_stream(holder, state, turn)
        }
        _ => Ok(()),
    }
}

/// Waits until the client's stream is executed up to the end that the task has seen first.
pub(crate) fn await_stream(
    client: ClientId,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if !turn.sessions.streams.has(client) {
        return Ok(());
    }
    let known = state.end_of(client);
    let end = known.unwrap_or_else(|| turn.driver.memory.stream_end(client));
    if turn.sessions.streams.is_past(client, end) {
        return Ok(());
    }
    if known.is_none() {
        state.note_end(client, end);
    }
    turn.sessions.streams.want(client, end);
    if turn.sessions.streams.is_past(client, end) {
        return Ok(());
    }
    Err(Stop::Wait(Wait::Stream(client)))
}

/// Waits until all that any client has posted is executed.
pub(crate) fn await_all(state: &mut TaskState, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let mut waits = Ok(());
    for client in turn.sessions.streams.clients() {
        waits = waits.and(await_stream(client, state, turn));
    }
    waits
}

/// The same, but for records that wait for room that only a checkpoint makes.
pub(crate) fn await_executable(state: &mut TaskState, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let mut waits = Ok(());
    for client in turn.sessions.streams.clients() {
        if !turn.sessions.streams.awaits_room(client) {
            waits = waits.and(await_stream(client, state, turn));
        }
    }
    waits
}

/// Ends the delegation of the inode, if there is one: the client waits for the results of its
/// requests from now on. Records that it has posted keep what was set aside for them.
pub(crate) fn end(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) {
    let Some(&delegation) = shard.leases.delegations.find(ino) else { return };
    let Delegation { client, ends_at: None, .. } = delegation else { return };
    if !turn.plants(Plant::KeepDelegationWord) {
        turn.revoke(&mut shard.leases, &LeaseKey::Delegate(ino));
    }
    let at = turn.driver.memory.stream_end(client);
    shard.leases.delegations.set_end(ino, at);
    turn.sessions.streams.want(client, at);
    let is_past = turn.sessions.streams.is_past(client, at);
    turn.sessions.streams.note_use(client, delegation.is_used || !is_past);
    if is_past {
        shard.leases.delegations.remove(ino);
    } else {
        turn.sessions.streams.end_delegation(client, ino, at);
    }
}

/// Ends all delegations of the shard, whose blocks are needed. Returns a client for whose stream
/// the task has to wait.
pub(crate) fn call_in(shard: &mut Shard, turn: &mut Turn<'_>) -> Option<ClientId> {
    for ino in shard.leases.delegations.inodes() {
        end(shard, ino, turn);
    }
    shard.leases.delegations.any_client()
}

/// Ends all delegations of the client.
pub(crate) fn end_all(shards: &mut Shards, client: ClientId, turn: &mut Turn<'_>) {
    for shard in shards.values_mut() {
        for ino in shard.leases.delegations.of_client(client) {
            end(shard, ino, turn);
        }
    }
}

/// The inode whose attributes the request may have changed, or which its client uses from now on.
fn used_inode(request: &Request, answer: &Answer) -> Option<Ino> {
    let Ok(reply) = answer else { return None };
    match request {
        Request::Create { .. } | Request::Open { .. } => {
            let opened = reply.opened()?;
            (!opened.direct).then_some(opened.handle.ino)
        }
        Request::Read { .. } | Request::GetAttr { .. } => request.inode(),
        _ if request.is_change() && request.on_names().is_none() => request.inode(),
        _ => None,
    }
}

/// Whether a client that makes such a request will probably post others. After an open it does if
/// it has done so lately.
fn is_wanted(request: &Request, client: ClientId, turn: &mut Turn<'_>) -> bool {
    let streams = &mut turn.sessions.streams;
    match request {
        Request::Create { .. } | Request::Open { .. } => {
            request.is_change() && streams.pays(client)
        }
        Request::Write { .. } | Request::SetAttr { handle: Some(_), .. } => {
            streams.note_use(client, true);
            true
        }
        _ => false,
    }
}

/// The delegation that comes with the reply to a client's request in a slot: a new one, or that
/// which the client has, with the attributes as they are now. Its lease is always a new one,
/// because another thread of the client may have posted while the request was under way. Then that
/// thread finds the old lease revoked, or the attributes show its record.
pub(crate) fn delegate_beside(
    shards: &mut Shards,
    request: &Request,
    answer: &Answer,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    let ino = used_inode(request, answer)?;
    let shard = shards.get_mut(&ino.shard())?;
    let may_have_it = match shard.leases.delegations.find(ino) {
        Some(it) => it.client == client,
        None => is_wanted(request, client, turn) && may_delegate(shard, ino, client, turn),
    };
    if !may_have_it {
        return None;
    }
    end(shard, ino, turn);
    let attr = match answer.as_ref().ok().and_then(Reply::opened) {
        Some(opened) => opened.attr,
        None => shard.inode_value(ino).ok().flatten()?.attr,
    };
    let is_plain = attr.kind == FileKind::Regular
        && attr.nlink > 0
        && !attr.flags.intersects(InodeFlags::SETTABLE | UNPREDICTABLE);
    if !is_plain || shard.leases.delegations.find(ino).is_some() {
        return None;
    }
    let ring = turn.sessions.clients.stream_ring(client)?;
    let credit = set_aside(shard, ino, client, turn)?;
    if !turn.plants(Plant::DelegateBesideCopies) {
        turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    }
    if !turn.sessions.streams.has(client) {
        let executed = turn.driver.memory.stream_executed(client);
        turn.sessions.streams.open(client, executed, ring);
        turn.driver.memory.watch_stream(client, true);
    }
    let lease = turn.grant(&mut shard.leases, LeaseKey::Delegate(ino), client);
    Some(Box::new(Delegated { attr, lease, credit }))
}

/// Attributes whose changes depend on more than the attributes.
const UNPREDICTABLE: InodeFlags = InodeFlags::ACL.union(InodeFlags::CAPABILITY);

/// Whether the client alone uses the file, and writes it, and no kernel and no transaction has
/// anything of it.
fn may_delegate(shard: &Shard, ino: Ino, client: ClientId, turn: &Turn<'_>) -> bool {
    let writes = AccessMode::WRITE | AccessMode::SOLE;
    let leases = &shard.leases;
    shard.opens.only_client_of(ino) == Some(client)
        && shard.opens.has_open(ino, client, writes)
        && !turn.sessions.clients.acknowledges(client)
        && !turn.is_read_only(Some(client))
        && !turn.sessions.streams.is_broken(client)
        && leases.delegations.may_delegate(ino, turn.driver.now.monotonic)
        && !shard.locks.blocks(&LockKey::Inode(ino), LockMode::Write)
        && [LeaseKey::Attr(ino), LeaseKey::Pages(ino)].iter().all(|key| {
            let is_inherited = !turn.sessions.leases.inherited.is_empty() && turn.is_marked(key);
            !leases.is_acknowledged(key, is_inherited, &turn.sessions.leases)
        })
}

/// Delegates the inode, and sets blocks aside for pages that the client may post. Returns their
/// number, `None` if there is no room.
fn set_aside(shard: &mut Shard, ino: Ino, client: ClientId, turn: &mut Turn<'_>) -> Option<u32> {
    let budget = shard.budget();
    let fits = |shard: &Shard, credit: u32| {
        let room = shard.room().saturating_sub(shard.space.private());
        budget.admit(room, budget.posts(credit.into())).is_some()
    };
    while !fits(shard, CREDIT_WANTED) && !turn.chunks.is_half_gone(false) {
        let Some(chunk) = turn.chunks.take_allocated() else {
            // The next request that could bring a delegation finds some.
            turn.chunks.host.want_batch();
            break;
        };
        let claimed = Step::Claimed { shard: shard.id, chunk };
        step(shard, claimed, &mut Reservation::empty(), turn);
    }
    let credit = CREDITS.into_iter().find(|credit| fits(shard, *credit))?;
    let need = budget.posts(credit.into());
    shard.leases.delegations.insert(ino, client, credit, need.blocks);
    Some(credit)
}

/// EAGAIN if a transaction has locked an inode on which records wait to be executed. It holds
/// locks, so it must not wait for a stream. Its next attempt finds no delegation.
pub(crate) fn settle_locked(
    shard: &mut Shard,
    ino: Ino,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Errno> {
    settle_change(shard, ino, state, turn).map_err(|_| Errno::EAGAIN)
}
