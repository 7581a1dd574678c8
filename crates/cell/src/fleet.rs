//! The cell's view of the volume and the fleet: its place there, the progress of its start, the
//! other cells, and the checkpoint.

use warren_base::{CellId, Epoch, MapVersion, ShardId};
use warren_proto::control::Report;

use crate::config::CellConfig;
use crate::driver::Driver;
use crate::peers::Peers;
use crate::phase::Checkpoints;
use crate::plant::{Plant, Planted};

#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) volume: Volume,
    pub(crate) readiness: Readiness,
    pub(crate) peers: Peers,
    pub(crate) checkpoints: Checkpoints,
}

impl Fleet {
    pub(crate) fn new(config: &CellConfig, is_recovered: bool) -> Self {
        let others = (0..config.cells).map(CellId).filter(|cell| *cell != config.id);
        let opening = config.roots.len() - config.lost.len();
        Self {
            volume: Volume {
                id: config.id,
                map: config.map.clone(),
                secret: config.secret,
                owner: config.space.reserve.owner,
                epoch: config.epoch,
                map_version: config.map_version,
                plant: config.plant,
            },
            readiness: Readiness::new(opening, is_recovered),
            peers: Peers::new(others.collect()),
            checkpoints: Checkpoints::new(config.generation),
        }
    }

    /// Asks for a checkpoint that starts from now on.
    pub(crate) fn want_checkpoint(&mut self, driver: &mut Driver<'_>) {
        if self.checkpoints.ask() {
            driver.report(Report::WantCheckpoint { cell: self.volume.id });
        }
    }

    /// Whether a rule is broken on purpose.
    #[inline]
    pub(crate) fn plants(&self, plant: Plant) -> bool {
        self.volume.plant == Some(plant)
    }
}

/// Values that do not change while the cell lives.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) id: CellId,
    /// Owner of every shard, indexed by shard number.
    pub(crate) map: Vec<CellId>,
    /// The pool's secret for hashing names.
    pub(crate) secret: u64,
    /// The user that runs the fleet.
    owner: u32,
    pub(crate) epoch: Epoch,
    pub(crate) map_version: MapVersion,
    /// A rule to break, for tests of the checkers.
    pub(crate) plant: Planted,
}

impl Volume {
    /// Whether the user may take reserved space: root, and who runs the fleet.
    pub(crate) const fn is_privileged(&self, uid: u32) -> bool {
        uid == warren_base::budget::ROOT || uid == self.owner
    }

    /// The owner of the shard; `None` if the volume has no such shard. Clients, peers and disks
    /// send numbers of inodes, and so of shards.
    pub(crate) fn owner(&self, shard: ShardId) -> Option<CellId> {
        self.map.get(usize::from(shard.0)).copied()
    }
}

/// The progress of the cell's start.
///
/// ```text
/// shards are opened ──▶ the log is recovered ──▶ the pool knows the cell's free chunks ──▶ ready
/// ```
#[derive(Debug)]
pub(crate) struct Readiness {
    /// Shards that are not open yet.
    opening: usize,
    is_recovered: bool,
    is_ready: bool,
}

impl Readiness {
    pub(crate) const fn new(shards: usize, is_recovered: bool) -> Self {
        Self { opening: shards, is_recovered, is_ready: false }
    }

    pub(crate) const fn shard_opened(&mut self) {
        self.opening -= 1;
    }

    pub(crate) const fn shards_are_open(&self) -> bool {
        self.opening == 0
    }

    pub(crate) const fn recovered(&mut self) {
        self.is_recovered = true;
    }

    /// Whether it is known which files are open and locked.
    pub(crate) const fn is_recovered(&self) -> bool {
        self.is_recovered
    }

    /// The pool knows the cell's free chunks. Returns whether the cell can serve now, and could not
    /// before.
    pub(crate) fn becomes_ready(&mut self) -> bool {
        let is_started = self.shards_are_open() && self.is_recovered;
        is_started && !std::mem::replace(&mut self.is_ready, true)
    }

    pub(crate) const fn is_ready(&self) -> bool {
        self.is_ready
    }
}
