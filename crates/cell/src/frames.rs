//! The cell's frames: those of the buffer cache, their table, and the I/O that fills and empties
//! them.
//!
//! A shard owns its pages ([`crate::shard::pages`]). What the pages of all shards share is here:
//! the frames that are free, the order of eviction, the flush under way, and how many pages are
//! dirty or pinned. A page names its frame, and the frame names its page. Eviction takes the frame
//! from the page, also if the page's shard is out of reach: a page counts only while its frame
//! names it. The pages that lost their frames are removed from their shards at the end of the turn.
//!
//! Invariants: every frame is free, a page's, an I/O's or a caller's. The frames of pages form one
//! ring, the order of eviction. No frame is evicted that its page keeps, or that was not flushed
//! since it was written.

pub(crate) mod cache;
pub(crate) mod io;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod test_memory;

use std::collections::VecDeque;

use warren_base::{BlockNo, Ino};

use crate::event::FrameNo;

/// A page of a file: the inode and the page's number in it.
pub(crate) type PageNo = (Ino, u64);

/// The place of a page of a file on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub(crate) block: BlockNo,
    pub(crate) checksum: u32,
}

/// Frames that only tree nodes may use, so that a successor finds some that it need not keep.
pub(crate) const NODE_FRAMES_MIN: usize = 4;

/// Stands for the page of a frame that holds none: there is no inode 0.
const NO_PAGE: PageNo = (Ino(0), 0);

/// A frame, and its place in the order of eviction if it holds a page.
#[derive(Clone, Copy, Debug)]
struct Slot {
    page: PageNo,
    before: FrameNo,
    after: FrameNo,
    /// Its page must stay: it is dirty or pinned, or an I/O uses it.
    is_kept: bool,
    is_referenced: bool,
    /// Whether the last write from it is durable.
    is_flushed: bool,
    /// The number of that write, as far as it fits.
    write: u32,
}

/// A frame that holds no page.
const FREE: Slot = Slot {
    page: NO_PAGE,
    before: FrameNo(0),
    after: FrameNo(0),
    is_kept: false,
    is_referenced: false,
    is_flushed: true,
    write: 0,
};

/// The frames of the pages of all shards.
#[derive(Debug)]
pub(crate) struct Frames {
    count: u32,
    /// The frames that have held a page, in order of their numbers. A log to replay may come with
    /// millions of frames, of which few are needed.
    slots: Vec<Slot>,
    /// Frames that were given back, and the first of those that were never taken.
    given_back: Vec<FrameNo>,
    untouched: u32,
    /// The frame that eviction examines next, and how many are in the ring.
    hand: FrameNo,
    in_ring: usize,
    /// Pages that were evicted and that their shards still name.
    evicted: Vec<PageNo>,
    dirty: usize,
    pinned: u32,
    /// Frames that were written and not flushed since. Their writes are numbered, in order, from
    /// `first_unflushed` on. Some frames have other contents by now.
    unflushed: VecDeque<FrameNo>,
    first_unflushed: u64,
    /// The first write that the flush under way, or the last one, does not cover.
    flushing: u64,
}

