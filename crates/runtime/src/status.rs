//! The status of a fleet: an element of `fleets` in the JSON of `warren status --json`.

use serde::{Deserialize, Serialize};
use warren_proto::Rules;

/// The state of a fleet that did not answer: little is known of it.
pub const SILENT: &str = "silent";

/// A fleet at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FleetStatus {
    pub pool: String,
    /// The damage that another process has done to the pool's file since the fleet opened it:
    /// `deleted`, `cut short`.
    #[serde(default)]
    pub pool_harm: Option<String>,
    #[serde(flatten)]
    pub log: LogStatus,
    #[serde(flatten)]
    pub uses: UseStatus,
    /// The user that runs it, from the kernel of the querying process.
    #[serde(default)]
    pub uid: u32,
    pub keeper_pid: u32,
    pub supervisor_pid: u32,
    /// Supervisors that died and were replaced.
    pub supervisor_restarts: u32,
    /// `starting`, `serving`, `stopping`, `ended` or `silent`.
    pub state: String,
    /// Its processes, fronts included, that are stopped by a signal (SIGSTOP) or a debugger.
    #[serde(default)]
    pub stopped_pids: Vec<u32>,
    #[serde(flatten)]
    pub checkpoint: CheckpointStatus,
    #[serde(flatten)]
    pub space: SpaceStatus,
    pub shards: u16,
    #[serde(flatten)]
    pub places: PlaceStatus,
    #[serde(flatten)]
    pub harm: HarmStatus,
    /// The names of all mailboxes.
    pub mailboxes: Vec<String>,
    /// Reports without a capability of the supervisor's mailbox.
    pub reports_refused: u64,
    pub cells: Vec<CellStatus>,
    /// For a user other than root and the fleet's own, only the user's own clients.
    pub clients: Vec<ClientStatus>,
    /// The last processes of cells that ended and were replaced.
    #[serde(default)]
    pub faults: Vec<FaultStatus>,
}

/// The end of one process of a cell, with the times of its replacement.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FaultStatus {
    /// Faults of a fleet count from 1.
    pub number: u64,
    pub cell: u16,
    pub epoch: u32,
    /// Seconds since 1970.
    pub at: i64,
    pub cause: String,
    /// Microseconds from the first sign that the supervisor had until the process was gone; from
    /// there until every other cell had handled its messages and its successor was started; and
    /// from there until that served.
    pub ended_us: u64,
    pub barrier_us: Option<u64>,
    pub recovery_us: Option<u64>,
}

/// The places of inodes: these two lead from an inode number to the cell that serves the inode.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PlaceStatus {
    /// The cell of each shard.
    #[serde(default)]
    pub shard_cells: Vec<u16>,
    /// The numbers that programs see are the dense ones of [`warren_base::InodeNumbers`].
    #[serde(default)]
    pub dense_inos: bool,
}

/// The blocks of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SpaceStatus {
    pub block_size: u32,
    pub total_blocks: u64,
    /// Blocks of chunks that belong to no shard, limited by the room on the host of a sparse pool.
    pub free_blocks: u64,
    /// They are fewer than the pool has, because its host has no room for more.
    #[serde(default)]
    pub limited_by_host: bool,
    /// Bytes of the file behind the pool, which it could grow into.
    #[serde(default)]
    pub bytes_behind: u64,
}

/// The log of a fleet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LogStatus {
    /// Where it goes: `stderr`, `journal` or a path.
    #[serde(default)]
    pub log: String,
    /// Why it cannot be written now, and since when.
    #[serde(default)]
    pub log_trouble: Option<String>,
}

/// The uses of a fleet on which its end, a remount and another mount depend.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UseStatus {
    /// It ends with its last mount.
    #[serde(default)]
    pub ends_with_mounts: bool,
    /// Bytes of the cells' caches of file data and tree nodes, all together. Zero if unknown.
    #[serde(default)]
    pub cache_bytes: u64,
    /// Files that clients other than mounts have open for writing.
    #[serde(default)]
    pub files_written: u64,
}

/// The parts that are not served, and the data that was lost.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HarmStatus {
    /// Shards that are not served until they are repaired.
    #[serde(default)]
    pub given_up: Vec<GivenUpStatus>,
    /// Cells that are taken out: none of their shards is served.
    #[serde(default)]
    pub taken_out: Vec<TakenOutStatus>,
    /// The files that have lost damaged pages last.
    #[serde(default)]
    pub discarded: Vec<DiscardedStatus>,
    /// The files of which changes have failed last after their programs went on.
    #[serde(default)]
    pub posts_failed: Vec<PostFailedStatus>,
}

