//! What is measured, and who is measured doing it.

use serde::{Deserialize, Serialize};
use warren_base::Errno;

/// Bytes that one read or write moves.
pub const IO_BYTES: usize = 4096;

/// The operations, in the order in which a round runs them: what a create makes an unlink removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// There and back.
    Null,
    /// Attributes of an inode that is at hand, from its cell.
    Stat,
    /// A name, and the attributes of what it leads to, from its cell.
    Lookup,
    /// Attributes by path, from copies under leases.
    StatCached,
    Create,
    Read,
    Write,
    Unlink,
}

impl Operation {
    pub const ALL: [Self; 8] = [
        Self::Null,
        Self::Stat,
        Self::Lookup,
        Self::StatCached,
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
            Self::Lookup | Self::StatCached => "fstatat",
            Self::Create => "mknodat",
            Self::Read => "pread",
            Self::Write => "pwrite",
            Self::Unlink => "unlinkat",
        }
    }

    /// What the design wants it to take, where it names a time, in nanoseconds.
    pub const fn aim_ns(self) -> Option<f64> {
        match self {
            Self::Null => Some(400.0),
            Self::Stat => Some(600.0),
            Self::Create | Self::Unlink => Some(1500.0),
            Self::Read => Some(700.0),
            Self::Write => Some(900.0),
            Self::Lookup | Self::StatCached => None,
        }
    }
}

/// Somebody who can do all of them on one directory, in which one file is open.
pub trait Subject {
    fn name(&self) -> &str;

    /// Gets ready for batches of up to `names` calls. Names may be used again once they are removed.
    fn prepare(&mut self, names: u32) -> Result<(), Errno>;

    /// What goes before every batch and is not timed, so that nobody sleeps when it begins.
    fn warm_up(&mut self) -> Result<(), Errno>;

    /// Does the operation with name number `at`.
    fn perform(&mut self, operation: Operation, at: u32) -> Result<(), Errno>;
}

/// The name of the file that stays, and those of the files that come and go.
pub fn name_of(at: u32) -> String {
    format!("file-{at:06}")
}
/// The name of the contender that all others are compared with.
pub const WARREN: &str = "warren";
pub const STAYING: &str = "a file";
