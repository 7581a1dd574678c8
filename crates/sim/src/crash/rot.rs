//! A record of a log rots: one bit of it flips, although it was durable. The recovery must not take
//! that for the end of the log, and must change nothing.

use warren_base::{CellId, Errno};
use warren_disk::RawRecord;
use warren_supervisor::Failure;

use super::{Halt, Stage, World};
use crate::fleet::image::Log;

/// Whether a later record of the log shows that this one was durable.
fn shows(records: &[RawRecord], at: usize) -> bool {
    records[at + 1..].iter().any(|later| later.durable > records[at].lsn)
}

impl World {
    /// Flips a bit of a record, if there is one that a later record shows to be durable. The
    /// recovery is refused. Then the bit is as it was.
    pub(super) fn rot(&mut self) -> Result<(), Halt> {
        let logs = Log::all_on_device(&self.fleet);
        if logs.is_empty() || !self.fleet.needs_recovery().map_err(Halt::Broken)? {
            return Ok(());
        }
        let log = *self.fleet.rng.pick(&logs);
        let records: Vec<_> =
            log.records(&self.fleet).into_iter().map(|(record, ..)| record).collect();
        let shown = (0..records.len()).filter(|at| shows(&records, *at)).collect::<Vec<_>>();
        if shown.is_empty() {
            return Ok(());
        }
        let RawRecord { lsn, end, .. } = records[*self.fleet.rng.pick(&shown)];
        let bit = 8 * lsn.0 + self.fleet.rng.below(8 * (end.0 - lsn.0));
        log.flip(&mut self.fleet, bit);
        self.refuse(log.cell)?;
        log.flip(&mut self.fleet, bit);
        Ok(())
    }

    /// A recovery is refused because of the log of the cell.
    fn refuse(&mut self, cell: CellId) -> Result<(), Halt> {
        let wanted = Failure::BrokenLog { cell, errno: Errno::EUCLEAN };
        self.rotten = Some(wanted);
        self.start(None)?;
        self.pump(|world| matches!(world.stage, Stage::Ended(_)))
            .map_err(|halt| halt.within("with a damaged log"))?;
        if self.stage != Stage::Ended(Err(wanted)) {
            return Err(Halt::Broken(format!("with a damaged log: {:?}", self.stage)));
        }
        self.rotten = None;
        self.fleet.count("a damaged log refused");
        self.power_cut();
        Ok(())
    }
}
