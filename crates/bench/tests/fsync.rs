//! The benchmark of append and fsync, small, on a real fleet, on every medium that this user may
//! use. This test has a `main` of its own because it is also the program that the fleet's processes
//! run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use warren_bench::fsync::{FsyncOptions, FsyncReport, run};
use warren_bench::{BenchError, Medium};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = warren_runtime::dispatch(&arguments) {
        return code;
    }
    let directory = std::env::temp_dir().join(format!("warren-fsync-test-{}", std::process::id()));
    fs::create_dir(&directory).expect("a directory");
    let (mut passed, mut ignored) = (0, 0);
    for on in [Medium::File, Medium::Loop, Medium::Zram] {
        print!("test everything_is_measured_on_{on:?} ... ");
        match everything_is_measured(&directory, on) {
            None => passed += 1,
            Some(why) => {
                println!("ignored, {why}");
                ignored += 1;
            }
        }
    }
    fs::remove_dir(&directory).expect("the directory is empty");
    println!(
        "\ntest result: ok. {passed} passed; 0 failed; {ignored} ignored; 0 measured; 0 filtered out"
    );
    ExitCode::SUCCESS
}

/// Says why not, if it cannot be.
fn everything_is_measured(directory: &Path, on: Medium) -> Option<String> {
    let before = devices(directory);
    let directory = directory.to_owned();
    let options =
        FsyncOptions { directory: directory.clone(), on, rounds: 2, calls: 8, alone: false };
    let report = match run(&options) {
        Ok(report) => report,
        Err(BenchError::Unavailable(why)) if on != Medium::File => return Some(why),
        Err(error) => panic!("{error}"),
    };
    println!("ok\n{report}");
    let contenders: Vec<usize> = report.widths.iter().map(|width| width.others.len()).collect();
    assert_eq!(contenders, [2, 1], "the bare device has one writer");
    for width in &report.widths {
        let device = width.device;
        assert!(device.writes > 0.0 && device.writes <= 1.1, "{} writes", device.writes);
        assert!(width.others.iter().all(|other| other.ratio > 0.0));
    }
    let json = serde_json::to_string(&report).expect("JSON");
    let back: FsyncReport = serde_json::from_str(&json).expect("the same JSON");
    assert_eq!(back.on, on);
    assert!(fs::read_dir(&directory).expect("a directory").next().is_none());
    assert_eq!(devices(&directory), before, "a device is left");
    None
}

/// Loop devices over files in the directory, and all zram devices.
fn devices(directory: &Path) -> BTreeSet<String> {
    let here = directory.as_os_str().as_encoded_bytes();
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let ours = blocks.filter(|block| {
        let backing = fs::read(block.path().join("loop/backing_file")).unwrap_or_default();
        backing.starts_with(here) || block.file_name().as_encoded_bytes().starts_with(b"zram")
    });
    ours.map(|block| block.file_name().to_string_lossy().into_owned()).collect()
}
