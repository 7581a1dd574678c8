//! Build, test and tidy tasks: `cargo xtask <task>`.
//!
//! ```text
//! test (with beside)      the one test command: it runs all that follows
//! tidy                    rules that no compiler checks
//! e2e                     real programs on real mounts; chaos is one of its cases
//! hostile, killed         clients and programs that end-to-end cases run beside others
//! mutants, fuzz           faults planted in a copy of the source; the fuzz targets
//! dist                    what a user installs
//! cargo, packages         cargo and its outputs; programs that a machine must have
//! ```
//!
//! Nothing here is shipped, and nothing shipped depends on it. A task prints one line for each
//! step, and ends with a status other than zero if any step failed.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "output that is not read may end a task"
)]

mod beside;
mod cargo;
mod dist;
mod e2e;
mod fuzz;
mod hostile;
mod killed;
mod mutants;
mod packages;
mod test;
mod tidy;
mod unit_tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask TASK [OPTION...]

  test [--full] [--no-mounts]     everything: tidy, format, clippy, unit tests, simulation, end to end
  tidy [--report]                 the rules of the house that no compiler checks; what is
                                  beyond those of the structure, by crate
  e2e [--full] [--interposed] [--cells N] [--only NAME,...] [--without NAME,...] [--seed N] [--keep]
                                  real programs on a real mount (root and FUSE needed)
  chaos [--minutes N] [--seed N] [--cells N]
                                  faults of all kinds beside programs that check every answer
  sim [--full] [--built]          the simulator with fresh seeds
  unit-tests                      all programs of unit tests but the simulator's, two at a time
  test-simulator                  the simulator with seeds that always pass, and with planted faults
  fuzz [--only NAME] [--seconds N] [--seed N]
                                  the fuzz targets, a minute each
  mutants [--only NAME] [--part K/N] [--proven] [--print]
                                  faults planted in a copy of the source: do the tests find them?
  dist                            what a user installs, as a .deb and a tarball, in target/dist
  build [--quick]                 what the end-to-end tests run: the release and the library

  --full        the long version: more seeds, bigger trees, 1, 2, 3 and 8 cells
  --proven      only faults that the tests are known to find
  --quick       optimise each crate alone, which takes half the time
  --built       run what was built before, and build nothing
  --no-mounts   leave out what needs root and FUSE
  --keep        keep the working directory of a failed end-to-end run";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the task. Returns false if it ran and found something wrong.
fn dispatch(arguments: &[String]) -> Result<bool> {
    let Some((task, options)) = arguments.split_first() else { bail!("{USAGE}") };
    let root = workspace_root()?;
    match task.as_str() {
        "test" => test::run(&root, &test::Options::parse(options)?),
        "tidy" if options == ["--report"] => tidy::report(&root),
        "tidy" => tidy::run(&root),
        test::BUILD => test::build(&root, test::Options::parse(options)?.link()),
        "unit-tests" => unit_tests::run(&root),
        unit_tests::TEST_SIMULATOR => unit_tests::test_simulator(&root),
        "dist" => dist::run(&root),
        "sim" => test::simulate(&root, &test::Options::parse(options)?),
        "fuzz" => fuzz::run(&root, &fuzz::Options::parse(options)?),
        "mutants" => mutants::run(&root, &mutants::Options::parse(options)?),
        "chaos" => e2e::run(&root, &e2e::Options::of_chaos(options)?),
        "e2e" => e2e::run(&root, &e2e::Options::parse(options)?),
        e2e::INSIDE => e2e::run_inside(&root, &e2e::Options::parse(options)?),
        killed::TASK => killed::run(options),
        hostile::TASK => hostile::run(options),
        hostile::load::TASK => hostile::load::run(options),
        "--help" | "-h" | "help" => {
            println!("{USAGE}");
            Ok(true)
        }
        other => bail!("unknown task {other:?}\n{USAGE}"),
    }
}

/// The directory of the workspace's `Cargo.toml`: two above this crate's.
fn workspace_root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).context("xtask is not inside a workspace")?;
    Ok(root.to_path_buf())
}
