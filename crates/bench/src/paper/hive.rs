//! `warren bench paper hive`: the experiments of Hive (Chapin, Rosenblum, Devine, Lahiri, Teodosiu,
//! Gupta: "Hive: Fault Containment for Shared-Memory Multiprocessors", SOSP 1995).
//!
//! ```text
//! experiment   paper                        what is measured
//! requests     sections 4.1 and 6           a careful read of vitals, a null request
//! latency      tables 5.2 and 7.3           read, write, open, mapped faults, near and far
//! pmake        table 7.2                    programs on a mount, times their time on ext4
//! writable     section 4.2                  pages of a cell that other processes may write
//! faults       table 7.4, section 3.1       injected faults: contained, noticed, recovered from
//! ```
//!
//! ```text
//! client     a client of the library that knows on which cell an inode is
//! compile    the files that pmake compiles, and the compilation
//! compute    the two programs that compute, with small input and output
//! mapping    a file that is mapped, for page faults
//! maps       the memory of another process
//! ```

pub(crate) mod client;
mod compile;
pub(crate) mod compute;
mod faults;
mod latency;
mod mapping;
mod maps;
mod report;
mod requests;
mod slowdown;
mod writable;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::contender::namespace;
use crate::costs::{self, Costs};
use crate::error::BenchError;
use crate::ground::Interruption;
use crate::machine::Machine;
pub use faults::{ClassResult, FaultClass, FaultReport, Milliseconds, PaperClass};
pub use latency::{Crossing, LatencyReport, PaperCrossing, Part};
pub use requests::RequestReport;
pub use slowdown::{SlowdownReport, Slowed};
pub use writable::{WritablePages, WritableReport};

/// Rounds in which the machine's costs are measured.
const ROUNDS_OF_COSTS: u32 = 10;

/// Rounds of requests and latencies for each of pmake, which takes many times as long.
const SHORT_ROUNDS: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Experiment {
    Requests,
    Latency,
    Pmake,
    Writable,
    Faults,
}

impl Experiment {
    pub const ALL: [Self; 5] =
        [Self::Requests, Self::Latency, Self::Pmake, Self::Writable, Self::Faults];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Latency => "latency",
            Self::Pmake => "pmake",
            Self::Writable => "writable",
            Self::Faults => "faults",
        }
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Experiment {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no experiment has this name; take some of {names}")
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HiveOptions {
    /// The directory of the pools, of the mount points and of ext4's files.
    pub directory: PathBuf,
    pub experiments: Vec<Experiment>,
    /// Rounds of pmake that are counted. The short measurements have a multiple.
    pub rounds: u32,
    /// Injected faults of each class. `None`: as many as in the paper.
    pub faults: Option<u32>,
    /// The seed of times, victims and addresses of faults.
    pub seed: u64,
}

impl Default for HiveOptions {
    fn default() -> Self {
        Self {
            directory: std::env::temp_dir(),
            experiments: Experiment::ALL.to_vec(),
            rounds: 7,
            faults: None,
            seed: 1995,
        }
    }
}

/// The result. Its `Display` is the report as text. What was not measured is `None`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HiveReport {
    pub machine: Machine,
    pub costs: Costs,
    pub rounds: u32,
    pub requests: Option<RequestReport>,
    pub latency: Option<LatencyReport>,
    pub pmake: Option<SlowdownReport>,
    pub writable: Option<WritableReport>,
    pub faults: Option<FaultReport>,
}

/// Measures. Needs root, a C compiler and `diff`. The calling program must hand the roles of
/// processes to [`warren_runtime::dispatch`], [`warren_fuse::dispatch`] and [`crate::dispatch`].
pub fn run(options: &HiveOptions) -> Result<HiveReport, BenchError> {
    namespace::run_inside(&options.directory, |scratch, interruption| {
        measure(options, scratch, interruption)
    })
}

fn measure(
    options: &HiveOptions,
    scratch: &Path,
    interruption: &Interruption,
) -> Result<HiveReport, BenchError> {
    let mut costs = costs::Measured::default();
    for _ in 0..ROUNDS_OF_COSTS {
        costs.measure(interruption)?;
    }
    let mut report = HiveReport {
        machine: Machine::detect(),
        costs: costs.costs(),
        rounds: options.rounds,
        requests: None,
        latency: None,
        pmake: None,
        writable: None,
        faults: None,
    };
    let compilation = if options.experiments.iter().any(|it| it.compiles()) {
        Some(compile::Compilation::new(scratch, interruption)?)
    } else {
        None
    };
    let (rounds, short) = (options.rounds, SHORT_ROUNDS.saturating_mul(options.rounds));
    for experiment in Experiment::ALL.into_iter().filter(|it| options.experiments.contains(it)) {
        match (experiment, &compilation) {
            (Experiment::Requests, _) => {
                report.requests = Some(requests::measure(scratch, short, interruption)?);
            }
            (Experiment::Latency, _) => {
                report.latency = Some(latency::measure(scratch, short, interruption)?);
            }
            (Experiment::Pmake, Some(compilation)) => {
                let measured = slowdown::measure(scratch, compilation, rounds, interruption)?;
                report.pmake = Some(measured);
            }
            (Experiment::Writable, Some(compilation)) => {
                report.writable = Some(writable::measure(scratch, compilation, interruption)?);
            }
            (Experiment::Faults, Some(compilation)) => {
                let faults = (options.faults, options.seed);
                let injected = faults::measure(scratch, compilation, faults, interruption)?;
                report.faults = Some(injected);
            }
            (_, None) => unreachable!("the experiment compiles"),
        }
    }
    Ok(report)
}

impl Experiment {
    /// It runs pmake.
    const fn compiles(self) -> bool {
        matches!(self, Self::Pmake | Self::Writable | Self::Faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_has_one_name_in_every_form() {
        for experiment in Experiment::ALL {
            assert_eq!(experiment.name().parse(), Ok(experiment));
            let json = serde_json::to_string(&experiment).expect("JSON");
            assert_eq!(json, format!("\"{experiment}\""));
        }
        assert!("table-7.3".parse::<Experiment>().is_err());
    }
}
