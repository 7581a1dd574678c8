//! `warren bench space`: whether what `df` shows can be written, and what writing costs on a pool
//! that is nearly full.
//!
//! An ordinary user fills a file system with small files, removes every second one, and then writes
//! until it is full: in new directories, in the old ones, and one file. Then the user punches holes
//! in a file that fills the file system, so that one block of each chunk stays, and another user
//! writes. All this is done to Warren and, with the same bytes, to ext4.
//!
//! **Churn**: files of random sizes are written and removed at random while the file system stays
//! at nine tenths of what the user may fill. Periods take turns with the same on an empty file
//! system, so other load affects both alike, and the cost is a ratio.
//!
//! ```text
//! place  a file system and its users       fill    files until none fits, and the experiments
//! churn  files that come and go            report  the result as text
//! file   one file, until it is whole or there is no space
//! ```

mod churn;
mod file;
mod fill;
mod place;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contender::namespace;
use crate::error::BenchError;
use crate::machine::Machine;
pub use churn::Churned;
pub use fill::{Experiment, Filled};
use place::Place;
pub use place::Subject;

/// Pools of other sizes are for `mkfs` to judge.
pub const BYTES_MIN: u64 = 64 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceOptions {
    /// The directory of the pools, of the mount points and of ext4's files. It must have room for
    /// both in the largest size.
    pub directory: PathBuf,
    /// Sizes of file systems in bytes.
    pub sizes: Vec<u64>,
    /// Sizes of Warren's fleets.
    pub cells: Vec<u16>,
    /// The time for which files come and go in each size, on the first of the fleets. Zero leaves
    /// this out.
    pub churn: Duration,
}

impl Default for SpaceOptions {
    fn default() -> Self {
        Self {
            directory: std::env::temp_dir(),
            sizes: vec![256 << 20],
            cells: vec![1, 4],
            churn: Duration::from_secs(60),
        }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpaceReport {
    pub machine: Machine,
    pub filled: Vec<Filled>,
    pub churned: Vec<Churned>,
}

/// Measures. Needs root. The calling program must hand the roles of processes to
/// [`warren_runtime::dispatch`], [`warren_fuse::dispatch`] and [`crate::dispatch`].
pub fn run(options: &SpaceOptions) -> Result<SpaceReport, BenchError> {
    namespace::run_inside(&options.directory, |scratch, interruption| {
        let mut report =
            SpaceReport { machine: Machine::detect(), filled: Vec::new(), churned: Vec::new() };
        for &bytes in &options.sizes {
            let fleets = options.cells.iter().map(|&cells| Some(cells));
            for cells in fleets.chain([None]) {
                let place = Place::new(scratch, bytes, cells)?;
                report.filled.extend(fill::run(&place, interruption)?);
            }
            let first = options.cells.first().filter(|_| !options.churn.is_zero());
            if let Some(&cells) = first {
                report.churned.extend(churn::run(
                    scratch,
                    (bytes, cells),
                    options.churn,
                    interruption,
                )?);
            }
        }
        Ok(report)
    })
}
