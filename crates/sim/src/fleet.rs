//! A fleet in virtual time, for every world of this crate: cells and their supervisor, their part
//! of the machine (frames, links, a device, memory shared with clients), and its faults.
//!
//! A world adds the surroundings of the fleet ([`Surroundings`]): clients, the times of faults, and
//! the rules. A [`Fleet`] is the machine: all its decisions come from its generator. `drive`
//! applies events to cells and supervisor, because clients take part there.
//!
//! * `start`: a start from the device. `drive`: events in, effects carried out. `io`, `link`,
//!   `memory`: the targets of effects.
//! * `kill`: cells that die, and their successors. `hang`: cells that hang. `lost`: what they lose.
//!   `adopt`: supervisors that die.
//! * `disk`, `lanes`, `process`: the parts of the machine. `incident`: which
//!   faults of the machine excuse which errors of calls.

mod adopt;
pub(crate) mod disk;
mod drive;
mod hang;
pub(crate) mod image;
pub(crate) mod incident;
mod io;
mod kill;
pub(crate) mod lanes;
mod link;
mod lost;
pub(crate) mod lost_flush;
mod memory;
mod process;
mod sparse;
mod start;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, ClientId, Epoch, Errno, Instant, MapVersion, Rng};
use warren_cell::{Backing, Cell, CellConfig, FrameNo, IoId, Plant, SlotRef, SpaceConfig};
use warren_proto::control::{Order, Report};
use warren_proto::{Answered, Request, RequestHeader};
use warren_supervisor::{ConnectionNo, Failure, IoId as SupervisorIo, Stage, Supervisor};

use crate::simulation::trace::Trace;
use crate::simulation::{Faults, Simulation};
use disk::Disk;
pub(crate) use drive::{check_named, happen_next, notify_supervisor};
use hang::Pause;
use incident::Incidents;
use io::{InFlight, Supervised};
pub(crate) use kill::kill_cell;
use lanes::ClientMemory;
use link::Link;
pub(crate) use lost::Lost;
use lost_flush::LostFlush;
use process::Slots;
pub(crate) use start::{load_ledger, may_lack_chunks};

/// The version of the only shard map in a life of the fleet.
pub(crate) const MAP_VERSION: MapVersion = MapVersion(1);

/// The world around a fleet. [`happen_next`] applies every event with it.
pub(crate) trait Surroundings: Sized {
    /// The world's own events, besides those of the fleet.
    type Own: fmt::Debug;

    fn fleet(&self) -> &Fleet<Self::Own>;

    fn fleet_mut(&mut self) -> &mut Fleet<Self::Own>;

    fn happen(&mut self, own: Self::Own);

    /// The kind of an event, and what identifies it within its kind.
    fn words(own: &Self::Own) -> [u64; 4];

    /// An answer is in its slot. Its request took effect at about `hint` in the order of events.
    fn answered(&mut self, from: CellId, to: SlotRef, seq: u32, hint: u64, answer: Answered);

    /// Clients can connect.
    fn fleet_is_ready(&mut self);

    /// The connection's client has this number from now on.
    fn numbered(&mut self, connection: ConnectionNo, client: ClientId);

    /// The client may send requests.
    fn admit(&mut self, client: ClientId);

    fn refuse(&mut self, connection: ConnectionNo, errno: Errno);

    fn fleet_ended(&mut self, result: Result<(), Failure>);

    /// The pool has grown, or it has not.
    fn grown(&mut self, _result: Result<(), Errno>) {}

    /// The cell has released everything of the client.
    fn let_go(&mut self, _cell: CellId, _client: ClientId) {}

    /// The cell serves, for the first time or as a successor.
    fn serves(&mut self, _cell: CellId) {}

    /// A cell stores into a lease word.
    fn store_word(&mut self, cell: CellId, client: ClientId, word: u32, stamp: u64) {
        self.fleet_mut().lanes.store(cell, client, word, stamp);
    }
}

