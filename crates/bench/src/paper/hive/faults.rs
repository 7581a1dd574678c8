//! Table 7.4 and section 3.1: faults that are injected into one of four cells while pmake runs on a
//! mount.
//!
//! Each fault has a fleet, a pool and a mount of its own, as the paper's machine was booted anew.
//! The order of events:
//!
//! ```text
//! pmake begins -> the fault -> pmake ends -> pmake again, as a check -> both results are compared
//!              -> all successors serve -> the mount ends, the fleet stops -> the pool is checked
//! ```
//!
//! A fault is *contained* if no other cell has ended, the second pmake and all its files are right,
//! and the pool has no damage. It is *unharmed* if that is true of the first pmake, too, which runs
//! while the fault happens; Hive kills the programs that depend on a failed cell.
//!
//! *Detection* is the paper's latency until the last cell enters recovery: from the fault until the
//! process was gone (at least as long as the supervisor has noted), and from there until all other
//! cells had handled its messages. *Recovery* is the time from there until its successor served.

mod class;
mod outcome;
mod pointer;
mod site;

use std::path::Path;

use serde::{Deserialize, Serialize};
use warren_base::Rng;

use super::compile::Compilation;
use crate::error::BenchError;
use crate::ground::Interruption;
pub use class::{FaultClass, PaperClass};
pub use outcome::{ClassResult, Milliseconds};
use site::{CELLS, Site};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FaultReport {
    pub seed: u64,
    pub cells: u16,
    /// The time between two looks of the supervisor at a cell.
    pub look_every_ms: f64,
    pub classes: Vec<ClassResult>,
}

/// Injects so many faults of each class, or as many as in the paper.
pub(super) fn measure(
    scratch: &Path,
    compilation: &Compilation,
    (count, seed): (Option<u32>, u64),
    interruption: &Interruption,
) -> Result<FaultReport, BenchError> {
    let mut rng = Rng::new(seed);
    let mut classes = Vec::new();
    for class in FaultClass::ALL {
        let mut outcomes = Vec::new();
        for number in 0..count.unwrap_or_else(|| class.count()) {
            interruption.check()?;
            let mount = scratch.join(format!("fault-{}-{number}", classes.len()));
            let site = Site::new(scratch, mount, compilation)?;
            outcomes.push(site.endure(class, number, &mut rng, interruption)?);
        }
        classes.push(ClassResult::of(class, &outcomes));
    }
    let look_every_ms = warren_supervisor::LOOK_EVERY.as_secs_f64() * 1000.0;
    Ok(FaultReport { seed, cells: CELLS, look_every_ms, classes })
}
