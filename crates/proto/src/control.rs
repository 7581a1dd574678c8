//! Messages between the supervisor and the cells.
//!
//! Descriptors that belong to a message (a client's segments) travel beside it; the driver pairs
//! them. Order holds in each direction.

use alloc::vec::Vec;
use core::fmt;

use warren_base::{BlockNo, CellId, ClientId, Epoch, Errno, Ino, Lsn, MapVersion, ShardId};

use crate::slot::Shape;
use crate::{Credentials, Rules, Wire};

/// From the supervisor to a cell.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Order {
    /// A client with segments of this shape may send requests from now on. A front has
    /// `acknowledged_leases`, because its kernel cannot read a lease word.
    Admit {
        client: ClientId,
        credentials: Credentials,
        acknowledged_leases: bool,
        shape: Shape,
        rules: Rules,
    },
    /// From now on these rules hold for the client's requests, instead of those before.
    Rule { client: ClientId, rules: Rules },
    /// The client is gone: release all its handles, locks and leases.
    Expel { client: ClientId },
    /// Checkpoint `number`: start no new transaction, and report when none is left.
    Drain { number: u64 },
    /// No cell has a transaction: write all dirty blocks, flush, report. `count`: report the free
    /// chunks of the cell too, because some may have been lost with a cell.
    Write { number: u64, count: bool },
    /// The superblock names checkpoint `number`: freed blocks may be used again.
    /// `is_whole`: no cell is taken out, whose state it lacks.
    Switched { number: u64, is_whole: bool },
    /// Checkpoint `number` failed. If the device is `broken`, it may have lost writes, and all
    /// further checkpoints fail.
    Failed { number: u64, errno: Errno, broken: bool },
    /// The device may have lost writes, so that changes can no longer be made durable. Refuse them.
    ReadOnly { errno: Errno },
    /// Checkpoint `number` was aborted, because a cell was lost meanwhile. Requests that wait for
    /// it wait for the next.
    Abandoned { number: u64 },
    /// Free chunks that no cell has, because a cell was lost: they belong to this cell's pool now.
    /// Runs: the first chunk and the number of chunks.
    Found { runs: Vec<(u64, u64)> },
    /// The pool is to have so many blocks. Chunks from beyond its present end may come from peers
    /// after a later checkpoint. The device is that long already.
    Grow { blocks: u64 },
    /// The pool has grown. These new chunks, runs as in `Found`, belong to this cell's pool, and
    /// ordinary users must leave `reserve` chunks at this cell from now on. `last`: the cell
    /// reports [`Report::Grown`].
    Grown { reserve: u64, runs: Vec<(u64, u64)>, last: bool },
    /// Recovery: the present end of each cell's log. The cell cuts its own accordingly.
    Cut { ends: Vec<Lsn> },
    /// Recovery: replay the log up to its cut.
    Replay,
    /// Recovery: the chunks that the logs of all cells have claimed since the last checkpoint.
    Claimed { chunks: Vec<u64> },
    /// The process of the cell is gone, and none of its device I/O is under way. Handle the
    /// messages that it had sent before this order, send it no more, and report
    /// [`Report::LossHandled`].
    Lost { cell: CellId, epoch: Epoch },
    /// All cells have handled the loss, and a successor of this epoch starts. The descriptors of a
    /// new link to it come with the order; unread messages on the old link are void.
    Joined { cell: CellId, epoch: Epoch },
    /// The shard's cell has given it up: place no new directory there.
    GivenUp { shard: ShardId },
    /// The shard is served again, because its cell was taken in again.
    Served { shard: ShardId },
    /// The process of this cell may hang. Ask it, and report [`Report::Asked`] at once and
    /// [`Report::Answered`] with its answer. The cell itself only reports the latter.
    Probe { cell: CellId, trial: u64 },
    /// After the last checkpoint: reply to waiting requests and end.
    Stop,
    /// The fleet ends without a checkpoint: take no more requests, write dirty file data and the
    /// log to the device, and end.
    Save,
}

