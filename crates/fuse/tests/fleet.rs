//! Real programs on a mount of a real fleet, in a private mount namespace with a watchdog.
//!
//! This test has its own `main`, because the processes of a fleet run the same program. It needs
//! root and `/dev/fuse`. Without them it prints a note and passes.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod handover;
mod mounter;
mod mounting;

use std::fs;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use mounter::{mount_until_signalled, mounter};
use mounting::{Scratch, enter_mount_namespace, front, play_role};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use warren_fuse::Watchdog;
use warren_runtime::{Fleet, Lifetime, start_fleet};

const POOL_BYTES: u64 = 256 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// Scripts that `sh -eu` runs in the mount.
const SCRIPTS: &[&str] = &[
    "mkdir -p a/b c && cp /bin/ls a/b && cmp /bin/ls a/b/ls && mv a/b c && ./c/b/ls / > /dev/null",
    "ln c/b/ls h && test $(stat -c %h h) = 2 && ln -s c/b/ls s && cmp s h && rm h && mkfifo p",
    "mkdir many && cd many && seq 2000 | xargs touch && test $(ls | wc -l) = 2000 && rm -rf ../many",
    "seq 300000 > n && test $(tail -n 1 n) = 300000 && truncate -s 5 n && test $(stat -c %s n) = 5",
    "echo a > log && for i in $(seq 100); do echo $i >> log; done && test $(wc -l < log) = 101",
    "dd if=/dev/zero of=big bs=1M count=20 status=none && test $(stat -c %b big) -ge 40960 && rm big",
    "flock f sh -c 'flock -n f true && exit 1 || exit 0' && flock -n f true",
    "touch x && chmod 640 x && chown 7:8 x && test \"$(stat -c %a:%u:%g x)\" = 640:7:8",
    "mv c d && test -x d/b/ls && rm -rf d && test ! -e d && rmdir a",
    "! command -v git || (export HOME=$PWD && git init -q r && cd r && seq 99 > f && git add f && \
     git -c user.name=n -c user.email=e commit -qm one && git fsck --strict && git status)",
    "! command -v sqlite3 || (sqlite3 d 'create table t(x); insert into t values(1),(2);' && \
     test $(sqlite3 d 'select sum(x) from t;') = 3 && sqlite3 d 'pragma journal_mode=wal;' && \
     sqlite3 d 'insert into t values(4);' && test $(sqlite3 d 'select sum(x) from t;') = 7)",
];

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = play_role(&args, mount_until_signalled) {
        return code;
    }
    if args.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    if !enter_mount_namespace() {
        return ExitCode::SUCCESS;
    }
    for cells in [1, 3] {
        run_scripts(cells);
        println!("test programs on {cells} cells ... ok");
    }
    for cells in [1, 3] {
        a_client_has_files_open_beside_a_mount(cells);
        println!("test a_client_has_files_open_beside_a_mount on {cells} cells ... ok");
    }
    a_mount_ends_by_signal_and_by_umount();
    println!("test a_mount_ends_by_signal_and_by_umount ... ok");
    ExitCode::SUCCESS
}

fn fleet(scratch: &Scratch, cells: u16) -> Fleet {
    let serve = warren_runtime::ServeOptions {
        cache_bytes: 64 << 20,
        ..warren_runtime::ServeOptions::new(&scratch.pool, cells)
    };
    start_fleet(&serve, Lifetime::WithStarter).expect("a fleet")
}

fn scratch(cells: u16) -> Scratch {
    Scratch::new(&format!("warren-fuse-fleet-{cells}"), POOL_BYTES)
}

fn a_mount_ends_by_signal_and_by_umount() {
    let scratch = scratch(2);
    let mount = scratch.mount_point("mount");
    let fleet = fleet(&scratch, 2);
    let pid = |child: &Child| rustix::process::Pid::from_child(child);
    let ends: [&dyn Fn(&Child); 2] =
        [&|child| rustix::process::kill_process(pid(child), Signal::TERM).expect("kill"), &|_| {
            rustix::mount::unmount(&mount, UnmountFlags::empty()).expect("umount")
        }];
    for (round, end) in ends.iter().enumerate() {
        let mut child = mounter(&scratch.pool, &mount);
        let file = mount.join("kept");
        if round == 0 {
            fs::write(&file, b"kept").expect("write");
        }
        assert_eq!(fs::read(&file).expect("read"), b"kept");
        end(&child);
        assert!(child.wait().expect("wait").success(), "round {round}");
        assert!(!file.exists(), "it is unmounted");
    }
    fleet.stop().expect("stop");
}

fn a_client_has_files_open_beside_a_mount(cells: u16) {
    let scratch = scratch(cells);
    let mount = scratch.mount_point("mount");
    let fleet = fleet(&scratch, cells);
    let mut front = mounter(&scratch.pool, &mount);
    let watchdog = Watchdog::abort_after(&mount, LIMIT).expect("watchdog");
    handover::run(&scratch.pool, &mount);
    drop(watchdog);
    rustix::mount::unmount(&mount, UnmountFlags::empty()).expect("umount");
    assert!(front.wait().expect("wait").success());
    fleet.stop().expect("stop");
}

fn run_scripts(cells: u16) {
    let scratch = scratch(cells);
    let fleet = fleet(&scratch, cells);
    let (admission, config) = front(&scratch.pool);
    let connection = Arc::new(admission.open().expect("a connection"));
    let front =
        warren_fuse::mount(connection, &scratch.mount_point("mount"), &config).expect("mount");
    let watchdog = Watchdog::abort_after(front.dir(), LIMIT).expect("watchdog");
    let mut failed = Vec::new();
    for script in SCRIPTS {
        let output = Command::new("sh").args(["-euc", script]).current_dir(front.dir()).output();
        let output = output.expect("sh");
        if !output.status.success() {
            failed.push(format!("{script}\n{}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    drop(watchdog);
    front.unmount().expect("unmount");
    fleet.stop().expect("stop");
    assert!(failed.is_empty(), "on {cells} cells:\n{}", failed.join("\n"));
}
