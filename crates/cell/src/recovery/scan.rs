//! Finds the end of the log on the device: its blocks are read into the image, and its records are
//! examined.
//!
//! Only the log up to its end is needed, so no block behind the end need be readable. But if the
//! log may continue in a block that cannot be read, that block may hold a record that was
//! acknowledged. Then the recovery is refused.
//!
//! The log ends in the last commit, which the power failure may have torn. So records behind the
//! end are looked for: if one shows that the log was durable beyond its end, a record there is
//! damaged, and later ones that were acknowledged cannot be replayed. Then the recovery is refused
//! too, unless it may lose them (`fsck -y`).

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Lsn};
use warren_disk::{FoundRecord, RECORD_MAX, durable_behind, find_record};
use warren_proto::Step;

use crate::driver::Driver;
use crate::event::{Effect, FrameNo};
use crate::frames::io::Purpose;
use crate::log::OpLog;
use crate::log::record::parse;
use crate::turn::Turn;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of the log that are read at a time, as long as all can be read.
const LOAD_BLOCKS: u64 = 256;
/// Bytes behind the end, or behind the last record found there, in which records are looked for:
/// more than one write of the log.
const LOOK_BEHIND: u64 = 1024 * BLOCK;

/// A point of this log, and the point of another log on which it depends.
type Depends = (Lsn, CellId, Lsn);

#[derive(Debug)]
pub(super) struct Scan {
    /// The start of the next record.
    at: Lsn,
    /// Blocks of the image are loaded up to here, so many in each read.
    loaded: Lsn,
    blocks_a_read: u64,
    depends: Vec<Depends>,
    /// The search behind the end, once that is found.
    behind: Option<Behind>,
    may_lose: bool,
}

/// The search for records behind the end of the log.
#[derive(Clone, Copy, Debug)]
struct Behind {
    looked: Lsn,
    /// Where the last record begins that was found, or the end of the log.
    last: Lsn,
    /// A block that cannot be read ends the search.
    is_over: bool,
}

impl Scan {
    /// `may_lose`: a damaged record ends the log, whatever follows.
    pub(super) const fn new(start: Lsn, may_lose: bool) -> Self {
        Self {
            at: start,
            loaded: start,
            blocks_a_read: LOAD_BLOCKS,
            depends: Vec::new(),
            behind: None,
            may_lose,
        }
    }

    /// The next record in the loaded part.
    fn find_record(&self, log: &OpLog, driver: &Driver<'_>) -> FoundRecord {
        let image = &log.image;
        let copy = |at, into: &mut [u8]| image.copy_out(at, into, driver.memory);
        find_record(self.at, self.loaded, image.incarnation(), copy)
    }

    /// Examines the loaded part. Returns where the log ends, or reads on. EUCLEAN if a record is
    /// damaged that was durable.
    pub(super) fn advance(&mut self, turn: &mut Turn<'_>) -> Result<Option<Lsn>, Errno> {
        let limit = Lsn(turn.log.image.start().0 + turn.log.image.area().bytes());
        if self.behind.is_none() && self.find_end(limit, turn.log, &turn.driver) {
            self.behind = Some(Behind { looked: self.at, last: self.at, is_over: false });
        }
        if self.look_behind(limit, turn.log, &turn.driver)? {
            return Ok(Some(self.at));
        }
        self.load(limit, turn);
        Ok(None)
    }

    /// Looks for the end in the loaded part. False if more of the log is needed.
    fn find_end(&mut self, limit: Lsn, log: &OpLog, driver: &Driver<'_>) -> bool {
        loop {
            let record = match self.find_record(log, driver) {
                FoundRecord::Record(record) => record,
                FoundRecord::Beyond => return self.loaded >= limit,
                FoundRecord::None => return true,
            };
            let Some((steps, _)) = parse(&record) else { return true };
            for step in steps {
                if let Step::Depends { cell, lsn } = step {
                    self.depends.push((record.lsn, cell, lsn));
                }
            }
            self.at = record.end;
        }
    }

    /// Looks for records behind the end in the loaded part. False if more of the log is needed.
    fn look_behind(&mut self, limit: Lsn, log: &OpLog, driver: &Driver<'_>) -> Result<bool, Errno> {
        let Some(mut behind) = self.behind else { return Ok(false) };
        let image = &log.image;
        let copy = |at, into: &mut [u8]| image.copy_out(at, into, driver.memory);
        // A record may begin in what was loaded before, and end in what was loaded now.
        let from = behind.looked.0.saturating_sub(RECORD_MAX as u64).max(self.at.0);
        let found = durable_behind(Lsn(from), self.loaded, image.incarnation(), copy);
        if let Some((last, durable)) = found {
            if durable > self.missing(log, driver) && !self.may_lose {
                return Err(Errno::EUCLEAN);
            }
            behind.last = behind.last.max(last);
        }
        self.behind = Some(Behind { looked: self.loaded, ..behind });
        let until = limit.0.min(behind.last.0 + LOOK_BEHIND);
        Ok(behind.is_over || self.loaded.0 >= until)
    }

    /// Where the record would begin that is missing at the end of the log.
    fn missing(&self, log: &OpLog, driver: &Driver<'_>) -> Lsn {
        let mut rest = [0; BLOCK_SIZE];
        let next = Lsn(self.at.0.next_multiple_of(BLOCK));
        let rest = &mut rest[..(next.0 - self.at.0) as usize];
        log.image.copy_out(self.at, rest, driver.memory);
        if rest.iter().all(|byte| *byte == 0) { next } else { self.at }
    }

    fn load(&self, limit: Lsn, turn: &mut Turn<'_>) {
        let (from, area) = (self.loaded, turn.log.image.area());
        let (place, _) = area.place(from);
        let left = (limit.0 - from.0) / BLOCK;
        let count = self.blocks_a_read.min(left).min(area.blocks - place);
        let first = turn.log.image.place(from).0.0;
        let frames: Vec<FrameNo> = (first..first + count as u32).map(FrameNo).collect();
        let io = turn.cache.io.begin(Purpose::ReadLog { upto: Lsn(from.0 + count * BLOCK) });
        turn.driver.effects.push(Effect::Read { io, block: area.start.offset(place), frames });
    }

    /// Blocks of the log up to `lsn` were read, or the read failed. EIO if a block is needed that
    /// cannot be read.
    pub(super) fn loaded(&mut self, lsn: Lsn, result: Result<(), Errno>) -> Result<(), Errno> {
        match (result, &mut self.behind) {
            (Ok(()), _) => self.loaded = lsn,
            // One of several blocks cannot be read, perhaps behind the end of the log.
            (Err(_), _) if lsn.0 > self.loaded.0 + BLOCK => self.blocks_a_read = 1,
            (Err(_), Some(behind)) => behind.is_over = true,
            (Err(errno), None) => return Err(errno),
        }
        Ok(())
    }

    /// The first point of the log that depends on a part of another log beyond its end (`ends`, by
    /// cell).
    pub(super) fn rests_beyond(&self, ends: &[Lsn]) -> Option<Lsn> {
        let exceeds =
            |(_, cell, lsn): &&Depends| ends.get(usize::from(cell.0)).is_none_or(|end| lsn > end);
        self.depends.iter().find(exceeds).map(|(at, ..)| *at)
    }
}
