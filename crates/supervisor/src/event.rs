//! The supervisor's boundary: one closed enum in, one out.
//!
//! A driver feeds [`Event`]s to [`crate::Supervisor::apply`] in the order in which they happen and
//! carries out the [`Effect`]s in the order in which they come. Orders to one cell arrive in order.

use std::fmt;

use warren_base::{BlockNo, CellId, ClientId, Epoch, Errno, Instant};
use warren_proto::control::{Order, Report, Suspicion};
use warren_proto::slot::Shape;
use warren_proto::{Credentials, Rules, Wire};

use crate::set::CellSet;
use crate::watch::Hint;

/// Names an I/O of the supervisor until it is done. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct IoId(pub u64);

/// A connection to the admission socket; the driver numbers them and never reuses a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct ConnectionNo(pub u64);

/// A process that requests to become a client. Its identity comes from the kernel, never from a
/// message.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Applicant {
    pub credentials: Credentials,
    pub pid: u32,
    /// Caches behind this client cannot read a lease word, so its leases are acknowledged ones.
    pub front: bool,
    /// Root or the fleet's own user: places are reserved for it.
    pub privileged: bool,
    /// The shape of its segments: the requests that it can have in flight, and the size of its
    /// lanes.
    pub shape: Shape,
    /// The rules that hold for its requests.
    pub rules: Rules,
    /// The mount point that a front sent. It is only displayed.
    pub mounted: Box<[u8]>,
}

/// An event that the supervisor receives.
#[derive(Clone, Debug)]
pub enum Event {
    /// A cell sends a report. Reports of its earlier epochs are ignored.
    Report {
        from: CellId,
        epoch: Epoch,
        report: Report,
    },
    /// The process of the cell is gone (exit notice), or could not be started. `by_itself`: the
    /// cause is in the process; it was not killed, and the machine did not lack memory for it.
    CellExited {
        cell: CellId,
        epoch: Epoch,
        by_itself: bool,
    },
    /// The watch over this process of a cell says that it hangs.
    Hangs {
        cell: CellId,
        epoch: Epoch,
        why: Hint,
    },
    /// This process of a cell, which was said to hang, works again.
    Moves {
        cell: CellId,
        epoch: Epoch,
    },
    /// This process of a cell has turned its loop since the last look, or has nothing to do. The
    /// driver says so as long as [`crate::Detector::counts_turns`].
    Turns {
        cell: CellId,
        epoch: Epoch,
    },
    /// The driver found that this process of a cell does what no correct one does.
    Misbehaves {
        cell: CellId,
        epoch: Epoch,
        how: Misdeed,
    },
    Connect {
        connection: ConnectionNo,
        applicant: Applicant,
    },
    /// The connection of the client is closed. Repeated events have no effect.
    Hangup {
        client: ClientId,
    },
    /// The options of a front's mount have changed.
    Rule {
        client: ClientId,
        rules: Rules,
    },
    /// Take a cell in again that was taken out. No effect on others.
    Rejoin {
        cell: CellId,
    },
    /// Take a checkpoint while the fleet serves, to find out whether a stop would lose data:
    /// [`Effect::MayStop`], or [`Effect::StopRefused`].
    TryCheckpoint,
    /// Take a last checkpoint and end the fleet. If that checkpoint fails, the fleet continues to
    /// serve: [`Effect::StopRefused`].
    TryStop,
    /// Take a last checkpoint and end the fleet, also if that checkpoint fails.
    Stop,
    /// The same, and a checkpoint that fails is no failure.
    GiveUp,
    /// The file of the pool has so many blocks now, and the pool is to have them too. Where the
    /// host must have allocated blocks before they are used, it has.
    Grow {
        blocks: u64,
    },
    /// A flush of a cell has failed: writes of all processes may be lost.
    FlushFailed {
        errno: Errno,
    },
    /// An I/O is done, all of it or not at all.
    IoDone {
        io: IoId,
        result: Result<(), Errno>,
    },
    /// The time of [`Effect::Wake`] has come. Early and repeated ticks have no effect.
    Tick,
}

/// An action of the driver for the supervisor.
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
    /// Make all writes durable that are done.
    Flush {
        io: IoId,
    },
    /// Call [`Event::Tick`] at this time. A later `Wake` replaces an earlier one.
    Wake(Instant),
    /// Every shard is open: clients may connect.
    FleetReady,
    /// The connection is client `client` from now on. The driver creates its segments, and sends
    /// them to the cells with the [`Order::Admit`] orders that follow.
    NewClient {
        connection: ConnectionNo,
        client: ClientId,
    },
    /// Every cell has admitted the client: reply to its connection, it may send requests.
    AdmitClient {
        client: ClientId,
    },
    RefuseClient {
        connection: ConnectionNo,
        errno: Errno,
    },
    /// Every cell has expelled the client: close its connection, free its segments.
    ForgetClient {
        client: ClientId,
    },
    /// Start a successor of a cell whose process is gone, with the present ledger, the frames of
    /// its predecessor, and links to all cells that are not lost. Orders for it follow.
    Restart {
        cell: CellId,
        epoch: Epoch,
        /// It serves no shard: the cell is taken out.
        is_caretaker: bool,
    },
    /// Kill this process of the cell, if it still runs. Its exit notice follows.
    Kill {
        cell: CellId,
        epoch: Epoch,
        verdict: Verdict,
    },
    /// Resume this process of the cell, which a signal has stopped. It would have no successor.
    Resume {
        cell: CellId,
        epoch: Epoch,
    },
    /// The checkpoint of a trial has succeeded, or the fleet ends in any case.
    MayStop,
    /// The checkpoint of a trial, or the last checkpoint, has failed. The fleet continues to serve.
    StopRefused {
        errno: Errno,
    },
    /// The pool has grown, and all cells have their new chunks; or it has not.
    Grown {
        result: Result<(), Errno>,
    },
    /// The fleet has ended. The supervisor ignores all further events.
    Exit(Result<(), Failure>),
}

