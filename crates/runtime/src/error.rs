//! The errors of a fleet, one line each: the subject, the fault, and the remedy.
//!
//! An error in a process of the fleet is sent to the process that waits for it as
//! [`Reported`](FleetError::Reported): its kind and its line.

use std::io;
use std::path::{Path, PathBuf};

use warren_base::{Errno, ShardId};
use warren_device::DeviceError;
use warren_log::TargetError;
use warren_transport::TransportError;
pub use warren_transport::control::ErrorKind;

/// Why a fleet did not start, a client was not admitted, or a command failed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("{}: no such file; check the path, or make a pool with `warren mkfs`", .0.display())]
    NoSuchPool(PathBuf),
    #[error("{}: permission denied; run as its owner or as root", .0.display())]
    NoPermission(PathBuf),
    /// The directory for a socket that other users must reach, or one that has a substitute.
    #[error(
        "{}: not this user's directory, so no fleet of this user can have its socket there; {}",
        .directory.display(),
        match .is_open {
            true => "let root remove it: with --clients there is no other place",
            false => "set XDG_RUNTIME_DIR to a directory of your own for all commands, or let root remove it",
        }
    )]
    TakenDirectory { directory: PathBuf, is_open: bool },
    #[error(
        "{}: other users may write to it, so no fleet can have its socket there; `chmod go-w` it",
        .0.display()
    )]
    SharedDirectory(PathBuf),
    #[error("{}: neither a file nor a block device; name a pool made by `warren mkfs`", .0.display())]
    NotAFile(PathBuf),
    #[error("{}: read-only; make it writable or copy it to a writable place", .0.display())]
    ReadOnly(PathBuf),
    #[error("{}: {what}", .pool.display())]
    BadPool { pool: PathBuf, what: String },
    #[error("{}: cannot {doing}: {errno}", .pool.display())]
    PoolIo { pool: PathBuf, doing: &'static str, errno: Errno },
    /// A pool does not grow. It has the size that it had.
    #[error("{}: {what}", .pool.display())]
    Ungrown { pool: PathBuf, what: String },
    #[error("{}: no fleet serves it; start one with `warren serve`", .0.display())]
    NoFleet(PathBuf),
    #[error(
        "{}: its logs have room for {most} cells, not {cells}; choose fewer --cells",
        .pool.display()
    )]
    TooManyCells { pool: PathBuf, cells: u16, most: usize },
    #[error("{0} cells: a fleet has 1 to 64; choose another --cells")]
    CellCount(u16),
    #[error("{}: its fleet does not admit this user; the user who starts it can, with --clients", .0.display())]
    NotAdmitted(PathBuf),
    #[error(
        "{what} needs {needed} descriptors, and {limit} are allowed; raise the limit (ulimit -n {needed})"
    )]
    FewDescriptors { what: String, needed: u64, limit: u64 },
    #[error(
        "{what} writes files of {needed} KiB, and {limit} KiB are allowed; raise the limit (ulimit -f {needed})"
    )]
    ShortFiles { what: String, needed: u64, limit: u64 },
    #[error("{}: its fleet does not answer within {seconds} s: {what}", .pool.display())]
    Silent { pool: PathBuf, seconds: u64, what: String },
    #[error("the fleet refused: {0}; see `warren status`")]
    Refused(Errno),
    #[error(
        "the fleet is too old or too new: it has version {theirs}, this program {ours}; restart it"
    )]
    Version { ours: u32, theirs: u32 },
    #[error("{0} ended unexpectedly; the pool is consistent, start the fleet again")]
    Died(String),
    #[error("{0}; start the fleet again")]
    Ended(warren_supervisor::Failure),
    #[error(
        "its logs cannot be replayed to the pool ({0}) and stay as they are; repair the device, or make room for it, \
         and start the fleet again"
    )]
    Unrecovered(Errno),
    #[error("{0}")]
    DamagedLogs(warren_supervisor::Failure),
    #[error("shard {0} is damaged")]
    Damaged(ShardId),
    #[error("a bug in Warren: {0}; the pool is as of its last checkpoint")]
    Bug(String),
    #[error(
        "the fleet continues to serve, because its last checkpoint failed: {0}; remove the cause and stop it again, \
         or discard what was not synced with `warren stop --discard`"
    )]
    StopRefused(Errno),
    #[error(
        "the fleet continues to serve, because a cell is taken out (see `warren status`): what its files have that was \
         not synced would be lost; take it in again with `warren rejoin`, or discard that with `warren stop --discard`"
    )]
    CellTakenOut,
    #[error(
        "the fleet was not ready within {0} s; `warren status` names a process that is stopped (go on with `kill -CONT`)"
    )]
    NotReady(u64),
    /// A new fleet that was given up.
    #[error(
        "{}: its fleet was not ready within {seconds} s: {states}; its processes were ended, start it again",
        .pool.display()
    )]
    Unready { pool: PathBuf, seconds: u64, states: String },
    #[error("cannot {doing}: {source}")]
    System { doing: &'static str, source: io::Error },
    #[error(transparent)]
    Device(#[from] warren_device::DeviceError),
    #[error(transparent)]
    Memory(#[from] warren_shm::SegmentError),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    Log(#[from] TargetError),
    #[error("{line}")]
    Reported { kind: ErrorKind, line: String },
}

impl FleetError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchPool(_) => ErrorKind::NotFound,
            Self::NoPermission(_)
            | Self::TakenDirectory { .. }
            | Self::SharedDirectory(_)
            | Self::ReadOnly(_)
            | Self::NotAdmitted(_) => ErrorKind::Permission,
            Self::BadPool { .. } | Self::NotAFile(_) | Self::DamagedLogs(_) => ErrorKind::BadPool,
            Self::NoFleet(_) => ErrorKind::NoFleet,
            Self::StopRefused(_) | Self::CellTakenOut => ErrorKind::StopRefused,
            Self::Refused(Errno::EPERM | Errno::EACCES) => ErrorKind::Permission,
            Self::Reported { kind, .. } => *kind,
            Self::Device(error) => kind_of_device(error),
            Self::Log(TargetError::Denied(_)) => ErrorKind::Permission,
            Self::Log(TargetError::NoDirectory(_) | TargetError::NoJournal(_)) => {
                ErrorKind::NotFound
            }
            _ => ErrorKind::Other,
        }
    }

    /// Whether the machine, or this process's limits, had too little of something. Later there may
    /// be enough.
    pub(crate) fn is_shortage(&self) -> bool {
        use rustix::io::Errno as Os;
        let Self::System { source, .. } = self else { return false };
        let short = [Os::AGAIN, Os::NOMEM, Os::MFILE, Os::NFILE];
        source.raw_os_error().is_some_and(|raw| short.iter().any(|os| os.raw_os_error() == raw))
    }

    /// The command's exit status.
    pub fn exit_code(&self) -> u8 {
        match self.kind() {
            ErrorKind::Other => 1,
            ErrorKind::BadPool => 3,
            ErrorKind::PoolInUse => 4,
            ErrorKind::Permission => 5,
            ErrorKind::NotFound => 7,
            ErrorKind::NoFleet => 8,
            ErrorKind::StopRefused => 9,
        }
    }

    /// The error of an attempt to open the pool.
    pub fn opening(pool: &Path, error: &io::Error) -> Self {
        let pool = pool.to_path_buf();
        match error.kind() {
            io::ErrorKind::NotFound => Self::NoSuchPool(pool),
            io::ErrorKind::PermissionDenied => Self::NoPermission(pool),
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly(pool),
            _ => Self::PoolIo { pool, doing: "open it", errno: errno_of(error) },
        }
    }

    /// The error in the form in which it is sent to another process.
    pub(crate) fn report(&self) -> (ErrorKind, Box<[u8]>) {
        (self.kind(), self.to_string().into_bytes().into())
    }

    pub(crate) fn reported(kind: ErrorKind, line: &[u8]) -> Self {
        Self::Reported { kind, line: String::from_utf8_lossy(line).into_owned() }
    }
}

