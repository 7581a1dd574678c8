//! The cell: what it owns, and how an event becomes effects.
//!
//! Order within one [`Cell::apply`]: the event is taken in; a request that needs nothing is executed
//! at once; then every task that something woke is run, until none is left. A task that has to wait
//! is parked with what it waits for and has changed nothing.

use std::collections::{BTreeMap, BTreeSet};

use warren_affinity::Counters;
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, PAYLOAD_MAX};
use warren_base::{CellId, Epoch, Lsn, MapVersion, ShardId};
use warren_disk::{LogArea, RootSlot};
use warren_proto::{Answer, CapabilityKey};

use crate::checkpoint::Checkpoint;
use crate::checkpoint::phase::Checkpoints;
use crate::chunks::free::Chunks;
use crate::chunks::host::Backing;
use crate::core::Core;
use crate::count::Counting;
use crate::event::{Clock, Effect, Event, FrameNo, Memory, SlotRef};
use crate::frames::cache::Cache;
use crate::frames::io::Io;
use crate::frames::table::FrameTable;
use crate::lease::Leases;
use crate::log::OpLog;
use crate::peers::Peers;
use crate::plant::{Plant, Planted};
use crate::recovery::replay::{Recovery, Replay};
use crate::run::wait::Waits;
use crate::session::answers::Answers;
use crate::session::capabilities::Capabilities;
use crate::session::clients::Clients;
use crate::shard::Shard;
use crate::shard::filelock::index::LockIndex;
use crate::shard::open::OpenCounts;
use crate::shards::Shards;
use crate::task::Tasks;
use crate::turn::{Readiness, Shared, Volume};
use crate::txn::coordinator::Coordinator;
use crate::txn::participant::Participants;

/// What a cell is started with.
#[derive(Clone, Debug)]
pub struct CellConfig {
    pub id: CellId,
    pub epoch: Epoch,
    /// How many cells the fleet has, numbered from 0. Some may own no shard.
    pub cells: u16,
    /// Owner of every shard, indexed by shard number.
    pub map: Vec<CellId>,
    pub map_version: MapVersion,
    /// The pool's secret for hashing names.
    pub secret: u64,
    /// The fleet's, for inode capabilities.
    pub capabilities: CapabilityKey,
    /// Root slots of the shards this cell owns, as the device holds them (`None`: never written).
    pub roots: Vec<(ShardId, Option<RootSlot>)>,
    /// Of these the shards whose trees are not as of the last checkpoint: a replay passes their steps over. They are given
    /// neither a root nor chunks, and stay empty.
    pub lost: BTreeSet<ShardId>,
    /// The chunks that the region map gives to this cell's shards (and others', which are not looked at).
    pub owned_chunks: BTreeMap<ShardId, Vec<u64>>,
    /// Free chunks that are this cell's to give to its shards.
    pub free_chunks: Vec<u64>,
    /// Chunks below this number are nobody's.
    pub reserved_chunks: u64,
    /// Blocks of the whole pool device.
    pub total_blocks: u64,
    pub backing: Backing,
    /// Frames of the buffer cache: its byte limit over 4096. At least [`CellConfig::FRAMES_MIN`], or
    /// requests that are larger than a fourth of them get ENOMEM. The driver provides
    /// [`CellConfig::frames_total`].
    pub frames: u32,
    /// Tree nodes that it keeps in memory at most, as far as they are not dirty.
    pub nodes_max: usize,
    pub log: LogConfig,
    /// The last checkpoint that the superblock names.
    pub generation: u64,
    /// A rule to break, for tests of the checkers.
    pub plant: Planted,
}

/// Where a cell's op log is.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    pub area: LogArea,
    pub incarnation: u64,
    /// From where it is to be replayed; its end, if there is nothing to recover.
    pub start: Lsn,
    pub recovery: Recovery,
}

impl CellConfig {
    /// Bytes of memory of a resident tree node: about 4 KiB on disk, decoded, with one allocation or two for each
    /// record. Measured with 300,000 files of one page.
    const NODE_BYTES: u64 = 10 << 10;
    /// Frames for each resident node. File data is most of what a cache is for, and a node leads to some 20 files.
    const FRAMES_PER_NODE: u32 = 4;
    /// Enough for all ways from the roots that the requests of a small cell need at once.
    pub const NODES_MIN: usize = 1024;

    /// Tree nodes that a cell with so many frames keeps in memory; beyond, clean ones are evicted.
    pub const fn nodes_for(frames: u32) -> usize {
        let nodes = (frames / Self::FRAMES_PER_NODE) as usize;
        if nodes < Self::NODES_MIN { Self::NODES_MIN } else { nodes }
    }

    /// Frames of a cell whose cache of file data and tree nodes may take so many bytes.
    pub const fn frames_for(cache_bytes: u64) -> u64 {
        cache_bytes / (BLOCK_SIZE as u64 + Self::NODE_BYTES / Self::FRAMES_PER_NODE as u64)
    }

    /// Frames of a cell with so many for its buffer cache: with the op log's image and the cache's table.
    pub const fn frames_total(frames: u32, log: LogArea) -> u32 {
        frames + log.blocks as u32 + FrameTable::frames_for(frames)
    }

