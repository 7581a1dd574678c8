//! Preemptive discard: pages of a predecessor that were damaged in their frames (Hive 4.2).
//!
//! A frame that does not have the checksum of its entry is never read, written or covered. The page
//! is made again from what else is known of it: the log, the place that the file's tree names, and
//! the places before that one, whose blocks stay as they are until the next checkpoint. The latest
//! that can be read counts:
//!
//! ```text
//! the log, or a place ───▶ made again ──▶ the bytes of the entry: restored
//!                                    └──▶ older bytes: lost
//! the last place, as it is ──▶ dropped, read from there: lost
//! none ──────────────────────▶ a hole: lost
//! ```
//!
//! What was cut off or zeroed since is zero in all of them.
//!
//! A file that has lost a page is *discarded* ([`Step::Discarded`]): its generation grows, and the
//! handles that are open end with EIO. Its other pages, its size and its times stay: they were
//! checked, or are in the log.
//!
//! Invariants:
//! * The entry of a damaged frame stays until the record of the discard is in the log. If the
//!   successor dies before, the next one finds the same damage.
//! * The record names each page that is dropped. If the successor dies before it has cleared the
//!   entry, the next one does not count it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Ino};
use warren_proto::{LeaseKey, Run, Step};

use crate::apply::{Mode, apply};
use crate::cache::transfer::load_pages;
use crate::event::FrameNo;
use crate::frames::{PageNo, Placed};
use crate::log::record::After;
use crate::plant::Plant;
use crate::recall::recall;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::extents::BlockState;
use crate::shard::pages::PageState;
use crate::shards::Shards;
use crate::turn::Turn;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Pages that one step names.
const PAGES_MAX: usize = 1024;

/// The state of the search for the contents of a damaged page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Unknown,
    /// The page is being read from its place.
    Reading,
    /// The frame has the lost bytes again. `Some`: they are those of the page's place.
    Restored(Option<BlockNo>),
    /// The frame has older bytes.
    Older,
    /// The page is in its place, which is older.
    Placed,
    /// The page is a hole, or becomes one.
    Hole,
}

/// The pages that a file has lost.
#[derive(Debug, Default)]
struct Lost {
    holes: Vec<u64>,
    replaced: Vec<u64>,
}

/// Bytes that the page once had are in one of these.
#[derive(Debug)]
enum Source {
    Log(Box<[u8]>),
    /// In the place that the file's tree names when it is asked.
    Tree,
    /// In a place that the tree has named before.
    Place(Placed),
}

#[derive(Debug)]
struct Version {
    source: Source,
    /// Parts of the page that became zero since.
    zeroed: Vec<Range<usize>>,
}

impl Version {
    const fn new(source: Source) -> Self {
        Self { source, zeroed: Vec::new() }
    }
}

#[derive(Debug)]
struct Damaged {
    at: PageNo,
    frame: FrameNo,
    /// The checksum of what is lost.
    checksum: u32,
    /// The entry of the frame counts.
    counts: bool,
    /// The latest comes last, and is the log's or the tree's.
    versions: Vec<Version>,
    fate: Fate,
}

impl Damaged {
    /// No earlier version is known, or is of use.
    fn begin_anew(&mut self, source: Source) {
        self.versions = vec![Version::new(source)];
    }

    /// The page had the place `before`, and has another one now.
    fn note_place(&mut self, before: Option<Placed>) {
        if let Some(last) = self.versions.last_mut()
            && matches!(last.source, Source::Tree)
        {
            match before {
                Some(place) => last.source = Source::Place(place),
                None => drop(self.versions.pop()),
            }
        }
        self.versions.push(Version::new(Source::Tree));
    }

    fn note_zeroed(&mut self, part: &Range<usize>) {
        self.versions.iter_mut().for_each(|version| version.zeroed.push(part.clone()));
    }

