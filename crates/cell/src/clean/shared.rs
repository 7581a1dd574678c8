//! Shared blocks of closed chunks: the other places follow the one that was moved.
//!
//! A place that follows shares the new block, by the same step of the log as a copy
//! (`data/copy.rs`), so that a shared block still takes the space of one. Its data must be durable
//! there first, as for every copy. The times of the file stay: a second step sets them again.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno};
use warren_proto::{RangeCopy, Step};

use crate::apply::step;
use crate::budget::{Growth, Need};
use crate::change::attributes::attributes_of;
use crate::data::cover::cover_now;
use crate::frames::PageNo;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::cleaning::Walk;
use crate::shard::extents::may_be_copied;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;
/// So many ends of I/O a walk awaits until data is durable. A program that writes to a moved page
/// all the time must not keep it for ever.
const WAITS_MAX: u32 = 1000;

/// Each of these pages has a block of which another place was moved. Returns the first page that
/// keeps its block for now.
pub(super) fn share_others(
    shard: &mut Shard,
    pages: &[&(PageNo, BlockNo)],
    walk: &mut Walk,
    turn: &mut Turn<'_>,
) -> Result<Option<PageNo>, Stop> {
    let mut left = None;
    for (at, block) in pages {
        // Without one it is the next to be moved: its block was seen twice in this batch.
        let Some(moved) = walk.moved.get(block).copied() else {
            left = left.or(Some(*at));
            continue;
        };
        match share_moved_block(shard, *at, moved, turn) {
            Ok(true) => walk.waits = 0,
            Ok(false) => {
                walk.moved.remove(block);
                left = left.or(Some(*at));
            }
            // The chunk stays, until another walk.
            Err(Stop::Wait(Wait::Frames)) if walk.waits >= WAITS_MAX => walk.waits = 0,
            Err(stop) => {
                walk.waits += 1;
                return Err(stop);
            }
        }
    }
    Ok(left)
}

/// The page shares the block that the moved page has now. False if that one was written since, or
/// its block has as many places as it may have.
fn share_moved_block(
    shard: &mut Shard,
    (ino, page): PageNo,
    ((source, from), place): (PageNo, BlockNo),
    turn: &mut Turn<'_>,
) -> Result<bool, Stop> {
    let is_there = shard.placed(source, from)?.is_some_and(|placed| placed.block == place);
    if !is_there || shard.space.is_closed(place) || shard.inode(ino)?.is_none() {
        return Ok(false);
    }
    let is_durable = |ino, page| shard.pages.are_durable(ino, page..=page, &turn.cache.frames);
    if !is_durable(source, from) || !is_durable(ino, page) {
        // Each I/O that ends wakes the tasks that wait for frames, and for these the cell flushes.
        return Err(Stop::Wait(Wait::Frames));
    }
    let need = Need { growth: Growth::Keeps, ..shard.budget().share(1, 1, 2) };
    let mut room = shard.budget().admit(shard.room(), need).ok_or(Errno::ENOSPC)?;
    cover_now(shard, source, turn)?;
    // A record of its own, because the data of both files may not fit one record.
    turn.seal();
    cover_now(shard, ino, turn)?;
    let copy = RangeCopy { from: from * PAGE, to: page * PAGE, length: PAGE };
    let is_still_there = shard.placed(source, from)?.is_some_and(|placed| placed.block == place);
    if !is_still_there || !may_be_copied(shard, ino, source, &copy)? {
        return Ok(false);
    }
    let attributes = attributes_of(shard, ino)?;
    let inode = shard.inode(ino)?.ok_or(Errno::EIO)?;
    let (size, blocks, mode, now) = (inode.size, inode.blocks, inode.mode, inode.ctime);
    step(shard, Step::Shared { ino, source, copy, size, blocks, mode, now }, &mut room, turn);
    step(shard, Step::SetAttr { ino, attributes }, &mut room, turn);
    Ok(true)
}
