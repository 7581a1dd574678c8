//! The events of a fleet and of the world around it.

use warren_base::{CellId, ClientId, Epoch, Instant};
use warren_cell::{IoId, SlotRef};
use warren_proto::control::Report;
use warren_proto::{Answered, Request, RequestHeader};
use warren_supervisor::IoId as SupervisorIo;

use crate::simulation::Simulation;

/// The virtual time in which a fleet runs. `H` are the world's own events.
pub(crate) type Sim<H> = Simulation<Happening<H>>;

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
    /// A cell looks at a client's stream.
    Posted {
        cell: CellId,
        client: ClientId,
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

impl<H> Happening<H> {
    /// The event's contribution to the trace's hash. `own` gives that of a world's own event.
    pub(super) fn words(&self, own: impl FnOnce(&H) -> [u64; 4]) -> [u64; 4] {
        let cell = |id: CellId| u64::from(id.0);
        match self {
            Self::Request { cell: to, from, header, .. } => {
                [1, cell(*to), u64::from(from.client.0), u64::from(header.seq)]
            }
            Self::Reply { from, to, seq, answer, .. } => {
                let errno = answer.answer.as_ref().err().map_or(0, |errno| errno.raw() as u64);
                [2 + (errno << 8), cell(*from), u64::from(to.client.0), u64::from(*seq)]
            }
            Self::Peer { from, to, .. } => [4, cell(*from), cell(*to), 0],
            Self::Order { to, .. } => [5, cell(*to), 0, 0],
            Self::Report { from, .. } => [6, cell(*from), 0, 0],
            Self::CellIo { cell: of, io, .. } => [7, cell(*of), io.0, 0],
            Self::SupervisorIo { by, io } => [8, io.0, *by, 0],
            Self::Tick { cell: of, .. } => [9, cell(*of), 0, 0],
            Self::SupervisorTick { .. } => [10, 0, 0, 0],
            Self::Exited { cell: of, epoch } => [13, cell(*of), u64::from(epoch.0), 0],
            Self::HostMeasured { cell: of, blocks, .. } => [15, cell(*of), *blocks, 0],
            Self::Start { cell: of } => [14, cell(*of), 0, 0],
            Self::Kill { cell: of, epoch } => [15, cell(*of), u64::from(epoch.0), 0],
            Self::Review { cell: of } => [18, cell(*of), 0, 0],
            Self::Posted { cell: of, client } => [21, cell(*of), u64::from(client.0), 0],
            Self::Turns => [19, 0, 0, 0],
            Self::Lie { cell: of, epoch, number, .. } => {
                [20, cell(*of), u64::from(epoch.0), *number]
            }
            Self::LateReport { from, epoch, .. } => [16, cell(*from), u64::from(epoch.0), 0],
            Self::Look { cell: of, epoch, .. } => [17, cell(*of), u64::from(epoch.0), 0],
            Self::Own(it) => own(it),
        }
    }

    /// The cell to whose process it happens.
    pub(super) const fn addressee(&self) -> Option<CellId> {
        match self {
            Self::Request { cell, .. }
            | Self::Peer { to: cell, .. }
            | Self::Order { to: cell, .. }
            | Self::CellIo { cell, .. }
            | Self::Review { cell }
            | Self::Posted { cell, .. }
            | Self::Tick { cell, .. } => Some(*cell),
            _ => None,
        }
    }
}
