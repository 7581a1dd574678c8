//! The watch over each cell's process.

use warren_base::{CellId, Epoch, Instant};
use warren_supervisor::Watch;

/// The watch over one cell: over the process of an epoch.
#[derive(Default)]
struct CellWatch {
    epoch: Epoch,
    watch: Watch,
}

pub(super) struct Watches {
    cells: Vec<CellWatch>,
    /// When the next look is due.
    pub next: Instant,
}

impl Watches {
    pub(super) fn new(cells: u16) -> Self {
        let cells = (0..cells).map(|_| CellWatch::default()).collect();
        Self { cells, next: Instant(0) }
    }

    /// The watch over this process of a cell.
    pub(super) fn of(&mut self, cell: CellId, epoch: Epoch) -> &mut Watch {
        let place = &mut self.cells[usize::from(cell.0)];
        if place.epoch != epoch {
            *place = CellWatch { epoch, watch: place.watch.of_successor() };
        }
        &mut place.watch
    }
}