    /// Follows the page through a step of its file, before which it had this place. Writes leave no
    /// trace in the log.
    fn follow(&mut self, step: &Step, before: Option<Placed>) {
        let page = self.at.1;
        match step {
            Step::Inline { pages, .. } => {
                if let Some(found) = pages.iter().find(|inline| inline.page == page) {
                    self.begin_anew(Source::Log(found.bytes[..].into()));
                }
            }
            Step::Placed { runs, .. } if runs.iter().any(|run| has_page(run, page)) => {
                self.note_place(before);
            }
            Step::Truncate { size, .. } if *size <= page * BLOCK => self.begin_anew(Source::Tree),
            Step::Truncate { size, .. } if *size < (page + 1) * BLOCK => {
                self.note_zeroed(&((size % BLOCK) as usize..BLOCK_SIZE));
            }
            Step::Fallocated { change, size, .. } => {
                // A change of which parts depend on the size keeps the size.
                if change.emptied(*size).is_some_and(|(first, last)| (first..=last).contains(&page))
                {
                    self.begin_anew(Source::Tree);
                }
                let cut = change.cut(*size).into_iter().flatten().filter(|(cut, _)| *cut == page);
                cut.for_each(|(_, part)| self.note_zeroed(&part));
            }
            Step::Shared { copy, .. } => {
                let (_, first, count) = copy.blocks();
                if page.checked_sub(first).is_some_and(|at| at < count) {
                    self.begin_anew(Source::Tree);
                }
            }
            Step::Discarded { holes, .. } if holes.contains(&page) => {
                self.begin_anew(Source::Tree);
            }
            Step::Reaped { .. } => self.begin_anew(Source::Tree),
            _ => {}
        }
    }

    /// Puts the latest version into the frame. `from` is its place, if the tree names it.
    fn make_again(&mut self, bytes: &[u8], from: Option<BlockNo>, turn: &mut Turn<'_>) {
        let frame = turn.driver.memory.frame_mut(self.frame);
        let len = bytes.len().min(BLOCK_SIZE);
        frame[..len].copy_from_slice(&bytes[..len]);
        frame[len..].fill(0);
        let zeroed = self.versions.last().map_or(&[][..], |version| &version.zeroed);
        for part in zeroed {
            frame[part.clone()].fill(0);
        }
        let is_restored = crc32c::crc32c(frame) == self.checksum;
        let from = from.filter(|_| zeroed.is_empty());
        self.fate = if is_restored { Fate::Restored(from) } else { Fate::Older };
    }

    /// Finds what counts of the page: the latest version that can be read. `is_alone`: no other
    /// page is being read, so this one may have a frame that is kept for nodes. Others are left for
    /// these.
    fn settle(
        &mut self,
        shard: &mut Shard,
        is_alone: bool,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let (ino, page) = self.at;
        while let Some(latest) = self.versions.last_mut() {
            let (place, is_in_tree) = match &mut latest.source {
                Source::Log(bytes) => {
                    let bytes = std::mem::take(bytes);
                    self.make_again(&bytes, None, turn);
                    return Ok(());
                }
                Source::Place(place) => (*place, false),
                Source::Tree => match shard.block_state(ino, page)? {
                    BlockState::Placed(place) => (place, true),
                    BlockState::Unwritten => return self.set_fate(Fate::Placed),
                    BlockState::Hole => return self.set_fate(Fate::Hole),
                },
            };
            match shard.pages.page(self.at, &mut turn.cache.frames) {
                Some(found) if matches!(found.state, PageState::Loading(_)) => return Ok(()),
                Some(found) => {
                    let bytes = *turn.driver.memory.frame(found.frame);
                    shard.pages.drop_pages(ino, page..=page, &mut turn.cache.frames);
                    if is_in_tree && latest.zeroed.is_empty() && place.checksum != self.checksum {
                        return self.set_fate(Fate::Placed);
                    }
                    self.make_again(&bytes, is_in_tree.then_some(place.block), turn);
                    return Ok(());
                }
                None if self.fate == Fate::Reading => {
                    // It is not what the log says, or cannot be read.
                    self.versions.pop();
                    self.fate = Fate::Unknown;
                }
                None => {
                    let frames = &mut turn.cache.frames;
                    let frame = if is_alone { frames.take_for_node() } else { frames.take() };
                    let frame = frame.ok_or(Stop::Wait(Wait::Frames))?;
                    load_pages(
                        shard,
                        &[(self.at, place)],
                        vec![frame],
                        turn.cache,
                        &mut turn.driver,
                    );
                    shard.pages.pin(self.at, &mut turn.cache.frames);
                    return self.set_fate(Fate::Reading);
                }
            }
        }
        self.set_fate(Fate::Hole)
    }

