//! The order of writes and flushes that commits a checkpoint.
//!
//! ```text
//! root slots, region map -> flush -> superblock, one copy -> flush: committed
//!                                                          -> the other copy
//! ```
//!
//! The other copy is written before the next checkpoint's first flush, which makes it durable: two
//! equal copies, so that damage to one never brings back a state whose blocks were used again.
//!
//! After a failed flush, or a failed write of a superblock, it is unknown what is on the device.
//! From then on the committer is broken and records nothing more.

use std::collections::BTreeSet;

use warren_base::{CellId, Errno};
use warren_disk::{Layout, Superblock};
use warren_proto::control::Written;

use crate::event::{Effect, IoId};
use crate::ledger::{Attempt, Ledger};

enum Step {
    Idle,
    /// Root slots and region map.
    Writes {
        attempt: Attempt,
        pending: BTreeSet<IoId>,
        failed: Option<Errno>,
    },
    FirstFlush(Attempt, IoId),
    Superblock(Attempt, IoId),
    SecondFlush(Attempt, IoId),
    /// The last flush waits for the other copy, or is under way.
    Sealing(Option<IoId>),
}

/// The result of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Pending,
    Committed,
    Failed(Errno),
    /// The last flush is done, or has failed.
    Sealed(Result<(), Errno>),
}

/// The result of the start of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begun {
    NothingChanged,
    Writing,
}

pub(crate) struct Committer {
    ledger: Ledger,
    step: Step,
    /// The write of the other superblock.
    other: Option<IoId>,
    broken: Option<Errno>,
    last_io: u64,
}

impl Committer {
    pub(crate) const fn new(ledger: Ledger) -> Self {
        Self { ledger, step: Step::Idle, other: None, broken: None, last_io: 0 }
    }