fn kind_of_device(error: &DeviceError) -> ErrorKind {
    match error {
        DeviceError::NotFound(_) => ErrorKind::NotFound,
        DeviceError::Denied(_) | DeviceError::Immutable(_) | DeviceError::ReadOnly(_) => {
            ErrorKind::Permission
        }
        DeviceError::Busy(_) => ErrorKind::PoolInUse,
        DeviceError::WrongKind(_) | DeviceError::TooShort(_) => ErrorKind::BadPool,
        _ => ErrorKind::Other,
    }
}

/// For `map_err`: a system call that has no name of its own in [`FleetError`].
pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> FleetError {
    move |source| FleetError::System { doing, source: source.into() }
}

/// The errno of an I/O error; EIO if it has none.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().and_then(Errno::from_raw).unwrap_or(Errno::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_error_keeps_its_kind_and_line() {
        let error = FleetError::Device(DeviceError::Busy("/pool".into()));
        let (kind, line) = error.report();
        let reported = FleetError::reported(kind, &line);
        assert_eq!(reported.exit_code(), error.exit_code());
        assert_eq!(reported.to_string(), error.to_string());
    }

    #[test]
    fn an_immutable_pool_is_named_with_the_remedy() {
        let error = FleetError::Device(DeviceError::Immutable("/pool".into()));
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(error.to_string().ends_with("`chattr -i -a`"), "{error}");
    }

    #[test]
    fn a_fork_that_fails_is_a_shortage() {
        let of = |raw| system("start a process")(io::Error::from_raw_os_error(raw)).is_shortage();
        assert!([libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE].into_iter().all(of));
        assert!(!of(libc::ENOENT) && !FleetError::Died("x".into()).is_shortage());
    }

    #[test]
    fn opening_names_the_remedy() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        let line = FleetError::opening(Path::new("/no/pool"), &missing).to_string();
        assert_eq!(
            line,
            "/no/pool: no such file; check the path, or make a pool with `warren mkfs`"
        );
    }
}
