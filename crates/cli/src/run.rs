//! `warren run`: a command inside a mount, and nothing left behind.
//!
//! ```text
//! warren run ──▶ guard (a process group of its own) ──▶ the command (in the group of `warren run`)
//!  waits, passes                 └──▶ the mount's process, the fleet's keeper
//!  signals on
//! ```
//!
//! Order, in the guard: pool (made at the first use), fleet (unless one serves the pool), mount,
//! command. When the command has ended, for whatever reason: unmount, stop the fleet if this run
//! started it and nothing else is mounted from it, remove the directory that was made. The exit
//! code is the command's.
//!
//! The command begins in the pool or not at all ([`place`]). A signal that comes before it ends the
//! run as soon as what is in progress can be undone.
//!
//! The guard survives a kill of `warren run` or of its process group. It then kills the command and
//! all its descendants, and continues as above: if the mount went first, they would write into the
//! directory below. It finds all descendants because it is a subreaper: processes that lose their
//! parents become its children.

mod place;

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{
    Pid, Signal, WaitOptions, getppid, kill_process, pidfd_send_signal, set_child_subreaper,
    test_kill_process, waitpid,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use warren_fsck::{Options, ReadError};
use warren_runtime::process::open_pidfd;
use warren_runtime::{Blocks, ClientStatus, ErrorKind, Fleet, OfflinePool, ProcessStat, Purpose};

use crate::arguments::{Arguments, Run, Task};
use crate::failure::{
    CODE_CANNOT_EXECUTE, CODE_FAILURE, CODE_NO_COMMAND, CODE_NO_FLEET, CODE_USAGE, Failure,
};
use crate::front::{self, MountProcess, Tie};
use crate::interposer::Variables;
use crate::mkfs::{self, Wish};
use crate::mount;
use crate::mount_options::MountWords;
use crate::{serve, size, unmount};
use place::{MountPlace, MountRoot, ended_early};

/// Size of the default pool. The file is sparse and grows as it is used.
const DEFAULT_POOL_BYTES: u64 = 64 << 30;

/// The environment variable that names the mount to the command.
const ROOT_VARIABLE: &str = "WARREN_ROOT";

/// The role of the guard. Its arguments are the process number of `warren run` and that command's
/// own arguments.
const ROLE: &str = "__run";

/// Signals that are passed on to the command.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// A kill of a process group is sent to all its processes at once, but the last of them may die
/// some time after the first.
const GROUP_KILL_TIMEOUT: Duration = Duration::from_millis(500);

/// The time for which a guard that a signal has stopped stays so.
const RESUME_PAUSE: Duration = Duration::from_millis(250);

/// The time in which killed processes must end. One that waits for a device may take longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const KILL_POLL: Duration = Duration::from_millis(2);

/// Starts a guard, which runs the command, and waits for it.
pub(crate) fn perform() -> Result<ExitCode, Failure> {
    let signals = catch(&PASSED_ON)?;
    let failed = |error| Failure::new(CODE_FAILURE, format!("cannot start a guard: {error}"));
    let guard = Command::new("/proc/self/exe")
        .arg0("warren")
        .arg(ROLE)
        .arg(std::process::id().to_string())
        .args(std::env::args_os().skip(2))
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    pass_signals_on(&guard, signals);
    let status = await_guard(guard).map_err(failed)?;
    let Some(code) = status.code() else {
        let line = format!(
            "its guard was killed ({status}); see `warren status` for what is still running"
        );
        return Err(Failure::new(CODE_FAILURE, line));
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(CODE_FAILURE)))
}

