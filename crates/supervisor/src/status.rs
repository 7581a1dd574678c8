//! The state of the fleet as `warren status` shows it.

use warren_base::{CellId, ClientId, Epoch, Errno, Ino, MapVersion, ShardId, Timestamp};
use warren_proto::slot::Shape;
use warren_proto::{Rules, Wire};

use crate::admission::ClientState;
use crate::fault::Fault;
use crate::fleet::CellState;
use crate::harmed::{Discarded, PostFailed};
use crate::stage::Stage;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    pub stage: Stage,
    pub map_version: MapVersion,
    /// The last checkpoint on the device.
    pub generation: u64,
    /// When the last checkpoint was committed (or found that nothing had changed).
    pub last_checkpoint: Option<Timestamp>,
    /// Checkpoints of this run that succeeded, and that failed.
    pub checkpoints: u64,
    pub checkpoints_failed: u64,
    /// Since when each checkpoint has failed.
    pub failing_since: Option<Timestamp>,
    /// Why no checkpoint can be recorded any more, and since when the cells know.
    pub broken: Option<Errno>,
    pub broken_since: Option<Timestamp>,
    /// Shards that are not served until they are repaired.
    pub given_up: Vec<(ShardId, GivenUp)>,
    /// Cells whose shards are not served.
    pub taken_out: Vec<TakenOut>,
    /// The files that have lost damaged pages last.
    pub discarded: Vec<(Ino, Discarded, Timestamp)>,
    /// The files of which posted changes have failed last.
    pub posts_failed: Vec<(Ino, PostFailed, Timestamp)>,
    pub chunks_free: u64,
    pub cells: Vec<CellStatus>,
    pub clients: Vec<ClientStatus>,
    /// The last processes of cells that ended and were replaced.
    pub faults: Vec<Fault>,
}

/// A cell that is taken out, and since when. `returns`: it is being taken in again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenOut {
    pub cell: CellId,
    pub since: Timestamp,
    pub returns: bool,
}

/// Why a shard is not served, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct GivenUp {
    pub errno: Errno,
    pub since: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellStatus {
    pub cell: CellId,
    pub epoch: Epoch,
    pub state: CellState,
    pub shards: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientStatus {
    pub client: ClientId,
    pub pid: u32,
    pub uid: u32,
    pub front: bool,
    pub shape: Shape,
    pub mounted: Box<[u8]>,
    pub rules: Rules,
    pub state: ClientState,
}
