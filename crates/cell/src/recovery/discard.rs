//! Preemptive discard: pages of a predecessor that were damaged in their frames (design 12).
//!
//! A frame that does not have the checksum of its entry is never read, written or covered. The page
//! is made again from what else is known of it: the log and the device.
//!
//! ```text
//! the log has it ───────▶ made again ──▶ the bytes of the entry: restored
//! its place has it ───┘             └──▶ older bytes: lost
//! its place is older ─────▶ dropped, read from there: lost
//! its place was not written, or there is none ──▶ a hole: lost
//! ```
//!
//! What was cut off or zeroed since is zero in all of them.
//!
//! A file that has lost a page is *discarded* ([`Step::Discarded`]): its generation grows, and the
//! handles that are open end with EIO. Its other pages, its size and its times stay: they were
//! checked, or are in the log.
//!
//! Invariant: the entry of a damaged frame stays until the record of the discard is in the log. If
//! the successor dies before, the next one finds the same damage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Ino, Lsn};
use warren_disk::read_record;
use warren_proto::{LeaseKey, Step};

use crate::apply::{Mode, apply};
use crate::event::FrameNo;
use crate::frames::PageNo;
use crate::frames::transfer::load_pages;
use crate::log::record::After;
use crate::plant::Plant;
use crate::recall::recall;
use crate::recovery::scan::parse;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::extents::BlockState;
use crate::shard::pages::PageState;
use crate::shards::Shards;
use crate::turn::Turn;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Holes that one step names.
const HOLES_MAX: usize = 1024;

/// How far it is known what counts as the contents of a damaged page.
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
    /// The page is a hole. `had_place`: the place has other bytes than the log says.
    Hole {
        had_place: bool,
    },
}

/// What a file has lost.
#[derive(Debug, Default)]
struct Lost {
    /// Dirty pages that were counted as blocks and have none.
    uncounted: u64,
    /// Blocks that become holes.
    holes: Vec<u64>,
}

#[derive(Debug)]
struct Damaged {
    at: PageNo,
    frame: FrameNo,
    /// The checksum of what is lost.
    checksum: u32,
    /// The page in the log, if no place was logged since.
    logged: Option<Box<[u8]>>,
    /// Parts of the page that became zero since then, or since it was placed.
    zeroed: Vec<Range<usize>>,
    fate: Fate,
}

impl Damaged {
    /// What the log had of the page is replaced.
    fn begin_anew(&mut self, logged: Option<&[u8]>) {
        self.logged = logged.map(Box::from);
        self.zeroed.clear();
    }

    /// Follows the page through a step of its file. Writes leave no trace in the log.
    fn follow(&mut self, step: &Step) {
        let page = self.at.1;
        match step {
            Step::Inline { pages, .. } => {
                if let Some(found) = pages.iter().find(|inline| inline.page == page) {
                    self.begin_anew(Some(&found.bytes));
                }
            }
            Step::Placed { runs, .. } => {
                let holds = |run: &warren_proto::Run| {
                    page.checked_sub(run.page).is_some_and(|at| at < run.checksums.len() as u64)
                };
                if runs.iter().any(holds) {
                    self.begin_anew(None);
                }
            }
            Step::Truncate { size, .. } if *size <= page * BLOCK => self.begin_anew(None),
            Step::Truncate { size, .. } if *size < (page + 1) * BLOCK => {
                self.zeroed.push((size % BLOCK) as usize..BLOCK_SIZE);
            }
            Step::Fallocated { change, size, .. } => {
                // A change of which parts depend on the size keeps the size.
                if change.emptied(*size).is_some_and(|(first, last)| (first..=last).contains(&page))
                {
                    self.begin_anew(None);
                }
                let cut = change.cut(*size).into_iter().flatten();
                self.zeroed.extend(cut.filter(|(cut, _)| *cut == page).map(|(_, part)| part));
            }
            Step::Shared { copy, .. } => {
                let (_, first, count) = copy.blocks();
                if page.checked_sub(first).is_some_and(|at| at < count) {
                    self.begin_anew(None);
                }
            }
            Step::Reaped { .. } => self.begin_anew(None),
            _ => {}
        }
    }

    /// Puts what was found into the frame. `from` is the place from which it was read.
    fn make_again(&mut self, bytes: &[u8], from: Option<BlockNo>, turn: &mut Turn<'_>) {
        let frame = turn.memory.frame_mut(self.frame);
        let len = bytes.len().min(BLOCK_SIZE);
        frame[..len].copy_from_slice(&bytes[..len]);
        frame[len..].fill(0);
        for part in &self.zeroed {
            frame[part.clone()].fill(0);
        }
        let is_restored = crc32c::crc32c(frame) == self.checksum;
        let from = from.filter(|_| self.zeroed.is_empty());
        self.fate = if is_restored { Fate::Restored(from) } else { Fate::Older };
    }

