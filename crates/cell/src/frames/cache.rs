//! The buffer cache: pages of file data in the cell's frames.
//!
//! A page is *loading*, *clean* or *dirty*; a clean or dirty one may also be *being written*. The
//! frame of a page that is being written or loaded belongs to that I/O too: a change moves the page
//! to another frame, and dropping the page leaves the frame to the I/O.
//!
//! Invariants: every frame is free, a page's, or an I/O's. Only clean pages are evicted, and only
//! if they are not pinned and no I/O uses them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use warren_base::{BlockNo, FixedState, Ino, ShardId};

use crate::event::{FrameNo, IoId};
use crate::frames::PageNo;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageState {
    Loading(IoId),
    Clean,
    Dirty,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) frame: FrameNo,
    pub(crate) state: PageState,
    pub(crate) writing: Option<IoId>,
    /// Changed since the last step of the log that names the page's place or contents. If so, the
    /// page is in the [`DirtySet`].
    uncovered: bool,
    /// The block to which the page could not be written, in its present state.
    pub(crate) failed: Option<BlockNo>,
    /// Written, but not flushed since, so the device may lose it.
    unflushed: bool,
    pins: u16,
    referenced: bool,
}

impl Page {
    fn is_evictable(&self) -> bool {
        let settled = self.writing.is_none() && !self.unflushed;
        self.state == PageState::Clean && settled && self.pins == 0
    }

    pub(crate) fn is_used_by_io(&self) -> bool {
        self.writing.is_some() || matches!(self.state, PageState::Loading(_))
    }
}

/// Frames that only tree nodes may use, so that a successor finds some that hold no dirty page.
const NODE_FRAMES_MIN: usize = 4;

/// The dirty pages, with a count for each shard (each page will need a block of its shard's space).
#[derive(Debug, Default)]
struct DirtySet {
    pages: BTreeSet<PageNo>,
    /// Those changed since the last step of the log that names the page's place or contents.
    uncovered: BTreeSet<PageNo>,
    by_shard: HashMap<ShardId, u64, FixedState>,
}

impl DirtySet {
    fn insert(&mut self, at: PageNo) {
        self.uncovered.insert(at);
        if self.pages.insert(at) {
            *self.by_shard.entry(at.0.shard()).or_default() += 1;
        }
    }

    fn remove(&mut self, at: PageNo) {
        self.uncovered.remove(&at);
        if self.pages.remove(&at) {
            *self.by_shard.get_mut(&at.0.shard()).expect("counted when it became dirty") -= 1;
        }
    }
}

#[derive(Debug)]
pub(crate) struct Cache {
    frames: u32,
    free: Vec<FrameNo>,
    files: HashMap<Ino, BTreeMap<u64, Page>, FixedState>,
    dirty: DirtySet,
    /// All pages, and some that are gone, in the order in which eviction examines them.
    clock: VecDeque<PageNo>,
    pinned: u32,
    /// Pages that were written and not flushed since, and the pages that the flush under way
    /// covers.
    unflushed: Vec<PageNo>,
    flushing: Vec<PageNo>,
}

impl Cache {
    pub(crate) fn new(frames: u32) -> Self {
        Self {
            frames,
            free: (0..frames).rev().map(FrameNo).collect(),
            files: HashMap::default(),
            dirty: DirtySet::default(),
            clock: VecDeque::new(),
            pinned: 0,
            unflushed: Vec::new(),
            flushing: Vec::new(),
        }
    }

    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    pub(crate) fn dirty_pages(&self) -> usize {
        self.dirty.pages.len()
    }

    /// Dirty pages of the files of one shard.
    pub(crate) fn dirty_pages_of(&self, shard: ShardId) -> u64 {
        self.dirty.by_shard.get(&shard).copied().unwrap_or(0)
    }

    pub(crate) fn pinned_pages(&self) -> u32 {
        self.pinned
    }

