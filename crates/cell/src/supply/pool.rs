//! Free chunks on their way: from and to other cells, from a checkpoint, to shards that wait for
//! one.

use warren_base::CellId;
use warren_pool::{Effect as PoolEffect, PoolMessage, Ticket};
use warren_proto::control::Report;

use crate::chunks::free::Chunks;
use crate::event::PeerBody;
use crate::run::wait::WaitKey;
use crate::shards::Shards;
use crate::supply::claim::{claim, signal_no_chunk};
use crate::supply::host::advance_host;
use crate::turn::Turn;

/// The mark of a chunk in a message that the host has allocated.
const ALLOCATED: u64 = 1 << 63;

/// Gives chunks that belong to no shard any more back to the pool.
pub(crate) fn give_chunks(shards: &mut Shards, chunks: Vec<u64>, turn: &mut Turn<'_>) {
    chunks.into_iter().for_each(|chunk| turn.chunks.add(chunk));
    poll_pool(shards, turn);
}

/// Chunks that were lost with a cell.
pub(crate) fn take_found(shards: &mut Shards, runs: &[(u64, u64)], turn: &mut Turn<'_>) {
    let chunks_known = &*turn.chunks;
    let chunks = runs.iter().flat_map(|(first, count)| *first..first.saturating_add(*count));
    let chunks = chunks.take_while(|chunk| chunks_known.is_legal(*chunk)).collect();
    give_chunks(shards, chunks, turn);
}

/// The part of this cell in the new chunks of a pool that has grown, and in what is kept for root.
pub(crate) fn take_grown(
    shards: &mut Shards,
    (reserve, runs): (u64, &[(u64, u64)]),
    last: bool,
    turn: &mut Turn<'_>,
) {
    turn.chunks.reserve(reserve);
    take_found(shards, runs, turn);
    if last {
        let cell = turn.fleet.volume.id;
        turn.report(Report::Grown { cell });
    }
}

pub(crate) fn pool_message(
    shards: &mut Shards,
    from: CellId,
    mut message: PoolMessage<u64>,
    turn: &mut Turn<'_>,
) {
    let allocated = take_marks(&mut message);
    if let PoolMessage::Transfer { number, .. } = message
        && !warren_pool::takes(&turn.chunks.pool, from, number)
    {
        // The chunks are here since the first time, perhaps in shards, or they come again.
        turn.chunks.pool.handle(from, message);
        return poll_pool(shards, turn);
    }
    if !is_valid(shards, &message, turn.chunks) {
        return turn.driver.suspect(from);
    }
    turn.chunks.host.arrived(&allocated);
    turn.chunks.pool.handle(from, message);
    poll_pool(shards, turn);
}

/// Takes the marks off the chunks of a message. Returns the chunks that had one.
fn take_marks(message: &mut PoolMessage<u64>) -> Vec<u64> {
    let PoolMessage::Transfer { elements, .. } = message else { return Vec::new() };
    let marked = |chunk: &&mut u64| **chunk & ALLOCATED != 0;
    let unmark = |chunk: &mut u64| {
        *chunk &= !ALLOCATED;
        *chunk
    };
    elements.iter_mut().filter(marked).map(unmark).collect()
}

/// Whether the chunks and cells that the message names exist, and its chunks are not here already.
fn is_valid(shards: &Shards, message: &PoolMessage<u64>, chunks: &Chunks) -> bool {
    match message {
        PoolMessage::Welcome { members, .. } | PoolMessage::Ready { members } => {
            members.iter().all(|cell| chunks.has_cell(*cell))
        }
        PoolMessage::Transfer { elements, .. } => elements.iter().all(|chunk| {
            let is_here = || shards.values().any(|shard| shard.space.has(*chunk));
            chunks.is_legal(*chunk) && !is_here()
        }),
        _ => true,
    }
}

/// Carries out the effects of the pool.
#[inline]
pub(crate) fn poll_pool(shards: &mut Shards, turn: &mut Turn<'_>) {
    while let Some(effect) = turn.chunks.pool.poll() {
        carry_out(shards, effect, turn);
    }
    if turn.chunks.host.has_work() {
        advance_host(turn);
    }
}

fn carry_out(shards: &mut Shards, effect: PoolEffect<u64>, turn: &mut Turn<'_>) {
    match effect {
        PoolEffect::Send { to, mut message } => {
            if let PoolMessage::Transfer { elements, .. } = &mut message {
                // A repeated transfer has no marks: the receiver allocates the chunks again.
                for chunk in elements {
                    let mark = if turn.chunks.host.forget(*chunk) { ALLOCATED } else { 0 };
                    *chunk |= mark;
                }
            }
            turn.driver.send(to, PeerBody::Pool(message));
        }
        PoolEffect::Resolved { ticket, element } => chunk_resolved(shards, ticket, element, turn),
        PoolEffect::Ready => {
            turn.chunks.add_early();
            turn.report_if_ready();
        }
        // A cell has sent a message that no correct cell sends. A successor joins again.
        PoolEffect::JoinFailed { .. } => panic!("the other cells have no pool of free chunks"),
        PoolEffect::LostMessage { cell } => turn.report(Report::LostMessage { cell }),
        PoolEffect::Left | PoolEffect::LastLeft { .. } | PoolEffect::Lost { .. } => {}
    }
}

fn chunk_resolved(shards: &mut Shards, ticket: Ticket, element: Option<u64>, turn: &mut Turn<'_>) {
    let shard = turn.chunks.waiting.remove(&ticket);
    match (element, shard) {
        // The shard was given up. A checkpoint may wait for a chunk for its log records.
        (Some(chunk), Some(shard)) if shards.is_given_up(shard) => {
            turn.chunks.add(chunk);
            turn.waits.wake_all(WaitKey::Chunk(shard));
        }
        (Some(chunk), Some(shard)) if !turn.chunks.host.take(chunk) => {
            turn.chunks.reserve_for(shard, chunk);
        }
        (Some(chunk), Some(shard)) => {
            // If the chunk is there already, nothing is claimed, and the tasks request another.
            claim(shards.shard(shard), chunk, turn);
            turn.waits.wake_all(WaitKey::Chunk(shard));
        }
        (Some(chunk), None) => turn.chunks.add(chunk),
        (None, Some(shard)) => signal_no_chunk(shard, turn.waits),
        (None, None) => {}
    }
}

/// Chunks that belonged to shards until the last checkpoint are free, and allocated.
pub(crate) fn release_chunks(shards: &mut Shards, chunks: Vec<u64>, turn: &mut Turn<'_>) {
    turn.chunks.host.released(&chunks);
    give_chunks(shards, chunks, turn);
}
