//! Cells that are taken out: too many of their processes have ended in a row.
//!
//! ```text
//! serves ──too many ended in a row──▶ out: a caretaker answers EIO
//!                                      ▲     │ Rejoin: it is killed
//!                                      │     ▼
//!                                      └── returning ──the process is ready──▶ serves
//! ```
//!
//! A caretaker (`cell`) keeps the frames and the log of the cell for the process that returns.
//! While a cell is not back the pool is not marked clean, because its log is to be replayed.

use std::collections::BTreeMap;

use warren_base::{CellId, Errno, ShardId, Timestamp};
use warren_proto::Wire;

use crate::event::Failure;
use crate::status::TakenOut;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
enum Stage {
    Out,
    /// Its caretaker is being ended.
    Ending,
    /// A process was started that serves its shards.
    Returning,
}

#[derive(Clone, Copy, Debug, Wire)]
struct Outage {
    since: Timestamp,
    stage: Stage,
}

#[derive(Default, Wire)]
pub(crate) struct Outages {
    cells: BTreeMap<CellId, Outage>,
}

impl Outages {
    /// Takes the cell out, or again if it could not return.
    pub(crate) fn begin(&mut self, cell: CellId, since: Timestamp) {
        let outage = self.cells.entry(cell).or_insert(Outage { since, stage: Stage::Out });
        outage.stage = Stage::Out;
    }

    /// The next process of the cell serves its shards. False if the cell is not out.
    pub(crate) fn rejoin(&mut self, cell: CellId) -> bool {
        let out = self.cells.get_mut(&cell).filter(|outage| outage.stage == Stage::Out);
        out.map(|outage| outage.stage = Stage::Ending).is_some()
    }

    /// A process of the cell is started. Returns whether it is a caretaker.
    pub(crate) fn starts(&mut self, cell: CellId) -> bool {
        let Some(outage) = self.cells.get_mut(&cell) else { return false };
        if outage.stage == Stage::Ending {
            outage.stage = Stage::Returning;
        }
        outage.stage == Stage::Out
    }

    /// A process of the cell is ready. Returns whether the cell is back with it.
    pub(crate) fn returned(&mut self, cell: CellId) -> bool {
        let returns = self.cells.get(&cell).is_some_and(|it| it.stage == Stage::Returning);
        returns && self.cells.remove(&cell).is_some()
    }

    /// Whether the cell is out, and nothing was done to take it in.
    pub(crate) fn is_out(&self, cell: CellId) -> bool {
        self.cells.get(&cell).is_some_and(|outage| outage.stage == Stage::Out)
    }

    /// Whether all cells serve.
    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The cells that are not back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TakenOut> + '_ {
        let taken_out = |(cell, outage): (&CellId, &Outage)| {
            let Outage { since, stage } = *outage;
            TakenOut { cell: *cell, since, returns: stage != Stage::Out }
        };
        self.cells.iter().map(taken_out)
    }

    /// The shards of all cells that are not back, but for those of one cell.
    pub(crate) fn unserved(&self, owners: &[CellId], but: CellId) -> Vec<ShardId> {
        let others = self.cells.keys().filter(|cell| **cell != but);
        others.flat_map(|cell| shards_of(owners, *cell)).collect()
    }

    /// Why a stop would lose data, if it would: nothing can be recorded because of the error
    /// `broken`, or what was not synced at a cell is in its frames alone (EUCLEAN).
    pub(crate) fn stop_loses(&self, broken: Option<Errno>) -> Option<Errno> {
        broken.or((!self.is_empty()).then_some(Errno::EUCLEAN))
    }

    /// The failure of the fleet that ends now, after this first failure if there was one.
    pub(crate) fn failure(&self, first: Option<Failure>) -> Option<Failure> {
        let out = || self.cells.keys().next().map(|cell| Failure::TakenOut { cell: *cell });
        first.or_else(out)
    }
}

/// The shards that the cell owns.
pub(crate) fn shards_of(owners: &[CellId], cell: CellId) -> impl Iterator<Item = ShardId> + '_ {
    let shards = (0..).map(ShardId).zip(owners);
    shards.filter(move |(_, owner)| **owner == cell).map(|(shard, _)| shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: CellId = CellId(2);

    #[test]
    fn a_cell_is_back_when_a_process_that_serves_its_shards_is_ready() {
        let mut outages = Outages::default();
        assert!(!outages.rejoin(CELL) && !outages.returned(CELL) && !outages.starts(CELL));
        outages.begin(CELL, Timestamp(5));
        assert!(outages.starts(CELL) && !outages.returned(CELL), "a caretaker is ready");
        assert!(outages.rejoin(CELL) && !outages.rejoin(CELL));
        assert!(!outages.returned(CELL), "the caretaker that is to end was ready late");
        assert!(!outages.starts(CELL));
        outages.begin(CELL, Timestamp(9));
        let out = TakenOut { cell: CELL, since: Timestamp(5), returns: false };
        assert_eq!(outages.iter().collect::<Vec<_>>(), [out]);
        assert!(outages.rejoin(CELL) && !outages.starts(CELL) && outages.returned(CELL));
        assert!(outages.is_empty());
    }
}
