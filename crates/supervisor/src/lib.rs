//! The supervisor: membership of the fleet, admission of clients, and checkpoints.
//!
//! A deterministic state machine, event in, effect out; no thread, no clock, no I/O. The supervisor
//! decides nothing about files. It is the only writer of the superblock, the root slots and the
//! region map; `docs/protocol.md` shows the order in which a checkpoint writes them.
//!
//! * [`Supervisor`]: routes events to the machines below. `stage`: the stages of a fleet's life.
//! * `fleet`: cells and their epochs. `admission`: clients. `stop`: the end on request.
//! * `barrier`: the phases of a checkpoint over all cells. `schedule`: when one is due.
//! * `loss`: lost cells and their successors. `count`: free chunks that were lost with them.
//!   `alarm`: cells that accuse each other. `recovery`: the logs of a pool that is not clean.
//! * [`Watch`]: whether a process hangs; `detector`: the trial of one that seems to. `fault`: what
//!   is remembered of processes that ended.
//! * [`Ledger`]: roots and chunk owners on the device, and how a checkpoint changes them.
//! * `committer`: the order of writes and flushes that commits a checkpoint.

#![forbid(unsafe_code)]

mod admission;
mod alarm;
mod barrier;
mod committer;
mod count;
mod detector;
mod event;
mod fault;
mod fleet;
mod growth;
mod harmed;
mod ledger;
mod loss;
mod outage;
mod recovery;
mod schedule;
mod set;
mod stage;
mod status;
mod stop;
mod supervisor;
mod thread_watch;
mod turn;
mod watch;

pub use admission::{ADMISSIONS_MAX, ClientState};
pub use alarm::ALARMS_MAX;
pub use detector::{Detector, VOTED_DOWN_MAX};
pub use event::{Applicant, ConnectionNo, Effect, Event, Failure, IoId, Misdeed, Verdict};
pub use fault::{Cause, Fault};
pub use fleet::CellState;
pub use harmed::{Discarded, PostFailed};
pub use ledger::{Ledger, LedgerError};
pub use loss::{SUCCESSORS_MAX, pause_before};
pub use stage::Stage;
pub use status::{CellStatus, ClientStatus, GivenUp, Status, TakenOut};
pub use stop::STOP_MAX;
pub use supervisor::{Config, Predecessor, STOP_WAIT, Supervisor};
pub use thread_watch::{Activity, Said, ThreadWatch};
pub use watch::{Condition, Hint, LOOK_EVERY, ProcessState, Seen, Watch, Work};
