//! Group commit: how far the log is durable, and which I/O is under way to make more of it durable.
//!
//! ```text
//! idle ──▶ settling: the block is padded; data that its records name is still being written, or
//!          examined (by a caretaker)
//!      ──▶ data flush, if any such data was written
//!      ──▶ log written ──▶ log flush: durable up to there
//! ```
//!
//! A log that reaches the device in one write is written through: one effect is both of the last
//! steps. It makes nothing else durable.
//!
//! A commit waits briefly for the writers that waited for the last one and will soon send their
//! next request ([`Crowd`]), so that writers in step share one flush.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_base::{Errno, Instant, Lsn};

use crate::event::{Effect, FrameNo, IoId};

/// The state of a commit. `goal` is the end of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Commit {
    Idle,
    Settling {
        goal: Lsn,
    },
    DataFlush {
        goal: Lsn,
        io: IoId,
    },
    Writing {
        goal: Lsn,
        left: usize,
        failed: Option<Errno>,
    },
    LogFlush {
        goal: Lsn,
        io: IoId,
    },
    /// The log is written and flushed by one effect.
    WritingThrough {
        goal: Lsn,
    },
    /// A flush that no commit waits for: pages may be evicted after it.
    PlainFlush {
        io: IoId,
    },
}

/// Why nothing is committed.
///
/// ```text
/// free ──the device has failed, or a predecessor left work half done──▶ until a checkpoint
///   │◀──────────────────────────────Switched──────────────────────────────────┘
///   ├──what was written is lost, or the device refuses checkpoints──▶ for ever
///   └──a caretaker's log is durable up to where its data ends──▶ ended
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    Free,
    /// Until a checkpoint has written everything again. `is_faulty`: because the device has failed.
    /// `ends`: the checkpoint being written fixed its state after the failure, and so ends this
    /// state.
    UntilCheckpoint {
        is_faulty: bool,
        ends: bool,
    },
    /// No further checkpoint will come.
    ForEver,
    /// The data of the next record is nowhere. `is_passed`: a checkpoint has been done since, so
    /// the other cells rest on no more of this log.
    Ended {
        is_passed: bool,
    },
}

/// The data that the log names may have to be examined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Data {
    /// It is this process's own, or a checkpoint writes it again.
    Own,
    /// It is that of a caretaker's predecessors.
    Unexamined,
    Examining,
    Examined(Option<LogEnd>),
}

/// A caretaker's log has to end here on the device, because data that it names is nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogEnd {
    /// The start of the record that names the data.
    pub(crate) lsn: Lsn,
    /// A copy of the block with this position, with zeros from there on. `None` if nothing may be
    /// written.
    pub(crate) block: Option<FrameNo>,
}

/// The tasks and cells that wait for commits. A single writer never waits for others.
#[derive(Clone, Copy, Default, Debug)]
struct Crowd {
    /// The number that waited when the last commit was over, for it or for the next.
    size: usize,
    /// When the commit that is under way was begun, and how long the last one took.
    begun: Instant,
    took: Duration,
    /// Until when the next commit waits for the crowd to reach that size again.
    patience: Option<Instant>,
}

/// The longest wait for a crowd. It is shorter if commits take less: at most half of one.
const PATIENCE_MAX: Duration = Duration::from_millis(1);

impl Crowd {
    /// Whether the next commit should still wait. If so, it requests a wake-up at the end of the
    /// wait. It does so each time, because any other wake-up replaces that.
    fn is_awaited(&mut self, here: usize, now: Instant, effects: &mut Vec<Effect>) -> bool {
        if here >= self.size {
            self.patience = None;
            return false;
        }
        let until = *self.patience.get_or_insert(now + (self.took / 2).min(PATIENCE_MAX));
        if now < until {
            effects.push(Effect::Wake(until));
        }
        now < until
    }
}

#[derive(Debug)]
pub(crate) struct Commits {
    pub(crate) state: Commit,
    crowd: Crowd,
    hold: Hold,
    durable: Lsn,
    /// Up to where a task or a cell waits.
    wanted: Lsn,
    data: Data,
    /// Records whose data is being written, and the number of writes left.
    placing: BTreeMap<Lsn, usize>,
    /// Writes of data have finished since the last flush began.
    data_written: bool,
    /// Set if the flush under way may not be able to help: data written before it is lost.
    doomed: Option<Errno>,
}

