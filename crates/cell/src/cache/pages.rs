//! Pages of a file in the cache: they are read, moved for a change, and dropped.
//!
//! A page is changed in another frame than the one that holds it, so the record decides which of
//! the two counts. The old frame is released when the record is in the log.
//!
//! Invariant: bytes of a page past the end of the file are zero, in the cache and on the device.

use std::ops::RangeInclusive;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino, Timestamp};

use crate::event::FrameNo;
use crate::frames::cache::Cache;
use crate::frames::{PageNo, Placed};
use crate::log::OpLog;
use crate::log::record::After;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::pages::PageState;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;

/// The pages that hold bytes `offset..offset + len`; `len` is not 0.
pub(crate) fn pages_of(offset: u64, len: u64) -> RangeInclusive<u64> {
    offset / PAGE..=(offset + len - 1) / PAGE
}

/// The part of page `page` that lies in `offset..end`: where it starts in the page, and its length.
pub(crate) fn part_of(page: u64, offset: u64, end: u64) -> (usize, usize) {
    let start = offset.max(page * PAGE);
    let stop = end.min((page + 1) * PAGE);
    ((start - page * PAGE) as usize, (stop - start) as usize)
}

/// A page that a write changes.
pub(crate) struct PageWrite {
    pub(crate) page: u64,
    /// The frame that holds the page from now on.
    pub(crate) frame: FrameNo,
    /// The page was a hole until now.
    pub(crate) hole: bool,
}

/// Whether every page that is not in a hole is in the cache.
pub(crate) fn are_at_hand(
    shard: &Shard,
    ino: Ino,
    mut pages: std::ops::RangeInclusive<u64>,
    cache: &mut Cache,
) -> bool {
    pages.all(|page| matches!(is_missing(shard, ino, page, cache), Ok(false)))
}

/// Whether the page has a place and is not in the cache.
pub(crate) fn is_missing(
    shard: &Shard,
    ino: Ino,
    page: u64,
    cache: &mut Cache,
) -> Result<bool, Stop> {
    Ok(match shard.pages.page((ino, page), &mut cache.frames) {
        Some(found) => matches!(found.state, PageState::Loading(_)),
        None => shard.placed(ino, page)?.is_some(),
    })
}

/// Waits until every page that is not in a hole is in the cache.
pub(crate) fn bring_pages(
    shard: &Shard,
    ino: Ino,
    pages: std::ops::RangeInclusive<u64>,
    cache: &mut Cache,
) -> Result<(), Stop> {
    for page in pages.clone() {
        if is_missing(shard, ino, page, cache)? {
            return Err(wait_for_range(shard, ino, pages, |_| true, cache));
        }
    }
    Ok(())
}

/// Makes a task wait for these pages, some of which are missing. Those in the cache stay there. Of
/// the missing pages, those are read that have a place and pass `is_read`.
pub(crate) fn wait_for_range(
    shard: &Shard,
    ino: Ino,
    pages: std::ops::RangeInclusive<u64>,
    is_read: impl Fn(u64) -> bool,
    cache: &mut Cache,
) -> Stop {
    let mut needed: Vec<(PageNo, Option<Placed>)> = Vec::new();
    for page in pages {
        if shard.pages.page((ino, page), &mut cache.frames).is_some() {
            needed.push(((ino, page), None));
            continue;
        }
        match shard.placed(ino, page) {
            Ok(Some(placed)) if is_read(page) => needed.push(((ino, page), Some(placed))),
            Ok(_) => {}
            Err(stop) => return stop,
        }
    }
    Stop::Wait(Wait::Pages(shard.id, needed))
}

/// Takes the frames that the plan needs, all or none. Pages that are in the cache stay there.
pub(crate) fn take_frames(
    shard: &mut Shard,
    ino: Ino,
    plan: &mut [PageWrite],
    turn: &mut Turn<'_>,
) -> bool {
    // Only an eviction could take them.
    let evicts = !turn.cache.frames.has_free(plan.len());
    let pages = plan.iter().map(|write| (ino, write.page)).filter(|_| evicts);
    let found: Vec<PageNo> =
        pages.filter(|at| shard.pages.pin(*at, &mut turn.cache.frames)).collect();
    let frames: Vec<FrameNo> = plan.iter().map_while(|_| turn.cache.frames.take()).collect();
    found.iter().for_each(|at| shard.pages.unpin(*at, &mut turn.cache.frames));
    let complete = frames.len() == plan.len();
    if complete {
        plan.iter_mut().zip(frames).for_each(|(write, frame)| write.frame = frame);
    } else {
        frames.into_iter().for_each(|frame| turn.cache.frames.give(frame));
    }
    complete
}

/// A frame beside a page that is in the cache, and stays there.
pub(crate) fn take_frame_beside(
    shard: &mut Shard,
    at: PageNo,
    cache: &mut Cache,
) -> Option<FrameNo> {
    shard.pages.pin(at, &mut cache.frames);
    let frame = cache.frames.take();
    shard.pages.unpin(at, &mut cache.frames);
    frame
}

/// Waits for frames, which become free with write-back. Fails if there could never be enough.
pub(crate) fn wait_for_frames<T>(pages: u64, cache: &Cache) -> Result<T, Stop> {
    if pages > u64::from(cache.frames.count()) / 2 {
        return Err(Errno::ENOMEM.into());
    }
    Err(Stop::Wait(Wait::Frames))
}

