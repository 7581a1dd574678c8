//! A shard that cannot be served is given up alone: its state cannot be read, contradicts itself,
//! or does not take a change that was decided.
//!
//! ```text
//! serves ──▶ given up ──checkpoint──▶ recorded
//!            no access   its log records are kept, its root slot is marked
//! ```
//!
//! Invariants:
//! * Requests for objects in the shard get EIO. Its value is dropped, so nothing can reach it. All
//!   other shards are served.
//! * Its tree on the device stays as the last checkpoint left it. It keeps its chunks, and those
//!   that it has claimed since.
//! * Its log records are in chunks of its own ([`warren_disk::KeptRecords`]) before the log is
//!   freed, unless no cell has a free chunk.
//! * A replay knows from the log that it was given up ([`Step::GivenUp`]), until its root slot
//!   records it.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{BlockNo, Errno, ShardId};
use warren_disk::{BlockWrite, KEPT_MAX, KeptRecords, read_record};
use warren_pool::Get;
use warren_proto::control::{Report, Written};
use warren_proto::{Change, Step};

use crate::apply::fetch_change;
use crate::chunks::free::Chunks;
use crate::delegate::end;
use crate::fleet::Fleet;
use crate::frames::cache::Cache;
use crate::log::record::{After, parse};
use crate::plant::Plant;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait, WaitKey};
use crate::shards::Shards;
use crate::turn::Turn;

/// Gives the shard up, unless it was already. The caller wakes the tasks that work in it.
pub(crate) fn give_up(shards: &mut Shards, id: ShardId, errno: Errno, turn: &mut Turn<'_>) {
    let Some(mut shard) = shards.give_up(id) else { return };
    for (handle, _) in shard.opens.all() {
        shard.opens.forget(handle, &mut turn.sessions.opens);
    }
    for ino in shard.leases.delegations.inodes() {
        end(&mut shard, ino, false, turn);
    }
    shard.file_locks.clear(&mut turn.sessions.lock_index);
    shard.leases.give_up(&mut turn.sessions.leases);
    for page in shard.pages.drop_all(&mut turn.cache.frames) {
        let after = if page.is_used_by_io() { After::Untag } else { After::Release };
        turn.log.record.add_after(after(page.frame));
    }
    turn.waits.wake_all(WaitKey::Frames);
    turn.waits.wake_all(WaitKey::Chunk(id));
    shard.locks.waiting().for_each(|task| turn.waits.wake(task));
    shards.keep_space(id, shard.space, errno);
    if turn.log.image.is_open() {
        turn.note(&Step::GivenUp { shard: id, errno });
        turn.seal();
    } else {
        turn.settle();
    }
    let cell = turn.fleet.volume.id;
    turn.report(Report::GivenUp { cell, shard: id, errno });
}

/// Keeps the changes of shards that are served. Decided changes of other shards are lost with
/// them.
pub(crate) fn retain_served(shards: &Shards, mut changes: Vec<Change>) -> Vec<Change> {
    changes.retain(|change| !shards.is_given_up(change.shard()));
    changes
}

/// Sees to it that a chunk is at hand for the log records of a shard that was given up, unless the
/// pool has none.
pub(crate) fn stock_up_for_kept(
    shards: &Shards,
    state: &TaskState,
    chunks: &mut Chunks,
) -> Result<(), Stop> {
    let Some((id, _)) = shards.newly_given_up().next() else { return Ok(()) };
    if state.no_chunk || chunks.pool.local_size() > 0 || !chunks.is_open() {
        return Ok(());
    }
    match chunks.pool.get() {
        Get::Got(chunk) => chunks.add(chunk),
        Get::Pending(ticket) => {
            chunks.waiting.insert(ticket, id);
            return Err(Stop::Wait(Wait::Space(id)));
        }
    }
    Ok(())
}

