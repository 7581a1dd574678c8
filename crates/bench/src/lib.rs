//! Workloads and comparisons.
//!
//! ```text
//! client   one client and one cell, in memory, beside the same calls on other file systems
//! fsync    append and fsync by one and by several, beside the same on a file system and on the bare device
//! recovery  how long nobody is answered after a kill of a cell, and of a fleet, with full logs
//! lone_cell  a cell's state machine alone, without processes and shared memory
//! ground   a pool and a fleet of its own for a benchmark, gone afterwards
//! medium   what pools and what they are compared with lie on: files, loop devices, memory
//! sample   times of batches, medians and tails
//! machine  the processors: pinning, and what they are
//! ```
//!
//! A benchmark compares in one run: batches of every contender take turns, so that what the machine
//! does beside them hits all alike, and ratios are medians of ratios of batches that were neighbours.

#![forbid(unsafe_code)]

pub mod client;
mod error;
pub mod fsync;
mod ground;
mod lone_cell;
mod machine;
mod medium;
pub mod recovery;
mod sample;

pub use error::BenchError;
pub use ground::LOG_BYTES_MAX;
pub use medium::Medium;

/// The most rounds, and the most calls of a batch: a time is kept of each, and their number is counted in 32 bits.
pub const REPETITIONS_MAX: u32 = 10_000;
