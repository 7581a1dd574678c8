//! `warren bench stops`: how long programs wait after a process of the fleet, of a mount or of
//! another program was stopped.
//!
//! Programs repeat a round in each of 24 directories, which are spread over all cells, through each
//! mount. The order of events of a stop:
//!
//! ```text
//! all directories work -> SIGSTOP -> all directories work again -> the process is replaced
//!     -> SIGCONT if it is still there -> all cells serve, all directories work -> rounds end
//!     -> listings and contents are compared with what the programs know
//! ```
//!
//! The *wait* of a stop is the longest of two times over all directories and mounts: from the stop
//! to the end of the first round that began after it, and that of any round until the programs end.
//! The second finds a process that is missed only later. Rounds are counted from the stop on.
//!
//! ```text
//! rounds   the times of rounds, and the wait          site     a fleet, its mounts and programs
//! place    directories, a round in one, the check     victim   the process that is stopped
//! worker   the processes of programs                  report   the result as text
//! kind     loads, and kinds of processes
//! ```

mod kind;
mod place;
mod report;
mod rounds;
mod site;
mod victim;
pub(crate) mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warren_base::Rng;

use crate::contender::{fuse, namespace};
use crate::costs::{self, Costs};
use crate::error::BenchError;
use crate::ground::Interruption;
use crate::machine::Machine;
use crate::sample::{median, quantile};
pub use kind::{Kind, Load};
use site::{Outcome, Shape, Site};

/// Rounds in which the machine's costs are measured.
const ROUNDS_OF_COSTS: u32 = 10;

/// Waits over this are counted apart: it is what a stop may cost at most.
pub const WAIT_MAX: Duration = Duration::from_secs(2);

/// So many stops in a row that are not over end the stops of a kind, because each takes long.
const STUCK_IN_A_ROW_MAX: u32 = 3;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StopsOptions {
    /// The directory of the pools and of the mount points.
    pub directory: PathBuf,
    /// Sizes of the fleets.
    pub cells: Vec<u16>,
    /// Numbers of mounts, each at least 1.
    pub mounts: Vec<u16>,
    pub loads: Vec<Load>,
    pub kinds: Vec<Kind>,
    /// Stops of each kind in each combination of the others.
    pub times: u32,
    /// The seed of moments and of processes.
    pub seed: u64,
}

impl Default for StopsOptions {
    fn default() -> Self {
        Self {
            directory: std::env::temp_dir(),
            cells: vec![1, 2, 4],
            mounts: vec![1, 2],
            loads: Load::ALL.to_vec(),
            kinds: Kind::ALL.to_vec(),
            times: 10,
            seed: 80,
        }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StopsReport {
    pub machine: Machine,
    pub costs: Costs,
    pub seed: u64,
    pub times: u32,
    pub rows: Vec<Row>,
    /// No stop may cause these, each with the stop: wrong contents, a program that waits without
    /// end, a process that is not replaced, a damaged pool.
    pub failures: Vec<String>,
}

/// The stops of one kind of process beside one load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    pub cells: u16,
    pub mounts: u16,
    pub load: Load,
    pub kind: Kind,
    pub stops: u32,
    /// Waits of the stops that are over. `None` if no stop is.
    pub wait: Option<Waits>,
    /// Times until stopped processes had ended.
    pub ended: Option<Waits>,
    /// Stops after which the stopped process had ended, and another served in its place.
    pub replaced: u32,
    /// Stops after which contents or listings were wrong, or a call of a program failed.
    pub wrong: u32,
    /// Stops after which a program waited for longer than 30 s, or not all cells served again.
    pub stuck: u32,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Waits {
    pub median_ms: f64,
    pub p99_ms: f64,
    pub most_ms: f64,
    /// Times over [`WAIT_MAX`].
    pub over_max: u32,
}

impl Waits {
    /// `None` of nothing.
    fn of(waits_ms: &[f64]) -> Option<Self> {
        let most_ms = waits_ms.iter().copied().reduce(f64::max)?;
        let max_ms = WAIT_MAX.as_secs_f64() * 1000.0;
        let over_max = waits_ms.iter().filter(|&&ms| ms > max_ms).count() as u32;
        let (median_ms, p99_ms) = (median(waits_ms), quantile(waits_ms, 0.99));
        Some(Self { median_ms, p99_ms, most_ms, over_max })
    }
}

/// Measures. Needs root. The calling program must hand the roles of processes to
/// [`warren_runtime::dispatch`], [`warren_fuse::dispatch`] and [`crate::dispatch`].
pub fn run(options: &StopsOptions) -> Result<StopsReport, BenchError> {
    namespace::run_inside(&options.directory, |scratch, interruption| {
        measure(options, scratch, interruption)
    })
}

fn measure(
    options: &StopsOptions,
    scratch: &Path,
    interruption: &Interruption,
) -> Result<StopsReport, BenchError> {
    let needs_library = options.loads.contains(&Load::Interposed);
    let library = if needs_library { Some(fuse::library()?) } else { None };
    let mut costs = costs::Measured::default();
    for _ in 0..ROUNDS_OF_COSTS {
        costs.measure(interruption)?;
    }
    let mut bench = Bench {
        options,
        scratch,
        interruption,
        rng: Rng::new(options.seed),
        sites: 0,
        rows: Vec::new(),
        failures: Vec::new(),
    };
    for &cells in &options.cells {
        for &mounts in &options.mounts {
            for &load in &options.loads {
                let library = library.clone().filter(|_| load == Load::Interposed);
                bench.combination(&Shape { cells, mounts, load, library })?;
            }
        }
    }
    let (rows, failures) = (bench.rows, bench.failures);
    let (seed, times) = (options.seed, options.times);
    Ok(StopsReport {
        machine: Machine::detect(),
        costs: costs.costs(),
        seed,
        times,
        rows,
        failures,
    })
}

struct Bench<'a> {
    options: &'a StopsOptions,
    scratch: &'a Path,
    interruption: &'a Interruption,
    rng: Rng,
    /// Sites so far, which number their mount points.
    sites: u32,
    rows: Vec<Row>,
    failures: Vec<String>,
}

impl Bench<'_> {
    /// All kinds of processes, on one fleet if nothing fails.
    fn combination(&mut self, shape: &Shape) -> Result<(), BenchError> {
        let mut site = self.site(shape)?;
        for &kind in &self.options.kinds {
            site = self.kind(site, shape, kind)?;
        }
        self.failures.extend(site.finish()?.map(|why| format!("{shape}: {why}")));
        Ok(())
    }

