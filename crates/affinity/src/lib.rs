//! Hierarchical affinities: parallelism inside a cell by scheduling messages instead of taking
//! locks.
//!
//! From Waffinity (OSDI'16, sections 3 to 5). Every message runs in an [`Affinity`], a node of a
//! fixed tree:
//!
//! ```text
//! Serial > Volume > Names(shard) > File(shard, file) > Stripe(shard, file, stripe)
//!                 > Space > Range(range)
//! ```
//!
//! A running affinity excludes its ancestors and its descendants; all others may run at the same
//! time.
//!
//! * [`Scheduler`] queues messages and chooses the affinity that runs next.
//! * [`Owned`] hands the state of an affinity, as a value, to the thread that runs it.
//!
//! A cell has one thread today, and its shards are its finest affinities. Several threads in a cell
//! will use the finer ones, and shared objects (the paper's hybrid model, section 5).
//!
//! This crate has no threads and takes no locks. A driver with several threads keeps one
//! `Scheduler` behind a short lock of its own.

#![forbid(unsafe_code)]

mod owned;
mod place;
mod scheduler;
mod tree;

pub use owned::{Lent, Owned};
pub use place::Affinity;
pub use scheduler::{Limits, Scheduler};
pub use tree::Shape;
