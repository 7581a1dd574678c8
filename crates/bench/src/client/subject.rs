//! The measured operations, and the interface of the contenders.

use serde::{Deserialize, Serialize};
use warren_base::Errno;
use warren_proto::Credentials;

/// Bytes that one read or write moves.
pub(super) const IO_BYTES: usize = 4096;

/// The operations, in the order of a round: an unlink removes the file of a create.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A round trip.
    Null,
    /// Attributes of a known inode, from its cell.
    Stat,
    /// A name, and the attributes of its inode, from its cell.
    Lookup,
    /// Attributes by path, from copies under leases.
    StatCached,
    /// The same by the whole path, without a walk.
    StatByPath,
    Create,
    Read,
    Write,
    Unlink,
}

impl Operation {
    pub const ALL: [Self; 9] = [
        Self::Null,
        Self::Stat,
        Self::Lookup,
        Self::StatCached,
        Self::StatByPath,
        Self::Create,
        Self::Read,
        Self::Write,
        Self::Unlink,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null request",
            Self::Stat => "stat (message)",
            Self::Lookup => "stat by name (message)",
            Self::StatCached => "stat by name (cached)",
            Self::StatByPath => "stat by path (cached)",
            Self::Create => "create",
            Self::Read => "read 4 KiB",
            Self::Write => "write 4 KiB",
            Self::Unlink => "unlink",
        }
    }

    /// The system call that does the same.
    pub const fn call(self) -> &'static str {
        match self {
            Self::Null => "getppid",
            Self::Stat => "fstat",
            Self::Lookup | Self::StatCached | Self::StatByPath => "fstatat",
            Self::Create => "mknodat",
            Self::Read => "pread",
            Self::Write => "pwrite",
            Self::Unlink => "unlinkat",
        }
    }

    /// The aim of the design in nanoseconds, if it has one.
    pub const fn aim_ns(self) -> Option<f64> {
        match self {
            Self::Null => Some(400.0),
            Self::Stat => Some(600.0),
            Self::Create | Self::Unlink => Some(1500.0),
            Self::Read => Some(700.0),
            Self::Write => Some(900.0),
            Self::Lookup | Self::StatCached | Self::StatByPath => None,
        }
    }
}

/// Executes all operations on one directory, in which one file is open.
pub(super) trait Subject {
    fn name(&self) -> &str;

    /// Gets ready for batches of up to `names` calls. Names may be used again once they are
    /// removed.
    fn prepare(&mut self, names: u32) -> Result<(), Errno>;

    /// Precedes each batch and is not timed, so that no thread sleeps when the batch begins.
    fn warm_up(&mut self) -> Result<(), Errno>;

    /// Executes the operation with name number `at`.
    fn perform(&mut self, operation: Operation, at: u32) -> Result<(), Errno>;
}

/// The name of a file that is created and removed.
pub(super) fn name_of(at: u32) -> String {
    format!("file-{at:06}")
}

/// The contender that all others are compared with.
pub(super) const WARREN: &str = "warren";

/// The name of the file that stays.
pub(super) const STAYING: &str = "a file";

/// The credentials of this process.
pub(crate) fn own_credentials() -> Credentials {
    let mut groups: Vec<u32> = rustix::process::getgroups()
        .unwrap_or_default()
        .into_iter()
        .map(|group| group.as_raw())
        .collect();
    groups.sort_unstable();
    Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups,
        checked_by_kernel: false,
    }
}