/// Waits for the guard's end, and resumes it when a signal has stopped it: without it the command
/// would run on in a mount that nothing ends. It reaps the child.
fn await_guard(guard: Child) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(&guard);
    loop {
        match waitpid(Some(pid), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => {
                // One that is stopped again and again must not keep this process busy.
                let pidfd = open_pidfd(pid)?;
                let has_ended = front::is_readable_within(&pidfd, RESUME_PAUSE)?;
                if !has_ended {
                    let pid = guard.id();
                    warren_log::say(&format!("its guard (process {pid}) was stopped; it goes on"));
                    // It may have ended meanwhile.
                    let _ended = pidfd_send_signal(&pidfd, Signal::CONT);
                }
            }
            Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs the guard if `arguments` name its role.
pub(crate) fn dispatch(arguments: &[OsString]) -> Option<ExitCode> {
    let [role, starter, rest @ ..] = arguments else { return None };
    let starter: i32 = starter.to_str().filter(|_| role == ROLE)?.parse().ok()?;
    let line = ["warren", "run"].map(OsString::from).into_iter().chain(rest.iter().cloned());
    let Ok(Arguments { task: Task::Run(arguments) }) = Arguments::try_parse_from(line) else {
        return None;
    };
    Some(guard(Pid::from_raw(starter)?, &arguments).unwrap_or_else(|failure| failure.report(false)))
}

fn guard(starter: Pid, arguments: &Run) -> Result<ExitCode, Failure> {
    let failed =
        |os: io::Error| Failure::new(CODE_FAILURE, format!("cannot guard the command: {os}"));
    // A stop that is refused names it, because it keeps the mount busy.
    let _named = rustix::thread::set_name(c"warren-run");
    let starter = Starter::of(starter).map_err(failed)?;
    set_child_subreaper(Some(rustix::process::getpid())).map_err(|os| failed(os.into()))?;
    let signals = catch(&[&PASSED_ON[..], &[SIGCHLD]].concat())?;
    let interrupt = Interrupt::catch().map_err(failed)?;
    let pool = match &arguments.pool {
        Some(pool) => Pool { path: mount::absolute(pool)?, made: false },
        None => default_pool(arguments.size)?,
    };
    let mut own_front = None;
    let served =
        serve_and_run(&pool.path, arguments, (starter, signals, interrupt), &mut own_front);
    if pool.made && own_front.is_none() {
        remove_unused(&pool.path);
    }
    served
}

/// Runs the command with the fleet that serves the pool, or with one of its own. `own_front`
/// becomes the process that served the mount, if there was a mount.
fn serve_and_run(
    pool: &Path,
    arguments: &Run,
    (starter, signals, interrupt): (Starter, Signals, Interrupt),
    own_front: &mut Option<u32>,
) -> Result<ExitCode, Failure> {
    let options = serve::options(pool, &arguments.fleet)?;
    let place = MountPlace::choose(arguments.mount.as_deref())?;
    let fleet = mount::ensure_fleet(&options, &arguments.fleet)?;
    let keeper = fleet.as_ref().map(Fleet::keeper_pid);
    let guarded = Guarded { starter, signals, interrupt, own: Vec::from_iter(keeper) };
    let outcome = run_mounted(pool, place, arguments, guarded, own_front);
    let stopped = fleet.map_or(Ok(()), |fleet| stop_unless_shared(pool, fleet, *own_front));
    let code = outcome?;
    match stopped {
        // What the command has failed with says more to those who have started it.
        Err(failure) if code != ExitCode::SUCCESS => {
            warren_log::say(&failure.to_string());
            Ok(code)
        }
        stopped => stopped.map(|()| code),
    }
}

/// `warren run`, as its guard sees it.
struct Starter {
    pidfd: OwnedFd,
    /// Its process group, which the command joins so that it receives the terminal's signals, too.
    /// `None` if a process outside this process namespace leads it.
    group: Option<Pid>,
}

impl Starter {
    fn of(pid: Pid) -> io::Result<Self> {
        let pidfd = open_pidfd(pid)?;
        // The process is still the parent, so no other process has its number.
        if getppid() != Some(pid) {
            return Err(Errno::SRCH.into());
        }
        let group = ProcessStat::of(pid.as_raw_pid().unsigned_abs()).map(|stat| stat.group);
        Ok(Self { pidfd, group: group.and_then(|group| Pid::from_raw(group.cast_signed())) })
    }
}

/// The state that the guard needs while the command runs.
struct Guarded {
    starter: Starter,
    signals: Signals,
    interrupt: Interrupt,
    /// Children that do not belong to the command.
    own: Vec<u32>,
}

/// A signal that ends the run before its command has started. Later the command gets it.
struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    fn catch() -> io::Result<Self> {
        let number = Arc::new(AtomicUsize::new(0));
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            flag::register_usize(signal, Arc::clone(&number), signal.unsigned_abs() as usize)?;
        }
        Ok(Self(number))
    }

    /// The failure of the run, if there was such a signal. Its exit code is that of a shell.
    fn failure(&self) -> Option<Failure> {
        let number = u8::try_from(self.0.load(Ordering::SeqCst)).ok().filter(|&it| it > 0)?;
        let line = format!("ended by signal {number} before the command could start");
        Some(Failure::new(128 + number, line))
    }
}