    /// Enough that the largest request can be served whatever else goes on: a half of the frames may
    /// be pinned, and another fourth must stay free of dirty pages.
    pub const FRAMES_MIN: u32 = (4 * PAYLOAD_MAX / BLOCK_SIZE) as u32;
}

/// One server process's state. See the module documentation for how it moves.
#[derive(Debug)]
pub struct Cell {
    core: Core,
    shared: Shared,
}

impl Cell {
    /// A cell that starts to open its shards; it reports [`Report::Ready`] when all are.
    pub fn new(config: CellConfig, now: Clock, effects: &mut Vec<Effect>) -> Self {
        let first = config.map.iter().copied().min().unwrap_or(config.id);
        let chunks = config.reserved_chunks..config.total_blocks / CHUNK_BLOCKS;
        let mut owned = config.owned_chunks;
        let open = config.roots.iter().map(|(id, root)| {
            Shard::open(*id, root.as_ref(), owned.remove(id).unwrap_or_default())
        });
        let shards = Shards::new(config.map.len(), open);
        let others: BTreeSet<CellId> =
            (0..config.cells).map(CellId).filter(|cell| *cell != config.id).collect();
        let LogConfig { area, incarnation, start, recovery } = config.log;
        let image = FrameNo(config.frames);
        let backing = config.plant.on_backing(config.backing);
        let table = FrameNo(config.frames + area.blocks as u32);
        let shared = Shared {
            volume: Volume {
                id: config.id,
                map: config.map,
                secret: config.secret,
                total_blocks: config.total_blocks,
                plant: config.plant,
                epoch: config.epoch,
                map_version: config.map_version,
            },
            log: OpLog::new(area, image, (incarnation, start), recovery == Recovery::None),
            cache: Cache::new(config.frames),
            table: FrameTable::new(table, config.frames),
            io: Io::default(),
            chunks: Chunks::new(
                config.id,
                (first, config.cells),
                chunks,
                config.free_chunks,
                (recovery, backing),
            ),
            leases: Leases::new(config.epoch, config.secret, config.plant),
            clients: Clients::default(),
            capabilities: Capabilities::new(config.capabilities),
            waits: Waits::default(),
            opens: OpenCounts::new(config.epoch),
            lock_index: LockIndex::default(),
            checkpoints: Checkpoints::new(config.generation),
            peers: Peers::new(others.clone()),
            answers: Answers::default(),
            readiness: Readiness::new(shards.ids().len(), recovery == Recovery::None),
            late: Vec::new(),
        };
        let core = Core {
            tasks: Tasks::default(),
            coordinator: Coordinator::new(config.epoch),
            participants: Participants::default(),
            counting: Counting::default(),
            checkpoint: Checkpoint::new(config.nodes_max),
            replay: Replay::new(recovery, start, others, config.lost),
            shards,
        };
        let mut cell = Self { core, shared };
        if config.plant == Some(Plant::ReuseBlocks) {
            cell.core.shards.values_mut().for_each(|shard| shard.space.forget_held());
        }
        cell.core.start_opening(&cell.shared.readiness, &mut cell.shared.waits);
        // The tasks run with the first event; a tick at once is one.
        effects.push(Effect::Wake(now.monotonic));
        cell
    }

    /// Takes one event in. Effects are appended in the order in which they are to be carried out.
    pub fn apply<M: Memory>(
        &mut self,
        now: Clock,
        event: Event,
        memory: &mut M,
        effects: &mut Vec<Effect>,
    ) {
        let Shared { log, cache, .. } = &mut self.shared;
        if log.is_last() {
            let is_full = log.room(cache.dirty_pages()) == 0;
            log.forget_session(is_full);
        }
        let mut turn = self.shared.turn(now, memory, effects);
        self.core.take_in(event, &mut turn);
        let record = turn.record;
        self.shared.log.close_record(record);
    }

    /// Whether requests of clients can be offered. Orders and peers' messages always can.
    pub const fn is_ready(&self) -> bool {
        self.shared.readiness.is_ready()
    }

    /// How often each kind of affinity ran.
    pub fn affinities(&self) -> &Counters {
        self.core.shards.counters()
    }

    /// Steps from a directory to the one above that moves of directories have taken.
    pub const fn steps_up(&self) -> u64 {
        self.core.coordinator.steps_up
    }

    /// Requests and messages that wait for something, but for file locks: who gives a lock back must not find the
    /// tasks taken by those who wait for it.
    pub fn live_tasks(&self) -> usize {
        self.core.tasks.live()
    }

    /// Requests that wait for file locks. Each occupies a slot of its client, and counts for its user with the locks
    /// that are held.
    pub const fn lock_waiters(&self) -> usize {
        self.core.tasks.lock_waiters()
    }

    /// Requests that were executed and wait for other cells before they are answered.
    pub fn decided(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        self.core.coordinator.unanswered().filter_map(|id| self.core.tasks.decided(id))
    }

    /// Answers of a predecessor that were not asked for again, in the order in which they were logged: their clients
    /// have them, or are gone.
    pub fn unanswered(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        self.shared.answers.all()
    }
}
