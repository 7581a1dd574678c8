//! The benchmark of whole programs: each workload on tmpfs, where it is quickest, and few of them
//! on Warren. This test has a `main` of its own because it is also the program that all processes
//! run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::path::Path;
use std::process::ExitCode;

use warren_bench::apps::{AppsOptions, AppsReport, Workload, run};
use warren_bench::{BenchError, ContenderName};

fn main() -> ExitCode {
    let options = |directory: &Path| AppsOptions {
        directory: directory.into(),
        rounds: 1,
        ..Default::default()
    };
    common::run_all(
        "apps",
        options,
        &[("a_missing_directory_is_named", a_missing_directory_is_named)],
        &[
            ("every_workload_has_its_result", every_workload_has_its_result),
            ("warren_is_compared", warren_is_compared),
            ("a_signal_ends_it_and_nothing_is_left", a_signal_ends_it_and_nothing_is_left),
        ],
    )
}

fn a_missing_directory_is_named(options: &AppsOptions) {
    let refused = run(options);
    let is_named = |path: &Path| path == options.directory;
    assert!(matches!(refused, Err(BenchError::Directory { path, .. }) if is_named(&path)));
}

fn every_workload_has_its_result(options: &AppsOptions) {
    let contenders = vec![ContenderName::Tmpfs];
    let report = run(&AppsOptions { contenders, ..options.clone() }).expect("a report");
    print!("{report}");
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!(report.workloads.len() + report.left_out.len(), Workload::ALL.len());
    for measured in &report.workloads {
        let times = measured.times[0].as_ref().expect("a time");
        assert!(times.spread.median_ns > 0.0 && times.rounds_ns.len() == 1);
        assert_eq!(times.ratios.to_tmpfs, (!measured.syncs).then_some(1.0));
        assert_eq!(times.ratios.to_ext4, None);
    }
    common::assert_left_nothing(&options.directory);
}

fn warren_is_compared(options: &AppsOptions) {
    let options = AppsOptions {
        workloads: vec![Workload::ShellLoop, Workload::Varmail],
        contenders: vec![ContenderName::Fuse, ContenderName::Ext4],
        cells: 2,
        ..options.clone()
    };
    let report = run(&options).expect("a report");
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    let json = serde_json::to_string(&report).expect("JSON");
    let back: AppsReport = serde_json::from_str(&json).expect("the same JSON");
    assert_eq!(back.workloads.len(), options.workloads.len());
    if report.left_out.is_empty() {
        assert!(report.means[0].ratios.to_ext4.is_some());
        assert!(report.html().contains("<h2>Times the time of ext4</h2>"));
    }
    common::assert_left_nothing(&options.directory);
}

/// The signal comes while a program makes calls on Warren's mount.
fn a_signal_ends_it_and_nothing_is_left(options: &AppsOptions) {
    let endless = AppsOptions {
        rounds: u32::MAX - 1,
        workloads: vec![Workload::Webserver],
        contenders: vec![ContenderName::Fuse],
        ..options.clone()
    };
    let running = std::thread::spawn(move || run(&endless));
    common::interrupt(running, ("__bench-mix\0webserver\0run", 1));
    common::assert_left_nothing(&options.directory);
}
