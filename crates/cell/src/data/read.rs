//! Reading files, and reading ahead of a sequential reader.

use warren_base::limits::{BLOCK_SIZE, OPEN_DATA_MAX};
use warren_base::{Errno, Ino, InodeFlags, Timestamp};
use warren_proto::{
    AccessMode, Attr, FileKind, Handle, LeaseKey, Opened, Position, ReadFlags, Rules, Step,
};

use crate::apply::step;
use crate::cache::pages::{are_at_hand, bring_pages, pages_of, part_of};
use crate::cache::transfer::load_pages;
use crate::data::write::move_to;
use crate::driver::Driver;
use crate::event::SlotRef;
use crate::frames::cache::Cache;
use crate::plant::Plant;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;
/// Pages read ahead of a sequential reader.
const READ_AHEAD: u64 = 64;
/// A day, in nanoseconds: the largest age of an access time (relatime).
const DAY: u64 = 86_400_000_000_000;

/// Reads into the payload of `to`; returns how many bytes, and whether a client that is not a front
/// may keep the handle.
pub(crate) fn read(
    shard: &mut Shard,
    to: SlotRef,
    handle: Handle,
    position: Position,
    (len, flags): (u32, ReadFlags),
    turn: &mut Turn<'_>,
) -> Result<(u32, bool), Stop> {
    let file = shard.opens.get(handle, to.client)?;
    // A front's kernel has checked this itself, and also reads pages for writers.
    if !file.access.contains(AccessMode::READ) && !turn.sessions.clients.acknowledges(to.client) {
        return Err(Errno::EBADF.into());
    }
    let ino = handle.ino;
    let inode = shard.living_inode(ino)?;
    if inode.kind == FileKind::Directory {
        return Err(Errno::EISDIR.into());
    }
    let size = inode.size;
    let offset = match position {
        Position::At(offset) => offset,
        Position::Current => file.offset,
        Position::End | Position::EndAt(_) => return Err(Errno::EINVAL.into()),
    };
    let lane = turn.sessions.clients.payload_max(to.client) as u64;
    let len = u64::from(len).min(lane).min(size.saturating_sub(offset));
    if len > 0 {
        bring_pages(shard, ino, pages_of(offset, len), turn.cache)?;
        copy_out(shard, to, ino, offset, len, turn.cache, &mut turn.driver);
        read_ahead(shard, handle, offset, len, size, turn.cache, &mut turn.driver);
        if !flags.contains(ReadFlags::NO_ATIME) {
            touch_atime(shard, ino, turn.sessions.clients.rules(to.client), turn);
        }
    }
    if !flags.contains(ReadFlags::DIRECT) && turn.sessions.clients.acknowledges(to.client) {
        let pages = turn.mark(LeaseKey::Pages(ino));
        shard.leases.hold_again(pages, to.client, &mut turn.sessions.leases);
    }
    let is_kept =
        file.access.contains(AccessMode::KEEP) && !turn.sessions.clients.acknowledges(to.client);
    let file = shard.opens.get_mut(handle).expect("just there");
    file.read_end = offset + len;
    if position == Position::Current {
        move_to(shard, handle, offset + len, turn);
    }
    Ok((len as u32, is_kept))
}

/// Copies the data of a file that was just opened into the payload of `to`, as
/// [`AccessMode::DATA`] says. Returns how many bytes.
pub(crate) fn data_at_hand(
    shard: &Shard,
    to: SlotRef,
    opened: &Opened,
    access: AccessMode,
    turn: &mut Turn<'_>,
) -> u32 {
    let Attr { ino, kind, size, atime, mtime, ctime, .. } = opened.attr;
    let lane = turn.sessions.clients.payload_max(to.client) as u64;
    let is_wanted = access.contains(AccessMode::DATA | AccessMode::READ) && opened.kept.is_some();
    if !is_wanted || kind != FileKind::Regular || !(1..=OPEN_DATA_MAX.min(lane)).contains(&size) {
        return 0;
    }
    let rules = turn.sessions.clients.rules(to.client);
    if is_atime_due(rules, atime, [mtime, ctime], turn.driver.now.wall)
        || !are_at_hand(shard, ino, pages_of(0, size), turn.cache)
            && !turn.plants(Plant::OpenDataMissing)
    {
        return 0;
    }
    copy_out(shard, to, ino, 0, size, turn.cache, &mut turn.driver);
    size as u32
}

