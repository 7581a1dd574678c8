//! Writing files.

use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, Credentials, Handle, LeaseKey, Position, Step};
use warren_rules::permission;
use warren_rules::write::check_flags;

use crate::apply::step;
use crate::budget::{Need, REWRITE_PAGES, Reservation, blocks_of_pages};
use crate::cache::pages::{
    PageWrite, move_for_change, pages_of, part_of, tag_frame, take_frames, wait_for_frames,
    wait_for_range,
};
use crate::change::attributes::ready_to_change;
use crate::change::capability;
use crate::event::{FrameNo, SlotRef};
use crate::recall::{recall, recall_pages};
use crate::run::state::TaskState;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::shard::extents::BlockState;
use crate::shard::pages::PageState;
use crate::supply::claim::reserve;
use crate::turn::Turn;

/// The kind of a write.
#[derive(Clone, Copy)]
pub(crate) struct WriteMode<'a> {
    /// The credentials, if the write removes the set-id bits.
    pub(crate) strips: Option<&'a Credentials>,
    /// A kernel writes mapped pages back.
    pub(crate) write_back: bool,
    /// A kernel writes, bypassing its page cache.
    pub(crate) direct: bool,
}

/// Writes the payload of `from`. Returns its length and the size of the file afterwards.
pub(crate) fn write(
    shard: &mut Shard,
    (from, len): (SlotRef, usize),
    handle: Handle,
    position: Position,
    WriteMode { strips, write_back, direct }: WriteMode<'_>,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(u32, u64), Stop> {
    let file = shard.opens.get(handle, from.client)?;
    if !file.access.contains(AccessMode::WRITE) {
        return Err(Errno::EBADF.into());
    }
    let ino = handle.ino;
    // The room for its pages will include that for the inode.
    drop(ready_to_change(shard, ino, shard.budget().begin_write(), state, turn)?);
    let inode = shard.living_inode(ino)?;
    let (size, flags) = (inode.size, inode.flags);
    let checked = check_flags(flags, file.access, position);
    if write_back && checked.is_err() {
        // Until it drops its pages, the kernel shows what was stored.
        recall(shard, &LeaseKey::Pages(ino), None, turn);
    }
    checked?;
    if len == 0 {
        return Ok((0, size));
    }
    let offset = match position {
        Position::At(offset) | Position::EndAt(offset) => offset,
        Position::Current => file.offset,
        Position::End => size,
    };
    let end = offset.checked_add(len as u64).filter(|end| *end <= FILE_SIZE_MAX);
    let mut end = end.ok_or(Errno::EFBIG)?;
    recall_pages(shard, ino, (!direct).then_some(from.client), write_back, turn)?;
    if write_back {
        // Bytes that another front has truncated meanwhile stay truncated.
        end = end.min(size);
        if end <= offset {
            return Ok((len as u32, size));
        }
    }
    // Pages of a mapping are changed without privileges being looked at, as in Linux.
    let loss = if write_back { None } else { capability::need_to_remove(shard, ino)? };
    let (plan, mut room) = plan_write(shard, ino, (offset, end), loss, state, turn)?;
    room.spend(blocks_of_pages(plan.len() as u64));
    let new_blocks = copy_in(shard, from, ino, (offset, end), plan, turn);
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    let now = turn.driver.now.wall;
    let inode = shard.living_inode(ino)?;
    let (size, blocks) = (size.max(end), inode.blocks.saturating_add(new_blocks));
    let mode = permission::after_change(strips, inode.mode, inode.gid);
    if loss.is_some() {
        capability::remove(shard, ino, &mut room, turn);
    }
    step(shard, Step::Wrote { ino, size, blocks, mode, now }, &mut room, turn);
    if position != Position::At(offset) {
        move_to(shard, handle, end, turn);
    }
    if !direct && turn.sessions.clients.acknowledges(from.client) {
        let pages = turn.mark(LeaseKey::Pages(ino));
        shard.leases.hold_again(pages, from.client, &mut turn.sessions.leases);
        if !write_back && turn.sessions.clients.fronts() > 1 {
            // A page that was recalled and read again since the kernel copied this write into it
            // does not contain the write.
            recall(shard, &LeaseKey::Pages(ino), None, turn);
        }
    }
    Ok((len as u32, size))
}

/// Sets the offset at which the object behind the handle reads and writes next.
pub(crate) fn move_to(shard: &mut Shard, handle: Handle, offset: u64, turn: &mut Turn<'_>) {
    step(shard, Step::Moved { handle, offset }, &mut Reservation::empty(), turn);
}

/// Gets what a write needs: old pages that it covers in part, frames, blocks.
fn plan_write(
    shard: &mut Shard,
    ino: Ino,
    (offset, end): (u64, u64),
    loss: Option<Need>,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(Vec<PageWrite>, Reservation), Stop> {
    let pages = pages_of(offset, end - offset);
    let is_partial = |page| part_of(page, offset, end).1 < BLOCK_SIZE;
    let mut plan = Vec::with_capacity((pages.end() - pages.start() + 1) as usize);
    let frame = FrameNo(0);
    let (mut missing, mut keeps) = (false, true);
    for page in pages.clone() {
        let hole = match shard.pages.page((ino, page), &mut turn.cache.frames) {
            Some(found) => {
                missing |= matches!(found.state, PageState::Loading(_));
                false
            }
            None => {
                let state = shard.block_state(ino, page)?;
                missing |= matches!(state, BlockState::Placed(_)) && is_partial(page);
                matches!(state, BlockState::Hole)
            }
        };
        plan.push(PageWrite { page, frame, hole });
        keeps = keeps && !hole && !shard.is_shared(ino, page)?;
    }
    if missing {
        return Err(wait_for_range(shard, ino, pages, is_partial, turn.cache));
    }
    let count = plan.len() as u64;
    // Blocks that are allocated and not shared can always be written (decision 58).
    let budget = shard.budget();
    let need =
        if keeps && count <= REWRITE_PAGES { budget.rewrite(count) } else { budget.write(count) };
    let room = reserve(shard, need.with(loss), state, turn)?;
    if turn.cache.frames.dirty_pages() as u64 + count > u64::from(turn.cache.frames.count()) * 3 / 4
    {
        return wait_for_frames(count, turn.cache);
    }
    if !take_frames(shard, ino, &mut plan, turn) {
        return wait_for_frames(count, turn.cache);
    }
    Ok((plan, room))
}

/// Copies the payload into the planned pages. Returns how many holes were filled.
fn copy_in(
    shard: &mut Shard,
    from: SlotRef,
    ino: Ino,
    (offset, end): (u64, u64),
    plan: Vec<PageWrite>,
    turn: &mut Turn<'_>,
) -> u64 {
    let (mut at, mut filled) = (0, 0);
    for PageWrite { page, frame, hole } in plan {
        let (start, count) = part_of(page, offset, end);
        move_for_change(shard, (ino, page), frame, count == BLOCK_SIZE, turn);
        turn.driver.memory.payload_to_frame(from, at, frame, start..start + count);
        tag_frame(frame, (ino, page), turn);
        at += count;
        filled += u64::from(hole);
    }
    filled
}
