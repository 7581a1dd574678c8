//! The benchmark of space, small. This test has a `main` of its own because it is also the program
//! that all processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use warren_bench::ContenderName;
use warren_bench::space::{BYTES_MIN, Experiment, SpaceOptions, SpaceReport, run};

fn main() -> ExitCode {
    let options = |directory: &Path| SpaceOptions {
        directory: directory.into(),
        sizes: vec![BYTES_MIN],
        cells: vec![2],
        churn: Duration::ZERO,
    };
    common::run_all(
        "space",
        options,
        &[],
        &[
            ("what_df_shows_can_be_written", what_df_shows_can_be_written),
            ("a_signal_ends_it_and_nothing_is_left", a_signal_ends_it_and_nothing_is_left),
        ],
    )
}

/// To within a hundredth and 4 MiB for each cell, also if files are small, whose inodes and names
/// take space too: a hundredth and a half of it.
fn what_df_shows_can_be_written(options: &SpaceOptions) {
    let report = run(options).expect("a report");
    print!("{report}");
    let warrens = report.filled.iter().filter(|it| it.subject.name == ContenderName::Fuse);
    assert_eq!(warrens.clone().count(), 4, "one for each experiment");
    for filled in warrens {
        let cells = u64::from(filled.subject.cells.expect("a fleet"));
        let least = filled.shown * 975 / 1000 - cells * (4 << 20);
        assert!(filled.written >= least, "{filled:?}");
        assert!(filled.left <= filled.shown / 100 + cells * (4 << 20), "{filled:?}");
    }
    assert!(report.filled.iter().any(|it| it.experiment == Experiment::AfterPunching));
    let json = serde_json::to_string(&report).expect("JSON");
    assert_eq!(serde_json::from_str::<SpaceReport>(&json).expect("the same JSON"), report);
    common::assert_left_nothing(&options.directory);
}

fn a_signal_ends_it_and_nothing_is_left(options: &SpaceOptions) {
    let endless = SpaceOptions { churn: Duration::MAX, ..options.clone() };
    let running = std::thread::spawn(move || run(&endless));
    common::interrupt(running, ("__bench-mount", 1));
    common::assert_left_nothing(&options.directory);
}
