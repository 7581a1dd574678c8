//! Pages of a predecessor whose process died: those that were dirty, or written and not flushed,
//! are in its frames, and its table names them. All of them are dirty for the successor. Pages that
//! were damaged in their frames are replaced or thrown away first (`discard.rs`).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Ino, Lsn};
use warren_proto::{RangeChange, RangeCopy, Step};

use crate::cache::transfer::write_pages;
use crate::data::writeback::pages_a_turn;
use crate::driver::Driver;
use crate::event::FrameNo;
use crate::frames::cache::Cache;
use crate::frames::{PageNo, Placed};
use crate::plant::Plant;
use crate::recovery::discard::Discards;
use crate::run::wait::{Stop, Wait};
use crate::shard::pages::PageState;
use crate::shards::Shards;
use crate::turn::Turn;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The search for the dirty pages that count. It continues where it was each time that something
/// has been read, because the table and the shards do not change before its end.
#[derive(Debug)]
struct Looking {
    /// The entries of the predecessor's table.
    tagged: Vec<(PageNo, Lsn, FrameNo)>,
    /// The sizes of the files of so many entries are known.
    sized: usize,
    sizes: BTreeMap<Ino, u64>,
}

/// The frames of the predecessor that are being examined. The results are kept, because the search
/// starts again each time that something has to be read.
#[derive(Debug)]
struct Taking {
    /// Dirty pages that count, in order.
    kept: Vec<(PageNo, FrameNo)>,
    spare: Vec<FrameNo>,
    /// So many pages of `kept` were searched for their places.
    looked_at: usize,
    /// It is known what counts of those that were damaged.
    is_settled: bool,
    /// So many are in the cache.
    taken: usize,
}

#[derive(Debug)]
pub(crate) struct InheritedFrames {
    /// Pages to be written to the places that the predecessor's log names.
    placed: Vec<(PageNo, FrameNo, BlockNo)>,
    looking: Option<Looking>,
    taking: Option<Taking>,
    /// The pages that the last record of the log has dropped.
    dropped: Option<(Ino, u64, u64)>,
    /// So many frames were checked.
    checked: u32,
    discards: Discards,
    /// Pages that the predecessor has thrown away, and the end of the record that says so. What
    /// their frames had before does not count.
    thrown_away: BTreeMap<PageNo, Lsn>,
    /// The frames that the predecessor's table names are set aside, so other frames may be read
    /// into.
    are_kept: bool,
}

impl InheritedFrames {
    /// `are_any`: there is a predecessor.
    pub(super) fn new(are_any: bool) -> Self {
        Self {
            placed: Vec::new(),
            looking: None,
            taking: None,
            dropped: None,
            checked: 0,
            discards: Discards::default(),
            thrown_away: BTreeMap::new(),
            are_kept: !are_any,
        }
    }

    /// Whether no frame may be read into yet.
    pub(crate) const fn must_keep(&self) -> bool {
        !self.are_kept
    }

    /// The next record of the log is replayed.
    pub(super) fn begin_record(&mut self) {
        self.dropped = None;
    }

    /// Finds the frames that do not have the checksums of their entries, and makes those checksums
    /// that are missing. Nothing is replayed before, because the log says what else is known of the
    /// damaged pages.
    pub(super) fn check(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let mut left = pages_a_turn(turn.cache);
        while self.checked < turn.cache.frames.count() {
            let frame = FrameNo(self.checked);
            if let Some(entry) = turn.cache.table.read(frame, turn.driver.memory) {
                if left == 0 {
                    return Err(Stop::Wait(Wait::Turn));
                }
                left -= 1;
                match entry.checksum {
                    None => turn.cache.table.add_checksum(frame, turn.driver.memory),
                    Some(wanted) => {
                        let is_whole = crc32c::crc32c(turn.driver.memory.frame(frame)) == wanted;
                        if !is_whole && !turn.plants(Plant::KeepDamaged) {
                            self.discards.add(entry.at, frame, wanted);
                        }
                    }
                }
            }
            self.checked += 1;
            if self.checked == turn.cache.frames.count() {
                self.discards.sort_pages();
            }
        }
        Ok(())
    }

    /// The places of damaged pages that the step gives other places.
    pub(super) fn places_before(
        &self,
        step: &Step,
        shards: &Shards,
    ) -> Result<Vec<Option<Placed>>, Stop> {
        self.discards.places_before(step, shards)
    }

