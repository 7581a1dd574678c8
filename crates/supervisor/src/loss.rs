//! Cells that are lost, and their successors (Hive's two barriers; design 12).
//!
//! ```text
//! exit notice -> Lost to all who live -> all have Heard: nothing of the dead cell's is under way
//!             -> Restart, with all clients -> Joined to all others -> Ready: it serves again
//! ```
//!
//! Several may be lost at once, and a successor may be lost again at any point. Invariants:
//! * A successor starts from what the last checkpoint made of the ledger: while one is being recorded none
//!   starts, and one that still waits for cells is given up.
//! * Between the loss of a cell and the readiness of its successor no checkpoint begins.
//! * Once nobody knows which superblock counts (the recorder is broken) there are no successors: one would
//!   take blocks for free that its predecessor had written for a checkpoint that may be on the device.
//! * Of successors that end before they serve, each waits longer than the one before ([`pause_before`]): what
//!   they lack may come back. One that ends by itself (nobody has killed it) soon after it began to serve counts as well:
//!   a request that ends every cell that executes it must not go on for ever.
//! * A cell hears of a loss before it hears of the successor, and of each once. A successor hears first of
//!   those that are lost when it starts.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_base::{CellId, Epoch, Instant};
use warren_proto::Wire;
use warren_proto::control::Order;

use crate::admission::send;
use crate::count;
use crate::event::{Effect, Failure};
use crate::fleet::CellState;
use crate::set::CellSet;
use crate::supervisor::{Stage, Supervisor, Turn};

/// Processes of one cell that may end in a row, each before it serves or soon after by itself. Successors are tried for
/// some five seconds: a want of memory or descriptors is over by then, and what is not is in what they take over.
pub const SUCCESSORS_MAX: u32 = 12;

/// A cell that has served so long has come to something: how it ends then has nothing to do with what it took over.
pub const SERVES_MIN: Duration = Duration::from_secs(10);

/// Between the end of a successor that never served and the start of the next: the first such pause, and
/// the longest.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pause before the next successor when so many have ended in a row, at least one.
pub fn pause_before(failed: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failed - 1).unwrap_or(u32::MAX);
    PAUSE_MIN.saturating_mul(doubled).min(PAUSE_MAX)
}

#[derive(Wire)]
pub(crate) struct Losses {
    /// Lost cells without a successor, and who has not heard of them.
    unheard: BTreeMap<CellId, CellSet>,
    /// Processes that came to nothing, in a row, by cell.
    failed: Vec<u32>,
    /// When a process of the cell was ready last.
    ready_at: Vec<Instant>,
    /// Until when a lost cell gets no successor, after some that ended.
    paused: BTreeMap<CellId, Instant>,
    /// Free chunks may have been lost, and were not counted since.
    uncounted: bool,
}

impl Losses {
    pub fn new(cells: usize) -> Self {
        Self {
            unheard: BTreeMap::new(),
            failed: vec![0; cells],
            ready_at: vec![Instant::default(); cells],
            paused: BTreeMap::new(),
            uncounted: false,
        }
    }

    pub fn heard(&mut self, by: CellId, lost: CellId) {
        if let Some(waiting) = self.unheard.get_mut(&lost) {
            waiting.remove(by);
        }
    }

    /// A cell is ready, for the first time or again.
    pub fn recovered(&mut self, cell: CellId, now: Instant) {
        self.ready_at[usize::from(cell.0)] = now;
    }

    /// Whether a process that was ready, and ends by itself, has come to nothing.
    fn ends_early(&self, cell: CellId, now: Instant) -> bool {
        self.ready_at[usize::from(cell.0)] + SERVES_MIN > now
    }

    pub const fn is_uncounted(&self) -> bool {
        self.uncounted
    }

    /// The cell has served: what came before counts no more.
    fn has_served(&mut self, cell: CellId) {
        self.failed[usize::from(cell.0)] = 0;
    }

