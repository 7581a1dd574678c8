//! The cells of the fleet. A process of a cell is identified by number and epoch; events of earlier
//! epochs are ignored.
//!
//! ```text
//! starting -> ready -> stopped -> exited
//!    ^  |       |
//!    |  v       v
//!    +- lost <--+     while the fleet serves; otherwise a process that is gone has exited
//! ```

use warren_base::{CellId, Epoch};
use warren_proto::Wire;

use crate::set::CellSet;

/// The state of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum CellState {
    /// Its process was started and opens the shards of the cell.
    Starting,
    Ready,
    /// Its process is gone, and a successor will be started.
    Lost,
    /// It has reported that it ends.
    Stopped,
    /// Its process is gone.
    Exited,
}

impl CellState {
    /// Whether its process runs and receives orders.
    pub(crate) const fn is_running(self) -> bool {
        matches!(self, Self::Starting | Self::Ready)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub(crate) struct Member {
    pub epoch: Epoch,
    pub state: CellState,
}

#[derive(Wire)]
pub(crate) struct Fleet {
    members: Vec<Member>,
}

impl Fleet {
    /// Cells `0..epochs.len()`, all starting.
    pub(crate) fn new(epochs: &[Epoch]) -> Self {
        let start = |&epoch| Member { epoch, state: CellState::Starting };
        Self { members: epochs.iter().map(start).collect() }
    }

    /// Whether the cell exists and this is its epoch.
    /// The present process of the cell, if there is such a cell.
    pub(crate) fn process(&self, cell: CellId) -> Option<(CellId, Epoch)> {
        self.members.get(usize::from(cell.0)).map(|member| (cell, member.epoch))
    }

    pub(crate) fn is_current(&self, cell: CellId, epoch: Epoch) -> bool {
        self.members.get(usize::from(cell.0)).is_some_and(|member| member.epoch == epoch)
    }

    pub(crate) fn state(&self, cell: CellId) -> CellState {
        self.members[usize::from(cell.0)].state
    }

    pub(crate) fn set(&mut self, cell: CellId, state: CellState) {
        self.members[usize::from(cell.0)].state = state;
    }

    pub(crate) fn epoch(&self, cell: CellId) -> Epoch {
        self.members[usize::from(cell.0)].epoch
    }

    /// A successor starts.
    pub(crate) fn restart(&mut self, cell: CellId) -> Epoch {
        let member = &mut self.members[usize::from(cell.0)];
        (member.epoch, member.state) = (Epoch(member.epoch.0 + 1), CellState::Starting);
        member.epoch
    }

    pub(crate) fn all(&self) -> CellSet {
        CellSet::first(self.members.len())
    }

    /// The cells whose processes run.
    pub(crate) fn living(&self) -> CellSet {
        self.with(CellState::is_running)
    }

    /// Cells that have yet to become ready, for the first time or again.
    pub(crate) fn unready(&self) -> CellSet {
        self.with(|state| matches!(state, CellState::Starting | CellState::Lost))
    }

    pub(crate) fn are_all_ready(&self) -> bool {
        self.with(|state| state == CellState::Ready) == self.all()
    }

    fn with(&self, wanted: impl Fn(CellState) -> bool) -> CellSet {
        let mut set = CellSet::EMPTY;
        for (cell, member) in self.iter() {
            if wanted(member.state) {
                set.insert(cell);
            }
        }
        set
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (CellId, Member)> + '_ {
        self.members.iter().enumerate().map(|(cell, member)| (CellId(cell as u16), *member))
    }
}
