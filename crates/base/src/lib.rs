//! The vocabulary of all other crates of Warren: ids, errno, limits, time, seeded randomness.
//!
//! This crate is pure: no thread, no clock, no I/O, no randomness that is not seeded by the caller.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod budget;
mod errno;
mod flags;
mod hash;
mod id;
mod inode_numbers;
mod kind;
pub mod limits;
mod queue;
mod rng;
mod roots;
mod siphash;
mod time;

pub use errno::Errno;
pub use flags::{ACL_ACCESS, ACL_DEFAULT, CAPABILITY, InodeFlags};
pub use hash::{FixedHasher, FixedState};
pub use id::{BlockNo, CellId, ClientId, Epoch, Ino, Lsn, MapVersion, ShardId, SlotNo, TxnId};
pub use inode_numbers::InodeNumbers;
pub use kind::{FileKind, MODE_MASK};
pub use queue::{BoundedQueue, Full};
pub use rng::Rng;
pub use roots::{CAPABILITIES_OF_ROOT, CAPABILITIES_OF_SERVED_ROOT};
pub use siphash::{siphash_1_3, siphash_2_4};
pub use time::{Instant, Timestamp};
