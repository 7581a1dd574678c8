//! The benchmark of many idle clients, small, on a real fleet. This test has a `main` of its own
//! because it is also the program that the fleet's processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use warren_bench::clients::{ClientsOptions, ClientsReport, run};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = warren_runtime::dispatch(&arguments) {
        return code;
    }
    let directory = std::env::temp_dir().join(format!("warren-crowd-test-{}", std::process::id()));
    fs::create_dir(&directory).expect("a directory");
    let options = ClientsOptions {
        directory: directory.clone(),
        cells: 2,
        idle: 120,
        rounds: 1,
        calls: 20,
        watch: Duration::from_millis(500),
    };
    let report = run(&options).unwrap_or_else(|error| panic!("{error}"));
    println!("test idle_clients_cost_little ... ok\n{report}");
    let levels: Vec<u32> = report.null.iter().map(|level| level.idle).collect();
    assert_eq!(levels, [0, 10, 100, 120]);
    let beside: Vec<u32> = report.admission.iter().map(|beside| beside.idle).collect();
    assert_eq!(beside, [0, 120]);
    // What does not depend on the machine's speed.
    let cost = &report.footprint;
    assert!(cost.bytes < 128.0 * 1024.0, "{} bytes a client", cost.bytes);
    assert!(cost.segment_bytes >= 3.0 * 4096.0, "{} bytes of segments", cost.segment_bytes);
    let cells = cost.processes.iter().filter(|it| it.process.starts_with("cell"));
    assert!(cells.clone().count() == 2 && cells.clone().all(|it| it.descriptors < 0.1));
    let json = serde_json::to_string(&report).expect("JSON");
    let back: ClientsReport = serde_json::from_str(&json).expect("the same JSON");
    assert_eq!(back.idle, report.idle);
    assert!(fs::read_dir(&directory).expect("a directory").next().is_none());
    fs::remove_dir(&directory).expect("the directory is empty");
    println!("\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
}
