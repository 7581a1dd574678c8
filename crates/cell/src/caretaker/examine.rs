//! A caretaker examines the log of its predecessors before it makes that log durable: the log must
//! not name data that a power failure takes away.
//!
//! ```text
//! comparing: which blocks of the log the device has
//!   ▼
//! matching: the last record that the device has
//!   ▼
//! scanning: the blocks that later records name for pages
//!   ▼
//! searching: frames that hold what was placed there
//!   ▼
//! writing: these frames, to their places
//!   ▼
//! reading: the other places
//!   ▼
//! examined: the commit flushes the device, and writes the log: all of it, or up to the first
//!           record whose data is nowhere
//! ```
//!
//! A predecessor may have died before its writes were done, or before they were flushed. The pages
//! are in its frames then, unless they were changed again or were damaged.
//!
//! Invariants:
//! * A frame is written only if it has the checksum that the log names for the block, and only to a
//!   block of a chunk that belongs to the cell. A record that names another block ends the log.
//! * Places that are named up to the last record on the device are not examined: their data was
//!   flushed before. So the durable log never becomes shorter than it is on the device. A record
//!   before that one may be damaged there: the commit writes it again.
//! * All data that a record names is there, also of pages that have other places by now: a power
//!   failure may leave any part of a commit, and a recovery may cut the log at any record.
//! * The frames with pages, the table and the records stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{BlockNo, Errno, Lsn};
use warren_disk::{RECORD_HEADER, read_record};
use warren_proto::Step;

use crate::data::writeback::pages_a_turn;
use crate::driver::Driver;
use crate::event::{Effect, FrameNo, IoId};
use crate::frames::PageNo;
use crate::frames::cache::Cache;
use crate::frames::io::Purpose;
use crate::log::OpLog;
use crate::log::commit::LogEnd;
use crate::log::record::parse;
use crate::plant::Plant;
use crate::run::wait::{Stop, Wait};
use crate::turn::Turn;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Records of one turn.
const RECORDS_A_TURN: usize = 256;
/// Blocks that are read at a time. Frames that hold no page may be few.
const READ_MAX: usize = 64;
/// Attempts to read a block. Then what it holds counts as lost.
const ATTEMPTS_MAX: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Comparing,
    Matching,
    Scanning,
    Searching,
    Writing,
    Reading,
    Examined,
}

/// An I/O that is not done.
#[derive(Debug)]
enum UnderWay {
    /// The device's log at this place is read.
    Log { at: Lsn, frames: Vec<FrameNo> },
    /// These frames are written.
    Write { blocks: Vec<(BlockNo, Named)> },
    /// These blocks are read.
    Read { blocks: Vec<(Unread, FrameNo)> },
}

/// A record names a block with this checksum.
#[derive(Clone, Copy, Debug)]
struct Named {
    checksum: u32,
    /// The start of the record.
    lsn: Lsn,
}

/// A block that is to be read, and how often that was tried.
#[derive(Clone, Copy, Debug)]
struct Unread {
    block: BlockNo,
    named: Named,
    attempts: u32,
}

/// The log was compared with the device's so far.
#[derive(Debug, Default)]
struct Comparison {
    /// The next block.
    at: Lsn,
    /// The blocks that differ, and how many of their first bytes do not.
    different: BTreeMap<u64, usize>,
    /// Where the last record ends that the device has.
    durable: Lsn,
    is_over: bool,
    attempts: u32,
    /// A block of the log could not be read, so the device may have more.
    is_unsure: bool,
}

impl Comparison {
    /// Whether the device has these bytes of the log.
    fn has(&self, from: Lsn, len: usize) -> bool {
        let end = from.0 + len as u64;
        let mut blocks = from.0 / BLOCK..end.div_ceil(BLOCK);
        let has_part = |block: u64| {
            let same = self.different.get(&block);
            same.is_none_or(|same| block * BLOCK + *same as u64 >= end)
        };
        end <= self.at.0 && blocks.all(has_part)
    }
}

