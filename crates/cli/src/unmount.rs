//! `warren umount`: a mount ends, and perhaps its fleet.
//!
//! ```text
//! the mount and its client ──▶ umount(2) ──▶ its client has left ──▶ no other mount ──▶ stop
//! ```
//!
//! A fleet that was started by `mount.warren` ends with its last mount by itself. The command waits
//! for that, so that all data is on the device when it returns, and a failure is reported.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use warren_fuse::Uses;
use warren_fuse::mountinfo::{self, MountEntry};
use warren_runtime::{ErrorKind, FleetError, StopOptions, control};

use crate::arguments::Umount;
use crate::failure::{CODE_FAILURE, CODE_IN_USE, CODE_NOT_FOUND, CODE_PERMISSION, Failure};

/// The time in which the process of a mount must end. A mount that is also in another namespace, or
/// bound to another place, does not end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
const LEAVE_POLL: Duration = Duration::from_millis(5);
/// The number of requests to a fleet whose supervisor dies meanwhile.
const STOPS_MAX: usize = 16;

pub(crate) fn perform(arguments: &Umount) -> Result<ExitCode, Failure> {
    let mut flags = UnmountFlags::empty();
    flags.set(UnmountFlags::DETACH, arguments.lazy);
    unmount(&arguments.directory, flags)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn unmount(directory: &Path, flags: UnmountFlags) -> Result<(), Failure> {
    let mount = mounted_at(directory)?;
    let lazy = flags.contains(UnmountFlags::DETACH);
    let ending = if lazy { None } else { Ending::expected(&mount) };
    match rustix::mount::unmount(&mount.at, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => {}
        Err(Errno::PERM) => by_fusermount(&mount, lazy)?,
        Err(Errno::BUSY) => return Err(busy(&mount)),
        Err(os) => return Err(Failure::io(directory, "unmount it", &os.into())),
    }
    ending.map_or(Ok(()), |ending| ending.wait(&mount))
}

/// A fleet that ends with its last mount.
struct Ending {
    /// The client of this mount.
    client: u32,
}

impl Ending {
    /// `None` if the fleet stays, or is none that this process may ask.
    fn expected(mount: &MountEntry) -> Option<Self> {
        let status = warren_runtime::status(&mount.source).ok()?;
        let at = mount.at.to_string_lossy();
        let is_own = |mounted: &String| *mounted == at;
        let mut fronts = status.clients.iter().filter(|client| client.front);
        let own = fronts.find(|client| client.mounted.as_ref().is_some_and(is_own))?;
        status.uses.ends_with_mounts.then_some(Self { client: own.client })
    }

    fn wait(&self, mount: &MountEntry) -> Result<(), Failure> {
        let deadline = Instant::now() + LEAVE_TIMEOUT;
        while self.is_there(mount) {
            if Instant::now() > deadline {
                return Ok(());
            }
            std::thread::sleep(LEAVE_POLL);
        }
        let unused = StopOptions { if_unused: true, ..StopOptions::default() };
        let mut stopped = Ok(());
        for _ in 0..STOPS_MAX {
            stopped = control::stop(&mount.source, unused);
            match &stopped {
                Err(FleetError::Died(_)) => {}
                // It has ended already.
                Err(FleetError::NoFleet(_) | FleetError::NoSuchPool(_)) => return Ok(()),
                // Another mount was made, or is left.
                Err(error) if error.kind() == ErrorKind::PoolInUse => return Ok(()),
                _ => break,
            }
        }
        stopped.map_err(|error| {
            let failure = Failure::from(error);
            let line = format!("{}: unmounted, but {failure}", mount.at.display());
            Failure::new(failure.code(), line)
        })
    }

    fn is_there(&self, mount: &MountEntry) -> bool {
        let status = warren_runtime::status(&mount.source);
        status.is_ok_and(|status| status.clients.iter().any(|it| it.client == self.client))
    }
}

/// The Warren mount on the directory. A dead mount fails every call, so the path is resolved only
/// if that works.
pub(crate) fn mounted_at(directory: &Path) -> Result<MountEntry, Failure> {
    let resolved = match directory.canonicalize() {
        Ok(resolved) => resolved,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let directory = directory.display();
            let line = format!("{directory}: no such directory; see `warren status` for mounts");
            return Err(Failure::new(CODE_NOT_FOUND, line));
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

fn busy(mount: &MountEntry) -> Failure {
    let (at, uses) = (mount.at.display(), Uses::of(mount.device));
    let line = format!("{at}: in use by {uses}; end these or unmount with --lazy");
    Failure::new(CODE_IN_USE, line)
}

/// The failure of a user who has not mounted it.
fn not_owned(mount: &MountEntry, user: u32) -> Option<Failure> {
    let owner = mount.owner().filter(|&owner| owner != user)?;
    let line = format!(
        "{}: mounted by uid {owner}; only that user and root may unmount it",
        mount.at.display()
    );
    Some(Failure::new(CODE_PERMISSION, line))
}

fn by_fusermount(mount: &MountEntry, lazy: bool) -> Result<(), Failure> {
    if let Some(failure) = not_owned(mount, rustix::process::geteuid().as_raw()) {
        return Err(failure);
    }
    let mounted = mount.at.as_path();
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mounted);
    match command.output() {
        Ok(ended) if ended.status.success() => Ok(()),
        Ok(ended) => {
            let reason = warren_fuse::fusermount_reason(&ended);
            // It does not translate its messages.
            if reason.ends_with("Device or resource busy") {
                return Err(busy(mount));
            }
            let line = format!("{}: fusermount3 cannot unmount it: {reason}", mounted.display());
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
    fn a_mount_is_left_to_the_user_who_has_made_it() {
        let mount = MountEntry {
            id: 50,
            parent: 30,
            device: (0, 45),
            root: "/".into(),
            at: "/mnt".into(),
            is_ours: true,
            source: "/pool".into(),
            options: ["rw", "rw,user_id=1000"].map(Into::into),
            effects: warren_fuse::Effects::empty(),
        };
        assert!(not_owned(&mount, 1000).is_none());
        let failure = not_owned(&mount, 1001).expect("another user's");
        assert_eq!(failure.code(), CODE_PERMISSION);
        assert!(failure.to_string().contains("uid 1000"), "{failure}");
        assert_eq!(busy(&mount).code(), CODE_IN_USE);
    }

    #[test]
    fn a_directory_that_does_not_exist_is_not_to_be_made() {
        let refused = mounted_at(Path::new("/no/such/mount")).expect_err("no mount");
        assert_eq!(refused.code(), CODE_NOT_FOUND);
        assert!(!refused.to_string().contains("make"), "{refused}");
    }

    #[test]
    fn a_directory_that_is_no_mount_is_refused() {
        let refused = mounted_at(Path::new("/proc/self")).expect_err("no mount");
        assert_eq!(refused.code(), CODE_FAILURE);
    }
}
