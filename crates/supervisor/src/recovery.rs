//! Recovery of a pool that is not clean: how much of each log counts.
//!
//! ```text
//! all logs are read -> each is cut where it depends on lost records of another, until no cut moves
//!                   -> replay -> all claimed chunks to all cells -> ready -> checkpoint
//! ```
//!
//! There is one cell for each log. The result is the greatest consistent cut, because a cell cuts
//! its log only before a record that depends on a missing record of another log (decision 0008).

use warren_base::{CellId, Lsn};

use crate::set::CellSet;

/// The next order of the supervisor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Cut(Vec<Lsn>),
    Replay,
    Claimed(Vec<u64>),
}

/// The recovery of all cells.
pub(crate) struct Recovery {
    ends: Vec<Lsn>,
    /// The ends that all cells had received when they cut last.
    agreed: Option<Vec<Lsn>>,
    waiting: CellSet,
    claimed: Vec<u64>,
}

impl Recovery {
    pub(crate) fn new(cells: CellSet) -> Self {
        let ends = vec![Lsn(0); cells.iter().count()];
        Self { ends, agreed: None, waiting: cells, claimed: Vec::new() }
    }

    /// A log ends, or is cut, here.
    pub(crate) fn log_end(&mut self, cell: CellId, lsn: Lsn, all: CellSet) -> Option<Next> {
        let end = self.ends.get_mut(usize::from(cell.0))?;
        if !self.waiting.remove(cell) {
            return None;
        }
        *end = lsn;
        if !self.waiting.is_empty() {
            return None;
        }
        self.waiting = all;
        if self.agreed.as_ref() == Some(&self.ends) {
            return Some(Next::Replay);
        }
        self.agreed = Some(self.ends.clone());
        Some(Next::Cut(self.ends.clone()))
    }

    /// A log is replayed, and its records claim these chunks.
    pub(crate) fn replayed(&mut self, cell: CellId, chunks: Vec<u64>) -> Option<Next> {
        if !self.waiting.remove(cell) {
            return None;
        }
        self.claimed.extend(chunks);
        self.waiting.is_empty().then(|| Next::Claimed(std::mem::take(&mut self.claimed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELLS: [CellId; 2] = [CellId(0), CellId(1)];

    #[test]
    fn cells_cut_until_no_cut_moves() {
        let all = CellSet::first(CELLS.len());
        let mut recovery = Recovery::new(all);
        assert_eq!(recovery.log_end(CELLS[0], Lsn(90), all), None);
        let cut = recovery.log_end(CELLS[1], Lsn(50), all);
        assert_eq!(cut, Some(Next::Cut(vec![Lsn(90), Lsn(50)])));
        assert_eq!(recovery.log_end(CELLS[0], Lsn(40), all), None);
        let cut = recovery.log_end(CELLS[1], Lsn(50), all);
        assert_eq!(cut, Some(Next::Cut(vec![Lsn(40), Lsn(50)])));
        assert_eq!(recovery.log_end(CELLS[0], Lsn(40), all), None);
        assert_eq!(recovery.log_end(CELLS[1], Lsn(50), all), Some(Next::Replay));
        assert_eq!(recovery.replayed(CELLS[1], vec![7]), None);
        assert_eq!(recovery.replayed(CELLS[1], vec![8]), None, "each reports once");
        assert_eq!(recovery.replayed(CELLS[0], vec![9]), Some(Next::Claimed(vec![7, 9])));
    }
}