fn catch(signals: &[i32]) -> Result<Signals, Failure> {
    Signals::new(signals)
        .map_err(|error| Failure::new(CODE_FAILURE, format!("cannot catch signals: {error}")))
}

/// Mounts, runs the command, unmounts. `own_front` becomes the process that served the mount.
fn run_mounted(
    pool: &Path,
    place: MountPlace,
    arguments: &Run,
    mut guarded: Guarded,
    own_front: &mut Option<u32>,
) -> Result<ExitCode, Failure> {
    let variables = Variables::prepare(&arguments.interpose)?;
    let words = MountWords::new().with_powers(arguments.powers);
    let interrupt = &guarded.interrupt;
    let is_interrupted = || interrupt.failure().is_some();
    let log = &arguments.fleet.log;
    let front = front::start(pool, &place.path, &words, log, Tie::Tied, &is_interrupted);
    let front = front.map_err(|failure| match interrupt.failure() {
        Some(interrupted) => interrupted,
        None if failure.code() == CODE_NO_FLEET => ended_early(pool),
        None => failure,
    })?;
    *own_front = Some(front.pid());
    guarded.own.extend(*own_front);
    let (mount, ran) = match MountRoot::open(pool, &place.path) {
        // The root is closed when the command has ended, because it keeps the mount busy.
        Ok(root) => (Some(root.mount), run_command(arguments, &root, &variables, guarded)),
        Err(failure) => (None, Err(failure)),
    };
    let mut unmounted = MountProcess::unmount(front);
    if unmount::mounted_at(&place.path).is_ok_and(|left| Some(left.id) == mount) {
        // Its process was killed, or its fleet.
        unmounted = unmount::unmount(&place.path, UnmountFlags::DETACH);
    }
    drop(place);
    let code = ran?;
    unmounted?;
    Ok(code)
}

/// Why a command was not started, with the exit code of a shell. Relative names begin at `root`.
fn not_started(program: &Path, root: &Path, error: &std::io::Error) -> (u8, String) {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    let is_path = program.as_os_str().as_encoded_bytes().contains(&b'/');
    match error.kind() {
        // A program that may not be executed is EACCES.
        PermissionDenied if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            let why = "cannot join the process group of `warren run`, or the system forbids to \
                       execute it; start `warren run` again";
            (CODE_CANNOT_EXECUTE, why.to_owned())
        }
        NotFound if is_path && root.join(program).exists() => {
            let why = "the interpreter that it names does not exist; install it, or name another";
            (CODE_CANNOT_EXECUTE, why.to_owned())
        }
        NotFound => (CODE_NO_COMMAND, "no such command; check its name".to_owned()),
        PermissionDenied => {
            let why = "may not be executed; name a program, or allow it with `chmod +x`";
            (CODE_CANNOT_EXECUTE, why.to_owned())
        }
        _ => (CODE_CANNOT_EXECUTE, format!("cannot be executed: {error}; name another command")),
    }
}

