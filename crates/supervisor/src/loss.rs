//! Lost cells and their successors (Hive's two barriers; decision 10).
//!
//! ```text
//! exit notice -> Lost to all living cells -> all acknowledge: no message of the lost cell is left
//!             -> Restart, with all clients -> Joined to all other cells -> Ready: it serves again
//! ```
//!
//! Several cells may be lost at once, and a successor may be lost at any point. Invariants:
//! * A successor starts from the ledger as the last checkpoint left it. So no successor starts
//!   while a checkpoint is being recorded, and a checkpoint that still waits for cells is aborted.
//! * No checkpoint starts between the loss of a cell and the readiness of its successor.
//! * There are no successors once the committer is broken, because it is unknown which superblock
//!   counts: a successor would take blocks for free that its predecessor wrote for a checkpoint
//!   that may be on the device.
//! * Of successors that end before they serve, each waits longer than the one before
//!   ([`pause_before`]), because a resource that they lack may come back. A process that crashes
//!   (it was not killed) soon after it began to serve counts as well: a request that ends each
//!   cell that executes it must not be retried for ever.
//! * A cell receives the loss of a peer before its successor, each once. A successor first receives
//!   the losses of all cells that are lost when it starts.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_base::{CellId, Instant};
use warren_proto::Wire;

use crate::set::CellSet;

/// Processes of one cell that may end in a row, each before it serves or by a crash soon after.
/// Successors are started for about five seconds: a lack of memory or descriptors is over by then,
/// and otherwise the cause is in the state that they take over.
pub const SUCCESSORS_MAX: u32 = 12;

/// After this time of service, the end of a cell has nothing to do with the state that it took
/// over.
pub(crate) const SERVES_MIN: Duration = Duration::from_secs(10);

/// Between the end of a successor that never served and the start of the next: the first such
/// pause, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pause before the next successor after so many that ended in a row, at least one.
pub fn pause_before(failed: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failed - 1).unwrap_or(u32::MAX);
    PAUSE_MIN.saturating_mul(doubled).min(PAUSE_MAX)
}

/// The consequence of the end of a cell's process for its successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// The process has served. Its successor need not wait.
    Served,
    /// The process has not served, or crashed soon. Its successor waits.
    Failed,
    /// Too many processes in a row have not served. The cell is taken out.
    TooOften,
}

#[derive(Wire)]
pub(crate) struct Losses {
    /// Lost cells without a successor, and the cells that have not acknowledged the loss.
    unacknowledged: BTreeMap<CellId, CellSet>,
    /// By cell: processes in a row that have not served.
    failed: Vec<u32>,
    /// When a process of the cell was ready last.
    ready_at: Vec<Instant>,
    /// Until when a lost cell gets no successor, after some that ended.
    paused: BTreeMap<CellId, Instant>,
    /// Free chunks may have been lost, and were not counted since.
    uncounted: bool,
}

impl Losses {
    pub(crate) fn new(cells: usize) -> Self {
        Self {
            unacknowledged: BTreeMap::new(),
            failed: vec![0; cells],
            ready_at: vec![Instant::default(); cells],
            paused: BTreeMap::new(),
            uncounted: false,
        }
    }

    /// The cell's process is gone. `is_crash`: it was not killed.
    pub(crate) fn ended(
        &mut self,
        cell: CellId,
        was_ready: bool,
        is_crash: bool,
        now: Instant,
    ) -> Ended {
        if was_ready && !(is_crash && self.ends_early(cell, now)) {
            self.has_served(cell);
            return Ended::Served;
        }
        match self.fails(cell, now) {
            true => Ended::TooOften,
            false => Ended::Failed,
        }
    }

    /// The cell goes on in another way: its earlier failures do not count, and it need not wait.
    pub(crate) fn begin_row(&mut self, cell: CellId) {
        self.has_served(cell);
        self.paused.remove(&cell);
    }

    /// The cell waits for a successor, which starts when the `living` cells have acknowledged.
    pub(crate) fn lost(&mut self, cell: CellId, living: CellSet) {
        // A lost cell acknowledges nothing any more.
        for waiting in self.unacknowledged.values_mut() {
            waiting.remove(cell);
        }
        self.unacknowledged.insert(cell, living);
        self.uncounted = true;
    }

    pub(crate) fn acknowledged(&mut self, by: CellId, lost: CellId) {
        if let Some(waiting) = self.unacknowledged.get_mut(&lost) {
            waiting.remove(by);
        }
    }

    /// A lost cell whose loss all cells have acknowledged, and whose successor need not wait.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<CellId> {
        self.paused.retain(|_, until| *until > now);
        let is_due = |(cell, waiting): &(&CellId, &CellSet)| {
            waiting.is_empty() && !self.paused.contains_key(cell)
        };
        self.unacknowledged.iter().find(is_due).map(|(cell, _)| *cell)
    }

    /// A successor of the cell starts. Returns the cells that are still lost: it must acknowledge
    /// their losses too.
    pub(crate) fn start_successor(&mut self, cell: CellId) -> Vec<CellId> {
        self.unacknowledged.remove(&cell);
        self.unacknowledged.values_mut().for_each(|waiting| waiting.insert(cell));
        self.unacknowledged.keys().copied().collect()
    }

    /// A process of the cell is ready, the first one or a successor.
    pub(crate) fn ready(&mut self, cell: CellId, now: Instant) {
        self.ready_at[usize::from(cell.0)] = now;
    }

    /// When the pauses of lost cells end.
    pub(crate) fn pauses_until(&self) -> impl Iterator<Item = Instant> + '_ {
        self.paused.values().copied()
    }

    pub(crate) const fn is_uncounted(&self) -> bool {
        self.uncounted
    }

    /// The free chunks have been counted.
    pub(crate) const fn counted(&mut self) {
        self.uncounted = false;
    }

    /// Whether a process that was ready and crashes now has served too briefly.
    fn ends_early(&self, cell: CellId, now: Instant) -> bool {
        self.ready_at[usize::from(cell.0)] + SERVES_MIN > now
    }

    /// The cell has served: its earlier failures no longer count.
    fn has_served(&mut self, cell: CellId) {
        self.failed[usize::from(cell.0)] = 0;
    }

    /// The cell's process has not served. Returns whether that happened too often.
    fn fails(&mut self, cell: CellId, now: Instant) -> bool {
        let failed = &mut self.failed[usize::from(cell.0)];
        *failed += 1;
        self.paused.insert(cell, now + pause_before(*failed));
        *failed >= SUCCESSORS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: CellId = CellId(0);

    #[test]
    fn a_successor_that_serves_ends_the_row_of_those_that_did_not() {
        let mut losses = Losses::new(1);
        for _ in 0..2 {
            let mut ends = || losses.fails(CELL, Instant(1));
            assert!((1..SUCCESSORS_MAX).all(|_| !ends()));
            losses.has_served(CELL);
        }
        assert!((1..SUCCESSORS_MAX).all(|_| !losses.fails(CELL, Instant(1))));
        assert!(losses.fails(CELL, Instant(1)));
    }

    #[test]
    fn free_chunks_of_a_lost_cell_are_to_be_counted() {
        let mut losses = Losses::new(2);
        assert!(!losses.is_uncounted());
        losses.lost(CELL, CellSet::first(2));
        assert!(losses.is_uncounted());
    }
}