    /// A step of the log was made. Damaged pages had these places before.
    pub(super) fn follow(&mut self, step: &Step, before: &[Option<Placed>]) {
        self.discards.follow(step, before);
    }

    /// The record, which ends here, says that these pages were thrown away.
    pub(super) fn note_discarded(&mut self, ino: Ino, pages: &[u64], end: Lsn) {
        self.thrown_away.extend(pages.iter().map(|page| ((ino, *page), end)));
    }

    /// The record drops the data of a range. If it is the last one, the process may have died
    /// before it cleared the table's entries. `size` is that of the file.
    pub(super) fn dropped(&mut self, ino: Ino, change: &RangeChange, size: u64) {
        self.dropped = change.emptied(size).map(|(first, last)| (ino, first, last));
    }

    /// The same of a range that got blocks of another file.
    pub(super) fn dropped_pages(&mut self, ino: Ino, copy: &RangeCopy) {
        let (_, first, count) = copy.blocks();
        self.dropped = Some((ino, first, first.saturating_add(count) - 1));
    }

    /// Sets aside the predecessor's frames that may hold dirty pages. Others remain, because some
    /// frames never hold any ([`crate::frames`]).
    pub(crate) fn keep(&mut self, cache: &mut Cache, driver: &Driver<'_>) {
        let (table, memory) = (&cache.table, &*driver.memory);
        cache.frames.keep_used(|frame| table.read(frame, memory).is_some());
        self.are_kept = true;
    }

    /// Takes the predecessor's dirty pages from its frames. Everything that is needed is read
    /// before anything is changed, and nothing is logged before all is done. If the cell dies in
    /// between, its successor does the same again: the frames and their table stay as they are, but
    /// for entries that do not count.
    ///
    /// Events that come in between two turns change no page, because nothing is served and nothing
    /// is written back yet. They may lead to the loss of a shard.
    pub(super) fn take_back(
        &mut self,
        shards: &mut Shards,
        end: Lsn,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let mut taking = match self.taking.take() {
            Some(taking) => taking,
            None => self.find_dirty(shards, end, turn)?,
        };
        let found = self.find_places(shards, &mut taking, turn.cache, &turn.driver);
        let found = found.and_then(|()| self.discards.restore(shards, turn));
        if found.is_ok() && !std::mem::replace(&mut taking.is_settled, true) {
            self.placed.extend(self.discards.written());
            self.placed.sort_unstable_by_key(|(at, ..)| *at);
            let dropped = self.discards.dropped();
            taking.kept.retain(|(at, _)| !dropped.contains(at));
        }
        if let Err(wait) = found.and_then(|()| take_pages(shards, &mut taking, turn.cache)) {
            self.taking = Some(taking);
            return Err(wait);
        }
        // A shard may have been given up after pages of it were found.
        self.placed.retain(|(at, ..)| shards.serves(at.0.shard()));
        for frame in taking.spare {
            turn.cache.table.clear(frame, turn.driver.memory);
            turn.cache.frames.give(frame);
        }
        Ok(())
    }

    /// Finds the frames that hold dirty pages which count.
    fn find_dirty(&mut self, shards: &Shards, end: Lsn, turn: &Turn<'_>) -> Result<Taking, Stop> {
        let mut looking = self.looking.take().unwrap_or_else(|| Looking::begin(turn));
        if let Err(wait) = looking.read_sizes(shards, end) {
            self.looking = Some(looking);
            return Err(wait);
        }
        let Looking { mut tagged, sizes, .. } = looking;
        let is_there =
            |at, since: Lsn| self.thrown_away.get(&at).is_none_or(|until| since >= *until);
        // A page past the end was truncated, and the process died before it cleared the table's
        // entry.
        let is_within = |at: PageNo| sizes.get(&at.0).is_some_and(|size| at.1 * BLOCK < *size);
        let is_dropped = |at: PageNo| {
            let dropped = self.dropped;
            dropped.is_some_and(|(ino, first, last)| at.0 == ino && (first..=last).contains(&at.1))
        };
        let lives = |at: PageNo| is_within(at) && !is_dropped(at);
        // The newest entry of each page comes first, and counts.
        tagged.sort_unstable_by_key(|(at, since, frame)| (*at, Reverse(*since), *frame));
        let (mut kept, mut last) = (Vec::new(), None);
        tagged.retain(|(at, since, frame)| {
            let counts =
                is_made(*since, end) && is_there(*at, *since) && last != Some(*at) && lives(*at);
            if counts {
                last = Some(*at);
                kept.push((*at, *frame));
            }
            !counts
        });
        let spare = tagged.into_iter().map(|(_, _, frame)| frame).collect();
        Ok(Taking { kept, spare, looked_at: 0, is_settled: false, taken: 0 })
    }