/// Runs the command until it or `warren run` ends.
fn run_command(
    arguments: &Run,
    root: &MountRoot,
    variables: &Variables,
    guarded: Guarded,
) -> Result<ExitCode, Failure> {
    let [program, rest @ ..] = arguments.command.as_slice() else {
        return Err(Failure::new(CODE_USAGE, "no command given; see `warren run --help`"));
    };
    let Guarded { starter, signals, interrupt, own } = guarded;
    if let Some(failure) = interrupt.failure() {
        return Err(failure);
    }
    let mut command = Command::new(program);
    command.args(rest).current_dir(root.opened()).env(ROOT_VARIABLE, &root.path);
    variables.set(&mut command);
    // 0 is a group of its own.
    let group = starter.group.map_or(0, Pid::as_raw_pid);
    let spawned = command.process_group(group).spawn();
    let mut child = spawned.map_err(|error| {
        let (code, why) = not_started(program.as_ref(), &root.opened(), &error);
        Failure::new(code, format!("{}: {why}", program.to_string_lossy()))
    })?;
    let failed = |error: std::io::Error| {
        Failure::new(CODE_FAILURE, format!("cannot wait for the command: {error}"))
    };
    let handle = open_pidfd(Pid::from_child(&child)).map_err(failed)?;
    let not_reaped = own.iter().copied().chain([child.id()]).collect();
    guard_command(handle.try_clone().map_err(failed)?, starter.group, signals, not_reaped);
    let mut ends = [&handle, &starter.pidfd].map(|fd| PollFd::new(fd, PollFlags::IN));
    while poll(&mut ends, None).is_err() {}
    if !ends[0].revents().is_empty() {
        let status = child.wait().map_err(failed)?;
        // The signal may have killed the whole process group.
        let is_killed = status.signal() == Some(Signal::KILL.as_raw());
        let starter_ended = || front::is_readable_within(&starter.pidfd, GROUP_KILL_TIMEOUT);
        if !is_killed || !starter_ended().unwrap_or(false) {
            return Ok(ExitCode::from(exit_code(status)));
        }
    }
    // The command itself may be among them. No process reads this code.
    kill_all_but(&own);
    Ok(ExitCode::FAILURE)
}

/// Passes signals on to the command, and reaps orphans that have become children of the guard. The
/// command is in `group`, so that it receives the signals of the terminal's keys itself.
fn guard_command(command: OwnedFd, group: Option<Pid>, mut signals: Signals, not_reaped: Vec<u32>) {
    std::thread::spawn(move || {
        for number in signals.forever() {
            if number == SIGCHLD {
                for pid in children().into_iter().filter(|pid| !not_reaped.contains(pid)) {
                    reap(pid);
                }
                continue;
            }
            let from_keys = matches!(number, SIGINT | SIGQUIT) && is_in_foreground(group);
            if !from_keys && let Some(signal) = Signal::from_named_raw(number) {
                // It may just have ended.
                let _gone = pidfd_send_signal(&command, signal);
            }
        }
    });
}

/// Kills all children but `own`, and their descendants: a process that loses its parent becomes a
/// child of the guard. A child that is not reaped keeps its number, so no other process is killed.
fn kill_all_but(own: &[u32]) {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        let others: Vec<u32> = children().into_iter().filter(|pid| !own.contains(pid)).collect();
        if others.is_empty() || Instant::now() > deadline {
            return;
        }
        for pid in others {
            if let Some(child) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may be dead and wait to be reaped.
                let _dead = kill_process(child, Signal::KILL);
            }
            reap(pid);
        }
        std::thread::sleep(KILL_POLL);
    }
}

/// Reaps the child if it has ended.
fn reap(pid: u32) {
    if let Some(child) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // The other thread may have reaped it.
        let _gone = waitpid(Some(child), WaitOptions::NOHANG);
    }
}

/// Processes whose parent is this one.
fn children() -> Vec<u32> {
    let own = std::process::id();
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|&pid| ProcessStat::of(pid).is_some_and(|stat| stat.parent == own)).collect()
}

