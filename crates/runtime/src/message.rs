//! The messages between processes of a fleet besides orders and reports. Those of the control
//! socket are in `warren_transport::control`.
//!
//! ```text
//! keeper -> supervisor   FromKeeper      supervisor -> keeper   ToKeeper
//! supervisor -> cell     CellStart, ToCell   cell -> supervisor   FromCell
//! ```

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use warren_base::{BlockNo, CellId, Epoch, Instant, Lsn, MapVersion};
use warren_cell::SpaceConfig;
use warren_mailbox::Capability;
use warren_proto::control::{Order, Report};
use warren_proto::{CapabilityKey, Wire};
use warren_supervisor::{STOP_MAX, STOP_WAIT};
use warren_transport::control::{ErrorKind, OsBytes};

use crate::clients::Clients;
/// A path that was received over a link.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The parameters of a fleet.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct FleetPlan {
    /// The absolute path of the pool.
    pub pool: OsBytes,
    pub cells: u16,
    pub threads: u16,
    /// Bytes of the caches of file data and tree nodes, all cells together.
    pub cache_bytes: u64,
    /// Which clients it admits besides root and its own user.
    pub clients: Clients,
    /// Clients that are no fronts, and neither root's nor the fleet's user's, may change nothing.
    pub read_only: bool,
    /// The fleet ends with its last mount.
    pub ends_with_mounts: bool,
    /// Where its log goes, in the form of `warren_log::Target::word`.
    pub log: OsBytes,
}

/// The names under which the keeper holds descriptors for the next supervisor. It does not
/// interpret them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Wire)]
pub(crate) enum Kept {
    /// The locked pool, and another open file of it through which nothing was written.
    Pool,
    /// The journal that a supervisor writes for its successor.
    Record,
    /// The listening control socket.
    Listener,
    /// The shard map.
    Map,
    /// A cell's lasting memory: frames, both ends of its bell, vitals.
    Cell(CellId),
    /// The descriptors for a cell's process: the supervisor's end of its link, and the pool for its
    /// successor.
    Process(CellId),
    /// A client's connection, by its number.
    Client(u64),
    /// The segments of the client with this connection: its own, each cell's for it. The next
    /// supervisor is not sent them: it asks for those that it needs (`Lend`).
    Segments(u64),
    /// A connection that waits for the end of the fleet.
    Stopping(u64),
}

/// A keeper's message to a supervisor that takes over.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct Handover {
    pub plan: FleetPlan,
    /// Token and number of every running process. The other processes that were started have ended.
    pub children: Vec<(u32, u32)>,
    /// The fleet was asked to stop.
    pub stop: bool,
    /// The number of supervisors before this one, and when the last of them was found dead.
    pub predecessors: u32,
    pub died: Instant,
    /// The number of [`FromKeeper::Kept`] messages that follow.
    pub kept: u32,
    /// See [`FromKeeper::Begin`].
    pub in_tables: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) enum ToKeeper {
    /// Start this program again with these arguments and the packet's one descriptor as its
    /// standard input. Answered by `Spawned` or `NotSpawned`. The log calls the process `name`.
    Spawn { token: u32, name: Box<[u8]>, args: Vec<OsBytes> },
    /// Hold the descriptors of the packet under this name, instead of earlier ones.
    Keep { name: Kept },
    /// Close what is held under this name.
    Forget { name: Kept },
    /// Send copies of these of the client's segments, by their order in `Kept::Segments`. Answered
    /// by `Lent`.
    Lend { connection: u64, which: Vec<u16> },
    /// Kill this process. Its `Exited` follows, unless it was sent already.
    Kill { token: u32 },
    /// Resume this process, which a signal has stopped.
    Resume { token: u32 },
    /// The fleet serves, or continues after a supervisor's death. Clients can connect.
    Ready { cells: u16 },
    /// The supervisor cannot continue because of its own error; a successor may.
    SupervisorFailed { kind: ErrorKind, line: Box<[u8]> },
    /// The fleet cannot continue; the supervisor ends. Answered by `Released`.
    Failed { kind: ErrorKind, line: Box<[u8]> },
    /// All data is on the device; the supervisor ends. Answered by `Released`.
    Stopped,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) enum FromKeeper {
    /// The first message. `in_tables`: segments of clients take none of the keeper's descriptors.
    Begin {
        plan: FleetPlan,
        in_tables: bool,
    },
    /// The first message to a supervisor whose predecessor died.
    Adopt(Handover),
    /// The packet carries the descriptors that were kept under this name.
    Kept {
        name: Kept,
    },
    /// The packet carries the descriptors that were asked for, or none if they are not there.
    Lent,
    Spawned {
        token: u32,
        pid: u32,
    },
    NotSpawned {
        token: u32,
        errno: i32,
    },
    /// The process ended; `status` as from `waitpid`.
    Exited {
        token: u32,
        status: i32,
    },
    /// The keeper holds no descriptors any more, so the pool is not locked by it.
    Released,
    /// The fleet was asked to stop.
    Stop,
    /// Why the fleet's log cannot be written; empty once it can be again.
    LogTrouble {
        line: Box<[u8]>,
    },
}

