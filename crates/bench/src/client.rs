//! `warren bench client`: the client library alone, one client and one cell, each on a core, and
//! everything in memory.
//!
//! A run has rounds. In a round, each contender in turn executes a batch of each operation: Warren,
//! tmpfs, and ext4 if the pool file would be on one. The report has the median and the 99th
//! percentile of the batches of Warren. A contender's ratio is the median over rounds of
//! its time divided by Warren's (above 1: Warren is faster).
//!
//! ```text
//! subject    the operations, and contenders       library    through Warren's client library
//! kernel     through system calls                 breakdown  where the time goes
//! report     the result as text
//! ```

mod breakdown;
mod kernel;
mod library;
mod report;
mod subject;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warren_runtime::{ConnectOptions, connect};

use crate::error::BenchError;
use crate::ground::{Ground, Interruption};
use crate::machine::{self, Machine, Pinned};
use crate::sample::{Figures, median_ratio, time_batch};

pub use breakdown::{How, Piece};
use kernel::KernelDirectory;
pub(crate) use kernel::file_system_of;
use library::Library;
pub use subject::Operation;
pub(crate) use subject::own_credentials;
use subject::{Subject, WARREN};

/// Rounds that are not counted: they warm up caches and branch predictors.
const ROUNDS_BEFORE: u32 = 3;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientOptions {
    /// The directory of the temporary pool, and of the files to compare with.
    pub directory: PathBuf,
    pub rounds: u32,
    /// Calls of a batch.
    pub calls: u32,
    /// Measure the pieces of an operation too.
    pub breakdown: bool,
    /// Measure Warren alone.
    pub alone: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        let directory = std::env::temp_dir();
        Self { directory, rounds: 200, calls: 200, breakdown: false, alone: false }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    pub machine: Machine,
    pub rounds: u32,
    pub calls: u32,
    /// Whether client and cell had a core each.
    pub two_cores: bool,
    pub operations: Vec<Measured>,
    /// Empty if it was not asked for.
    pub breakdown: Vec<Piece>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub operation: Operation,
    #[serde(flatten)]
    pub figures: Figures,
    pub aim_ns: Option<f64>,
    /// The median divided by the aim.
    pub of_aim: Option<f64>,
    pub others: Vec<Other>,
}

/// The same operation of another contender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Other {
    pub name: String,
    pub call: String,
    #[serde(flatten)]
    pub figures: Figures,
    /// The median of its time divided by Warren's, over rounds.
    pub ratio: f64,
}

/// A contender and the times of its batches, by operation.
struct Contender {
    subject: Box<dyn Subject>,
    batches: [Vec<f64>; Operation::ALL.len()],
}

/// Measures. Takes a few seconds with the default options. The calling program must hand the roles
/// of a fleet's processes to [`warren_runtime::dispatch`].
pub fn run(options: &ClientOptions) -> Result<Report, BenchError> {
    let interruption = Interruption::watch()?;
    let machine = Machine::detect();
    let (client_cpu, cell_cpu) = machine::places()?;
    let ground = Ground::start(&options.directory, 1)?;
    for process in ground.cell_processes()? {
        machine::pin(Some(process), cell_cpu)?;
    }
    let mut contenders = contenders(ground.pool(), options)?;
    let _pinned = Pinned::pin(client_cpu)?;
    for (rounds, counts) in [(ROUNDS_BEFORE, false), (options.rounds, true)] {
        for _ in 0..rounds {
            run_round(&mut contenders, options.calls, counts, &interruption)?;
        }
    }
    let operations = results(&contenders);
    let breakdown = if options.breakdown {
        let medians: Vec<_> =
            operations.iter().map(|it| (it.operation, it.figures.median_ns)).collect();
        breakdown::measure(&medians, (client_cpu, cell_cpu), &interruption)?
    } else {
        Vec::new()
    };
    let (rounds, calls, two_cores) = (options.rounds, options.calls, client_cpu != cell_cpu);
    Ok(Report { machine, rounds, calls, two_cores, operations, breakdown })
}

/// All contenders, Warren first.
fn contenders(pool: &Path, options: &ClientOptions) -> Result<Vec<Contender>, BenchError> {
    let connection = connect(pool, &ConnectOptions::default())?;
    let failed = |errno| BenchError::call(WARREN, "create", errno);
    let library = Library::new(&connection, own_credentials()).map_err(failed)?;
    let mut subjects: Vec<Box<dyn Subject>> = vec![Box::new(library)];
    if !options.alone {
        for directory in [Path::new("/dev/shm"), &options.directory] {
            let Some(name) = file_system_of(directory) else { continue };
            if subjects.iter().all(|subject| subject.name() != name) {
                subjects.push(Box::new(KernelDirectory::new(name, directory)?));
            }
        }
    }
    for subject in &mut subjects {
        let name = subject.name().to_owned();
        subject
            .prepare(options.calls)
            .map_err(|errno| BenchError::call(&name, "prepare", errno))?;
    }
    let contender = |subject| Contender { subject, batches: Default::default() };
    Ok(subjects.into_iter().map(contender).collect())
}

fn run_round(
    contenders: &mut [Contender],
    calls: u32,
    counts: bool,
    interruption: &Interruption,
) -> Result<(), BenchError> {
    for (at, operation) in Operation::ALL.into_iter().enumerate() {
        for Contender { subject, batches } in contenders.iter_mut() {
            interruption.check()?;
            let time = subject
                .warm_up()
                .and_then(|()| time_batch(calls, |at| subject.perform(operation, at)));
            let time =
                time.map_err(|errno| BenchError::call(subject.name(), operation.name(), errno))?;
            if counts {
                batches[at].push(time);
            }
        }
    }
    Ok(())
}

fn results(contenders: &[Contender]) -> Vec<Measured> {
    let Some((warren, others)) = contenders.split_first() else { return Vec::new() };
    let of_operation = |(at, operation): (usize, Operation)| {
        let ours = &warren.batches[at];
        let figures = Figures::of(ours);
        let aim_ns = operation.aim_ns();
        let other = |other: &Contender| Other {
            name: other.subject.name().to_owned(),
            call: operation.call().to_owned(),
            figures: Figures::of(&other.batches[at]),
            ratio: median_ratio(&other.batches[at], ours),
        };
        Measured {
            operation,
            figures,
            aim_ns,
            of_aim: aim_ns.map(|aim| figures.median_ns / aim),
            others: others.iter().map(other).collect(),
        }
    };
    Operation::ALL.into_iter().enumerate().map(of_operation).collect()
}
