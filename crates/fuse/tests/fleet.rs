//! Real programs on a mount of a real fleet, in a private mount namespace and under a watchdog.
//!
//! This test has a `main` of its own because it is also the program that a fleet's processes run. It
//! needs root and `/dev/fuse`: without them it says so and passes.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change};
use rustix::process::Signal;
use warren_base::Timestamp;
use warren_base::limits::BLOCK_SIZE;
use warren_device::PoolFile;
use warren_disk::format::{FormatOptions, image};
use warren_fuse::{FrontOptions, MountOptions, ServeOptions, Watchdog, keep_mount};
use warren_runtime::{Admission, ConnectOptions, Fleet, Lifetime, dispatch, start_fleet};

const POOL_BYTES: u64 = 256 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// The role of a process that does what `warren mount` does.
const MOUNTER: &str = "mounter";

/// What is run in the mount, each by `sh -eu`.
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
    if let Some(code) = dispatch(&args).or_else(|| warren_fuse::dispatch(&args)) {
        return code;
    }
    if let [role, pool, dir] = args.as_slice()
        && role == MOUNTER
    {
        return mount_until_told(Path::new(pool), Path::new(dir));
    }
    if args.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return ExitCode::SUCCESS;
    }
    // SAFETY: there is one thread, and no descriptor table is unshared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .expect("a mount namespace");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("private mounts");
    for cells in [1, 3] {
        let scratch = Scratch::new(cells);
        run_scripts(&scratch, cells);
        println!("test programs on {cells} cells ... ok");
    }
    a_mount_ends_by_signal_and_by_umount(&Scratch::new(2));
    println!("test a_mount_ends_by_signal_and_by_umount ... ok");
    ExitCode::SUCCESS
}

/// A formatted pool and a mount point, removed together.
struct Scratch {
    directory: PathBuf,
    pool: PathBuf,
    mount: PathBuf,
}

impl Scratch {
    fn new(cells: u16) -> Self {
        let name = format!("warren-fuse-fleet-{cells}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let (pool, mount) = (directory.join("pool"), directory.join("mount"));
        fs::create_dir_all(&mount).expect("scratch directory");
        let file = PoolFile::create(&pool, POOL_BYTES / BLOCK_SIZE as u64).expect("pool");
        let options = FormatOptions {
            size_bytes: POOL_BYTES,
            shards: 16,
            log_bytes: warren_disk::format::log_suggested(POOL_BYTES),
            uuid: [7; 16],
            secret: 1,
            now: Timestamp(0),
            uid: 0,
            gid: 0,
            label: String::new(),
        };
        for (block, bytes) in image(&options).expect("format") {
            file.write_blocks(block, &bytes).expect("write");
        }
        Self { directory, pool, mount }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn fleet(scratch: &Scratch, cells: u16) -> Fleet {
    let serve = warren_runtime::ServeOptions {
        cache_bytes: 64 << 20,
        ..warren_runtime::ServeOptions::new(&scratch.pool, cells)
    };
    start_fleet(&serve, Lifetime::WithStarter).expect("a fleet")
}

fn front(pool: &Path) -> (Admission, ServeOptions) {
    let connect = ConnectOptions { front: true, ..ConnectOptions::default() };
    let admission = Admission::ask(pool, &connect).expect("an admission");
    let mount = MountOptions::new("pool");
    (admission, ServeOptions { mount, front: FrontOptions::default() })
}

fn mount_until_told(pool: &Path, dir: &Path) -> ExitCode {
    let (admission, options) = front(pool);
    let ready = std::io::stdout().as_fd().try_clone_to_owned().expect("standard output");
    match keep_mount(admission, dir, &options, Some(ready)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn a_mount_ends_by_signal_and_by_umount(scratch: &Scratch) {
    let fleet = fleet(scratch, 2);
    let pid = |child: &Child| rustix::process::Pid::from_child(child);
    let ends: [&dyn Fn(&Child); 2] =
        [&|child| rustix::process::kill_process(pid(child), Signal::TERM).expect("kill"), &|_| {
            rustix::mount::unmount(&scratch.mount, UnmountFlags::empty()).expect("umount")
        }];
    for (round, end) in ends.iter().enumerate() {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([MOUNTER.as_ref(), scratch.pool.as_os_str(), scratch.mount.as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut ready = [0];
        child.stdout.take().expect("piped").read_exact(&mut ready).expect("readiness");
        let file = scratch.mount.join("kept");
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

fn run_scripts(scratch: &Scratch, cells: u16) {
    let fleet = fleet(scratch, cells);
    let (admission, options) = front(&scratch.pool);
    let connection = Arc::new(admission.open().expect("a connection"));
    let front = warren_fuse::mount(connection, &scratch.mount, &options).expect("mount");
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
