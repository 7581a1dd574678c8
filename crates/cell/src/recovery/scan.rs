//! Finds the end of the log on the device: its blocks are read into the image, and its records are
//! examined.
//!
//! Only the log up to its end is needed, so a block behind the end need not be readable. But if the
//! log may continue in a block that cannot be read, that block may hold a record that was
//! acknowledged. Then the recovery is refused.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Lsn};
use warren_disk::{FoundRecord, RawRecord, find_record};
use warren_proto::{Cause, Reader, Step, Wire};

use crate::event::{Effect, FrameNo};
use crate::frames::io::Purpose;
use crate::turn::Turn;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of the log that are read at a time, as long as all can be read.
const LOAD_BLOCKS: u64 = 256;

/// A point of this log, and the point of another log on which it depends.
type Depends = (Lsn, CellId, Lsn);

#[derive(Debug)]
pub(super) struct Scan {
    /// Where the next record begins.
    at: Lsn,
    /// Blocks of the image are loaded up to here, so many in each read.
    loaded: Lsn,
    blocks_a_read: u64,
    depends: Vec<Depends>,
}

/// A record's steps and cause. `None` for a record that is intact but invalid: no cell wrote it.
pub(crate) fn parse(record: &RawRecord) -> Option<(Vec<Step>, Cause)> {
    let mut reader = Reader::new(&record.body);
    let steps = (0..record.steps).map(|_| Step::decode(&mut reader).ok());
    let steps = steps.collect::<Option<Vec<_>>>()?;
    Some((steps, Cause::decode(&mut reader).ok()?))
}

impl Scan {
    pub(super) const fn new(start: Lsn) -> Self {
        Self { at: start, loaded: start, blocks_a_read: LOAD_BLOCKS, depends: Vec::new() }
    }

    /// The next record in the loaded part.
    fn find_record(&self, turn: &Turn<'_>) -> FoundRecord {
        let image = &turn.log.image;
        let copy = |at, into: &mut [u8]| image.copy_out(at, into, turn.memory);
        find_record(self.at, self.loaded, image.incarnation(), copy)
    }

    /// Examines the loaded part. Returns where the log ends, or reads on.
    pub(super) fn advance(&mut self, turn: &mut Turn<'_>) -> Option<Lsn> {
        let limit = Lsn(turn.log.image.start().0 + turn.log.image.area().bytes());
        loop {
            let record = match self.find_record(turn) {
                FoundRecord::Record(record) => record,
                FoundRecord::Beyond if self.loaded < limit => {
                    self.load(limit, turn);
                    return None;
                }
                FoundRecord::Beyond | FoundRecord::None => return Some(self.at),
            };
            let Some((steps, _)) = parse(&record) else { return Some(self.at) };
            for step in steps {
                if let Step::Depends { cell, lsn } = step {
                    self.depends.push((record.lsn, cell, lsn));
                }
            }
            self.at = record.end;
        }
    }

    fn load(&self, limit: Lsn, turn: &mut Turn<'_>) {
        let (from, area) = (self.loaded, turn.log.image.area());
        let (place, _) = area.place(from);
        let left = (limit.0 - from.0) / BLOCK;
        let count = self.blocks_a_read.min(left).min(area.blocks - place);
        let first = turn.log.image.place(from).0.0;
        let frames: Vec<FrameNo> = (first..first + count as u32).map(FrameNo).collect();
        let io = turn.io.begin(Purpose::ReadLog { upto: Lsn(from.0 + count * BLOCK) });
        turn.effects.push(Effect::Read { io, block: area.start.offset(place), frames });
    }

    /// Blocks of the log up to `lsn` were read, or the read failed. EIO if a block is needed that
    /// cannot be read.
    pub(super) fn loaded(&mut self, lsn: Lsn, result: Result<(), Errno>) -> Result<(), Errno> {
        match result {
            Ok(()) => self.loaded = lsn,
            // One of several blocks cannot be read, perhaps behind the end of the log.
            Err(_) if lsn.0 > self.loaded.0 + BLOCK => self.blocks_a_read = 1,
            Err(errno) => return Err(errno),
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