    /// The cell's process has come to nothing. Returns whether that happens too often.
    fn fails(&mut self, cell: CellId, now: Instant) -> bool {
        let failed = &mut self.failed[usize::from(cell.0)];
        *failed += 1;
        self.paused.insert(cell, now + pause_before(*failed));
        *failed >= SUCCESSORS_MAX
    }

    /// When the next pause between two successors is over.
    pub fn pauses_until(&self) -> impl Iterator<Item = Instant> + '_ {
        self.paused.values().copied()
    }

    fn lost(&mut self, cell: CellId, living: CellSet) {
        // The dead hear nothing.
        for waiting in self.unheard.values_mut() {
            waiting.remove(cell);
        }
        self.unheard.insert(cell, living);
        self.uncounted = true;
    }

    /// A lost cell of which everybody has heard, and whose successor need not wait.
    fn next_due(&mut self, now: Instant) -> Option<CellId> {
        self.paused.retain(|_, until| *until > now);
        let is_due = |(cell, waiting): &(&CellId, &CellSet)| {
            waiting.is_empty() && !self.paused.contains_key(cell)
        };
        self.unheard.iter().find(is_due).map(|(cell, _)| *cell)
    }
}

impl Supervisor {
    /// The cell's process is gone.
    pub(crate) fn lose(
        &mut self,
        (cell, epoch): (CellId, Epoch),
        by_itself: bool,
        turn: &mut Turn<'_>,
    ) {
        let was_ready = self.fleet.state(cell) == CellState::Ready;
        self.fleet.set(cell, CellState::Lost);
        if was_ready && !(by_itself && self.losses.ends_early(cell, turn.now)) {
            self.losses.has_served(cell);
        } else {
            if self.losses.fails(cell, turn.now) {
                let tries = SUCCESSORS_MAX;
                return self.fail(Failure::NoSuccessor { cell, tries }, turn);
            }
            self.set_alarm(turn);
        }
        self.losses.lost(cell, self.fleet.living());
        self.admission.lost(cell);
        send(self.fleet.living(), &Order::Lost { cell, epoch }, turn.effects);
        if self.barrier.is_answering() {
            self.abandon(turn);
        }
    }

    /// Gives up the checkpoint that waits for a cell which will not answer, for one later.
    fn abandon(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        send(self.fleet.living(), &Order::Abandoned { number }, turn.effects);
        self.barrier.end();
        self.barrier.wanted = true;
        if self.stage == (Stage::LastCheckpoint { started: true }) {
            self.stage = Stage::LastCheckpoint { started: false };
        }
    }

    /// Hands out again what free chunks nobody has, if all cells have said which they have.
    pub(crate) fn count_chunks(&mut self, turn: &mut Turn<'_>) {
        let written = self.barrier.parts().expect("all cells have written");
        if !self.losses.uncounted {
            return;
        }
        if let Some(missing) = count::missing(self.recorder.ledger(), written) {
            self.losses.uncounted = false;
            // Whoever finds none asks all others, so it may be anybody's.
            count::hand_out(&missing, written[0].0, turn.effects);
        }
    }

    /// Starts successors of the cells whose loss everybody has heard of.
    pub(crate) fn restart_lost(&mut self, turn: &mut Turn<'_>) {
        let is_over = matches!(self.stage, Stage::Closing { .. } | Stage::Ended);
        while !is_over
            && !self.barrier.is_recording()
            && let Some(cell) = self.losses.next_due(turn.now)
        {
            if self.recorder.broken().is_some() {
                let epoch = self.fleet.epoch(cell);
                return self.fail(Failure::CellExited { cell, epoch }, turn);
            }
            self.losses.unheard.remove(&cell);
            let others = self.fleet.living();
            let epoch = self.fleet.restart(cell);
            turn.effects.push(Effect::Restart { cell, epoch });
            for (lost, waiting) in &mut self.losses.unheard {
                waiting.insert(cell);
                let epoch = self.fleet.epoch(*lost);
                let order = Order::Lost { cell: *lost, epoch };
                turn.effects.push(Effect::Send { to: cell, order });
            }
            self.admission.introduce(cell, turn.effects);
            send(others, &Order::Joined { cell, epoch }, turn.effects);
        }
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
