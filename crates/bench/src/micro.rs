//! `warren bench micro`: calls of a program to file systems by path, on Warren and on others.
//!
//! On each contender run programs of their own, which call the C library as any program does. They
//! execute batches of an operation on command. A run has rounds. In a round, each contender in turn
//! executes a batch of each operation, so that other load on the machine affects all alike. The
//! report has the median and the quartiles of the batches, and a contender's ratio: the median over
//! rounds of its time divided by the reference's (below 1: faster than the reference).
//!
//! ```text
//! benchmark (a thread in a mount namespace) ── lines on pipes ──▶ program ── calls ──▶ contender
//!
//! operation  what is measured
//! order      the lines on the pipes            busy     load on all processors
//! program    the programs of a contender       report   the result as text
//! worker     the process of a program
//! ```
//!
//! The contenders are those of [`crate::contender`].

pub(crate) mod busy;
mod operation;
mod order;
pub(crate) mod program;
mod report;
pub(crate) mod worker;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::contender::traffic::TrafficPerCall;
use crate::contender::{Contender, ContenderName, Contenders, namespace};
use crate::costs;
pub use crate::costs::Costs;
use crate::error::BenchError;
use crate::ground::Interruption;
use crate::machine::Machine;
use crate::sample::{Spread, geometric_mean, median_ratio};
use busy::Load;
use operation::Comparison;
pub use operation::Operation;
use program::Programs;

/// Rounds that are not counted.
const ROUNDS_BEFORE: u32 = 2;

/// The part of the rounds that are repeated with all processors busy, where each takes longer.
const BUSY_PART: u32 = 5;

/// Programs of a contender: as many as execute a shared operation at once.
const PROGRAMS: u32 = 2;

/// Cells of Warren's fleets.
const CELLS: u16 = 1;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MicroOptions {
    /// The directory of the mount points and of the files under loop devices.
    pub directory: PathBuf,
    pub rounds: u32,
    /// Calls of a batch. Of short operations it has a multiple, of long ones a part.
    pub calls: u32,
    pub operations: Vec<Operation>,
    pub contenders: Vec<ContenderName>,
    /// Measure with all processors busy, too.
    pub busy: bool,
}

