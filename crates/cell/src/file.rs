//! File data: read, write, truncate.
//!
//! Invariant: bytes of a page past the end of the file are zero, in the cache and on the device.

use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX, PAYLOAD_MAX};
use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, FileKind, Handle, LeaseKey, Position};

use crate::cache::{PageNo, PageState};
use crate::cell::{Cell, Out};
use crate::event::{FrameNo, Memory, SlotRef};
use crate::permission;
use crate::shard::{PER_PAGE, Placed};
use crate::task::{Stop, Task, Wait};

const PAGE: u64 = BLOCK_SIZE as u64;
/// Pages read ahead of a sequential reader.
const READ_AHEAD: u64 = 64;
/// A day, in nanoseconds: how old an access time may get (relatime).
const DAY: i64 = 86_400_000_000_000;

/// The pages that hold bytes `offset..offset + len`, which are not none.
fn pages_of(offset: u64, len: u64) -> std::ops::RangeInclusive<u64> {
    offset / PAGE..=(offset + len - 1) / PAGE
}

/// The part of page `page` that lies in `offset..end`: where it starts in the page, and its length.
fn part_of(page: u64, offset: u64, end: u64) -> (usize, usize) {
    let start = offset.max(page * PAGE);
    let stop = end.min((page + 1) * PAGE);
    ((start - page * PAGE) as usize, (stop - start) as usize)
}

impl Cell {
    /// Reads into the payload of `to`; returns how many bytes.
    pub(crate) fn read<M: Memory>(
        &mut self,
        to: SlotRef,
        handle: Handle,
        position: Position,
        len: u32,
        out: &mut Out<'_, M>,
    ) -> Result<u32, Stop> {
        let file = self.opens.get(handle, to.client)?;
        let readable = AccessMode::READ | AccessMode::EXECUTE;
        if !file.access.intersects(readable) && !self.acknowledges(to.client) {
            return Err(Errno::EBADF.into());
        }
        let ino = handle.ino;
        let attr = self.living(ino)?.attr;
        if attr.kind == FileKind::Directory {
            return Err(Errno::EISDIR.into());
        }
        let offset = match position {
            Position::At(offset) => offset,
            Position::Current => file.offset,
            Position::End => return Err(Errno::EINVAL.into()),
        };
        let len = u64::from(len).min(PAYLOAD_MAX as u64).min(attr.size.saturating_sub(offset));
        if len > 0 {
            self.bring_pages(ino, pages_of(offset, len))?;
            self.copy_out(to, ino, offset, len, out);
            self.read_ahead(handle, offset, len, attr.size, out);
            self.touch_atime(ino, out);
        }
        if self.acknowledges(to.client) {
            self.leases.hold_again(LeaseKey::Pages(ino), to.client);
        }
        let file = self.opens.get_mut(handle).expect("just there");
        file.read_end = offset + len;
        if position == Position::Current {
            file.offset = offset + len;
        }
        Ok(len as u32)
    }

    /// Waits until every page that is not in a hole is in the cache.
    fn bring_pages(&mut self, ino: Ino, pages: std::ops::RangeInclusive<u64>) -> Result<(), Stop> {
        let mut needed: Vec<(PageNo, Option<Placed>)> = Vec::new();
        let mut missing = false;
        for page in pages {
            match self.cache.page((ino, page)) {
                Some(found) => {
                    missing |= matches!(found.state, PageState::Loading(_));
                    needed.push(((ino, page), None));
                }
                None => {
                    if let Some(placed) = self.shards[&ino.shard()].placed(ino, page)? {
                        missing = true;
                        needed.push(((ino, page), Some(placed)));
                    }
                }
            }
        }
        if missing { Err(Stop::Wait(Wait::Pages(needed))) } else { Ok(()) }
    }

    fn copy_out<M: Memory>(
        &mut self,
        to: SlotRef,
        ino: Ino,
        offset: u64,
        len: u64,
        out: &mut Out<'_, M>,
    ) {
        let mut at = 0;
        for page in pages_of(offset, len) {
            let (start, count) = part_of(page, offset, offset + len);
            match self.cache.page((ino, page)) {
                Some(found) => out.memory.frame_to_payload(found.frame, start, to, at, count),
                None => out.memory.zero_payload(to, at, count),
            }
            at += count;
        }
    }

    /// Starts to read what a sequential reader will want next.
    fn read_ahead<M: Memory>(
        &mut self,
        handle: Handle,
        offset: u64,
        len: u64,
        size: u64,
        out: &mut Out<'_, M>,
    ) {
        let sequential = self.opens.get_mut(handle).is_some_and(|file| file.read_end == offset);
        let (next, last) = ((offset + len).div_ceil(PAGE), size.div_ceil(PAGE));
        if !sequential || next >= last || self.cache.frames() < 8 * READ_AHEAD as u32 {
            return;
        }
        let ino = handle.ino;
        // Only when the reader has come to the middle of what was read ahead before.
        if self.cache.page((ino, (next + READ_AHEAD / 2).min(last - 1))).is_some() {
            return;
        }
        let mut wanted = Vec::new();
        for page in next..(next + READ_AHEAD).min(last) {
            if self.cache.page((ino, page)).is_none()
                && let Ok(Some(placed)) = self.shards[&ino.shard()].placed(ino, page)
            {
                wanted.push(((ino, page), placed));
            }
        }
        let mut frames = Vec::with_capacity(wanted.len());
        while frames.len() < wanted.len()
            && let Some(frame) = self.cache.take_frame()
        {
            frames.push(frame);
        }
        wanted.truncate(frames.len());
        self.load_pages(&wanted, frames, out);
    }

