//! Blocks for a change, promised before it is made: from the shard's chunks, or from the pool of
//! free chunks.

use warren_base::{ClientId, Errno, ShardId};
use warren_pool::Get;
use warren_proto::Step;

use crate::apply::step;
use crate::budget::{Growth, Need, Reservation};
use crate::chunks::free::Chunks;
use crate::delegate::call_in;
use crate::phase::Phase;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait, WaitKey, Waits};
use crate::shard::Shard;
use crate::turn::Turn;

/// Admits a change, which the caller makes in the same run. If the shard has too few blocks, a
/// chunk is fetched. If there is no chunk, a checkpoint may free some, and then the cleaner. If
/// that does not help, the change fails with ENOSPC.
pub(crate) fn reserve(
    shard: &mut Shard,
    need: Need,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    let id = shard.id;
    loop {
        if !turn.log_has_room() && !state.holds_locks {
            return Err(Stop::Wait(Wait::LogRoom));
        }
        if state.streams.credit >= need.blocks {
            return Ok(Reservation::of_credit(need.blocks));
        }
        // A change that takes no block for good takes nothing from root.
        let is_growth_of_user = need.growth == Growth::Grows && !state.is_privileged;
        let kept = if is_growth_of_user { shard.space.private() } else { 0 };
        if let Some(room) = shard.budget().admit(shard.room().saturating_sub(kept), need) {
            if state.is_privileged {
                shard.space.use_private(need.blocks);
            }
            return Ok(room);
        }
        if std::mem::take(&mut state.no_chunk) {
            if take_private(shard, state, turn)? {
                continue;
            }
            if let Some(client) = call_in(shard, turn).filter(|_| !state.is_posted()) {
                return Err(stop_for_stream(client, state));
            }
            return Err(stop_without_chunk(shard, need, state, turn.chunks));
        }
        if shard.space.open_fullest() {
            continue;
        }
        checkpoint_ahead(false, turn);
        if let Some(chunk) = turn.chunks.take_allocated() {
            claim_in_part(shard, chunk, turn);
            continue;
        }
        if turn.chunks.host.is_reserving() {
            turn.chunks.await_batch(id);
            return Err(Stop::Wait(Wait::Space(id)));
        }
        match turn.chunks.pool.get() {
            Get::Got(chunk) => {
                turn.chunks.reserve_for(id, chunk);
                return Err(Stop::Wait(Wait::Space(id)));
            }
            Get::Pending(ticket) => {
                turn.chunks.waiting.insert(ticket, id);
                return Err(Stop::Wait(Wait::Space(id)));
            }
        }
    }
}

/// Asks for a checkpoint while chunks are left, so that the next tasks need not wait for one.
fn checkpoint_ahead(is_reserve: bool, turn: &mut Turn<'_>) {
    if turn.chunks.is_half_gone(is_reserve) && turn.fleet.checkpoints.phase() == Phase::Idle {
        turn.want_checkpoint();
    }
}

/// Blocks that are set aside for records are needed. A task that holds locks begins again when the
/// records are executed.
fn stop_for_stream(client: ClientId, state: &TaskState) -> Stop {
    if state.holds_locks { Errno::EAGAIN.into() } else { Stop::Wait(Wait::Stream(client)) }
}

/// No chunk is left that the task may take: what it waits for, or ENOSPC. A task that holds locks
/// must not wait. Its transaction begins again: with EAGAIN after the next checkpoint, with ENOSPC
/// also after a cleaning.
fn stop_without_chunk(shard: &Shard, need: Need, state: &mut TaskState, chunks: &Chunks) -> Stop {
    // Blocks are kept back for a change that takes none for good. If others use them now, they are
    // free again after the next checkpoint.
    let are_in_use = need.growth != Growth::Grows && shard.is_unsettled();
    match (state.holds_locks, are_in_use) {
        (true, true) => return Errno::EAGAIN.into(),
        (true, false) => return Errno::ENOSPC.into(),
        (false, true) => return Stop::Wait(Wait::Checkpoint),
        (false, false) => {}
    }
    let is_certain = chunks.is_certain();
    let short = need.blocks.saturating_sub(shard.room());
    let next = state.wait_for_chunk(is_certain, Some(short));
    next.map_or(Stop::Fail(Errno::ENOSPC), Stop::Wait)
}

/// Claims a chunk that is kept for root, if the task is privileged and there is one.
fn take_private(
    shard: &mut Shard,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<bool, Stop> {
    if !state.is_privileged {
        return Ok(false);
    }
    checkpoint_ahead(true, turn);
    if let Some(chunk) = turn.chunks.take_reserved() {
        claim_in_part(shard, chunk, turn);
        shard.space.make_private();
        return Ok(true);
    }
    // The host is asked once, because it may be full. Then the task waits for a checkpoint.
    if !std::mem::replace(&mut state.asked_host, true)
        && let Some(chunk) = turn.chunks.take_unallocated_reserved()
    {
        turn.chunks.reserve_for(shard.id, chunk);
        return Err(Stop::Wait(Wait::Space(shard.id)));
    }
    state.asked_host = false;
    Ok(false)
}

/// Claims a chunk for a change that is not made yet. A long range takes more chunks than one record
/// can name. The record has only these, because a change is admitted before it is made.
fn claim_in_part(shard: &mut Shard, chunk: u64, turn: &mut Turn<'_>) {
    if !turn.log.record.takes_another_step() {
        turn.seal();
    }
    claim(shard, chunk, turn);
}

/// Claims a chunk that a checkpoint needs, if one is at hand. Chunks that are kept for root are for
/// checkpoints, too.
pub(crate) fn claim_spare(shard: &mut Shard, turn: &mut Turn<'_>) -> bool {
    match turn.chunks.take_allocated().or_else(|| turn.chunks.take_reserved()) {
        Some(chunk) => claim(shard, chunk, turn),
        None => false,
    }
}

/// Claims a chunk. Returns whether it was new to the shard.
pub(crate) fn claim(shard: &mut Shard, chunk: u64, turn: &mut Turn<'_>) -> bool {
    let is_new = !shard.space.has(chunk);
    if is_new {
        step(shard, Step::Claimed { shard: shard.id, chunk }, &mut Reservation::empty(), turn);
    }
    is_new
}

/// No chunk is available now for tasks that wait for one.
pub(crate) fn signal_no_chunk(shard: ShardId, waits: &mut Waits) {
    for id in waits.take_queue(WaitKey::Chunk(shard)) {
        waits.signal(id).no_chunk = true;
        waits.wake(id);
    }
}
