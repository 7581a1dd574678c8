//! The benchmark of many programs at once, small. This test has a `main` of its own because it is
//! also the program that all processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::path::Path;
use std::process::ExitCode;

use warren_bench::ContenderName;
use warren_bench::micro::Operation;
use warren_bench::scale::{ScaleOptions, ScaleReport, run};

fn main() -> ExitCode {
    let options = |directory: &Path| ScaleOptions {
        directory: directory.into(),
        rounds: 2,
        calls: 8,
        operations: vec![Operation::Open, Operation::CreateShared],
        contenders: vec![ContenderName::Fuse, ContenderName::Tmpfs],
        programs: vec![1, 3],
        cells: vec![1, 2],
    };
    common::run_all(
        "scale",
        options,
        &[],
        &[
            ("every_subject_has_every_point", every_subject_has_every_point),
            ("a_signal_ends_it_and_nothing_is_left", a_signal_ends_it_and_nothing_is_left),
        ],
    )
}

fn every_subject_has_every_point(options: &ScaleOptions) {
    let report = run(options).expect("a report");
    let text = report.to_string();
    print!("{text}");
    for name in ["fuse, 1 cell ", "fuse, 2 cells ", "tmpfs "] {
        let rows = text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(rows, options.operations.len(), "{name}");
    }
    for scaled in &report.operations {
        assert_eq!(scaled.subjects.len(), 3, "Warren in two sizes, and tmpfs");
        for curve in &scaled.subjects {
            assert_eq!(curve.points.len(), options.programs.len());
            assert!(curve.points.iter().all(|point| point.spread.median_ns > 0.0));
            let is_reference = curve.name == ContenderName::Tmpfs;
            let is_one = |ratio: Option<f64>| ratio.is_some_and(|it| (it - 1.0).abs() < 1e-9);
            assert!(curve.points.iter().all(|point| !is_reference || is_one(point.ratio)));
        }
    }
    let json = serde_json::to_string(&report).expect("JSON");
    let back: ScaleReport = serde_json::from_str(&json).expect("the same JSON");
    assert_eq!(back.programs, options.programs);
    common::assert_left_nothing(&options.directory);
}

/// The signal comes while three programs on each of three subjects make calls.
fn a_signal_ends_it_and_nothing_is_left(options: &ScaleOptions) {
    let endless = ScaleOptions { rounds: u32::MAX - 2, ..options.clone() };
    let running = std::thread::spawn(move || run(&endless));
    common::interrupt(running, ("__bench-program", 9));
    common::assert_left_nothing(&options.directory);
}
