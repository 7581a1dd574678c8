//! The client's side of a fleet: it finds a fleet, sends it control requests, and is its client.
//!
//! ```text
//! control     the fleet's control socket: one request, one reply
//! grow        a pool grows, with or without its fleet
//! rejoin      a cell that was taken out is taken in again
//! admission   a place in a fleet, whose use is in `warren_transport`
//! ```

pub(crate) mod admission;
pub mod control;
mod grow;
mod rejoin;

pub use admission::{Admission, connect};
pub use grow::grow;
pub use rejoin::rejoin;
