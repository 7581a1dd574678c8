//! A client's side of a fleet: its admission, the memory that it shares with the cells, and its
//! requests under way. It is linked into programs, so it needs neither the standard library nor the
//! C library, only an allocator.
//!
//! ```text
//! place       where a pool's control socket is      control   the messages on it
//! packet      bytes and descriptors over a socket
//! admission   a place in a fleet            connection  its use, shared by threads
//! segments    what they share               slot        a request under way, or a whole call
//! posts       changes that are not waited for
//! ```

#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

mod admission;
mod connection;
pub mod control;
mod error;
pub mod packet;
pub mod place;
mod posting;
mod posts;
mod segments;
mod slot;
mod spin;

pub use admission::{Admission, ConnectOptions};
pub use connection::{Connection, REGIONS_MAX};
pub use error::TransportError;
pub use posts::Posts;
pub use segments::InFlight;
pub use slot::{Authority, Slot};
