//! The mount keeper's process: it keeps one mount served until the mount is unmounted.
//!
//! It runs this program with a role of its own. So do the fronts that it starts, one after another
//! (`warren_fuse`). It reports its start in one line on its standard output, which is a pipe to its
//! starter: an empty line when the mount is served, or an exit code and the error.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use warren_base::Errno;
use warren_fuse::{
    Effects, FrontOptions, MountConfig, MountError, MountOptions, READY_MAX, STARTER_DIED,
};
use warren_log::Target;
use warren_runtime::control::PATIENCE;
use warren_runtime::{Admission, ConnectOptions, FleetError};

use crate::arguments::Powers;
use crate::failure::{
    CODE_FAILURE, CODE_NO_FLEET, CODE_NO_FUSE, CODE_NOT_FOUND, CODE_PERMISSION, Failure,
};
use crate::mount_options::{MountWords, Unknown};

const ROLE: &str = "__mount";
const READY: &str = "\n";
const TIED: &str = "tied";
const FREE: &str = "free";
const OPTIONS: &str = "options=";

/// The time in which a mount keeper must report. It waits for its admission for 30 s at most, and
/// for its front as long.
const REPORT_MAX: Duration = Duration::from_secs(60);

/// The time in which a killed process must end.
const END_WAIT: Duration = Duration::from_secs(5);

/// The interval between two looks for an interrupt. A signal does not end a wait that has not begun
/// yet.
const INTERRUPT_POLL: Duration = Duration::from_millis(50);

/// Whether a mount ends with the process that started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tie {
    /// When the starter dies, the mount is unmounted. If it is in use, it becomes a dead mount.
    Tied,
    Free,
}

/// Runs the front or the mount keeper if `arguments` name one of these roles.
pub(crate) fn dispatch(arguments: &[OsString]) -> Option<ExitCode> {
    if let Some(code) = warren_fuse::dispatch(arguments) {
        return Some(code);
    }
    let [role, tie, words, log, pool, directory] = arguments else { return None };
    if role != ROLE {
        return None;
    }
    warren_runtime::process::close_inherited();
    let words = words_of(words.to_str()?)?;
    let log = Target::parse(log).ok()?;
    let prepared = if tie == TIED {
        rustix::process::set_parent_process_death_signal(Signal::from_named_raw(STARTER_DIED))
    } else {
        // A session of its own, so that the terminal sends it no signals.
        rustix::process::setsid().map(drop)
    };
    let _named = rustix::thread::set_name(c"warren-mount");
    let ready = std::io::stdout().as_fd().try_clone_to_owned().ok();
    let served = match prepared {
        Ok(()) => serve(Path::new(pool), Path::new(directory), &words, &log, ready),
        Err(os) => Err(Failure::io(Path::new(directory), "start its process", &os.into())),
    };
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // It fails if the starter has ended or has closed the pipe after the report.
            let _ = writeln!(std::io::stdout(), "{} {failure}", failure.code());
            ExitCode::from(failure.code())
        }
    })
}

/// Mounts, reports to `ready`, and keeps the mount served until its end. Must be called before the
/// process has threads.
pub(crate) fn serve(
    pool: &Path,
    directory: &Path,
    words: &MountWords,
    log: &Target,
    ready: Option<OwnedFd>,
) -> Result<(), Failure> {
    warren_runtime::raise_descriptor_limit();
    let rules = Effects::of_flags(words.flags).rules();
    let admission = ConnectOptions { front: true, rules, ..ConnectOptions::default() };
    let admission = Admission::ask_mounted(pool, &admission, directory).map_err(not_admitted)?;
    let by_root = rustix::process::geteuid().is_root();
    check_powers(words.powers(), by_root, admission.is_roots(), pool)?;
    let usual = MountOptions::new(&pool.to_string_lossy());
    let allow_other = words.allow_other.unwrap_or(usual.allow_other);
    let mount = MountOptions { flags: words.flags, allow_other, ..usual };
    let config = MountConfig {
        mount,
        front: FrontOptions::default(),
        log: log.clone(),
        ready_max: READY_MAX,
    };
    warren_fuse::keep_mount(admission, directory, &config, ready)
        .map_err(|error| mount_failure(&error))
}

/// A fleet that ends admits no mount. The caller may start another one.
fn not_admitted(error: FleetError) -> Failure {
    let is_ending = matches!(
        error,
        FleetError::Refused(Errno::EAGAIN | Errno::EIO)
            | FleetError::Died(_)
            | FleetError::NoFleet(_)
    );
    let failure = Failure::from(error);
    if is_ending { failure.with_code(CODE_NO_FLEET) } else { failure }
}

