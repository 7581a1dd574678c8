//! A mount whose first front does not serve: the mount keeper names it, ends it, and leaves nothing
//! behind.
//!
//! The front hangs before its first step, because this program plays it. This test has its own
//! `main`, because the processes of a fleet and of a mount run the same program. It needs root and
//! `/dev/fuse`. Without them it prints a note and passes.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod mounting;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use mounting::{MOUNTER, Scratch, enter_mount_namespace, front, play_role};
use warren_fuse::{MountConfig, keep_mount};

/// The front hangs, so any limit passes.
const READY_MAX: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|role| role == "front") {
        loop {
            std::thread::park();
        }
    }
    if let Some(code) = play_role(&args, keep) {
        return code;
    }
    if args.iter().any(|arg| arg == "--list") || !enter_mount_namespace() {
        return ExitCode::SUCCESS;
    }
    the_keeper_names_a_front_that_does_not_serve_and_leaves_nothing();
    ExitCode::SUCCESS
}

/// The main function of the process that mounts.
fn keep(pool: &Path, dir: &Path) -> ExitCode {
    let (admission, config) = front(pool);
    let config = MountConfig { ready_max: READY_MAX, ..config };
    let ready = rustix::io::dup(std::io::stdout()).expect("standard output");
    let Err(error) = keep_mount(admission, dir, &config, Some(ready)) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn the_keeper_names_a_front_that_does_not_serve_and_leaves_nothing() {
    let scratch = Scratch::new("warren-unready", 256 << 20);
    let dir = scratch.mount_point("mount");
    let options = warren_runtime::ServeOptions {
        cache_bytes: 16 << 20,
        ..warren_runtime::ServeOptions::new(&scratch.pool, 1)
    };
    let fleet = warren_runtime::start_fleet(&options, warren_runtime::Lifetime::Stays);
    let fleet = fleet.expect("a fleet");
    let mounter = Command::new(std::env::current_exe().expect("this program"))
        .args([MOUNTER.as_ref(), scratch.pool.as_os_str(), dir.as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .expect("a child");
    fleet.stop().expect("the fleet stops");
    let line = String::from_utf8_lossy(&mounter.stderr).into_owned();
    assert!(!mounter.status.success() && mounter.stdout.is_empty(), "{line}");
    assert!(line.contains("did not serve within 1 s and was killed"), "{line}");
    let pid = line.split("(process ").nth(1).and_then(|rest| rest.split(')').next());
    let pid = pid.expect("the front is named");
    assert!(!PathBuf::from(format!("/proc/{pid}")).exists(), "the front is there");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    assert!(!mounts.contains(&*dir.to_string_lossy()), "the mount is there");
    println!("ok: {}", line.trim());
}
