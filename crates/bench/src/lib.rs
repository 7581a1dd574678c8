//! Workloads and comparisons.
//!
//! ```text
//! apps     whole programs on Warren's mount and on other file systems
//! beside   how much slower the clients of one user become beside those of another
//! client   one client and one cell, in memory, beside the same calls on other file systems
//! clients  what many idle clients cost the others, in time, memory and descriptors
//! fsync    append and fsync, one and several writers, beside a file system and the bare device
//! micro    a program's calls by path, on Warren's mount and on other file systems
//! scale    many programs at once, on fleets of several sizes and on other file systems
//! space    whether what `df` shows can be written on a fragmented pool, and what churn costs
//! paper    the experiments of papers, as far as they can be repeated
//! recovery  the time until the first reply after a kill of a cell, and of a fleet, with full logs
//! stops    how long programs wait after a process of the fleet, a mount or a program was stopped
//! lone_cell  a cell's state machine alone, without processes and shared memory
//! contender  the file systems that programs are run on, mounted where no other process sees them
//! ground   a pool and a fleet of its own for a benchmark, gone afterwards
//! medium   the media of the contenders: files, loop devices, memory
//! c_program  the source of a program in C
//! process  processes that a benchmark starts
//! sample   times of batches, medians and tails
//! costs    what a system call, a cache line and a wake-up cost on this machine
//! transfer  a cache line between two cores
//! machine  the processors: pinning, and their model
//! ```
//!
//! A benchmark compares in one run: batches of all contenders take turns, so that other load on the
//! machine affects all alike. Ratios are medians of the ratios of adjacent batches.

#![deny(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

pub mod apps;
pub mod beside;
mod c_program;
pub mod client;
pub mod clients;
mod contender;
mod costs;
mod error;
pub mod fsync;
mod ground;
mod lone_cell;
mod machine;
mod medium;
pub mod micro;
pub mod paper;
mod process;
pub mod recovery;
mod sample;
pub mod scale;
pub mod space;
pub mod stops;
mod transfer;

pub use contender::ContenderName;
pub use contender::traffic::TrafficPerCall;
pub use error::BenchError;
pub use ground::LOG_BYTES_MAX;
pub use medium::Medium;

/// The most rounds, and the most calls of a batch, because each time is stored, and their number is
/// counted in 32 bits.
pub const REPETITIONS_MAX: u32 = 10_000;

/// Runs a role of the benchmarks' processes to its end if `arguments` (without the program's name)
/// name one.
pub fn dispatch(arguments: &[OsString]) -> Option<ExitCode> {
    let (role, rest) = arguments.split_first()?;
    match role.to_str()? {
        apps::mix::ROLE => Some(apps::mix::main(rest)),
        micro::worker::ROLE => Some(micro::worker::main(rest)),
        micro::busy::ROLE => Some(micro::busy::main(rest)),
        paper::hive::compute::ROLE => Some(paper::hive::compute::main(rest)),
        contender::fuse::ROLE => Some(contender::fuse::main(rest)),
        stops::worker::ROLE => Some(stops::worker::main(rest)),
        stops::worker::ROLE_HOLDER => Some(stops::worker::hold(rest)),
        process::ROLE_TIED => Some(process::become_tied(rest)),
        _ => None,
    }
}