    fn site(&mut self, shape: &Shape) -> Result<Site, BenchError> {
        self.sites += 1;
        Site::new(self.scratch, self.sites, shape, self.interruption)
    }

    /// A site on which a stop was not endured is given up, because its programs may wait. Returns
    /// the site for the next kind.
    fn kind(&mut self, mut site: Site, shape: &Shape, kind: Kind) -> Result<Site, BenchError> {
        let mut counts = Counts::default();
        for number in 0..self.options.times {
            let endured = site.endure(kind, &mut self.rng, self.interruption);
            if let Some(why) = counts.add(kind, endured)? {
                self.failures.push(format!("{shape}, {kind}, stop {number}: {why}"));
                if counts.has_site_failed {
                    site.give_up();
                    site = self.site(shape)?;
                }
            }
            if counts.in_a_row >= STUCK_IN_A_ROW_MAX {
                break;
            }
        }
        let Shape { cells, mounts, load, .. } = *shape;
        let Counts { stops, wrong, stuck, .. } = counts;
        let (wait, ended) = (Waits::of(&counts.waits_ms), Waits::of(&counts.ends_ms));
        let replaced = counts.ends_ms.len() as u32;
        let row = Row { cells, mounts, load, kind, stops, wait, ended, replaced, wrong, stuck };
        self.rows.push(row);
        Ok(site)
    }
}

#[derive(Default)]
struct Counts {
    waits_ms: Vec<f64>,
    ends_ms: Vec<f64>,
    stops: u32,
    wrong: u32,
    stuck: u32,
    /// Stops that were not endured, up to the last one.
    in_a_row: u32,
    /// After the last stop.
    has_site_failed: bool,
}

impl Counts {
    /// Returns why the stop is a failure, if it is. An error that is no outcome of the stop ends
    /// the benchmark.
    fn add(
        &mut self,
        kind: Kind,
        endured: Result<Outcome, BenchError>,
    ) -> Result<Option<String>, BenchError> {
        self.stops += 1;
        self.has_site_failed = endured.is_err();
        self.in_a_row = if self.has_site_failed { self.in_a_row + 1 } else { 0 };
        match endured {
            Ok(Outcome { wait, ended }) => {
                let ms = |time: Duration| time.as_secs_f64() * 1000.0;
                self.waits_ms.push(ms(wait));
                self.ends_ms.extend(ended.map(ms));
                let is_missing = kind.is_replaced() && ended.is_none();
                Ok(is_missing.then(|| "the stopped process was not replaced".to_owned()))
            }
            Err(error @ BenchError::Failed(_)) => {
                self.wrong += 1;
                Ok(Some(error.to_string()))
            }
            Err(error @ (BenchError::Stuck(_) | BenchError::Fleet(_))) => {
                self.stuck += 1;
                Ok(Some(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_counted_by_their_outcome() {
        let mut counts = Counts::default();
        let endured = |ms, has_ended: bool| {
            let wait = Duration::from_millis(ms);
            Ok(Outcome { wait, ended: has_ended.then_some(wait / 2) })
        };
        assert_eq!(counts.add(Kind::Cell, endured(250, true)).expect("a stop"), None);
        let missing = counts.add(Kind::Cell, endured(2001, false)).expect("a stop");
        assert!(missing.is_some() && !counts.has_site_failed);
        assert_eq!(counts.add(Kind::Keeper, endured(2000, false)).expect("a stop"), None);
        for error in [BenchError::Failed("a".to_owned()), BenchError::Stuck("b".to_owned())] {
            assert!(counts.add(Kind::Cell, Err(error)).expect("a stop").is_some());
        }
        assert!(counts.has_site_failed);
        assert!(counts.add(Kind::Cell, Err(BenchError::Interrupted)).is_err());
        let Counts { stops, wrong, stuck, in_a_row, .. } = counts;
        assert_eq!((stops, wrong, stuck, in_a_row), (6, 1, 1, 3));
        assert_eq!(counts.ends_ms, [125.0]);
        let waits = Waits { median_ms: 2000.0, p99_ms: 2001.0, most_ms: 2001.0, over_max: 1 };
        assert_eq!(Waits::of(&counts.waits_ms), Some(waits));
        assert_eq!(Waits::of(&[]), None);
    }
}
