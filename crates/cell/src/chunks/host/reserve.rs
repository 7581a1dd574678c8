//! The host's space for free chunks: it is reserved ahead of need, and given back.

use warren_base::Errno;

use super::{DISCARD_BATCH, KEEP, TIGHT, blocks_of, runs};
use crate::chunks::claim::no_chunk_for;
use crate::chunks::free::Chunks;
use crate::config::Backing;
use crate::event::{Effect, IoId};
use crate::frames::io::Purpose;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait, WaitKey};
use crate::turn::Turn;

/// Begins to reserve the chunks that are wanted.
pub(crate) fn advance_host(turn: &mut Turn<'_>) {
    let host = &mut turn.chunks.host;
    if std::mem::take(&mut host.wants_batch) && !host.is_reserving() {
        turn.chunks.fill_batch();
        if turn.chunks.host.batch.is_empty() {
            // Other shards or cells have taken all chunks.
            turn.waits.wake_all(WaitKey::Allocated);
        }
    }
    if turn.chunks.host.batch.is_empty() {
        return;
    }
    let batch = std::mem::take(&mut turn.chunks.host.batch);
    (turn.chunks.host.batch_len, turn.chunks.host.any_allocated) = (batch.len(), false);
    for run in runs(batch) {
        let (io, (block, count)) = (turn.io.begin(Purpose::Reserve), blocks_of(&run));
        turn.chunks.host.reserving.insert(io, run);
        turn.effects.push(Effect::Reserve { io, block, count });
    }
}

pub(crate) fn reserved(io: IoId, result: Result<(), Errno>, turn: &mut Turn<'_>) {
    let chunks = &mut turn.chunks;
    let run = chunks.host.reserving.remove(&io).expect("it was begun");
    if result.is_ok() {
        chunks.host.allocated.extend(&run);
        chunks.host.any_allocated = true;
    }
    chunks.add_all(run);
    if chunks.host.is_reserving() {
        return;
    }
    let waiting = std::mem::take(&mut chunks.host.waiting);
    if !chunks.host.any_allocated && chunks.host.batch_len > 1 {
        chunks.host.batch = chunks.pool.take_newest(1, |_| true);
        if !chunks.host.batch.is_empty() {
            chunks.host.waiting = waiting;
            return;
        }
    }
    let any_allocated = chunks.host.any_allocated;
    for shard in waiting {
        if any_allocated {
            turn.waits.wake_all(WaitKey::Chunk(shard));
        } else {
            no_chunk_for(shard, turn);
        }
    }
    turn.waits.wake_all(WaitKey::Allocated);
}

/// A checkpoint cannot wait for chunks once it has begun to fix its state. So it begins with some
/// allocated chunks, if there are any to allocate.
pub(crate) fn stock_up(state: &mut TaskState, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let host = &turn.chunks.host;
    let is_stocked = host.has_all() || !host.allocated.is_empty();
    if is_stocked || turn.chunks.pool.local_size() == 0 || state.granted {
        return Ok(());
    }
    state.granted = true;
    turn.chunks.host.wants_batch = true;
    Err(Stop::Wait(Wait::Allocated))
}

/// Checks whether some free chunks can be given back to the host.
pub(crate) fn review_host(turn: &mut Turn<'_>) {
    match turn.chunks.host.backing {
        Backing::Device => discard(turn),
        Backing::OnDemand if !turn.chunks.host.allocated.is_empty() => {
            turn.effects.push(Effect::MeasureHost);
        }
        _ => {}
    }
}

/// The host has measured its room: so many blocks.
pub(crate) fn host_measured(blocks: u64, turn: &mut Turn<'_>) {
    if turn.chunks.host.backing == Backing::OnDemand {
        turn.chunks.host.keep = if blocks < TIGHT { 0 } else { KEEP };
    }
    discard(turn);
}

/// Gives allocated chunks back, except those that are kept.
fn discard(turn: &mut Turn<'_>) {
    let Chunks { pool, host, .. } = &mut turn.chunks;
    let surplus = host.allocated.len().saturating_sub(host.keep).min(DISCARD_BATCH);
    if surplus == 0 || !host.discarding.is_empty() || !host.takes_back {
        return;
    }
    let chunks = pool.take_newest(surplus, |chunk| host.allocated.contains(chunk));
    for chunk in &chunks {
        host.forget(*chunk);
    }
    for run in runs(chunks) {
        let (io, (block, count)) = (turn.io.begin(Purpose::Discard), blocks_of(&run));
        turn.chunks.host.discarding.insert(io, run);
        turn.effects.push(Effect::Discard { io, block, count });
    }
}

pub(crate) fn discarded(io: IoId, result: Result<(), Errno>, turn: &mut Turn<'_>) {
    let host = &mut turn.chunks.host;
    let run = host.discarding.remove(&io).expect("it was begun");
    if result.is_err() {
        // The cell does not ask again, because it would do so at each checkpoint.
        host.takes_back = false;
    }
    if result == Err(Errno::EOPNOTSUPP) {
        host.allocated.extend(&run);
    }
    turn.chunks.add_all(run);
    discard(turn);
}
