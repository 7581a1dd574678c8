//! The results of runs: of one seed, or of very many.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::simulation::trace::{Coverage, Trace};

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
    /// The times that rare branches were reached.
    pub coverage: Coverage,
}

impl Summary {
    pub(crate) fn of_run(trace: Trace, operations: u64, looked_at: u64) -> Self {
        let (hash, events) = (trace.hash(), trace.events);
        Self { runs: 1, hash, events, operations, looked_at, coverage: trace.coverage }
    }

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

/// The violated rule, and the last events before it.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub rule: String,
    pub lines: Vec<String>,
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

/// Runs seeds `first..first + count` on `threads` threads until one fails; reports the lowest seed
/// that failed by then. `progress` is called with the number of finished seeds.
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
