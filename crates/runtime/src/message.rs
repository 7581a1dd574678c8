//! What the processes of a fleet send each other beside orders and reports, and what is sent over
//! the control socket.
//!
//! ```text
//! keeper -> supervisor   FromKeeper      supervisor -> keeper   ToKeeper
//! supervisor -> cell     CellStart, ToCell   cell -> supervisor   FromCell
//! client -> supervisor   ControlRequest     supervisor -> client   ControlReply
//! ```

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use warren_base::{BlockNo, CellId, ClientId, Epoch, Instant, Lsn, MapVersion};
use warren_cell::Backing;
use warren_mailbox::Capability;
use warren_proto::control::{Order, Report};
use warren_proto::{CapabilityKey, Wire};
use warren_supervisor::{STOP_MAX, STOP_WAIT};

use crate::clients::Clients;
use crate::error::ErrorKind;

/// Version of [`ControlRequest`] and [`ControlReply`]; grows when one of them or a layout changes.
pub const CONTROL_VERSION: u32 = 9;

/// A path or an argument: bytes without NUL.
pub type OsBytes = Box<[u8]>;

/// A path as it came over a link.
pub(crate) fn path_of(bytes: &OsBytes) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// How a fleet shall be.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct FleetPlan {
    /// The absolute path of the pool.
    pub pool: OsBytes,
    pub cells: u16,
    pub threads: u16,
    /// Bytes of the caches of file data and tree nodes, all cells together.
    pub cache_bytes: u64,
    /// Whom it admits besides root and its own user.
    pub clients: Clients,
    /// Where its log goes, as `warren_log::Target::word` has it.
    pub log: OsBytes,
}

/// What the keeper holds for the next supervisor, each with all descriptors that belong to it. It
/// makes nothing of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Wire)]
pub enum Kept {
    /// The pool as it was locked, and another open file of it that has not been written to.
    Pool,
    /// The journal that a supervisor writes for the next one.
    Record,
    /// The control socket, which listens.
    Listener,
    /// The shard map.
    Map,
    /// A cell's lasting memory: frames, both ends of its bell, vitals.
    Cell(CellId),
    /// Of a cell's process: the supervisor's end of its link, and the pool for the next one.
    Process(CellId),
    /// Of a client, by the number of its connection: that, its segment, every cell's for it.
    Client(u64),
    /// A connection that waits for the end of the fleet.
    Stopping(u64),
}

/// What a keeper sends to a supervisor that takes over.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Handover {
    pub plan: FleetPlan,
    /// Token and number of every process that runs. Of those that were started the others have
    /// ended.
    pub children: Vec<(u32, u32)>,
    /// The fleet was asked to stop.
    pub stop: bool,
    /// Supervisors before this one, and when the last of them was found dead.
    pub predecessors: u32,
    pub died: Instant,
    /// [`FromKeeper::Kept`]s that follow.
    pub kept: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum ToKeeper {
    /// Start this program again with these arguments and the one descriptor of the packet as its
    /// standard input. Answered by `Spawned` or `NotSpawned`. The log knows the process as `name`.
    Spawn { token: u32, name: Box<[u8]>, args: Vec<OsBytes> },
    /// Hold the descriptors of the packet under this name, instead of earlier ones.
    Keep { name: Kept },
    /// Close what is held under this name.
    Forget { name: Kept },
    /// End this process at once. Its `Exited` follows, if it has not gone already.
    Kill { token: u32 },
    /// The fleet serves, or goes on after a supervisor's death. Clients may come.
    Ready { cells: u16 },
    /// The supervisor cannot go on, for a reason of its own; another one may.
    Fell { kind: ErrorKind, line: Box<[u8]> },
    /// The fleet cannot go on; the supervisor ends. Answered by `Released`.
    Failed { kind: ErrorKind, line: Box<[u8]> },
    /// All is on the device; the supervisor ends. Answered by `Released`.
    Stopped,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum FromKeeper {
    /// The first message.
    Begin(FleetPlan),
    /// The first message to a supervisor whose predecessor died.
    Adopt(Handover),
    /// With the descriptors that were kept under this name.
    Kept {
        name: Kept,
    },
    Spawned {
        token: u32,
        pid: u32,
    },
    NotSpawned {
        token: u32,
        errno: i32,
    },
    /// The process ended; `status` as `waitpid` has it.
    Exited {
        token: u32,
        status: i32,
    },
    /// Nothing is held any more, the pool least of all.
    Released,
    /// The fleet was asked to stop.
    Stop,
    /// Why nothing can be recorded in the fleet's log; empty once it can be again.
    LogTrouble {
        line: Box<[u8]>,
    },
}

/// Between who starts a fleet in the background and its keeper.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Launch {
    /// To the keeper, once.
    Begin {
        plan: FleetPlan,
        tied: bool,
    },
    /// From the keeper: clients may come.
    Ready {
        cells: u16,
    },
    /// From the keeper: the fleet has ended.
    Failed {
        kind: ErrorKind,
        line: Box<[u8]>,
    },
    Stopped,
}