    /// The access time, as relatime keeps it: brought up to date if it is older than the last change,
    /// or a day old.
    fn touch_atime<M: Memory>(&mut self, ino: Ino, out: &mut Out<'_, M>) {
        let now = self.now.wall;
        let Ok(Some(inode)) = self.shards[&ino.shard()].inode(ino) else { return };
        let due = inode.atime <= inode.mtime
            || inode.atime <= inode.ctime
            || now.0.saturating_sub(inode.atime.0) >= DAY;
        let dirty = self.cache.dirty_pages_of(ino.shard());
        if !due || inode.atime == now || self.shards[&ino.shard()].room(dirty) < 32 {
            return;
        }
        // Nobody waits for this: a copy that cannot be revoked at once keeps its old time.
        self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
        self.shards.get_mut(&ino.shard()).expect("owned").inode_mut(ino).atime = now;
    }

    /// Writes the payload of `from`; returns its length and where the file ends now.
    pub(crate) fn write<M: Memory>(
        &mut self,
        (from, len): (SlotRef, usize),
        handle: Handle,
        position: Position,
        kill_privileges: bool,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<(u32, u64), Stop> {
        let file = self.opens.get(handle, from.client)?;
        if !file.access.contains(AccessMode::WRITE) {
            return Err(Errno::EBADF.into());
        }
        let ino = handle.ino;
        let value = self.ready_to_change(ino, task, out)?;
        let size = value.attr.size;
        if len == 0 {
            return Ok((0, size));
        }
        let offset = match position {
            Position::At(offset) => offset,
            Position::Current => file.offset,
            Position::End => size,
        };
        let end = offset.checked_add(len as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        // A front that is being recalled may hold its pages locked until this write is answered: it does
        // not wait for the other, or both would wait for ever.
        let pages = LeaseKey::Pages(ino);
        let alone = self.recall(&pages, Some(from.client), out);
        if !alone && !self.leases.is_recalled_from(&pages, from.client) {
            return Err(Stop::Wait(Wait::Recall));
        }
        let plan = self.plan_write(ino, offset, end, task)?;
        let new_blocks = self.copy_in(from, ino, (offset, end), plan, out);
        self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
        let now = self.now.wall;
        let inode = self.shards.get_mut(&ino.shard()).expect("owned").inode_mut(ino);
        inode.size = size.max(end);
        inode.blocks += new_blocks;
        (inode.mtime, inode.ctime) = (now, now);
        if kill_privileges {
            inode.mode = permission::without_privileges(FileKind::Regular, inode.mode);
        }
        if position != Position::At(offset) {
            self.opens.get_mut(handle).expect("just there").offset = end;
        }
        if self.acknowledges(from.client) {
            self.leases.hold_again(LeaseKey::Pages(ino), from.client);
        }
        Ok((len as u32, size.max(end)))
    }

    /// Brings what a write needs: old pages that it covers in part, frames, blocks. Returns a frame for
    /// each page that needs a new one, and whether the page is a hole until now.
    fn plan_write(
        &mut self,
        ino: Ino,
        offset: u64,
        end: u64,
        task: &mut Task,
    ) -> Result<Vec<(u64, Option<FrameNo>, bool)>, Stop> {
        let mut needed: Vec<(PageNo, Option<Placed>)> = Vec::new();
        let mut plan: Vec<(u64, bool, bool)> = Vec::new();
        let mut missing = false;
        for page in pages_of(offset, end - offset) {
            let at = (ino, page);
            if let Some(found) = self.cache.page(at) {
                missing |= matches!(found.state, PageState::Loading(_));
                needed.push((at, None));
                plan.push((page, found.writing.is_some(), false));
                continue;
            }
            let placed = self.shards[&ino.shard()].placed(ino, page)?;
            let whole = part_of(page, offset, end).1 == BLOCK_SIZE;
            if placed.is_some() && !whole {
                missing = true;
                needed.push((at, placed));
            }
            plan.push((page, true, placed.is_none()));
        }
        if missing {
            return Err(Stop::Wait(Wait::Pages(needed)));
        }
        let pages = plan.len() as u64;
        self.ensure_room(ino.shard(), PER_PAGE * pages + 32, task)?;
        if self.cache.dirty_pages() as u64 + pages > u64::from(self.cache.frames()) * 3 / 4 {
            return self.wait_for_frames(pages);
        }
        needed.iter().for_each(|(at, _)| self.cache.pin(*at));
        let mut frames = Vec::new();
        let wanted = plan.iter().filter(|(_, new, _)| *new).count();
        while frames.len() < wanted
            && let Some(frame) = self.cache.take_frame()
        {
            frames.push(frame);
        }
        needed.iter().for_each(|(at, _)| self.cache.unpin(*at));
        if frames.len() < wanted {
            frames.into_iter().for_each(|frame| self.cache.give_frame(frame));
            return self.wait_for_frames(pages);
        }
        let mut frames = frames.into_iter();
        let with_frame = |(page, new, hole)| (page, if new { frames.next() } else { None }, hole);
        Ok(plan.into_iter().map(with_frame).collect())
    }

    /// Frames come back when write-back goes on, unless there could never be enough.
    fn wait_for_frames<T>(&mut self, pages: u64) -> Result<T, Stop> {
        if pages > u64::from(self.cache.frames()) / 2 {
            return Err(Errno::ENOMEM.into());
        }
        Err(Stop::Wait(Wait::Frames))
    }

    /// Copies the payload into the planned pages. Returns how many holes were filled.
    fn copy_in<M: Memory>(
        &mut self,
        from: SlotRef,
        ino: Ino,
        (offset, end): (u64, u64),
        plan: Vec<(u64, Option<FrameNo>, bool)>,
        out: &mut Out<'_, M>,
    ) -> u64 {
        let (mut at, mut filled) = (0, 0);
        for (page, new, hole) in plan {
            let (start, count) = part_of(page, offset, end);
            let frame = self.page_for_change((ino, page), new, count == BLOCK_SIZE, out);
            out.memory.payload_to_frame(from, at, frame, start, count);
            at += count;
            filled += u64::from(hole);
        }
        filled
    }

    /// The frame in which the page may be changed; the page is dirty now. `new` is for a page that has
    /// no frame, or one that is being written.
    fn page_for_change<M: Memory>(
        &mut self,
        at: PageNo,
        new: Option<FrameNo>,
        whole: bool,
        out: &mut Out<'_, M>,
    ) -> FrameNo {
        let frame = match (self.cache.page(at), new) {
            (None, Some(new)) => {
                if !whole {
                    out.memory.frame_mut(new).fill(0);
                }
                self.cache.insert(at, new, PageState::Dirty);
                return new;
            }
            (Some(page), Some(new)) => {
                let copy = *out.memory.frame(page.frame);
                *out.memory.frame_mut(new) = copy;
                self.cache.move_page(at, new);
                new
            }
            (Some(page), None) => page.frame,
            (None, None) => unreachable!("a page without a frame was given one"),
        };
        self.cache.mark_dirty(at);
        frame
    }

    /// Brings what truncation needs: the page that the new end cuts, and a frame if it is being
    /// written.
    pub(crate) fn ready_to_truncate<M: Memory>(
        &mut self,
        ino: Ino,
        size: u64,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<(), Stop> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let old = self.living(ino)?.attr.size;
        if size >= old {
            return Ok(());
        }
        if !self.recall(&LeaseKey::Pages(ino), task.client(), out) {
            return Err(Stop::Wait(Wait::Recall));
        }
        if !size.is_multiple_of(PAGE) {
            self.bring_pages(ino, size / PAGE..=size / PAGE)?;
            let being_written = |page: crate::cache::Page| page.writing.is_some();
            if self.cache.page((ino, size / PAGE)).is_some_and(being_written) {
                return Err(Stop::Wait(Wait::Frames));
            }
        }
        self.shards[&ino.shard()].extents(ino, size / PAGE, u64::MAX / PAGE, |_, _| {})
    }

    /// Sets the size of a file for which [`Self::ready_to_truncate`] has been done.
    pub(crate) fn truncate_now<M: Memory>(&mut self, ino: Ino, size: u64, out: &mut Out<'_, M>) {
        let now = self.now.wall;
        self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
        let old = self.shards[&ino.shard()].inode(ino).ok().flatten().map_or(0, |inode| inode.size);
        let mut freed = 0;
        if size < old {
            let (cut, first) = ((size % PAGE) as usize, size.div_ceil(PAGE));
            if cut > 0 && self.cache.page((ino, size / PAGE)).is_some() {
                let frame = self.page_for_change((ino, size / PAGE), None, false, out);
                out.memory.frame_mut(frame)[cut..].fill(0);
            }
            freed = self.unplaced_dirty_pages(ino, first);
            self.cache.drop_pages(ino, first);
            let shard = self.shards.get_mut(&ino.shard()).expect("owned");
            freed += shard.replace_extents(ino, first, u64::MAX / PAGE, &[]);
        }
        let inode = self.shards.get_mut(&ino.shard()).expect("owned").inode_mut(ino);
        inode.size = size;
        inode.blocks -= freed;
        (inode.mtime, inode.ctime) = (now, now);
    }

    /// Dirty pages from `first` on that have no place yet: they were counted as blocks when written.
    fn unplaced_dirty_pages(&self, ino: Ino, first: u64) -> u64 {
        let shard = &self.shards[&ino.shard()];
        let dirty = self.cache.dirty_from((ino, first)).take_while(|at| at.0 == ino);
        dirty.filter(|at| matches!(shard.placed(ino, at.1), Ok(None))).count() as u64
    }
}
