//! Write-back: dirty pages get places in their file, and are written there.

use warren_base::{BlockNo, Errno, Ino};
use warren_proto::{Cover, Run, Step};

use crate::apply::{cover_of, step};
use crate::budget::WRITE_BACK_BATCH;
use crate::cache::transfer::write_pages;
use crate::event::FrameNo;
use crate::frames::PageNo;
use crate::frames::cache::Cache;
use crate::log::OpLog;
use crate::plant::Plant;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::supply::claim::claim_spare;
use crate::turn::Turn;

/// Pages that get places in one turn, or come from a predecessor. There may be GiBs of dirty pages;
/// a cell that placed them all at once would answer no request meanwhile, and would not beat. An
/// event makes fewer pages dirty than this: the largest request has a fourth of the smallest cache,
/// and a write that may fail has no more. So the pages are placed faster than they come.
pub(crate) fn pages_a_turn(cache: &Cache) -> usize {
    (cache.frames.count() as usize / 3).clamp(1, WRITE_BACK_BATCH)
}

/// Gives places to all dirty pages of one file. Those of one record all count after a power
/// failure, or none does. If they do not fit one record or one turn, the caller begins again in the
/// next turn: it must not have made a step that rests on the places, or on what it has read.
pub(crate) fn place_pages_of(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let dirty = |shard: &Shard| shard.pages.dirty_from((ino, 0)).next().filter(|at| at.0 == ino);
    let left = turn.cache.frames.dirty_pages().saturating_sub(pages_a_turn(turn.cache));
    let mut placed = Ok(());
    while turn.log.record.takes_another_step()
        && placed.is_ok()
        && turn.cache.frames.dirty_pages() > left
        && let Some(first) = dirty(shard)
    {
        placed = place_run(shard, first, turn.cache.frames.dirty_pages() - left, turn);
    }
    turn.seal();
    placed?;
    if dirty(shard).is_some() { Err(Stop::Wait(Wait::Turn)) } else { Ok(()) }
}

/// Gives the run of dirty pages that begins with `first` places, and starts to write it.
pub(crate) fn place_run(
    shard: &mut Shard,
    first: PageNo,
    limit: usize,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    let ino = first.0;
    if !may_place_twice(shard, turn.log, turn.cache) && write_again(shard, first, turn) {
        return Ok(());
    }
    turn.check_log()?;
    let mut run: Vec<PageNo> = Vec::new();
    for at in shard.pages.dirty_from(first).take(limit.min(WRITE_BACK_BATCH)) {
        if at.0 != ino || run.last().is_some_and(|last| last.1 + 1 != at.1) {
            break;
        }
        run.push(at);
    }
    let (from, to) = (run[0].1, run[run.len() - 1].1);
    shard.fetch_extents(ino, from, to)?;
    // A checkpoint may have written its inode since, and the node may have been evicted.
    let cover = cover_of(shard, ino, false)?;
    let mut placed: Vec<(PageNo, FrameNo, BlockNo)> = Vec::with_capacity(run.len());
    for at in run {
        let block = match alloc_block(shard, turn) {
            Some(block) => block,
            None => break,
        };
        let page = shard.pages.page(at, &mut turn.cache.frames);
        let frame = page.expect("a dirty page is in the cache").frame;
        placed.push((at, frame, block));
    }
    if placed.is_empty() {
        return Err(Stop::Fail(Errno::ENOSPC));
    }
    record_places(shard, &placed, cover, turn);
    Ok(())
}

/// Whether the log and the shard have room to place every dirty page, and to place it once more if
/// the write fails.
fn may_place_twice(shard: &Shard, log: &OpLog, cache: &Cache) -> bool {
    let (all, own) = (cache.frames.dirty_pages(), shard.pages.dirty_pages());
    log.room(2 * all) > 0 && shard.room_with(2 * own) > 0
}

/// Repeats the writes of pages from `first` on that have failed, at the places that the log already
/// names. They get other places as long as there is room for that, because the blocks may be bad.
/// Returns whether there are any.
fn write_again(shard: &mut Shard, first: PageNo, turn: &mut Turn<'_>) -> bool {
    let mut again = Vec::new();
    let dirty: Vec<PageNo> = shard.pages.dirty_from(first).take(WRITE_BACK_BATCH).collect();
    for at in dirty {
        let page =
            shard.pages.page(at, &mut turn.cache.frames).expect("a dirty page is in the cache");
        let Some(block) = page.failed else { break };
        again.push((at, page.frame, block));
    }
    write_pages(shard, &again, turn.log.image.end(), turn);
    !again.is_empty()
}

fn alloc_block(shard: &mut Shard, turn: &mut Turn<'_>) -> Option<BlockNo> {
    let block = shard.space.alloc();
    if block.is_some() || !claim_spare(shard, turn) {
        return block;
    }
    shard.space.alloc()
}

/// Enters the places of consecutive pages of one file in its extents.
fn record_places(
    shard: &mut Shard,
    placed: &[(PageNo, FrameNo, BlockNo)],
    mut cover: Cover,
    turn: &mut Turn<'_>,
) {
    let adjacent =
        |a: &(PageNo, FrameNo, BlockNo), b: &(PageNo, FrameNo, BlockNo)| a.2.offset(1) == b.2;
    let mut runs: Vec<Run> = Vec::new();
    for run in placed.chunk_by(adjacent) {
        let checksum =
            |(at, frame, _): &_| turn.cache.table.checksum(*frame, *at, turn.driver.memory);
        let checksums = run.iter().map(checksum).collect();
        runs.push(Run { page: run[0].0.1, block: run[0].2, checksums });
    }
    let (ino, _) = placed[0].0;
    // The next record will name these places.
    let lsn = turn.log.image.end();
    write_pages(shard, placed, lsn, turn);
    cover.complete = !shard.pages.has_uncovered(ino);
    let mut room = shard.budget().placing(placed.len());
    step(shard, Step::Placed { ino, runs, cover }, &mut room, turn);
    if turn.plants(Plant::DoubleAllocate) {
        shard.space.lose(placed[0].2);
    }
}
