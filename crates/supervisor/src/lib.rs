//! The supervisor: who belongs to the fleet, who is admitted as a client, and when the pool's state
//! becomes durable.
//!
//! A deterministic state machine, event in, effect out; no thread, no clock, no I/O. The supervisor
//! decides nothing about files. It is the only writer of the superblock, the root slots and the
//! region map; `docs/protocol.md` shows the order in which a checkpoint writes them.
//!
//! * [`Supervisor`]: the whole; stages of a fleet's life.
//! * `fleet`: cells and their epochs. `admission`: clients.
//! * `barrier`: the phases of a checkpoint over all cells. `loss`: lost cells and their successors;
//!   `count`: free chunks that were lost with them. `alarm`: cells that accuse each other.
//! * [`Ledger`]: what the device says of shards and chunks, and what a checkpoint changes in it.
//! * `recorder`: the order of writes and flushes that makes a checkpoint count.

#![forbid(unsafe_code)]

mod admission;
mod alarm;
mod barrier;
mod count;
mod event;
mod fleet;
mod ledger;
mod loss;
mod recorder;
mod recovery;
mod set;
mod status;
mod supervisor;

pub use admission::{ADMISSIONS_MAX, ClientState};
pub use alarm::ALARMS_MAX;
pub use event::{Applicant, ConnectionNo, Effect, Event, Failure, IoId, Verdict};
pub use fleet::CellState;
pub use ledger::{Ledger, LedgerError};
pub use loss::{SUCCESSORS_MAX, pause_before};
pub use status::{CellStatus, ClientStatus, Status};
pub use supervisor::{Config, Estate, STOP_MAX, STOP_WAIT, Stage, Supervisor};
