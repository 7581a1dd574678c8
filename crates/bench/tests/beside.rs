//! The benchmark of users beside each other, small, on a real fleet. This test has a `main` of its
//! own because it is also the program that the fleet's processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use warren_bench::BenchError;
use warren_bench::beside::{BesideOptions, BesideReport, Operation, User, run};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let role = warren_runtime::dispatch(&arguments)
        .or_else(|| warren_fuse::dispatch(&arguments))
        .or_else(|| warren_bench::dispatch(&arguments));
    if let Some(code) = role {
        return code;
    }
    let directory = std::env::temp_dir().join(format!("warren-beside-test-{}", std::process::id()));
    fs::create_dir(&directory).expect("a directory");
    let period = Duration::from_millis(1);
    let options =
        BesideOptions { directory: directory.clone(), rounds: 1, period, ..Default::default() };
    match run(&options) {
        Ok(report) => {
            println!("test users_are_measured_beside_each_other ... ok\n{report}");
            check(&report);
        }
        Err(BenchError::Unavailable(why)) => println!("left out: {why}"),
        Err(error) => panic!("{error}"),
    }
    assert!(fs::read_dir(&directory).expect("a directory").next().is_none());
    fs::remove_dir(&directory).expect("the directory is empty");
    println!("\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
}

fn check(report: &BesideReport) {
    let victims = Operation::OF_VICTIMS.len() * User::ALL.len();
    assert_eq!(report.pairs.len(), Operation::ATTACKS.len() * victims);
    for pair in &report.pairs {
        assert!(pair.alone.mean_ns > 0.0 && pair.beside.p99_ns > 0.0, "{pair:?}");
    }
    let json = serde_json::to_string(report).expect("JSON");
    let back: BesideReport = serde_json::from_str(&json).expect("the same JSON");
    assert_eq!(back.pairs.len(), report.pairs.len());
}