/// The page lies in `new` from now on, and is dirty. It may be changed there: `new` holds a copy of
/// it, unless the `whole` of it will be overwritten. The old frame keeps its contents until the
/// record is in the log, so the record decides whether the change happened. The caller tags `new`
/// once it has changed it.
pub(crate) fn move_for_change(
    shard: &mut Shard,
    at: PageNo,
    new: FrameNo,
    whole: bool,
    turn: &mut Turn<'_>,
) {
    let Some(page) = shard.pages.page(at, &mut turn.cache.frames) else {
        if !whole {
            turn.driver.memory.frame_mut(new).fill(0);
        }
        return shard.pages.insert(at, new, PageState::Dirty, &mut turn.cache.frames);
    };
    if !whole {
        let copy = *turn.driver.memory.frame(page.frame);
        *turn.driver.memory.frame_mut(new) = copy;
    }
    let is_used = shard.pages.move_page(at, new, &mut turn.cache.frames);
    let after = if is_used { After::Untag } else { After::Release };
    turn.log.record.add_after(after(page.frame));
    shard.pages.mark_dirty(at, &mut turn.cache.frames);
}

/// Enters the page in the table for this frame, when its contents are there. The entry counts once
/// the record is made.
pub(crate) fn tag_frame(frame: FrameNo, at: PageNo, turn: &mut Turn<'_>) {
    turn.cache.table.set(frame, at, turn.log.image.end(), turn.driver.memory);
}

/// Puts a page that a record holds into the cache. Returns whether the page was not dirty before.
pub(crate) fn put_page(
    shard: &mut Shard,
    at: PageNo,
    bytes: &[u8],
    turn: &mut Turn<'_>,
) -> Result<bool, Stop> {
    let found = shard.pages.page(at, &mut turn.cache.frames);
    let new = match found {
        Some(page) if matches!(page.state, PageState::Loading(_)) => None,
        Some(_) => take_frame_beside(shard, at, turn.cache),
        None => turn.cache.frames.take(),
    };
    let new = new.ok_or(Stop::Wait(Wait::Frames))?;
    move_for_change(shard, at, new, true, turn);
    let frame = turn.driver.memory.frame_mut(new);
    let len = bytes.len().min(frame.len());
    frame[..len].copy_from_slice(&bytes[..len]);
    frame[len..].fill(0);
    tag_frame(new, at, turn);
    Ok(found.is_none_or(|page| page.state != PageState::Dirty))
}

/// Drops pages of a file. Returns how many of them had no block yet: these were counted as blocks
/// when they were written.
pub(crate) fn forget_pages(
    shard: &mut Shard,
    ino: Ino,
    pages: std::ops::RangeInclusive<u64>,
    log: &mut OpLog,
    cache: &mut Cache,
) -> u64 {
    let mut unplaced = 0;
    for (number, page) in shard.pages.drop_pages(ino, pages, &mut cache.frames) {
        let after = if page.is_used_by_io() { After::Untag } else { After::Release };
        log.record.add_after(after(page.frame));
        let has_block = shard.is_allocated(ino, number);
        unplaced += u64::from(page.state == PageState::Dirty && matches!(has_block, Ok(false)));
    }
    unplaced
}

/// Reads the page that a file's new end cuts, so that the rest of it can be zeroed (in a replayed
/// truncation).
pub(crate) fn cut_page(
    shard: &mut Shard,
    ino: Ino,
    size: u64,
    cache: &mut Cache,
) -> Result<(), Stop> {
    let old = shard.inode(ino)?.map_or(0, |inode| inode.size);
    if size >= old || size.is_multiple_of(PAGE) {
        return Ok(());
    }
    bring_cut_page(shard, (ino, size / PAGE), cache)
}

/// Reads a page, and checks that there is a frame for its changed copy.
pub(crate) fn bring_cut_page(shard: &mut Shard, at: PageNo, cache: &mut Cache) -> Result<(), Stop> {
    bring_pages(shard, at.0, at.1..=at.1, cache)?;
    if shard.pages.page(at, &mut cache.frames).is_some() {
        let frame = take_frame_beside(shard, at, cache).ok_or(Stop::Wait(Wait::Frames))?;
        cache.frames.give(frame);
    }
    Ok(())
}

/// The cache's part of a truncation. The table's entries change with the record.
pub(crate) fn truncate_with_pages(
    shard: &mut Shard,
    ino: Ino,
    size: u64,
    now: Timestamp,
    turn: &mut Turn<'_>,
) {
    let old = shard.inode(ino).ok().flatten().map_or(0, |inode| inode.size);
    let mut unplaced = 0;
    if size < old {
        let (cut, at) = ((size % PAGE) as usize, (ino, size / PAGE));
        if cut > 0 && shard.pages.page(at, &mut turn.cache.frames).is_some() {
            let new = turn.cache.frames.take_given().expect("given when the page was brought");
            move_for_change(shard, at, new, false, turn);
            turn.driver.memory.frame_mut(new)[cut..].fill(0);
            tag_frame(new, at, turn);
            shard.behind.insert(ino);
        }
        unplaced = forget_pages(shard, ino, size.div_ceil(PAGE)..=u64::MAX, turn.log, turn.cache);
    }
    shard.truncate_extents(ino, size, now);
    let inode = shard.inode_mut(ino);
    inode.blocks = inode.blocks.saturating_sub(unplaced);
}