/// The part of a cell in a checkpoint, which the supervisor must record.
#[derive(Clone, PartialEq, Eq, Debug, Default, Wire)]
pub struct Written {
    /// The shards that changed.
    pub roots: Vec<ShardRoot>,
    /// Chunks of 64 blocks that shards have claimed since the last checkpoint.
    pub claimed: Vec<(u64, ShardId)>,
    /// Chunks that shards have released.
    pub released: Vec<u64>,
    /// Shards that were given up since the last checkpoint, whose trees stay what they were.
    pub given_up: Vec<ShardId>,
    /// The position in the cell's log from which to replay after this checkpoint.
    pub log_start: Lsn,
    /// If it was requested.
    pub free: Option<FreeChunks>,
}

/// The free chunks of a cell when it fixed its state, and its exchanges with other cells by then.
#[derive(Clone, PartialEq, Eq, Debug, Default, Wire)]
pub struct FreeChunks {
    /// Runs of chunks: the first chunk and the number of chunks. `None`: too many for a message.
    pub runs: Option<Vec<(u64, u64)>>,
    /// For each other cell: messages with chunks that were sent to it and received from it, since
    /// the last start of either.
    pub exchanged: Vec<Exchanged>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
pub struct Exchanged {
    pub with: CellId,
    pub given: u64,
    pub taken: u64,
}

/// The root of a shard's tree, and the other contents of its root slot.
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

/// Why a cell accuses another cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Suspicion {
    /// A record in its inbox fails its checks: place, length, sender or checksum.
    Record,
    /// A record is whole and contains no message.
    Message,
    /// A message that no correct cell sends.
    Content,
    /// The peer's receive cursor is invalid.
    Cursor,
    /// More messages wait for the peer than all tasks send.
    Backlog,
    /// The peer's vitals are invalid.
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
    /// A task waits for a checkpoint that starts later than now.
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
    /// Recovery: the log is replayed, and its records claim these chunks.
    Replayed {
        cell: CellId,
        chunks: Vec<u64>,
    },
    /// The cell has handled the loss of a peer, and before that all messages that the peer had
    /// sent.
    LossHandled {
        lost: CellId,
        epoch: Epoch,
    },
    /// The cell has the new chunks of a pool that has grown.
    Grown {
        cell: CellId,
    },
    /// The cell has given up a shard, whose state cannot be read or is invalid. It answers EIO to
    /// requests for what lies there, and serves its other shards.
    GivenUp {
        cell: CellId,
        shard: ShardId,
        errno: Errno,
    },
    /// The cell has discarded damaged pages of the file, which only the memory of its predecessor
    /// had.
    Discarded {
        cell: CellId,
        ino: Ino,
        generation: u32,
    },
    /// A change that a client had posted has failed after its program went on.
    PostFailed {
        cell: CellId,
        ino: Ino,
        errno: Errno,
    },
    /// The device has done nothing for the cell for some seconds, and the cell cannot go on without
    /// what it holds.
    Unreadable {
        cell: CellId,
        errno: Errno,
    },
    /// The cell's op log cannot be read, or is invalid.
    BrokenLog {
        cell: CellId,
        errno: Errno,
    },
    /// The cell's op log is full, and checkpoints, which would make room, fail with this error of
    /// the device. All changes, opens included, can only wait.
    Stuck {
        cell: CellId,
        errno: Errno,
    },
    /// The cell has nothing left to do.
    Stopped {
        cell: CellId,
    },
    /// The cell has asked the process that is on trial, or has its answer.
    Asked {
        trial: u64,
    },
    Answered {
        trial: u64,
    },
    /// The process of the peer does not answer the cell, although it beats.
    Silent {
        cell: CellId,
    },
    /// A request, or its answer, was lost between the cell and the peer, as both know. The cell has
    /// repeated the request.
    LostMessage {
        cell: CellId,
    },
    /// A task of the cell waits for nothing that can come, so its state is damaged. The cell must
    /// be replaced.
    LostWakeup,
    /// This process of a peer has sent invalid messages. The cell reads nothing from it and sends
    /// nothing to it, until either of the two has a successor.
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