/// The examination of the data that a caretaker's log names.
#[derive(Debug)]
pub(crate) struct Examination {
    phase: Phase,
    /// The chunks of the cell's shards.
    owned: BTreeSet<u64>,
    /// Where the log of the predecessors ends, and where it has to end on the device.
    end: Lsn,
    until: Lsn,
    device: Comparison,
    /// The start of the next record, and the next frame to examine.
    at: Lsn,
    frame: u32,
    /// The blocks that records name for pages and of which nothing is known.
    named: BTreeMap<(PageNo, BlockNo), Named>,
    /// Frames to write, by their places.
    found: BTreeMap<BlockNo, (FrameNo, Named)>,
    unread: Vec<Unread>,
    under_way: BTreeMap<IoId, UnderWay>,
}

impl Examination {
    /// `owned`: the chunks of the cell's shards, according to the region map.
    pub(crate) fn new(owned: BTreeSet<u64>) -> Self {
        Self {
            phase: Phase::Idle,
            owned,
            end: Lsn(0),
            until: Lsn(0),
            device: Comparison::default(),
            at: Lsn(0),
            frame: 0,
            named: BTreeMap::new(),
            found: BTreeMap::new(),
            unread: Vec::new(),
            under_way: BTreeMap::new(),
        }
    }

    /// Continues, or begins anew. The log of the predecessors ends at `end`, and has `claimed`
    /// these chunks.
    pub(crate) fn run(
        &mut self,
        end: Lsn,
        claimed: &[u64],
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        if self.phase == Phase::Idle {
            self.begin(end, claimed, turn);
        }
        loop {
            if !self.under_way.is_empty() {
                // The end of any I/O wakes it.
                return Err(Stop::Wait(Wait::Frames));
            }
            match self.phase {
                Phase::Comparing => self.compare(turn)?,
                Phase::Matching => self.match_records(turn.log, &turn.driver)?,
                Phase::Scanning => self.scan(turn.log, &turn.driver)?,
                Phase::Searching => self.search(turn.cache, &turn.driver)?,
                Phase::Writing => self.write(turn)?,
                Phase::Reading => self.read(turn)?,
                Phase::Idle | Phase::Examined => {
                    let end = self.log_end(turn)?;
                    turn.log.commits.examined(end);
                    *self = Self::new(std::mem::take(&mut self.owned));
                    return Ok(());
                }
            }
        }
    }

    fn begin(&mut self, end: Lsn, claimed: &[u64], turn: &Turn<'_>) {
        let start = turn.log.image.start();
        let mut owned = std::mem::take(&mut self.owned);
        owned.extend(claimed.iter().filter(|chunk| turn.chunks.is_legal(**chunk)));
        let device = Comparison { at: start, durable: start, ..Comparison::default() };
        let phase = Phase::Comparing;
        *self = Self { phase, end, until: end, at: start, device, ..Self::new(owned) };
    }

    /// Reads the device's log on.
    fn compare(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let at = self.device.at;
        if at >= self.end || self.device.is_over {
            self.phase = Phase::Matching;
            return Ok(());
        }
        let area = turn.log.image.area();
        let (place, _) = area.place(at);
        let left = (self.end.0 - at.0).div_ceil(BLOCK).min(area.blocks - place);
        // After a failure each block is read alone.
        let most = if self.device.attempts > 0 { 1 } else { READ_MAX };
        let frames = take_frames(most.min(left as usize), turn)?;
        let io = turn.cache.io.begin(Purpose::Examine);
        let block = area.start.offset(place);
        turn.driver.effects.push(Effect::Read { io, block, frames: frames.clone() });
        self.under_way.insert(io, UnderWay::Log { at, frames });
        Ok(())
    }

    /// Finds the last record of which the device has the header, which names the place of the
    /// record and its checksum.
    fn match_records(&mut self, log: &OpLog, driver: &Driver<'_>) -> Result<(), Stop> {
        let image = &log.image;
        let copy = |at, into: &mut [u8]| image.copy_out(at, into, driver.memory);
        for _ in 0..RECORDS_A_TURN {
            let Some(record) = read_record(self.at, self.end, image.incarnation(), copy) else {
                (self.at, self.phase) = (image.start(), Phase::Scanning);
                return Ok(());
            };
            self.at = record.end;
            if self.device.has(record.lsn, RECORD_HEADER) {
                self.device.durable = record.end;
            }
        }
        Err(Stop::Wait(Wait::Turn))
    }