/// The first packet to a cell. Descriptors beside it: see [`START_DESCRIPTORS`]. Then come
/// [`ToCell`]s.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct CellStart {
    pub id: CellId,
    pub epoch: Epoch,
    pub cells: u16,
    pub pool: OsBytes,
    /// Owner of every shard.
    pub map: Vec<CellId>,
    pub map_version: MapVersion,
    pub secret: u64,
    pub capabilities: CapabilityKey,
    /// Root slots of the cell's shards as the device holds them; empty bytes if never written.
    pub roots: Vec<(u16, Box<[u8]>)>,
    /// The chunks of those of its shards that have any.
    pub owned_chunks: Vec<(u16, Runs)>,
    pub free_chunks: Runs,
    pub reserved_chunks: u64,
    pub total_blocks: u64,
    pub backing: Backing,
    /// Of the buffer cache; the op log's image and the cache's table are behind them.
    pub frames: u32,
    pub log: LogStart,
    /// Whether the frames are a predecessor's, of this fleet, as they were when it died.
    pub successor: bool,
    pub generation: u64,
    /// Its reports are sent under this one.
    pub supervisor: Capability,
}

/// A cell's op log as it finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct LogStart {
    pub start: BlockNo,
    pub blocks: u64,
    /// From where the log counts; its end, if the cell has had no process before.
    pub from: Lsn,
    pub incarnation: u64,
}

/// Chunks as runs of neighbours: the first of each, and how many. A large pool is mostly free.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Runs(Vec<(u64, u64)>);

impl Runs {
    /// `chunks` ascend.
    pub fn of(chunks: &[u64]) -> Self {
        let runs = chunks.chunk_by(|a, b| a + 1 == *b);
        Self(runs.map(|run| (run[0], run.len() as u64)).collect())
    }

    pub fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|&(first, count)| first..first + count)
    }
}

/// Descriptors beside a [`CellStart`]: the pool as it was locked, the pool for this cell alone, the
/// shard map (read-only), frames, the reading end of its bell, its vitals.
pub const START_DESCRIPTORS: usize = 6;

/// How to reach a peer. Descriptors beside it: a rope to the peer's bell, its vitals (read-only),
/// the segment that this cell writes for the peer, the one that the peer writes for it (read-only).
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct PeerRoute {
    pub peer: CellId,
    /// What comes from an earlier one of the peer is refused.
    pub epoch: Epoch,
    /// What this cell sends to the peer goes under this capability.
    pub capability: Capability,
    /// One for the list of this cell's inbox: the peer sends under it.
    pub admits: Capability,
}

/// From the supervisor to a cell, behind its [`CellStart`]. It carries no capability: who hands
/// them out needs none, and nobody else has the other end of the socket.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum ToCell {
    /// A process's orders count from 0. One that comes again, from a supervisor that has taken
    /// over, is not heard again.
    Order { number: u64, order: Order },
    /// A new link. Of a peer that returns it comes right before the `Order::Joined`.
    Link(PeerRoute),
    /// All that a cell must know before its first turn has been sent: its links, and for a
    /// successor the clients of its predecessor.
    Begin,
}

/// From a cell to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum FromCell {
    /// A message to the mailbox `/supervisor`. A process's reports count from 0.
    Report { capability: Capability, epoch: Epoch, number: u64, report: Report },
    /// The last word of a cell that cannot go on. It needs no capability, because a cell may fail
    /// before it has one.
    Failed { kind: ErrorKind, line: Box<[u8]> },
}

/// Descriptors beside a [`PeerRoute`].
pub const PEER_DESCRIPTORS: usize = 4;

