//! A record of a log rots, although it was durable: one bit of it flips, or its first bytes are
//! zeros, as if the rest of the block were empty. The recovery must not take that for the end of
//! the log, nor pass over it, and must change nothing.

use warren_base::{CellId, Errno, Lsn};
use warren_disk::RawRecord;
use warren_supervisor::Failure;

use super::cut::cut_power;
use super::pump::{pump, start_fleet};
use super::{Halt, Stage, World};
use crate::fleet::image::Log;
use crate::fleet::needs_recovery;

/// Bytes of a word of a record.
const WORD: u64 = 8;

/// Whether a later record of the log shows that this one was durable.
fn shows(records: &[RawRecord], at: usize) -> bool {
    records[at + 1..].iter().any(|later| later.durable > records[at].lsn)
}

/// Changes a record, if there is one that a later record shows to be durable. The recovery is
/// refused. Then the record is as it was.
pub(super) fn rot_log(world: &mut World) -> Result<(), Halt> {
    let logs = Log::all_on_device(&world.fleet);
    if logs.is_empty() || !needs_recovery(&world.fleet.device.disk).map_err(Halt::Broken)? {
        return Ok(());
    }
    let log = *world.fleet.sim.rng.pick(&logs);
    let records: Vec<_> =
        log.records(&world.fleet).into_iter().map(|(record, ..)| record).collect();
    let shown = (0..records.len()).filter(|at| shows(&records, *at)).collect::<Vec<_>>();
    if shown.is_empty() {
        return Ok(());
    }
    let RawRecord { lsn, end, .. } = records[*world.fleet.sim.rng.pick(&shown)];
    let is_zeroed = world.fleet.sim.rng.chance(1, 3);
    let words = if is_zeroed { 1 } else { (end.0 - lsn.0) / WORD };
    let at = Lsn(lsn.0 + WORD * world.fleet.sim.rng.below(words));
    let before = log.word(&world.fleet, at);
    let after = if is_zeroed { 0 } else { before ^ 1 << world.fleet.sim.rng.below(64) };
    log.put_word(&mut world.fleet, at, after);
    refuse_recovery(world, log.cell)?;
    log.put_word(&mut world.fleet, at, before);
    Ok(())
}

/// A recovery is refused because of the log of the cell.
fn refuse_recovery(world: &mut World, cell: CellId) -> Result<(), Halt> {
    let wanted = Failure::BrokenLog { cell, errno: Errno::EUCLEAN };
    world.rotten = Some(wanted);
    start_fleet(world, None)?;
    pump(world, |world| matches!(world.stage, Stage::Ended(_)))
        .map_err(|halt| halt.within("with a damaged log"))?;
    if world.stage != Stage::Ended(Err(wanted)) {
        return Err(Halt::Broken(format!("with a damaged log: {:?}", world.stage)));
    }
    world.rotten = None;
    world.fleet.sim.count("a damaged log refused");
    cut_power(world);
    Ok(())
}
