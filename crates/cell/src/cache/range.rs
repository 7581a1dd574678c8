//! The cache's part of a change of a range (`fallocate`): whole blocks are dropped, the parts of
//! others become zero as by a write.

use warren_base::Ino;
use warren_proto::RangeChange;

use crate::cache::pages::{forget_pages, is_missing, move_for_change, tag_frame};
use crate::frames::cache::Cache;
use crate::frames::{PageNo, Placed};
use crate::plant::Plant;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::turn::Turn;

/// Reads the blocks that the ends of the range cut, unless they have no data, and checks that there
/// are frames for their changed copies.
pub(crate) fn bring_cut_pages(
    shard: &mut Shard,
    ino: Ino,
    change: &RangeChange,
    cache: &mut Cache,
) -> Result<(), Stop> {
    let size = shard.inode(ino)?.map_or(0, |inode| inode.size);
    let cut = change.cut(size).into_iter().flatten().map(|(page, _)| (ino, page));
    let cut: Vec<PageNo> = cut.collect();
    let mut needed: Vec<(PageNo, Option<Placed>)> = Vec::with_capacity(cut.len());
    let mut missing = false;
    for at in cut {
        let is_cached = shard.pages.page(at, &mut cache.frames).is_some();
        let placed = if is_cached { None } else { shard.placed(at.0, at.1)? };
        if is_cached || placed.is_some() {
            missing |= is_missing(shard, at.0, at.1, cache)?;
            needed.push((at, placed));
        }
    }
    if missing {
        return Err(Stop::Wait(Wait::Pages(shard.id, needed)));
    }
    let cached = needed.into_iter().map(|(at, _)| at);
    let pinned: Vec<PageNo> = cached.filter(|at| shard.pages.pin(*at, &mut cache.frames)).collect();
    let frames: Vec<_> = pinned.iter().map_while(|_| cache.frames.take()).collect();
    pinned.iter().for_each(|at| shard.pages.unpin(*at, &mut cache.frames));
    let complete = frames.len() == pinned.len();
    frames.into_iter().for_each(|frame| cache.frames.give(frame));
    if complete { Ok(()) } else { Err(Stop::Wait(Wait::Frames)) }
}

/// Changes blocks of the file, on the device and in the cache, after [`bring_cut_pages`]. The
/// extents were read in the same run. The table's entries change with the record.
pub(crate) fn change_with_pages(
    shard: &mut Shard,
    ino: Ino,
    change: &RangeChange,
    turn: &mut Turn<'_>,
) {
    let size = shard.inode_mut(ino).size;
    for (page, part) in change.cut(size).into_iter().flatten() {
        let at = (ino, page);
        if shard.pages.page(at, &mut turn.cache.frames).is_some() {
            let new = turn.cache.frames.take_given().expect("given when the page was brought");
            move_for_change(shard, at, new, false, turn);
            turn.driver.memory.frame_mut(new)[part].fill(0);
            tag_frame(new, at, turn);
            shard.behind.insert(ino);
        }
    }
    let mut unplaced = 0;
    if let Some((first, last)) = change.emptied(size)
        && !turn.plants(Plant::PunchKeepsPages)
    {
        unplaced = forget_pages(shard, ino, first..=last, turn.log, turn.cache);
    }
    let (freed, filled) = shard.change_extents(ino, change, size);
    // A dirty page without a place was counted when it was written.
    let is_dirty = |hole: std::ops::RangeInclusive<u64>| {
        let end = *hole.end();
        let dirty = shard.pages.dirty_from((ino, *hole.start()));
        let dirty = dirty.take_while(|at| at.0 == ino && at.1 <= end).count() as u64;
        end + 1 - hole.start() - dirty
    };
    let added: u64 = filled.into_iter().map(is_dirty).sum();
    let inode = shard.inode_mut(ino);
    inode.blocks = (inode.blocks + added).saturating_sub(freed + unplaced);
}
