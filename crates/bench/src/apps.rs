//! `warren bench apps`: whole programs on Warren and on other file systems, side by side.
//!
//! A run of a workload has four parts: its input is made, the clock runs while one or more programs
//! are executed, the result is checked, and all is removed. A run has rounds. In a round, each
//! workload is run once on each contender in turn, so that other load on the machine affects all
//! alike. The report has the median and the quartiles of the rounds, and ratios: the median over
//! rounds of a contender's time divided by that of ext4, and of tmpfs.
//!
//! ```text
//! workload   what is run                       check    whether a run did what it should
//! input      the files that runs begin with    mix      calls like those of two kinds of servers
//! plan       the programs of each workload     report   the result as text
//! step       one program, until it ends        html     the result as a page
//! place      a contender and the runs on it
//! ```
//!
//! The contenders are those of [`crate::contender`]. A run that fails has no time: its contender
//! is left out of further rounds of that workload, and the report names the failure.

mod check;

mod html;
mod input;
pub(crate) mod mix;
mod place;
mod plan;
mod report;
mod step;
mod workload;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::contender::{ContenderName, Contenders, namespace};
use crate::error::BenchError;
use crate::ground::Interruption;
use crate::machine::Machine;
use crate::medium::find;
use crate::sample::{Spread, geometric_mean, median_ratio};
use place::Place;
pub use workload::Workload;

/// Rounds that are not counted.
const ROUNDS_BEFORE: u32 = 1;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppsOptions {
    /// The directory of the mount points and of the files under loop devices.
    pub directory: PathBuf,
    pub rounds: u32,
    /// Cells of Warren's fleets.
    pub cells: u16,
    pub workloads: Vec<Workload>,
    pub contenders: Vec<ContenderName>,
}

impl Default for AppsOptions {
    fn default() -> Self {
        let contenders = ContenderName::ALL.into_iter();
        Self {
            directory: std::env::temp_dir(),
            rounds: 5,
            cells: 1,
            workloads: Workload::ALL.to_vec(),
            contenders: contenders.filter(|it| *it != ContenderName::PassthroughLl).collect(),
        }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AppsReport {
    pub machine: Machine,
    pub rounds: u32,
    pub cells: u16,
    /// Contenders and workloads that this machine does not have, each with the reason.
    pub left_out: Vec<String>,
    /// Runs that failed or had a wrong result.
    pub failures: Vec<String>,
    pub contenders: Vec<ContenderName>,
    pub workloads: Vec<Measured>,
    pub means: Vec<Mean>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub workload: Workload,
    /// It waits for the device, so that tmpfs is not compared with anything.
    pub syncs: bool,
    /// In the order of the report's contenders. `None` where it failed.
    pub times: Vec<Option<Times>>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Times {
    #[serde(flatten)]
    pub spread: Spread,
    /// The time of each round in nanoseconds, in order.
    pub rounds_ns: Vec<f64>,
    #[serde(flatten)]
    pub ratios: Ratios,
}

/// Times the time of a reference, if that was measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Ratios {
    pub to_ext4: Option<f64>,
    pub to_tmpfs: Option<f64>,
}

/// The geometric means of a contender's ratios, of workloads that do not sync and that no contender
/// failed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mean {
    pub name: ContenderName,
    #[serde(flatten)]
    pub ratios: Ratios,
}

/// Measures. The calling program must hand the roles of processes to [`warren_runtime::dispatch`],
/// [`warren_fuse::dispatch`] and [`crate::dispatch`].
pub fn run(options: &AppsOptions) -> Result<AppsReport, BenchError> {
    namespace::run_inside(&options.directory, |scratch, interruption| {
        measure(options, scratch, interruption)
    })
}

fn measure(
    options: &AppsOptions,
    scratch: &Path,
    interruption: &Interruption,
) -> Result<AppsReport, BenchError> {
    let (workloads, missing) = installed(&options.workloads);
    let host = Place::on_host(scratch, interruption)?;
    let at = host.inputs();
    let inputs = input::make(&at, &workloads, |step| host.perform(&at, step))?;
    let Contenders { set_up, mut left_out } =
        Contenders::new(&options.contenders, scratch, options.cells, interruption)?;
    left_out.extend(missing);
    let places = set_up.into_iter().map(|it| Place::new(it, &host, interruption));
    let mut places = places.collect::<Result<Vec<_>, _>>()?;
    let mut runs: Vec<Runs> = workloads.iter().map(|_| Runs::new(places.len())).collect();
    let mut failures = Vec::new();
    for round in 0..ROUNDS_BEFORE + options.rounds {
        for (&workload, runs) in workloads.iter().zip(&mut runs) {
            for turn in 0..places.len() {
                interruption.check()?;
                // Another one begins in each round, so that no contender always follows the same.
                let at = (turn + round as usize) % places.len();
                let counts = round >= ROUNDS_BEFORE;
                let failed = runs.add(at, counts, || places[at].run(workload, &inputs))?;
                let name = places[at].name().map_or("", ContenderName::name);
                failures.extend(failed.map(|why| format!("{workload} on {name}: {why}")));
            }
        }
    }
    let contenders: Vec<ContenderName> = places.iter().filter_map(Place::name).collect();
    let compared = workloads.iter().zip(&runs);
    let workloads: Vec<Measured> =
        compared.map(|(&workload, runs)| runs.compare(workload, &contenders)).collect();
    let means = means(&contenders, &workloads);
    let (rounds, cells, machine) = (options.rounds, options.cells, Machine::detect());
    Ok(AppsReport { machine, rounds, cells, left_out, failures, contenders, workloads, means })
}

/// The workloads whose programs this machine has, and a line about each of the others.
fn installed(workloads: &[Workload]) -> (Vec<Workload>, Vec<String>) {
    let mut missing = Vec::new();
    let is_installed = |workload: &Workload| {
        let absent = workload.needs().iter().find_map(|it| find(it.program, it.package).err());
        missing.extend(absent.iter().map(|why| format!("{workload}: {why}")));
        absent.is_none()
    };
    let given = Workload::ALL.into_iter().filter(|workload| workloads.contains(workload));
    (given.filter(is_installed).collect(), missing)
}

/// The runs of one workload: nanoseconds by contender. `None` after a failure.
struct Runs(Vec<Option<Vec<f64>>>);

impl Runs {
    fn new(contenders: usize) -> Self {
        Self(vec![Some(Vec::new()); contenders])
    }

