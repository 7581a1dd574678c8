//! The benchmark of the client library, small, on a real fleet. This test has a `main` of its own
//! because it is also the program that the fleet's processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::{Signal, getpid, kill_process};
use warren_bench::BenchError;
use warren_bench::client::{ClientOptions, Operation, Report, run};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = warren_runtime::dispatch(&arguments) {
        return code;
    }
    let directory = std::env::temp_dir().join(format!("warren-bench-test-{}", std::process::id()));
    fs::create_dir(&directory).expect("a directory");
    let options =
        ClientOptions { directory: directory.clone(), rounds: 2, calls: 8, ..Default::default() };
    println!("test everything_is_measured ...");
    everything_is_measured(&options);
    println!("test a_signal_ends_it_and_nothing_is_left ...");
    a_signal_ends_it_and_nothing_is_left(&options);
    fs::remove_dir(&directory).expect("the directory is empty");
    println!("\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
}

fn everything_is_measured(options: &ClientOptions) {
    let report = run(options).expect("a report");
    print!("{report}");
    assert_eq!(report.operations.len(), Operation::ALL.len());
    for measured in &report.operations {
        assert!(
            measured.figures.median_ns > 0.0
                && measured.figures.p99_ns >= measured.figures.median_ns
        );
        assert!(measured.others.iter().all(|other| other.ratio > 0.0));
    }
    let json = serde_json::to_string(&report).expect("JSON");
    let back: Report = serde_json::from_str(&json).expect("the same JSON");
    assert_eq!(back.operations.len(), report.operations.len());
    assert!(is_empty(&options.directory));
}

/// The signal comes while the fleet is being started; no batch is run.
fn a_signal_ends_it_and_nothing_is_left(options: &ClientOptions) {
    let endless = ClientOptions { rounds: u32::MAX, ..options.clone() };
    let running = std::thread::spawn(move || run(&endless));
    while is_empty(&options.directory) {
        std::thread::yield_now();
    }
    kill_process(getpid(), Signal::TERM).expect("signal");
    let ended = running.join().expect("join");
    assert!(matches!(ended, Err(BenchError::Interrupted)), "{ended:?}");
    assert!(is_empty(&options.directory));
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("a directory").next().is_none()
}