impl Frames {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            count,
            slots: Vec::with_capacity(count as usize),
            given_back: Vec::new(),
            untouched: 0,
            hand: FrameNo(0),
            in_ring: 0,
            evicted: Vec::new(),
            dirty: 0,
            pinned: 0,
            unflushed: VecDeque::new(),
            first_unflushed: 0,
            flushing: 0,
        }
    }

    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Frames that are free.
    const fn free(&self) -> usize {
        self.given_back.len() + (self.count - self.untouched) as usize
    }

    fn pop_free(&mut self) -> Option<FrameNo> {
        let given = self.given_back.pop();
        if given.is_none() && self.untouched < self.count {
            self.untouched += 1;
            return Some(FrameNo(self.untouched - 1));
        }
        given
    }

    /// Dirty pages of all shards.
    pub(crate) const fn dirty_pages(&self) -> usize {
        self.dirty
    }

    /// Pins of pages of all shards.
    pub(crate) const fn pinned_pages(&self) -> u32 {
        self.pinned
    }

    fn slot(&mut self, frame: FrameNo) -> &mut Slot {
        &mut self.slots[frame.0 as usize]
    }

    /// A free frame for a tree node. Some frames are kept for these, because write-back needs them.
    pub(crate) fn take_for_node(&mut self) -> Option<FrameNo> {
        self.pop_free().or_else(|| self.evict())
    }

    /// A free frame, evicting the least recently used page if necessary.
    pub(crate) fn take(&mut self) -> Option<FrameNo> {
        if self.free() > NODE_FRAMES_MIN {
            return self.pop_free();
        }
        self.evict()
    }

    /// Whether so many frames can be taken without evicting a page.
    pub(crate) const fn has_free(&self, count: usize) -> bool {
        self.free() >= NODE_FRAMES_MIN + count
    }

    pub(crate) fn give(&mut self, frame: FrameNo) {
        self.given_back.push(frame);
    }

    /// The frame that was given back last, even if few are free: for the caller that has just given
    /// it.
    pub(crate) fn take_given(&mut self) -> Option<FrameNo> {
        self.given_back.pop()
    }

    /// Takes over a predecessor's frames, of which some are in use.
    pub(crate) fn keep_used(&mut self, is_used: impl Fn(FrameNo) -> bool) {
        let untouched = (self.untouched..self.count).rev().map(FrameNo);
        self.untouched = self.count;
        self.given_back.splice(0..0, untouched);
        self.given_back.retain(|frame| !is_used(*frame));
    }

    fn evict(&mut self) -> Option<FrameNo> {
        // Twice around: the first round may only clear the reference bits.
        for _ in 0..2 * self.in_ring {
            let frame = self.hand;
            let slot = self.slot(frame);
            let is_settled = !slot.is_kept && slot.is_flushed;
            if is_settled && !slot.is_referenced {
                let page = slot.page;
                self.evicted.push(page);
                self.vacate(frame, page);
                return Some(frame);
            }
            slot.is_referenced = false;
            self.hand = slot.after;
        }
        None
    }

    /// A page that was evicted and that its shard has to remove.
    #[inline]
    pub(crate) fn next_evicted(&mut self) -> Option<PageNo> {
        self.evicted.pop()
    }

    /// A page gets the frame, and is examined last.
    pub(crate) fn occupy(&mut self, frame: FrameNo, page: PageNo, is_kept: bool) {
        let neighbours = match self.in_ring {
            0 => (frame, frame),
            _ => (self.slot(self.hand).before, self.hand),
        };
        self.enter(frame, page, neighbours, is_kept);
        if self.in_ring == 0 {
            self.hand = frame;
        }
        self.in_ring += 1;
    }

    /// A frame enters the ring between two others.
    fn enter(
        &mut self,
        frame: FrameNo,
        page: PageNo,
        (before, after): (FrameNo, FrameNo),
        is_kept: bool,
    ) {
        if self.slots.len() <= frame.0 as usize {
            self.slots.resize(frame.0 as usize + 1, FREE);
        }
        let slot = self.slot(frame);
        assert_eq!(slot.page, NO_PAGE, "a frame holds one page");
        *slot = Slot { page, before, after, is_kept, is_referenced: true, ..FREE };
        self.slot(before).after = frame;
        self.slot(after).before = frame;
    }

    /// The page that the frame held has left it. Returns the neighbours.
    fn clear(&mut self, frame: FrameNo, page: PageNo) -> (FrameNo, FrameNo) {
        let slot = self.slot(frame);
        assert_eq!(slot.page, page, "a page leaves its own frame");
        slot.page = NO_PAGE;
        slot.is_flushed = true;
        (slot.before, slot.after)
    }

    /// The page moves to another frame to be changed there, and keeps its place in the order. The
    /// old frame becomes the caller's.
    pub(crate) fn replace(&mut self, old: FrameNo, new: FrameNo, page: PageNo) {
        let neighbours = self.clear(old, page);
        let neighbours = if self.in_ring == 1 { (new, new) } else { neighbours };
        self.enter(new, page, neighbours, true);
        if self.hand == old {
            self.hand = new;
        }
    }

    /// The page leaves its frame, which becomes the caller's.
    pub(crate) fn vacate(&mut self, frame: FrameNo, page: PageNo) {
        let (before, after) = self.clear(frame, page);
        self.slot(before).after = after;
        self.slot(after).before = before;
        if self.hand == frame {
            self.hand = after;
        }
        self.in_ring -= 1;
    }

    /// Whether the frame holds the page, which is used now.
    #[inline]
    pub(crate) fn touch(&mut self, frame: FrameNo, page: PageNo) -> bool {
        let Some(slot) = self.slots.get_mut(frame.0 as usize) else { return false };
        let is_there = slot.page == page;
        slot.is_referenced |= is_there;
        is_there
    }

    pub(crate) fn holds(&self, frame: FrameNo, page: PageNo) -> bool {
        self.slots.get(frame.0 as usize).is_some_and(|slot| slot.page == page)
    }

    /// Whether the page must stay in its frame.
    pub(crate) fn keep(&mut self, frame: FrameNo, page: PageNo, is_kept: bool) {
        let slot = self.slot(frame);
        assert_eq!(slot.page, page, "only a page in its frame is kept there");
        slot.is_kept = is_kept;
    }

    pub(crate) fn page_is_dirty(&mut self) {
        self.dirty += 1;
    }

    pub(crate) fn page_is_clean(&mut self) {
        self.dirty -= 1;
    }

    pub(crate) fn pin(&mut self) {
        self.pinned += 1;
    }

    pub(crate) fn unpin(&mut self, pins: u16) {
        self.pinned -= u32::from(pins);
    }

    /// The page in the frame was written.
    pub(crate) fn written(&mut self, frame: FrameNo) {
        let write = self.next_write() as u32;
        let slot = self.slot(frame);
        (slot.is_flushed, slot.write) = (false, write);
        self.unflushed.push_back(frame);
    }

    /// The number of the next write that ends. A flush that begins now covers the writes before it.
    pub(crate) fn next_write(&self) -> u64 {
        self.first_unflushed + self.unflushed.len() as u64
    }

    /// Whether the last write from the frame is durable.
    pub(crate) fn is_flushed(&self, frame: FrameNo) -> bool {
        self.slots.get(frame.0 as usize).is_none_or(|slot| slot.is_flushed)
    }

    /// Writes that no flush covers.
    fn uncovered_writes(&self) -> u64 {
        self.next_write() - self.flushing.max(self.first_unflushed)
    }

    /// Whether there are pages that could be evicted after a flush.
    pub(crate) fn has_unflushed(&self) -> bool {
        self.uncovered_writes() > 0
    }

    /// Whether a flush is worth it: many pages could be evicted after it, or frames are wanted.
    pub(crate) fn wants_flush(&self, frames_wanted: bool) -> bool {
        let many = if frames_wanted { 0 } else { self.count / 8 };
        self.uncovered_writes() > u64::from(many)
    }

    /// A flush begins. It covers every page that was written until now.
    pub(crate) fn begin_flush(&mut self) {
        self.flushing = self.next_write();
    }

    /// The flush under way is over. Returns the frames whose pages it has made durable.
    pub(crate) fn end_flush(&mut self) -> Vec<FrameNo> {
        self.flushed(self.flushing)
    }

    /// Writes with lower numbers are durable. Returns the frames whose pages became so.
    pub(crate) fn flushed(&mut self, end: u64) -> Vec<FrameNo> {
        let mut flushed = Vec::new();
        while self.first_unflushed < end
            && let Some(frame) = self.unflushed.pop_front()
        {
            let write = self.first_unflushed as u32;
            self.first_unflushed += 1;
            let slot = self.slot(frame);
            if !slot.is_flushed && slot.write == write {
                slot.is_flushed = true;
                flushed.push(frame);
            }
        }
        flushed
    }

    /// A flush has failed. Returns the pages that were written before or during it: they may be
    /// lost, so their shards have to write them again.
    pub(crate) fn lose_unflushed(&mut self) -> Vec<(PageNo, FrameNo)> {
        let lost = self.flushed(self.next_write());
        lost.into_iter().map(|frame| (self.slot(frame).page, frame)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u32 = NODE_FRAMES_MIN as u32 + 4;
    const FILE: Ino = Ino::ROOT;

    /// Frames that hold these clean pages, in this order.
    fn with_pages(pages: &[u64]) -> Frames {
        let mut frames = Frames::new(COUNT);
        for page in pages {
            let frame = frames.take().unwrap();
            frames.occupy(frame, (FILE, *page), false);
        }
        frames
    }

    fn evicted(frames: &mut Frames) -> Vec<u64> {
        while frames.take().is_some() {}
        std::mem::take(&mut frames.evicted).into_iter().map(|(_, page)| page).collect()
    }

    #[test]
    fn frames_cost_memory_only_once_they_hold_a_page() {
        let mut frames = Frames::new(1 << 24);
        assert_eq!(frames.take(), Some(FrameNo(0)));
        assert_eq!(frames.take(), Some(FrameNo(1)));
        frames.occupy(FrameNo(1), (FILE, 0), false);
        assert_eq!((frames.slots.len(), frames.given_back.len()), (2, 0));
        assert!(!frames.holds(FrameNo(9), (FILE, 0)));
        assert!(!frames.touch(FrameNo(9), (FILE, 0)));
        frames.give(FrameNo(0));
        assert_eq!(frames.free(), (1 << 24) - 1);
        assert_eq!(frames.take(), Some(FrameNo(0)));
    }

    #[test]
    fn a_predecessors_frames_are_not_free() {
        let mut frames = Frames::new(COUNT);
        let taken = frames.take().unwrap();
        frames.keep_used(|frame| frame.0 % 2 == 1);
        let rest: Vec<_> = std::iter::from_fn(|| frames.pop_free()).collect();
        assert_eq!(taken, FrameNo(0));
        assert_eq!(rest, [FrameNo(2), FrameNo(4), FrameNo(6)]);
    }

    #[test]
    fn the_page_that_was_not_used_for_longest_is_evicted_first() {
        let mut frames = with_pages(&[0, 1, 2, 3]);
        assert_eq!(frames.evict(), Some(FrameNo(0)));
        // The first round has cleared the reference bits.
        assert!(frames.touch(FrameNo(1), (FILE, 1)));
        assert!(!frames.touch(FrameNo(0), (FILE, 0)));
        frames.keep(FrameNo(2), (FILE, 2), true);
        assert_eq!(evicted(&mut frames), [0, 3, 1]);
        frames.keep(FrameNo(2), (FILE, 2), false);
        assert_eq!(evicted(&mut frames), [2]);
        assert_eq!(frames.in_ring, 0);
    }

    #[test]
    fn a_page_that_moves_keeps_its_place_in_the_order() {
        for moved in 0..3 {
            let mut frames = with_pages(&[0, 1, 2]);
            let new = frames.pop_free().unwrap();
            frames.replace(FrameNo(moved), new, (FILE, u64::from(moved)));
            assert!(frames.holds(new, (FILE, u64::from(moved))));
            assert!(!frames.holds(FrameNo(moved), (FILE, u64::from(moved))));
            frames.keep(new, (FILE, u64::from(moved)), false);
            assert_eq!(evicted(&mut frames), [0, 1, 2]);
        }
        let mut frames = with_pages(&[7]);
        frames.replace(FrameNo(0), FrameNo(1), (FILE, 7));
        frames.vacate(FrameNo(1), (FILE, 7));
        frames.occupy(FrameNo(0), (FILE, 8), false);
        frames.occupy(FrameNo(2), (FILE, 9), false);
        assert_eq!(frames.evict(), Some(FrameNo(0)));
        assert_eq!(frames.evict(), Some(FrameNo(2)));
        assert_eq!(frames.evict(), None);
    }

    #[test]
    fn a_flush_covers_what_was_written_before_it() {
        let mut frames = with_pages(&[0, 1, 2, 3]);
        frames.written(FrameNo(0));
        frames.written(FrameNo(1));
        frames.begin_flush();
        // The page is changed and written again, in another frame and then in the same.
        frames.replace(FrameNo(1), FrameNo(4), (FILE, 1));
        frames.replace(FrameNo(4), FrameNo(1), (FILE, 1));
        frames.keep(FrameNo(1), (FILE, 1), false);
        frames.written(FrameNo(1));
        frames.written(FrameNo(2));
        assert_eq!(frames.end_flush(), [FrameNo(0)]);
        assert_eq!(evicted(&mut frames), [0, 3]);
        frames.begin_flush();
        let lost = [((FILE, 1), FrameNo(1)), ((FILE, 2), FrameNo(2))];
        assert_eq!(frames.lose_unflushed(), lost);
        assert!(!frames.has_unflushed());
    }

    #[test]
    fn a_failed_flush_loses_what_was_written_while_it_was_under_way_too() {
        let mut frames = with_pages(&[0, 1]);
        frames.written(FrameNo(0));
        frames.begin_flush();
        frames.written(FrameNo(1));
        let lost = [((FILE, 0), FrameNo(0)), ((FILE, 1), FrameNo(1))];
        assert_eq!(frames.lose_unflushed(), lost);
    }

    #[test]
    fn what_is_durable_before_a_flush_ends_is_not_lost_with_it() {
        let mut frames = with_pages(&[0, 1]);
        frames.written(FrameNo(0));
        let checkpoint = frames.next_write();
        frames.written(FrameNo(1));
        frames.begin_flush();
        assert!(!frames.has_unflushed());
        assert_eq!(frames.flushed(checkpoint), [FrameNo(0)]);
        assert!(frames.is_flushed(FrameNo(0)) && !frames.is_flushed(FrameNo(1)));
        assert_eq!(frames.lose_unflushed(), [((FILE, 1), FrameNo(1))]);
        assert!(frames.end_flush().is_empty());
        frames.written(FrameNo(0));
        assert!(frames.wants_flush(true));
        frames.begin_flush();
        assert_eq!(frames.end_flush(), [FrameNo(0)]);
    }
}
