//! Truncating files, and extending them with a hole.

use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use warren_base::{Errno, Ino};
use warren_proto::{LeaseKey, Step};

use crate::apply::step;
use crate::budget::{Growth, Need, Reservation, blocks_of_pages};
use crate::cache::pages::bring_cut_page;
use crate::plant::Plant;
use crate::recall::recall_pages;
use crate::run::state::TaskState;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;

/// The need of a change that cuts this block of the file: if it is shared, the change takes a block
/// for good.
pub(crate) fn need_to_cut(shard: &Shard, need: Need, ino: Ino, block: u64) -> Result<Need, Stop> {
    let is_shared = shard.is_shared(ino, block)?;
    Ok(if is_shared { Need { growth: Growth::Grows, ..need } } else { need })
}

/// The need of a truncation.
pub(crate) fn need_to_truncate(shard: &Shard, ino: Ino, size: u64) -> Result<Need, Stop> {
    let need = shard.budget().truncate();
    if size.is_multiple_of(PAGE) { Ok(need) } else { need_to_cut(shard, need, ino, size / PAGE) }
}

/// Gets what the truncation needs: the page that the new end cuts, and a frame if that page is
/// being written. `may_overtake`: the request is a kernel's, which writes no mapped page back until
/// it is answered.
pub(crate) fn ready_to_truncate(
    shard: &mut Shard,
    ino: Ino,
    size: u64,
    may_overtake: bool,
    state: &TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if size > FILE_SIZE_MAX {
        return Err(Errno::EFBIG.into());
    }
    let old = shard.living(ino)?.attr.size;
    if size > old {
        return Ok(());
    }
    if size == old {
        // Blocks may be allocated beyond the end.
        return shard.fetch_extents(ino, size / PAGE, u64::MAX / PAGE);
    }
    let client = state.client.expect("a request");
    if !turn.plants(Plant::TruncateUnrecalled) {
        recall_pages(shard, ino, Some(client), may_overtake, turn)?;
    }
    if !size.is_multiple_of(PAGE) {
        bring_cut_page(shard, (ino, size / PAGE), turn.cache)?;
    }
    shard.fetch_extents(ino, size / PAGE, u64::MAX / PAGE)
}

/// Sets the size of a file for which [`ready_to_truncate`] has been done. The page that the new end
/// cuts becomes dirty.
pub(crate) fn truncate_now(
    shard: &mut Shard,
    ino: Ino,
    size: u64,
    room: &mut Reservation,
    turn: &mut Turn<'_>,
) {
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    room.spend(blocks_of_pages(u64::from(!size.is_multiple_of(PAGE))));
    step(shard, Step::Truncate { ino, size, blocks: 0, now: turn.driver.now.wall }, room, turn);
}
