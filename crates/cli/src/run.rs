//! `warren run`: a command inside a mount, and nothing left behind.
//!
//! Order: pool (made at the first use), fleet (unless one serves the pool), mount, command. When the
//! command has ended, for whatever reason: unmount, stop the fleet if we started it and nobody else
//! has come, remove the directory we made. The status is the command's.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use rustix::process::{Pid, PidfdFlags, Signal, getpgrp, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use warren_runtime::{ClientStatus, Fleet};

use crate::arguments::Run;
use crate::failure::{CODE_CANNOT_EXECUTE, CODE_FAILURE, CODE_NO_COMMAND, CODE_USAGE, Failure};
use crate::front::{self, Front, Tie};
use crate::mkfs::{self, Wish};
use crate::mount;

/// Bytes of a pool that is made unasked. The file is sparse and grows as it is used.
const DEFAULT_POOL_BYTES: u64 = 64 << 30;

/// How the command learns where it is.
const ROOT_VARIABLE: &str = "WARREN_ROOT";

pub fn perform(arguments: &Run) -> Result<ExitCode, Failure> {
    let pool = match &arguments.pool {
        Some(pool) => mount::absolute(pool)?,
        None => default_pool()?,
    };
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2])
        .map_err(|error| Failure::new(CODE_FAILURE, format!("cannot catch signals: {error}")))?;
    let fleet = mount::ensure_fleet(&pool, &arguments.fleet)?;
    let mut own_front = None;
    let outcome = run_mounted(&pool, arguments, signals, &mut own_front);
    let stopped = fleet.map_or(Ok(()), |fleet| stop_unless_shared(&pool, fleet, own_front));
    let code = outcome?;
    stopped?;
    Ok(code)
}

/// Mounts, runs the command, unmounts. `own_front` becomes the process that served the mount.
fn run_mounted(
    pool: &Path,
    arguments: &Run,
    signals: Signals,
    own_front: &mut Option<u32>,
) -> Result<ExitCode, Failure> {
    let place = MountPlace::choose(arguments.mount.as_deref())?;
    let front = front::start(pool, &place.path, arguments.powers, Tie::Tied)?;
    *own_front = Some(front.pid());
    let ran = run_command(arguments, &place.path, signals);
    let unmounted = Front::unmount(front);
    drop(place);
    let code = ran?;
    unmounted?;
    Ok(code)
}

/// Where it is mounted. A directory that was made for it is removed again.
struct MountPlace {
    path: PathBuf,
    made: bool,
}

impl MountPlace {
    fn choose(given: Option<&Path>) -> Result<Self, Failure> {
        if let Some(given) = given {
            let path = given.canonicalize().map_err(|e| Failure::io(given, "mount on it", &e))?;
            return Ok(Self { path, made: false });
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usable = runtime.filter(|path| path.is_absolute() && path.is_dir());
        let parent = usable.unwrap_or_else(std::env::temp_dir);
        let parent = parent.canonicalize().map_err(|e| Failure::io(&parent, "use it", &e))?;
        let path = parent.join(format!("warren-run-{}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self { path, made: true }),
            Err(error) => Err(Failure::io(&path, "make it", &error)),
        }
    }
}

impl Drop for MountPlace {
    fn drop(&mut self) {
        if self.made {
            // Empty unless something is still mounted on it, and then it must stay.
            let _kept = std::fs::remove_dir(&self.path);
        }
    }
}

fn run_command(arguments: &Run, root: &Path, signals: Signals) -> Result<ExitCode, Failure> {
    let [program, rest @ ..] = arguments.command.as_slice() else {
        return Err(Failure::new(CODE_USAGE, "no command given; see `warren run --help`"));
    };
    let spawned =
        Command::new(program).args(rest).current_dir(root).env(ROOT_VARIABLE, root).spawn();
    let mut child = spawned.map_err(|error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let code = if missing { CODE_NO_COMMAND } else { CODE_CANNOT_EXECUTE };
        let why =
            if missing { "no such command; check its name".to_owned() } else { error.to_string() };
        Failure::new(code, format!("{}: {why}", program.to_string_lossy()))
    })?;
    pass_signals_on(&child, signals);
    let status = child.wait().map_err(|error| {
        Failure::new(CODE_FAILURE, format!("cannot wait for the command: {error}"))
    })?;
    Ok(ExitCode::from(exit_code(status)))
}

/// The command's exit code, or 128 and the number of the signal that killed it, as shells have it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(CODE_FAILURE)
}

/// Whoever signals us means the command. What the terminal's keys send it gets itself.
fn pass_signals_on(child: &Child, mut signals: Signals) {
    let Ok(pidfd) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return };
    std::thread::spawn(move || {
        for number in signals.forever() {
            let from_keys = matches!(number, SIGINT | SIGQUIT) && in_foreground();
            if !from_keys && let Some(signal) = Signal::from_named_raw(number) {
                // It may just have ended.
                let _gone = pidfd_send_signal(&pidfd, signal);
            }
        }
    });
}

fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == getpgrp())
}

/// Stops the fleet that we started, unless others mount from it by now. Our own front is gone, but
/// the fleet may not have noticed yet.
fn stop_unless_shared(pool: &Path, fleet: Fleet, own_front: Option<u32>) -> Result<(), Failure> {
    let others = warren_runtime::status(pool).map_or(0, |status| {
        let is_other = |client: &&ClientStatus| client.front && Some(client.pid) != own_front;
        status.clients.iter().filter(is_other).count()
    });
    if others > 0 {
        warren_runtime::note(format_args!(
            "{}: goes on serving other mounts; end it with `warren stop`",
            pool.display()
        ));
        fleet.detach();
        return Ok(());
    }
    fleet.stop().map_err(Failure::from)
}

/// The user's own pool, made if there is none.
fn default_pool() -> Result<PathBuf, Failure> {
    let directory = data_directory()?.join("warren");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(|error| Failure::io(&directory, "make it", &error))?;
    let pool = directory.join("pool");
    if !pool.exists() {
        make_default_pool(&pool)?;
    }
    mount::absolute(&pool)
}

/// Under another name first, so that nobody finds half a pool, and whoever is first wins.
fn make_default_pool(pool: &Path) -> Result<(), Failure> {
    let making = pool.with_extension(format!("new-{}", std::process::id()));
    let size = Some(DEFAULT_POOL_BYTES);
    mkfs::make(&making, &Wish { size, shards: None, log: None, label: "default", force: true })?;
    let linked = std::fs::hard_link(&making, pool);
    std::fs::remove_file(&making).map_err(|error| Failure::io(&making, "remove it", &error))?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Failure::io(pool, "make it", &error))
        }
        _ => Ok(()),
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
    fn the_default_pool_is_made_once() {
        let directory =
            std::env::temp_dir().join(format!("warren-run-test-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("directory");
        let pool = directory.join("pool");
        make_default_pool(&pool).expect("first");
        let before = std::fs::metadata(&pool).expect("pool").modified().expect("time");
        make_default_pool(&pool).expect("second");
        let after = std::fs::metadata(&pool).expect("pool").modified().expect("time");
        let left = std::fs::read_dir(&directory).expect("list").count();
        std::fs::remove_dir_all(&directory).expect("cleanup");
        assert_eq!((before, left), (after, 1));
    }
}