    fn set_fate(&mut self, fate: Fate) -> Result<(), Stop> {
        self.fate = fate;
        Ok(())
    }

    /// Whether the page is not to be taken over.
    const fn is_dropped(&self) -> bool {
        matches!(self.fate, Fate::Placed | Fate::Hole)
    }
}

/// Whether the run has the page.
fn has_page(run: &Run, page: u64) -> bool {
    page.checked_sub(run.page).is_some_and(|at| at < run.checksums.len() as u64)
}

/// The damaged pages of a predecessor.
#[derive(Debug, Default)]
pub(super) struct Discards {
    /// In order, once all frames were checked. A page may be here more than once: only one counts.
    pages: Vec<Damaged>,
}

impl Discards {
    pub(super) fn add(&mut self, at: PageNo, frame: FrameNo, checksum: u32) {
        let versions = vec![Version::new(Source::Tree)];
        let fate = Fate::Unknown;
        self.pages.push(Damaged { at, frame, checksum, counts: false, versions, fate });
    }

    /// All frames were checked.
    pub(super) fn sort_pages(&mut self) {
        self.pages.sort_unstable_by_key(|page| (page.at, page.frame));
    }

    fn range_of(&self, ino: Ino) -> Range<usize> {
        let first = self.pages.partition_point(|page| page.at.0 < ino);
        first..self.pages.partition_point(|page| page.at.0 <= ino)
    }

    /// The places of the damaged pages that the step gives other places. Waits for nodes, as the
    /// step does.
    pub(super) fn places_before(
        &self,
        step: &Step,
        shards: &Shards,
    ) -> Result<Vec<Option<Placed>>, Stop> {
        let Step::Placed { ino, runs, .. } = step else { return Ok(Vec::new()) };
        let Some(shard) = shards.get(&ino.shard()) else { return Ok(Vec::new()) };
        let place = |page: &Damaged| {
            if !runs.iter().any(|run| has_page(run, page.at.1)) {
                return Ok(None);
            }
            match shard.placed(*ino, page.at.1) {
                // The step fails for the same reason.
                Err(Stop::Fail(_)) => Ok(None),
                place => place,
            }
        };
        self.pages[self.range_of(*ino)].iter().map(place).collect()
    }

    /// The step was made. These were the places before it.
    pub(super) fn follow(&mut self, step: &Step, before: &[Option<Placed>]) {
        let Some(ino) = step.inode() else { return };
        let of_file = self.range_of(ino);
        let before = before.iter().copied().chain(std::iter::repeat(None));
        for (page, before) in self.pages[of_file].iter_mut().zip(before) {
            page.follow(step, before);
        }
    }

    /// Whether the page was damaged in this frame. If so, it is to be made again.
    pub(super) fn has(&mut self, at: PageNo, frame: FrameNo) -> bool {
        let wanted = self.pages.binary_search_by_key(&(at, frame), |page| (page.at, page.frame));
        wanted.map(|found| self.pages[found].counts = true).is_ok()
    }

    /// The others do not count.
    pub(super) fn forget_others(&mut self) {
        self.pages.retain(|page| page.counts);
    }

