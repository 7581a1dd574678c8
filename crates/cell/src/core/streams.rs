//! Records of clients' streams are executed, and requests wait for them (decision 84).
//!
//! A record is executed only under a delegation of what it changes, so it never conflicts with
//! another client, and waits for none: only for I/O, frames, room in the log, and transactions that
//! have locked what it changes. These give up, because they do not wait for a stream while they
//! hold locks. Any other record is skipped with EAGAIN, and its client, which waits for the
//! outcome, sends the request in a slot.

use warren_base::{ClientId, Errno, Ino, SlotNo, Timestamp};
use warren_proto::control::Report;
use warren_proto::stream::StreamPos;
use warren_proto::{Answer, FileKind, Reply, Request, SetAttr};

use crate::authority::may_name;
use crate::core::Core;
use crate::delegate::{await_all, await_stream, end, end_all, has_ended, settle, use_of};
use crate::event::{NoRecord, Record, SlotRef};
use crate::plant::Plant;
use crate::run::task::Task;
use crate::run::wait::{Stop, WaitKey};
use crate::run::work::Work;
use crate::shard::Shard;
use crate::shards::Shards;
use crate::turn::Turn;

/// Records of one client that are executed before the cell takes in the next event.
const RECORDS_A_TURN: usize = 16;

impl Core {
    /// Executes the records that are wanted.
    pub(super) fn run_streams(&mut self, turn: &mut Turn<'_>) {
        while let Some(client) = turn.sessions.streams.next_ready() {
            let mut left = RECORDS_A_TURN;
            while left > 0
                && let Some(place) = turn.sessions.streams.next_record(client)
            {
                left -= 1;
                if let Some(task) = begin_record(&mut self.shards, client, place, turn) {
                    self.run(task, turn);
                }
            }
            if left == 0 {
                turn.sessions.streams.pause(client);
                turn.driver.wake_at(turn.driver.now.monotonic);
            }
            release_ended(&mut self.shards, client, turn);
            forget_inherited_numbers(turn);
            turn.waits.wake_all(WaitKey::Stream(client));
            turn.report_if_drained();
            if turn.sessions.streams.has_left(client) {
                self.expel(client, turn);
            }
        }
    }
}

/// Returns a task for the next record of the client, unless the record is skipped or cannot be
/// read.
fn begin_record(
    shards: &mut Shards,
    client: ClientId,
    (at, goal): (StreamPos, StreamPos),
    turn: &mut Turn<'_>,
) -> Option<Task> {
    let record = match turn.driver.memory.read_record(client, at, goal) {
        Ok(record) => record,
        Err(NoRecord::Refused { end }) => {
            finish_record(client, end, &Err(Errno::EIO), turn);
            return None;
        }
        Err(NoRecord::Contained { end }) => {
            turn.driver.memory.repeat_outcome(client, end);
            turn.sessions.streams.finish(client, end);
            return None;
        }
        Err(NoRecord::Malformed) => {
            end_all(shards, client, turn);
            turn.sessions.streams.break_off(client);
            return None;
        }
    };
    let Record { header, time, new, request, end } = record;
    let from = SlotRef { client, slot: SlotNo::STREAM };
    let who = turn.sessions.clients.credentials_for(from, &header);
    let is_allowed = who.as_ref().is_some_and(|who| {
        may_name(client, who, &header, &request, turn.fleet, turn.sessions)
            && is_covered(shards, (&request, new), client, turn)
    });
    let Some(who) = who.filter(|_| is_allowed) else {
        finish_record(client, end, &Err(Errno::EAGAIN), turn);
        return None;
    };
    turn.sessions.streams.begin(client, end);
    let id = turn.waits.new_id();
    let mut task = Task::new(id, Work::Request { from, header, request, who });
    task.state.streams.posted_at = Some(time);
    task.state.streams.new = new;
    Some(task)
}