/// All events.
#[derive(Debug)]
pub(crate) enum Happening<H> {
    Request {
        cell: CellId,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
    },
    Reply {
        from: CellId,
        to: SlotRef,
        seq: u32,
        hint: u64,
        answer: Answered,
    },
    Peer {
        from: CellId,
        to: CellId,
        link: u64,
    },
    Order {
        to: CellId,
        epoch: Epoch,
    },
    Report {
        from: CellId,
        epoch: Epoch,
    },
    CellIo {
        cell: CellId,
        epoch: Epoch,
        io: IoId,
    },
    /// The room on the host was measured for a cell.
    HostMeasured {
        cell: CellId,
        epoch: Epoch,
        blocks: u64,
    },
    /// The supervisor receives the exit notice of a cell's process.
    Exited {
        cell: CellId,
        epoch: Epoch,
    },
    /// A running process of a cell is killed by the supervisor.
    Kill {
        cell: CellId,
        epoch: Epoch,
    },
    /// A cell's successor may start, if no I/O of its predecessor is in flight any more.
    Start {
        cell: CellId,
    },
    /// The supervisor's watch looks at this process of a cell, and errs perhaps.
    Look {
        cell: CellId,
        epoch: Epoch,
        errs: bool,
    },
    /// A cell reviews what waits.
    Review {
        cell: CellId,
    },
    /// The supervisor looks at the turns of processes on trial.
    Turns,
    /// This process of a cell accuses another cell, for the so manieth time.
    Lie {
        cell: CellId,
        epoch: Epoch,
        of: CellId,
        number: u64,
    },
    /// A report of a process that is gone, read late.
    LateReport {
        from: CellId,
        epoch: Epoch,
        report: Report,
    },
    /// The end of an I/O of the supervisor with this number.
    SupervisorIo {
        by: u64,
        io: SupervisorIo,
    },
    Tick {
        cell: CellId,
        epoch: Epoch,
        at: Instant,
    },
    SupervisorTick {
        at: Instant,
    },
    /// An event of the world's own.
    Own(H),
}

type Frame = Box<[u8; BLOCK_SIZE]>;

/// A cell and its part of the machine. The cell is taken out while it runs.
pub(crate) struct CellHost {
    pub cell: Option<Cell>,
    pub epoch: Epoch,
    /// Frames of its cache. Those of the log's image lie behind them.
    pub cache_frames: u32,
    frames: Vec<Option<Frame>>,
    in_flight: BTreeMap<(Epoch, IoId), InFlight>,
    /// Failed flushes of the device that were reported on this cell's open file.
    errors_seen: u64,
    /// Its process is gone.
    pub dead: bool,
    pause: Pause,
    /// The process that accuses other cells at random, and the process that is to end for that.
    lies: Option<Epoch>,
    is_sentenced: Option<Epoch>,
    /// A successor is to start.
    is_starting: bool,
    /// The successor is to be killed as soon as it has a process.
    is_to_end: bool,
    /// Its process, or the one to start, is a caretaker. Others die early as long as it is broken.
    pub is_caretaker: bool,
    pub is_broken: bool,
    /// Processes that ended since the supervisor was last informed that one was ready.
    ended_in_a_row: u32,
    wake: Option<Instant>,
    orders: VecDeque<Order>,
    /// The orders that a successor receives before its first turn: those sent with its start.
    beginning: Option<usize>,
    reports: VecDeque<Report>,
    pub slots: Slots,
}

/// The supervisor and its I/O.
#[derive(Default)]
struct SupervisorHost {
    supervisor: Option<Supervisor>,
    in_flight: BTreeMap<SupervisorIo, Supervised>,
    errors_seen: u64,
    wake: Option<Instant>,
    /// The number of supervisors before it.
    number: u64,
}

/// Faults of the device, by the processes that they affected.
#[derive(Default)]
pub(crate) struct IoFaults {
    pub cells: u64,
    pub supervisor: u64,
}