    /// Runs it on a contender, if it has not failed there. Returns the failure.
    fn add(
        &mut self,
        at: usize,
        counts: bool,
        run: impl FnOnce() -> Result<f64, BenchError>,
    ) -> Result<Option<String>, BenchError> {
        let Some(times) = &mut self.0[at] else { return Ok(None) };
        match run() {
            Ok(ns) => times.extend(counts.then_some(ns)),
            Err(BenchError::Failed(why)) => {
                self.0[at] = None;
                return Ok(Some(why));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    fn compare(&self, workload: Workload, names: &[ContenderName]) -> Measured {
        let syncs = workload.syncs();
        let reference = |name: ContenderName| {
            let at = names.iter().position(|it| *it == name)?;
            self.0[at].as_ref()
        };
        let ext4 = reference(ContenderName::Ext4);
        let tmpfs = reference(ContenderName::Tmpfs).filter(|_| !syncs);
        let times = |name: ContenderName, runs: &Vec<f64>| {
            let ext4 = ext4.filter(|_| !(syncs && name == ContenderName::Tmpfs));
            let to_ext4 = ext4.map(|ext4| median_ratio(runs, ext4));
            let to_tmpfs = tmpfs.map(|tmpfs| median_ratio(runs, tmpfs));
            let (spread, ratios) = (Spread::of(runs), Ratios { to_ext4, to_tmpfs });
            Times { spread, rounds_ns: runs.clone(), ratios }
        };
        let named = names.iter().zip(&self.0);
        let times = named.map(|(&name, runs)| runs.as_ref().map(|runs| times(name, runs)));
        let times = times.collect();
        Measured { workload, syncs, times }
    }
}

fn means(names: &[ContenderName], workloads: &[Measured]) -> Vec<Mean> {
    let is_compared = |it: &&Measured| !it.syncs && it.times.iter().all(Option::is_some);
    let compared: Vec<&Measured> = workloads.iter().filter(is_compared).collect();
    let mean = |at: usize, ratio: fn(&Ratios) -> Option<f64>| {
        let times = compared.iter().filter_map(|it| it.times[at].as_ref());
        let ratios: Vec<f64> = times.filter_map(|times| ratio(&times.ratios)).collect();
        geometric_mean(&ratios)
    };
    let of = |(at, &name): (usize, &ContenderName)| {
        let to_ext4 = mean(at, |ratios| ratios.to_ext4);
        let to_tmpfs = mean(at, |ratios| ratios.to_tmpfs);
        Mean { name, ratios: Ratios { to_ext4, to_tmpfs } }
    };
    names.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_the_last_run_of_a_workload_on_a_contender() {
        let mut runs = Runs::new(2);
        assert!(matches!(runs.add(0, false, || Ok(7.0)), Ok(None)), "not counted");
        assert!(matches!(runs.add(0, true, || Ok(8.0)), Ok(None)));
        let fail = || Err(BenchError::Failed("wrong".to_owned()));
        assert_eq!(runs.add(1, true, fail).expect("goes on"), Some("wrong".to_owned()));
        let again = runs.add(1, true, || panic!("it is not run again"));
        assert_eq!(again.expect("goes on"), None);
        assert_eq!(runs.0, [Some(vec![8.0]), None]);
        assert!(runs.add(0, true, || Err(BenchError::Interrupted)).is_err());
    }

    #[test]
    fn workloads_are_in_the_order_of_the_report() {
        let (workloads, missing) = installed(&[Workload::Webserver, Workload::Copy]);
        assert_eq!((workloads, missing.len()), (vec![Workload::Copy, Workload::Webserver], 0));
    }
}
