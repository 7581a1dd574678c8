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
//! * [`Model`] maps the needs of a message to its affinity: classical, hierarchical or hybrid.
//!
//! A cell has one thread today, and its shards are its finest affinities. [`Model`] and stripes
//! have no user yet: several threads in a cell will need them.
//!
//! This crate has no threads and takes no locks. A driver with several threads keeps one
//! `Scheduler` behind a short lock of its own.

#![forbid(unsafe_code)]

mod counters;
mod model;
mod owned;
mod place;
mod scheduler;
mod tree;

pub use counters::{Counters, KindCounters};
pub use model::{Also, Model, Wanted};
pub use owned::{Lent, Owned};
pub use place::{Affinity, Kind};
pub use scheduler::{Limits, Scheduler};
pub use tree::{STRIPE_BYTES, Shape};
