//! The client's side of a fleet: it finds a fleet, sends it control requests, and is its client.
//!
//! ```text
//! control     the fleet's control socket: one request, one reply
//! rejoin      a cell that was taken out is taken in again
//! admission   a place in a fleet, whose use is in `warren_transport`
//! ```

pub(crate) mod admission;
pub mod control;
mod rejoin;

pub use admission::{Admission, connect};
pub use rejoin::rejoin;
