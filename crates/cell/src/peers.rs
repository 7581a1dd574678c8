//! The state of the other cells: which of them are lost, and which recover.

use std::collections::BTreeSet;

use warren_base::CellId;

/// The other cells of the fleet.
///
/// ```text
/// serving ──Lost──▶ lost ──Joined──▶ recovering ──AllSaid is sent to it──▶ serving
/// ```
#[derive(Debug)]
pub(crate) struct Peers {
    all: BTreeSet<CellId>,
    lost: BTreeSet<CellId>,
    /// Cells that recover and were not yet sent all decisions of this cell.
    recovering: BTreeSet<CellId>,
}

impl Peers {
    pub(crate) const fn new(all: BTreeSet<CellId>) -> Self {
        Self { all, lost: BTreeSet::new(), recovering: BTreeSet::new() }
    }

    pub(crate) fn all(&self) -> Vec<CellId> {
        self.all.iter().copied().collect()
    }

    pub(crate) fn has(&self, cell: CellId) -> bool {
        self.all.contains(&cell)
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    pub(crate) fn is_lost(&self, cell: CellId) -> bool {
        self.lost.contains(&cell)
    }

    /// Whether the cell recovers, and so has nothing prepared.
    pub(crate) fn is_recovering(&self, cell: CellId) -> bool {
        self.recovering.contains(&cell)
    }

    /// The recovering cells that are not lost again.
    pub(crate) fn recovering(&self) -> Vec<CellId> {
        self.recovering.difference(&self.lost).copied().collect()
    }

    pub(crate) fn lose(&mut self, cell: CellId) {
        self.lost.insert(cell);
    }

    pub(crate) fn join(&mut self, cell: CellId) {
        self.lost.remove(&cell);
        self.recovering.insert(cell);
    }

    /// This cell recovers, so it must send its decisions to every other cell.
    pub(crate) fn send_decisions_to_all(&mut self) {
        self.recovering = self.all.clone();
    }

    /// The cell was sent all decisions of this cell.
    pub(crate) fn was_sent_all(&mut self, cell: CellId) {
        self.recovering.remove(&cell);
    }
}
