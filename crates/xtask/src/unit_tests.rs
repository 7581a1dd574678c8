//! The programs of unit tests, two at a time.
//!
//! A program that tests fleets or mounts waits for most of its time, and so leaves a processor to
//! another one. The output of a program is shown when it has ended.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cargo::{TestProgram, cargo, command, test_programs};

/// Features that no release has and tests need: the simulator, and faults that tests plant in live
/// cells.
pub(crate) const FEATURES: &str = "warren/sim,warren/plants";
/// The arguments with which all programs are built. For one package cargo would choose other
/// features, and build all that it needs again.
pub(crate) const BUILD: [&str; 4] = ["test", "--workspace", "--features", FEATURES];
/// The task that runs the programs that only compute, and these.
pub(crate) const TEST_SIMULATOR: &str = "test-simulator";
const SIMULATOR_TESTS: [&str; 3] = ["warren_sim", "crash", "seeds"];
/// The programs that take longest, in the order in which they are begun.
const LONGEST: [&str; 6] =
    ["fleet", "programs", "apps", "space", "warren_supervisor", "two_mounts"];
const AT_A_TIME: usize = 2;

/// Tests the simulator: seeds that always pass, and planted faults that it finds.
pub(crate) fn test_simulator(root: &Path) -> Result<bool> {
    let built = test_programs(root, BUILD)?;
    let mut all_passed = true;
    for name in SIMULATOR_TESTS {
        let program = built.iter().find(|program| program.name == name);
        let program = program.with_context(|| format!("no test program {name}"))?;
        println!("{}", program.path.display());
        all_passed &= command(&program.package, &program.path, [""; 0])?;
    }
    Ok(all_passed)
}

/// Runs all other programs, and the tests in documentation.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut programs = test_programs(root, BUILD)?;
    programs.retain(|program| !SIMULATOR_TESTS.contains(&program.name.as_str()));
    let place = |program: &TestProgram| LONGEST.iter().position(|name| *name == program.name);
    programs.sort_by_key(|program| place(program).unwrap_or(LONGEST.len()));
    let queue = Mutex::new(VecDeque::from(programs));
    let libraries = libraries_of_the_compiler()?;
    let failed: Vec<String> = std::thread::scope(|scope| {
        let lane = || run_queue(&queue, &libraries);
        let lanes: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(lane)).collect();
        let joined = lanes.into_iter().map(|lane| lane.join());
        let results = joined.map(|lane| lane.unwrap_or_else(|panic| resume_unwind(panic)));
        results.collect::<Result<Vec<_>>>()
    })?
    .concat();
    let documented = cargo(root, BUILD.into_iter().chain(["--doc"]))?;
    ensure!(failed.is_empty(), "{}", failed.join(", "));
    Ok(documented)
}

/// The directory of the libraries that tests of procedural macros load, as cargo sets it.
fn libraries_of_the_compiler() -> Result<PathBuf> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).args(["--print", "target-libdir"]).output();
    let output = output.context("cannot run rustc")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

/// Runs programs of the queue until it is empty. Returns those that failed.
fn run_queue(queue: &Mutex<VecDeque<TestProgram>>, libraries: &Path) -> Result<Vec<String>> {
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let mut failed = Vec::new();
    while let Some(TestProgram { name, path, package }) = next() {
        let start = Instant::now();
        let mut program = Command::new(&path);
        program.current_dir(&package).stdin(Stdio::null()).env("LD_LIBRARY_PATH", libraries);
        let output = program.output().with_context(|| format!("cannot run {}", path.display()))?;
        let title = format!("{name} of {}", package.file_name().unwrap_or_default().display());
        let [said, errors] =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        let seconds = start.elapsed().as_secs_f64();
        println!("-- {title}: {} after {seconds:.1} s\n{said}{errors}", output.status);
        if !output.status.success() {
            failed.push(title);
        }
    }
    Ok(failed)
}
