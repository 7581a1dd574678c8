//! Processes, event loops, admission: the real driver of the pure core.
//!
//! There are three products, each in its folder, and the modules that they share. None of the three
//! imports another.
//!
//! ```text
//! cell/         drives `warren_cell`: one event loop a process
//! supervisor/   drives `warren_supervisor`: connections, the fleet's memory, the pool's metadata
//! client/       finding a fleet, asking it something, being its client
//!
//! pool/         a pool without a fleet: blocks, replay, check and repair
//! launch        serve, start a fleet behind a command, the roles of its processes
//! keeper        parent of all, holds descriptors, no logic
//!
//! link          packets with descriptors   message  their contents   bell  what wakes a cell
//! process       starting this program again   confine  what a cell gives up
//! limit, reserve  how many descriptors there must be, and which are kept for the fleet
//! socket_path   where a pool's control socket is     clients  which clients a fleet admits
//! identity      the peer of a socket          privilege  which peers have the owner's rights
//! interposer    the library that answers a program's calls, and how it is loaded
//! status        the state that a fleet reports       slice  how soon a process runs that was woken
//! loads         whether processors are idle   silence  processes that do not run
//! ```
//!
//! Nothing here decides anything about files. A process may do what its descriptors allow: the
//! supervisor makes every segment and hands each process the rights that it needs and no others.

#![deny(unsafe_code)]

mod bell;
mod cell;
mod client;
mod clients;
mod clock;
pub mod confine;
mod error;
mod identity;
pub mod interposer;
mod keeper;
mod launch;
mod limit;
pub mod link;
mod loads;
mod message;
mod notice;
mod poll;
mod pool;
mod privilege;
pub mod process;
mod process_stat;
mod reserve;
mod silence;
pub mod slice;
mod socket_path;
mod status;
mod supervisor;
pub mod watch;

pub use client::control::{self, StopOptions, is_served, status};
pub use client::{Admission, connect, grow, rejoin};
pub use clients::Clients;
pub use error::{ErrorKind, FleetError};
pub use launch::{Fleet, Lifetime, ServeOptions, dispatch, serve, start_fleet};
pub use limit::raise as raise_descriptor_limit;
pub use loads::Loads;
pub use poll::poll_each;
pub use pool::blocks::Blocks;
pub use pool::grow::behind_line;
pub use pool::offline::{OfflinePool, Purpose};
pub use pool::recovery::CutLogs;
pub use process_stat::ProcessStat;
pub use status::{
    CellStatus, CheckpointStatus, ClientStatus, DeviceCounters, FaultStatus, FleetStatus,
    LogStatus, LossCounters, PlaceStatus, SILENT, SpaceStatus, TakenOutStatus, UseStatus,
    names_of_rules,
};
pub use warren_transport::control::Leave;
pub use warren_transport::{Authority, ConnectOptions, Connection, InFlight, Slot};