/// Before a task runs: the records that it has to see are executed, and the delegations that
/// stand in its way have ended.
pub(super) fn settle_streams(
    shards: &mut Shards,
    task: &mut Task,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    let Work::Request { from, request, .. } = &task.work else { return Ok(()) };
    let state = &mut task.state;
    if let Some(time) = state.streams.posted_at {
        state.streams.credit = credit_of(shards, request);
        turn.driver.now.wall = limit_time(shards, (from.client, request), time, turn)?;
        return Ok(());
    }
    // More credit does not depend on what was posted, and must come before that is executed.
    if request.ends_tasks() || matches!(request, Request::Extend { .. }) {
        return Ok(());
    }
    await_stream(from.client, state, turn)?;
    if let Request::Claim { client, .. } = request {
        // A program of the other client passes a file on that it may have made by a record.
        await_stream(*client, state, turn)?;
    }
    if matches!(request, Request::Sync | Request::StatFs) {
        return await_all(state, turn);
    }
    let how = use_of(request);
    for ino in [request.inode(), request.other_inode()].into_iter().flatten() {
        if let Some(shard) = shards.get_mut(&ino.shard()) {
            settle(shard, ino, how, state, turn)?;
        }
    }
    Ok(())
}

/// The client has published records.
pub(super) fn look_at_stream(client: ClientId, turn: &mut Turn<'_>) {
    if turn.sessions.streams.has(client) {
        let end = turn.driver.memory.stream_end(client);
        turn.sessions.streams.want(client, end);
    }
}

/// The client's process is gone. It is expelled when everything that it has posted is executed.
/// Returns whether it is now.
pub(super) fn end_posts(shards: &mut Shards, client: ClientId, turn: &mut Turn<'_>) -> bool {
    if !turn.sessions.streams.has(client) {
        return true;
    }
    end_all(shards, client, turn);
    look_at_stream(client, turn);
    turn.sessions.streams.leave(client);
    turn.sessions.streams.has_left(client)
}

/// The client is gone.
pub(super) fn close_stream(shards: &mut Shards, client: ClientId, turn: &mut Turn<'_>) {
    if turn.sessions.streams.has(client) {
        turn.sessions.streams.break_off(client);
        release_ended(shards, client, turn);
        turn.sessions.streams.remove(client);
        turn.waits.wake_all(WaitKey::Stream(client));
        turn.sessions.numbers.forget_client(client);
        turn.sessions.failures.forget_client(client);
        forget_inherited_numbers(turn);
    }
}

/// A client that has posted nothing since the last review gives its delegations back, so that a
/// cell that sleeps need not look at its stream.
pub(super) fn end_unused_delegations(shards: &mut Shards, turn: &mut Turn<'_>) {
    for client in turn.sessions.streams.take_unused() {
        end_all(shards, client, turn);
    }
}

/// Ends the delegations that are revoked, and on which no record rests any more.
fn release_ended(shards: &mut Shards, client: ClientId, turn: &mut Turn<'_>) {
    for ino in turn.sessions.streams.take_ended(client) {
        if let Some(shard) = shards.get_mut(&ino.shard())
            && !turn.plants(Plant::KeepCredit)
        {
            has_ended(shard, ino, turn);
        }
    }
}

/// Once the streams of a predecessor's clients are executed, no client has a number that it gave.
fn forget_inherited_numbers(turn: &mut Turn<'_>) {
    if !turn.sessions.streams.has_inherited() {
        turn.sessions.numbers.forget_inherited();
    }
}