/// A shard that is not served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GivenUpStatus {
    pub shard: u16,
    pub errno: String,
    /// Seconds since 1970.
    pub since: i64,
}

/// A cell that is taken out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TakenOutStatus {
    pub cell: u16,
    /// Seconds since 1970.
    pub since: i64,
    /// It is being taken in again.
    pub returns: bool,
}

/// A file of which damaged pages were thrown away.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiscardedStatus {
    /// The number that programs see.
    pub ino: u64,
    pub generation: u32,
    /// Seconds since 1970.
    pub at: i64,
}

/// A file of which a change has failed after its program went on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PostFailedStatus {
    /// The number that programs see.
    pub ino: u64,
    pub errno: String,
    /// Seconds since 1970.
    pub at: i64,
}

/// A fleet's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointStatus {
    /// The last checkpoint that the superblock names.
    pub generation: u64,
    /// Successful and failed checkpoints of this run.
    pub checkpoints: u64,
    pub checkpoints_failed: u64,
    /// Since when each checkpoint has failed, in seconds since 1970.
    pub failing_since: Option<i64>,
    /// Why checkpoints are not possible any more.
    pub broken: Option<String>,
    /// Since when, in seconds since 1970, the fleet refuses all changes because it could not keep
    /// them.
    pub read_only_since: Option<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CellStatus {
    pub cell: u16,
    pub pid: u32,
    pub epoch: u32,
    /// `starting`, `ready`, `lost`, `stopped` or `exited`.
    pub state: String,
    pub shards: u16,
    /// Successors of the cell's first process, and the duration of the last pause that one caused.
    pub restarts: u64,
    pub last_pause_ms: Option<u64>,
    /// Counts up while the cell is awake.
    pub heartbeat: u64,
    pub parked: bool,
    /// The number of threads that are awake.
    pub spinners: u32,
    /// Since the fleet started: requests of clients and messages of peers.
    pub requests: u64,
    pub peer_messages: u64,
    #[serde(flatten)]
    pub losses: LossCounters,
    /// Time awake (at work and spinning), and asleep.
    pub busy_ns: u64,
    pub parked_ns: u64,
    /// Live tasks, requests that wait for file locks, clients' requests that wait in their slots.
    pub tasks: u64,
    pub lock_waiters: u64,
    pub queued: u64,
    #[serde(flatten)]
    pub device: DeviceCounters,
}

/// The messages that a cell has dropped, or has not received in time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LossCounters {
    /// Dropped messages of peers: without a capability of the inbox, and of an earlier epoch.
    pub refused: u64,
    pub stale: u64,
    /// Requests of clients that the cell found without a ring, and answers that clients found
    /// without a wake-up. Each was late, by two seconds at most beside 64 clients.
    #[serde(default)]
    pub lost_rings: u64,
    #[serde(default)]
    pub lost_wakeups: u64,
}

/// The requests of a cell to the device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// I/Os in flight.
    pub ios: u64,
    /// Blocks read from and written to the device.
    pub blocks_read: u64,
    pub blocks_written: u64,
    /// Writes of one or more blocks, and flushes.
    pub writes: u64,
    pub flushes: u64,
    /// For how long it has had I/Os and completed none, in milliseconds, if that is long.
    #[serde(default)]
    pub silent_ms: u64,
    /// Why io_uring was refused to the cell, which then waits for each I/O. Absent if it has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_uring_refused: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientStatus {
    pub client: u32,
    pub pid: u32,
    pub uid: u32,
    pub front: bool,
    /// Where a front is mounted, as it reported.
    pub mounted: Option<String>,
    /// Options of its mount that hold for its requests: `ro`, `noatime`, `strictatime`.
    #[serde(default)]
    pub options: Vec<String>,
}

/// [`ClientStatus::options`] of these rules.
pub fn names_of_rules(rules: Rules) -> Vec<String> {
    const NAMES: [(Rules, &str); 3] = [
        (Rules::READ_ONLY, "ro"),
        (Rules::NO_ATIME, "noatime"),
        (Rules::STRICT_ATIME, "strictatime"),
    ];
    let held = NAMES.iter().filter(|(rule, _)| rules.contains(*rule));
    held.map(|&(_, name)| name.to_owned()).collect()
}