/// A user who serves a pool, or who can write to it beside the fleet, can create set-id programs of
/// root and any device node. So these have power on a mount only if no other user than root can.
fn check_powers(
    powers: Powers,
    by_root: bool,
    of_root_alone: bool,
    pool: &Path,
) -> Result<(), Failure> {
    let asked = match powers {
        Powers { suid: false, dev: false } => return Ok(()),
        Powers { suid: true, dev: false } => "--suid (or allow_suid)",
        Powers { suid: false, dev: true } => "--dev (or allow_dev)",
        Powers { suid: true, dev: true } => "--suid --dev (or allow_suid,allow_dev)",
    };
    let pool = pool.display();
    let line = match (by_root, of_root_alone) {
        (true, true) => return Ok(()),
        (false, _) => format!("{pool}: {asked}: allowed only to root; mount it without"),
        (true, false) => format!(
            "{pool}: {asked}: another user serves the pool, owns it or may write to it; mount it without"
        ),
    };
    Err(Failure::new(CODE_PERMISSION, line))
}

/// The options as an argument of the mount's process.
fn word_of(words: &MountWords) -> String {
    format!("{OPTIONS}{}", words.list())
}

fn words_of(word: &str) -> Option<MountWords> {
    MountWords::parse(word.strip_prefix(OPTIONS)?, Unknown::Refused).ok()
}

pub(crate) fn mount_failure(error: &MountError) -> Failure {
    let code = match error {
        MountError::NoDevice | MountError::Device(_) => CODE_NO_FUSE,
        MountError::DeviceDenied(_)
        | MountError::Denied(_)
        | MountError::AllowOther(_)
        | MountError::NeedsRoot(_) => CODE_PERMISSION,
        MountError::NoMountPoint(_) => CODE_NOT_FOUND,
        MountError::MountPoint(_, os) if os.kind() == std::io::ErrorKind::PermissionDenied => {
            CODE_PERMISSION
        }
        _ => CODE_FAILURE,
    };
    Failure::new(code, error.to_string())
}

/// A mount keeper's process in the background.
pub(crate) struct MountProcess {
    process: Child,
}

/// Starts the process of a mount and waits until the mount is there. The process is ended, and the
/// mount removed, if `is_interrupted` becomes true before.
pub(crate) fn start(
    pool: &Path,
    directory: &Path,
    words: &MountWords,
    log: &Target,
    tie: Tie,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<MountProcess, Failure> {
    let lost = |error: std::io::Error| Failure::io(directory, "mount it", &error);
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("warren")
        .arg(ROLE)
        .arg(if tie == Tie::Tied { TIED } else { FREE })
        .arg(word_of(words))
        .arg(log.word())
        .args([pool, directory])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if tie == Tie::Tied {
        // The terminal's signals are for the command that runs in the mount.
        command.process_group(0);
    } else {
        command.stderr(Stdio::null());
    }
    let mut process = command.spawn().map_err(warren_runtime::process::explained).map_err(lost)?;
    let say_slow = |pid| {
        let what = warren_runtime::control::describe_wait(pool, pid);
        let (at, seconds) = (directory.display(), PATIENCE.as_secs());
        warren_log::say(&format!("{at}: not mounted within {seconds} s: {what}"));
    };
    let line = report_within(&mut process, REPORT_MAX, is_interrupted, say_slow).map_err(lost)?;
    let Some(line) = line else { return Err(end_unready(process, pool, directory)) };
    if line == READY {
        return Ok(MountProcess { process });
    }
    process.wait().map_err(lost)?;
    if line.is_empty() {
        // It was killed, perhaps after it had mounted.
        detach_own(pool, directory);
    }
    Err(parse_failure(line.trim_end(), directory))
}

/// Removes a mount of the pool that its process could not report. There is none if the process has
/// not come so far.
fn detach_own(pool: &Path, directory: &Path) {
    if crate::unmount::mounted_at(directory).is_ok_and(|left| left.source == pool) {
        let _unmounted = crate::unmount::unmount(directory, UnmountFlags::DETACH);
    }
}

/// The line that the process reports, empty if it has ended without one. `None` if it does not
/// report in time or before an interrupt. `say_slow` gets its number if that takes more than
/// [`PATIENCE`].
fn report_within(
    process: &mut Child,
    limit: Duration,
    is_interrupted: &dyn Fn() -> bool,
    say_slow: impl FnOnce(u32),
) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    if let Some(stdout) = process.stdout.take() {
        let deadline = Instant::now() + limit;
        let is_readable = |limit| is_readable_unless(is_interrupted, &stdout, limit);
        let mut has_reported = is_readable(limit.min(PATIENCE))?;
        if !has_reported && limit > PATIENCE && !is_interrupted() {
            say_slow(process.id());
            has_reported = is_readable(deadline.saturating_duration_since(Instant::now()))?;
        }
        if !has_reported {
            return Ok(None);
        }
        BufReader::new(stdout).read_line(&mut line)?;
    }
    Ok(Some(line))
}