impl Default for MicroOptions {
    fn default() -> Self {
        Self {
            directory: std::env::temp_dir(),
            rounds: 50,
            calls: 100,
            operations: Operation::ALL.to_vec(),
            contenders: ContenderName::ALL.to_vec(),
            busy: false,
        }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MicroReport {
    pub machine: Machine,
    pub rounds: u32,
    pub calls: u32,
    /// Contenders that this machine does not have, each with the reason.
    pub left_out: Vec<String>,
    pub idle: Table,
    /// The traffic of Warren's processes, by operation; from one batch of each that is not timed.
    pub traffic: Vec<OperationTraffic>,
    /// The results with all processors busy.
    pub busy: Option<Table>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OperationTraffic {
    pub operation: Operation,
    pub contender: ContenderName,
    #[serde(flatten)]
    pub per_call: TrafficPerCall,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Table {
    pub rounds: u32,
    pub costs: Costs,
    pub operations: Vec<Measured>,
    /// The means over the operations that do not sync. Empty if there is no reference.
    pub means: Vec<Mean>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub operation: Operation,
    /// It waits for the device, and is compared with ext4.
    pub syncs: bool,
    pub contenders: Vec<Speed>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Speed {
    pub name: ContenderName,
    #[serde(flatten)]
    pub spread: Spread,
    /// Times the reference's time, if the reference was measured.
    pub ratio: Option<f64>,
}

/// The geometric mean of a contender's ratios.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mean {
    pub name: ContenderName,
    pub ratio: f64,
}

/// Measures. The calling program must hand the roles of processes to [`warren_runtime::dispatch`],
/// [`warren_fuse::dispatch`] and [`crate::dispatch`].
pub fn run(options: &MicroOptions) -> Result<MicroReport, BenchError> {
    namespace::run_inside(&options.directory, |scratch, interruption| {
        measure(options, scratch, interruption)
    })
}

fn measure(
    options: &MicroOptions,
    scratch: &Path,
    interruption: &Interruption,
) -> Result<MicroReport, BenchError> {
    let Contenders { set_up, left_out } =
        Contenders::new(&options.contenders, scratch, CELLS, interruption)?;
    let start = |contender: Box<dyn Contender>| {
        let programs = Programs::start(contender.as_ref(), PROGRAMS, options.calls, interruption)?;
        Ok(Entrant { programs, contender })
    };
    let mut entrants =
        set_up.into_iter().map(start).collect::<Result<Vec<Entrant>, BenchError>>()?;
    let idle = measure_table(&mut entrants, options, options.rounds, interruption)?;
    let traffic = count_traffic(&mut entrants, options, interruption)?;
    let busy = if options.busy {
        let _load = Load::start()?;
        let rounds = options.rounds.div_ceil(BUSY_PART);
        Some(measure_table(&mut entrants, options, rounds, interruption)?)
    } else {
        None
    };
    let (rounds, calls) = (options.rounds, options.calls);
    Ok(MicroReport { machine: Machine::detect(), rounds, calls, left_out, idle, traffic, busy })
}

/// A contender and the programs on it, which end first.
struct Entrant {
    programs: Programs,
    contender: Box<dyn Contender>,
}

fn measure_table(
    entrants: &mut [Entrant],
    options: &MicroOptions,
    rounds: u32,
    interruption: &Interruption,
) -> Result<Table, BenchError> {
    let mut costs = costs::Measured::default();
    let mut batches = vec![vec![Vec::new(); entrants.len()]; options.operations.len()];
    for round in 0..ROUNDS_BEFORE + rounds {
        interruption.check()?;
        let counts = round >= ROUNDS_BEFORE;
        if counts {
            costs.measure(interruption)?;
        }
        for (&operation, batches) in options.operations.iter().zip(&mut batches) {
            for turn in 0..entrants.len() {
                // Another one begins in each round, so that no contender always follows the same.
                let at = (turn + round as usize) % entrants.len();
                let ns = entrants[at].programs.batch(operation, options.calls, interruption)?;
                if counts {
                    batches[at].push(ns);
                }
            }
        }
    }
    let names: Vec<ContenderName> = entrants.iter().map(|it| it.contender.name()).collect();
    let compare =
        |(operation, batches): (&Operation, &Vec<Vec<f64>>)| compare(*operation, &names, batches);
    let operations: Vec<Measured> = options.operations.iter().zip(&batches).map(compare).collect();
    let means = means(&names, &operations);
    Ok(Table { rounds, costs: costs.costs(), operations, means })
}

fn count_traffic(
    entrants: &mut [Entrant],
    options: &MicroOptions,
    interruption: &Interruption,
) -> Result<Vec<OperationTraffic>, BenchError> {
    let mut counted = Vec::new();
    for entrant in entrants {
        let (contender, name) = (entrant.contender.as_ref(), entrant.contender.name());
        for &operation in &options.operations {
            interruption.check()?;
            let programs = &mut entrant.programs;
            if let Some(per_call) =
                programs.count(contender, operation, options.calls, interruption)?
            {
                counted.push(OperationTraffic { operation, contender: name, per_call });
            }
        }
    }
    Ok(counted)
}

/// `batches` are those of the contenders, in order.
fn compare(operation: Operation, names: &[ContenderName], batches: &[Vec<f64>]) -> Measured {
    let syncs = operation.comparison() == Comparison::Device;
    let reference = if syncs { ContenderName::Ext4 } else { ContenderName::Tmpfs };
    let reference = names.iter().position(|name| *name == reference).map(|at| &batches[at]);
    let speed = |(&name, batches): (&ContenderName, &Vec<f64>)| Speed {
        name,
        spread: Spread::of(batches),
        ratio: reference.map(|reference| median_ratio(batches, reference)),
    };
    let contenders = names.iter().zip(batches).map(speed).collect();
    Measured { operation, syncs, contenders }
}

fn means(names: &[ContenderName], operations: &[Measured]) -> Vec<Mean> {
    let mean = |(at, &name): (usize, &ContenderName)| {
        let compared =
            operations.iter().filter(|it| it.operation.comparison() == Comparison::Memory);
        let ratios: Vec<f64> = compared.filter_map(|it| it.contenders[at].ratio).collect();
        Some(Mean { name, ratio: geometric_mean(&ratios)? })
    };
    names.iter().enumerate().filter_map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [ContenderName; 3] =
        [ContenderName::Fuse, ContenderName::Tmpfs, ContenderName::Ext4];

    fn ratios(measured: &Measured) -> Vec<Option<f64>> {
        measured.contenders.iter().map(|speed| speed.ratio).collect()
    }

    #[test]
    fn syncs_are_compared_with_ext4_and_are_not_in_the_mean() {
        let batches = [vec![8.0, 16.0], vec![2.0, 4.0], vec![4.0, 8.0]];
        let stat = compare(Operation::Stat, &NAMES, &batches);
        assert_eq!(ratios(&stat), [Some(4.0), Some(1.0), Some(2.0)]);
        let sync = compare(Operation::AppendFsync, &NAMES, &batches);
        assert_eq!(ratios(&sync), [Some(2.0), Some(0.5), Some(1.0)]);
        let start = compare(Operation::Start, &NAMES, &[vec![9.0], vec![1.0], vec![1.0]]);
        let means = means(&NAMES, &[stat, sync, start]);
        let means: Vec<f64> = means.iter().map(|mean| mean.ratio).collect();
        assert_eq!(means, [4.0, 1.0, 2.0]);
    }

    #[test]
    fn without_a_reference_there_is_no_ratio() {
        let measured = compare(Operation::Stat, &NAMES[..1], &[vec![8.0]]);
        assert_eq!(ratios(&measured), [None]);
        assert!(means(&NAMES[..1], &[measured]).is_empty());
    }
}
