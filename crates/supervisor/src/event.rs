//! The supervisor's boundary: one closed enum in, one out.
//!
//! A driver feeds [`Event`]s to [`crate::Supervisor::apply`] in the order in which they happen and
//! carries out the [`Effect`]s in the order in which they come. Orders to one cell arrive in order.

use std::fmt;

use warren_base::{BlockNo, CellId, ClientId, Epoch, Errno, Instant, ShardId};
use warren_proto::control::{Order, Report, Suspicion};
use warren_proto::{Credentials, Wire};

/// Names an I/O of the supervisor until it is done. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct IoId(pub u64);

/// A connection to the admission socket; the driver numbers them and never reuses a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct ConnectionNo(pub u64);

/// Somebody wants to become a client. Who it is comes from the kernel, never from a message.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Applicant {
    pub credentials: Credentials,
    pub pid: u32,
    /// Caches behind this client cannot read a lease word, so its leases are acknowledged ones.
    pub front: bool,
    /// Root or the fleet's own user: what others have taken does not keep it out.
    pub privileged: bool,
    /// Requests it wants to have in flight, `1..=SLOTS_MAX`.
    pub slots: u16,
    /// Of a front: where it says that it is mounted. It is only shown.
    pub mounted: Box<[u8]>,
}

/// What happens to the supervisor.
#[derive(Clone, Debug)]
pub enum Event {
    /// A cell says something. What an earlier epoch of it said is ignored.
    Report {
        from: CellId,
        epoch: Epoch,
        report: Report,
    },
    /// The process of the cell is gone (exit notice), or could not be started. `by_itself`: of something in it, not because
    /// it was killed or the machine had no room for it.
    CellExited {
        cell: CellId,
        epoch: Epoch,
        by_itself: bool,
    },
    Connect {
        connection: ConnectionNo,
        applicant: Applicant,
    },
    /// The connection of the client is closed. Needless ones do no harm.
    Hangup {
        client: ClientId,
    },
    /// Take a checkpoint while all goes on, to see whether a stop would lose anything: [`Effect::MayStop`], or
    /// [`Effect::StopRefused`].
    TryCheckpoint,
    /// Take a last checkpoint and end the fleet, unless that checkpoint fails: [`Effect::StopRefused`] then.
    TryStop,
    /// Take a last checkpoint and end the fleet, whatever comes of it.
    Stop,
    /// The same; that the checkpoint fails is no failure.
    GiveUp,
    /// A flush of a cell has failed: what anybody has written may be lost.
    FlushFailed {
        errno: Errno,
    },
    /// An I/O is done, all of it or not at all.
    IoDone {
        io: IoId,
        result: Result<(), Errno>,
    },
    /// The time asked for by [`Effect::Wake`] has come (early and needless ticks do no harm).
    Tick,
}

/// What the supervisor wants done.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Effect {
    Send {
        to: CellId,
        order: Order,
    },
    /// Write whole blocks, `block..`. The supervisor never has two writes of one block in flight.
    Write {
        io: IoId,
        block: BlockNo,
        bytes: Box<[u8]>,
    },
    /// Make everything durable whose write is done.
    Flush {
        io: IoId,
    },
    /// Call [`Event::Tick`] at this time. A later `Wake` replaces an earlier one.
    Wake(Instant),
    /// Every shard is open: clients may connect.
    FleetReady,
    /// The connection is client `client` from now on: make its segments, which go to the cells
    /// beside the [`Order::Admit`] orders that follow.
    NewClient {
        connection: ConnectionNo,
        client: ClientId,
    },
    /// Every cell knows the client: answer its connection, it may speak.
    AdmitClient {
        client: ClientId,
    },
    RefuseClient {
        connection: ConnectionNo,
        errno: Errno,
    },
    /// No cell knows the client any more: close its connection, free its segments.
    ForgetClient {
        client: ClientId,
    },
    /// Start a successor of a cell whose process is gone, from the ledger as it is now, its predecessor's
    /// frames, and links to all cells that are not lost themselves. Orders for it follow.
    Restart {
        cell: CellId,
        epoch: Epoch,
    },
    /// End this process of the cell, if it is not gone already. Its exit notice follows.
    Kill {
        cell: CellId,
        epoch: Epoch,
        verdict: Verdict,
    },
    /// The checkpoint of a trial has succeeded, or the fleet ends whatever comes of it.
    MayStop,
    /// The fleet serves on: the checkpoint of a trial, or the one that was to be its last, has failed.
    StopRefused {
        errno: Errno,
    },
    /// Nothing is left to do. After this the supervisor does nothing any more.
    Exit(Result<(), Failure>),
}

