//! What the supervisor and the cells say to each other.
//!
//! Descriptors that belong to a message (a client's segments) travel beside it; the driver pairs
//! them. Order holds in each direction.

use std::fmt;

use warren_base::{BlockNo, CellId, ClientId, Epoch, Errno, Lsn, MapVersion, ShardId};

use crate::{Credentials, Wire};

/// From the supervisor to a cell.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Order {
    /// A client may speak from now on. `acknowledged_leases` is for a front (design 13.1).
    Admit { client: ClientId, credentials: Credentials, acknowledged_leases: bool, slots: u16 },
    /// The client is gone: release everything of its.
    Expel { client: ClientId },
    /// Checkpoint `number`: start no new transaction and say when none is left.
    Drain { number: u64 },
    /// No cell has a transaction: write all that changed, flush, report. `count`: also which free chunks
    /// the cell has, since some may have been lost with a cell.
    Write { number: u64, count: bool },
    /// The superblock names checkpoint `number`: freed blocks may be used again.
    Switched { number: u64 },
    /// Checkpoint `number` did not happen. Where the device is `broken` none will happen any more: it has
    /// lost what was written, or may have.
    Failed { number: u64, errno: Errno, broken: bool },
    /// The device has lost what was written, or may have: nothing that changes is kept any more. Refuse changes.
    ReadOnly { errno: Errno },
    /// Checkpoint `number` was given up, for a cell was lost meanwhile. Nothing failed: who waits for it
    /// waits for the next.
    Abandoned { number: u64 },
    /// Free chunks that nobody has any more, since a cell was lost: they are this cell's to give. Runs: the
    /// first of each, and how many.
    Found { runs: Vec<(u64, u64)> },
    /// Recovery: where the log of each cell ends, as far as is known. Cut your own accordingly.
    Cut { ends: Vec<Lsn> },
    /// Recovery: replay your log up to its cut.
    Replay,
    /// Recovery: chunks that logs have claimed since the last checkpoint, of all cells.
    Claimed { chunks: Vec<u64> },
    /// The cell's process is gone, and nothing that it gave a device is under way. Whatever it had sent
    /// was handled before this order. Send it nothing more, and say that it was heard.
    Lost { cell: CellId, epoch: Epoch },
    /// Every cell has heard of the loss; a successor of this epoch starts. Beside the order come the
    /// descriptors of a new link to it; what was not read of the old one is void.
    Joined { cell: CellId, epoch: Epoch },
    /// After the last checkpoint: answer what waits and end.
    Stop,
    /// The fleet ends, and no checkpoint comes: take no more requests, write what is not on the device to it, file data
    /// and the log, and end.
    Save,
}

/// What a cell wrote for a checkpoint and the supervisor must record.
#[derive(Clone, PartialEq, Eq, Debug, Default, Wire)]
pub struct Written {
    /// The shards that changed.
    pub roots: Vec<ShardRoot>,
    /// Chunks of 64 blocks that went to a shard since the last checkpoint.
    pub claimed: Vec<(u64, ShardId)>,
    /// Chunks that are nobody's any more.
    pub released: Vec<u64>,
    /// From where the cell's log is to be replayed after this checkpoint.
    pub log_start: Lsn,
    /// If it was asked for.
    pub free: Option<FreeChunks>,
}

/// The free chunks of a cell when it fixed its state, and what it had exchanged with others by then.
#[derive(Clone, PartialEq, Eq, Debug, Default, Wire)]
pub struct FreeChunks {
    /// Runs of chunks: the first of each, and how many. `None`: too many to tell.
    pub runs: Option<Vec<(u64, u64)>>,
    /// For every other cell: messages with chunks that went there and that came from there, since either
    /// of the two was started last.
    pub exchanged: Vec<Exchanged>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
pub struct Exchanged {
    pub with: CellId,
    pub given: u64,
    pub taken: u64,
}

/// Where a shard's tree is, and what else its root slot holds.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct ShardRoot {
    pub shard: ShardId,
    /// Block and checksum of the root node; `None` of an empty shard.
    pub root: Option<(BlockNo, u32)>,
    pub height: u8,
    pub next_sequence: u64,
    pub inodes: u64,
    /// Blocks in use, data and nodes.
    pub blocks: u64,
}

/// Why a cell takes another one for faulty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Suspicion {
    /// A record in its inbox fails its checks: place, length, sender or checksum.
    Record,
    /// A record is whole and holds no message.
    Message,
    /// A message that no honest cell sends.
    Content,
    /// The peer's receive cursor cannot be.
    Cursor,
    /// More waits for the peer than all of its tasks send.
    Backlog,
    /// The peer's vitals cannot be.
    Vitals,
}

/// From a cell to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Report {
    /// All shards of the cell are open.
    Ready {
        cell: CellId,
        epoch: Epoch,
        map: MapVersion,
    },
    Admitted {
        client: ClientId,
    },
    Expelled {
        client: ClientId,
    },
    /// Somebody waits for a checkpoint that starts from now on.
    WantCheckpoint {
        cell: CellId,
    },
    Drained {
        cell: CellId,
        number: u64,
    },
    /// Every write of the checkpoint is done, but not flushed.
    Written {
        cell: CellId,
        number: u64,
        result: Result<Written, Errno>,
    },
    /// Recovery: the log ends here, or is cut here.
    LogEnd {
        cell: CellId,
        lsn: Lsn,
    },
    /// Recovery: the log is replayed, and claimed these chunks.
    Replayed {
        cell: CellId,
        chunks: Vec<u64>,
    },
    /// The loss of a cell was heard, and everything that it had sent is handled.
    Heard {
        lost: CellId,
        epoch: Epoch,
    },
    /// A shard cannot be served: what the device holds of it cannot be read or cannot be true.
    Broken {
        cell: CellId,
        shard: ShardId,
        errno: Errno,
    },
    /// The cell's op log cannot be read, or cannot be true.
    BrokenLog {
        cell: CellId,
        errno: Errno,
    },
    /// The cell's op log is full, and checkpoints, which would make room, fail with this error of the device: what
    /// changes anything, an open too, can only wait.
    Stuck {
        cell: CellId,
        errno: Errno,
    },
    /// The cell has nothing left to do.
    Stopped {
        cell: CellId,
    },
    /// What this process of a peer has written makes no sense. Nothing of it is read any more, and nothing is sent to
    /// it, until one of the two has a successor.
    Suspect {
        cell: CellId,
        epoch: Epoch,
        why: Suspicion,
    },
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Record => "a damaged record",
            Self::Message => "a record that holds no message",
            Self::Content => "a message that no cell sends",
            Self::Cursor => "a receive cursor that cannot be",
            Self::Backlog => "an inbox that is not emptied",
            Self::Vitals => "vitals that cannot be",
        })
    }
}
