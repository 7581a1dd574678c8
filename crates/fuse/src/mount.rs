//! Mounting and unmounting.
//!
//! Root (also of a user namespace) calls `mount(2)`. Other users call `fusermount3`, which is
//! set-uid root, opens the device, and passes it back over a socket.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno as Os;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use warren_base::limits::PAYLOAD_MAX;

use crate::effects::Effects;
use crate::mountinfo::{self, Device, KIND};

const DEVICE: &str = "/dev/fuse";
const FUSERMOUNT: &str = "fusermount3";
/// The environment variable with the socket of `fusermount3`.
const FUSERMOUNT_SOCKET: &str = "_FUSE_COMMFD";

#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source in `/proc/mounts`: the pool.
    pub source: String,
    /// Users other than the one that mounts may use it. Without root this needs `user_allow_other`
    /// in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Without root, `fusermount3` always sets NOSUID and NODEV.
    pub flags: MountFlags,
}

impl MountOptions {
    pub fn new(source: &str) -> Self {
        Self {
            source: source.into(),
            allow_other: rustix::process::geteuid().is_root(),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        }
    }
}

/// The flags that `fusermount3` can set, and their names there.
const OF_FUSERMOUNT: [(MountFlags, &str); 5] = [
    (MountFlags::RDONLY, "ro"),
    (MountFlags::NOEXEC, "noexec"),
    (MountFlags::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, "dirsync"),
    (MountFlags::NOATIME, "noatime"),
];
/// Flags that it sets always.
const ALWAYS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
/// Flags that it cannot set, and that say what is so without them.
const NEEDLESS: MountFlags = MountFlags::RELATIME.union(MountFlags::NODIRATIME);

/// Why a mount failed, in one line that names a remedy.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error(
        "no {DEVICE}: load the module (modprobe fuse), or give the container --device {DEVICE}"
    )]
    NoDevice,
    #[error("{0}")]
    DeviceDenied(DeviceDenied),
    #[error("{DEVICE}: {0}")]
    Device(io::Error),
    #[error("{0}: not a directory; mount on a directory")]
    NotADirectory(PathBuf),
    #[error("{0}: a dead mount is on it, whose server is gone; `warren umount {0}` first")]
    DeadMount(PathBuf),
    #[error("{0}: a mount of {1} is on it already; `warren umount {0}` first")]
    Taken(PathBuf, PathBuf),
    #[error("{0}: something else is mounting on it; try again")]
    BeingMounted(PathBuf),
    #[error("{0}: no such directory; make it first")]
    NoMountPoint(PathBuf),
    #[error("{0}: cannot mount on it: {1}")]
    MountPoint(PathBuf, io::Error),
    #[error(
        "may not mount on {0}: run as root, install {FUSERMOUNT} (package fuse3), or give the \
         container --cap-add SYS_ADMIN"
    )]
    Denied(PathBuf),
    #[error("mounting on {0}: {1}")]
    Mount(PathBuf, io::Error),
    #[error(
        "{0}: {FUSERMOUNT} cannot set suid, dev, strictatime or nosymfollow; mount as root or \
         leave it out"
    )]
    NeedsRoot(PathBuf),
    #[error(
        "{0}: {FUSERMOUNT} lets only root give allow_other; leave it out, or have root write \
         user_allow_other into /etc/fuse.conf"
    )]
    AllowOther(PathBuf),
    #[error("{0}: {FUSERMOUNT} could not mount on it: {1}")]
    Fusermount(PathBuf, String),
    #[error("serving {0}: {1}")]
    Serve(PathBuf, io::Error),
}

/// A device of FUSE that is there and that this process may not open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceDenied {
    mode: u32,
    owner: u32,
    group: u32,
    uid: u32,
}

impl DeviceDenied {
    fn now() -> Self {
        let found = rustix::fs::stat(DEVICE).ok();
        Self {
            mode: found.map_or(0, |found| found.st_mode & 0o7777),
            owner: found.map_or(0, |found| found.st_uid),
            group: found.map_or(0, |found| found.st_gid),
            uid: rustix::process::geteuid().as_raw(),
        }
    }
}

