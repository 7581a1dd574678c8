//! Records of clients' streams are executed, and requests wait for them (decision 84).
//!
//! A record is executed only under a delegation of its inode, so it never conflicts with another
//! client, and waits for none: only for I/O, frames and room in the log. Any other record is
//! skipped with EAGAIN, and its client, which waits for the outcome, sends the request in a slot.

use warren_base::{ClientId, Errno, Ino, SlotNo, Timestamp};
use warren_proto::stream::StreamPos;
use warren_proto::{Answer, Reply, Request};

use crate::authority::may_name;
use crate::core::Core;
use crate::delegate::{await_all, await_stream, end, end_all, settle, use_of};
use crate::event::{BadRecord, Record, SlotRef};
use crate::plant::Plant;
use crate::run::task::Task;
use crate::run::wait::{Stop, WaitKey};
use crate::run::work::Work;
use crate::shards::Shards;
use crate::turn::Turn;

/// Records of one client that are executed before the cell takes in the next event.
const RECORDS_A_TURN: usize = 64;

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
        Err(BadRecord::Refused { end }) => {
            finish_record(client, end, &Err(Errno::EIO), turn);
            return None;
        }
        Err(BadRecord::Malformed) => {
            end_all(shards, client, turn);
            turn.sessions.streams.break_off(client);
            return None;
        }
    };
    let Record { header, time, request, end } = record;
    let from = SlotRef { client, slot: SlotNo::STREAM };
    let who = turn.sessions.clients.credentials_for(from, &header);
    let is_allowed = who.as_ref().is_some_and(|who| {
        may_name(client, who, &header, &request, turn.fleet, turn.sessions)
            && is_covered(shards, &request, client, turn)
    });
    let Some(who) = who.filter(|_| is_allowed) else {
        finish_record(client, end, &Err(Errno::EAGAIN), turn);
        return None;
    };
    turn.sessions.streams.begin(client, end);
    let id = turn.waits.new_id();
    let mut task = Task::new(id, Work::Request { from, header, request, who });
    task.state.streams.posted_at = Some(time);
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
    if request.ends_tasks() {
        return Ok(());
    }
    await_stream(from.client, state, turn)?;
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
    }
}

/// A client that has posted nothing since the last review gives its delegations back, so that a
/// cell that sleeps need not look at its stream.
pub(super) fn end_unused_delegations(shards: &mut Shards, turn: &mut Turn<'_>) {
    for client in turn.sessions.streams.take_unused() {
        end_all(shards, client, turn);
    }
}

/// Releases the blocks that were set aside for delegations that are revoked, and on which no record
/// rests any more.
fn release_ended(shards: &mut Shards, client: ClientId, turn: &mut Turn<'_>) {
    for ino in turn.sessions.streams.take_ended(client) {
        if let Some(shard) = shards.get_mut(&ino.shard())
            && !turn.plants(Plant::KeepCredit)
        {
            shard.leases.delegations.remove(ino);
        }
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

/// Whether the inode of a record is delegated to its client, or may have been by a predecessor.
fn is_covered(shards: &Shards, request: &Request, client: ClientId, turn: &Turn<'_>) -> bool {
    let Some(ino) = request.inode() else { return false };
    let Some(shard) = shards.get(&ino.shard()) else { return false };
    match shard.leases.delegations.find(ino) {
        Some(delegation) => delegation.client == client,
        // The handles for which it was delegated may be closed by now.
        None => {
            turn.sessions.streams.is_inherited(client)
                && shard.opens.only_client_of(ino) == Some(client)
        }
    }
}

/// The time of a record's changes: that which its client has chosen, if it can be true. It is not
/// before the last change of the inode, which the client knows.
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
    Ok(shard.inode(ino)?.map_or(now, |inode| inode.ctime.max(time)))
}

/// The blocks that are set aside for a record.
fn credit_of(shards: &Shards, request: &Request) -> u64 {
    let find = |ino: Ino| {
        let delegation = shards.get(&ino.shard())?.leases.delegations.find(ino)?;
        Some(delegation.blocks())
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
        shard.leases.delegations.spend(ino, request.post_cost(payload));
        // A device that fails, or a shard that is given up: the client must see it.
        if answer.is_err() {
            end(shard, ino, turn);
        }
    }
    finish_record(client, end_at, answer, turn);
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
