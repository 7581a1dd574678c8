//! The phases of a checkpoint over all cells.
//!
//! ```text
//! idle -> draining: no cell starts a transaction, and those under way end
//!      -> writing: each cell writes its dirty blocks, flushes and reports
//!      -> recording: the supervisor commits the checkpoint -> idle
//! ```
//!
//! Each attempt has a number of its own, so that a late reply does not count for a later attempt.
//! An attempt fails only after all cells have replied, so that no cell still writes for it. An
//! attempt that waits for a lost cell is aborted at once. Cells may still write for it: the next
//! attempt waits for those writes, and they go to blocks that the committed state does not use.

use warren_base::{CellId, Errno};
use warren_proto::Wire;
use warren_proto::control::Written;

use crate::set::CellSet;

#[derive(Wire)]
enum Phase {
    Idle,
    Draining {
        waiting: CellSet,
    },
    Writing {
        waiting: CellSet,
        written: Vec<(CellId, Written)>,
        failed: Option<Errno>,
    },
    /// The parts are kept, so that a supervisor that takes over can record them again.
    Recording {
        written: Vec<(CellId, Written)>,
    },
}

#[derive(Wire)]
pub(crate) struct Barrier {
    /// The number of the attempt under way, or of the last one.
    number: u64,
    /// A cell, or an aborted attempt, needs an attempt that starts later than now.
    requested: bool,
    phase: Phase,
}

/// Whether all cells could write.
pub(crate) type AllWritten = Result<(), Errno>;

impl Barrier {
    /// `number` is the last checkpoint on the device.
    pub(crate) const fn new(number: u64) -> Self {
        Self { number, requested: false, phase: Phase::Idle }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The number of a commit that no cell takes part in.
    pub(crate) const fn skip(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(crate) const fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// A cell whose reply the attempt waits for.
    pub(crate) fn waits_for(&self) -> Option<CellId> {
        match &self.phase {
            Phase::Draining { waiting } | Phase::Writing { waiting, .. } => waiting.iter().next(),
            Phase::Idle | Phase::Recording { .. } => None,
        }
    }

    /// Requests an attempt that starts later than now.
    pub(crate) const fn request(&mut self) {
        self.requested = true;
    }

    pub(crate) const fn is_requested(&self) -> bool {
        self.requested
    }

    /// Starts an attempt, which serves all requests until now.
    pub(crate) fn start(&mut self, cells: CellSet) -> u64 {
        assert!(self.is_idle(), "one checkpoint at a time");
        self.number += 1;
        self.requested = false;
        self.phase = Phase::Draining { waiting: cells };
        self.number
    }

    /// Whether the last cell has drained now.
    pub(crate) fn drained(&mut self, cell: CellId, number: u64) -> bool {
        match &mut self.phase {
            Phase::Draining { waiting } if number == self.number => {
                waiting.remove(cell) && waiting.is_empty()
            }
            _ => false,
        }
    }

    pub(crate) fn write(&mut self, cells: CellSet) {
        self.phase = Phase::Writing { waiting: cells, written: Vec::new(), failed: None };
    }

    /// Returns the result once the last cell has replied. The recording follows.
    pub(crate) fn written(
        &mut self,
        cell: CellId,
        number: u64,
        result: Result<Written, Errno>,
    ) -> Option<AllWritten> {
        let Phase::Writing { waiting, written, failed } = &mut self.phase else { return None };
        if number != self.number || !waiting.remove(cell) {
            return None;
        }
        match result {
            Ok(part) => written.push((cell, part)),
            Err(errno) => *failed = failed.or(Some(errno)),
        }
        if !waiting.is_empty() {
            return None;
        }
        let (written, failed) = (std::mem::take(written), *failed);
        self.phase = Phase::Recording { written };
        Some(failed.map_or(Ok(()), Err))
    }

    /// The parts of all cells, while they are being recorded.
    pub(crate) fn parts(&self) -> Option<&[(CellId, Written)]> {
        match &self.phase {
            Phase::Recording { written } => Some(written),
            _ => None,
        }
    }

    /// Whether cells have yet to reply: the attempt can be aborted.
    pub(crate) const fn is_answering(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. } | Phase::Writing { .. })
    }

    pub(crate) const fn is_recording(&self) -> bool {
        matches!(self.phase, Phase::Recording { .. })
    }

    /// The attempt has succeeded, failed or was aborted.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: CellId = CellId(0);

    #[test]
    fn replies_of_an_earlier_attempt_do_not_count() {
        let mut barrier = Barrier::new(5);
        assert_eq!(barrier.start(CellSet::first(1)), 6);
        assert!(!barrier.drained(CELL, 5));
        assert!(barrier.drained(CELL, 6));
        barrier.write(CellSet::first(1));
        assert_eq!(barrier.written(CELL, 5, Err(Errno::EIO)), None);
        assert_eq!(barrier.written(CELL, 6, Err(Errno::EIO)), Some(Err(Errno::EIO)));
    }
}