impl Commits {
    pub(crate) fn new(start: Lsn) -> Self {
        Self {
            state: Commit::Idle,
            crowd: Crowd::default(),
            hold: Hold::Free,
            durable: start,
            wanted: start,
            data: Data::Own,
            placing: BTreeMap::new(),
            data_written: false,
            doomed: None,
        }
    }

    pub(crate) const fn durable(&self) -> Lsn {
        self.durable
    }

    pub(crate) const fn wanted(&self) -> Lsn {
        self.wanted
    }

    /// A task or a cell waits for everything up to `lsn`.
    pub(crate) fn want(&mut self, lsn: Lsn) {
        self.wanted = self.wanted.max(lsn);
    }

    /// Whether no commit is under way and none is wanted.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.state == Commit::Idle && self.wanted <= self.durable
    }

    pub(crate) fn want_nothing_more(&mut self) {
        self.wanted = self.durable;
    }

    pub(crate) fn reached(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
    }

    /// A recovery is over. What a predecessor has written may not be flushed.
    pub(crate) const fn resume(&mut self) {
        self.wanted = self.durable;
        self.data_written = true;
    }

    /// The log is that of a caretaker's predecessors, or a flush has failed since its data was
    /// examined. Returns the frame that an earlier examination has used.
    pub(crate) fn forget_examination(&mut self) -> Option<FrameNo> {
        let frame = self.log_end().and_then(|end| end.block);
        self.data = Data::Unexamined;
        frame
    }

    /// Whether the data has to be examined, and that has not begun. It begins now.
    pub(crate) fn begin_examination(&mut self) -> bool {
        let is_due = self.data == Data::Unexamined;
        if is_due {
            self.data = Data::Examining;
        }
        is_due
    }

    /// Whether the data is being examined.
    pub(crate) fn is_examining(&self) -> bool {
        self.data == Data::Examining
    }

    /// The data was examined, and may have been written. `end`: unless all of it is there.
    pub(crate) const fn examined(&mut self, end: Option<LogEnd>) {
        self.data = Data::Examined(end);
        self.data_written = true;
    }

    /// Where the log has to end on the device.
    pub(crate) const fn log_end(&self) -> Option<LogEnd> {
        match self.data {
            Data::Examined(end) => end,
            Data::Own | Data::Unexamined | Data::Examining => None,
        }
    }

    /// The log is durable up to where its data ends.
    pub(crate) fn end(&mut self) {
        if self.hold != Hold::ForEver {
            self.hold = Hold::Ended { is_passed: false };
        }
    }

    /// Up to where the durability of the log is no concern of other cells any more.
    pub(crate) fn settled(&self) -> Lsn {
        match self.hold {
            Hold::Ended { is_passed: true } => Lsn(u64::MAX),
            _ => self.durable,
        }
    }

    /// Whether commits are on hold.
    pub(crate) fn is_held(&self) -> bool {
        self.hold != Hold::Free
    }

    /// Whether commits are on hold because the device has failed.
    pub(crate) const fn is_faulty(&self) -> bool {
        matches!(self.hold, Hold::UntilCheckpoint { is_faulty: true, .. } | Hold::ForEver)
    }

    /// Whether failed writes wait for a checkpoint. If no further checkpoint comes, their frames
    /// are needed, and so they are written again.
    pub(crate) const fn leaves_writes_to_checkpoints(&self) -> bool {
        matches!(self.hold, Hold::UntilCheckpoint { is_faulty: true, .. })
    }

    /// Whether no further checkpoint comes.
    pub(crate) fn is_last(&self) -> bool {
        self.hold == Hold::ForEver
    }

    /// A predecessor left work half done. Nothing is committed before a checkpoint has replaced it.
    pub(crate) fn hold_after_recovery(&mut self) {
        if self.hold == Hold::Free {
            self.hold = Hold::UntilCheckpoint { is_faulty: false, ends: false };
        }
    }

    /// The device has failed. `for_ever`: no checkpoint comes that writes everything again.
    pub(crate) fn hold(&mut self, for_ever: bool) {
        self.hold = match for_ever || self.is_last() {
            true => Hold::ForEver,
            false => Hold::UntilCheckpoint { is_faulty: true, ends: false },
        };
        if matches!(self.state, Commit::Settling { .. }) {
            self.state = Commit::Idle;
        }
    }

    /// A checkpoint fixes its state.
    pub(crate) const fn fixed(&mut self) {
        if let Hold::UntilCheckpoint { ends, .. } = &mut self.hold {
            *ends = true;
        }
    }

    /// That checkpoint is durable.
    pub(crate) const fn switched(&mut self) {
        match &mut self.hold {
            Hold::UntilCheckpoint { ends: true, .. } => self.hold = Hold::Free,
            Hold::Ended { is_passed } => *is_passed = true,
            _ => {}
        }
    }

    /// Data that was written before the flush under way is lost.
    pub(crate) fn doom(&mut self, errno: Errno) {
        if self.state != Commit::Idle {
            self.doomed = Some(errno);
        }
    }

    /// The result of a flush.
    pub(crate) fn judge(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        result.and(self.doomed.map_or(Ok(()), Err))
    }

    pub(crate) const fn failed(&mut self) {
        (self.state, self.doomed) = (Commit::Idle, None);
    }

    /// A write of the log is over. Returns up to where the log is written, or the error, once all
    /// writes of the commit are over.
    pub(crate) fn log_written(&mut self, result: Result<(), Errno>) -> Option<Result<Lsn, Errno>> {
        let Commit::Writing { goal, left, failed } = &mut self.state else { return None };
        *left -= 1;
        *failed = failed.or(result.err());
        (*left == 0).then_some(failed.map_or(Ok(*goal), Err))
    }

    /// The record at `lsn` names data whose write begins.
    pub(crate) fn begin_placing(&mut self, lsn: Lsn) {
        *self.placing.entry(lsn).or_default() += 1;
    }

    /// Such a write is over. A failed one is repeated elsewhere by a later record.
    pub(crate) fn end_placing(&mut self, lsn: Lsn, written: bool) {
        self.data_written |= written;
        if let Some(left) = self.placing.get_mut(&lsn) {
            *left -= 1;
            if *left == 0 {
                self.placing.remove(&lsn);
            }
        }
    }

    /// Whether data that records before `goal` name is still being written.
    pub(crate) fn is_placing_before(&self, goal: Lsn) -> bool {
        self.placing.first_key_value().is_some_and(|(lsn, _)| *lsn < goal)
    }

    /// Whether data was written and not flushed since.
    pub(crate) const fn needs_data_flush(&self) -> bool {
        self.data_written
    }

    /// A flush begins.
    pub(crate) const fn begin_flush(&mut self) {
        self.data_written = false;
    }

    /// The data has to be flushed once more.
    pub(crate) const fn flush_again(&mut self) {
        self.data_written = true;
    }

    /// Whether a commit begins now, for `here` waiting tasks and cells.
    pub(crate) fn is_due(&mut self, here: usize, now: Instant, effects: &mut Vec<Effect>) -> bool {
        if self.crowd.is_awaited(here, now, effects) {
            return false;
        }
        (self.crowd.begun, self.crowd.patience) = (now, None);
        true
    }

    /// The commit is over, and `here` tasks and cells wait for it or for the next.
    pub(crate) fn end_commit(&mut self, goal: Lsn, here: usize, now: Instant) {
        self.reached(goal);
        self.state = Commit::Idle;
        (self.crowd.size, self.crowd.took) = (here, now - self.crowd.begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_ends_a_hold_only_if_nothing_has_failed_since_it_fixed_its_state() {
        let mut commits = Commits::new(Lsn(0));
        commits.hold(false);
        commits.switched();
        assert!(commits.is_held(), "it fixed its state before");
        commits.fixed();
        commits.hold(false);
        commits.switched();
        assert!(commits.is_held(), "what failed last is in no checkpoint");
        commits.fixed();
        commits.switched();
        assert!(!commits.is_held());
    }
}
