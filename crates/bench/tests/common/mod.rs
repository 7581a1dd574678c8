//! The common part of tests of benchmarks that run in several processes: each has a `main`, because
//! it is also the program that all these processes run.

use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use warren_bench::BenchError;

/// A test by its name.
pub(crate) type Test<O> = (&'static str, fn(&O));

/// The main function of the program `name`: the role that the process was started in, or tests.
/// The first ones need neither root nor the directory, which is made for the others and is empty
/// again after them.
pub(crate) fn run_all<O>(
    name: &str,
    options: impl FnOnce(&Path) -> O,
    early: &[Test<O>],
    tests: &[Test<O>],
) -> ExitCode {
    if let Some(code) = role_ended() {
        return code;
    }
    let directory = format!("warren-{name}-test-{}", std::process::id());
    let directory = std::env::temp_dir().join(directory);
    let options = options(&directory);
    let run = |(name, test): &Test<O>| {
        println!("test {name} ...");
        test(&options);
    };
    early.iter().for_each(run);
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        fs::create_dir(&directory).expect("a directory");
        tests.iter().for_each(run);
        fs::remove_dir(&directory).expect("the directory is empty");
    }
    let (passed, ignored) = if is_root { (tests.len(), 0) } else { (0, tests.len()) };
    println!(
        "\ntest result: ok. {} passed; 0 failed; {ignored} ignored; 0 measured; 0 filtered out",
        early.len() + passed
    );
    ExitCode::SUCCESS
}

/// The end of this process, if it was started in a role.
fn role_ended() -> Option<ExitCode> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    warren_runtime::dispatch(&arguments)
        .or_else(|| warren_fuse::dispatch(&arguments))
        .or_else(|| warren_bench::dispatch(&arguments))
}

/// Ends a benchmark by a signal once so many processes of a role run, which it says itself.
pub(crate) fn interrupt<T: Debug>(
    running: JoinHandle<Result<T, BenchError>>,
    (role, count): (&str, usize),
) {
    while processes(role).len() < count {
        // No one tells when a process of another process's child has begun.
        std::thread::sleep(Duration::from_millis(1));
        assert!(!running.is_finished(), "{:?}", running.join());
    }
    kill_process(getpid(), Signal::TERM).expect("signal");
    let ended = running.join().expect("join");
    assert!(matches!(ended, Err(BenchError::Interrupted)), "{ended:?}");
}

/// No file, loop device or process of a benchmark in this directory is left.
pub(crate) fn assert_left_nothing(directory: &Path) {
    let files: Vec<_> = fs::read_dir(directory).expect("a directory").collect();
    assert!(files.is_empty(), "{files:?}");
    let here = directory.as_os_str().as_encoded_bytes();
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices: Vec<_> = blocks
        .filter(|block| {
            let backing = fs::read(block.path().join("loop/backing_file")).unwrap_or_default();
            backing.starts_with(here)
        })
        .collect();
    assert!(devices.is_empty(), "{devices:?}");
    let left = processes("__bench-");
    assert!(left.is_empty(), "{left:?}");
}

/// Children of this process whose role begins so.
fn processes(role: &str) -> Vec<String> {
    let own = format!("PPid:\t{}\n", std::process::id());
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let lines = entries.filter_map(|entry| {
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        (status.contains(&own) && line.contains(role)).then_some(line)
    });
    lines.collect()
}
