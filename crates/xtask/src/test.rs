//! The one test command. It runs every step even if an earlier one failed, so that one run shows
//! all failures, and lists the failed steps at the end, with their errors: of a long output often
//! only the end is kept.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::beside::{Beside, Done, Task};
use crate::cargo::{Link, build_interposer, build_release, cargo, command, release_binary};
use crate::unit_tests::{self, FEATURES};
use crate::{e2e, fuzz, packages, tidy};

/// Seeds of a run on every change, and of a long one.
const SEEDS: u64 = 2_000;
const SEEDS_FULL: u64 = 20_000;
/// The part of the seeds of the crash campaign in which cells are taken out.
const OUTAGE_PART: u64 = 4;
/// Sequences of two operations of the systematic crash campaign, likewise.
const PAIRS: u64 = 200;
const PAIRS_FULL: u64 = 20_000;
/// Sequences that a real fleet performs, likewise: a second or so each.
const REAL: u64 = 20;
const REAL_FULL: u64 = 400;
/// The lint options of clippy.
const DENY_WARNINGS: [&str; 3] = ["--", "-D", "warnings"];
/// Parts of the mutants. A short run whose turn it is tries one of them.
const MUTANT_PARTS: u64 = 32;
/// Turns of the end-to-end tests after which the other of fuzzing and planted faults has its turn.
const FUZZ_IN_TURN: u64 = 2 * CELLS_IN_TURN.len() as u64;
/// One of so many short runs lints what is shipped, without the features for tests, and links what
/// the end-to-end tests run as it is shipped.
const SHIPPED_IN_TURN: u64 = 3;
/// The step, and the task, that builds what the end-to-end tests run.
const RELEASE: &str = "release build";
pub(crate) const BUILD: &str = "build";
/// Cells of the fleets of a short run, in turn.
const CELLS_IN_TURN: [u16; 6] = [2, 1, 2, 3, 2, 8];
/// The end-to-end cases that take longest. A short run does one in [`LONG_PARTS`] of them, in turn.
const LONG_CASES: [&str; 27] = [
    "paths_served",
    "developers_tools",
    "crowd",
    "stopped_mount_keeper",
    "full_pool",
    "mount_options",
    "kernel_beside",
    "ranges",
    "storms_survived",
    "copies",
    "counted_links",
    "threads_open",
    "limits_small",
    "files_adopted",
    "files_written",
    "tiny_cache",
    "taken_out",
    "vectors_served",
    "python",
    "hostile_client",
    "files_served",
    "databases_served",
    "lists",
    "changes_served",
    "ids_beside",
    "grow",
    "large",
];
const LONG_PARTS: u64 = 4;
/// After so many turns it is the turn of the next ones, once with every other draw.
const LONG_IN_TURN: u64 = 2 * FUZZ_IN_TURN;

#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub full: bool,
    pub no_mounts: bool,
    /// The release is linked in the quick way.
    pub quick: bool,
    /// The release is there already.
    pub built: bool,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        for argument in arguments {
            match argument.as_str() {
                "--full" => options.full = true,
                "--no-mounts" => options.no_mounts = true,
                "--quick" => options.quick = true,
                "--built" => options.built = true,
                other => bail!("unknown option {other:?} of test"),
            }
        }
        Ok(options)
    }

    pub(crate) const fn link(&self) -> Link {
        if self.quick { Link::Quick } else { Link::Shipped }
    }
}

