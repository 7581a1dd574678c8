//! `warren bench scale`: many programs at once, on fleets of several sizes and on the kernel's file
//! systems.
//!
//! Each program executes batches of an operation in directories of its own, or, for the shared
//! operations, in one directory with all others. All begin at the same time. The result is the time
//! of the slowest divided by the calls of all: what a call costs while so many programs make calls.
//! As in [`crate::micro`], all subjects take turns, and ratios are medians over rounds.

mod report;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::contender::{Contender, ContenderName, Contenders, namespace};
use crate::error::{BenchError, system};
use crate::ground::Interruption;
use crate::machine::{self, Machine};
use crate::micro::Operation;
use crate::micro::program::Programs;
use crate::sample::{Spread, median_ratio};

/// Rounds that are not counted.
const ROUNDS_BEFORE: u32 = 1;

/// The most programs at once: each is a process with pipes.
pub const PROGRAMS_MAX: u32 = 256;

/// The most cells that a fleet has if none are asked for.
const CELLS_USUAL_MAX: u16 = 8;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScaleOptions {
    /// The directory of the mount points and of the files under loop devices.
    pub directory: PathBuf,
    pub rounds: u32,
    /// Calls of a batch of one program, as of [`crate::micro::MicroOptions`].
    pub calls: u32,
    pub operations: Vec<Operation>,
    pub contenders: Vec<ContenderName>,
    /// Numbers of programs that run at once.
    pub programs: Vec<u32>,
    /// Sizes of Warren's fleets.
    pub cells: Vec<u16>,
}

impl Default for ScaleOptions {
    /// Powers of two, up to the number of processors, and half of them in cells.
    fn default() -> Self {
        let cores = machine::processors().map_or(1, |processors| processors.len() as u32);
        let powers =
            |up_to: u32| (0..u32::BITS).map(|bit| 1 << bit).take_while(move |&it| it <= up_to);
        let cells = (cores / 2).clamp(1, u32::from(CELLS_USUAL_MAX));
        Self {
            directory: std::env::temp_dir(),
            rounds: 10,
            calls: 200,
            operations: vec![
                Operation::StatMany,
                Operation::Open,
                Operation::ReadFile,
                Operation::WriteFile,
                Operation::DeleteFile,
                Operation::Rename,
                Operation::Mkdir,
                Operation::CreateShared,
                Operation::UnlinkShared,
            ],
            contenders: vec![
                ContenderName::Interposed,
                ContenderName::Fuse,
                ContenderName::Tmpfs,
                ContenderName::Ext4,
            ],
            programs: powers(cores).collect(),
            cells: powers(cells).map(|count| count as u16).collect(),
        }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScaleReport {
    pub machine: Machine,
    pub rounds: u32,
    pub calls: u32,
    /// Contenders that this machine does not have, each with the reason.
    pub left_out: Vec<String>,
    pub programs: Vec<u32>,
    pub operations: Vec<Scaled>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scaled {
    pub operation: Operation,
    pub subjects: Vec<Curve>,
}

/// The throughput of one contender with more and more programs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Curve {
    pub name: ContenderName,
    /// The number of cells of the contender's fleet; `None` if it has no fleet.
    pub cells: Option<u16>,
    /// In the order of [`ScaleReport::programs`].
    pub points: Vec<Point>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The time of a batch divided by the calls of all programs.
    #[serde(flatten)]
    pub spread: Spread,
    /// Times the time of tmpfs with as many programs, if tmpfs was measured.
    pub ratio: Option<f64>,
}

/// Measures. The calling program must hand the roles of processes to [`warren_runtime::dispatch`],
/// [`warren_fuse::dispatch`] and [`crate::dispatch`].
pub fn run(options: &ScaleOptions) -> Result<ScaleReport, BenchError> {
    namespace::run_inside(&options.directory, |scratch, interruption| {
        measure(options, scratch, interruption)
    })
}

/// A file system and the programs on it, which end first.
struct Subject {
    programs: Programs,
    cells: Option<u16>,
    contender: Box<dyn Contender>,
}

fn measure(
    options: &ScaleOptions,
    scratch: &Path,
    interruption: &Interruption,
) -> Result<ScaleReport, BenchError> {
    let (mut subjects, left_out) = set_up(options, scratch, interruption)?;
    let mut operations = Vec::new();
    for &operation in &options.operations {
        let batches = measure_one(operation, &mut subjects, options, interruption)?;
        operations.push(Scaled { operation, subjects: curves(&subjects, &batches) });
    }
    let (machine, programs) = (Machine::detect(), options.programs.clone());
    let (rounds, calls) = (options.rounds, options.calls);
    Ok(ScaleReport { machine, rounds, calls, left_out, programs, operations })
}

/// Every one of Warren's contenders in every size, and the others once.
fn set_up(
    options: &ScaleOptions,
    scratch: &Path,
    interruption: &Interruption,
) -> Result<(Vec<Subject>, Vec<String>), BenchError> {
    let (warrens, kernels): (Vec<_>, Vec<_>) =
        options.contenders.iter().partition(|name| name.has_cells());
    let sizes = options.cells.iter().map(|&cells| (Some(cells), &warrens));
    let (mut subjects, mut left_out) = (Vec::new(), Vec::new());
    for (cells, names) in sizes.chain([(None, &kernels)]) {
        let directory = scratch.join(format!("cells-{}", cells.unwrap_or(0)));
        let made = std::fs::create_dir(&directory);
        made.map_err(system(&format!("make {}", directory.display())))?;
        let contenders = Contenders::new(names, &directory, cells.unwrap_or(1), interruption)?;
        for contender in contenders.set_up {
            let most = options.programs.iter().copied().max().unwrap_or(1);
            let programs = Programs::start(contender.as_ref(), most, options.calls, interruption)?;
            subjects.push(Subject { programs, cells, contender });
        }
        left_out.extend(contenders.left_out);
    }
    left_out.dedup();
    Ok((subjects, left_out))
}

/// Nanoseconds, by subject, number of programs, and round.
type Batches = Vec<Vec<Vec<f64>>>;

fn measure_one(
    operation: Operation,
    subjects: &mut [Subject],
    options: &ScaleOptions,
    interruption: &Interruption,
) -> Result<Batches, BenchError> {
    let mut batches = vec![vec![Vec::new(); options.programs.len()]; subjects.len()];
    for round in 0..ROUNDS_BEFORE + options.rounds {
        for (point, &count) in options.programs.iter().enumerate() {
            for turn in 0..subjects.len() {
                interruption.check()?;
                let at = (turn + round as usize) % subjects.len();
                let programs = &mut subjects[at].programs;
                let ns = programs.run_batches(operation, options.calls, count, interruption)?;
                if round >= ROUNDS_BEFORE {
                    batches[at][point].push(ns);
                }
            }
        }
    }
    Ok(batches)
}

fn curves(subjects: &[Subject], batches: &Batches) -> Vec<Curve> {
    let name = |subject: &Subject| subject.contender.name();
    let reference = subjects.iter().position(|it| name(it) == ContenderName::Tmpfs);
    let curve = |(subject, points): (&Subject, &Vec<Vec<f64>>)| {
        let point = |(at, ours): (usize, &Vec<f64>)| Point {
            spread: Spread::of(ours),
            ratio: reference.map(|reference| median_ratio(ours, &batches[reference][at])),
        };
        let points = points.iter().enumerate().map(point).collect();
        Curve { name: name(subject), cells: subject.cells, points }
    };
    subjects.iter().zip(batches).map(curve).collect()
}
