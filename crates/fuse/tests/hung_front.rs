//! Fronts that hang beside living processes: a thread in a loop, one that sleeps in its work for
//! ever, and a request that ends every front that serves it.
//!
//! This program defines `readlink`, which a front calls when a program that is not the owner of a
//! file changes its mode by a capability, and hangs in it as often as a test wants. The mount
//! keeper must find that, and the next front must do the request again. This test has its own
//! `main`, because the processes of a fleet and of a mount run the same program. It needs root and
//! `/dev/fuse`. Without them it prints a note and passes.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod mounting;

use std::ffi::{CStr, c_char};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use mounting::{MOUNTER, Scratch, enter_mount_namespace, front, play_role};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use warren_fuse::{MountConfig, Watchdog, keep_mount};
use warren_log::Target;
use warren_runtime::{Lifetime, ServeOptions, start_fleet};

/// The connection is aborted after this time, so that nothing waits for ever.
const LIMIT: Duration = Duration::from_secs(300);

/// A front does one of these in `readlink`.
const FAULTS: [(&str, fn()); 3] = [
    ("loops", || {
        loop {
            std::hint::spin_loop();
        }
    }),
    ("sleeps", || {
        loop {
            std::thread::park();
        }
    }),
    ("aborts", || std::process::abort()),
];

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = play_role(&args, keep) {
        return code;
    }
    if args.iter().any(|arg| arg == "--list") || !enter_mount_namespace() {
        return ExitCode::SUCCESS;
    }
    let mut stage = Stage::start();
    stage.a_front_that_hangs_is_replaced_and_its_request_is_done("loops", "computed");
    stage.a_front_that_hangs_is_replaced_and_its_request_is_done("sleeps", "slept");
    stage.a_request_that_ends_three_fronts_fails();
    stage.end();
    ExitCode::SUCCESS
}

/// The main function of the process that mounts.
fn keep(pool: &Path, dir: &Path) -> ExitCode {
    set_parent_process_death_signal(Some(Signal::TERM)).expect("prctl");
    let (admission, config) = front(pool);
    let config = MountConfig { log: Target::File(pool.with_file_name("log")), ..config };
    let ready = rustix::io::dup(io::stdout()).expect("standard output");
    let kept = keep_mount(admission, dir, &config, Some(ready));
    kept.map_or_else(|error| panic!("{error}"), |()| ExitCode::SUCCESS)
}

/// A fleet, a mount, and a program beside those whose requests hang.
struct Stage {
    scratch: Scratch,
    dir: PathBuf,
    fleet: warren_runtime::Fleet,
    mounter: Child,
    watchdog: Watchdog,
    changes: u32,
}

