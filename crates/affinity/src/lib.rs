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
//! A running affinity excludes its ancestors and its descendants; everything else may run beside
//! it.
//!
//! * [`Scheduler`] queues messages and says which affinity runs next.
//! * [`Owned`] hands the state of an affinity, as a value, to whoever runs it.
//! * [`Model`] maps what a message wants to the affinity it gets: classical, hierarchical or
//!   hybrid.
//!
//! A cell has one thread today and uses [`Scheduler`], [`Affinity`] and [`Counters`] alone.
//! [`Owned`], [`Model`] and stripes have no user yet: they are what several threads in a cell need
//! next.
//!
//! What this crate does not do: it has no threads and takes no locks. A driver with several threads
//! keeps one `Scheduler` behind a short lock of its own.

#![forbid(unsafe_code)]

mod counters;
mod model;
mod owned;
mod place;
mod scheduler;
mod tree;

pub use counters::{Counters, KindCounters};
pub use model::{Also, Model, Wanted};
pub use owned::{Held, Owned};
pub use place::{Affinity, Kind};
pub use scheduler::{Limits, Scheduler};
pub use tree::{STRIPE_BYTES, Shape};