/// The part of a checkpoint about shards that were given up: their numbers, the chunks that they
/// have claimed, and the blocks that keep their log records.
pub(crate) fn write_given_up(
    shards: &mut Shards,
    written: &mut Written,
    turn: &mut Turn<'_>,
) -> Vec<BlockWrite> {
    let mut blocks = Vec::new();
    for id in shards.take_unrecorded() {
        let mut kept = records_of(id, turn);
        let parts = kept.len() as u32;
        (0..).zip(&mut kept).for_each(|(part, kept)| (kept.part, kept.parts) = (part, parts));
        let chunks = chunks_for(shards, id, kept.len(), turn.cache, turn.chunks);
        for (chunk, kept) in chunks.into_iter().zip(kept) {
            let start = BlockNo(chunk * CHUNK_BLOCKS);
            let bytes = kept.encode(turn.fleet.volume.secret);
            let block = |(at, bytes): (u64, &[u8])| (start.offset(at), Box::from(bytes));
            blocks.extend((0..).zip(bytes.chunks(BLOCK_SIZE)).map(block));
        }
        let (claimed, _) = shards.space_mut(id).expect("given up").seal();
        written.claimed.extend(claimed.into_iter().map(|chunk| (chunk, id)));
        written.given_up.push(id);
    }
    blocks
}

/// `count` chunks of the shard: those that a failed checkpoint has claimed, then new ones. Returns
/// none if the pool has too few at hand, because checkpoints must not wait.
fn chunks_for(
    shards: &mut Shards,
    id: ShardId,
    count: usize,
    cache: &Cache,
    chunks: &mut Chunks,
) -> Vec<u64> {
    if cache.io.writes_nodes() {
        // A late write of the failed checkpoint would overtake a new one.
        shards.log_chunks(id).clear();
    }
    let missing = count.saturating_sub(shards.log_chunks(id).len());
    let new: Vec<u64> = (0..missing).map_while(|_| chunks.take_allocated()).collect();
    if new.len() < missing {
        new.into_iter().for_each(|chunk| chunks.add(chunk));
        return Vec::new();
    }
    let space = shards.space_mut(id).expect("given up");
    for chunk in &new {
        assert!(space.claim(*chunk), "a free chunk is no shard's");
    }
    let chunks = shards.log_chunks(id);
    chunks.extend(new);
    chunks.iter().take(count).copied().collect()
}

/// The records of the log that concern the shard, each part as large as a chunk holds.
fn records_of(shard: ShardId, turn: &Turn<'_>) -> Vec<KeptRecords> {
    let image = &turn.log.image;
    let copy = |at, into: &mut [u8]| image.copy_out(at, into, turn.driver.memory);
    let (mut at, mut all) = (image.start(), Vec::<KeptRecords>::new());
    while let Some(record) = read_record(at, image.end(), image.incarnation(), copy) {
        at = record.end;
        let is_of_shard =
            |(steps, _): (Vec<Step>, _)| steps.iter().any(|step| step.shard() == Some(shard));
        if !parse(&record).is_some_and(is_of_shard) {
            continue;
        }
        let mut bytes = vec![0; (record.end.0 - record.lsn.0) as usize];
        copy(record.lsn, &mut bytes);
        match all.last_mut() {
            Some(last) if last.records.len() + bytes.len() <= KEPT_MAX => {
                last.records.extend(bytes);
            }
            _ => all.push(KeptRecords {
                incarnation: image.incarnation(),
                shard,
                cell: turn.fleet.volume.id,
                first: record.lsn,
                checkpoint: turn.fleet.checkpoints.number(),
                part: 0,
                parts: 0,
                records: bytes,
            }),
        }
    }
    all
}

/// The first shard that cannot make its part of these changes, with the reason.
pub(crate) fn first_refusal(
    shards: &Shards,
    changes: &[Change],
    fleet: &Fleet,
) -> Option<(ShardId, Errno)> {
    changes.iter().find_map(|change| {
        let shard = shards.get(&change.shard())?;
        if fleet.plants(Plant::RefuseDecided(shard.id)) {
            return Some((shard.id, Errno::EIO));
        }
        match fetch_change(shard, change, fleet) {
            Err(Stop::Fail(errno)) => Some((shard.id, errno)),
            _ => None,
        }
    })
}
