//! Mounting and unmounting.
//!
//! As root (also of a user name space) by `mount(2)`; else by `fusermount3`, which is set-uid root
//! and hands the opened device back over a socket.

use std::ffi::{CString, OsStr};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Os;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use warren_base::limits::PAYLOAD_MAX;

const DEVICE: &str = "/dev/fuse";
const FUSERMOUNT: &str = "fusermount3";
/// Names the socket to `fusermount3`.
const FUSERMOUNT_SOCKET: &str = "_FUSE_COMMFD";

#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `/proc/mounts` names as the source: the pool.
    pub source: String,
    /// Other users than the one who mounts may use it. Without root this needs `user_allow_other`
    /// in `/etc/fuse.conf`.
    pub allow_other: bool,
    pub read_only: bool,
    /// Without root, `fusermount3` sets both in any case.
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
}

impl MountOptions {
    pub fn new(source: &str) -> Self {
        Self {
            source: source.into(),
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            no_suid: true,
            no_dev: true,
            no_exec: false,
        }
    }

    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.no_suid);
        flags.set(MountFlags::NODEV, self.no_dev);
        flags.set(MountFlags::NOEXEC, self.no_exec);
        flags
    }
}

/// Why a mount failed, in one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error(
        "no {DEVICE}: load the module (modprobe fuse), or give the container --device {DEVICE}"
    )]
    NoDevice,
    #[error("may not open {DEVICE}: run as root, or give the container --device {DEVICE}")]
    DeviceDenied,
    #[error("{DEVICE}: {0}")]
    Device(io::Error),
    #[error("{0} is no directory")]
    NotADirectory(PathBuf),
    #[error("{0} is a mount whose server is gone: unmount it first (umount -l {0})")]
    DeadMount(PathBuf),
    #[error("{0}: {1}")]
    MountPoint(PathBuf, io::Error),
    #[error(
        "may not mount on {0}: run as root, install {FUSERMOUNT} (package fuse3), or give the \
         container --cap-add SYS_ADMIN"
    )]
    Denied(PathBuf),
    #[error("mounting on {0}: {1}")]
    Mount(PathBuf, io::Error),
    #[error("{FUSERMOUNT} could not mount on {0}: it says why above")]
    Fusermount(PathBuf),
    #[error("serving {0}: {1}")]
    Serve(PathBuf, io::Error),
}

/// A mount of ours.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    by_fusermount: bool,
}

impl Mount {
    /// Mounts on `dir` and returns the device to serve it by.
    pub fn new(dir: &Path, options: &MountOptions) -> Result<(Self, OwnedFd), MountError> {
        let dir = check_mount_point(dir)?;
        let device = open_device()?;
        match mount_directly(&device, &dir, options) {
            Ok(()) => Ok((Self { dir, by_fusermount: false }, device)),
            Err(Os::PERM | Os::ACCESS) => {
                drop(device);
                let device = mount_by_fusermount(&dir, options)?;
                Ok((Self { dir, by_fusermount: true }, device))
            }
            Err(os) => Err(MountError::Mount(dir, os.into())),
        }
    }

    /// What another process mounted.
    pub(crate) fn of_another(dir: &Path, by_fusermount: bool) -> Self {
        Self { dir: dir.into(), by_fusermount }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn is_by_fusermount(&self) -> bool {
        self.by_fusermount
    }

    /// Unmounts; if the mount is in use it is detached, and goes when the last use ends. Says
    /// whether it is gone.
    pub fn unmount(&self) -> io::Result<bool> {
        if self.by_fusermount {
            let mut command = Command::new(FUSERMOUNT);
            let status = command.args(["-u", "-z", "-q", "--"]).arg(&self.dir).status()?;
            let failed = || io::Error::other("fusermount3 could not unmount");
            return status.success().then_some(false).ok_or_else(failed);
        }
        let nofollow = UnmountFlags::NOFOLLOW;
        match rustix::mount::unmount(&self.dir, nofollow) {
            Ok(()) => Ok(true),
            Err(Os::BUSY) => {
                rustix::mount::unmount(&self.dir, UnmountFlags::DETACH | nofollow)?;
                Ok(false)
            }
            // Somebody else unmounted it.
            Err(Os::INVAL | Os::NOENT) => Ok(true),
            Err(os) => Err(os.into()),
        }
    }
}

fn check_mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOTCONN) => MountError::DeadMount(dir.into()),
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
        Os::ACCESS | Os::PERM => MountError::DeviceDenied,
        _ => MountError::Device(os.into()),
    })
}

fn mount_directly(device: &OwnedFd, dir: &Path, options: &MountOptions) -> Result<(), Os> {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut terms = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={PAYLOAD_MAX}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw(),
    );
    if options.allow_other {
        terms.push_str(",allow_other");
    }
    let terms = CString::new(terms).map_err(|_| Os::INVAL)?;
    let source = CString::new(options.source.as_str()).map_err(|_| Os::INVAL)?;
    rustix::mount::mount(&source, dir, c"fuse.warren", options.flags(), Some(terms.as_c_str()))
}

fn mount_by_fusermount(dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| MountError::Mount(dir.into(), error);
    // fusermount3 inherits its end of the socket, so this one is not close-on-exec.
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .map_err(|os| failed(os.into()))?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(|os| failed(os.into()))?;
    let status = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(OsStr::from_bytes(&fusermount_terms(options)))
        .arg("--")
        .arg(dir)
        .env(FUSERMOUNT_SOCKET, theirs.as_raw_fd().to_string())
        .status();
    drop(theirs);
    match status {
        Ok(status) if status.success() => {}
        Ok(_) => return Err(MountError::Fusermount(dir.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Denied(dir.into()));
        }
        Err(error) => return Err(failed(error)),
    }
    receive_device(&ours).map_err(failed)
}

/// In an option a comma and a backslash are escaped.
fn fusermount_terms(options: &MountOptions) -> Vec<u8> {
    let mut terms =
        format!("default_permissions,max_read={PAYLOAD_MAX},subtype=warren").into_bytes();
    let flags = [
        (options.allow_other, ",allow_other"),
        (options.read_only, ",ro"),
        (options.no_exec, ",noexec"),
    ];
    for (_, flag) in flags.iter().filter(|(set, _)| *set) {
        terms.extend_from_slice(flag.as_bytes());
    }
    terms.extend_from_slice(b",fsname=");
    for byte in options.source.bytes() {
        if matches!(byte, b',' | b'\\') {
            terms.push(b'\\');
        }
        terms.push(byte);
    }
    terms
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
    fn neither_set_id_programs_nor_devices_work_on_a_mount_unasked() {
        let options = MountOptions::new("pool");
        assert!(options.flags().contains(MountFlags::NOSUID | MountFlags::NODEV));
        let options = MountOptions { no_suid: false, no_dev: false, ..options };
        assert!(!options.flags().intersects(MountFlags::NOSUID | MountFlags::NODEV));
    }

    #[test]
    fn a_source_with_a_comma_stays_one_option() {
        let options = MountOptions::new("a,b");
        assert!(fusermount_terms(&options).ends_with(b",fsname=a\\,b"));
    }
}