    /// Finds those pages that equal, byte for byte, a page that was given a place. The predecessor
    /// had begun to write them, and it is not known whether the writes finished and were flushed.
    /// Also finds those whose frames were damaged.
    fn find_places(
        &mut self,
        shards: &Shards,
        taking: &mut Taking,
        cache: &Cache,
        driver: &Driver<'_>,
    ) -> Result<(), Stop> {
        let end = taking.looked_at + pages_a_turn(cache);
        while let Some((at, frame)) = taking.kept.get(taking.looked_at) {
            if taking.looked_at == end {
                return Err(Stop::Wait(Wait::Turn));
            }
            let entry = cache.table.read(*frame, driver.memory).expect("it was found by its entry");
            if !self.discards.has(*at, *frame)
                && let Some(shard) = shards.get(&at.0.shard())
                && let Some(place) = shard.placed(at.0, at.1)?
                && shard.space.uses(place.block)
                && Some(place.checksum) == entry.checksum
            {
                self.placed.push((*at, *frame, place.block));
            }
            taking.looked_at += 1;
        }
        self.discards.forget_others();
        Ok(())
    }

    /// Logs which files have lost pages.
    pub(super) fn log_discards(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) {
        self.discards.log(shards, turn);
    }

    /// Writes these pages to their places. New places would need blocks that were not promised,
    /// again with every successor, until none is left for a checkpoint.
    pub(super) fn write_again(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) {
        let placed = std::mem::take(&mut self.placed);
        let shard_of = |page: &(PageNo, FrameNo, BlockNo)| page.0.0.shard();
        for run in placed.chunk_by(|a, b| shard_of(a) == shard_of(b)) {
            write_pages(shards.shard(shard_of(&run[0])), run, turn.log.image.end(), turn);
        }
    }
}

/// Puts the pages that count into the cache.
fn take_pages(shards: &mut Shards, taking: &mut Taking, cache: &mut Cache) -> Result<(), Stop> {
    let end = taking.taken + pages_a_turn(cache);
    while let Some(&(at, frame)) = taking.kept.get(taking.taken) {
        if taking.taken == end {
            return Err(Stop::Wait(Wait::Turn));
        }
        match shards.get_mut(&at.0.shard()) {
            Some(shard) => {
                shard.pages.insert(at, frame, PageState::Dirty, &mut cache.frames);
                shard.behind.insert(at.0);
            }
            None => taking.spare.push(frame),
        }
        taking.taken += 1;
    }
    Ok(())
}

/// A change without its record in the log did not happen.
fn is_made(since: Lsn, end: Lsn) -> bool {
    since < end
}

/// Clears the entries of changes that did not happen. They would count after the next record.
pub(super) fn clear_unmade(end: Lsn, cache: &Cache, driver: &mut Driver<'_>) {
    for frame in (0..cache.frames.count()).map(FrameNo) {
        let entry = cache.table.read(frame, driver.memory);
        if entry.is_some_and(|entry| !is_made(entry.since, end)) {
            cache.table.clear(frame, driver.memory);
        }
    }
}

impl Looking {
    fn begin(turn: &Turn<'_>) -> Self {
        let (table, memory) = (&turn.cache.table, &*turn.driver.memory);
        let frames = (0..turn.cache.frames.count()).map(FrameNo);
        let entry = |frame| table.read(frame, memory).map(|it| (it.at, it.since, frame));
        Self { tagged: frames.filter_map(entry).collect(), sized: 0, sizes: BTreeMap::new() }
    }

    /// Reads the sizes of the files whose pages may count.
    fn read_sizes(&mut self, shards: &Shards, end: Lsn) -> Result<(), Stop> {
        for ((ino, _), since, _) in &self.tagged[self.sized..] {
            if is_made(*since, end)
                && !self.sizes.contains_key(ino)
                && let Some(shard) = shards.get(&ino.shard())
            {
                self.sizes.insert(*ino, shard.inode(*ino)?.map_or(0, |inode| inode.size));
            }
            self.sized += 1;
        }
        Ok(())
    }
}
