//! The blocks of a shard's closed chunks are moved to its other chunks.
//!
//! One walk over the records of the shard finds them all: extents name the blocks of data, and the
//! nodes of the tree pass by. A block of data is moved as if its page had been written: the page is
//! made dirty, gets another place, and the log records the place. So a crash at any moment leaves
//! what it leaves of a write-back. A node is made dirty, and the next checkpoint writes it
//! elsewhere.
//!
//! A block that several places share is moved once: one place gets another block as above, and the
//! others share that one, as by a copy (`clean/shared.rs`).
//!
//! The walk goes on for a bounded number of records or pages at a time. Then the cell takes in
//! other work.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use warren_base::{BlockNo, Errno, Ino};
use warren_disk::{Key, Value};

use super::shared::share_others;
use crate::budget::{Growth, Need};
use crate::cache::pages::tag_frame;
use crate::data::writeback::place_pages_of;
use crate::frames::cache::Cache;
use crate::frames::{PageNo, Placed};
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::cleaning::{Cleaning, Walk};
use crate::shard::pages::PageState;
use crate::turn::Turn;

/// Records that are examined, and pages that are moved, before other work has its turn.
const RECORDS_A_TURN: usize = 512;
const PAGES_A_TURN: usize = 32;
/// Blocks that one walk moves at most: 16 MiB.
const MOVES_MAX: u64 = 4096;
/// Blocks that a shard keeps in addition to what it must have, for the nodes that moves make dirty
/// until the next checkpoint.
const SLACK: u64 = 16;

/// Free blocks that the shard can give away.
pub(crate) fn spare_blocks(shard: &Shard) -> u64 {
    let kept = if shard.inodes == 0 { 0 } else { shard.budget().kept_from_growth() + SLACK };
    shard.room().saturating_sub(kept)
}

/// Closes some chunks of a shard that has so many blocks to give away. Half of them, so that a
/// shard which goes on to write does not want them back at once. Returns whether there are any to
/// empty.
pub(crate) fn begin(shard: &mut Shard, spare: u64) -> bool {
    if shard.space.cleaning != Cleaning::Idle {
        return false;
    }
    let half = (spare / 2).max(spare.min(warren_base::limits::CHUNK_BLOCKS));
    let is_any = shard.space.close_sparsest(half, MOVES_MAX) > 0;
    if is_any {
        shard.space.cleaning = Cleaning::Walking(Walk::default());
    }
    is_any
}

/// Goes on with the walk. Called until it no longer waits.
pub(crate) fn walk(shard: &mut Shard, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let Cleaning::Walking(walk) = &mut shard.space.cleaning else { return Ok(()) };
    let mut walk = std::mem::take(walk);
    if turn.log.commits.is_last() {
        return end_walk(shard);
    }
    if !turn.log_has_room() {
        shard.space.cleaning = Cleaning::Walking(walk);
        return Err(Stop::Wait(Wait::LogRoom));
    }
    let found = examine(shard, walk.after);
    let Some(last) = found.last else {
        shard.space.cleaning = Cleaning::Walking(walk);
        return found.end.and_then(|()| end_walk(shard));
    };
    soil_nodes(shard);
    let left = match empty_blocks(shard, &found.pages, &mut walk, turn) {
        Ok(left) => left,
        Err(Stop::Fail(Errno::ENOSPC)) => return end_walk(shard),
        Err(stop) => {
            walk.batch = found.pages;
            shard.space.cleaning = Cleaning::Walking(walk);
            return Err(stop);
        }
    };
    walk.batch = Vec::new();
    walk.after = match left {
        None => Some(last),
        // The extent that has it may begin before it.
        Some((ino, page)) => Some(Key::extent(ino, page.saturating_sub(EXTENT_BLOCKS_MAX))),
    };
    shard.space.cleaning = Cleaning::Walking(walk);
    Err(Stop::Wait(Wait::Turn))
}

/// Empties the blocks of these pages. Returns the first page that still has its block. ENOSPC if
/// there is no room for any.
fn empty_blocks(
    shard: &mut Shard,
    pages: &[(PageNo, BlockNo)],
    walk: &mut Walk,
    turn: &mut Turn<'_>,
) -> Result<Option<PageNo>, Stop> {
    // Of each shared block the first place whose page has the data of the block. A page that was
    // changed since has other data.
    let mut first: BTreeMap<BlockNo, PageNo> = BTreeMap::new();
    let mut is_alone = |(at, block): &&(PageNo, BlockNo)| {
        let page = shard.pages.page(*at, &mut turn.cache.frames);
        let mut is_first =
            || !shard.space.sharing.is_shared(*block) || *first.entry(*block).or_insert(*at) == *at;
        page.is_some_and(|page| page.state == PageState::Dirty)
            || !walk.moved.contains_key(block) && is_first()
    };
    let (alone, others): (Vec<_>, Vec<_>) = pages.iter().partition(&mut is_alone);
    let alone: Vec<(PageNo, BlockNo)> = alone.into_iter().copied().collect();
    let count = move_pages(shard, &alone, turn)?;
    for (at, block) in &alone[..count] {
        if first.get(block) == Some(at)
            && let Some(placed) = shard.placed(at.0, at.1)?
        {
            walk.moved.insert(*block, (*at, placed.block));
        }
    }
    if count == 0 && !alone.is_empty() {
        return Err(Errno::ENOSPC.into());
    }
    let left = share_others(shard, &others, walk, turn)?;
    Ok(left.into_iter().chain(alone.get(count).map(|(at, _)| *at)).min())
}

