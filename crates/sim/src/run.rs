//! Runs one seed, or very many.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use warren_cell::Plant;

use crate::simulation::Broken;
use crate::simulation::trace::Coverage;
use crate::world::{self, Plan};

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    /// Calls that clients begin, if the seed's swarm does not change that.
    pub steps: u64,
    /// Fixes the number of cells.
    pub cells: Option<u16>,
    /// A fault to plant, to show that it is found.
    pub plant: Option<Plant>,
    /// Cells are killed in some seeds.
    pub kills: bool,
    /// One shard is damaged at a random moment.
    pub damage: bool,
    /// One cell is taken out for a while.
    pub outage: bool,
}

/// The default number of calls of a run.
pub const STEPS_DEFAULT: u64 = 500;

impl Options {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            steps: STEPS_DEFAULT,
            cells: None,
            plant: None,
            kills: true,
            damage: false,
            outage: false,
        }
    }
}

/// The results of one seed, or of many.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    pub runs: u64,
    /// The hash of the trace; for many runs the sum of all hashes.
    pub hash: u64,
    pub events: u64,
    pub operations: u64,
    /// States that the checker tried.
    pub looked_at: u64,
    /// How often rare branches were reached.
    pub coverage: Coverage,
}

impl Summary {
    /// Returns the branches in `rare` that no run has reached.
    pub fn never_reached(&self, rare: &[&'static str]) -> Vec<&'static str> {
        rare.iter().copied().filter(|what| !self.coverage.contains_key(what)).collect()
    }

    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        // The sum must not depend on the order in which threads finish.
        self.hash = self.hash.wrapping_add(other.hash);
        self.events += other.events;
        self.operations += other.operations;
        self.looked_at += other.looked_at;
        for (what, times) in &other.coverage {
            *self.coverage.entry(what).or_default() += times;
        }
    }
}

/// A seed that violated a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub rule: String,
    /// The last events before the violation.
    pub events: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.rule)?;
        writeln!(f, "the last events:")?;
        for line in &self.events {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Runs one seed. The same seed gives the same run.
pub fn run(options: Options) -> Result<Summary, Failure> {
    let Options { seed, steps, cells, plant, kills, damage, outage } = options;
    let calls = steps.max(1);
    twice(seed, &|verbose| {
        attempt(Plan { seed, calls, cells, plant, kills, damage, outage, verbose })
    })
}

/// Runs `attempt`, and a failed one again with text: text costs time, so passing runs write none.
pub(crate) fn twice(
    seed: u64,
    attempt: &(dyn Fn(bool) -> Result<Summary, Broken> + RefUnwindSafe),
) -> Result<Summary, Failure> {
    // A panic of the simulated code is a finding like any other, with its seed.
    let attempt = |verbose| {
        std::panic::catch_unwind(|| attempt(verbose)).unwrap_or_else(|panic| {
            let text = (panic.downcast_ref::<String>().map(String::as_str))
                .or_else(|| panic.downcast_ref::<&str>().copied());
            let rule = format!("panic: {}", text.unwrap_or("without a message"));
            Err(Broken { rule, lines: Vec::new() })
        })
    };
    match attempt(false) {
        Ok(summary) => Ok(summary),
        Err(first) => match attempt(true) {
            Err(broken) => Err(Failure { seed, rule: broken.rule, events: broken.lines }),
            Ok(_) => {
                let rule = format!("the second run of the seed passes; the first: {}", first.rule);
                Err(Failure { seed, rule, events: Vec::new() })
            }
        },
    }
}

fn attempt(plan: Plan) -> Result<Summary, Broken> {
    let result = world::run(plan)?;
    Ok(Summary {
        runs: 1,
        hash: result.hash,
        events: result.events,
        operations: result.operations as u64,
        looked_at: result.looked_at as u64,
        coverage: result.coverage,
    })
}

/// Runs seeds `options.seed..options.seed + count` on `threads` threads until one fails; reports
/// the lowest seed that failed by then. `progress` is called with the number of finished seeds.
pub fn run_many(
    options: Options,
    count: u64,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Summary, Failure> {
    let run = |seed| run(Options { seed, ..options });
    many(options.seed, count, threads, progress, &run)
}

/// The same for any world.
pub(crate) fn many(
    first: u64,
    count: u64,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
    run: &(dyn Fn(u64) -> Result<Summary, Failure> + Sync),
) -> Result<Summary, Failure> {
    let (next, done, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let total = Mutex::new(Summary::default());
    let failure: Mutex<Option<Failure>> = Mutex::new(None);
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            match run(first.wrapping_add(at)) {
                Ok(summary) => total.lock().expect("no thread panics").add(&summary),
                Err(found) => {
                    stop.store(true, Ordering::Relaxed);
                    let mut failure = failure.lock().expect("no thread panics");
                    if failure.as_ref().is_none_or(|other| found.seed < other.seed) {
                        *failure = Some(found);
                    }
                }
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    match failure.into_inner().expect("no thread panics") {
        Some(failure) => Err(failure),
        None => Ok(total.into_inner().expect("no thread panics")),
    }
}