/// A successor has replayed its log: it continues the streams of its predecessor's clients.
pub(super) fn inherit_streams(turn: &mut Turn<'_>) {
    let clients: Vec<ClientId> = turn.sessions.clients.all().collect();
    for client in clients {
        let from = SlotRef { client, slot: SlotNo::STREAM };
        let stored = turn.driver.memory.stream_executed(client);
        let logged = turn.sessions.answers.take_last(from);
        let published = turn.driver.memory.stream_end(client);
        if stored == StreamPos::default() && published == stored && logged.is_none() {
            continue;
        }
        let mut executed = stored;
        if let Some((seq, answer)) = logged.filter(|_| !turn.plants(Plant::ForgetPosition))
            && executed.is_before(StreamPos(seq))
        {
            executed = StreamPos(seq);
            store_outcome(client, executed, &answer, turn);
        }
        let Some(ring) = turn.sessions.clients.stream_ring(client) else { continue };
        turn.sessions.streams.open(client, executed, ring);
        turn.sessions.streams.inherit(client, published);
        turn.sessions.streams.want(client, published);
        turn.driver.memory.watch_stream(client, true);
    }
    forget_inherited_numbers(turn);
}

/// A checkpoint begins: it is to hold everything that clients have posted before, so that `sync`
/// covers it.
pub(super) fn set_barriers(turn: &mut Turn<'_>) {
    for client in turn.sessions.streams.clients() {
        let end = turn.driver.memory.stream_end(client);
        turn.sessions.streams.set_barrier(client, end);
    }
}

/// A record waits for this. A checkpoint that would make room for it does not wait for it.
pub(super) fn note_wait(client: Option<ClientId>, key: WaitKey, turn: &mut Turn<'_>) {
    let awaits_room = matches!(
        key,
        WaitKey::NextCheckpoint
            | WaitKey::Checkpoint(_)
            | WaitKey::LogRoom
            | WaitKey::Chunk(_)
            | WaitKey::Allocated
            | WaitKey::Cleaning
            | WaitKey::NextCleaning
            | WaitKey::Undrained
    );
    if let Some(client) = client.filter(|_| awaits_room) {
        turn.sessions.streams.await_room(client);
        turn.waits.wake_all(WaitKey::Stream(client));
        turn.report_if_drained();
    }
}

/// Whether everything that a record names is delegated to its client, or may have been by a
/// predecessor, and the number of a new inode is the client's.
fn is_covered(
    shards: &Shards,
    (request, new): (&Request, Option<Ino>),
    client: ClientId,
    turn: &Turn<'_>,
) -> bool {
    if turn.plants(Plant::ExecuteUncovered) {
        return true;
    }
    let Some(ino) = request.inode() else { return false };
    let Some(shard) = shards.get(&ino.shard()) else { return false };
    let is_inherited = turn.sessions.streams.is_inherited(client);
    let delegations = &shard.leases.delegations;
    let is_own = |ino: &Ino| delegations.find(*ino).is_some_and(|it| it.client == client);
    if !request.changes_names() {
        if let Request::SetAttr { set: SetAttr { size: None, .. }, .. } = request
            && (is_inherited || delegations.tree_of(ino).is_some_and(|root| is_own(&root)))
        {
            return true;
        }
        let is_own = delegations.covering(ino).iter().flatten().any(is_own);
        return (is_own || is_inherited) && shard.opens.only_client_of(ino) == Some(client);
    }
    let dirs = [Some(ino), request.other_inode()].into_iter().flatten();
    let has_dir = |dir: Ino| {
        let is_own = delegations.tree_of(dir).is_some_and(|root| is_own(&root));
        dir.shard() == shard.id && (is_own || is_inherited)
    };
    let has_number = |new: Ino| {
        let may_use = turn.sessions.numbers.may_use(client, new);
        new.shard() == shard.id && (may_use || turn.plants(Plant::UseNumberTwice))
    };
    let makes = matches!(request, Request::Create { .. });
    dirs.into_iter().all(has_dir) && (!makes || new.is_some_and(has_number))
}

