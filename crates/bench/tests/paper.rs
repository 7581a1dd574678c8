//! The experiments of papers, small, on real fleets. This test has a `main` of its own because it
//! is also the program that the fleets' processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::path::Path;
use std::process::ExitCode;

use warren_bench::paper::hive::{Experiment, FaultClass, HiveOptions, HiveReport, run};

fn main() -> ExitCode {
    let options = |directory: &Path| HiveOptions {
        directory: directory.into(),
        experiments: vec![Experiment::Requests, Experiment::Latency, Experiment::Faults],
        rounds: 1,
        faults: Some(1),
        ..HiveOptions::default()
    };
    common::run_all(
        "paper",
        options,
        &[],
        &[
            ("faults_of_hive_are_contained", faults_of_hive_are_contained),
            ("a_signal_ends_it_and_nothing_is_left", a_signal_ends_it_and_nothing_is_left),
        ],
    )
}

/// Checks the results that do not depend on the speed of the machine. A corrupted pointer may have
/// any effect on the fleet of which it is.
fn faults_of_hive_are_contained(options: &HiveOptions) {
    let report = run(options).expect("a report");
    print!("{report}");
    assert!(report.pmake.is_none() && report.writable.is_none());
    let requests = report.requests.expect("requests");
    assert!(requests.all().iter().all(|spread| spread.median_ns > 0.0), "{requests:?}");
    let latency = report.latency.as_ref().expect("latency");
    assert_eq!(latency.crossings.len(), 5);
    assert!(latency.crossings.iter().all(|it| it.ratio > 0.0), "{latency:?}");
    let faults = report.faults.as_ref().expect("faults");
    assert_eq!(faults.classes.len(), FaultClass::ALL.len());
    for class in faults.classes.iter().filter(|it| it.class != FaultClass::Pointer) {
        assert_eq!((class.injected, class.contained), (1, 1), "{class:?}");
    }
    let killed = &faults.classes[0];
    assert!(killed.noticed == 1 && killed.recovery.is_some(), "{killed:?}");
    // Times in JSON may differ in the last digit.
    let json = serde_json::to_string(&report).expect("JSON");
    let back: HiveReport = serde_json::from_str(&json).expect("the same JSON");
    let counts = |report: HiveReport| {
        let classes = report.faults.into_iter().flat_map(|faults| faults.classes);
        classes.map(|it| (it.class, it.injected, it.contained)).collect::<Vec<_>>()
    };
    assert_eq!(counts(back), counts(report));
    common::assert_left_nothing(&options.directory);
}

fn a_signal_ends_it_and_nothing_is_left(options: &HiveOptions) {
    let endless = HiveOptions {
        experiments: vec![Experiment::Faults],
        faults: Some(u32::MAX),
        ..options.clone()
    };
    let running = std::thread::spawn(move || run(&endless));
    common::interrupt(running, ("__bench-mount", 1));
    common::assert_left_nothing(&options.directory);
}
