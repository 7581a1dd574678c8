//! File data: read, write, truncate.
//!
//! Invariant: bytes of a page past the end of the file are zero, in the cache and on the device.

use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX, PAYLOAD_MAX};
use warren_base::{ClientId, Errno, Ino, Timestamp};
use warren_proto::{
    AccessMode, Credentials, FileKind, Handle, InlinePage, LeaseKey, Position, Step,
};

use crate::cache::{PageNo, PageState};
use crate::cell::Core;
use crate::event::{FrameNo, Memory, SlotRef};
use crate::log::record::After;
use crate::permission;
use crate::plant::Plant;
use crate::room::Growth;
use crate::run::wait::{Stop, Wait, WaitKey};
use crate::shard::Placed;
use crate::task::Task;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;
/// Pages read ahead of a sequential reader.
const READ_AHEAD: u64 = 64;
/// Pages that an `fsync` logs rather than writing them to their place: with more, two writes cost less than
/// the log's space.
const INLINE_PAGES: usize = 8;
/// Bytes of the log that these take, with what is said of each.
const INLINE_MAX: u64 = INLINE_PAGES as u64 * (PAGE + 64);
/// A day, in nanoseconds: how old an access time may get (relatime).
const DAY: i64 = 86_400_000_000_000;

/// How a request writes, beside what and where.
#[derive(Clone, Copy)]
pub(crate) struct WriteMode<'a> {
    /// On whose behalf, if the write takes the set-id bits away.
    pub(crate) strips: Option<&'a Credentials>,
    /// A kernel writes mapped pages back.
    pub(crate) write_back: bool,
    /// A kernel writes past its pages.
    pub(crate) direct: bool,
}

/// How a write changes one page.
struct PageWrite {
    page: u64,
    /// Where it lies from now on.
    frame: FrameNo,
    /// It is a hole until now.
    hole: bool,
}

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

impl Core {
    /// Reads into the payload of `to`; returns how many bytes.
    pub(crate) fn read<M: Memory>(
        &mut self,
        to: SlotRef,
        handle: Handle,
        position: Position,
        (len, direct): (u32, bool),
        turn: &mut Turn<'_, M>,
    ) -> Result<u32, Stop> {
        let file = self.opens.get(handle, to.client)?;
        // A front's kernel has looked itself, and reads pages for writers, too.
        if !file.access.contains(AccessMode::READ) && !turn.clients.acknowledges(to.client) {
            return Err(Errno::EBADF.into());
        }
        let ino = handle.ino;
        let inode = self.living_inode_at(ino)?;
        if inode.kind == FileKind::Directory {
            return Err(Errno::EISDIR.into());
        }
        let size = inode.size;
        let offset = match position {
            Position::At(offset) => offset,
            Position::Current => file.offset,
            Position::End => return Err(Errno::EINVAL.into()),
        };
        let len = u64::from(len).min(PAYLOAD_MAX as u64).min(size.saturating_sub(offset));
        if len > 0 {
            self.bring_pages(ino, pages_of(offset, len), turn)?;
            self.copy_out(to, ino, offset, len, turn);
            self.read_ahead(handle, offset, len, size, turn);
            self.touch_atime(ino, turn);
        }
        if !direct && turn.clients.acknowledges(to.client) {
            turn.leases.hold_again(LeaseKey::Pages(ino), to.client);
        }
        let file = self.opens.get_mut(handle).expect("just there");
        file.read_end = offset + len;
        if position == Position::Current {
            self.move_to(handle, offset + len, turn);
        }
        Ok(len as u32)
    }

    /// Waits until every page that is not in a hole is in the cache.
    fn bring_pages<M: Memory>(
        &mut self,
        ino: Ino,
        pages: std::ops::RangeInclusive<u64>,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        for page in pages.clone() {
            let missing = match turn.cache.page((ino, page)) {
                Some(found) => matches!(found.state, PageState::Loading(_)),
                None => self.shards[&ino.shard()].placed(ino, page)?.is_some(),
            };
            if missing {
                return Err(self.wait_for_these(ino, pages, |_| true, turn));
            }
        }
        Ok(())
    }