    /// The dirty pages of inodes `from` on, in order.
    pub(crate) fn dirty_from(&self, from: PageNo) -> impl Iterator<Item = PageNo> + '_ {
        self.dirty.pages.range(from..).copied()
    }

    pub(crate) fn page(&mut self, (ino, page): PageNo) -> Option<Page> {
        let page = self.files.get_mut(&ino)?.get_mut(&page)?;
        page.referenced = true;
        Some(*page)
    }

    fn get_mut(&mut self, (ino, page): PageNo) -> Option<&mut Page> {
        self.files.get_mut(&ino)?.get_mut(&page)
    }

    /// A free frame for a tree node. Some frames are kept for these, because write-back needs them.
    pub(crate) fn take_node_frame(&mut self) -> Option<FrameNo> {
        self.free.pop().or_else(|| self.evict_page())
    }

    /// A free frame, evicting the least recently used page if necessary.
    pub(crate) fn take_frame(&mut self) -> Option<FrameNo> {
        if self.free.len() > NODE_FRAMES_MIN {
            return self.free.pop();
        }
        self.evict_page()
    }

    fn evict_page(&mut self) -> Option<FrameNo> {
        // Twice around: the first round may only clear the reference bits.
        for _ in 0..2 * self.clock.len() {
            let at = self.clock.pop_front()?;
            let Some(page) = self.get_mut(at) else { continue };
            if page.is_evictable() && !page.referenced {
                let frame = page.frame;
                self.remove(at);
                return Some(frame);
            }
            page.referenced = false;
            self.clock.push_back(at);
        }
        None
    }

    pub(crate) fn give_frame(&mut self, frame: FrameNo) {
        self.free.push(frame);
    }

    /// The frame that was given back last, even if few are free: for the caller that has just given
    /// it.
    pub(crate) fn take_given_frame(&mut self) -> Option<FrameNo> {
        self.free.pop()
    }

    /// A page enters the cache.
    pub(crate) fn insert(&mut self, at: PageNo, frame: FrameNo, state: PageState) {
        let page = Page {
            frame,
            state,
            writing: None,
            uncovered: state == PageState::Dirty,
            failed: None,
            unflushed: false,
            pins: 0,
            referenced: true,
        };
        let old = self.files.entry(at.0).or_default().insert(at.1, page);
        assert!(old.is_none(), "page {at:?} is in the cache already");
        if state == PageState::Dirty {
            self.dirty.insert(at);
        }
        self.clock.push_back(at);
    }

    fn remove(&mut self, at: PageNo) -> Option<Page> {
        let file = self.files.get_mut(&at.0)?;
        let page = file.remove(&at.1)?;
        if file.is_empty() {
            self.files.remove(&at.0);
        }
        self.dirty.remove(at);
        self.pinned -= u32::from(page.pins);
        Some(page)
    }

    pub(crate) fn mark_dirty(&mut self, at: PageNo) {
        let page = self.get_mut(at).expect("only a page in the cache becomes dirty");
        page.failed = None;
        let was_covered = !std::mem::replace(&mut page.uncovered, true);
        if std::mem::replace(&mut page.state, PageState::Dirty) != PageState::Dirty {
            self.dirty.insert(at);
        } else if was_covered {
            self.dirty.uncovered.insert(at);
        }
    }

    /// The page moves to `frame`. Returns whether an I/O keeps its old frame; otherwise the caller
    /// owns the old frame.
    pub(crate) fn move_page(&mut self, at: PageNo, frame: FrameNo) -> bool {
        let page = self.get_mut(at).expect("only a page in the cache is moved");
        page.frame = frame;
        page.unflushed = false;
        page.writing.take().is_some()
    }

    /// A write of the page's present state begins.
    pub(crate) fn start_write(&mut self, at: PageNo, io: IoId) {
        let page = self.get_mut(at).expect("only a page in the cache is written");
        page.state = PageState::Clean;
        (page.uncovered, page.failed) = (false, None);
        page.writing = Some(io);
        self.dirty.remove(at);
    }

    /// The write of the page from `frame` is over. A page that could not be written to `block` is
    /// dirty again. Returns whether the frame's entry in the table is no longer needed.
    pub(crate) fn finish_write(
        &mut self,
        at: PageNo,
        frame: FrameNo,
        io: IoId,
        block: BlockNo,
        written: bool,
    ) -> bool {
        match self.get_mut(at) {
            Some(page) if page.writing == Some(io) && page.frame == frame => {
                page.writing = None;
                page.unflushed = written;
                if written {
                    self.unflushed.push(at);
                } else {
                    self.mark_dirty(at);
                    self.get_mut(at).expect("just seen").failed = Some(block);
                }
                written
            }
            _ => {
                self.give_frame(frame);
                false
            }
        }
    }

    /// Whether there are pages that could be evicted after a flush.
    pub(crate) fn has_unflushed(&self) -> bool {
        !self.unflushed.is_empty()
    }

    /// Whether a flush is worth it: many pages could be evicted after it, or frames are wanted.
    pub(crate) fn wants_flush(&self, frames_wanted: bool) -> bool {
        let many = if frames_wanted { 0 } else { self.frames as usize / 8 };
        self.unflushed.len() > many
    }

    /// A flush begins. It covers every page that was written until now.
    pub(crate) fn begin_flush(&mut self) {
        self.flushing.append(&mut self.unflushed);
    }

    /// The flush is over. If it failed, pages that were written before or during it may be lost.
    /// These pages are dirty again.
    pub(crate) fn end_flush(&mut self, durable: bool) -> Vec<(PageNo, FrameNo)> {
        let mut again = Vec::new();
        if !durable {
            self.flushing.append(&mut self.unflushed);
        }
        for at in std::mem::take(&mut self.flushing) {
            let Some(page) = self.get_mut(at).filter(|page| page.unflushed) else { continue };
            page.unflushed = false;
            if !durable && page.state == PageState::Clean && page.writing.is_none() {
                again.push((at, page.frame));
                self.mark_dirty(at);
            }
        }
        again
    }

    /// Takes over a predecessor's frames, of which some are in use.
    pub(crate) fn keep_frames(&mut self, is_used: impl Fn(FrameNo) -> bool) {
        self.free.retain(|frame| !is_used(*frame));
    }

    /// Dirty pages of a file that no step of the log covers.
    pub(crate) fn uncovered_pages(&self, ino: Ino) -> Vec<(u64, FrameNo)> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let pages = self.dirty.uncovered.range((ino, 0)..=(ino, u64::MAX));
        pages.map(|(_, number)| (*number, file[number].frame)).collect()
    }

    /// The first file with uncovered pages.
    pub(crate) fn first_uncovered(&self) -> Option<Ino> {
        self.dirty.uncovered.first().map(|(ino, _)| *ino)
    }

    /// A step of the log names the page's contents.
    pub(crate) fn cover(&mut self, at: PageNo) {
        if let Some(page) = self.get_mut(at) {
            page.uncovered = false;
        }
        self.dirty.uncovered.remove(&at);
    }

    /// The read of the page into `frame` is over. A page that could not be read is dropped.
    pub(crate) fn finish_load(&mut self, at: PageNo, frame: FrameNo, io: IoId, loaded: bool) {
        match self.get_mut(at) {
            Some(page) if page.state == PageState::Loading(io) => {
                page.state = PageState::Clean;
                if !loaded {
                    self.remove(at);
                    self.give_frame(frame);
                }
            }
            _ => self.give_frame(frame),
        }
    }

    /// The files of the shard that have pages here, in order.
    pub(crate) fn files_of(&self, shard: ShardId) -> BTreeSet<Ino> {
        self.files.keys().copied().filter(|ino| ino.shard() == shard).collect()
    }

    /// Drops pages of `ino`, including dirty ones. Returns those that may have an entry in the
    /// table. The caller owns the frames that no I/O uses.
    pub(crate) fn drop_pages(
        &mut self,
        ino: Ino,
        pages: std::ops::RangeInclusive<u64>,
    ) -> Vec<(u64, Page)> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let doomed: Vec<u64> = file.range(pages).map(|(page, _)| *page).collect();
        let mut dropped = Vec::new();
        for number in doomed {
            let page = self.remove((ino, number)).expect("just listed");
            if page.state == PageState::Dirty || page.writing.is_some() {
                dropped.push((number, page));
            } else if !page.is_used_by_io() {
                self.give_frame(page.frame);
            }
        }
        dropped
    }

    /// Keeps the page until [`Self::unpin`].
    pub(crate) fn pin(&mut self, at: PageNo) {
        self.get_mut(at).expect("only a page in the cache is pinned").pins += 1;
        self.pinned += 1;
    }

    pub(crate) fn unpin(&mut self, at: PageNo) {
        if let Some(page) = self.get_mut(at)
            && page.pins > 0
        {
            page.pins -= 1;
            self.pinned -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino::ROOT;

    #[test]
    fn pinned_and_dirty_pages_stay() {
        let mut cache = Cache::new(NODE_FRAMES_MIN as u32 + 3);
        for (page, state) in [(0, PageState::Dirty), (1, PageState::Clean), (2, PageState::Clean)] {
            let frame = cache.take_frame().unwrap();
            cache.insert((FILE, page), frame, state);
        }
        cache.pin((FILE, 1));
        assert!(cache.take_frame().is_some());
        assert!(cache.page((FILE, 2)).is_none());
        assert_eq!(cache.take_frame(), None);
        cache.unpin((FILE, 1));
        assert!(cache.take_frame().is_some());
        assert_eq!(cache.take_frame(), None);
    }

    #[test]
    fn a_page_changed_while_it_is_written_leaves_its_frame_to_the_write() {
        let mut cache = Cache::new(NODE_FRAMES_MIN as u32 + 2);
        let (at, io) = ((FILE, 0), IoId(1));
        let old = cache.take_frame().unwrap();
        cache.insert(at, old, PageState::Dirty);
        cache.start_write(at, io);
        let new = cache.take_frame().unwrap();
        cache.move_page(at, new);
        cache.mark_dirty(at);
        assert_eq!(cache.take_frame(), None);
        cache.finish_write(at, old, io, BlockNo(1), true);
        assert_eq!(cache.take_frame(), Some(old));
        assert_eq!(cache.page(at).unwrap().state, PageState::Dirty);
    }

    #[test]
    fn what_no_step_covers_is_what_changed_since_the_last_one_did() {
        let mut cache = Cache::new(NODE_FRAMES_MIN as u32 + 3);
        let other = Ino(FILE.0 + 1);
        let frames = [(FILE, 7), (other, 0), (FILE, 3)].map(|at| {
            let frame = cache.take_frame().unwrap();
            cache.insert(at, frame, PageState::Dirty);
            frame
        });
        assert_eq!(cache.uncovered_pages(FILE), [(3, frames[2]), (7, frames[0])]);
        cache.cover((FILE, 3));
        assert_eq!(cache.uncovered_pages(FILE), [(7, frames[0])]);
        cache.mark_dirty((FILE, 3));
        cache.start_write((FILE, 7), IoId(1));
        assert_eq!(cache.uncovered_pages(FILE), [(3, frames[2])]);
        cache.finish_write((FILE, 7), frames[0], IoId(1), BlockNo(9), false);
        assert_eq!(cache.uncovered_pages(FILE), [(3, frames[2]), (7, frames[0])]);
        cache.drop_pages(FILE, 0..=u64::MAX);
        assert!(cache.uncovered_pages(FILE).is_empty());
        assert_eq!(cache.uncovered_pages(other), [(0, frames[1])]);
    }

    #[test]
    fn a_page_dropped_while_it_is_read_leaves_its_frame_to_the_read() {
        let mut cache = Cache::new(NODE_FRAMES_MIN as u32 + 1);
        let (at, io) = ((FILE, 0), IoId(1));
        let frame = cache.take_frame().unwrap();
        cache.insert(at, frame, PageState::Loading(io));
        assert!(cache.drop_pages(FILE, 0..=u64::MAX).is_empty());
        assert_eq!(cache.take_frame(), None);
        cache.finish_load(at, frame, io, true);
        assert_eq!(cache.take_frame(), Some(frame));
    }
}
