//! Write-back over all shards, before the cache is full of dirty pages.

use crate::budget::WRITE_BACK_BATCH;
use crate::cache::transfer::read_node;
use crate::data::writeback::{pages_a_turn, place_run};
use crate::phase::Phase;
use crate::run::wait::{Stop, Wait, WaitKey};
use crate::shards::Shards;
use crate::turn::Turn;

/// Writes under way beyond which write-back starts no more.
const WRITES_MAX: usize = 16;

/// Writes dirty pages before the cache is full of them.
#[inline]
pub(crate) fn write_back(shards: &mut Shards, turn: &mut Turn<'_>) {
    let limit = turn.cache.frames.count() as usize / 4;
    if turn.cache.frames.dirty_pages() > limit {
        write_beyond(limit, shards, turn);
    }
}

/// Writes dirty pages until no more than `limit` are left.
fn write_beyond(limit: usize, shards: &mut Shards, turn: &mut Turn<'_>) {
    // The free blocks are known only when all records are replayed.
    if !turn.log.image.is_open() {
        return;
    }
    // Only checkpoints repeat failed writes, because each attempt takes some of the log.
    if turn.log.commits.leaves_writes_to_checkpoints() {
        return;
    }
    // A checkpoint writes everything itself, and waits for all writes that were started.
    if matches!(turn.fleet.checkpoints.phase(), Phase::Fixing | Phase::Writing) {
        return;
    }
    while turn.cache.frames.dirty_pages() > limit && turn.cache.io.writes_under_way() < WRITES_MAX {
        match place_pages(shards, WRITE_BACK_BATCH, turn) {
            Ok(()) => turn.seal(),
            Err(Stop::Wait(Wait::Node(shard, pointer))) => {
                read_node(shard, pointer, turn.cache, &mut turn.driver);
                return;
            }
            // The state of the shard is damaged, perhaps. A checkpoint gives it up, and its pages.
            Err(Stop::Fail(_)) if turn.waits.is_waited_for(WaitKey::Frames) => {
                return turn.want_checkpoint();
            }
            Err(_) => return,
        }
    }
}

/// Gives all dirty pages places, a batch in each turn.
///
/// Any event may come between two batches, and change what it may change while no state is being
/// fixed: until no page is dirty, nothing is, and a page with a place is like any page that was
/// written back. A page that becomes dirty again has the room in the log and the blocks that every
/// dirty page was promised, and gets another place. Transactions do not start before the checkpoint
/// is over.
pub(super) fn place_all(shards: &mut Shards, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let left = turn.cache.frames.dirty_pages().saturating_sub(pages_a_turn(turn.cache));
    while turn.cache.frames.dirty_pages() > left {
        place_pages(shards, turn.cache.frames.dirty_pages() - left, turn)?;
        turn.seal();
    }
    if left > 0 { Err(Stop::Wait(Wait::Turn)) } else { Ok(()) }
}

/// Gives up to `limit` dirty pages places, in the order of their files, and starts to write them.
fn place_pages(shards: &mut Shards, limit: usize, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let Some(first) = shards.values().find_map(|shard| shard.pages.first_dirty()) else {
        return Ok(());
    };
    place_run(shards.shard(first.0.shard()), first, limit, turn)
}