    /// What a task waits for that needs all of these pages, some of which are missing: those in the
    /// cache stay there, and of the others those are read that have a place and pass `is_read`.
    fn wait_for_these<M: Memory>(
        &mut self,
        ino: Ino,
        pages: std::ops::RangeInclusive<u64>,
        is_read: impl Fn(u64) -> bool,
        turn: &mut Turn<'_, M>,
    ) -> Stop {
        let mut needed: Vec<(PageNo, Option<Placed>)> = Vec::new();
        for page in pages {
            if turn.cache.page((ino, page)).is_some() {
                needed.push(((ino, page), None));
                continue;
            }
            match self.shards[&ino.shard()].placed(ino, page) {
                Ok(Some(placed)) if is_read(page) => needed.push(((ino, page), Some(placed))),
                Ok(_) => {}
                Err(stop) => return stop,
            }
        }
        Stop::Wait(Wait::Pages(needed))
    }

    fn copy_out<M: Memory>(
        &mut self,
        to: SlotRef,
        ino: Ino,
        offset: u64,
        len: u64,
        turn: &mut Turn<'_, M>,
    ) {
        let mut at = 0;
        for page in pages_of(offset, len) {
            let (start, count) = part_of(page, offset, offset + len);
            match turn.cache.page((ino, page)) {
                Some(found) => turn.memory.frame_to_payload(found.frame, start, to, at, count),
                None => turn.memory.zero_payload(to, at, count),
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
        turn: &mut Turn<'_, M>,
    ) {
        let sequential = self.opens.get_mut(handle).is_some_and(|file| file.read_end == offset);
        let (next, last) = ((offset + len).div_ceil(PAGE), size.div_ceil(PAGE));
        if !sequential || next >= last || turn.cache.frames() < 8 * READ_AHEAD as u32 {
            return;
        }
        let ino = handle.ino;
        // Only when the reader has come to the middle of what was read ahead before.
        if turn.cache.page((ino, (next + READ_AHEAD / 2).min(last - 1))).is_some() {
            return;
        }
        let mut wanted = Vec::new();
        for page in next..(next + READ_AHEAD).min(last) {
            if turn.cache.page((ino, page)).is_none()
                && let Ok(Some(placed)) = self.shards[&ino.shard()].placed(ino, page)
            {
                wanted.push(((ino, page), placed));
            }
        }
        let mut frames = Vec::with_capacity(wanted.len());
        while frames.len() < wanted.len()
            && let Some(frame) = turn.cache.take_frame()
        {
            frames.push(frame);
        }
        wanted.truncate(frames.len());
        self.load_pages(&wanted, frames, turn);
    }

    /// The access time, as relatime keeps it: brought up to date if it is older than the last change,
    /// or a day old.
    fn touch_atime<M: Memory>(&mut self, ino: Ino, turn: &mut Turn<'_, M>) {
        let now = turn.now.wall;
        let Ok(Some(inode)) = self.shards[&ino.shard()].inode(ino) else { return };
        let due = inode.atime <= inode.mtime
            || inode.atime <= inode.ctime
            || now.0.saturating_sub(inode.atime.0) >= DAY;
        if !due || inode.atime == now || turn.log.is_last() {
            return;
        }
        let dirty = turn.cache.dirty_pages_of(ino.shard());
        if !turn.log_has_room() || self.shards[&ino.shard()].room(dirty) < 32 {
            return;
        }
        // Nobody waits for this: a copy that cannot be revoked at once keeps its old time.
        turn.leases.revoke(&LeaseKey::Attr(ino), turn.memory);
        self.step(Step::Accessed { ino, atime: now }, turn);
    }

    /// Writes the payload of `from`; returns its length and where the file ends now.
    pub(crate) fn write<M: Memory>(
        &mut self,
        (from, len): (SlotRef, usize),
        handle: Handle,
        position: Position,
        WriteMode { strips, write_back, direct }: WriteMode<'_>,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(u32, u64), Stop> {
        let file = self.opens.get(handle, from.client)?;
        if !file.access.contains(AccessMode::WRITE) {
            return Err(Errno::EBADF.into());
        }
        let ino = handle.ino;
        let home = self.shards.get(&ino.shard()).ok_or(Errno::ESTALE)?;
        self.ready_to_change(ino, (home.nodes_of_inode(), Growth::Grows), task, turn)?;
        let size = self.living_inode_at(ino)?.size;
        if len == 0 {
            return Ok((0, size));
        }
        let offset = match position {
            Position::At(offset) => offset,
            Position::Current => file.offset,
            Position::End => size,
        };
        let end = offset.checked_add(len as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let mut end = end.ok_or(Errno::EFBIG)?;
        self.recall_pages(ino, (!direct).then_some(from.client), write_back, turn)?;
        if write_back {
            // What another front has cut off meanwhile stays cut off.
            end = end.min(size);
            if end <= offset {
                return Ok((len as u32, size));
            }
        }
        let plan = self.plan_write(ino, offset, end, task, turn)?;
        let new_blocks = self.copy_in(from, ino, (offset, end), plan, turn);
        turn.leases.revoke(&LeaseKey::Attr(ino), turn.memory);
        let now = turn.now.wall;
        let inode = self.living_inode_at(ino)?;
        let (size, blocks) = (size.max(end), inode.blocks.saturating_add(new_blocks));
        let (mode, gid) = (inode.mode, inode.gid);
        let mode = match strips {
            Some(who) => permission::without_privileges(who, FileKind::Regular, mode, gid),
            None => mode,
        };
        self.step(Step::Wrote { ino, size, blocks, mode, now }, turn);
        if position != Position::At(offset) {
            self.move_to(handle, end, turn);
        }
        if !direct && turn.clients.acknowledges(from.client) {
            turn.leases.hold_again(LeaseKey::Pages(ino), from.client);
            if !write_back && turn.clients.fronts() > 1 {
                // A page that was recalled and read again since the kernel copied this write into it lacks the write.
                self.recall(&LeaseKey::Pages(ino), None, turn);
            }
        }
        Ok((len as u32, size))
    }

    /// The object behind the handle reads and writes there next.
    pub(crate) fn move_to<M: Memory>(
        &mut self,
        handle: Handle,
        offset: u64,
        turn: &mut Turn<'_, M>,
    ) {
        turn.note(&Step::Moved { handle, offset });
        self.opens.get_mut(handle).expect("the caller has looked").offset = offset;
    }

    /// Waits until nobody but `except`, which changes the file, has pages of it. `may_overtake`: its kernel may be
    /// unable to drop its own before this is done, and so it waits only while nobody waits for that.
    fn recall_pages<M: Memory>(
        &mut self,
        ino: Ino,
        except: Option<ClientId>,
        may_overtake: bool,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        if self.recall(&LeaseKey::Pages(ino), except, turn) {
            return Ok(());
        }
        if let Some(client) = except.filter(|_| may_overtake)
            && turn.leases.overtakes(ino, client)
        {
            return Ok(());
        }
        if turn.leases.await_pages(ino, except) {
            // Some may go on because pages of their own client's are waited for now.
            turn.waits.wake_all(WaitKey::Recall);
        }
        Err(Stop::Wait(Wait::Recall))
    }

    /// Brings what a write needs: old pages that it covers in part, frames, blocks.
    fn plan_write<M: Memory>(
        &mut self,
        ino: Ino,
        offset: u64,
        end: u64,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<Vec<PageWrite>, Stop> {
        let pages = pages_of(offset, end - offset);
        let is_partial = |page| part_of(page, offset, end).1 < BLOCK_SIZE;
        let mut plan = Vec::with_capacity((pages.end() - pages.start() + 1) as usize);
        let frame = FrameNo(0);
        let mut missing = false;
        for page in pages.clone() {
            let hole = match turn.cache.page((ino, page)) {
                Some(found) => {
                    missing |= matches!(found.state, PageState::Loading(_));
                    false
                }
                None => {
                    let placed = self.shards[&ino.shard()].placed(ino, page)?;
                    missing |= placed.is_some() && is_partial(page);
                    placed.is_none()
                }
            };
            plan.push(PageWrite { page, frame, hole });
        }
        if missing {
            return Err(self.wait_for_these(ino, pages, is_partial, turn));
        }
        let count = plan.len() as u64;
        let nodes = self.shards[&ino.shard()].nodes_of_write(count);
        self.ensure_room(ino.shard(), nodes, Growth::Grows, task, turn)?;
        if turn.cache.dirty_pages() as u64 + count > u64::from(turn.cache.frames()) * 3 / 4 {
            return self.wait_for_frames(count, turn);
        }
        if self.take_frames(ino, &mut plan, turn) {
            Ok(plan)
        } else {
            self.wait_for_frames(count, turn)
        }
    }

    /// Takes the frames that the plan wants, all or none. The pages that it found in the cache stay there.
    fn take_frames<M: Memory>(
        &mut self,
        ino: Ino,
        plan: &mut [PageWrite],
        turn: &mut Turn<'_, M>,
    ) -> bool {
        let found: Vec<PageNo> = plan.iter().map(|write| (ino, write.page)).collect();
        let found: Vec<_> = found.into_iter().filter(|at| turn.cache.page(*at).is_some()).collect();
        found.iter().for_each(|at| turn.cache.pin(*at));
        let frames: Vec<FrameNo> = plan.iter().map_while(|_| turn.cache.take_frame()).collect();
        found.iter().for_each(|at| turn.cache.unpin(*at));
        let complete = frames.len() == plan.len();
        if complete {
            plan.iter_mut().zip(frames).for_each(|(write, frame)| write.frame = frame);
        } else {
            frames.into_iter().for_each(|frame| turn.cache.give_frame(frame));
        }
        complete
    }

    /// A frame for a page that is in the cache, and stays there.
    fn take_frame_beside<M: Memory>(
        &mut self,
        at: PageNo,
        turn: &mut Turn<'_, M>,
    ) -> Option<FrameNo> {
        turn.cache.pin(at);
        let frame = turn.cache.take_frame();
        turn.cache.unpin(at);
        frame
    }

    /// Frames come back when write-back goes on, unless there could never be enough.
    fn wait_for_frames<T, M: Memory>(
        &mut self,
        pages: u64,
        turn: &mut Turn<'_, M>,
    ) -> Result<T, Stop> {
        if pages > u64::from(turn.cache.frames()) / 2 {
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
        plan: Vec<PageWrite>,
        turn: &mut Turn<'_, M>,
    ) -> u64 {
        let (mut at, mut filled) = (0, 0);
        for PageWrite { page, frame, hole } in plan {
            let (start, count) = part_of(page, offset, end);
            self.move_for_change((ino, page), frame, count == BLOCK_SIZE, turn);
            turn.memory.payload_to_frame(from, at, frame, start, count);
            self.tag(frame, (ino, page), turn);
            at += count;
            filled += u64::from(hole);
        }
        filled
    }

    /// The page lies in `new` from now on, where it may be changed (as a copy of what it was, unless the
    /// `whole` of it changes), and is dirty. The old frame stays what it is until the record is made: so
    /// the record decides whether the change happened. `new` is to be tagged once it is changed.
    fn move_for_change<M: Memory>(
        &mut self,
        at: PageNo,
        new: FrameNo,
        whole: bool,
        turn: &mut Turn<'_, M>,
    ) {
        let Some(page) = turn.cache.page(at) else {
            if !whole {
                turn.memory.frame_mut(new).fill(0);
            }
            return turn.cache.insert(at, new, PageState::Dirty);
        };
        if !whole {
            let copy = *turn.memory.frame(page.frame);
            *turn.memory.frame_mut(new) = copy;
        }
        let is_used = turn.cache.move_page(at, new);
        let after = if is_used { After::Untag } else { After::Release };
        turn.record.then(after(page.frame));
        turn.cache.mark_dirty(at);
    }

    /// Says in the table what is in the frame once the record is made, now that it is there.
    fn tag<M: Memory>(&mut self, frame: FrameNo, at: PageNo, turn: &mut Turn<'_, M>) {
        turn.table.set(frame, at, turn.log.end(), turn.memory);
    }

    /// Brings what truncation needs: the page that the new end cuts, and a frame if it is being
    /// written. `may_overtake`: as a kernel does it, which writes no mapped page back until it is answered.
    pub(crate) fn ready_to_truncate<M: Memory>(
        &mut self,
        ino: Ino,
        size: u64,
        may_overtake: bool,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let old = self.living(ino)?.attr.size;
        if size >= old {
            return Ok(());
        }
        let client = task.client().expect("a request");
        if !turn.plants(Plant::TruncateUnrecalled) {
            self.recall_pages(ino, Some(client), may_overtake, turn)?;
        }
        if !size.is_multiple_of(PAGE) {
            self.bring_cut_page((ino, size / PAGE), turn)?;
        }
        self.shards[&ino.shard()].extents(ino, size / PAGE, u64::MAX / PAGE, |_, _| {})
    }

    /// Sets the size of a file for which [`Self::ready_to_truncate`] has been done.
    pub(crate) fn truncate_now<M: Memory>(&mut self, ino: Ino, size: u64, turn: &mut Turn<'_, M>) {
        turn.leases.revoke(&LeaseKey::Attr(ino), turn.memory);
        self.step_truncate(ino, size, turn);
    }

    /// The part of truncation that the cache has in it. What the table says changes with the record.
    pub(crate) fn truncate_with_pages<M: Memory>(
        &mut self,
        ino: Ino,
        size: u64,
        now: Timestamp,
        turn: &mut Turn<'_, M>,
    ) {
        let old = self.shards[&ino.shard()].inode(ino).ok().flatten().map_or(0, |inode| inode.size);
        let mut unplaced = 0;
        if size < old {
            let (cut, at) = ((size % PAGE) as usize, (ino, size / PAGE));
            if cut > 0 && turn.cache.page(at).is_some() {
                let new = turn.cache.take_given_frame().expect("given when the page was brought");
                self.move_for_change(at, new, false, turn);
                turn.memory.frame_mut(new)[cut..].fill(0);
                self.tag(new, at, turn);
                self.behind.insert(ino);
            }
            unplaced = self.forget_pages(ino, size.div_ceil(PAGE)..=u64::MAX, turn);
        }
        self.truncate_extents(ino, size, now);
        let inode = self.inode_mut(ino);
        inode.blocks = inode.blocks.saturating_sub(unplaced);
    }

    /// Drops pages of a file. Returns how many of them had no place yet: they were counted as blocks when
    /// written.
    pub(crate) fn forget_pages<M: Memory>(
        &mut self,
        ino: Ino,
        pages: std::ops::RangeInclusive<u64>,
        turn: &mut Turn<'_, M>,
    ) -> u64 {
        let mut unplaced = 0;
        for (number, page) in turn.cache.drop_pages(ino, pages) {
            let after = if page.is_used_by_io() { After::Untag } else { After::Release };
            turn.record.then(after(page.frame));
            let placed = self.shards[&ino.shard()].placed(ino, number);
            unplaced += u64::from(page.state == PageState::Dirty && matches!(placed, Ok(None)));
        }
        unplaced
    }

    /// Brings the page that a file's new end cuts, so that what is behind it can be zeroed (a replayed
    /// truncation).
    pub(crate) fn cut_page<M: Memory>(
        &mut self,
        ino: Ino,
        size: u64,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let old = self.shards[&ino.shard()].inode(ino)?.map_or(0, |inode| inode.size);
        if size >= old || size.is_multiple_of(PAGE) {
            return Ok(());
        }
        self.bring_cut_page((ino, size / PAGE), turn)
    }

    /// Brings a page, and sees that there is a frame for the rest of it.
    fn bring_cut_page<M: Memory>(
        &mut self,
        at: PageNo,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        self.bring_pages(at.0, at.1..=at.1, turn)?;
        if turn.cache.page(at).is_some() {
            let frame = self.take_frame_beside(at, turn).ok_or(Stop::Wait(Wait::Frames))?;
            turn.cache.give_frame(frame);
        }
        Ok(())
    }

    /// Puts a page that a record holds into the cache. Returns whether it was not dirty before.
    pub(crate) fn put_page<M: Memory>(
        &mut self,
        at: PageNo,
        bytes: &[u8],
        turn: &mut Turn<'_, M>,
    ) -> Result<bool, Stop> {
        let found = turn.cache.page(at);
        let new = match found {
            Some(page) if matches!(page.state, PageState::Loading(_)) => None,
            Some(_) => self.take_frame_beside(at, turn),
            None => turn.cache.take_frame(),
        };
        let new = new.ok_or(Stop::Wait(Wait::Frames))?;
        self.move_for_change(at, new, true, turn);
        let frame = turn.memory.frame_mut(new);
        let len = bytes.len().min(frame.len());
        frame[..len].copy_from_slice(&bytes[..len]);
        frame[len..].fill(0);
        self.tag(new, at, turn);
        Ok(found.is_none_or(|page| page.state != PageState::Dirty))
    }

    /// Logs whatever of a file no step covers yet that takes the name of something else. What is told by a later record,
    /// or by another log that rests on it, is not there without that.
    pub(crate) fn cover_replacement<M: Memory>(
        &mut self,
        ino: Ino,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        if turn.plants(Plant::RenameBeforeData) {
            return Ok(());
        }
        // Places take what is kept for every dirty page; pages in line take more. A participant that waited for locks may find less
        // in the log than there was when it came.
        let has_room = turn.log_room(turn.cache.dirty_pages()) > INLINE_MAX;
        if !has_room && !turn.cache.uncovered_pages(ino).is_empty() {
            while self.place_pages_of(ino, turn)? {}
            return Ok(());
        }
        self.cover_file(ino, turn)?;
        // A record of its own: two files that are exchanged may not fit one.
        turn.seal();
        Ok(())
    }

    /// Logs whatever of the file no step covers yet: a few pages in line, more by giving them places.
    pub(crate) fn cover_file<M: Memory>(
        &mut self,
        ino: Ino,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let pages = turn.cache.uncovered_pages(ino);
        if pages.is_empty() && !self.behind.contains(ino) {
            return Ok(());
        }
        if pages.len() > INLINE_PAGES {
            while self.place_pages_of(ino, turn)? {}
            return Ok(());
        }
        let inline = |(page, frame): &(u64, FrameNo)| {
            let bytes = turn.memory.frame(*frame).as_slice().into();
            InlinePage { page: *page, bytes }
        };
        let inlined = pages.iter().map(inline).collect();
        pages.iter().for_each(|(page, _)| turn.cache.cover((ino, *page)));
        self.behind.remove(ino);
        let cover = self.cover_of(ino, true);
        self.step(Step::Inline { ino, pages: inlined, cover }, turn);
        Ok(())
    }
}