/// Between the process that starts a fleet in the background and its keeper.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) enum Launch {
    /// To the keeper, once.
    Begin {
        plan: FleetPlan,
        tied: bool,
    },
    /// From the keeper: clients can connect.
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

/// The first packet to a cell, with the descriptors of [`START_DESCRIPTORS`]. [`ToCell`]s follow.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct CellStart {
    pub id: CellId,
    pub epoch: Epoch,
    pub cells: u16,
    pub pool: OsBytes,
    /// Owner of every shard.
    pub map: Vec<CellId>,
    pub map_version: MapVersion,
    pub secret: u64,
    pub capabilities: CapabilityKey,
    /// Root slots of the cell's shards as the device holds them.
    pub roots: Vec<(u16, Box<[u8]>)>,
    /// The chunks of each of its shards that has any.
    pub owned_chunks: Vec<(u16, Runs)>,
    pub free_chunks: Runs,
    pub reserved_chunks: u64,
    /// Pages of the region map before the root slots.
    pub first_pages: u64,
    pub total_blocks: u64,
    pub space: SpaceConfig,
    /// Frames of the buffer cache; the op log's image and the cache's table are behind them.
    pub frames: u32,
    pub log: LogStart,
    pub beginning: Beginning,
    pub generation: u64,
    /// The capability of its reports.
    pub supervisor: Capability,
}

/// The state with which a cell's process begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub(crate) enum Beginning {
    /// Log and frames are empty.
    Fresh,
    /// They are as a predecessor left them.
    Successor,
    /// The same, but the cell is taken out.
    Caretaker,
}

/// The state of a cell's op log at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub(crate) struct LogStart {
    pub start: BlockNo,
    pub blocks: u64,
    /// Where the log begins. It is empty, unless the cell has had a process before.
    pub from: Lsn,
    pub incarnation: u64,
}

/// Chunks as runs: the first chunk of each and their number. A large pool is mostly free.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct Runs(Vec<(u64, u64)>);

impl Runs {
    /// `chunks` must ascend.
    pub(crate) fn of(chunks: &[u64]) -> Self {
        let runs = chunks.chunk_by(|a, b| a + 1 == *b);
        Self(runs.map(|run| (run[0], run.len() as u64)).collect())
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|&(first, count)| first..first + count)
    }
}

/// Descriptors with a [`CellStart`]: the locked pool, an open file of the pool for this cell alone,
/// the shard map (read-only), frames, the reading end of its bell, its vitals.
pub(crate) const START_DESCRIPTORS: usize = 6;

/// The way to a peer. Its descriptors: a writing end of the peer's bell, the peer's vitals
/// (read-only), the segment that this cell writes for the peer, the one that the peer writes for it
/// (read-only).
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct PeerRoute {
    pub peer: CellId,
    /// Messages of an earlier epoch of the peer are refused.
    pub epoch: Epoch,
    /// The capability of this cell's messages to the peer.
    pub capability: Capability,
    /// The capability of the peer's messages, for the list of this cell's inbox.
    pub admits: Capability,
}

/// From the supervisor to a cell, after its [`CellStart`]. It carries no capability: the supervisor
/// hands them out, and no other process has the other end of the socket.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) enum ToCell {
    /// The orders to a process count from 0. A supervisor that has taken over may send one again;
    /// the cell drops it.
    Order { number: u64, order: Order },
    /// A new link. To a peer's successor it comes right before the `Order::Joined`.
    Link(PeerRoute),
    /// The cell has been sent all that it must know before its first turn: its links, and for a
    /// successor the clients of its predecessor.
    Begin,
}

/// From a cell to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) enum FromCell {
    /// A message to the mailbox `/supervisor`. The reports of a process count from 0.
    Report { capability: Capability, epoch: Epoch, number: u64, report: Report },
    /// The final message of a cell that cannot continue. It carries no capability, because a cell
    /// may fail before it has one.
    Failed { kind: ErrorKind, line: Box<[u8]> },
}

/// Descriptors with a [`PeerRoute`].
pub(crate) const PEER_DESCRIPTORS: usize = 4;

/// Descriptors with an `Order::Admit` to a cell: the client's segment (read-only) and the cell's
/// segment for the client (writable).
pub(crate) const ADMIT_DESCRIPTORS: usize = 2;

/// The time limit of a fleet's last checkpoint: longer than it allows its cells.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(120);

const _: () = assert!(STOP_TIMEOUT.as_secs() > STOP_MAX.as_secs() + STOP_WAIT.as_secs());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_their_chunks_and_nothing_else() {
        for chunks in [&[][..], &[0], &[3, 4, 5], &[1, 2, 7, 9, 10, 11]] {
            let runs = Runs::from_bytes(&Runs::of(chunks).to_bytes()).expect("its own bytes");
            assert_eq!(runs.chunks().collect::<Vec<_>>(), chunks);
        }
        // The free part of a pool is one run if it is contiguous, however large.
        let free: Vec<u64> = (0..1 << 16).collect();
        assert_eq!(Runs::of(&free).to_bytes().len(), 4 + 16);
    }
}
