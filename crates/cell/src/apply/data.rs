//! The steps that change the data of files: places, contents, sizes.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Ino, Timestamp};
use warren_proto::{Cover, InlinePage, RangeChange, RangeCopy, Run};

use super::mode::Mode;
use crate::cache::pages::{cut_page, forget_pages, put_page, truncate_with_pages};
use crate::cache::range::{bring_cut_pages, change_with_pages};
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;

/// Truncates a file, or extends it with a hole.
pub(super) fn make_truncated(
    shard: &mut Shard,
    ino: Ino,
    (size, blocks, now): (u64, &mut u64, Timestamp),
    mode: Mode,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    match mode {
        Mode::Live => {
            truncate_with_pages(shard, ino, size, now, turn);
            *blocks = shard.inode_mut(ino).blocks;
        }
        Mode::Frames => {
            shard.truncate_extents(ino, size, now);
            shard.inode_mut(ino).blocks = *blocks;
            // The truncation may have changed a page.
            shard.behind.insert(ino);
        }
        Mode::Power if shard.behind.cut(ino, size) => {}
        Mode::Power => {
            cut_page(shard, ino, size, turn.cache)?;
            truncate_with_pages(shard, ino, size, now, turn);
            shard.behind.note_size(ino, size);
        }
    }
    Ok(())
}

/// Blocks of a range of a file are allocated or freed. Sets the `blocks` of a live step.
pub(super) fn make_fallocated(
    shard: &mut Shard,
    ino: Ino,
    change: &RangeChange,
    blocks: &mut u64,
    mode: Mode,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if mode == Mode::Frames {
        let size = shard.inode_mut(ino).size;
        shard.change_extents(ino, change, size);
        shard.inode_mut(ino).blocks = *blocks;
        // The change may have changed pages.
        shard.behind.insert(ino);
        return Ok(());
    }
    if mode == Mode::Power {
        catch_up(shard, ino, turn)?;
        bring_cut_pages(shard, ino, change, turn.cache)?;
    }
    change_with_pages(shard, ino, change, turn);
    *blocks = shard.inode_mut(ino).blocks;
    Ok(())
}

/// A range of a file shares the blocks of another file. Sets the `blocks` of a live step.
pub(super) fn make_shared(
    shard: &mut Shard,
    (ino, source): (Ino, Ino),
    copy: &RangeCopy,
    blocks: &mut u64,
    mode: Mode,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if mode == Mode::Power {
        catch_up(shard, ino, turn)?;
        catch_up(shard, source, turn)?;
    }
    let (_, to, count) = copy.blocks();
    let dropped = match mode {
        Mode::Frames => 0,
        Mode::Live | Mode::Power => {
            forget_pages(shard, ino, to..=to + count - 1, turn.log, turn.cache)
        }
    };
    let (freed, placed) = shard.share_extents(ino, source, copy);
    if mode != Mode::Frames {
        let before = shard.inode_mut(ino).blocks;
        *blocks = (before + placed).saturating_sub(freed + dropped);
    }
    Ok(())
}

/// Consecutive pages of a file have places, in `runs` of consecutive blocks.
pub(super) fn make_placed(
    shard: &mut Shard,
    ino: Ino,
    runs: &[Run],
    cover: &Cover,
    mode: Mode,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if mode == Mode::Power {
        catch_up(shard, ino, turn)?;
    }
    let end = runs.last().map(|run| run.page + run.checksums.len() as u64);
    if let (Some(first), Some(end)) = (runs.first().map(|run| run.page), end) {
        if mode != Mode::Live {
            runs.iter().for_each(|run| shard.space.take_run(run.block, run.checksums.len()));
        }
        let dropped = match mode {
            Mode::Power => forget_pages(shard, ino, first..=end - 1, turn.log, turn.cache),
            Mode::Live | Mode::Frames => 0,
        };
        let freed = shard.replace_extents(ino, first, end - 1, runs);
        if mode == Mode::Power {
            let inode = shard.inode_mut(ino);
            inode.blocks = (inode.blocks + end - first).saturating_sub(freed + dropped);
        }
    }
    covered(shard, ino, cover, end, mode);
    Ok(())
}

/// The record holds pages of a file.
pub(super) fn make_inline(
    shard: &mut Shard,
    ino: Ino,
    pages: &[InlinePage],
    cover: &Cover,
    mode: Mode,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    match mode {
        Mode::Live => pages.iter().for_each(|page| shard.pages.cover((ino, page.page))),
        Mode::Frames => {}
        Mode::Power => {
            catch_up(shard, ino, turn)?;
            for page in pages {
                let has_block = shard.is_allocated(ino, page.page)?;
                let is_new = put_page(shard, (ino, page.page), &page.bytes, turn)?;
                shard.inode_mut(ino).blocks += u64::from(is_new && !has_block);
            }
        }
    }
    covered(shard, ino, cover, pages.last().map(|page| page.page + 1), mode);
    Ok(())
}

/// A step covers the file: its state as far as pages before `end` determine it.
fn covered(shard: &mut Shard, ino: Ino, cover: &Cover, end: Option<u64>, mode: Mode) {
    if mode == Mode::Power {
        catch_up_to(shard, ino, cover, end);
    } else if cover.complete {
        shard.behind.remove(ino);
    }
}

/// Makes the truncations that happened while the file was behind, before it catches up.
fn catch_up(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let Some(cut) = shard.behind.cut_of(ino) else { return Ok(()) };
    let Some(inode) = shard.inode(ino)? else { return Ok(()) };
    let (size, mtime) = (inode.size, inode.mtime);
    if cut < size {
        cut_page(shard, ino, cut, turn.cache)?;
        truncate_with_pages(shard, ino, cut, mtime, turn);
        // This must happen before the step puts new bytes there.
        turn.settle();
    } else {
        shard.fetch_extents(ino, cut / PAGE, u64::MAX / PAGE)?;
        shard.drop_extents_beyond(ino, cut);
    }
    shard.behind.forget_cut(ino);
    Ok(())
}

/// Brings the file to the state of the cover, as far as pages up to `last` determine it.
fn catch_up_to(shard: &mut Shard, ino: Ino, cover: &Cover, last: Option<u64>) {
    let inode = shard.inode_mut(ino);
    inode.size = match (cover.complete, last) {
        (true, _) => cover.size,
        (false, Some(last)) => inode.size.max(cover.size.min(last * PAGE)),
        (false, None) => inode.size,
    };
    inode.mode = cover.mode;
    (inode.mtime, inode.ctime) = (cover.mtime, cover.ctime);
    if cover.complete {
        shard.behind.remove(ino);
    }
}