/// Beside an `Order::Admit` to a cell travel the client's segment (read-only) and the cell's
/// segment for the client (writable).
pub const ADMIT_DESCRIPTORS: usize = 2;

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum ControlRequest {
    /// Asks for admission. `front` asks to name uid and gid with every request, and says where it
    /// is mounted.
    Enter {
        version: u32,
        front: bool,
        slots: u16,
        mounted: OsBytes,
    },
    Status {
        version: u32,
    },
    /// Unmount, checkpoint, end everything, then close the connection. Refused while a mount is
    /// busy, unless by `force`, and if the checkpoint fails, unless what it lacks is to be given up
    /// (`discard`).
    Stop {
        version: u32,
        force: bool,
        discard: bool,
    },
    /// The answer of a mount's process to the `Leave` of this number: what uses the mount, in
    /// words, or used it when it was cut off. Nothing, if it is idle. A process that has left
    /// closes its connection instead.
    InUse {
        version: u32,
        number: u32,
        by: Box<[u8]>,
    },
}

/// How a mount is to be given up before a fleet stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Leave {
    /// Only reply whether it is in use.
    Ask,
    /// Unmount it unless it is in use.
    IfIdle,
    /// Write back what programs have stored through mappings, then cut them off.
    Force,
}

/// The longest path of a mount that is remembered, `PATH_MAX` of Linux.
pub const MOUNTED_MAX: usize = 4096;

/// Bytes of [`ControlRequest::InUse`] that are passed on.
pub const IN_USE_MAX: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum ControlReply {
    Refused {
        version: u32,
        errno: i32,
    },
    /// Beside it: the client's segment (writable), the shard map, then of every cell in order its
    /// segment for the client (read-only), vitals (read-only) and a rope to its
    /// bell.
    Welcome {
        client: ClientId,
        slots: u16,
        cells: u16,
        shards: u16,
    },
    /// A part of the JSON of a `FleetStatus`, and whether more follow. In parts, because a client
    /// need not trust the fleet with a memfd.
    Status {
        json: Box<[u8]>,
        more: bool,
    },
    /// To a front: before the fleet stops. Answered by `InUse` or by hanging up.
    Leave {
        number: u32,
        how: Leave,
    },
    /// After `Stopping`: a mount that was cut off, and what used it.
    CutOff {
        line: Box<[u8]>,
    },
    /// Before `Stopping`, or what comes instead: a checkpoint shows whether the fleet can stop,
    /// which may take long.
    Trying,
    /// The fleet is stopping; its keeper is the last to go.
    Stopping {
        keeper: u32,
    },
    /// Instead of `Stopping`: the fleet goes on. After it: the last checkpoint did not happen.
    Failed {
        kind: ErrorKind,
        line: Box<[u8]>,
    },
    /// After `Stopping`: all is on the device.
    Stopped,
    /// After `Stopping`, or `Trying`: the last checkpoint, or the trial, failed, and the fleet
    /// serves on.
    StopRefused {
        errno: i32,
    },
}

/// How long a fleet may take for its last checkpoint: longer than it gives its cells.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(120);

const _: () = assert!(STOP_TIMEOUT.as_secs() > STOP_MAX.as_secs() + STOP_WAIT.as_secs());

/// Bytes of JSON in one [`ControlReply::Status`].
pub const STATUS_PART_MAX: usize = 16 * 1024;

const _: () = assert!(STATUS_PART_MAX + 64 <= crate::link::INLINE_MAX);

/// Bytes of a client's own memory of where the last call of every slot went.
pub const FLIGHTS_LEN: usize = 4096;

/// Descriptors beside a `Welcome`.
pub const fn welcome_descriptors(cells: usize) -> usize {
    2 + 3 * cells
}

const _: () = {
    use warren_base::limits::{CELLS_MAX, SLOTS_MAX};
    assert!(FLIGHTS_LEN >= SLOTS_MAX * 8);
    assert!(welcome_descriptors(CELLS_MAX) <= crate::link::DESCRIPTORS_MAX);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_their_chunks_and_nothing_else() {
        for chunks in [&[][..], &[0], &[3, 4, 5], &[1, 2, 7, 9, 10, 11]] {
            let runs = Runs::from_bytes(&Runs::of(chunks).to_bytes()).expect("its own bytes");
            assert_eq!(runs.chunks().collect::<Vec<_>>(), chunks);
        }
        // However large a pool, what is free of it in one piece is one run.
        let free: Vec<u64> = (0..1 << 16).collect();
        assert_eq!(Runs::of(&free).to_bytes().len(), 4 + 16);
    }
}