impl fmt::Display for DeviceDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, owner, group, uid } = self;
        write!(f, "{DEVICE}: permission denied for uid {uid}: ")?;
        if *uid == 0 {
            return write!(
                f,
                "the container's device rules forbid it; give the container --device {DEVICE}"
            );
        }
        write!(
            f,
            "it has mode {mode:04o}, owner {owner}, group {group}; allow it (chmod 0666 {DEVICE}, or \
             membership in the group), or run as root"
        )
    }
}

/// A mount that this process has made.
#[derive(Debug)]
pub(crate) struct Mount {
    dir: PathBuf,
    device: Device,
    effects: Effects,
    by_fusermount: bool,
}

impl Mount {
    /// Mounts on `dir`. Also returns the device through which the mount is served.
    pub(crate) fn new(dir: &Path, options: &MountOptions) -> Result<(Self, OwnedFd), MountError> {
        let dir = check_mount_point(dir)?;
        check_unmounted(&dir)?;
        // Held until it is mounted, so that of two processes that check at the same time only one
        // mounts.
        let _alone = lock_directory(&dir)?;
        check_unmounted(&dir)?;
        let (device, by_fusermount) = match open_device() {
            Ok(device) => match mount_directly(&device, &dir, options) {
                Ok(()) => (device, false),
                Err(Os::PERM | Os::ACCESS) => {
                    drop(device);
                    (mount_by_fusermount(&dir, options)?, true)
                }
                Err(os) => return Err(MountError::Mount(dir, os.into())),
            },
            Err(error) => return Err(error),
        };
        let found = mountinfo::read().map_err(|error| MountError::Mount(dir.clone(), error))?;
        let entry = mountinfo::mount_at(&found, &dir).filter(|entry| entry.is_ours);
        let vanished = || MountError::Mount(dir.clone(), io::Error::other("it is gone at once"));
        let entry = entry.ok_or_else(vanished)?;
        let (number, effects) = (entry.device, entry.effects);
        Ok((Self { dir, device: number, effects, by_fusermount }, device))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Major and minor number of the file system.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// The effects of its options when it was made.
    pub(crate) fn effects(&self) -> Effects {
        self.effects
    }

    /// The same as they are now, after a remount perhaps. `None` if it is not mounted here.
    pub(crate) fn effects_now(&self) -> Option<Effects> {
        let mounts = mountinfo::read().ok()?;
        let entry = mountinfo::mount_at(&mounts, &self.dir)?;
        (entry.device == self.device).then_some(entry.effects)
    }

    /// Unmounts it unless it is in use. Returns whether it is no longer mounted here.
    pub(crate) fn unmount_idle(&self) -> io::Result<bool> {
        let mounts = mountinfo::read()?;
        match mountinfo::mount_at(&mounts, &self.dir) {
            Some(entry) if entry.device == self.device => {}
            // Another mount covers it.
            Some(_) if mounts.iter().any(|entry| entry.device == self.device) => return Ok(false),
            _ => return Ok(true),
        }
        if self.by_fusermount {
            return self.fusermount(&["-u", "-q", "--"]);
        }
        match rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW) {
            // EINVAL, ENOENT: another process has unmounted it.
            Ok(()) | Err(Os::INVAL | Os::NOENT) => Ok(true),
            Err(Os::BUSY) => Ok(false),
            Err(os) => Err(os.into()),
        }
    }

    /// Detaches it: the kernel unmounts it when its last use ends. Returns whether it is no longer
    /// mounted here.
    pub(crate) fn detach(&self) -> io::Result<bool> {
        let mounts = mountinfo::read()?;
        let at = mountinfo::mount_at(&mounts, &self.dir);
        if at.is_none_or(|entry| entry.device != self.device) {
            return Ok(true);
        }
        if self.by_fusermount {
            return self.fusermount(&["-u", "-z", "-q", "--"]);
        }
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        match rustix::mount::unmount(&self.dir, flags) {
            Ok(()) | Err(Os::INVAL | Os::NOENT) => Ok(true),
            Err(os) => Err(os.into()),
        }
    }

