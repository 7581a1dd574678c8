//! The simulator: the pure core of Warren in virtual time, with simulated links, disk and clients,
//! injected faults, and checkers that know what POSIX promises.
//!
//! * [`model`]: a file system in memory, written for obviousness; says whether an outcome is legal.
//! * [`history`] and [`linear`]: what clients saw, and whether one order of all calls explains it.
//! * `fleet`: cells and supervisor, links, disk, and what goes wrong with them, for all worlds.
//! * [`world`]: clients of all kinds, and one order of all that they saw.
//! * [`crash`]: a fleet, its power cut at any moment, and what has to be there afterwards.
//! * [`ace`]: every short sequence of operations, its power cut at every flush.
//! * `damage`: one shard is damaged, and given up alone.
//! * [`swarm`]: the mix that a seed draws.
//! * [`run`] and [`run_many`]: what the command line and the tests call.
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
mod run;
pub mod swarm;
pub mod world;

pub use run::{Failure, Options, STEPS_DEFAULT, Summary, run, run_many};
