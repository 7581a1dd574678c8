//! Cells that hang, and how that is noticed.
//!
//! A stopped cell does nothing until it is resumed. The supervisor's watch looks at it meanwhile.
//! If the stop is long the cell is tried and killed; otherwise it continues, perhaps in the middle
//! of its trial. Now and then the watch errs: it accuses a cell that works.

use std::time::Duration;

use warren_base::{Instant, Rng};
use warren_supervisor::{Condition, ProcessState, Seen, Watch, Work};

/// The longest pauses of a cell, in nanoseconds: shorter than a message, as long as I/O, far
/// longer.
const PAUSES: [u64; 3] = [10_000, 1_000_000, 1_000_000_000];

/// A process that is stopped or was.
#[derive(Default)]
pub(super) struct Pause {
    /// It does nothing before this time.
    until: Instant,
    watch: Watch,
}

impl Pause {
    /// Stops the process.
    pub(super) fn begin(&mut self, now: Instant, rng: &mut Rng) {
        let longest = *rng.pick(&PAUSES);
        self.until = Instant(now.0 + rng.below(longest));
    }

    /// The end of the pause, if the process is stopped.
    pub(super) fn end(&self, now: Instant) -> Option<Instant> {
        (self.until > now).then_some(self.until)
    }

    /// Looks at the process, as the supervisor's watch does.
    pub(super) fn look(&mut self, now: Instant) -> Seen {
        let beats = self.end(now).unwrap_or(now).0;
        let process = ProcessState { condition: Condition::Stopped, ran: Duration::ZERO };
        self.watch.look(now, beats, Work::Some, || Some(process))
    }
}
