//! The simulator: the pure core of Warren in virtual time, with simulated links, disk and clients,
//! injected faults, and checkers that know the promises of POSIX.
//!
//! * [`model`]: a file system in memory, written to be obviously correct; it decides whether an
//!   outcome is legal.
//! * [`history`] and [`linear`]: what clients observed, and whether one order of all calls explains
//!   it.
//! * `simulation`: virtual time, the queue of events and their trace.
//! * `fleet`: cells and supervisor, links, disk and their faults, for all worlds.
//! * [`world`]: clients of all kinds, and the history of their calls.
//! * [`crash`]: a fleet whose power is cut at any moment, and the state that must survive.
//! * [`ace`]: every short sequence of operations, with the power cut at every flush.
//! * `damage`: one shard is damaged, and given up alone.
//! * `outage`: one cell is taken out for a while.
//! * [`swarm`]: the mix that a seed draws.
//! * [`run`] and [`run_many`], here and in [`crash`]: the entry points of the command line and the
//!   tests.
//!
//! The same seed gives the same run, event by event. Threads are used only to run many seeds.

#![forbid(unsafe_code)]

pub mod ace;
pub mod crash;
mod damage;
mod fixed;
mod fleet;
pub mod history;
pub mod linear;
pub mod model;
mod outage;
pub mod rare;
mod run;
mod simulation;
pub mod swarm;
pub mod world;

pub use run::{Failure, Summary};
pub use world::{Options, STEPS_DEFAULT, run, run_many};
