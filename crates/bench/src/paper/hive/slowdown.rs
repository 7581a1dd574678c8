//! Table 7.2: pmake and two programs that compute, on a mount of one, two and four cells, and on
//! ext4. The paper compares Hive with the system that it was made of; ext4 is in its place.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::compile::{Compilation, finish};
use super::compute;
use crate::contender::{Contender, ContenderName, Contenders};
use crate::error::{BenchError, system};
use crate::ground::Interruption;
use crate::process::Running;
use crate::sample::{Spread, median_ratio};

/// Sizes of the fleets, as in the paper.
const CELLS: [u16; 3] = [1, 2, 4];

/// Rounds that are not counted: they warm the caches.
const ROUNDS_BEFORE: u32 = 1;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The workloads of table 7.2, with the paper's slowdowns in percent with one, two and four cells.
const PAPER: [(&str, [f64; 3]); 3] =
    [("ocean", [1.0, 1.0, -1.0]), ("raytrace", [0.0, 0.0, 1.0]), ("pmake", [1.0, 10.0, 11.0])];

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SlowdownReport {
    /// Contenders that this machine does not have, each with the reason.
    pub left_out: Vec<String>,
    pub slowed: Vec<Slowed>,
}

/// A workload on a file system.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Slowed {
    pub workload: String,
    pub name: ContenderName,
    /// The number of cells of the contender's fleet; `None` if it has no fleet.
    pub cells: Option<u16>,
    pub time: Spread,
    /// Percent of ext4's time beyond it; the median of the rounds.
    pub slowdown: f64,
    pub paper: Option<f64>,
}

struct Subject {
    contender: Box<dyn Contender>,
    cells: Option<u16>,
    /// Nanoseconds, by workload and round.
    times: [Vec<f64>; PAPER.len()],
}

pub(super) fn measure(
    scratch: &Path,
    compilation: &Compilation,
    rounds: u32,
    interruption: &Interruption,
) -> Result<SlowdownReport, BenchError> {
    let (mut subjects, left_out) = set_up(scratch, interruption)?;
    let results = Results::new(scratch, interruption)?;
    for round in 0..ROUNDS_BEFORE + rounds {
        for (workload, (name, _)) in PAPER.iter().enumerate() {
            for turn in 0..subjects.len() {
                interruption.check()?;
                // Another one begins in each round, so that none always follows the same.
                let at = (turn + round as usize) % subjects.len();
                let subject = &mut subjects[at];
                let directory = subject.contender.directory().join("run");
                let contender = subject.contender.as_ref();
                let ns = match *name {
                    "pmake" => compile(contender, &directory, compilation, interruption),
                    name => results.compute(contender, &directory, name, interruption),
                }?;
                subject.times[workload].extend((round >= ROUNDS_BEFORE).then_some(ns));
                let removed = std::fs::remove_dir_all(&directory);
                removed.map_err(system("remove the files of a run"))?;
            }
        }
    }
    Ok(SlowdownReport { left_out, slowed: compare(&subjects) })
}

/// Warren's contenders in each size, and ext4, which comes last.
fn set_up(
    scratch: &Path,
    interruption: &Interruption,
) -> Result<(Vec<Subject>, Vec<String>), BenchError> {
    let warrens = [ContenderName::Interposed, ContenderName::Fuse];
    let sizes = CELLS.map(|cells| (Some(cells), &warrens[..]));
    let (mut subjects, mut left_out) = (Vec::new(), Vec::new());
    for (cells, names) in sizes.into_iter().chain([(None, &[ContenderName::Ext4][..])]) {
        let directory = scratch.join(format!("pmake-{}", cells.unwrap_or(0)));
        std::fs::create_dir(&directory).map_err(system("make a directory"))?;
        let contenders = Contenders::new(names, &directory, cells.unwrap_or(1), interruption)?;
        subjects.extend(contenders.set_up.into_iter().map(|contender| Subject {
            contender,
            cells,
            times: Default::default(),
        }));
        left_out.extend(contenders.left_out);
    }
    left_out.dedup();
    Ok((subjects, left_out))
}

fn compare(subjects: &[Subject]) -> Vec<Slowed> {
    let is_ext4 = |it: &&Subject| it.contender.name() == ContenderName::Ext4;
    let Some(ext4) = subjects.iter().find(is_ext4) else { return Vec::new() };
    let rows = PAPER.iter().enumerate().flat_map(|(at, (workload, paper))| {
        subjects.iter().map(move |subject| {
            let size = CELLS.iter().position(|&cells| Some(cells) == subject.cells);
            Slowed {
                workload: (*workload).to_owned(),
                name: subject.contender.name(),
                cells: subject.cells,
                time: Spread::of(&subject.times[at]),
                slowdown: (median_ratio(&subject.times[at], &ext4.times[at]) - 1.0) * 100.0,
                paper: size.map(|size| paper[size]),
            }
        })
    });
    rows.collect()
}

fn compile(
    contender: &dyn Contender,
    directory: &Path,
    compilation: &Compilation,
    interruption: &Interruption,
) -> Result<f64, BenchError> {
    compilation.place(directory)?;
    let begun = Instant::now();
    compilation.run(directory, &|command| contender.prepare(command), &|_| {}, interruption)?;
    let ns = begun.elapsed().as_nanos() as f64;
    compilation.compare(directory, interruption)?;
    Ok(ns)
}

/// The files that the computing programs write on the host.
struct Results(Vec<(&'static str, Vec<u8>)>);

impl Results {
    fn new(scratch: &Path, interruption: &Interruption) -> Result<Self, BenchError> {
        let directory = scratch.join("computed");
        let mut results = Vec::new();
        for name in compute::PROGRAMS {
            let command = crate::process::this_program();
            let (_, bytes) = execute(command, &directory, name, interruption)?;
            results.push((name, bytes));
            std::fs::remove_dir_all(&directory).map_err(system("remove a result"))?;
        }
        Ok(Self(results))
    }

    fn compute(
        &self,
        contender: &dyn Contender,
        directory: &Path,
        name: &str,
        interruption: &Interruption,
    ) -> Result<f64, BenchError> {
        let (ns, bytes) = execute(contender.program(), directory, name, interruption)?;
        if self.0.iter().any(|(of, expected)| *of == name && *expected != bytes) {
            let why = format!("{name} on {}: another result than the host's", contender.name());
            return Err(BenchError::Failed(why));
        }
        Ok(ns)
    }
}

/// Runs a program that computes in a new directory. Returns nanoseconds and its result.
fn execute(
    mut command: Command,
    directory: &Path,
    name: &str,
    interruption: &Interruption,
) -> Result<(f64, Vec<u8>), BenchError> {
    let made = std::fs::create_dir(directory).and_then(|()| compute::make_input(directory));
    made.map_err(system("write the input of a program"))?;
    command.arg(compute::ROLE).arg(name).arg(directory).stdin(Stdio::null());
    let begun = Instant::now();
    let running = Running::start(&mut command).map_err(system("start a program"))?;
    finish(running, begun + TIMEOUT, interruption)?;
    let ns = begun.elapsed().as_nanos() as f64;
    let output: PathBuf = directory.join(compute::OUTPUT);
    Ok((ns, std::fs::read(output).map_err(system("read the result of a program"))?))
}
