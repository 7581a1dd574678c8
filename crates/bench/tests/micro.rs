//! The benchmark of calls by path, small, with every contender that this machine has. This test has
//! a `main` of its own because it is also the program that all processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::path::Path;
use std::process::ExitCode;

use warren_bench::micro::{MicroOptions, MicroReport, Operation, run};
use warren_bench::{BenchError, ContenderName};

fn main() -> ExitCode {
    let options = |directory: &Path| MicroOptions {
        directory: directory.into(),
        rounds: 2,
        calls: 8,
        busy: true,
        ..Default::default()
    };
    common::run_all(
        "micro",
        options,
        &[("a_missing_directory_is_named", a_missing_directory_is_named)],
        &[
            ("everything_is_measured", everything_is_measured),
            ("a_signal_ends_it_and_nothing_is_left", a_signal_ends_it_and_nothing_is_left),
        ],
    )
}

fn a_missing_directory_is_named(options: &MicroOptions) {
    let refused = run(options);
    let is_named = |path: &Path| path == options.directory;
    assert!(matches!(refused, Err(BenchError::Directory { path, .. }) if is_named(&path)));
}

fn everything_is_measured(options: &MicroOptions) {
    let report = run(options).expect("a report");
    print!("{report}");
    for table in [&report.idle, report.busy.as_ref().expect("a second table")] {
        let operations: Vec<Operation> = table.operations.iter().map(|it| it.operation).collect();
        assert_eq!(operations, Operation::ALL);
        for measured in &table.operations {
            let contenders = measured.contenders.len();
            assert_eq!(contenders + report.left_out.len(), ContenderName::ALL.len());
            for speed in &measured.contenders {
                let spread = speed.spread;
                assert!(0.0 < spread.p25_ns && spread.p25_ns <= spread.median_ns);
                assert!(spread.median_ns <= spread.p75_ns);
            }
        }
        assert_eq!(table.means.len(), table.operations[0].contenders.len());
        let tmpfs = table.means.iter().find(|mean| mean.name == ContenderName::Tmpfs);
        assert!(tmpfs.is_some_and(|mean| (mean.ratio - 1.0).abs() < 1e-9));
    }
    let traffic = |operation: Operation| {
        let counted = report.traffic.iter().find(|it| it.operation == operation);
        counted.expect("Warren's processes are known").per_call.requests
    };
    assert_eq!(report.traffic.len(), Operation::ALL.len());
    assert!(traffic(Operation::Fstat) < 0.5, "the kernel has the attributes");
    assert!(traffic(Operation::Create) >= 1.0);
    assert!(traffic(Operation::CreateShared) >= 1.0);
    let json = serde_json::to_string(&report).expect("JSON");
    let back: MicroReport = serde_json::from_str(&json).expect("the same JSON");
    assert_eq!(back.idle.operations.len(), Operation::ALL.len());
    common::assert_left_nothing(&options.directory);
}

/// The signal comes while programs make calls on Warren's mount.
fn a_signal_ends_it_and_nothing_is_left(options: &MicroOptions) {
    let contenders = vec![ContenderName::Fuse, ContenderName::Tmpfs];
    let endless = MicroOptions { rounds: u32::MAX - 2, contenders, ..options.clone() };
    let running = std::thread::spawn(move || run(&endless));
    // The second program of a contender is there, so both have been started.
    common::interrupt(running, ("__bench-program", 4));
    common::assert_left_nothing(&options.directory);
}
