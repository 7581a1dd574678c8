//! The cells' processes, and processes of an earlier supervisor that this one does not use.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use warren_base::CellId;

use super::cell_process::CellProcess;

pub(super) struct Cells {
    /// In the order of their numbers.
    cells: Vec<CellProcess>,
    /// Processes that an earlier supervisor had started and this one does not use. They are being
    /// killed.
    orphans: BTreeSet<u32>,
    /// Successors that have not been sent `Begin` yet.
    beginning: Vec<CellId>,
}

impl Cells {
    pub(super) fn new(cells: Vec<CellProcess>, orphans: BTreeSet<u32>) -> Self {
        Self { cells, orphans, beginning: Vec::new() }
    }

    pub(super) fn count(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn as_slice(&self) -> &[CellProcess] {
        &self.cells
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CellId, &CellProcess)> {
        (0..).map(CellId).zip(&self.cells)
    }

    /// Cells whose processes run and whose links are open.
    pub(super) fn living(&self) -> impl Iterator<Item = CellId> {
        self.iter().filter(|(_, cell)| cell.alive).map(|(number, _)| number)
    }

    pub(super) fn have_all_exited(&self) -> bool {
        self.cells.iter().all(|cell| cell.exited)
    }

    /// Whether packets wait until a cell takes them.
    pub(super) fn is_backed_up(&self) -> bool {
        self.cells.iter().any(|cell| cell.link.is_backed_up())
    }

    pub(super) fn by_token(&mut self, token: u32) -> Option<&mut CellProcess> {
        self.cells.iter_mut().find(|cell| cell.token == token)
    }

    /// The cell whose process this is, unless it has been reaped.
    pub(super) fn running(&self, token: u32) -> Option<CellId> {
        let is_it = |(_, cell): &(CellId, &CellProcess)| cell.token == token && !cell.exited;
        self.iter().find(is_it).map(|(number, _)| number)
    }

    /// Sends `Begin` after the effects that are being carried out, because they contain what the
    /// successor must know first.
    pub(super) fn begin_later(&mut self, cell: CellId) {
        self.beginning.push(cell);
    }

    pub(super) fn send_begins(&mut self) {
        for cell in self.beginning.drain(..) {
            self.cells[usize::from(cell.0)].send_begin();
        }
    }

    pub(super) fn orphans(&self) -> &BTreeSet<u32> {
        &self.orphans
    }

    /// Removes an orphan that has ended. False if the process was not one.
    pub(super) fn end_orphan(&mut self, token: u32) -> bool {
        self.orphans.remove(&token)
    }
}

impl Index<CellId> for Cells {
    type Output = CellProcess;

    fn index(&self, cell: CellId) -> &CellProcess {
        &self.cells[usize::from(cell.0)]
    }
}

impl IndexMut<CellId> for Cells {
    fn index_mut(&mut self, cell: CellId) -> &mut CellProcess {
        &mut self.cells[usize::from(cell.0)]
    }
}
