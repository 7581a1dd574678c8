//! `warren mount` and `warren umount`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use warren_fuse::Uses;
use warren_fuse::mountinfo::{self, MountEntry};
use warren_runtime::{ErrorKind, Fleet, FleetError, Lifetime};

use crate::arguments::{FleetSize, Mount, Umount};
use crate::failure::{CODE_FAILURE, CODE_PERMISSION, Failure};
use crate::front::{self, Tie};
use crate::serve;

/// How long to wait for a fleet that another process is starting or stopping.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(10);
const OTHERS_POLL: Duration = Duration::from_millis(20);

pub(crate) fn perform(arguments: &Mount) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    check_mount_point(directory)?;
    // The front works in a directory of its own.
    let directory =
        &directory.canonicalize().map_err(|e| Failure::io(directory, "mount it", &e))?;
    let pool = absolute(&arguments.pool)?;
    let started = ensure_fleet(&pool, &arguments.fleet)?;
    let (powers, log) = (arguments.powers, &arguments.fleet.log);
    let mounted = if arguments.foreground {
        front::serve(&pool, directory, powers, log, None)
    } else {
        front::start(&pool, directory, powers, log, Tie::Free).map(drop)
    };
    match (mounted, started) {
        (Ok(()), started) => {
            started.into_iter().for_each(Fleet::detach);
            Ok(ExitCode::SUCCESS)
        }
        (Err(failure), started) => {
            // The first failure is reported.
            let _stopped = started.map(Fleet::stop);
            Err(failure)
        }
    }
}

/// Checked before a fleet is started for the mount.
fn check_mount_point(directory: &Path) -> Result<(), Failure> {
    let checked = warren_fuse::check_mount_point(directory);
    let checked = checked.and_then(|directory| warren_fuse::check_unmounted(&directory));
    checked.map_err(|error| front::mount_failure(&error))
}

/// The path in a form that processes with another working directory can use.
pub(crate) fn absolute(pool: &Path) -> Result<PathBuf, Failure> {
    pool.canonicalize().map_err(|error| FleetError::opening(pool, &error).into())
}

/// Starts a fleet unless one serves the pool already. Two processes that try at once share one.
pub(crate) fn ensure_fleet(pool: &Path, size: &FleetSize) -> Result<Option<Fleet>, Failure> {
    let options = serve::options(pool, size)?;
    let deadline = Instant::now() + OTHERS_TIMEOUT;
    loop {
        let refused = match warren_runtime::is_served(pool) {
            Ok(true) if size.clients.is_some() => return Err(clients_are_set(pool)),
            Ok(true) => return Ok(None),
            Ok(false) => None,
            // Perhaps no fleet serves the pool: without access to the sockets that is unknown.
            Err(error @ FleetError::NotAdmitted(_)) => Some(error),
            Err(error) => return Err(error.into()),
        };
        match (warren_runtime::start_fleet(&options, Lifetime::Stays), refused) {
            (Ok(fleet), _) => return Ok(Some(fleet)),
            (Err(error), refused) if error.kind() == ErrorKind::PoolInUse => match refused {
                Some(refused) => return Err(refused.into()),
                None if Instant::now() < deadline => std::thread::sleep(OTHERS_POLL),
                None => return Err(error.into()),
            },
            (Err(error), _) => return Err(error.into()),
        }
    }
}

/// The clients of a fleet are set when it is started.
fn clients_are_set(pool: &Path) -> Failure {
    let pool = pool.display();
    let line =
        format!("{pool}: --clients: a fleet serves it already; stop it first, or leave this out");
    Failure::new(CODE_FAILURE, line)
}

pub(crate) fn perform_umount(arguments: &Umount) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    let mount = mounted_at(directory)?;
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, arguments.lazy);
    match unmount(&mount.at, flags) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Errno::PERM) => by_fusermount(&mount.at, arguments.lazy),
        Err(Errno::BUSY) => {
            let (directory, uses) = (directory.display(), Uses::of(mount.device));
            let line = format!("{directory}: in use by {uses}; end these or unmount with --lazy");
            Err(Failure::new(CODE_FAILURE, line))
        }
        Err(os) => Err(Failure::io(directory, "unmount it", &os.into())),
    }
}

/// The Warren mount on the directory. A dead mount fails every call, so the path is resolved only
/// if that works.
fn mounted_at(directory: &Path) -> Result<MountEntry, Failure> {
    let resolved = match directory.canonicalize() {
        Ok(resolved) => resolved,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::io(directory, "unmount it", &error));
        }
        Err(_) => std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf()),
    };
    let list = Path::new("/proc/self/mountinfo");
    let mounts = mountinfo::read().map_err(|e| Failure::io(list, "read it", &e))?;
    let found = mountinfo::mount_at(&mounts, &resolved).filter(|mount| mount.is_ours);
    found.cloned().ok_or_else(|| {
        let line = format!("{}: not a mount of Warren's; see `warren status`", directory.display());
        Failure::new(CODE_FAILURE, line)
    })
}

fn by_fusermount(mounted: &Path, lazy: bool) -> Result<ExitCode, Failure> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mounted);
    match command.status() {
        Ok(status) if status.success() => Ok(ExitCode::SUCCESS),
        Ok(_) => {
            let line = format!(
                "{}: fusermount3 failed to unmount it; see its message above",
                mounted.display()
            );
            Err(Failure::new(CODE_FAILURE, line))
        }
        Err(_) => {
            let line = format!(
                "{}: permission denied to unmount it; run as root or install fusermount3",
                mounted.display()
            );
            Err(Failure::new(CODE_PERMISSION, line))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_mount_is_refused() {
        let refused = mounted_at(Path::new("/proc/self")).expect_err("no mount");
        assert_eq!(refused.code(), CODE_FAILURE);
    }
}
