//! The errors of a pool device, one line each: its name, what happened, and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("{}: no such file; check the path, or make a pool with `warren mkfs`", .0.display())]
    NotFound(PathBuf),
    #[error("{}: permission denied; run as its owner or as root", .0.display())]
    Denied(PathBuf),
    /// EPERM of a file's open, which its owner and root get, too.
    #[error(
        "{}: not permitted, also to root; `lsattr` shows a file that is immutable or append-only, \
         allow changes with `chattr -i -a`",
        .0.display()
    )]
    Immutable(PathBuf),
    #[error("{}: in use; unmount it, or stop its fleet with `warren stop`", .0.display())]
    Busy(PathBuf),
    #[error("{}: read-only; make the device or its file system writable", .0.display())]
    ReadOnly(PathBuf),
    #[error("{}: exists already; choose another path or remove it", .0.display())]
    Exists(PathBuf),
    #[error("{}: neither a file nor a block device; name a pool made by `warren mkfs`", .0.display())]
    WrongKind(PathBuf),
    #[error("{}: no space left; free some on its file system", .0.display())]
    NoSpace(PathBuf),
    #[error(
        "{}: not a Warren pool, too short for one; check the path, or restore it from a backup",
        .0.display()
    )]
    TooShort(PathBuf),
    #[error("{}: cannot {doing}: {source}", .path.display())]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
    #[error(
        "io_uring is not available ({0}): allow it (sysctl kernel.io_uring_disabled=0, \
         or the container's seccomp profile)"
    )]
    NoUring(io::Error),
    #[error("the device's queue failed: {0}")]
    Queue(io::Error),
}

impl DeviceError {
    /// The error of a system call on the pool at `path`.
    pub(crate) fn of(path: &Path, doing: &'static str, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOTDIR => Self::NotFound(path),
            Errno::ACCESS => Self::Denied(path),
            Errno::PERM => Self::Immutable(path),
            Errno::BUSY | Errno::AGAIN | Errno::TXTBSY => Self::Busy(path),
            Errno::ROFS => Self::ReadOnly(path),
            Errno::EXIST => Self::Exists(path),
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace(path),
            Errno::ISDIR => Self::WrongKind(path),
            other => Self::Io { path, doing, source: other.into() },
        }
    }
}
