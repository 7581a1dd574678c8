//! The pages of a shard's files that are in the buffer cache.
//!
//! A page is *loading*, *clean* or *dirty*; a clean or dirty one may also be *being written*. The
//! frame of a page that is being written or loaded belongs to that I/O too: a change moves the page
//! to another frame, and dropping the page leaves the frame to the I/O.
//!
//! The frames are shared ([`Frames`]). A page that is clean, not pinned and used by no I/O may lose
//! its frame at any time. It counts no more from then on, and [`Pages::forget`] removes it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use hashbrown::HashMap;
use warren_base::{BlockNo, FixedState, Ino};

use crate::event::{FrameNo, IoId};
use crate::frames::{Frames, PageNo};

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
    /// page is in [`Pages::uncovered`].
    uncovered: bool,
    /// The block to which the page could not be written, in its present state.
    pub(crate) failed: Option<BlockNo>,
    pins: u16,
}

impl Page {
    fn is_kept(&self) -> bool {
        self.state != PageState::Clean || self.writing.is_some() || self.pins > 0
    }

    pub(crate) fn is_used_by_io(&self) -> bool {
        self.writing.is_some() || matches!(self.state, PageState::Loading(_))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Some of them have lost their frames.
    files: HashMap<Ino, BTreeMap<u64, Page>, FixedState>,
    /// Each of them will need a block of the shard's space.
    dirty: BTreeSet<PageNo>,
    /// The dirty pages that changed since the last step of the log that names the page's place or
    /// contents.
    uncovered: BTreeSet<PageNo>,
}

impl Pages {
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// The dirty pages from this one on, in order.
    pub(crate) fn dirty_from(&self, from: PageNo) -> impl Iterator<Item = PageNo> + '_ {
        self.dirty.range(from..).copied()
    }

    /// The first dirty page.
    pub(crate) fn first_dirty(&self) -> Option<PageNo> {
        self.dirty.first().copied()
    }

    /// The page, if it is in the cache. It is used now.
    pub(crate) fn page(&self, (ino, number): PageNo, frames: &mut Frames) -> Option<Page> {
        let page = self.files.get(&ino)?.get(&number)?;
        if frames.touch(page.frame, (ino, number)) { Some(*page) } else { None }
    }

    fn get_mut(&mut self, (ino, page): PageNo) -> Option<&mut Page> {
        self.files.get_mut(&ino)?.get_mut(&page)
    }

    /// A page enters the cache.
    pub(crate) fn insert(
        &mut self,
        at: PageNo,
        frame: FrameNo,
        state: PageState,
        frames: &mut Frames,
    ) {
        let is_dirty = state == PageState::Dirty;
        let page = Page { frame, state, writing: None, uncovered: is_dirty, failed: None, pins: 0 };
        let old = self.files.entry(at.0).or_default().insert(at.1, page);
        let is_there = old.is_some_and(|old| frames.holds(old.frame, at));
        assert!(!is_there, "page {at:?} is in the cache already");
        frames.occupy(frame, at, page.is_kept());
        if is_dirty {
            self.add_dirty(at, frames);
        }
    }

    /// A page becomes dirty.
    fn add_dirty(&mut self, at: PageNo, frames: &mut Frames) {
        self.uncovered.insert(at);
        if self.dirty.insert(at) {
            frames.page_is_dirty();
        }
    }

    /// A page is dirty no more, if it was.
    fn remove_dirty(&mut self, at: PageNo, frames: &mut Frames) {
        self.uncovered.remove(&at);
        if self.dirty.remove(&at) {
            frames.page_is_clean();
        }
    }

    fn detach(&mut self, at: PageNo) -> Option<Page> {
        let file = self.files.get_mut(&at.0)?;
        let page = file.remove(&at.1)?;
        if file.is_empty() {
            self.files.remove(&at.0);
        }
        Some(page)
    }

    /// Removes a page that was evicted, unless it came back.
    pub(crate) fn forget(&mut self, at: PageNo, frames: &Frames) {
        if self.get_mut(at).is_some_and(|page| !frames.holds(page.frame, at)) {
            self.detach(at);
        }
    }

    /// Removes a page. `None` if it was evicted.
    fn remove(&mut self, at: PageNo, frames: &mut Frames) -> Option<Page> {
        let page = self.detach(at)?;
        if !frames.holds(page.frame, at) {
            return None;
        }
        frames.vacate(page.frame, at);
        frames.unpin(page.pins);
        self.remove_dirty(at, frames);
        Some(page)
    }

    pub(crate) fn mark_dirty(&mut self, at: PageNo, frames: &mut Frames) {
        let page = self.get_mut(at).expect("only a page in the cache becomes dirty");
        page.failed = None;
        let was_covered = !std::mem::replace(&mut page.uncovered, true);
        if std::mem::replace(&mut page.state, PageState::Dirty) != PageState::Dirty {
            frames.keep(page.frame, at, true);
            self.add_dirty(at, frames);
        } else if was_covered {
            self.uncovered.insert(at);
        }
    }

    /// The page moves to `frame`, where it is changed. Returns whether an I/O keeps its old frame;
    /// otherwise the caller owns the old frame. The page is kept until it is marked dirty.
    pub(crate) fn move_page(&mut self, at: PageNo, frame: FrameNo, frames: &mut Frames) -> bool {
        let page = self.get_mut(at).expect("only a page in the cache is moved");
        frames.replace(page.frame, frame, at);
        page.frame = frame;
        page.writing.take().is_some()
    }