impl Stage {
    fn start() -> Self {
        let scratch = Scratch::new("warren-hung-front", 256 << 20);
        let dir = scratch.mount_point("mount");
        let options = ServeOptions { cache_bytes: 16 << 20, ..ServeOptions::new(&scratch.pool, 2) };
        let fleet = start_fleet(&options, Lifetime::Stays).expect("a fleet");
        let mut mounter = Command::new(std::env::current_exe().expect("this program"))
            .args([MOUNTER.as_ref(), scratch.pool.as_os_str(), dir.as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let ready = mounter.stdout.as_mut().expect("piped").read_exact(&mut [0]);
        ready.expect("readiness");
        let watchdog = Watchdog::abort_after(&dir, LIMIT).expect("a watchdog");
        for name in ["file", "other"] {
            fs::write(dir.join(name), name).expect("a file");
        }
        Self { scratch, dir, fleet, mounter, watchdog, changes: 0 }
    }

    /// Has the next fronts do this, each once.
    fn plan(&self, fault: &str, times: u32) {
        for time in 0..times {
            fs::write(planned(&self.scratch.pool, fault, time), "").expect("a plan");
        }
    }

    /// Changes the mode of a file as a program that is not its owner.
    fn change_mode(&mut self, mode: u32) -> Child {
        Command::new("setpriv")
            .args(["--reuid=1000", "--clear-groups", "--inh-caps=+fowner"])
            .args(["--ambient-caps=+fowner", "chmod", &format!("{mode:o}")])
            .arg(self.dir.join("file"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("setpriv")
    }

    fn mode(&self) -> u32 {
        fs::metadata(self.dir.join("file")).expect("the file").permissions().mode() & 0o777
    }

    /// Another program works until the child has ended. Returns whether that has succeeded, and
    /// what it has said.
    fn work_beside(&mut self, mut child: Child) -> (bool, String) {
        let status = loop {
            if let Some(status) = child.try_wait().expect("a status") {
                break status;
            }
            self.changes += 1;
            let (other, text) = (self.dir.join("other"), self.changes.to_string());
            fs::write(&other, &text).expect("a write beside it");
            assert_eq!(fs::read_to_string(&other).expect("a read beside it"), text);
        };
        let mut said = String::new();
        let _ = child.stderr.take().expect("piped").read_to_string(&mut said);
        (status.success(), said)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.scratch.pool.with_file_name("log")).expect("the log")
    }

    fn a_front_that_hangs_is_replaced_and_its_request_is_done(&mut self, fault: &str, why: &str) {
        self.plan(fault, 1);
        let mode = self.mode() ^ 0o111;
        let changing = self.change_mode(mode);
        let (has_changed, said) = self.work_beside(changing);
        assert!(has_changed && self.mode() == mode, "{fault}: {said}");
        assert!(!planned(&self.scratch.pool, fault, 0).exists(), "no front has come so far");
        let log = self.log();
        assert!(log.lines().any(|line| line.contains(why) && line.contains("killed")), "{log}");
        println!("ok: a front that {fault}");
    }

    fn a_request_that_ends_three_fronts_fails(&mut self) {
        self.plan("aborts", 3);
        let before = self.mode();
        let changing = self.change_mode(before ^ 0o111);
        let (has_changed, said) = self.work_beside(changing);
        assert!(!has_changed && said.contains("Input/output error"), "{said}");
        assert_eq!(self.mode(), before);
        assert!(self.log().contains("fails with EIO"), "{}", self.log());
        // The next request of the kind is another one.
        let changing = self.change_mode(before ^ 0o111);
        let (has_changed, said) = self.work_beside(changing);
        assert!(has_changed && self.mode() == before ^ 0o111, "{said}");
        println!("ok: a request that ends fronts");
    }

    fn end(mut self) {
        drop(self.watchdog);
        let mounter = Pid::from_child(&self.mounter);
        kill_process(mounter, Signal::TERM).expect("a signal");
        assert!(self.mounter.wait().expect("its end").success());
        self.fleet.stop().expect("the fleet stops");
    }
}

fn planned(pool: &Path, fault: &str, time: u32) -> PathBuf {
    pool.with_file_name(format!("{fault}-{time}"))
}

/// The library's function, which hangs as planned if a front calls it.
///
/// # Safety
/// As `readlink(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn readlink(path: *const c_char, buffer: *mut c_char, len: usize) -> isize {
    let mut args = std::env::args_os().skip(1);
    // A front's arguments are its role and the mount point.
    if let (Some(role), Some(dir)) = (args.next(), args.next())
        && role == "front"
    {
        let pool = Path::new(&dir).with_file_name("pool");
        for (fault, hang) in FAULTS {
            if (0..3).any(|time| fs::remove_file(planned(&pool, fault, time)).is_ok()) {
                hang();
            }
        }
    }
    // SAFETY: the caller's promise: a path that ends with a zero byte.
    let path = unsafe { CStr::from_ptr(path) };
    // SAFETY: the caller's promise: memory of so many bytes.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    match rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut *buffer) {
        Ok(read) => read.cast_signed(),
        Err(error) => {
            // SAFETY: the thread's own word.
            unsafe { *libc::__errno_location() = error.raw_os_error() };
            -1
        }
    }
}