/// Why a cell is ended that has not ended by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Verdict {
    /// A peer takes it for faulty.
    Accused { by: CellId, why: Suspicion },
    /// It takes a peer for faulty, and not for the first time.
    AccusesAgain { of: CellId, why: Suspicion },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accused { by, why } => write!(f, "was killed because cell {by} met {why}"),
            Self::AccusesAgain { of, why } => {
                write!(f, "was killed because it accused another cell, now cell {of} of {why}")
            }
        }
    }
}

/// Why the fleet ended otherwise than asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Failure {
    /// A cell ended that nobody had told to.
    CellExited { cell: CellId, epoch: Epoch },
    /// Of a cell's processes so many ended in a row, each before it had served for a while.
    NoSuccessor { cell: CellId, tries: u32 },
    /// What the device holds of a shard cannot be read.
    BrokenShard { shard: ShardId, errno: Errno },
    /// What the device holds of a cell's op log cannot be read.
    BrokenLog { cell: CellId, errno: Errno },
    /// A cell has opened its shards by another shard map than the supervisor's.
    WrongMap { cell: CellId },
    /// The superblock could not be told that the pool is in use.
    Opening { errno: Errno },
    /// The last checkpoint did not happen; the one before is on the device.
    LastCheckpoint { errno: Errno },
    /// The last checkpoint is on the device, but the copy of its superblock may not be.
    LastFlush { errno: Errno },
    /// A cell did not end in time when told to.
    CellHangs { cell: CellId },
    /// Logs that are replayed claim a chunk that was taken.
    BrokenLogs { chunk: u64 },
    /// Cells cannot make sense of each other, again and again.
    Alarms { by: CellId, of: CellId, alarms: u32, why: Suspicion },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CellExited { cell, epoch } => {
                write!(f, "cell {cell} (epoch {epoch}) ended unexpectedly")
            }
            Self::NoSuccessor { cell, tries } => {
                write!(f, "cell {cell} cannot go on: {tries} of its processes ended in a row")
            }
            Self::BrokenShard { shard, errno } => {
                write!(f, "shard {shard} cannot be served: {errno}; run fsck")
            }
            Self::BrokenLog { cell, errno } => {
                write!(f, "the log of cell {cell} cannot be replayed: {errno}; run fsck")
            }
            Self::WrongMap { cell } => write!(f, "cell {cell} runs by another shard map"),
            Self::Opening { errno } => write!(f, "the superblock cannot be written: {errno}"),
            Self::LastCheckpoint { errno } => write!(
                f,
                "the last checkpoint failed: {errno}; what was written since the one before and not synced is lost"
            ),
            Self::LastFlush { errno } => {
                write!(f, "the last flush failed: {errno}; run fsck before trusting the device")
            }
            Self::CellHangs { cell } => write!(f, "cell {cell} did not stop when told to"),
            Self::BrokenLogs { chunk } => {
                write!(f, "the logs claim chunk {chunk}, which was taken before; run fsck")
            }
            Self::Alarms { by, of, alarms, why } => write!(
                f,
                "cells damage what they send each other, {alarms} times within a minute (the last: \
                 cell {by} met {why} of cell {of}); check the machine's memory"
            ),
        }
    }
}

impl std::error::Error for Failure {}