    fn fusermount(&self, arguments: &[&str]) -> io::Result<bool> {
        Ok(Command::new(FUSERMOUNT).args(arguments).arg(&self.dir).status()?.success())
    }

    /// Unmounts it, or detaches it if it is in use. Returns whether it is unmounted.
    pub(crate) fn unmount(&self) -> io::Result<bool> {
        if self.unmount_idle()? {
            return Ok(true);
        }
        self.detach().map(|_| false)
    }

    /// Has the kernel close the connection, even while processes hold the device. Without effect
    /// where `/sys/fs/fuse/connections` is not mounted.
    pub(crate) fn abort(&self) {
        let (major, minor) = self.device;
        let number = u64::from(major) << 20 | u64::from(minor);
        // Where that fails, the kernel closes the connection with the last descriptor of the
        // device.
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1");
    }
}

/// The mount point, locked against other processes that mount on it. `None` if this process cannot
/// open or lock it, as on some network file systems.
fn lock_directory(dir: &Path) -> Result<Option<OwnedFd>, MountError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(below) = rustix::fs::open(dir, flags, Mode::empty()) else { return Ok(None) };
    match flock(&below, FlockOperation::NonBlockingLockExclusive) {
        Err(Os::AGAIN) => Err(MountError::BeingMounted(dir.into())),
        Err(_) => Ok(None),
        Ok(()) => Ok(Some(below)),
    }
}

/// Checks that no mount of Warren is on the directory, by any path to it.
pub fn check_unmounted(dir: &Path) -> Result<(), MountError> {
    let mounts = mountinfo::read().map_err(|error| MountError::MountPoint(dir.into(), error))?;
    match mountinfo::ours_on(&mounts, dir) {
        Some(mount) => Err(MountError::Taken(mount.at.clone(), mount.source.clone())),
        None => Ok(()),
    }
}

/// The directory without symbolic links. Fails if it cannot be a mount point.
pub fn check_mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => MountError::DeadMount(dir.into()),
        Some(libc::ENOENT) => MountError::NoMountPoint(dir.into()),
        _ => MountError::MountPoint(dir.into(), error),
    };
    let dir = dir.canonicalize().map_err(failed)?;
    if dir.metadata().map_err(failed)?.is_dir() {
        Ok(dir)
    } else {
        Err(MountError::NotADirectory(dir))
    }
}

fn open_device() -> Result<OwnedFd, MountError> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|os| match os {
        Os::NOENT | Os::NODEV | Os::NXIO => MountError::NoDevice,
        Os::ACCESS | Os::PERM => MountError::DeviceDenied(DeviceDenied::now()),
        _ => MountError::Device(os.into()),
    })
}

fn mount_directly(device: &OwnedFd, dir: &Path, options: &MountOptions) -> Result<(), Os> {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut mount_data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={PAYLOAD_MAX}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw(),
    );
    if options.allow_other {
        mount_data.push_str(",allow_other");
    }
    let mount_data = CString::new(mount_data).map_err(|_| Os::INVAL)?;
    let source = CString::new(options.source.as_str()).map_err(|_| Os::INVAL)?;
    let kind = CString::new(KIND).map_err(|_| Os::INVAL)?;
    rustix::mount::mount(&source, dir, &kind, options.flags, Some(mount_data.as_c_str()))
}

