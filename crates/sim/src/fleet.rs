//! A fleet in virtual time, for every world of this crate: cells and their supervisor, their part
//! of the machine (frames, links, a device, memory shared with clients), and its faults.
//!
//! A world adds the surroundings of the fleet ([`Surroundings`]): clients, the times of faults, and
//! the rules. A [`Fleet`] is the machine; all its decisions come from the generator of its
//! [`Simulation`]. Each part of it owns its state, and functions of a fleet or of a world route
//! events to them. From the parts upwards:
//!
//! * parts: `host` (a cell's process and frames, with `process` and `hang`), `link`, `device`,
//!   `lanes`, `lost`. `incident`: which faults of the machine excuse which errors of calls.
//! * `ledger`, `image`: the pool and a cell's log, as they lie on the device and in frames.
//! * `effect`: effects of a cell are carried out. `start`: a start from the device.
//! * `supervise`: events of the supervisor and its effects. `adopt`: supervisors that die.
//! * `kill`: cells that die. `lose`: losses of cells. `lie`, `watch`: cells that accuse others, and
//!   cells that hang.
//! * `turn`: an event of a cell, with `memory`. `successor`: the start of a cell's successor.
//! * `drive`: the next event of all.

mod adopt;
mod device;
mod drive;
mod effect;
mod hang;
mod happening;
mod host;
pub(crate) mod image;
pub(crate) mod incident;
mod kill;
pub(crate) mod lanes;
mod ledger;
mod lie;
mod link;
mod lose;
mod lost;
mod memory;
mod process;
mod start;
pub(crate) mod streams;
mod successor;
mod supervise;
mod surroundings;
mod turn;
mod watch;

use warren_base::{BlockNo, CellId, Epoch, Instant, MapVersion, Rng, ShardId};
use warren_cell::{Backing, CellConfig, SlotRef, SpaceConfig};
use warren_proto::{Request, RequestHeader};
use warren_supervisor::{SUCCESSORS_MAX, Stage, Supervisor};

use crate::simulation::trace::Trace;
use crate::simulation::{Faults, Simulation};
pub(crate) use device::{Device, DeviceFaults, disk};
pub(crate) use drive::happen_next;
pub(crate) use happening::{Happening, Sim};
pub(crate) use host::CellHost;
use incident::Incidents;
pub(crate) use kill::kill_cell;
use lanes::ClientMemory;
pub(crate) use ledger::{load_ledger, needs_recovery};
use link::Links;
pub(crate) use lost::Lost;
pub(crate) use start::may_lack_chunks;
pub(crate) use supervise::{check_named, notify_supervisor};
pub(crate) use surroundings::Surroundings;

/// The version of the only shard map in a life of the fleet.
pub(crate) const MAP_VERSION: MapVersion = MapVersion(1);

/// The supervisor's process.
#[derive(Default)]
struct SupervisorHost {
    supervisor: Option<Supervisor>,
    wake: Option<Instant>,
    /// The number of supervisors before it.
    number: u64,
}

/// The sizes with which cells start.
pub(crate) struct Sizes {
    /// Frames of a cell's cache.
    pub frames: u32,
    /// Tree nodes that a cell keeps.
    pub nodes_max: usize,
    /// Free chunks for all cells together, if they do not get all of them.
    pub chunks: Option<usize>,
    pub space: SpaceConfig,
}

/// The machine of a fleet. `H` are the world's own events.
pub(crate) struct Fleet<H> {
    pub sim: Sim<H>,
    pub sizes: Sizes,
    pub device: Device,
    pub lanes: ClientMemory,
    pub map: Vec<CellId>,
    pub cells: Vec<CellHost>,
    links: Links,
    supervisor: SupervisorHost,
    /// Fleets started so far.
    lives: u32,
    /// The place in the order of events where the present event of a cell began.
    pub event_began: u64,
    pub lost: Lost,
    pub incidents: Incidents,
}

