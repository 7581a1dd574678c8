//! What every other crate of Warren speaks about: ids, errno, limits, time, seeded chance.
//!
//! This crate is pure: no thread, no clock, no I/O, no randomness that is not seeded by the caller.

#![forbid(unsafe_code)]

mod errno;
mod id;
pub mod limits;
mod queue;
mod rng;
mod time;

pub use errno::Errno;
pub use id::{BlockNo, CellId, ClientId, Epoch, Ino, Lsn, MapVersion, ShardId, SlotNo, TxnId};
pub use queue::{BoundedQueue, Full};
pub use rng::Rng;
pub use time::{Instant, Timestamp};