    /// Finds what counts of the page. Reads its place first, if it has one.
    fn settle(&mut self, shard: &mut Shard, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let at = self.at;
        if let Some(bytes) = self.logged.take() {
            self.make_again(&bytes, None, turn);
            return Ok(());
        }
        let (ino, page) = at;
        let place = match shard.block_state(ino, page)? {
            BlockState::Placed(place) => place,
            BlockState::Unwritten => return self.becomes(Fate::Placed),
            BlockState::Hole => return self.becomes(Fate::Hole { had_place: false }),
        };
        match shard.pages.page(at, turn.frames) {
            Some(found) if matches!(found.state, PageState::Loading(_)) => Ok(()),
            Some(found) => {
                let bytes = *turn.memory.frame(found.frame);
                shard.pages.drop_pages(ino, page..=page, turn.frames);
                if self.zeroed.is_empty() && place.checksum != self.checksum {
                    return self.becomes(Fate::Placed);
                }
                self.make_again(&bytes, Some(place.block), turn);
                Ok(())
            }
            None if self.fate == Fate::Reading => self.becomes(Fate::Hole { had_place: true }),
            None => {
                let frame = turn.frames.take().ok_or(Stop::Wait(Wait::Frames))?;
                load_pages(shard, &[(at, place)], vec![frame], turn);
                shard.pages.pin(at, turn.frames);
                self.becomes(Fate::Reading)
            }
        }
    }

    fn becomes(&mut self, fate: Fate) -> Result<(), Stop> {
        self.fate = fate;
        Ok(())
    }

    /// Whether the page is not to be taken over.
    const fn is_dropped(&self) -> bool {
        matches!(self.fate, Fate::Placed | Fate::Hole { .. })
    }
}

/// The damaged pages of a predecessor.
#[derive(Debug, Default)]
pub(super) struct Discards {
    /// In order.
    pages: Vec<Damaged>,
    /// The log was searched for them.
    is_searched: bool,
}

impl Discards {
    pub(super) fn add(&mut self, at: PageNo, frame: FrameNo, checksum: u32) {
        let (logged, zeroed, fate) = (None, Vec::new(), Fate::Unknown);
        self.pages.push(Damaged { at, frame, checksum, logged, zeroed, fate });
    }

    /// Determines what counts of each damaged page.
    pub(super) fn restore(
        &mut self,
        shards: &mut Shards,
        end: Lsn,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        if self.pages.is_empty() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.is_searched, true) {
            self.search_log(end, turn);
        }
        let mut is_read = true;
        for page in &mut self.pages {
            if matches!(page.fate, Fate::Unknown | Fate::Reading) {
                match shards.get_mut(&page.at.0.shard()) {
                    Some(shard) => page.settle(shard, turn)?,
                    None => page.fate = Fate::Placed,
                }
                is_read &= page.fate != Fate::Reading;
            }
        }
        if !is_read {
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

    fn search_log(&mut self, end: Lsn, turn: &Turn<'_>) {
        let image = &turn.log.image;
        let copy = |at, into: &mut [u8]| image.copy_out(at, into, turn.memory);
        let mut at = image.start();
        while let Some(record) = read_record(at, end, image.incarnation(), copy) {
            at = record.end;
            let (steps, _) = parse(&record).expect("it was replayed");
            for step in &steps {
                let Some(ino) = step.inode() else { continue };
                let first = self.pages.partition_point(|page| page.at.0 < ino);
                let pages = self.pages[first..].iter_mut();
                pages.take_while(|page| page.at.0 == ino).for_each(|page| page.follow(step));
            }
        }
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
                Fate::Older | Fate::Placed => drop(files.entry(ino).or_default()),
                Fate::Hole { had_place: false } => files.entry(ino).or_default().uncounted += 1,
                Fate::Hole { had_place: true } => {
                    files.entry(ino).or_default().holes.push(number);
                }
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
        dropped.for_each(|page| turn.record.then(After::Release(page.frame)));
        turn.seal();
        for page in std::mem::take(&mut self.pages) {
            let is_served = shards.serves(page.at.0.shard());
            if page.fate == Fate::Older && is_served {
                turn.table.add_checksum(page.frame, turn.memory);
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
    let mut blocks = shard.inode_mut(ino).blocks.saturating_sub(lost.uncounted);
    let mut left = &lost.holes[..];
    loop {
        let (holes, later) = left.split_at(left.len().min(HOLES_MAX));
        blocks = blocks.saturating_sub(holes.len() as u64);
        let mut step = Step::Discarded { ino, generation, blocks, holes: holes.into() };
        let made = apply(shard, &mut step, Mode::Live, turn);
        made.expect("a live step waits for nothing");
        turn.note(&step);
        if !turn.record.takes_another_step() {
            turn.seal();
        }
        left = later;
        if left.is_empty() {
            break;
        }
    }
    // Kernels have pages with what is lost.
    for key in [LeaseKey::Pages(ino), LeaseKey::Attr(ino)] {
        recall(shard, &key, None, turn);
    }
}