impl<H> Fleet<H> {
    pub(crate) fn new(rng: Rng, disk: disk::Disk, trace: Trace) -> Self {
        Self {
            sim: Simulation::new(rng, trace),
            sizes: Sizes {
                frames: 0,
                nodes_max: CellConfig::NODES_MIN,
                chunks: None,
                space: SpaceConfig::of(Backing::Whole),
            },
            device: Device::new(disk),
            lanes: ClientMemory::default(),
            map: Vec::new(),
            cells: Vec::new(),
            links: Links::default(),
            supervisor: SupervisorHost::default(),
            lives: 0,
            event_began: 0,
            lost: Lost::none(),
            incidents: Incidents::default(),
        }
    }

    pub(crate) fn cell_ids(&self) -> impl Iterator<Item = CellId> + use<H> {
        (0..self.cells.len() as u16).map(CellId)
    }

    pub(crate) fn host(&self, id: CellId) -> &CellHost {
        &self.cells[usize::from(id.0)]
    }

    pub(crate) fn host_mut(&mut self, id: CellId) -> &mut CellHost {
        &mut self.cells[usize::from(id.0)]
    }

    /// The machines that an event of one cell concerns.
    fn parts_of(&mut self, id: CellId) -> (&mut Sim<H>, &mut Device, &mut CellHost) {
        (&mut self.sim, &mut self.device, &mut self.cells[usize::from(id.0)])
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        self.supervisor.supervisor.as_ref().expect("between two events")
    }

    /// Whether the supervisor gives a lost cell a successor.
    pub(crate) fn is_served(&self) -> bool {
        let stage = self.supervisor().stage();
        matches!(stage, Stage::Serving | Stage::Expelling | Stage::LastCheckpoint { .. })
    }

    /// Whether the fleet continues, and keeps what it has acknowledged, if the cell's process ends
    /// now.
    pub(crate) fn may_be_lost(&self, id: CellId) -> bool {
        self.is_served() && self.may_end(id) && self.lost.lets_die((id, self.epoch(id)))
    }

    /// Whether the supervisor retries if one more process of the cell ends, or the one that is to
    /// start.
    fn may_end(&self, id: CellId) -> bool {
        self.host(id).ended_in_a_row < SUCCESSORS_MAX
    }

    /// The owner of a shard.
    pub(crate) fn owner(&self, shard: ShardId) -> CellId {
        self.map[usize::from(shard.0)]
    }

    /// The shards of a cell.
    pub(crate) fn shards_of(&self, cell: CellId) -> impl Iterator<Item = ShardId> {
        let shards = (0..self.map.len() as u16).map(ShardId);
        shards.filter(move |shard| self.owner(*shard) == cell)
    }

    /// The epoch of the cell's process, or of the one that is to start.
    pub(crate) fn epoch(&self, id: CellId) -> Epoch {
        self.host(id).epoch
    }

    /// Ends all faults, also those of I/O in flight.
    pub(crate) fn heal(&mut self) {
        self.sim.faults = Faults::default();
        self.lost.heal();
        self.device.heal();
    }

    /// All processes and messages vanish. Returns the writes in flight.
    pub(crate) fn vanish(&mut self) -> Vec<(BlockNo, Vec<u8>)> {
        self.sim.queue.clear();
        self.lost.vanish();
        self.links.vanish();
        self.lanes = ClientMemory::default();
        self.device.vanish(&std::mem::take(&mut self.cells))
    }

    /// Sends a request to the slot's cell.
    pub(crate) fn plan_request(
        &mut self,
        cell: CellId,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
    ) {
        let delay = self.sim.message_delay();
        self.sim.plan(delay, Happening::Request { cell, from, header, request });
    }

    /// Counts it if a flush has failed before.
    pub(crate) fn count_after_loss(&mut self, what: &'static str) {
        if self.device.faults.has_lost_flush() {
            self.sim.count(what);
        }
    }
}
