//! The benchmark of calls by path, small, with every contender that this machine has. This test has
//! a `main` of its own because it is also the program that all processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::{Signal, getpid, kill_process};
use warren_bench::micro::{MicroOptions, MicroReport, Operation, run};
use warren_bench::{BenchError, ContenderName};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let role_ended = warren_runtime::dispatch(&arguments)
        .or_else(|| warren_fuse::dispatch(&arguments))
        .or_else(|| warren_bench::dispatch(&arguments));
    if let Some(code) = role_ended {
        return code;
    }
    let directory = std::env::temp_dir().join(format!("warren-micro-test-{}", std::process::id()));
    let options = MicroOptions {
        directory: directory.clone(),
        rounds: 2,
        calls: 8,
        busy: true,
        ..Default::default()
    };
    println!("test a_missing_directory_is_named ...");
    let refused = run(&options);
    assert!(matches!(&refused, Err(BenchError::Directory { path, .. }) if *path == directory));
    if !rustix::process::geteuid().is_root() {
        println!("\ntest result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out");
        return ExitCode::SUCCESS;
    }
    fs::create_dir(&directory).expect("a directory");
    println!("test everything_is_measured ...");
    everything_is_measured(&options);
    println!("test a_signal_ends_it_and_nothing_is_left ...");
    a_signal_ends_it_and_nothing_is_left(&options);
    fs::remove_dir(&directory).expect("the directory is empty");
    println!("\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
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
    assert_left_nothing(&options.directory);
}

/// The signal comes while programs make calls on Warren's mount.
fn a_signal_ends_it_and_nothing_is_left(options: &MicroOptions) {
    let contenders = vec![ContenderName::Fuse, ContenderName::Tmpfs];
    let endless = MicroOptions { rounds: u32::MAX - 2, contenders, ..options.clone() };
    let running = std::thread::spawn(move || run(&endless));
    // The second program of a contender is there, so both have been started.
    while processes("__bench-program").len() < 4 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert!(!running.is_finished(), "{:?}", running.join());
    }
    kill_process(getpid(), Signal::TERM).expect("signal");
    let ended = running.join().expect("join");
    assert!(matches!(ended, Err(BenchError::Interrupted)), "{ended:?}");
    assert_left_nothing(&options.directory);
}

fn assert_left_nothing(directory: &Path) {
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
