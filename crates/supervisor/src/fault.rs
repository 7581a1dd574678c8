//! A record of the last faults: which process ended, why, who voted, and how long each phase of its
//! replacement took (Hive 4.4, diagnostics).
//!
//! ```text
//! hint ──▶ verdict ──▶ gone ──▶ first barrier, its successor starts ──▶ the successor serves
//!    (only of a process that was killed by the supervisor)
//! ```

use std::collections::BTreeMap;

use warren_base::{CellId, Epoch, Instant, Timestamp};
use warren_proto::Wire;

use crate::alarm::Process;
use crate::event::Verdict;
use crate::harmed::{Discarded, HarmedFiles, PostFailed};

/// Faults that are kept. All of them are in the supervisor's notes, which are written for each
/// event.
const KEPT: usize = 16;

/// Why a process of a cell has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Cause {
    /// It was killed without a verdict, or could not be started.
    FromOutside,
    /// An error, a panic or a signal of its own.
    ByItself,
    Verdict(Verdict),
}

/// The end of one process of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Fault {
    /// Faults of a fleet count from 1.
    pub number: u64,
    pub cell: CellId,
    pub epoch: Epoch,
    pub at: Timestamp,
    pub cause: Cause,
    /// When the supervisor was first told of it: a hint, an alarm, or the exit notice.
    pub noticed: Instant,
    pub gone: Instant,
    /// When its successor was started, and when it served.
    pub started: Option<Instant>,
    pub served: Option<Instant>,
}

/// A process that is being killed.
#[derive(Wire)]
struct Sentenced {
    epoch: Epoch,
    verdict: Verdict,
    noticed: Instant,
}

#[derive(Default, Wire)]
pub(crate) struct Faults {
    count: u64,
    sentenced: BTreeMap<CellId, Sentenced>,
    recent: Vec<Fault>,
    pub discarded: HarmedFiles<Discarded>,
    pub posts_failed: HarmedFiles<PostFailed>,
}

impl Faults {
    /// The process is killed by this verdict, of which the first sign was `noticed`.
    pub(crate) fn sentenced(&mut self, process: Process, verdict: Verdict, noticed: Instant) {
        let (cell, epoch) = process;
        self.sentenced.insert(cell, Sentenced { epoch, verdict, noticed });
    }

    pub(crate) fn gone(
        &mut self,
        (cell, epoch): Process,
        by_itself: bool,
        (now, at): (Instant, Timestamp),
    ) {
        let sentenced = self.sentenced.remove(&cell).filter(|it| it.epoch == epoch);
        let cause = match &sentenced {
            Some(it) => Cause::Verdict(it.verdict),
            None if by_itself => Cause::ByItself,
            None => Cause::FromOutside,
        };
        let noticed = sentenced.map_or(now, |it| it.noticed);
        self.count += 1;
        let number = self.count;
        let (started, served) = (None, None);
        self.recent.push(Fault {
            number,
            cell,
            epoch,
            at,
            cause,
            noticed,
            gone: now,
            started,
            served,
        });
        if self.recent.len() > KEPT {
            self.recent.remove(0);
        }
    }

    pub(crate) fn successor_starts(&mut self, cell: CellId, now: Instant) {
        if let Some(fault) = self.last_of(cell) {
            fault.started = Some(now);
        }
    }

    pub(crate) fn successor_serves(&mut self, cell: CellId, now: Instant) {
        if let Some(fault) = self.last_of(cell) {
            fault.served.get_or_insert(now);
        }
    }

    pub(crate) fn recent(&self) -> impl Iterator<Item = &Fault> {
        self.recent.iter()
    }

    fn last_of(&mut self, cell: CellId) -> Option<&mut Fault> {
        self.recent.iter_mut().rev().find(|fault| fault.cell == cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Hint;

    #[test]
    fn a_fault_has_its_cause_and_its_phases() {
        let (a, b) = ((CellId(0), Epoch(3)), (CellId(1), Epoch(5)));
        let verdict = Verdict::Hangs { why: Hint::Stopped, hangs: 2, voices: 2 };
        let mut faults = Faults::default();
        faults.sentenced(a, verdict, Instant(10));
        // This verdict was against its predecessor.
        faults.sentenced((b.0, Epoch(4)), verdict, Instant(10));
        faults.gone(a, false, (Instant(20), Timestamp(7)));
        faults.gone(b, true, (Instant(21), Timestamp(8)));
        faults.successor_starts(a.0, Instant(30));
        faults.successor_serves(a.0, Instant(40));
        faults.successor_serves(a.0, Instant(50));
        let seen: Vec<_> = faults.recent().collect();
        assert_eq!((seen[0].number, seen[0].cause), (1, Cause::Verdict(verdict)));
        assert_eq!((seen[0].noticed, seen[0].gone), (Instant(10), Instant(20)));
        assert_eq!((seen[0].started, seen[0].served), (Some(Instant(30)), Some(Instant(40))));
        assert_eq!((seen[1].cause, seen[1].noticed), (Cause::ByItself, Instant(21)));
        assert_eq!((seen[1].started, seen[1].served), (None, None));
    }

    #[test]
    fn the_last_faults_are_kept() {
        let mut faults = Faults::default();
        for n in 0..3 * KEPT as u64 {
            faults.gone((CellId(0), Epoch(1)), false, (Instant(n), Timestamp(0)));
        }
        let numbers: Vec<u64> = faults.recent().map(|fault| fault.number).collect();
        assert_eq!(numbers.len(), KEPT);
        assert_eq!(numbers.last(), Some(&(3 * KEPT as u64)));
    }
}