/// The same as [`is_readable_within`], and false soon after an interrupt.
fn is_readable_unless(
    is_interrupted: &dyn Fn() -> bool,
    fd: &impl AsFd,
    limit: Duration,
) -> std::io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if is_readable_within(fd, left.min(INTERRUPT_POLL))? {
            return Ok(true);
        }
        if left.is_zero() || is_interrupted() {
            return Ok(false);
        }
    }
}

/// Whether the descriptor is readable, or closed by its peer, within this time. The guard of `run`
/// has handlers for signals, which interrupt a wait.
pub(crate) fn is_readable_within(fd: &impl AsFd, limit: Duration) -> std::io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Ends a mount keeper that does not report, its front, and its mount if it has one. Its front may
/// be stopped and so would not end by itself.
fn end_unready(mut process: Child, pool: &Path, directory: &Path) -> Failure {
    let pid = process.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children =
        children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?));
    // Descriptors name the same processes also after these have ended.
    let children: Vec<_> =
        children.filter_map(|child| pidfd_open(child, PidfdFlags::empty()).ok()).collect();
    let own = Pid::from_raw(pid as i32);
    let own = own.and_then(|own| pidfd_open(own, PidfdFlags::empty()).ok());
    // Both fail only if the process has ended.
    let _ended = process.kill();
    for child in &children {
        let _ended = pidfd_send_signal(child, Signal::KILL);
    }
    detach_own(pool, directory);
    let ended = own.as_ref().map(|own| is_readable_within(own, END_WAIT));
    let has_ended = ended.is_some_and(|ended| ended.unwrap_or(false));
    if has_ended {
        // It is reaped, which cannot fail.
        let _status = process.wait();
    }
    let done = if has_ended {
        "it was killed; try again"
    } else {
        "it was killed, and the kernel has not ended it yet; see its state in /proc"
    };
    let seconds = REPORT_MAX.as_secs();
    let at = directory.display();
    Failure::new(
        CODE_FAILURE,
        format!("{at}: its mount keeper (process {pid}) was not ready within {seconds} s; {done}"),
    )
}

/// The report of a mount keeper that could not start.
fn parse_failure(line: &str, directory: &Path) -> Failure {
    let reported = |(code, line): (&str, &str)| Some(Failure::new(code.parse().ok()?, line));
    line.split_once(' ').and_then(reported).unwrap_or_else(|| {
        let line = format!("{}: the mount's process ended at once; try again", directory.display());
        Failure::new(CODE_FAILURE, line)
    })
}

impl MountProcess {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Unmounts, and waits until the process has ended. Programs that still use the mount get
    /// errors.
    pub(crate) fn unmount(mut self) -> Result<(), Failure> {
        let lost = |error: std::io::Error| {
            Failure::new(CODE_FAILURE, format!("cannot end the mount's process: {error}"))
        };
        // Not reaped yet, so the number is its own; it may have ended by itself.
        let _ended = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM);
        let line = format!("waits for the mount's process to end ({})", self.pid());
        warren_log::say_if_slow(&line, || self.process.wait()).map(drop).map_err(lost)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;

    use super::*;

    #[test]
    fn powers_need_root_and_a_pool_of_roots_own() {
        let pool = Path::new("/pool");
        let none = Powers::default();
        for powers in [none, Powers { suid: true, ..none }, Powers { suid: true, dev: true }] {
            let asked = powers.suid || powers.dev;
            assert!(check_powers(powers, true, true, pool).is_ok());
            for (by_root, of_root_alone) in [(false, false), (false, true), (true, false)] {
                let checked = check_powers(powers, by_root, of_root_alone, pool);
                assert_eq!(
                    checked.err().map(|failure| failure.code()),
                    asked.then_some(CODE_PERMISSION)
                );
            }
            let words = MountWords::new().with_powers(powers);
            assert_eq!(words_of(&word_of(&words)).map(|it| it.flags), Some(words.flags));
        }
    }