/// Runs everything; true if all of it passed.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    packages::install_missing(options.full);
    let turn = fresh_seed()? / SEEDS_FULL;
    println!("turn {turn}");
    let mut steps = Steps::default();
    steps.run("tidy", || tidy::run(root));
    steps.run("format", || cargo(root, ["fmt", "--all", "--check"]));
    let clippy = ["clippy", "--workspace", "--features", FEATURES, "--all-targets"];
    steps.run("clippy", || cargo(root, clippy.into_iter().chain(DENY_WARNINGS)));
    // As shipped, without the features for tests.
    let as_shipped = options.full || turn.is_multiple_of(SHIPPED_IN_TURN);
    if as_shipped {
        let shipped = ["clippy", "--package", "warren"];
        steps.run("clippy as shipped", || cargo(root, shipped.into_iter().chain(DENY_WARNINGS)));
    }
    let built = || cargo(root, unit_tests::BUILD.into_iter().chain(["--no-run"]));
    steps.run("build of the unit tests", built);
    let build: &[&str] = if as_shipped { &[BUILD] } else { &[BUILD, "--quick"] };
    let build = Task::new(RELEASE, build);
    let beside = Beside::start(root, build, computing(options.full, turn));
    steps.run("unit tests", || unit_tests::run(root));
    let is_built = steps.await_next(&beside);
    if is_built && options.no_mounts {
        println!("== end to end: left out, as asked");
    } else if is_built {
        end_to_end(root, options.full, turn, &mut steps);
    }
    steps.join(beside);
    if is_built && options.full && !options.no_mounts {
        let kills = ["test", "-p", "warren-fuse", "--test", "front_kill", "--", "--full"];
        steps.run("killed fronts", || cargo(root, kills));
    }
    Ok(steps.finish())
}

/// Runs the steps that need mounts. A short run does the end-to-end cases in one way, in turn.
fn end_to_end(root: &Path, full: bool, turn: u64, steps: &mut Steps) {
    steps.run("real fleets without power", || ace_of_real_fleets(root, full));
    let cells = CELLS_IN_TURN[(turn % CELLS_IN_TURN.len() as u64) as usize];
    let is_left_out = |at: &u64| !full && at % LONG_PARTS != turn / LONG_IN_TURN % LONG_PARTS;
    let cases = (0..).zip(LONG_CASES).filter(|(at, _)| is_left_out(at));
    let without = cases.map(|(_, case)| case.to_owned()).collect();
    let cells_of_all = (!full).then_some(cells);
    let options =
        e2e::Options { full, cells: cells_of_all, without, built: true, ..Default::default() };
    let is_plain = (turn / CELLS_IN_TURN.len() as u64).is_multiple_of(2);
    if full || is_plain {
        steps.run("end to end", || e2e::run(root, &options));
    }
    if full || !is_plain {
        let interposed = e2e::Options { interposed: true, ..options };
        steps.run("end to end, interposed", || e2e::run(root, &interposed));
    }
}

/// These tasks need only processors. A short run tests the simulator, simulates, and in turn fuzzes
/// one target or plants a part of the faults.
fn computing(full: bool, turn: u64) -> Vec<Task> {
    let seed = turn.to_string();
    let fuzz = |more: &[&str]| Task::new("fuzzing", &[&["fuzz", "--seed", &seed], more].concat());
    let plant =
        |more: &[&str]| Task::new("planted faults", &[&["mutants", "--proven"], more].concat());
    let tests = Task::new("tests of the simulator", &[unit_tests::TEST_SIMULATOR]);
    if full {
        return vec![
            tests,
            Task::new("simulation", &["sim", "--full", "--built"]),
            fuzz(&[]),
            plant(&[]),
        ];
    }
    let part = format!("{}/{MUTANT_PARTS}", turn % MUTANT_PARTS);
    let in_turn = if (turn / FUZZ_IN_TURN).is_multiple_of(2) {
        fuzz(&["--only", fuzz::turn(turn)])
    } else {
        plant(&["--part", &part])
    };
    vec![tests, Task::new("simulation", &["sim", "--built"]), in_turn]
}

/// Builds what the end-to-end tests run.
pub(crate) fn build(root: &Path, link: Link) -> Result<bool> {
    Ok(build_release(root, link)? && build_interposer(root)?)
}

/// Runs the simulator with seeds that no earlier run had. The first is printed, so that the run can
/// be repeated.
pub(crate) fn simulate(root: &Path, &Options { full, built, .. }: &Options) -> Result<bool> {
    let warren = release_binary(root);
    // An existing one may have been built without the simulator.
    if !built && !build_release(root, Link::Shipped)? {
        return Ok(false);
    }
    let first = fresh_seed()?;
    let count = if full { SEEDS_FULL } else { SEEDS };
    let (seed, seeds) = (first.to_string(), count.to_string());
    println!("warren sim --seed {seed} --seeds {seeds}");
    if !command(root, &warren, ["sim", "--seed", &seed, "--seeds", &seeds])? {
        return Ok(false);
    }
    if !cut_power(root, &warren, first, count)? {
        return Ok(false);
    }
    ace(root, &warren, &seed, full)
}

