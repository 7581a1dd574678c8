//! Delegations end, and requests wait until what other clients have posted is executed (decision
//! 84). They are granted in [`beside`].
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

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{AccessMode, CreateFlags, LeaseKey, Request, Step};

pub(crate) mod beside;
mod trees;

pub(crate) use trees::{cover, lease_of_tree};

use crate::apply::step;
use crate::budget::{Need, Reservation};
use crate::plant::Plant;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::lease::{Delegation, State};
use crate::shards::Shards;
use crate::turn::Turn;

/// A delegation ends with the next look by another client after so many.
const LOOKS_MAX: u32 = 64;

/// The use that a task makes of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Looks,
    /// It opens or closes the inode, or changes data.
    Opens,
    /// It changes names or attributes.
    Changes,
}

/// The use that the request makes of the inodes that it names.
pub(crate) const fn use_of(request: &Request) -> Use {
    match request {
        Request::Open { access, .. } if access.contains(AccessMode::WATCH) => Use::Changes,
        Request::Create { flags, .. } if flags.contains(CreateFlags::EXISTING) => Use::Looks,
        Request::Open { .. }
        | Request::Close { .. }
        | Request::Write { .. }
        | Request::Fallocate { .. }
        | Request::CopyRange { .. } => Use::Opens,
        _ if request.is_change() || request.changes_names() => Use::Changes,
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
    let covering = shard.leases.delegations.covering(ino);
    if covering == [None, None] {
        return await_inherited(state, turn);
    }
    for covering in covering.into_iter().flatten() {
        settle_one(shard, covering, how, state, turn)?;
    }
    Ok(())
}

/// The same for one delegation that covers the inode.
fn settle_one(
    shard: &mut Shard,
    covering: Ino,
    how: Use,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    let Some(&Delegation { client: holder, is_tree, .. }) = shard.leases.delegations.find(covering)
    else {
        return Ok(());
    };
    if state.client == Some(holder) {
        // Another thread of the client must not predict results without a change that is under way.
        return match how {
            Use::Looks => Ok(()),
            Use::Opens if is_tree => Ok(()),
            Use::Opens | Use::Changes => end_and_await(shard, covering, true, state, turn),
        };
    }
    // Who opens a file changes its access time with the first read.
    if how != Use::Looks || shard.leases.delegations.note_look(covering) > LOOKS_MAX {
        shard.leases.delegations.rest(covering, turn.driver.now.monotonic);
        return end_and_await(shard, covering, false, state, turn);
    }
    if turn.plants(Plant::LookUndrained) {
        return Ok(());
    }
    await_stream(holder, state, turn)
}

/// A task changes the inode, and its holder, if that is its client, does not get to know the
/// attributes. The delegations end, and then everything that was posted under them is executed.
pub(crate) fn settle_change(
    shard: &mut Shard,
    ino: Ino,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    let covering = shard.leases.delegations.covering(ino);
    if covering == [None, None] {
        return await_inherited(state, turn);
    }
    for covering in covering.into_iter().flatten() {
        let is_paused = shard
            .leases
            .delegations
            .find(covering)
            .is_some_and(|it| it.state == State::Paused && state.client == Some(it.client));
        if !is_paused {
            end_and_await(shard, covering, false, state, turn)?;
        }
    }
    Ok(())
}

/// Ends the delegation, and waits for the records that rest on it.
fn end_and_await(
    shard: &mut Shard,
    ino: Ino,
    continues: bool,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    end(shard, ino, continues, turn);
    match shard.leases.delegations.find(ino) {
        Some(&Delegation { client, state: State::Ending { at, .. }, .. }) => {
            state.note_end(client, at);
            await_stream(client, state, turn)
        }
        _ => Ok(()),
    }
}

/// A predecessor may have delegated anything. Until everything is executed that was posted to it,
/// only records are.
fn await_inherited(state: &mut TaskState, turn: &mut Turn<'_>) -> Result<(), Stop> {
    if !turn.sessions.streams.has_inherited() || turn.plants(Plant::ServeBeforeInherited) {
        return Ok(());
    }
    for client in turn.sessions.streams.clients() {
        if turn.sessions.streams.is_inherited(client) {
            await_stream(client, state, turn)?;
        }
    }
    Ok(())
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
/// requests from now on. Records that it has posted keep what was set aside for them. `continues`:
/// the client itself makes a change, and may get a tree again.
pub(crate) fn end(shard: &mut Shard, ino: Ino, continues: bool, turn: &mut Turn<'_>) {
    let Some(&delegation) = shard.leases.delegations.find(ino) else { return };
    let Delegation { client, is_tree, .. } = delegation;
    match delegation.state {
        State::Standing => {}
        State::Paused if continues => return,
        State::Paused => return remove(shard, ino, turn),
        State::Ending { at, continues: true } if !continues => {
            return shard.leases.delegations.set_state(ino, State::Ending { at, continues });
        }
        State::Ending { .. } => return,
    }
    let continues = continues && is_tree;
    if !turn.plants(Plant::KeepDelegationWord) {
        turn.revoke(&mut shard.leases, &LeaseKey::Delegate(ino));
    }
    let at = turn.driver.memory.stream_end(client);
    shard.leases.delegations.set_state(ino, State::Ending { at, continues });
    turn.sessions.streams.want(client, at);
    let is_past = turn.sessions.streams.is_past(client, at);
    turn.sessions.streams.note_use(client, delegation.is_used || !is_past);
    if is_past {
        has_ended(shard, ino, turn);
    } else {
        turn.sessions.streams.end_delegation(client, ino, at);
    }
}

/// All records that rest on the delegation, whose lease is revoked, are executed.
pub(crate) fn has_ended(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) {
    match shard.leases.delegations.find(ino).map(|it| it.state) {
        Some(State::Ending { continues: true, .. }) => {
            shard.leases.delegations.set_state(ino, State::Paused);
        }
        Some(State::Ending { .. }) => remove(shard, ino, turn),
        // It was granted anew since.
        _ => {}
    }
}

/// Removes the delegation, and the numbers that came with it.
fn remove(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) {
    let Some(Delegation { client, is_tree, .. }) = shard.leases.delegations.remove(ino) else {
        return;
    };
    if is_tree {
        take_numbers_back(shard, client, ino, turn);
    }
}

/// Ends all delegations of the shard, whose blocks are needed. Returns a client for whose stream
/// the task has to wait.
pub(crate) fn call_in(shard: &mut Shard, turn: &mut Turn<'_>) -> Option<ClientId> {
    for ino in shard.leases.delegations.inodes() {
        end(shard, ino, false, turn);
    }
    shard.leases.delegations.any_client()
}

/// Ends all delegations of the client.
pub(crate) fn end_all(shards: &mut Shards, client: ClientId, turn: &mut Turn<'_>) {
    for shard in shards.values_mut() {
        for ino in shard.leases.delegations.of_client(client) {
            end(shard, ino, false, turn);
        }
    }
}

/// The client may post from now on. `None` if it has no ring.
fn open_stream(client: ClientId, turn: &mut Turn<'_>) -> Option<()> {
    let ring = turn.sessions.clients.stream_ring(client)?;
    if !turn.sessions.streams.has(client) {
        let executed = turn.driver.memory.stream_executed(client);
        turn.sessions.streams.open(client, executed, ring);
        turn.driver.memory.watch_stream(client, true);
    }
    Some(())
}

/// Whether so much can be set aside in the shard.
fn fits(shard: &Shard, need: Need) -> bool {
    let room = shard.room().saturating_sub(shard.space.private());
    shard.budget().admit(room, need).is_some()
}

/// Takes chunks for the shard until `fits` holds, while most of them are free.
fn make_room(shard: &mut Shard, fits: impl Fn(&Shard) -> bool, turn: &mut Turn<'_>) {
    while !fits(shard) && !turn.chunks.is_half_gone(false) {
        let Some(chunk) = turn.chunks.take_allocated() else {
            // The next request that could bring a delegation finds some.
            turn.chunks.host.want_batch();
            break;
        };
        let claimed = Step::Claimed { shard: shard.id, chunk };
        step(shard, claimed, &mut Reservation::empty(), turn);
    }
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

/// The client uses no more numbers of the tree.
fn take_numbers_back(shard: &mut Shard, client: ClientId, root: Ino, turn: &mut Turn<'_>) {
    for ino in turn.sessions.numbers.take_back(client, root) {
        turn.revoke(&mut shard.leases, &LeaseKey::Opens(ino));
    }
}
