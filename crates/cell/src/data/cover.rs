//! Covers: the steps of the log that name a file's data, so that a power failure does not take it.

use warren_base::Ino;
use warren_proto::{InlinePage, Step};

use crate::apply::{cover_of, step};
use crate::budget::{INLINE_MAX, INLINE_PAGES, Reservation};
use crate::data::writeback::place_pages_of;
use crate::event::FrameNo;
use crate::plant::Plant;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::turn::Turn;

/// Logs the uncovered data of a file that takes the name of something else. A later record, or
/// another log, may depend on that name, and does not bring the data.
pub(crate) fn cover_replacement(
    shard: &mut Shard,
    ino: Ino,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if turn.plants(Plant::RenameBeforeData) {
        return Ok(());
    }
    cover_now(shard, ino, turn)?;
    // A record of its own, because two files that are exchanged may not fit one record.
    turn.seal();
    Ok(())
}

/// Logs the uncovered data of the file before a step that rests on it.
pub(crate) fn cover_now(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) -> Result<(), Stop> {
    // Places take the space that is kept for every dirty page; pages in line take more. A
    // participant that waited for locks may find less room in the log than when it came.
    let has_room = turn.log_room(turn.cache.frames.dirty_pages()) > INLINE_MAX;
    if !has_room && shard.pages.has_uncovered(ino) {
        return place_pages_of(shard, ino, turn);
    }
    cover_file(shard, ino, turn)
}

/// Logs the uncovered data of the file: a few pages in line, more by giving them places.
pub(crate) fn cover_file(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let pages = shard.pages.uncovered_pages(ino, INLINE_PAGES + 1);
    if pages.is_empty() && !shard.behind.contains(ino) {
        return Ok(());
    }
    if pages.len() > INLINE_PAGES {
        return place_pages_of(shard, ino, turn);
    }
    let inline = |(page, frame): &(u64, FrameNo)| {
        let bytes = turn.driver.memory.frame(*frame).as_slice().into();
        InlinePage { page: *page, bytes }
    };
    let inlined = pages.iter().map(inline).collect();
    let cover = cover_of(shard, ino, true)?;
    step(shard, Step::Inline { ino, pages: inlined, cover }, &mut Reservation::empty(), turn);
    Ok(())
}