    /// A write of the page's present state begins.
    pub(crate) fn start_write(&mut self, at: PageNo, io: IoId, frames: &mut Frames) {
        let page = self.get_mut(at).expect("only a page in the cache is written");
        page.state = PageState::Clean;
        (page.uncovered, page.failed) = (false, None);
        page.writing = Some(io);
        frames.keep(page.frame, at, true);
        self.remove_dirty(at, frames);
    }

    /// The write of the page from `frame` is over. A page that could not be written to `block` is
    /// dirty again.
    pub(crate) fn finish_write(
        &mut self,
        (at, frame, block): (PageNo, FrameNo, BlockNo),
        io: IoId,
        written: bool,
        frames: &mut Frames,
    ) {
        match self.get_mut(at) {
            Some(page) if page.writing == Some(io) && page.frame == frame => {
                page.writing = None;
                if written {
                    frames.keep(frame, at, page.is_kept());
                    frames.written(frame);
                } else {
                    self.mark_dirty(at, frames);
                    self.get_mut(at).expect("just seen").failed = Some(block);
                }
            }
            _ => frames.give(frame),
        }
    }

    /// The read of the page into `frame` is over. A page that could not be read is dropped. Returns
    /// whether the file still had the page.
    pub(crate) fn finish_load(
        &mut self,
        (at, frame): (PageNo, FrameNo),
        io: IoId,
        loaded: bool,
        frames: &mut Frames,
    ) -> bool {
        match self.get_mut(at) {
            Some(page) if page.state == PageState::Loading(io) => {
                page.state = PageState::Clean;
                frames.keep(frame, at, page.is_kept());
                if !loaded {
                    self.remove(at, frames);
                    frames.give(frame);
                }
                true
            }
            _ => {
                frames.give(frame);
                false
            }
        }
    }

    /// Whether each of these pages that is in the cache is durable in its place.
    pub(crate) fn are_durable(
        &self,
        ino: Ino,
        pages: RangeInclusive<u64>,
        frames: &Frames,
    ) -> bool {
        let Some(file) = self.files.get(&ino) else { return true };
        file.range(pages).all(|(number, page)| {
            let is_settled = page.state != PageState::Dirty
                && page.writing.is_none()
                && frames.is_flushed(page.frame);
            is_settled || !frames.holds(page.frame, (ino, *number))
        })
    }

    /// The first `most` of the dirty pages of a file that no step of the log covers.
    pub(crate) fn uncovered_pages(&self, ino: Ino, most: usize) -> Vec<(u64, FrameNo)> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let pages = self.uncovered.range((ino, 0)..=(ino, u64::MAX));
        pages.take(most).map(|(_, number)| (*number, file[number].frame)).collect()
    }

    /// Whether a file has dirty pages that no step of the log covers.
    pub(crate) fn has_uncovered(&self, ino: Ino) -> bool {
        self.uncovered.range((ino, 0)..=(ino, u64::MAX)).next().is_some()
    }

    /// The first file with uncovered pages.
    pub(crate) fn first_uncovered(&self) -> Option<Ino> {
        self.uncovered.first().map(|(ino, _)| *ino)
    }

    /// A step of the log names the page's contents.
    pub(crate) fn cover(&mut self, at: PageNo) {
        if let Some(page) = self.get_mut(at) {
            page.uncovered = false;
        }
        self.uncovered.remove(&at);
    }

    /// Drops pages of `ino`, including dirty ones. Returns those that may have an entry in the
    /// table: those that are not durable. The caller owns the frames that no I/O uses.
    pub(crate) fn drop_pages(
        &mut self,
        ino: Ino,
        pages: RangeInclusive<u64>,
        frames: &mut Frames,
    ) -> Vec<(u64, Page)> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let doomed = file.range(pages).map(|(number, page)| (*number, page.frame));
        let doomed: Vec<(u64, FrameNo)> = doomed.collect();
        let mut dropped = Vec::new();
        for (number, frame) in doomed {
            let is_flushed = frames.is_flushed(frame);
            let Some(page) = self.remove((ino, number), frames) else { continue };
            if page.state == PageState::Dirty || page.writing.is_some() || !is_flushed {
                dropped.push((number, page));
            } else if !page.is_used_by_io() {
                frames.give(page.frame);
            }
        }
        dropped
    }

    /// The same for all pages of the shard.
    pub(crate) fn drop_all(&mut self, frames: &mut Frames) -> Vec<Page> {
        let files: BTreeSet<Ino> = self.files.keys().copied().collect();
        let dropped = files.into_iter().flat_map(|ino| self.drop_pages(ino, 0..=u64::MAX, frames));
        dropped.map(|(_, page)| page).collect()
    }

    /// Keeps the page until [`Self::unpin`]. Returns whether it is in the cache.
    pub(crate) fn pin(&mut self, at: PageNo, frames: &mut Frames) -> bool {
        let Some(page) = self.get_mut(at) else { return false };
        let is_there = frames.touch(page.frame, at);
        if is_there {
            page.pins += 1;
            frames.pin();
            frames.keep(page.frame, at, true);
        }
        is_there
    }

    /// Ends a pin. The page may have been dropped meanwhile, or dropped and read again.
    pub(crate) fn unpin(&mut self, at: PageNo, frames: &mut Frames) {
        if let Some(page) = self.get_mut(at)
            && page.pins > 0
        {
            page.pins -= 1;
            frames.unpin(1);
            frames.keep(page.frame, at, page.is_kept());
        }
    }
}

#[cfg(test)]
mod tests;
