//! A record of a log rots, although it was durable: one bit of it flips, or its first bytes are
//! zeros, as if the rest of the block were empty. The recovery must not take that for the end of
//! the log, nor pass over it, and must change nothing.

use warren_base::{CellId, Errno, Lsn};
use warren_disk::RawRecord;
use warren_supervisor::Failure;

use super::{Halt, Stage, World};
use crate::fleet::image::Log;
use crate::fleet::needs_recovery;

/// Bytes of a word of a record.
const WORD: u64 = 8;

/// Whether a later record of the log shows that this one was durable.
fn shows(records: &[RawRecord], at: usize) -> bool {
    records[at + 1..].iter().any(|later| later.durable > records[at].lsn)
}

impl World {
    /// Changes a record, if there is one that a later record shows to be durable. The recovery is
    /// refused. Then the record is as it was.
    pub(super) fn rot(&mut self) -> Result<(), Halt> {
        let logs = Log::all_on_device(&self.fleet);
        if logs.is_empty() || !needs_recovery(&self.fleet.device.disk).map_err(Halt::Broken)? {
            return Ok(());
        }
        let log = *self.fleet.sim.rng.pick(&logs);
        let records: Vec<_> =
            log.records(&self.fleet).into_iter().map(|(record, ..)| record).collect();
        let shown = (0..records.len()).filter(|at| shows(&records, *at)).collect::<Vec<_>>();
        if shown.is_empty() {
            return Ok(());
        }
        let RawRecord { lsn, end, .. } = records[*self.fleet.sim.rng.pick(&shown)];
        let is_zeroed = self.fleet.sim.rng.chance(1, 3);
        let words = if is_zeroed { 1 } else { (end.0 - lsn.0) / WORD };
        let at = Lsn(lsn.0 + WORD * self.fleet.sim.rng.below(words));
        let before = log.word(&self.fleet, at);
        let after = if is_zeroed { 0 } else { before ^ 1 << self.fleet.sim.rng.below(64) };
        log.put_word(&mut self.fleet, at, after);
        self.refuse(log.cell)?;
        log.put_word(&mut self.fleet, at, before);
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
        self.fleet.sim.count("a damaged log refused");
        self.power_cut();
        Ok(())
    }
}
