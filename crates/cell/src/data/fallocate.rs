//! `fallocate`: blocks of a range of a file are allocated or freed (decision 58).
//!
//! Order of events: kernels drop their copies of a range whose data end; then the log names all
//! data of the file, so that a power failure finds no file with the new blocks and the old data;
//! then the change is made, in one step. A long range is allocated in several steps.

use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use warren_base::{Errno, InodeFlags};
use warren_proto::{
    AccessMode, Credentials, Handle, LeaseKey, RangeChange, RangeKind, Reply, Step,
};
use warren_rules::permission;

use crate::apply::step;
use crate::budget::{ALLOCATE_BATCH, Need, blocks_of_pages};
use crate::cache::range::bring_cut_pages;
use crate::change::attributes::ready_to_change;
use crate::change::capability;
use crate::chunks::free::Chunks;
use crate::data::cover::cover_now;
use crate::data::truncate::need_to_cut;
use crate::plant::Plant;
use crate::recall::recall_pages;
use crate::run::answer::{Finished, done};
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;

/// `strips`: the credentials, if the change removes the set-id bits.
pub(crate) fn fallocate(
    shard: &mut Shard,
    handle: Handle,
    change: &RangeChange,
    strips: Option<&Credentials>,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let client = state.client.expect("a request");
    if !shard.opens.get(handle, client)?.access.contains(AccessMode::WRITE) {
        return Err(Errno::EBADF.into());
    }
    if change.length == 0 {
        return Err(Errno::EINVAL.into());
    }
    let end = change.end().filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
    let ino = handle.ino;
    // Of a file that may only grow, blocks may be allocated beyond the end.
    let flags = shard.living_inode(ino)?.flags;
    if flags.contains(InodeFlags::IMMUTABLE)
        || flags.contains(InodeFlags::APPEND) && change.kind != RangeKind::Allocate
    {
        return Err(Errno::EPERM.into());
    }
    let loss = capability::need_to_remove(shard, ino)?;
    let need = need_of(shard, handle, change, turn.chunks)?.with(loss);
    let mut room = ready_to_change(shard, ino, need, state, turn)?;
    let change = next_part(change, state.range_done);
    if change.kind != RangeKind::Allocate {
        recall_pages(shard, ino, Some(client), false, turn)?;
    }
    let (first, last) = change.blocks();
    shard.fetch_extents(ino, first, last)?;
    if !turn.plants(Plant::RangeBeforeData) {
        cover_now(shard, ino, turn)?;
    }
    if change.kind != RangeKind::Allocate {
        bring_cut_pages(shard, ino, &change, turn.cache)?;
    }
    shard.fetch_extents(ino, first, last)?;
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    room.spend(blocks_of_pages(2));
    let inode = shard.living_inode(ino)?;
    let (size, blocks) = (change.size_after(inode.size), inode.blocks);
    let (mode, gid) = (inode.mode, inode.gid);
    let mode = permission::after_change(strips, mode, gid);
    if loss.is_some() {
        capability::remove(shard, ino, &mut room, turn);
    }
    let now = turn.driver.now.wall;
    step(shard, Step::Fallocated { ino, change, size, blocks, mode, now }, &mut room, turn);
    if change.end() < Some(end) {
        turn.seal();
        state.range_done += change.length;
        state.begin_next_part();
        return Err(Stop::Wait(Wait::Turn));
    }
    done(Reply::Done)
}

/// The need of what is left of the change. ENOSPC at once if no pool has so many blocks.
fn need_of(
    shard: &Shard,
    handle: Handle,
    change: &RangeChange,
    chunks: &Chunks,
) -> Result<Need, Stop> {
    let budget = shard.budget();
    if change.kind == RangeKind::PunchHole {
        let size = shard.living_inode(handle.ino)?.size;
        let mut cut = change.cut(size).into_iter().flatten();
        return cut.try_fold(budget.punch(), |need, (page, _)| {
            need_to_cut(shard, need, handle.ino, page)
        });
    }
    let (first, last) = change.blocks();
    let holes = shard.holes(handle.ino, first, last)?;
    let mut blocks: u64 = holes.iter().map(|hole| hole.end() - hole.start() + 1).sum();
    if let (RangeKind::Zero, Some((first, last))) = (change.kind, change.emptied(0)) {
        // The old blocks become free with a checkpoint.
        blocks += shard.placed_blocks(handle.ino, first, last)?;
    }
    if blocks > chunks.total_blocks() {
        return Err(Errno::ENOSPC.into());
    }
    Ok(budget.allocate(blocks, holes.len() as u64))
}

/// The part of the change that this run makes, after `done` bytes.
fn next_part(change: &RangeChange, done: u64) -> RangeChange {
    let offset = change.offset + done;
    let left = change.length - done;
    let batch = ALLOCATE_BATCH * PAGE - offset % PAGE;
    let is_long = change.kind != RangeKind::PunchHole && left > batch;
    RangeChange { offset, length: if is_long { batch } else { left }, ..*change }
}