fn mount_by_fusermount(dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    use io::ErrorKind::{NotFound, PermissionDenied};
    let failed = |error: io::Error| MountError::Mount(dir.into(), error);
    let settable = OF_FUSERMOUNT.iter().fold(ALWAYS | NEEDLESS, |all, (flag, _)| all | *flag);
    if !settable.contains(options.flags) || !options.flags.contains(ALWAYS) {
        return Err(MountError::NeedsRoot(dir.into()));
    }
    // `theirs` is not close-on-exec, because fusermount3 inherits it.
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .map_err(|os| failed(os.into()))?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(|os| failed(os.into()))?;
    let ended = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(OsStr::from_bytes(&fusermount_options(options)))
        .arg("--")
        .arg(dir)
        .env(FUSERMOUNT_SOCKET, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output();
    drop(theirs);
    match ended {
        Ok(ended) if ended.status.success() => {}
        Ok(ended) => {
            let reason = fusermount_reason(&ended);
            let is_for_others = options.allow_other && reason.contains("allow_other");
            return Err(match is_for_others {
                true => MountError::AllowOther(dir.into()),
                false => MountError::Fusermount(dir.into(), reason),
            });
        }
        // EACCES is that of a directory of PATH.
        Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => {
            return Err(MountError::Denied(dir.into()));
        }
        Err(error) => return Err(failed(error)),
    }
    receive_device(&ours).map_err(failed)
}

/// Why `fusermount3` failed: its own words in one line. Its caller may have no standard error.
pub fn fusermount_reason(ended: &Output) -> String {
    let text = String::from_utf8_lossy(&ended.stderr);
    let lines = text.lines().map(|line| {
        let line = line.trim();
        line.strip_prefix(FUSERMOUNT).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(line)
    });
    let reason = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    if reason.is_empty() {
        format!("it ended with {} and no message", ended.status)
    } else {
        reason
    }
}

/// The options in one argument. In a value, commas and backslashes are escaped.
fn fusermount_options(options: &MountOptions) -> Vec<u8> {
    let mut all = format!("default_permissions,max_read={PAYLOAD_MAX},subtype=warren").into_bytes();
    if options.allow_other {
        all.extend_from_slice(b",allow_other");
    }
    for (_, name) in OF_FUSERMOUNT.iter().filter(|(flag, _)| options.flags.contains(*flag)) {
        all.push(b',');
        all.extend_from_slice(name.as_bytes());
    }
    all.extend_from_slice(b",fsname=");
    for byte in options.source.bytes() {
        if matches!(byte, b',' | b'\\') {
            all.push(b'\\');
        }
        all.push(byte);
    }
    all
}

fn receive_device(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(io::Error::other("fusermount3 sent no descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_must_be_a_directory_that_is_there() {
        let missing = check_mount_point(Path::new("/no/such/place")).unwrap_err();
        assert!(missing.to_string().contains("/no/such/place"));
        let file = check_mount_point(Path::new("/proc/self/stat")).unwrap_err();
        assert!(matches!(file, MountError::NotADirectory(_)));
    }

    #[test]
    fn a_mount_has_neither_set_id_programs_nor_devices_by_default() {
        let options = MountOptions::new("pool");
        assert!(options.flags.contains(MountFlags::NOSUID | MountFlags::NODEV));
    }

    #[test]
    fn flags_are_options_of_fusermount() {
        let flags = MountFlags::RDONLY | MountFlags::NOATIME | MountFlags::NOSUID;
        let options = MountOptions { flags, allow_other: true, ..MountOptions::new("a") };
        let text = String::from_utf8(fusermount_options(&options)).expect("text");
        assert!(text.ends_with(",allow_other,ro,noatime,fsname=a"), "{text}");
    }

    #[test]
    fn what_fusermount_printed_is_the_reason() {
        let ended = |script| Command::new("sh").args(["-c", script]).output().expect("sh");
        let printed = ended("echo 'fusermount3: user has no write access' >&2; echo >&2; exit 1");
        assert_eq!(fusermount_reason(&printed), "user has no write access");
        assert!(fusermount_reason(&ended("exit 3")).contains("exit status: 3"));
    }

    #[test]
    fn a_closed_device_is_named_with_its_mode() {
        let denied = DeviceDenied { mode: 0o600, owner: 0, group: 0, uid: 1000 };
        let line = denied.to_string();
        assert!(line.contains("mode 0600, owner 0") && line.contains("chmod 0666"), "{line}");
        let in_container = DeviceDenied { uid: 0, ..denied }.to_string();
        assert!(in_container.contains("device rules"), "{in_container}");
    }

    #[test]
    fn a_source_with_a_comma_stays_one_option() {
        let options = MountOptions::new("a,b");
        assert!(fusermount_options(&options).ends_with(b",fsname=a\\,b"));
    }
}
