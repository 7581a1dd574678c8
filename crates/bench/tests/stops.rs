//! Stops of processes, few of them, on a real fleet with two mounts. This test has a `main` of its
//! own because it is also the program that all processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::path::Path;
use std::process::ExitCode;

use warren_bench::stops::{Kind, Load, StopsOptions, StopsReport, run};

fn main() -> ExitCode {
    let options = |directory: &Path| StopsOptions {
        directory: directory.into(),
        cells: vec![2],
        mounts: vec![2],
        loads: vec![Load::Mount],
        times: 1,
        ..StopsOptions::default()
    };
    common::run_all(
        "stops",
        options,
        &[],
        &[
            ("every_stop_is_endured", every_stop_is_endured),
            ("a_signal_ends_it_and_nothing_is_left", a_signal_ends_it_and_nothing_is_left),
        ],
    )
}

/// Nothing here depends on the speed of the machine.
fn every_stop_is_endured(options: &StopsOptions) {
    let report = run(options).expect("a report");
    print!("{report}");
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!(report.rows.len(), options.loads.len() * options.kinds.len());
    for row in &report.rows {
        assert_eq!((row.stops, row.wrong, row.stuck), (1, 0, 0), "{row:?}");
        let is_replaced = matches!(row.kind, Kind::Cell | Kind::Front | Kind::Supervisor);
        assert_eq!(row.replaced, u32::from(is_replaced), "{row:?}");
        assert!(row.wait.is_some_and(|wait| wait.most_ms > 0.0), "{row:?}");
    }
    let json = serde_json::to_string(&report).expect("JSON");
    let back: StopsReport = serde_json::from_str(&json).expect("the same JSON");
    assert_eq!(back.rows.len(), report.rows.len());
    common::assert_left_nothing(&options.directory);
}

/// The signal comes while programs on both mounts work, and a third has files open.
fn a_signal_ends_it_and_nothing_is_left(options: &StopsOptions) {
    let kinds = vec![Kind::Client];
    let endless =
        StopsOptions { times: u32::MAX, kinds, loads: vec![Load::Mount], ..options.clone() };
    let running = std::thread::spawn(move || run(&endless));
    common::interrupt(running, ("__bench-stops-holder", 1));
    common::assert_left_nothing(&options.directory);
}