    /// The committer of a supervisor that takes over. It is `broken` if the committer of its
    /// predecessor was, or if a flush has failed.
    pub(crate) fn adopt(ledger: Ledger, broken: Option<Errno>) -> Self {
        Self { broken, ..Self::new(ledger) }
    }

    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) const fn broken(&self) -> Option<Errno> {
        self.broken
    }

    /// Records nothing more: a flush of another process has failed, so that nodes which a cell
    /// wrote may be lost, or the device refuses the writes of a cell.
    pub(crate) fn break_off(&mut self, errno: Errno) {
        self.broken = self.broken.or(Some(errno));
    }

    /// Records what the cells wrote, and the size of a pool that has `grown`.
    pub(crate) fn begin(
        &mut self,
        number: u64,
        clean: bool,
        parts: (&[(CellId, Written)], &[CellId]),
        grown: Option<Layout>,
        effects: &mut Vec<Effect>,
    ) -> Result<Begun, Errno> {
        assert!(matches!(self.step, Step::Idle));
        if self.broken.is_some() {
            return Err(Errno::EIO);
        }
        let Some(attempt) = self.ledger.attempt(number, clean, parts, grown)? else {
            return Ok(Begun::NothingChanged);
        };
        self.start(attempt, effects);
        Ok(Begun::Writing)
    }

    /// Records that a fleet of so many cells has opened the pool.
    pub(crate) fn open(&mut self, number: u64, cells: usize, effects: &mut Vec<Effect>) {
        assert!(matches!(self.step, Step::Idle));
        self.start(self.ledger.opening(number, cells), effects);
    }

    fn start(&mut self, attempt: Attempt, effects: &mut Vec<Effect>) {
        let mut pending = BTreeSet::new();
        for (block, bytes) in attempt.writes() {
            let io = self.io();
            pending.insert(io);
            effects.push(Effect::Write { io, block, bytes });
        }
        self.step = Step::Writes { attempt, pending, failed: None };
    }

    /// Writes the superblock to this copy, which is behind or damaged, or was not the one that
    /// committed.
    pub(crate) fn write_copy(&mut self, copy: usize, effects: &mut Vec<Effect>) {
        let superblock = self.ledger.superblock();
        let (block, bytes) = (superblock.layout.superblock(copy), superblock.encode());
        let io = self.io();
        effects.push(Effect::Write { io, block, bytes });
        self.other = Some(io);
    }

    pub(crate) fn io_done(
        &mut self,
        io: IoId,
        result: Result<(), Errno>,
        effects: &mut Vec<Effect>,
    ) -> Progress {
        if self.other == Some(io) {
            self.other = None;
            self.broken = self.broken.or(result.err());
            return self.advance(effects);
        }
        match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Writes { attempt, mut pending, failed } => {
                let failed = if pending.remove(&io) { failed.or(result.err()) } else { failed };
                self.step = Step::Writes { attempt, pending, failed };
                self.advance(effects)
            }
            Step::FirstFlush(attempt, flush) if flush == io => match result {
                Ok(()) => self.write_superblock(attempt, effects),
                Err(errno) => self.break_down(errno),
            },
            Step::Superblock(attempt, write) if write == io => match result {
                Ok(()) => {
                    let flush = self.flush(effects);
                    self.step = Step::SecondFlush(attempt, flush);
                    Progress::Pending
                }
                Err(errno) => self.break_down(errno),
            },
            Step::SecondFlush(attempt, flush) if flush == io => match result {
                Ok(()) => {
                    self.ledger.commit(attempt);
                    let committed = self.ledger.superblock();
                    let is_first = Superblock::commit_copy(committed.generation).0 == 0;
                    self.write_copy(usize::from(is_first), effects);
                    Progress::Committed
                }
                Err(errno) => self.break_down(errno),
            },
            Step::Sealing(Some(flush)) if flush == io => Progress::Sealed(result),
            step => {
                self.step = step;
                Progress::Pending
            }
        }
    }

    /// Flushes a last time, the other superblock included.
    pub(crate) fn seal(&mut self, effects: &mut Vec<Effect>) -> Progress {
        assert!(matches!(self.step, Step::Idle));
        self.step = Step::Sealing(None);
        self.advance(effects)
    }

    /// Starts no more I/O. The I/O under way may be done or not.
    pub(crate) fn halt(&mut self) {
        self.step = Step::Idle;
        self.other = None;
        self.broken = self.broken.or(Some(Errno::EIO));
    }

    /// Starts a flush once all writes before it are done.
    fn advance(&mut self, effects: &mut Vec<Effect>) -> Progress {
        if self.other.is_some() {
            return Progress::Pending;
        }
        match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Writes { attempt, pending, failed } if pending.is_empty() => {
                if let Some(errno) = self.broken.or(failed) {
                    self.ledger.abandon(attempt);
                    return Progress::Failed(errno);
                }
                let flush = self.flush(effects);
                self.step = Step::FirstFlush(attempt, flush);
                Progress::Pending
            }
            Step::Sealing(None) => {
                if let Some(errno) = self.broken {
                    return Progress::Sealed(Err(errno));
                }
                self.step = Step::Sealing(Some(self.flush(effects)));
                Progress::Pending
            }
            step => {
                self.step = step;
                Progress::Pending
            }
        }
    }

    fn break_down(&mut self, errno: Errno) -> Progress {
        self.broken = Some(errno);
        Progress::Failed(errno)
    }

    fn write_superblock(&mut self, attempt: Attempt, effects: &mut Vec<Effect>) -> Progress {
        let superblock = attempt.superblock();
        let (block, bytes) = (Superblock::commit_copy(superblock.generation), superblock.encode());
        let io = self.io();
        effects.push(Effect::Write { io, block, bytes });
        self.step = Step::Superblock(attempt, io);
        Progress::Pending
    }

    fn flush(&mut self, effects: &mut Vec<Effect>) -> IoId {
        let io = self.io();
        effects.push(Effect::Flush { io });
        io
    }

    const fn io(&mut self) -> IoId {
        self.last_io += 1;
        IoId(self.last_io)
    }
}