/// Why the supervisor kills a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Verdict {
    /// A peer has accused it.
    Accused { by: CellId, why: Suspicion },
    /// It has accused a peer, and not for the first time.
    AccusesAgain { of: CellId, why: Suspicion },
    /// It hangs, as so many of these voices say, that of the supervisor among them.
    Hangs { why: Hint, hangs: u32, voices: u32 },
    /// It has accused another cell of silence again and again, and that cell answers.
    VotedDown { of: CellId },
    /// A request in it waits for nothing that can come, as it has reported.
    LostWakeup,
    /// It is the caretaker of a cell that is taken in again.
    Rejoins,
    /// The driver cannot work with it.
    Misbehaves { how: Misdeed },
}

/// Why the supervisor's driver cannot work with a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Misdeed {
    /// A packet from it cannot be received.
    Packet,
    /// A message from it cannot be decoded.
    Message,
    /// One of its reports is missing.
    ReportLost,
    /// Its vitals have an impossible count of failed flushes.
    Vitals,
    /// It had not taken all orders of a supervisor that died.
    OrdersLost,
}

impl Misdeed {
    /// For the sentence "it was killed because ...".
    const fn text(self) -> &'static str {
        match self {
            Self::Packet => "a packet from it could not be received",
            Self::Message => "a message from it could not be decoded",
            Self::ReportLost => "one of its reports was lost",
            Self::Vitals => "its vitals cannot be",
            Self::OrdersLost => "orders for it were lost with a supervisor",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accused { by, why } => write!(f, "was killed because cell {by} met {why}"),
            Self::AccusesAgain { of, why } => {
                write!(f, "was killed because it accused another cell, now cell {of} of {why}")
            }
            Self::VotedDown { of } => write!(
                f,
                "was killed because it accused cell {of} of silence again, which had answered"
            ),
            Self::LostWakeup => f.write_str(
                "was killed because it lost a wake-up: a request in it waited for nothing",
            ),
            Self::Rejoins => f.write_str("was ended because its cell is taken in again"),
            Self::Hangs { why, hangs, voices } => {
                let why = why.text();
                write!(
                    f,
                    "was killed because it {why} and hung, as {hangs} of {voices} voices said"
                )
            }
            Self::Misbehaves { how } => write!(f, "was killed because {}", how.text()),
        }
    }
}

/// Why the fleet ended without a request, or lost data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Failure {
    /// A cell ended without an order.
    CellExited { cell: CellId, epoch: Epoch },
    /// So many caretakers of a cell ended in a row, each before it had served for a while.
    NoSuccessor { cell: CellId, tries: u32 },
    /// The fleet has ended in order, but this cell was taken out.
    TakenOut { cell: CellId },
    /// The device does nothing for a cell that cannot go on without it.
    Unreadable { cell: CellId, errno: Errno },
    /// The op log of a cell cannot be read from the device, or a record of it is damaged (EUCLEAN).
    BrokenLog { cell: CellId, errno: Errno },
    /// A cell has another version of the shard map than the supervisor.
    WrongMap { cell: CellId },
    /// The superblock could not be marked as in use.
    Opening { errno: Errno },
    /// The last checkpoint failed; the one before is on the device.
    LastCheckpoint { errno: Errno },
    /// The last checkpoint is on the device, but the copy of its superblock may not be.
    LastFlush { errno: Errno },
    /// A cell did not end in time after the order to end.
    CellHangs { cell: CellId },
    /// The replayed logs claim a chunk that has an owner.
    BrokenLogs { chunk: u64 },
    /// Cells have received invalid messages from each other, again and again.
    Alarms { by: CellId, of: CellId, alarms: u32, why: Suspicion },
}

impl Failure {
    /// Whether each fleet would end so, because the pool is damaged. The text names the remedy.
    pub const fn is_of_pool(self) -> bool {
        matches!(self, Self::BrokenLog { .. } | Self::BrokenLogs { .. })
    }
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
            Self::TakenOut { cell } => write!(
                f,
                "cell {cell} was taken out: what its files had that was not synced is lost, \
                 and the next start replays its log"
            ),
            Self::Unreadable { cell, errno } => {
                write!(
                    f,
                    "cell {cell} can read nothing from the device: {errno}; look after the device"
                )
            }
            Self::BrokenLog { cell, errno: Errno::EUCLEAN } => {
                write!(
                    f,
                    "the log of cell {cell} is damaged, and synced changes follow the damage; \
                     `warren fsck -y` replays what is before it"
                )
            }
            Self::BrokenLog { cell, errno } => {
                write!(f, "the log of cell {cell} cannot be replayed: {errno}; run `warren fsck`")
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
                write!(f, "the logs claim chunk {chunk}, which was taken before; run `warren fsck`")
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

/// Sends an order to each of the cells.
pub(crate) fn send(cells: CellSet, order: &Order, effects: &mut Vec<Effect>) {
    effects.extend(cells.iter().map(|to| Effect::Send { to, order: order.clone() }));
}
