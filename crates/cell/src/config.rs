//! The configuration with which a cell starts.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::{BLOCK_SIZE, PAYLOAD_MAX};
use warren_base::{CellId, Epoch, Lsn, MapVersion, ShardId};
use warren_disk::{ChunkBounds, KeptRecords, LogArea, RootSlot};
use warren_proto::{CapabilityKey, Wire};

use crate::frames::table::FrameTable;
use crate::plant::{Plant, Planted};

/// The configuration with which a cell starts.
#[derive(Clone, Debug)]
pub struct CellConfig {
    pub id: CellId,
    pub epoch: Epoch,
    /// The number of cells of the fleet, numbered from 0. Some may own no shard.
    pub cells: u16,
    /// Owner of every shard, indexed by shard number.
    pub map: Vec<CellId>,
    pub map_version: MapVersion,
    /// The pool's secret for hashing names.
    pub secret: u64,
    /// The fleet's key for inode capabilities.
    pub capabilities: CapabilityKey,
    /// Root slots of the shards this cell owns, as the device holds them.
    pub roots: Vec<(ShardId, RootSlot)>,
    /// The shards among these that a repair leaves out, because their trees cannot be read. They
    /// are not served, and no checkpoint records them.
    pub lost: BTreeSet<ShardId>,
    /// The log records that were kept for one of these shards when it was given up, in their order.
    /// The cell replays them before its own log. The shard's root slot is given without the mark.
    /// Empty, except in `fsck -y`.
    pub kept: Vec<KeptRecords>,
    /// The chunks that the region map gives to this cell's shards. Those of other shards are
    /// ignored.
    pub owned_chunks: BTreeMap<ShardId, Vec<u64>>,
    /// Free chunks that this cell may give to its shards.
    pub free_chunks: Vec<u64>,
    /// The chunks that shards may own: the others hold the pool's own structures.
    pub bounds: ChunkBounds,
    /// Blocks of the whole pool.
    pub total_blocks: u64,
    pub space: SpaceConfig,
    /// Frames of the buffer cache: its byte limit over 4096. With fewer than
    /// [`CellConfig::FRAMES_MIN`], requests that are larger than a fourth of the frames get ENOMEM.
    /// The driver provides [`CellConfig::frames_total`].
    pub frames: u32,
    /// Clean tree nodes that the cell keeps in memory at most.
    pub nodes_max: usize,
    pub log: LogConfig,
    /// The last checkpoint that the superblock names.
    pub generation: u64,
    /// A rule to break, for tests of the checkers.
    pub plant: Planted,
}

/// The storage of the pool's blocks, and the rules by which a cell allots them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct SpaceConfig {
    pub backing: Backing,
    pub reserve: SpaceReserve,
    /// After each checkpoint, shards with more free blocks than this are cleaned, however many
    /// chunks are free. For simulations: a real fleet has `None`.
    pub eager_cleaning: Option<u64>,
}

impl SpaceConfig {
    /// Nothing is kept for root.
    pub const fn of(backing: Backing) -> Self {
        Self { backing, reserve: SpaceReserve { chunks: 0, owner: 0 }, eager_cleaning: None }
    }
}

/// Space that ordinary users cannot take, as the reserved blocks of ext4.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Wire)]
pub struct SpaceReserve {
    /// Free chunks that the cell keeps for root and the fleet's owner.
    pub chunks: u64,
    /// The user that runs the fleet.
    pub owner: u32,
}

/// Where a cell's op log is.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    pub area: LogArea,
    pub incarnation: u64,
    /// The start of its replay. This is the log's end if there is nothing to recover.
    pub start: Lsn,
    pub recovery: Recovery,
    /// A damaged record ends the log even if later ones were durable. Otherwise the recovery is
    /// refused.
    pub may_lose: bool,
}

impl CellConfig {
    /// Bytes of memory of a resident tree node: about 4 KiB on disk, decoded, with one allocation
    /// or two for each record. Measured with 300,000 files of one page.
    const NODE_BYTES: u64 = 10 << 10;
    /// Frames for each resident node. A cache holds mostly file data, and a node leads to some 20
    /// files.
    const FRAMES_PER_NODE: u32 = 4;
    /// Enough for all paths from the roots that the requests of a small cell need at once.
    pub const NODES_MIN: usize = 1024;

    /// Tree nodes that a cell with so many frames keeps in memory. Clean nodes beyond that are
    /// evicted.
    pub const fn nodes_for(frames: u32) -> usize {
        let nodes = (frames / Self::FRAMES_PER_NODE) as usize;
        if nodes < Self::NODES_MIN { Self::NODES_MIN } else { nodes }
    }

    /// Frames of a cell whose cache of file data and tree nodes may take so many bytes.
    pub const fn frames_for(cache_bytes: u64) -> u64 {
        cache_bytes / (BLOCK_SIZE as u64 + Self::NODE_BYTES / Self::FRAMES_PER_NODE as u64)
    }

    /// All frames of a cell with so many frames of buffer cache: these, the image of the op log,
    /// and the table of the cache.
    pub const fn frames_total(frames: u32, log: LogArea) -> u32 {
        frames + log.blocks as u32 + FrameTable::frames_for(frames)
    }

    /// Enough frames to serve the largest request whatever else is under way: half of the frames
    /// may be pinned, and another fourth must stay free of dirty pages.
    pub const FRAMES_MIN: u32 = (4 * PAYLOAD_MAX / BLOCK_SIZE) as u32;
}

/// The state from which a cell recovers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// The pool was left in order, and the log is empty.
    None,
    /// The log on the device counts, and the frames hold nothing.
    Power,
    /// A predecessor's frames are as they were when it died.
    Process,
    /// The same, but the cell is taken out: it serves no shard, and keeps the frames and the log
    /// for a later process that does ([`crate::caretaker`]).
    Caretaker,
}

impl Recovery {
    /// Whether there are a predecessor's frames.
    pub(crate) const fn is_of_process(self) -> bool {
        matches!(self, Self::Process | Self::Caretaker)
    }
}

/// The storage of a pool's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Backing {
    /// A sparse file: the host allocates blocks when they are wanted, and takes them back.
    OnDemand,
    /// A file whose blocks are all allocated, and stay so.
    Whole,
    /// A device: it has all of its blocks, and those that are free are discarded.
    Device,
}

impl Backing {
    /// The storage that a cell assumes for its pool, with this plant.
    pub(crate) fn as_planted(self, plant: Planted) -> Self {
        if plant == Some(Plant::ClaimUnallocated) { Self::Whole } else { self }
    }
}