/// The command's exit code, or 128 plus the number of the signal that killed it, as in shells.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(CODE_FAILURE)
}

/// Passes signals on to the guard.
fn pass_signals_on(guard: &Child, mut signals: Signals) {
    let Ok(pidfd) = open_pidfd(Pid::from_child(guard)) else { return };
    std::thread::spawn(move || {
        for number in signals.forever() {
            if let Some(signal) = Signal::from_named_raw(number) {
                // It may just have ended.
                let _gone = pidfd_send_signal(&pidfd, signal);
            }
        }
    });
}

/// Whether the process group is in the foreground of the terminal.
fn is_in_foreground(group: Option<Pid>) -> bool {
    let foreground = rustix::termios::tcgetpgrp(std::io::stdin());
    foreground.is_ok_and(|foreground| Some(foreground) == group)
}

/// Stops the fleet that this run started, unless other mounts use it by now. This run's own front
/// is gone, also if it could not mount, but the fleet may not have noticed yet. A fleet that
/// refuses the stop because changes would be lost continues to serve.
fn stop_unless_shared(pool: &Path, fleet: Fleet, own_front: Option<u32>) -> Result<(), Failure> {
    let others = warren_runtime::status(pool).map_or(0, |status| {
        let is_other = |client: &&ClientStatus| {
            client.front && Some(client.pid) != own_front && exists(client.pid)
        };
        status.clients.iter().filter(is_other).count()
    });
    if others == 0 {
        match fleet.stop() {
            // Another mount was made meanwhile, and is in use.
            Err(error) if error.kind() == ErrorKind::PoolInUse => {}
            stopped => return stopped.map_err(Failure::from),
        }
    } else {
        fleet.detach();
    }
    warren_log::say(&format!(
        "{}: continues to serve other mounts; stop it with `warren stop`",
        pool.display()
    ));
    Ok(())
}

fn exists(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
}

/// The pool of a run.
struct Pool {
    path: PathBuf,
    /// This run has made it.
    made: bool,
}

/// The user's own pool. It is made if it does not exist.
fn default_pool(size: Option<u64>) -> Result<Pool, Failure> {
    let directory = data_directory()?.join("warren");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(|error| Failure::io(&directory, "make it", &error))?;
    let pool = directory.join("pool");
    if let Ok(found) = std::fs::metadata(&pool) {
        return match size.filter(|&size| size != found.len()) {
            Some(_) => Err(is_there(&pool, found.len())),
            None => Ok(Pool { path: mount::absolute(&pool)?, made: false }),
        };
    }
    let made = make_default_pool(&pool, size.unwrap_or(DEFAULT_POOL_BYTES))?;
    Ok(Pool { path: mount::absolute(&pool)?, made })
}

/// The pool keeps the size that it was made with.
fn is_there(pool: &Path, bytes: u64) -> Failure {
    let (pool, size) = (pool.display(), size::display(bytes));
    let line = format!("{pool}: exists already, with {size}; leave --size out, or remove it first");
    Failure::new(CODE_FAILURE, line)
}

/// Removes a new pool that this run could not mount, unless another process uses it, or has put
/// something into it.
fn remove_unused(path: &Path) {
    // The lock keeps a fleet from opening the file until it is gone.
    let Ok(locked) = OfflinePool::open(path, Purpose::Repair) else { return };
    if has_nothing(&locked) {
        // If it stays, the next run uses it.
        let _kept = std::fs::remove_file(path);
    }
}

/// Whether the pool was left in order with its root directory alone.
fn has_nothing(pool: &OfflinePool) -> bool {
    let mut read = |block, into: &mut [u8]| pool.read(block, into).map_err(ReadError);
    let report = warren_fsck::check(Options::default(), pool.len_blocks(), &mut read, &mut |_| {});
    let is_clean = report.superblock.as_ref().is_some_and(|superblock| superblock.clean);
    is_clean && report.is_sound() && !report.incomplete && report.inodes == 1
}

