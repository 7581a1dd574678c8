//! The watch over each cell's process, and over the mounts.

use warren_base::{CellId, Epoch, Instant};
use warren_supervisor::Watch;

use super::mounts::MountLooks;

/// The watch over one cell: over the process of an epoch.
#[derive(Default)]
struct CellWatch {
    epoch: Epoch,
    watch: Watch,
    /// The beats at the last look.
    beats: u64,
}

pub(super) struct Watches {
    cells: Vec<CellWatch>,
    /// When the next look is due.
    pub next: Instant,
    pub mounts: MountLooks,
}

impl Watches {
    pub(super) fn new(cells: u16) -> Self {
        let cells = (0..cells).map(|_| CellWatch::default()).collect();
        Self { cells, next: Instant(0), mounts: MountLooks::default() }
    }

    fn place(&mut self, cell: CellId, epoch: Epoch) -> &mut CellWatch {
        let place = &mut self.cells[usize::from(cell.0)];
        if place.epoch != epoch {
            *place = CellWatch { epoch, watch: place.watch.of_successor(), beats: 0 };
        }
        place
    }

    /// The watch over this process of a cell.
    pub(super) fn of(&mut self, cell: CellId, epoch: Epoch) -> &mut Watch {
        &mut self.place(cell, epoch).watch
    }

    /// Whether the process has turned its loop since the last call.
    pub(super) fn has_turned(&mut self, cell: CellId, epoch: Epoch, beats: u64) -> bool {
        let place = self.place(cell, epoch);
        std::mem::replace(&mut place.beats, beats) != beats
    }
}
