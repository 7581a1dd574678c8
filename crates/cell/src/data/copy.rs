//! Copies of ranges that share blocks (`copy_file_range`, decision 63).
//!
//! Order of events: the data of the source get places and are durable there. From then on neither
//! file depends on the page cache: the source may be changed before a failed write of the old data
//! is repeated, and then nothing would repeat it. Then the log names all data of both files, and
//! the range of the target gets the blocks of the source, in one step.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, FILE_SIZE_MAX};
use warren_base::{Errno, Ino, InodeFlags};
use warren_disk::Value;
use warren_proto::{AccessMode, Credentials, FileKind, Handle, LeaseKey, RangeCopy, Reply, Step};
use warren_rules::permission;

use crate::apply::step;
use crate::budget::{ALLOCATE_BATCH, Need, SHARE_BATCH};
use crate::change::attributes::ready_to_change;
use crate::change::capability;
use crate::data::cover::cover_now;
use crate::data::writeback::place_pages_of;
use crate::durable::harden;
use crate::plant::Plant;
use crate::recall::recall_pages;
use crate::run::answer::{Finished, done};
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::extents::may_be_copied;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;

/// `strips`: the credentials, if the change removes the set-id bits.
pub(crate) fn copy_range(
    shard: &mut Shard,
    (handle, source): (Handle, Handle),
    copy: RangeCopy,
    strips: Option<&Credentials>,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let Some(copy) = may_copy(shard, (handle, source), copy, state)? else {
        let size = shard.living_inode(handle.ino)?.size;
        return done(Reply::Written { len: 0, size });
    };
    let (ino, source) = (handle.ino, source.ino);
    let loss = capability::need_to_remove(shard, ino)?;
    let (copy, need) = fit_copy(shard, (ino, source), copy)?;
    let mut room = ready_to_change(shard, ino, need.with(loss), state, turn)?;
    recall_pages(shard, ino, state.client, false, turn)?;
    settle_source(shard, source, &copy, state, turn)?;
    cover_now(shard, source, turn)?;
    // A record of its own, because the data of both files may not fit one.
    turn.seal();
    cover_now(shard, ino, turn)?;
    if !may_be_copied(shard, ino, source, &copy)? {
        return Err(Errno::EXDEV.into());
    }
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    let inode = shard.living_inode(ino)?;
    let (mode, gid, blocks) = (inode.mode, inode.gid, inode.blocks);
    let size = inode.size.max(copy.to + copy.length);
    let mode = permission::after_change(strips, mode, gid);
    if loss.is_some() {
        capability::remove(shard, ino, &mut room, turn);
    }
    let now = turn.driver.now.wall;
    step(shard, Step::Shared { ino, source, copy, size, blocks, mode, now }, &mut room, turn);
    done(Reply::Written { len: copy.length as u32, size })
}

/// The part of the copy that blocks can be shared for; none at the end of the source. Fails if
/// there is none, or the client may not copy.
fn may_copy(
    shard: &Shard,
    (handle, source): (Handle, Handle),
    copy: RangeCopy,
    state: &TaskState,
) -> Result<Option<RangeCopy>, Stop> {
    let client = state.client.expect("a request");
    let access = shard.opens.get(handle, client)?.access;
    if !access.contains(AccessMode::WRITE) || access.contains(AccessMode::APPEND) {
        return Err(Errno::EBADF.into());
    }
    if source.ino.shard() != shard.id {
        return Err(Errno::EXDEV.into());
    }
    if !shard.opens.get(source, client)?.access.contains(AccessMode::READ) {
        return Err(Errno::EBADF.into());
    }
    let (from, to) = (shard.living_inode(source.ino)?, shard.living_inode(handle.ino)?);
    if from.kind != FileKind::Regular || to.kind != FileKind::Regular {
        return Err(Errno::EBADF.into());
    }
    if to.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Errno::EPERM.into());
    }
    if copy.from >= from.size || copy.length == 0 {
        return Ok(None);
    }
    let length = copy.shareable(from.size, to.size).ok_or(Errno::EXDEV)?;
    copy.to.checked_add(length).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
    let copy = RangeCopy { length, ..copy };
    if source.ino == handle.ino && copy.overlaps() {
        return Err(Errno::EINVAL.into());
    }
    Ok(Some(copy))
}

/// As much of the copy as is done at once, and what it needs.
fn fit_copy(
    shard: &Shard,
    (ino, source): (Ino, Ino),
    copy: RangeCopy,
) -> Result<(RangeCopy, Need), Stop> {
    let (from, to, count) = copy.blocks();
    let count = count.min(ALLOCATE_BATCH);
    let (mut extents, mut chunks, mut end) = (0, 0, from + count);
    shard.allocated(source, from, from + count - 1, |at, value| {
        if let Value::Extent(extent) = value
            && at < end
        {
            extents += 1;
            // At worst it begins within a chunk.
            chunks += extent.len() / CHUNK_BLOCKS + 2;
            if extents == SHARE_BATCH as u64 {
                end = end.min(at + extent.len());
            }
        }
    })?;
    let mut old = 0;
    shard.allocated(ino, to, to + (end - from) - 1, |_, _| old += 1)?;
    let length = copy.length.min((end - from) * PAGE);
    Ok((RangeCopy { length, ..copy }, shard.budget().share(extents, old, chunks)))
}

/// Waits until the range of the source is durable in its places. EXDEV if that can't be reached
/// soon, because others write there, or the log waits for a checkpoint.
fn settle_source(
    shard: &mut Shard,
    source: Ino,
    copy: &RangeCopy,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    let (from, _, count) = copy.blocks();
    if shard.pages.are_durable(source, from..=from + count - 1, &turn.cache.frames) {
        return Ok(());
    }
    let is_in_time = state.durable.is_none_or(|lsn| !turn.log.is_durable(lsn));
    if !is_in_time || turn.log.commits.is_held() {
        return Err(Errno::EXDEV.into());
    }
    let lsn = match state.durable {
        Some(lsn) => lsn,
        None => {
            place_pages_of(shard, source, turn)?;
            *state.durable.insert(turn.log.image.end())
        }
    };
    if turn.plants(Plant::ShareUnwritten) {
        return Ok(());
    }
    harden(lsn, turn.log, &mut turn.driver);
    Err(Stop::Wait(Wait::Durable))
}