fn end_walk(shard: &mut Shard) -> Result<(), Stop> {
    shard.space.cleaning = Cleaning::Walked;
    Ok(())
}

const EXTENT_BLOCKS_MAX: u64 = warren_disk::EXTENT_BLOCKS_MAX as u64;

/// The walk has failed, because a node or a page cannot be read. The chunks of such pages stay.
pub(crate) fn give_up_walk(shard: &mut Shard, cache: &mut Cache) {
    if let Cleaning::Walking(walk) = std::mem::take(&mut shard.space.cleaning) {
        for (at, block) in walk.batch {
            if shard.pages.page(at, &mut cache.frames).is_none() {
                shard.space.is_immovable(block);
            }
        }
        shard.space.cleaning = Cleaning::Walked;
    }
}

/// The result of one turn of the walk.
struct Found {
    /// The pages whose places lie in closed chunks.
    pages: Vec<(PageNo, BlockNo)>,
    /// The last record that was examined.
    last: Option<Key>,
    /// Whether the walk must wait behind that record.
    end: Result<(), Stop>,
}

/// Examines the records after this key.
fn examine(shard: &Shard, after: Option<Key>) -> Found {
    let (mut pages, mut last, mut seen) = (Vec::new(), None, 0);
    let visit = |key: &Key, value: &Value| {
        if after.is_some_and(|after| *key <= after) {
            return ControlFlow::Continue(());
        }
        if let Value::Extent(extent) = value {
            let blocks = (0..extent.len()).map(|at| (at, extent.start.offset(at)));
            let closed = blocks.filter(|(_, block)| shard.space.is_closed(*block));
            pages.extend(closed.map(|(at, block)| ((Ino(key.ino), key.sub + at), block)));
        }
        last = Some(*key);
        seen += 1;
        let is_enough = seen == RECORDS_A_TURN || pages.len() >= PAGES_A_TURN;
        if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let end = shard.range(after.unwrap_or(Key::MIN), Key::MAX, visit);
    Found { pages, last, end }
}

/// Makes the nodes dirty that lie in closed chunks and are in memory, if there is room.
fn soil_nodes(shard: &mut Shard) {
    let Shard { tree, space, .. } = &*shard;
    let nodes = tree.nodes_at(|block| space.is_closed(block)) as u64;
    let need = Need { blocks: nodes * u64::from(tree.height()), growth: Growth::Keeps };
    if nodes == 0 {
        return;
    }
    if let Some(mut room) = shard.budget().admit(shard.room(), need) {
        shard.change(&mut room, |Shard { tree, space, .. }| {
            tree.soil_at(|block| space.is_closed(block));
        });
    }
}

/// Gives as many of these pages other places as there is room for, and starts to write them.
/// Returns how many.
fn move_pages(
    shard: &mut Shard,
    pages: &[(PageNo, BlockNo)],
    turn: &mut Turn<'_>,
) -> Result<usize, Stop> {
    let budget = shard.budget();
    let mut count = pages.len().min((turn.cache.frames.count() / 8).max(1) as usize);
    while count > 0 && budget.admit(shard.room(), budget.rewrite(count as u64)).is_none() {
        count /= 2;
    }
    let pages = &pages[..count];
    bring(shard, pages, turn.cache)?;
    for (at, _) in pages {
        let page = shard.pages.page(*at, &mut turn.cache.frames).expect("it was just brought");
        if page.state != PageState::Clean {
            continue;
        }
        tag_frame(page.frame, *at, turn);
        shard.pages.mark_dirty(*at, &mut turn.cache.frames);
    }
    for file in pages.chunk_by(|a, b| a.0.0 == b.0.0) {
        place_pages_of(shard, file[0].0.0, turn)?;
    }
    Ok(count)
}

/// Waits until the pages are in the cache, and those that were written are flushed. Otherwise a
/// failed flush would make a page dirty while it is being written to its new place from the same
/// frame.
fn bring(shard: &Shard, pages: &[(PageNo, BlockNo)], cache: &mut Cache) -> Result<(), Stop> {
    let mut needed: Vec<(PageNo, Option<Placed>)> = Vec::with_capacity(pages.len());
    let (mut is_missing, mut is_written) = (false, false);
    for (at, _) in pages {
        let page = shard.pages.page(*at, &mut cache.frames);
        is_missing |= page.is_none_or(|page| matches!(page.state, PageState::Loading(_)));
        is_written |=
            page.is_some_and(|page| page.writing.is_some() || !cache.frames.is_flushed(page.frame));
        let placed = if page.is_some() { None } else { shard.placed(at.0, at.1)? };
        needed.push((*at, placed));
    }
    if is_missing {
        return Err(Stop::Wait(Wait::Pages(shard.id, needed)));
    }
    // Each I/O that ends wakes the tasks that wait for frames, and for these the cell flushes.
    if is_written { Err(Stop::Wait(Wait::Frames)) } else { Ok(()) }
}
