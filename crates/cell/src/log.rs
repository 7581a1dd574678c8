//! The op log: the changes of this cell, in order. Its image lies in frames that outlive the
//! process. The device receives it when a client or a cell asks for durability.
//!
//! Order of events for a task: its steps are made and noted. When it stops running they are
//! appended as one record, with their cause. Then comes what must follow the record (a frame is
//! released, a tail is zeroed). Then come the effects of the same event, including replies and
//! messages.
//!
//! | part | owns |
//! | --- | --- |
//! | `record` | the steps of a record that is being made |
//! | `image` | the bytes, and where records begin and end |
//! | `depend` | what the log depends on in other cells' logs |
//! | `commit` | how far it is durable, and the commit under way |
//! | `durable` | no state: carries commits out |

pub(crate) mod commit;
pub(crate) mod depend;
pub(crate) mod image;
pub(crate) mod record;

use std::ops::Range;

use warren_base::Lsn;
use warren_disk::LogArea;
use warren_proto::Cause;

use crate::budget::LogBudget;
use crate::event::{FrameNo, Memory};
use crate::log::commit::Commits;
use crate::log::depend::Depends;
use crate::log::image::Image;
use crate::log::record::Record;

#[derive(Debug)]
pub(crate) struct OpLog {
    pub(crate) image: Image,
    pub(crate) depends: Depends,
    pub(crate) commits: Commits,
    /// The last snapshot of the session: that of the last checkpoint, or of one that failed since.
    snapshot: Range<Lsn>,
    /// The steps that were made and are not in the log yet.
    pub(crate) record: Record,
    /// Transactions that are under way here, at their coordinator or elsewhere.
    txns: usize,
    /// A checkpoint was asked for that will free some of the log.
    is_checkpoint_asked: bool,
    /// No checkpoint frees any of the log: a later process of the cell replays it.
    is_kept: bool,
}

impl OpLog {
    /// `is_open`: nothing has to be replayed first.
    pub(crate) fn new(
        area: LogArea,
        first: FrameNo,
        (incarnation, start): (u64, Lsn),
        is_open: bool,
    ) -> Self {
        Self {
            image: Image::new(area, first, (incarnation, start), is_open),
            depends: Depends::default(),
            commits: Commits::new(start),
            snapshot: start..start,
            record: Record::default(),
            txns: 0,
            is_checkpoint_asked: false,
            is_kept: false,
        }
    }

    /// No checkpoint may free any of the log.
    pub(crate) const fn keep(&mut self) {
        self.is_kept = true;
    }

    pub(crate) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Where the last snapshot of the session begins, if nothing was logged since.
    pub(crate) fn snapshot(&self) -> Option<Lsn> {
        (self.snapshot.end == self.image.end()).then_some(self.snapshot.start)
    }

    /// The present session is logged again, from `start` on.
    pub(crate) fn snapshot_taken(&mut self, start: Lsn) {
        self.snapshot = start..self.image.end();
    }

    /// A recovery has read the log up to `end`: records may be appended behind that.
    pub(crate) fn resume(&mut self, end: Lsn, memory: &mut dyn Memory) {
        self.image.resume(end, memory);
        self.commits.resume();
        if self.is_kept {
            self.commits.forget_examination();
        }
    }

    /// Bytes that may still be logged, if `dirty` pages and the transactions under way keep the
    /// room that they need.
    pub(crate) fn room(&self, dirty: usize) -> u64 {
        let kept_back = self.budget().kept_back(self.txns, dirty);
        self.image.area().bytes().saturating_sub(self.image.used() + kept_back)
    }

    pub(crate) const fn budget(&self) -> LogBudget {
        LogBudget { bytes: self.image.area().bytes() }
    }

    /// Whether a checkpoint can still log what it has to: so many open files and held locks, and a
    /// record before these. Failed checkpoints use up the space that is kept for it.
    pub(crate) fn may_checkpoint(&self, session: usize) -> bool {
        self.image.used() + self.budget().checkpoint(session) <= self.image.area().bytes()
    }

