//! The supervisor's watch over the cells: it looks at their vitals and bells, and informs the core
//! of cells that hang.

use warren_base::{CellId, Epoch, Instant};
use warren_supervisor::{Event, LOOK_EVERY, Seen, Watch};

use super::state::SupervisorLoop;
use crate::clock;
use crate::error::FleetError;
use crate::watch::process;

/// The watch over one cell: over the process of an epoch.
#[derive(Default)]
struct CellWatch {
    epoch: Epoch,
    watch: Watch,
}

pub(super) struct Watches {
    cells: Vec<CellWatch>,
    next: Instant,
}

impl Watches {
    pub(super) fn new(cells: u16) -> Self {
        let cells = (0..cells).map(|_| CellWatch::default()).collect();
        Self { cells, next: Instant(0) }
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// The watch over this process of a cell.
    fn of(&mut self, cell: CellId, epoch: Epoch) -> &mut Watch {
        let place = &mut self.cells[usize::from(cell.0)];
        if place.epoch != epoch {
            *place = CellWatch { epoch, watch: Watch::default() };
        }
        &mut place.watch
    }
}

impl SupervisorLoop<'_> {
    /// Looks at all cells, and at the keeper, if it is time.
    pub(super) fn look_around(&mut self) -> Result<(), FleetError> {
        let now = clock::monotonic();
        if now < self.watches.next {
            return Ok(());
        }
        self.watches.next = now + LOOK_EVERY;
        self.keeper.look();
        let living: Vec<CellId> = self.cells.living().collect();
        for cell in living {
            let (epoch, pid) = (self.cells[cell].epoch, self.cells[cell].pid);
            let memory = &self.memory.cells[usize::from(cell.0)];
            let (beats, work) = (memory.vitals.heartbeat(), memory.work(epoch));
            let watch = self.watches.of(cell, epoch);
            // Without a number yet, the process has just been requested.
            match watch.look(now, beats, work, || process(pid)) {
                Seen::Nothing => {}
                Seen::Hangs(why) => self.apply(Event::Hangs { cell, epoch, why })?,
                Seen::Moves => self.apply(Event::Moves { cell, epoch })?,
            }
        }
        Ok(())
    }
}
