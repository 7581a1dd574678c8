//! The client's side of a fleet: it finds a fleet, sends it control requests, and is its client.
//!
//! ```text
//! control     the fleet's control socket: one request, one reply
//! admission   a place in a fleet            connection  its use, shared by threads
//! segments    what they share               slot        a request under way
//! ```

pub(crate) mod admission;
pub(crate) mod connection;
pub mod control;
mod segments;
pub(crate) mod slot;

pub use admission::{Admission, ConnectOptions};
pub use connection::Connection;
pub use segments::InFlight;
pub use slot::{Authority, Slot};