fn copy_out(
    shard: &Shard,
    to: SlotRef,
    ino: Ino,
    offset: u64,
    len: u64,
    cache: &mut Cache,
    driver: &mut Driver<'_>,
) {
    let mut at = 0;
    for page in pages_of(offset, len) {
        let (start, count) = part_of(page, offset, offset + len);
        match shard.pages.page((ino, page), &mut cache.frames) {
            Some(found) => {
                driver.memory.frame_to_payload(found.frame, start..start + count, to, at);
            }
            None => driver.memory.zero_payload(to, at, count),
        }
        at += count;
    }
}

/// Starts to read the pages that a sequential reader will need next.
fn read_ahead(
    shard: &mut Shard,
    handle: Handle,
    offset: u64,
    len: u64,
    size: u64,
    cache: &mut Cache,
    driver: &mut Driver<'_>,
) {
    let sequential = shard.opens.get_mut(handle).is_some_and(|file| file.read_end == offset);
    let (next, last) = ((offset + len).div_ceil(PAGE), size.div_ceil(PAGE));
    if !sequential || next >= last || cache.frames.count() < 8 * READ_AHEAD as u32 {
        return;
    }
    let ino = handle.ino;
    // Only when the reader has reached the middle of the last read-ahead.
    let middle = (ino, (next + READ_AHEAD / 2).min(last - 1));
    if shard.pages.page(middle, &mut cache.frames).is_some() {
        return;
    }
    let mut wanted = Vec::new();
    for page in next..(next + READ_AHEAD).min(last) {
        if shard.pages.page((ino, page), &mut cache.frames).is_none()
            && let Ok(Some(placed)) = shard.placed(ino, page)
        {
            wanted.push(((ino, page), placed));
        }
    }
    let mut frames = Vec::with_capacity(wanted.len());
    while frames.len() < wanted.len()
        && let Some(frame) = cache.frames.take()
    {
        frames.push(frame);
    }
    wanted.truncate(frames.len());
    load_pages(shard, &wanted, frames, cache, driver);
}

/// Whether a read changes the access time. Without rules it does as relatime: if the time is older
/// than the last change, or a day old.
fn is_atime_due(rules: Rules, atime: Timestamp, changed: [Timestamp; 2], now: Timestamp) -> bool {
    if rules.intersects(Rules::NO_ATIME | Rules::READ_ONLY) {
        return false;
    }
    rules.contains(Rules::STRICT_ATIME)
        || changed.iter().any(|time| atime <= *time)
        || now.since(atime) >= DAY
}

/// Updates the access time, if that is due.
fn touch_atime(shard: &mut Shard, ino: Ino, rules: Rules, turn: &mut Turn<'_>) {
    let now = turn.driver.now.wall;
    let Ok(Some(inode)) = shard.inode(ino) else { return };
    if !is_atime_due(rules, inode.atime, [inode.mtime, inode.ctime], now)
        || inode.atime == now
        || inode.flags.contains(InodeFlags::NOATIME)
        || turn.log.commits.is_last()
    {
        return;
    }
    let budget = shard.budget();
    let room = turn.log_has_room().then(|| budget.admit(shard.room(), budget.atime()));
    let Some(mut room) = room.flatten() else { return };
    // No task waits for this. A copy that cannot be revoked at once keeps its old time.
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    step(shard, Step::Accessed { ino, atime: now }, &mut room, turn);
}