    /// Determines what counts of each damaged page.
    pub(super) fn restore(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let mut reading = self.pages.iter().filter(|page| page.fate == Fate::Reading).count();
        for page in &mut self.pages {
            if matches!(page.fate, Fate::Unknown | Fate::Reading) {
                reading -= usize::from(page.fate == Fate::Reading);
                match shards.get_mut(&page.at.0.shard()) {
                    Some(shard) => page.settle(shard, reading == 0, turn)?,
                    None => page.fate = Fate::Placed,
                }
                reading += usize::from(page.fate == Fate::Reading);
            }
        }
        if reading > 0 {
            // The end of any I/O wakes it.
            return Err(Stop::Wait(Wait::Frames));
        }
        // The steps that are logged later change these records.
        for (ino, lost) in self.lost() {
            if let Some(shard) = shards.get(&ino.shard()) {
                shard.inode(ino)?;
                lost.holes.iter().try_for_each(|page| shard.fetch_extents(ino, *page, *page))?;
            }
        }
        Ok(())
    }

    /// The pages that are not to be taken over.
    pub(super) fn dropped(&self) -> BTreeSet<PageNo> {
        self.pages.iter().filter(|page| page.is_dropped()).map(|page| page.at).collect()
    }

    /// The restored pages that are to be written to their places again.
    pub(super) fn written(&self) -> impl Iterator<Item = (PageNo, FrameNo, BlockNo)> + '_ {
        self.pages.iter().filter_map(|page| match page.fate {
            Fate::Restored(Some(block)) => Some((page.at, page.frame, block)),
            _ => None,
        })
    }

    /// The files that have lost pages.
    fn lost(&self) -> BTreeMap<Ino, Lost> {
        let mut files: BTreeMap<Ino, Lost> = BTreeMap::new();
        for page in &self.pages {
            let (ino, number) = page.at;
            match page.fate {
                Fate::Unknown | Fate::Reading | Fate::Restored(_) => {}
                Fate::Older => drop(files.entry(ino).or_default()),
                Fate::Placed => files.entry(ino).or_default().replaced.push(number),
                Fate::Hole => files.entry(ino).or_default().holes.push(number),
            }
        }
        files
    }

    /// Logs which files have lost pages. A dropped page gives back more room in the log than the
    /// step takes.
    pub(super) fn log(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) {
        for (ino, lost) in self.lost() {
            if let Some(shard) = shards.get_mut(&ino.shard()) {
                discard(shard, ino, &lost, turn);
            }
        }
        let dropped = self.pages.iter().filter(|page| page.is_dropped());
        dropped.for_each(|page| turn.log.record.add_after(After::Release(page.frame)));
        turn.seal();
        for page in std::mem::take(&mut self.pages) {
            let is_served = shards.serves(page.at.0.shard());
            if page.fate == Fate::Older && is_served {
                turn.cache.table.add_checksum(page.frame, turn.driver.memory);
            }
        }
    }
}

/// Marks a file that has lost pages.
fn discard(shard: &mut Shard, ino: Ino, lost: &Lost, turn: &mut Turn<'_>) {
    if turn.plants(Plant::KeepGeneration) {
        return;
    }
    let generation = shard.inode_mut(ino).generation.saturating_add(1);
    let mut blocks = shard.inode_mut(ino).blocks;
    let (mut holes, mut replaced) = (&lost.holes[..], &lost.replaced[..]);
    loop {
        let (now, later) = holes.split_at(holes.len().min(PAGES_MAX));
        let (also, others) = replaced.split_at(replaced.len().min(PAGES_MAX - now.len()));
        // A dirty page counts as a block, with or without a place.
        blocks = blocks.saturating_sub(now.len() as u64);
        let (now, also) = (now.into(), also.into());
        let mut step = Step::Discarded { ino, generation, blocks, holes: now, replaced: also };
        let made = apply(shard, &mut step, Mode::Live, turn);
        made.expect("a live step waits for nothing");
        turn.note(&step);
        if !turn.log.record.takes_another_step() {
            turn.seal();
        }
        (holes, replaced) = (later, others);
        if holes.is_empty() && replaced.is_empty() {
            break;
        }
    }
    // Kernels have pages with what is lost.
    for key in [LeaseKey::Pages(ino), LeaseKey::Attr(ino)] {
        recall(shard, &key, None, turn);
    }
}