/// The machine of a fleet. `H` are the world's own events.
pub(crate) struct Fleet<H> {
    pub sim: Simulation<Happening<H>>,
    pub disk: Disk,
    pub lanes: ClientMemory,
    pub plant: Option<Plant>,
    /// Frames of a cell's cache.
    pub frames: u32,
    /// Tree nodes that a cell keeps.
    pub nodes_max: usize,
    /// Free chunks for all cells together, if they do not get all of them.
    pub chunks: Option<usize>,
    pub space: SpaceConfig,
    pub map: Vec<CellId>,
    pub cells: Vec<CellHost>,
    links: BTreeMap<(CellId, CellId), Link>,
    /// Damaged messages of which this life's supervisor was, or will be, informed.
    alarms: usize,
    supervisor: SupervisorHost,
    /// Fleets started so far.
    pub lives: u32,
    /// The place in the order of events where the present event of a cell began.
    pub event_began: u64,
    /// The place of the last finished checkpoint.
    pub switched_at: u64,
    pub lost_flush: LostFlush,
    pub lost: Lost,
    /// A log is full, and the device refuses the checkpoints that would make room.
    pub is_stuck: bool,
    pub io_faults: IoFaults,
    pub incidents: Incidents,
}

impl<H> Fleet<H> {
    /// Whether a flush or a write of the supervisor has failed, or a log stays full: then the fleet
    /// refuses changes.
    pub(crate) const fn may_be_read_only(&self) -> bool {
        self.io_faults.supervisor > 0 || self.lost_flush.has_failed() || self.is_stuck
    }

    pub(crate) fn new(rng: Rng, disk: Disk, trace: Trace) -> Self {
        Self {
            sim: Simulation::new(rng, trace),
            disk,
            lanes: ClientMemory::default(),
            plant: None,
            frames: 0,
            nodes_max: CellConfig::NODES_MIN,
            chunks: None,
            space: SpaceConfig::of(Backing::Whole),
            map: Vec::new(),
            cells: Vec::new(),
            links: BTreeMap::new(),
            alarms: 0,
            supervisor: SupervisorHost::default(),
            lives: 0,
            event_began: 0,
            switched_at: 0,
            lost_flush: LostFlush::default(),
            lost: Lost::none(),
            is_stuck: false,
            io_faults: IoFaults::default(),
            incidents: Incidents::default(),
        }
    }

    fn host(&mut self, id: CellId) -> &mut CellHost {
        &mut self.cells[usize::from(id.0)]
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        self.supervisor.supervisor.as_ref().expect("between two events")
    }

    /// Whether this process of the cell runs.
    fn is_running(&self, id: CellId, epoch: Epoch) -> bool {
        let host = &self.cells[usize::from(id.0)];
        !host.dead && host.epoch == epoch
    }

    /// Whether the supervisor gives a lost cell a successor.
    pub(crate) fn is_served(&self) -> bool {
        let stage = self.supervisor().stage();
        matches!(stage, Stage::Serving | Stage::Expelling | Stage::LastCheckpoint { .. })
    }

    /// The owner of a shard.
    pub(crate) fn owner(&self, shard: warren_base::ShardId) -> CellId {
        self.map[usize::from(shard.0)]
    }

    /// The epoch of the cell's process, or of the one that is to start.
    pub(crate) fn epoch(&self, id: CellId) -> Epoch {
        self.cells[usize::from(id.0)].epoch
    }

    /// Ends all faults, also those of I/O in flight.
    pub(crate) fn heal(&mut self) {
        self.sim.faults = Faults::default();
        self.lost.heal();
        for request in self.cells.iter_mut().flat_map(|host| host.in_flight.values_mut()) {
            request.heal();
        }
        self.supervisor.in_flight.values_mut().for_each(Supervised::heal);
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
        if self.lost_flush.has_failed() {
            self.sim.count(what);
        }
    }
}

/// The contents of a frame that was never filled: neither zeros nor data.
static UNFILLED: [u8; BLOCK_SIZE] = [0xc3; BLOCK_SIZE];

impl CellHost {
    pub(crate) fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].as_deref().unwrap_or(&UNFILLED)
    }

    pub(crate) fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].get_or_insert_with(|| Box::new(UNFILLED))
    }

    fn gather(&self, frames: &[FrameNo]) -> Vec<u8> {
        frames.iter().flat_map(|frame| *self.frame(*frame)).collect()
    }
}
