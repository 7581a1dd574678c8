//! The decisions of a client of the file system: which cell executes a request, what copies may
//! answer, and how a call on a path becomes requests on inodes.
//!
//! * [`ShardMap`] and [`Route`]: the cell that executes a request.
//! * [`Cache`]: copies of names, attributes and symbolic links, each guarded by a lease word that
//!   is read through [`Words`].
//! * [`PathCache`]: answers by whole path, with the guards of all copies on the way.
//! * [`HeldFiles`]: handles that are kept after the last close, with copies of the files' data.
//! * [`KnownNames`]: the names of directories, by which a client knows that others are absent.
//! * [`Post`] and [`NamePost`]: a change that need not wait for its cell, because the client alone
//!   uses the inode or the directory.
//! * [`LastWrite`]: the last record of a stream, to which a further write may be added.
//! * [`Call`]: one file-system call as a state machine. Every load of a lease word and every use of
//!   a copy between loads is a step of its own, so that a simulator can let cells act in between.
//!
//! This crate is pure: the transport (slots and doorbells) and the lease words belong to a driver.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod cache;
mod call;
mod delegations;
mod guard;
mod held;
mod keep;
mod last_write;
mod names;
mod op;
mod path;
mod path_cache;
mod route;
mod scans;
mod tree;
mod trees;
mod walk;

pub use cache::Cache;
pub use call::{Call, Caller, Send, Step};
pub use delegations::Post;
pub use guard::{Guard, Words};
pub use held::{Copied, Data, HELD_WORDS, Held, HeldFiles, Marks, Room, Unused};
pub use last_write::{Changed, LastWrite};
pub use names::{KnownNames, Page};
pub use op::{Op, PathOp};
pub use path::Path;
pub use path_cache::{ENTRY_WORDS, PathCache, PathKey, Probe, Probed};
pub use route::{Route, ShardMap};
pub use tree::{Missing, NamePost};