/// Cuts the power about four times a seed. In a part of the seeds cells are taken out, too.
fn cut_power(root: &Path, warren: &Path, first: u64, count: u64) -> Result<bool> {
    let with_outages = count / OUTAGE_PART;
    let parts: [(u64, u64, &[&str]); 2] =
        [(first, with_outages, &["--outage"]), (first + with_outages, count - with_outages, &[])];
    for (first, count, more) in parts {
        let (seed, seeds) = (first.to_string(), count.to_string());
        let arguments = ["sim", "--crash", "--seed", &seed, "--seeds", &seeds];
        let arguments = [&arguments, more].concat();
        println!("warren {}", arguments.join(" "));
        if !command(root, warren, arguments)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Short sequences of operations, with the power cut at every flush; and the control.
fn ace(root: &Path, warren: &Path, seed: &str, full: bool) -> Result<bool> {
    let pairs = (if full { PAIRS_FULL } else { PAIRS }).to_string();
    println!("warren ace --seed {seed} --pairs {pairs}");
    if !command(root, warren, ["ace", "--seed", seed, "--pairs", &pairs])? {
        return Ok(false);
    }
    command(root, warren, ["ace", "--seed", seed, "--pairs", "20", "--no-flush"])
}

/// The same by the processes of real fleets, which record their requests to the device.
fn ace_of_real_fleets(root: &Path, full: bool) -> Result<bool> {
    let (seed, count) =
        (fresh_seed()?.to_string(), if full { REAL_FULL } else { REAL }.to_string());
    println!("warren ace --seed {seed} --real {count}");
    command(root, &release_binary(root), ["ace", "--seed", &seed, "--real", &count])
}

/// Seeds grow by a run's worth each second, so they never meet an earlier run's.
fn fresh_seed() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(since.as_secs() * SEEDS_FULL)
}

#[derive(Default)]
struct Steps {
    failed: Vec<&'static str>,
    errors: Vec<String>,
}

impl Steps {
    /// Runs one step with a heading and its time. Returns whether it passed.
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<bool>) -> bool {
        println!("== {name}");
        let start = Instant::now();
        let passed = step();
        self.note(name, passed, start.elapsed())
    }

    /// Waits for the next task. Returns whether it passed.
    fn await_next(&mut self, tasks: &Beside) -> bool {
        tasks.next().is_some_and(|done| self.show(done))
    }

    /// Waits for the remaining tasks.
    fn join(&mut self, tasks: Beside) {
        for done in tasks.join() {
            self.show(done);
        }
    }

    fn show(&mut self, Done { name, passed, output, time }: Done) -> bool {
        println!("== {name}, meanwhile\n{}", output.trim_end());
        self.note(name, passed, time)
    }

    fn note(&mut self, name: &'static str, passed: Result<bool>, time: Duration) -> bool {
        let passed = passed.unwrap_or_else(|error| {
            let error = format!("{name}: {error:#}");
            println!("{error}");
            self.errors.push(error);
            false
        });
        let verdict = if passed { "passed" } else { "FAILED" };
        println!("== {name}: {verdict} in {:.1} s", time.as_secs_f64());
        if !passed {
            self.failed.push(name);
        }
        passed
    }

    fn finish(self) -> bool {
        if self.failed.is_empty() {
            println!("== everything passed");
        } else {
            println!("{}\n== failed: {}", self.errors.join("\n"), self.failed.join(", "));
        }
        self.failed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The files below a directory.
    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).expect("a directory").flatten();
        let below = entries
            .map(|entry| entry.path())
            .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
        below.collect()
    }

    /// Cases are named in the source, and the scripts by their files.
    #[test]
    fn every_long_case_is_a_case() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (texts, scripts) = (files(&here.join("src/e2e")), files(&here.join("cases")));
        let texts: Vec<String> =
            texts.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect();
        for name in LONG_CASES {
            let quoted = format!("\"{name}\"");
            let is_named = texts.iter().any(|text| text.contains(&quoted));
            let is_script = scripts.iter().any(|file| file.ends_with(format!("{name}.sh")));
            assert!(is_named || is_script, "no case is called {name}");
        }
    }
}
