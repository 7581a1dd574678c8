//! `warren mount` and `warren umount`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use warren_runtime::{ErrorKind, Fleet, FleetError, Lifetime};

use crate::arguments::{FleetSize, Mount, Umount};
use crate::failure::{CODE_FAILURE, CODE_PERMISSION, Failure};
use crate::front::{self, Tie};
use crate::serve;

/// How `/proc/self/mountinfo` names our mounts.
const FILE_SYSTEM: &str = "fuse.warren";

/// How long a fleet that somebody else is starting or stopping may keep us waiting.
const OTHERS_PATIENCE: Duration = Duration::from_secs(10);
const OTHERS_POLL: Duration = Duration::from_millis(20);

pub fn perform(arguments: &Mount) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    check_mount_point(directory)?;
    // The front works in a directory of its own.
    let directory =
        &directory.canonicalize().map_err(|e| Failure::io(directory, "mount it", &e))?;
    let pool = absolute(&arguments.pool)?;
    let started = ensure_fleet(&pool, &arguments.fleet)?;
    let mounted = if arguments.foreground {
        front::serve(&pool, directory, arguments.powers, None)
    } else {
        front::start(&pool, directory, arguments.powers, Tie::Free).map(drop)
    };
    match (mounted, started) {
        (Ok(()), started) => {
            started.into_iter().for_each(Fleet::detach);
            Ok(ExitCode::SUCCESS)
        }
        (Err(failure), started) => {
            // The failure that is reported is the first one.
            let _stopped = started.map(Fleet::stop);
            Err(failure)
        }
    }
}

/// Before a fleet is started for it.
fn check_mount_point(directory: &Path) -> Result<(), Failure> {
    let found =
        std::fs::metadata(directory).map_err(|e| Failure::io(directory, "mount on it", &e))?;
    if !found.is_dir() {
        let line = format!("{}: not a directory; name one", directory.display());
        return Err(Failure::new(CODE_FAILURE, line));
    }
    Ok(())
}

/// The path as other processes, with another working directory, can use it.
pub fn absolute(pool: &Path) -> Result<PathBuf, Failure> {
    pool.canonicalize().map_err(|error| FleetError::opening(pool, &error).into())
}

/// Starts a fleet unless one serves the pool already. Two that try at once share one.
pub fn ensure_fleet(pool: &Path, size: &FleetSize) -> Result<Option<Fleet>, Failure> {
    let options = serve::options(pool, size)?;
    let deadline = Instant::now() + OTHERS_PATIENCE;
    loop {
        let refused = match warren_runtime::is_served(pool) {
            Ok(true) if size.clients.is_some() => return Err(clients_are_settled(pool)),
            Ok(true) => return Ok(None),
            Ok(false) => None,
            // Perhaps none serves it: who may not look cannot tell.
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

/// Who may use a fleet is said when it is started.
fn clients_are_settled(pool: &Path) -> Failure {
    let pool = pool.display();
    let line =
        format!("{pool}: --clients: a fleet serves it already; stop it first, or leave this out");
    Failure::new(CODE_FAILURE, line)
}

pub fn perform_umount(arguments: &Umount) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    let mounted = mounted_at(directory)?;
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, arguments.lazy);
    match unmount(&mounted, flags) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Errno::PERM) => by_fusermount(&mounted, arguments.lazy),
        Err(Errno::BUSY) => {
            let line = format!("{}: in use; leave it or unmount with --lazy", directory.display());
            Err(Failure::new(CODE_FAILURE, line))
        }
        Err(os) => Err(Failure::io(directory, "unmount it", &os.into())),
    }
}

/// The mount's root as the kernel names it. A mount whose front is dead cannot be looked at, so the
/// path is resolved only if that works.
fn mounted_at(directory: &Path) -> Result<PathBuf, Failure> {
    let resolved = match directory.canonicalize() {
        Ok(resolved) => resolved,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::io(directory, "unmount it", &error));
        }
        Err(_) => std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf()),
    };
    let list = Path::new("/proc/self/mountinfo");
    let mounts = std::fs::read_to_string(list).map_err(|e| Failure::io(list, "read it", &e))?;
    let ours = mounts.lines().filter_map(our_mount).any(|mount| mount == resolved);
    if ours {
        return Ok(resolved);
    }
    let line = format!("{}: not a mount of Warren's; see `warren status`", directory.display());
    Err(Failure::new(CODE_FAILURE, line))
}

/// The mount point that a line of `mountinfo` names, if it is one of ours.
fn our_mount(line: &str) -> Option<PathBuf> {
    let (left, right) = line.split_once(" - ")?;
    let kind = right.split(' ').next()?;
    (kind == FILE_SYSTEM).then(|| left.split(' ').nth(4).map(unescape)).flatten()
}

/// `mountinfo` writes blanks and backslashes as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut text = field.to_owned();
    for (code, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(code, character);
    }
    PathBuf::from(text)
}

fn by_fusermount(mounted: &Path, lazy: bool) -> Result<ExitCode, Failure> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mounted);
    match command.status() {
        Ok(status) if status.success() => Ok(ExitCode::SUCCESS),
        Ok(_) => {
            let line = format!(
                "{}: fusermount3 could not unmount it, as it says above",
                mounted.display()
            );
            Err(Failure::new(CODE_FAILURE, line))
        }
        Err(_) => {
            let line = format!(
                "{}: may not unmount it; run as root or install fusermount3",
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
    fn only_our_mounts_are_found_in_mountinfo() {
        let ours = "50 30 0:45 / /mnt/a\\040b rw,nosuid shared:9 - fuse.warren /pool rw,user_id=0";
        assert_eq!(our_mount(ours), Some(PathBuf::from("/mnt/a b")));
        let other = "51 30 0:46 / /mnt/c rw - ext4 /dev/sda rw";
        assert_eq!(our_mount(other), None);
        assert_eq!(our_mount("nonsense"), None);
    }

    #[test]
    fn a_directory_that_is_no_mount_is_refused() {
        let refused = mounted_at(Path::new("/proc/self")).expect_err("no mount");
        assert_eq!(refused.code(), CODE_FAILURE);
    }
}