    /// Finds the places that are named by records that the device does not have.
    fn scan(&mut self, log: &OpLog, driver: &Driver<'_>) -> Result<(), Stop> {
        let image = &log.image;
        let copy = |at, into: &mut [u8]| image.copy_out(at, into, driver.memory);
        for _ in 0..RECORDS_A_TURN {
            let Some(record) = read_record(self.at, self.end, image.incarnation(), copy) else {
                self.phase = Phase::Searching;
                return Ok(());
            };
            self.at = record.end;
            if record.end <= self.device.durable {
                continue;
            }
            let steps = parse(&record).map(|(steps, _)| steps);
            let lsn = record.lsn;
            if !steps.is_some_and(|steps| steps.iter().all(|step| self.note_places(step, lsn))) {
                // No cell has written this record.
                (self.until, self.phase) = (lsn, Phase::Searching);
                return Ok(());
            }
        }
        Err(Stop::Wait(Wait::Turn))
    }

    /// Returns whether the cell may have placed pages there.
    fn note_places(&mut self, step: &Step, lsn: Lsn) -> bool {
        let Step::Placed { ino, runs, .. } = step else { return true };
        for run in runs {
            for (at, checksum) in (0..).zip(&run.checksums) {
                let page = (*ino, run.page.saturating_add(at));
                let block = BlockNo(run.block.0.saturating_add(at));
                if !self.owned.contains(&(block.0 / CHUNK_BLOCKS)) {
                    return false;
                }
                self.named.insert((page, block), Named { checksum: *checksum, lsn });
            }
        }
        true
    }

    /// Finds the frames that hold what was placed. The checksum decides, not the age of the entry:
    /// a frame with older or newer bytes of the page does not have it.
    fn search(&mut self, cache: &Cache, driver: &Driver<'_>) -> Result<(), Stop> {
        let end = cache.frames.count().min(self.frame.saturating_add(pages_a_turn(cache) as u32));
        for frame in (self.frame..end).map(FrameNo) {
            let Some(entry) = cache.table.read(frame, driver.memory) else { continue };
            let places = (entry.at, BlockNo(0))..=(entry.at, BlockNo(u64::MAX));
            let may_hold = |named: &Named| entry.checksum.is_none_or(|it| it == named.checksum);
            let mut places =
                self.named.range(places).filter(|(_, named)| may_hold(named)).peekable();
            if places.peek().is_none() {
                continue;
            }
            let checksum = crc32c::crc32c(driver.memory.frame(frame));
            for ((_, block), named) in places.filter(|(_, named)| named.checksum == checksum) {
                self.found.insert(*block, (frame, *named));
            }
        }
        self.frame = end;
        if end < cache.frames.count() {
            return Err(Stop::Wait(Wait::Turn));
        }
        let named = std::mem::take(&mut self.named).into_iter();
        let is_open = |block: &BlockNo| !self.found.contains_key(block);
        let open = named.filter(|((_, block), _)| is_open(block));
        self.unread =
            open.map(|((_, block), named)| Unread { block, named, attempts: 0 }).collect();
        // They are taken from the end.
        self.unread.sort_by_key(|it| std::cmp::Reverse(it.block));
        self.phase = Phase::Writing;
        Ok(())
    }

    /// Writes frames that were found, in as many I/Os as there are runs of blocks.
    fn write(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        if turn.plants(Plant::ForgetPlaced) {
            self.found.clear();
        }
        if self.found.is_empty() {
            self.phase = Phase::Reading;
            return Ok(());
        }
        let batch = std::iter::from_fn(|| self.found.pop_first());
        let pages: Vec<(BlockNo, (FrameNo, Named))> =
            batch.take(pages_a_turn(turn.cache)).collect();
        for run in pages.chunk_by(|a, b| a.0.0 + 1 == b.0.0) {
            let io = turn.cache.io.begin(Purpose::Examine);
            let frames = run.iter().map(|(_, (frame, _))| *frame).collect();
            turn.driver.effects.push(Effect::Write { io, block: run[0].0, frames });
            let blocks = run.iter().map(|(block, (_, named))| (*block, *named)).collect();
            self.under_way.insert(io, UnderWay::Write { blocks });
        }
        Ok(())
    }