/// The time of a record's changes: that which its client has chosen, if it can be true. It is not
/// before the last change of the inodes that it names, which the client knows.
fn limit_time(
    shards: &Shards,
    (client, request): (ClientId, &Request),
    time: Timestamp,
    turn: &Turn<'_>,
) -> Result<Timestamp, Stop> {
    let now = turn.driver.now.wall;
    if turn.plants(Plant::BelieveTime) {
        return Ok(time);
    }
    let time = turn.sessions.streams.limit_time(client, time, now);
    let shard = request.inode().and_then(|ino| Some((ino, shards.get(&ino.shard())?)));
    let Some((ino, shard)) = shard else { return Ok(now) };
    let Some(ctime) = last_change(shard, ino)? else { return Ok(now) };
    let other = request.other_inode().filter(|other| other.shard() == shard.id);
    let other = other.map_or(Ok(None), |other| last_change(shard, other))?;
    Ok(time.max(ctime).max(other.unwrap_or(ctime)))
}

/// The time of the last change of the inode, or of names in the directory.
fn last_change(shard: &Shard, ino: Ino) -> Result<Option<Timestamp>, Stop> {
    let Some(inode) = shard.inode(ino)? else { return Ok(None) };
    let is_directory = inode.kind == FileKind::Directory;
    let part = if is_directory { shard.part(ino)? } else { None };
    Ok(Some(part.map_or(inode.ctime, |part| inode.ctime.max(part.ctime))))
}

/// The inode whose delegation has the credit for a record: that of the file, or the root of its
/// tree.
fn creditor(shard: &Shard, request: &Request) -> Option<Ino> {
    let ino = request.inode()?;
    let delegations = &shard.leases.delegations;
    if request.changes_names() {
        return delegations.tree_of(ino);
    }
    delegations.covering(ino).into_iter().flatten().next()
}

/// The blocks that are set aside for a record.
fn credit_of(shards: &Shards, request: &Request) -> u64 {
    let find = |ino: Ino| {
        let shard = shards.get(&ino.shard())?;
        Some(shard.leases.delegations.find(creditor(shard, request)?)?.blocks())
    };
    request.inode().and_then(find).unwrap_or(0)
}

/// A record is executed. Its pages are no longer set aside.
pub(super) fn end_of_record(
    shards: &mut Shards,
    (client, end_at): (ClientId, StreamPos),
    (request, payload): (&Request, usize),
    answer: &Answer,
    turn: &mut Turn<'_>,
) {
    if let Some(ino) = request.inode()
        && let Some(shard) = shards.get_mut(&ino.shard())
    {
        if let Some(creditor) = creditor(shard, request) {
            shard.leases.delegations.spend(creditor, request.post_cost(payload));
        }
        // A device that fails, or a shard that is given up: the client must see it.
        if let Err(errno) = *answer {
            let tree = shard.leases.delegations.tree_of(ino);
            for ino in [Some(ino), tree].into_iter().flatten() {
                end(shard, ino, false, turn);
            }
            note_failure(client, ino, errno, turn);
        }
    }
    finish_record(client, end_at, answer, turn);
}

/// A record has failed. One that was skipped has not: its client sends it as a request. Other
/// errors than those of the device are the client's own fault, so that no one else hears of them.
fn note_failure(client: ClientId, ino: Ino, errno: Errno, turn: &mut Turn<'_>) {
    if errno != Errno::EAGAIN
        && turn.sessions.failures.note(client, ino, errno)
        && errno == Errno::EIO
    {
        let cell = turn.fleet.volume.id;
        turn.report(Report::PostFailed { cell, ino, errno });
    }
}

fn finish_record(client: ClientId, end: StreamPos, answer: &Answer, turn: &mut Turn<'_>) {
    store_outcome(client, end, answer, turn);
    turn.sessions.streams.finish(client, end);
}

fn store_outcome(client: ClientId, end: StreamPos, answer: &Answer, turn: &mut Turn<'_>) {
    let (errno, value) = match answer {
        Ok(Reply::Written { size, .. }) => (None, *size),
        Ok(Reply::Moved(_)) => (Some(Errno::EAGAIN), 0),
        Ok(_) => (None, 0),
        Err(errno) => (Some(*errno), 0),
    };
    turn.driver.memory.store_outcome(client, end, errno, value);
}
