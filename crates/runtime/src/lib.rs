//! Processes, event loops, admission: the real driver of the pure core.
//!
//! ```text
//! launch      serve, start a fleet behind a command, the roles of its processes
//! keeper      parent of all, holds descriptors, no logic
//! supervisor  drives `warren_supervisor`; the door, the fleet's memory, the pool's metadata
//! cell        drives `warren_cell`; one event loop a process
//! admission   a place in a fleet           connection  its use      slot  one request on its way
//! link        packets with descriptors    message  what is in them
//! confine     what a cell gives up             limit  how many descriptors there must be
//! slice       how soon a process runs that was woken
//! place       where a pool's door is      door  asking there
//! recovery    replays a pool's logs       offline  a pool that is checked or repaired
//! ```
//!
//! Nothing here decides anything about files. What a process may do is what descriptors it was given:
//! the supervisor makes every segment and hands each process the rights it needs and no others.

#![deny(unsafe_code)]

mod admission;
mod bell;
mod cell;
mod clients;
mod clock;
mod confine;
mod connection;
pub mod door;
mod error;
mod identity;
mod keeper;
mod launch;
mod limit;
pub mod link;
mod message;
mod notice;
mod offline;
mod place;
mod pool_blocks;
pub mod process;
mod recovery;
mod silence;
pub mod slice;
mod slot;
mod status;
mod supervisor;

pub use admission::Admission;
pub use clients::Clients;
pub use connection::{ConnectOptions, Connection, InFlight};
pub use door::{StopOptions, is_served, status};
pub use error::{ErrorKind, FleetError};
pub use launch::{
    CACHE_BYTES_DEFAULT, Fleet, Lifetime, ServeOptions, dispatch, serve, start_fleet,
};
pub use limit::raise as raise_descriptor_limit;
pub use message::Leave;
pub use offline::{OfflinePool, Purpose};
pub use pool_blocks::Blocks;
pub use slot::{Authority, Slot};
pub use status::{CellStatus, ClientStatus, FleetStatus, SILENT};
