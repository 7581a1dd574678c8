//! The client's side of a fleet: it finds a fleet, sends it control requests, and is its client.
//!
//! ```text
//! control     the fleet's control socket: one request, one reply
//! admission   a place in a fleet, whose use is in `warren_transport`
//! ```

pub(crate) mod admission;
pub mod control;

pub use admission::{Admission, connect};