    /// Whether to ask for a checkpoint that frees some of the log: once, when the log is half full.
    pub(crate) fn needs_checkpoint(&mut self) -> bool {
        if self.is_kept {
            return false;
        }
        let is_half_full = 2 * self.image.used() > self.image.area().bytes();
        is_half_full && !std::mem::replace(&mut self.is_checkpoint_asked, true)
    }

    /// A transaction is under way that this cell takes part in.
    pub(crate) const fn begin_txn(&mut self) {
        self.txns += 1;
    }

    pub(crate) const fn end_txn(&mut self) {
        self.txns -= 1;
    }

    /// Whether everything up to `lsn`, and everything that it depends on, is durable.
    pub(crate) fn is_durable(&self, lsn: Lsn) -> bool {
        self.commits.durable() >= lsn && self.depends.are_durable(lsn)
    }

    /// Whether all of it is durable in this log, whatever it depends on in others.
    pub(crate) fn is_written(&self) -> bool {
        self.commits.durable() >= self.image.end()
    }

    /// Moves the steps of the record into the log. The actions that wait for it may be done now.
    pub(crate) fn append(&mut self, cause: &Cause, memory: &mut dyn Memory) {
        self.depends.name_in(&mut self.record, self.image.end());
        self.image.append(&mut self.record, cause, self.commits.durable(), memory);
        self.record.empty();
    }

    /// Where the log of a checkpoint begins, whose state is being fixed now.
    pub(crate) fn begin_anew(&mut self, memory: &mut dyn Memory) -> Lsn {
        self.depends.begin_anew();
        self.image.pad(memory)
    }

    /// Ends a commit. If all of its records were made before the last one was over, an empty record
    /// says that this is durable.
    pub(crate) fn end_commit(&mut self, memory: &mut dyn Memory) -> Lsn {
        let durable = self.commits.durable();
        if self.image.vouched() < durable && self.image.takes_empty_record() {
            self.image.append(&mut Record::default(), &Cause::Cell, durable, memory);
        }
        self.image.pad(memory)
    }

    /// Everything before `lsn` is in the trees that the superblock names.
    pub(crate) fn free(&mut self, lsn: Lsn) {
        self.image.free(lsn);
        self.commits.reached(lsn);
        self.depends.free(lsn);
        self.is_checkpoint_asked = false;
    }
}

#[cfg(test)]
mod tests {
    use warren_base::limits::BLOCK_SIZE;
    use warren_base::{BlockNo, CellId};
    use warren_disk::{RawRecord, read_record};
    use warren_proto::Step;

    use super::*;
    use crate::frames::test_memory::Frames;

    const BLOCKS: u64 = 128;

    fn records(log: &OpLog, memory: &Frames) -> Vec<RawRecord> {
        let image = &log.image;
        let next = |at: &Lsn| {
            let copy = |at, into: &mut [u8]| image.copy_out(at, into, memory);
            read_record(*at, image.end(), image.incarnation(), copy)
        };
        let first = next(&image.start());
        std::iter::successors(first, |record| next(&record.end)).collect()
    }

    #[test]
    fn each_commit_shows_that_the_one_before_it_was_durable() {
        let area = LogArea { start: BlockNo(0), blocks: BLOCKS };
        let mut memory = Frames(vec![[0; BLOCK_SIZE]; BLOCKS as usize]);
        let mut log = OpLog::new(area, FrameNo(0), (1, Lsn(0)), true);
        let append = |log: &mut OpLog, memory: &mut Frames| {
            log.record.note(&Step::Depends { cell: CellId(1), lsn: Lsn(1) });
            log.append(&Cause::Cell, memory);
        };
        append(&mut log, &mut memory);
        let first = log.end_commit(&mut memory);
        // This one is made while the commit is under way.
        append(&mut log, &mut memory);
        log.commits.reached(first);
        let second = log.end_commit(&mut memory);
        let durable: Vec<_> =
            records(&log, &memory).iter().map(|it| (it.steps, it.durable)).collect();
        assert_eq!(durable, [(1, Lsn(0)), (1, Lsn(0)), (0, first)]);
        // This one afterwards.
        log.commits.reached(second);
        append(&mut log, &mut memory);
        log.end_commit(&mut memory);
        assert_eq!(
            records(&log, &memory).last().map(|it| (it.steps, it.durable)),
            Some((1, second))
        );
    }
}
