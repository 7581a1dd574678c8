//! The host's space for free chunks: it is reserved ahead of need, and given back.

use warren_base::Errno;

use crate::chunks::free::Chunks;
use crate::chunks::host::{Review, blocks_of};
use crate::event::{Effect, IoId};
use crate::frames::io::Purpose;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait, WaitKey, Waits};
use crate::supply::claim::signal_no_chunk;
use crate::turn::Turn;

/// Begins to reserve the chunks that are wanted.
pub(crate) fn advance_host(turn: &mut Turn<'_>) {
    if !turn.chunks.fill_wanted() {
        // Other shards or cells have taken all chunks.
        turn.waits.wake_all(WaitKey::Allocated);
    }
    for run in turn.chunks.host.take_batch() {
        let (io, (block, count)) = (turn.cache.io.begin(Purpose::Reserve), blocks_of(&run));
        turn.chunks.host.reserves(io, run);
        turn.driver.effects.push(Effect::Reserve { io, block, count });
    }
}

pub(crate) fn chunks_reserved(
    io: IoId,
    result: Result<(), Errno>,
    chunks: &mut Chunks,
    waits: &mut Waits,
) {
    let Some(batch) = chunks.batch_reserved(io, result.is_ok()) else { return };
    for shard in batch.waiting {
        if batch.any_allocated {
            waits.wake_all(WaitKey::Chunk(shard));
        } else {
            signal_no_chunk(shard, waits);
        }
    }
    waits.wake_all(WaitKey::Allocated);
}

/// A checkpoint cannot wait for chunks once it has begun to fix its state. So it begins with some
/// allocated chunks, if there are any to allocate.
pub(crate) fn stock_up(state: &mut TaskState, chunks: &mut Chunks) -> Result<(), Stop> {
    if chunks.is_stocked() || state.granted {
        return Ok(());
    }
    state.granted = true;
    chunks.host.want_batch();
    Err(Stop::Wait(Wait::Allocated))
}

/// Checks whether some free chunks can be given back to the host.
pub(crate) fn review_host(turn: &mut Turn<'_>) {
    match turn.chunks.host.review() {
        Review::GiveBack => discard(turn),
        Review::Measure => turn.driver.effects.push(Effect::MeasureHost),
        Review::Nothing => {}
    }
}

/// The host has measured its room: so many blocks.
pub(crate) fn host_measured(blocks: u64, turn: &mut Turn<'_>) {
    turn.chunks.host.measured(blocks);
    discard(turn);
}

/// Gives allocated chunks back, except those that are kept.
fn discard(turn: &mut Turn<'_>) {
    for run in turn.chunks.take_surplus() {
        let (io, (block, count)) = (turn.cache.io.begin(Purpose::Discard), blocks_of(&run));
        turn.chunks.host.discards(io, run);
        turn.driver.effects.push(Effect::Discard { io, block, count });
    }
}

pub(crate) fn chunks_discarded(io: IoId, result: Result<(), Errno>, turn: &mut Turn<'_>) {
    turn.chunks.discarded(io, result);
    discard(turn);
}