/// Makes the pool under another name first, so that no process finds half a pool. If two processes
/// make one, the first wins. Returns whether this one did.
fn make_default_pool(pool: &Path, bytes: u64) -> Result<bool, Failure> {
    let making = pool.with_extension(format!("new-{}", std::process::id()));
    let size = Some(bytes);
    let made = mkfs::make(
        &making,
        &Wish {
            size,
            shards: None,
            log: None,
            label: "default",
            reserve: false,
            kept_percent: None,
            force: true,
        },
    );
    made.map_err(|failure| {
        let line = failure.to_string();
        let [new, named] = [making.as_path(), pool].map(|path| path.display().to_string());
        Failure::new(failure.code(), line.replace(&new, &named))
    })?;
    let linked = std::fs::hard_link(&making, pool);
    std::fs::remove_file(&making).map_err(|error| Failure::io(&making, "remove it", &error))?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Failure::io(pool, "make it", &error))
        }
        linked => Ok(linked.is_ok()),
    }
}

fn data_directory() -> Result<PathBuf, Failure> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .ok_or_else(|| Failure::new(CODE_USAGE, "no HOME to keep a pool in; name one with --pool"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_command_has_the_shells_exit_code() {
        assert_eq!(exit_code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_code(ExitStatus::from_raw(15)), 143);
    }

    #[test]
    fn a_child_is_found_with_its_group() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep");
        let found = children();
        let group = ProcessStat::of(child.id()).map(|stat| stat.group);
        child.kill().expect("not reaped yet");
        child.wait().expect("its end");
        assert!(found.contains(&child.id()), "{found:?}");
        assert_eq!(group, Some(child.id()));
    }

    #[test]
    fn a_guard_that_is_stopped_goes_on() {
        let guard = Command::new("sh")
            .args(["-c", "kill -STOP $$; kill -STOP $$; exit 7"])
            .spawn()
            .expect("a shell");
        let ended = await_guard(guard).expect("it is reaped");
        assert_eq!(ended.code(), Some(7));
    }

    #[test]
    fn a_command_that_is_not_started_has_a_remedy() {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        let of = |program: &str, kind: std::io::ErrorKind| {
            not_started(Path::new(program), Path::new("/"), &kind.into())
        };
        for (program, kind, code, remedy) in [
            ("none", NotFound, 127, "check its name"),
            ("/no/such/program", NotFound, 127, "check its name"),
            ("/proc/self/exe", NotFound, 126, "install it"),
            ("proc/self/exe", NotFound, 126, "install it"),
            ("/proc", PermissionDenied, 126, "chmod"),
        ] {
            let (found, why) = of(program, kind);
            assert!(found == code && why.contains(remedy), "{program}: {found}, {why}");
        }
        let error = io::Error::from_raw_os_error(Errno::PERM.raw_os_error());
        let (code, why) = not_started(Path::new("true"), Path::new("/"), &error);
        assert!(code == 126 && why.contains("process group") && !why.contains("chmod"), "{why}");
    }

    #[test]
    fn the_default_pool_is_made_once() {
        let directory =
            std::env::temp_dir().join(format!("warren-run-test-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("directory");
        let pool = directory.join("pool");
        assert!(make_default_pool(&pool, 64 << 20).expect("first"));
        let before = std::fs::metadata(&pool).expect("pool").modified().expect("time");
        assert!(!make_default_pool(&pool, 64 << 20).expect("second"));
        let after = std::fs::metadata(&pool).expect("pool").modified().expect("time");
        let left = std::fs::read_dir(&directory).expect("list").count();
        assert!(has_nothing(&OfflinePool::open(&pool, Purpose::Check).expect("a pool")));
        let locked = OfflinePool::open(&pool, Purpose::Repair).expect("its lock");
        remove_unused(&pool);
        assert!(pool.exists(), "another process uses it");
        drop(locked);
        remove_unused(&pool);
        assert!(!pool.exists());
        std::fs::remove_dir_all(&directory).expect("cleanup");
        assert_eq!((before, left), (after, 1));
    }
}