    /// Reads the other places.
    fn read(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        // The log ends before these records in any case.
        self.unread.retain(|it| it.named.lsn < self.until);
        if self.unread.is_empty() {
            self.phase = Phase::Examined;
            return Ok(());
        }
        let frames = take_frames(READ_MAX.min(self.unread.len()), turn)?;
        let rest = self.unread.len() - frames.len();
        let blocks = self.unread.split_off(rest).into_iter().rev().zip(frames);
        let blocks: Vec<(Unread, FrameNo)> = blocks.collect();
        // What could not be read is read alone.
        let adjacent = |(a, _): &(Unread, FrameNo), (b, _): &(Unread, FrameNo)| {
            a.block.0 + 1 == b.block.0 && a.attempts + b.attempts == 0
        };
        for run in blocks.chunk_by(adjacent) {
            let io = turn.cache.io.begin(Purpose::Examine);
            let frames = run.iter().map(|(_, frame)| *frame).collect();
            turn.driver.effects.push(Effect::Read { io, block: run[0].0.block, frames });
            self.under_way.insert(io, UnderWay::Read { blocks: run.to_vec() });
        }
        Ok(())
    }

    /// Where the durable log has to end, if not where the image does.
    fn log_end(&self, turn: &mut Turn<'_>) -> Result<Option<LogEnd>, Stop> {
        if self.until >= self.end {
            return Ok(None);
        }
        // What follows on the device may be valid, so nothing is overwritten.
        if self.device.is_unsure {
            return Ok(Some(LogEnd { lsn: turn.log.commits.durable(), block: None }));
        }
        let frame = take_frames(1, turn)?[0];
        let (last, offset) = turn.log.image.place(self.until);
        let mut block = *turn.driver.memory.frame(last);
        block[offset..].fill(0);
        *turn.driver.memory.frame_mut(frame) = block;
        Ok(Some(LogEnd { lsn: self.until, block: Some(frame) }))
    }

    /// An I/O has ended.
    pub(crate) fn io_done(&mut self, io: IoId, result: Result<(), Errno>, turn: &mut Turn<'_>) {
        match self.under_way.remove(&io).expect("an I/O ends once") {
            UnderWay::Log { at, frames } => {
                self.log_read(at, &frames, result, turn.log, &turn.driver);
                frames.into_iter().for_each(|frame| turn.cache.frames.give(frame));
            }
            UnderWay::Write { .. } if result.is_ok() => {}
            // The write may have been done in spite of that.
            UnderWay::Write { blocks } => {
                let unread = blocks.into_iter();
                self.unread.extend(unread.map(|(block, named)| Unread {
                    block,
                    named,
                    attempts: 0,
                }));
            }
            UnderWay::Read { blocks } => {
                for (unread, frame) in blocks {
                    let checksum = crc32c::crc32c(turn.driver.memory.frame(frame));
                    self.block_read(unread, result.map(|()| checksum));
                    turn.cache.frames.give(frame);
                }
            }
        }
    }

    fn log_read(
        &mut self,
        at: Lsn,
        frames: &[FrameNo],
        result: Result<(), Errno>,
        log: &OpLog,
        driver: &Driver<'_>,
    ) {
        let device = &mut self.device;
        if result.is_err() {
            device.attempts += 1;
            device.is_unsure = device.attempts > ATTEMPTS_MAX;
            device.is_over = device.is_unsure;
            return;
        }
        device.attempts = 0;
        for (block, frame) in (at.0 / BLOCK..).zip(frames) {
            let (own, _) = log.image.place(Lsn(block * BLOCK));
            let (own, there) = (driver.memory.frame(own), driver.memory.frame(*frame));
            let same = own.iter().zip(there).take_while(|(a, b)| a == b).count();
            if same < BLOCK_SIZE {
                device.different.insert(block, same);
            }
            device.at = Lsn((block + 1) * BLOCK);
        }
    }

    /// A block was read, or could not be.
    fn block_read(&mut self, unread: Unread, checksum: Result<u32, Errno>) {
        if checksum.is_err() && unread.attempts < ATTEMPTS_MAX {
            return self.unread.push(Unread { attempts: unread.attempts + 1, ..unread });
        }
        if checksum != Ok(unread.named.checksum) {
            self.until = self.until.min(unread.named.lsn);
        }
    }
}

/// Frames that hold no page: at least one, and `most` if there are so many.
fn take_frames(most: usize, turn: &mut Turn<'_>) -> Result<Vec<FrameNo>, Stop> {
    let frames: Vec<FrameNo> = (0..most).map_while(|_| turn.cache.frames.take_for_node()).collect();
    if frames.is_empty() { Err(Stop::Wait(Wait::Frames)) } else { Ok(frames) }
}
