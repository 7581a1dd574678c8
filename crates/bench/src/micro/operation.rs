//! The measured operations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Files of the directory that `stat-many` walks through and `readdir` lists.
pub(super) const MANY: u32 = 1000;
/// MiB that `write-fsync` writes before it syncs.
pub(super) const SEQUENTIAL_MIB: u32 = 16;

/// The operations, in the order of a round. Each is one call of the report, also if it takes
/// several system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// `stat` of one file, again and again.
    Stat,
    /// `stat` of [`MANY`] files in turn.
    StatMany,
    StatMissing,
    /// `open` and `close`.
    Open,
    Fstat,
    Pread,
    Pwrite,
    ReadMib,
    Append,
    AppendFsync,
    /// `open` with O_CREAT and O_EXCL, and `close`, in a directory that only this program uses.
    Create,
    Unlink,
    /// The same by two programs at once in one directory.
    CreateShared,
    UnlinkShared,
    /// A new file of 4 KiB: `open`, `write`, `close`.
    WriteFile,
    /// Its first read: `open`, `read`, `close`.
    ReadFile,
    DeleteFile,
    Rename,
    /// `chmod` by path, of each of the files in turn.
    Chmod,
    /// `utimensat` by path.
    Utimens,
    /// `mkdir` and `rmdir`.
    Mkdir,
    /// The whole listing of [`MANY`] names: `opendir` to `closedir`.
    Readdir,
    /// [`SEQUENTIAL_MIB`] writes of 1 MiB, then `fsync`.
    WriteFsync,
    /// `posix_spawn` of `/bin/true`, and the wait for its end.
    Start,
}

/// The way in which the results of an operation are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    /// Compared with tmpfs; it is part of the geometric mean.
    Memory,
    /// Compared with ext4, because tmpfs has nothing to sync.
    Device,
    /// Compared with tmpfs, but not part of the mean: it is not a call to the file system.
    Process,
}

impl Operation {
    pub const ALL: [Self; 24] = [
        Self::Stat,
        Self::StatMany,
        Self::StatMissing,
        Self::Open,
        Self::Fstat,
        Self::Pread,
        Self::Pwrite,
        Self::ReadMib,
        Self::Append,
        Self::AppendFsync,
        Self::Create,
        Self::Unlink,
        Self::CreateShared,
        Self::UnlinkShared,
        Self::WriteFile,
        Self::ReadFile,
        Self::DeleteFile,
        Self::Rename,
        Self::Chmod,
        Self::Utimens,
        Self::Mkdir,
        Self::Readdir,
        Self::WriteFsync,
        Self::Start,
    ];

    /// As it is written on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::StatMany => "stat-many",
            Self::StatMissing => "stat-missing",
            Self::Open => "open",
            Self::Fstat => "fstat",
            Self::Pread => "pread",
            Self::Pwrite => "pwrite",
            Self::ReadMib => "read-mib",
            Self::Append => "append",
            Self::AppendFsync => "append-fsync",
            Self::Create => "create",
            Self::Unlink => "unlink",
            Self::CreateShared => "create-shared",
            Self::UnlinkShared => "unlink-shared",
            Self::WriteFile => "write-file",
            Self::ReadFile => "read-file",
            Self::DeleteFile => "delete-file",
            Self::Rename => "rename",
            Self::Chmod => "chmod",
            Self::Utimens => "utimens",
            Self::Mkdir => "mkdir",
            Self::Readdir => "readdir",
            Self::WriteFsync => "write-fsync",
            Self::Start => "start",
        }
    }

    /// The text of the report.
    pub(crate) const fn description(self) -> &'static str {
        match self {
            Self::Stat => "stat, one file",
            Self::StatMany => "stat, 1,000 files",
            Self::StatMissing => "stat, missing name",
            Self::Open => "open, close",
            Self::Fstat => "fstat",
            Self::Pread => "pread 4 KiB",
            Self::Pwrite => "pwrite 4 KiB",
            Self::ReadMib => "pread 1 MiB",
            Self::Append => "append 4 KiB",
            Self::AppendFsync => "append 4 KiB, fsync",
            Self::Create => "create",
            Self::Unlink => "unlink",
            Self::CreateShared => "create, shared dir.",
            Self::UnlinkShared => "unlink, shared dir.",
            Self::WriteFile => "write 4 KiB file",
            Self::ReadFile => "read 4 KiB file",
            Self::DeleteFile => "delete 4 KiB file",
            Self::Rename => "rename",
            Self::Chmod => "chmod",
            Self::Utimens => "utimens",
            Self::Mkdir => "mkdir, rmdir",
            Self::Readdir => "readdir, 1,000 names",
            Self::WriteFsync => "write 16 MiB, fsync",
            Self::Start => "start of /bin/true",
        }
    }

    pub(super) const fn comparison(self) -> Comparison {
        match self {
            Self::AppendFsync | Self::WriteFsync => Comparison::Device,
            Self::Start => Comparison::Process,
            _ => Comparison::Memory,
        }
    }

    /// Two programs execute it at once.
    pub(super) const fn is_shared(self) -> bool {
        matches!(self, Self::CreateShared | Self::UnlinkShared)
    }

    /// It changes nothing that a repetition would meet, so it can be executed before the clock
    /// starts.
    pub(super) const fn is_repeatable(self) -> bool {
        matches!(
            self,
            Self::Stat
                | Self::StatMany
                | Self::StatMissing
                | Self::Open
                | Self::Fstat
                | Self::Pread
                | Self::Pwrite
                | Self::ReadMib
                | Self::Mkdir
                | Self::Readdir
                | Self::Start
        )
    }

    /// Calls of a batch if `calls` are asked for: more of the short ones, fewer of the long ones,
    /// so that batches differ less in time.
    pub(super) fn batch(self, calls: u32) -> u32 {
        match self {
            Self::Stat | Self::StatMany | Self::StatMissing | Self::Fstat => calls * 10,
            Self::Pread | Self::Pwrite => calls * 5,
            Self::AppendFsync | Self::Start => calls.div_ceil(10),
            Self::ReadMib | Self::Readdir => calls.div_ceil(20),
            Self::WriteFsync => 1,
            _ => calls,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|operation| operation.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no operation has this name; take some of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_one_name_in_every_form() {
        for operation in Operation::ALL {
            assert_eq!(operation.name().parse(), Ok(operation));
            let json = serde_json::to_string(&operation).expect("JSON");
            assert_eq!(json, format!("\"{operation}\""));
        }
        let refused = "chown".parse::<Operation>().expect_err("not an operation");
        assert!(refused.contains("stat-many"), "{refused}");
    }

    #[test]
    fn the_texts_agree_with_the_numbers() {
        let text = Operation::WriteFsync.description();
        assert!(text.contains(&SEQUENTIAL_MIB.to_string()), "{text}");
        for operation in [Operation::StatMany, Operation::Readdir] {
            let digits: String =
                operation.description().chars().filter(char::is_ascii_digit).collect();
            assert_eq!(digits, MANY.to_string());
        }
        assert!(Operation::ALL.into_iter().all(|operation| operation.batch(1) >= 1));
    }
}