    #[test]
    fn a_process_that_does_not_report_is_ended_with_its_children() {
        let mut process = Command::new("sh")
            .args(["-c", "sleep 1000 >&2 & echo $! >&2; kill -STOP $!; wait"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut child = String::new();
        let mut stderr = BufReader::new(process.stderr.take().expect("piped"));
        stderr.read_line(&mut child).expect("its child");
        let limit = Duration::from_millis(1);
        assert_eq!(report_within(&mut process, limit, &|| false, |_| ()).expect("a poll"), None);
        let pid = process.id();
        let failure = end_unready(process, Path::new("/pool"), Path::new("/nonexistent"));
        let line = failure.to_string();
        assert_eq!(failure.code(), CODE_FAILURE);
        assert!(line.contains(&format!("process {pid})")) && line.ends_with("try again"), "{line}");
        // The child has the other end of the pipe too, and is stopped until it ends.
        let limit = Timespec::try_from(Duration::from_secs(20)).ok();
        let ended = poll(&mut [PollFd::new(stderr.get_ref(), PollFlags::IN)], limit.as_ref());
        assert_eq!(ended, Ok(1), "its child {} lives", child.trim());
        assert_eq!(stderr.read_line(&mut child).ok(), Some(0), "{child}");
    }

    #[test]
    fn a_report_comes_through_the_pipe_and_an_end_is_an_empty_one() {
        for (script, report) in [("echo", READY), ("echo 6 line", "6 line\n"), ("true", "")] {
            let mut process =
                Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("sh");
            let limit = Duration::from_secs(20);
            let line = report_within(&mut process, limit, &|| false, |_| ()).expect("a poll");
            assert_eq!(line.as_deref(), Some(report));
            process.wait().expect("its end");
        }
    }

    #[test]
    fn signals_with_handlers_do_not_end_the_wait_for_a_report() {
        let _handled =
            signal_hook::iterator::Signals::new([signal_hook::consts::SIGUSR1]).expect("a handler");
        let waiting = rustix::thread::gettid();
        let (is_waiting, is_over) = std::sync::mpsc::channel::<()>();
        let reported = |script, limit| {
            let mut process =
                Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("sh");
            let report = report_within(&mut process, limit, &|| false, |_| ());
            process.kill().expect("not reaped yet");
            process.wait().expect("its end");
            report.expect("no error")
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let between = Duration::from_millis(5);
                while is_over.recv_timeout(between) == Err(RecvTimeoutError::Timeout) {
                    // The number of a thread: the kernel prefers it for the signal.
                    rustix::process::kill_process(waiting, Signal::USR1).expect("this process");
                }
            });
            let late = reported("sleep 0.3; echo", Duration::from_secs(20));
            let never = reported("exec sleep 20", Duration::from_millis(300));
            drop(is_waiting);
            assert_eq!((late.as_deref(), never), (Some(READY), None));
        });
    }

    #[test]
    fn what_takes_long_is_said_once() {
        let mut process = Command::new("sh")
            .args(["-c", "sleep 2.5; echo"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut said = None;
        let limit = Duration::from_secs(20);
        let line = report_within(&mut process, limit, &|| false, |pid| said = Some(pid));
        assert_eq!(line.expect("a poll").as_deref(), Some(READY));
        assert_eq!(said, Some(process.id()));
        process.wait().expect("its end");
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_a_report() {
        let mut process =
            Command::new("sleep").arg("1000").stdout(Stdio::piped()).spawn().expect("sleep");
        let begun = Instant::now();
        let line = report_within(&mut process, REPORT_MAX, &|| true, |_| panic!("it is no wait"));
        process.kill().expect("not reaped yet");
        process.wait().expect("its end");
        assert_eq!(line.expect("a poll"), None);
        assert!(begun.elapsed() < REPORT_MAX / 2);
    }

    #[test]
    fn a_failure_comes_through_the_pipe_as_it_was() {
        let failure = parse_failure("6 no /dev/fuse: load it", Path::new("/mnt"));
        assert_eq!((failure.code(), failure.to_string()), (6, "no /dev/fuse: load it".to_owned()));
        assert_eq!(parse_failure("", Path::new("/mnt")).code(), CODE_FAILURE);
        assert_eq!(parse_failure("x y", Path::new("/mnt")).code(), CODE_FAILURE);
    }
}
