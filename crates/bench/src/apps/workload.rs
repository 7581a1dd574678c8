//! The programs that are run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The workloads, in the order of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    TarExtract,
    TarCreate,
    Copy,
    Remove,
    GitCommit,
    GitStatus,
    GitClone,
    MakeJ2,
    MakeJ4,
    Configure,
    ShellLoop,
    Sqlite,
    Rocksdb,
    Varmail,
    Webserver,
}

/// A program that a workload needs, and the package of Debian that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    pub program: &'static str,
    pub package: &'static str,
}

const TAR: Need = Need { program: "tar", package: "tar" };
const GIT: Need = Need { program: "git", package: "git" };
const MAKE: Need = Need { program: "make", package: "make" };
const CC: Need = Need { program: "cc", package: "gcc" };
const SQLITE: Need = Need { program: "sqlite3", package: "sqlite3" };
const DB_BENCH: Need = Need { program: "db_bench", package: "rocksdb-tools" };

impl Workload {
    pub const ALL: [Self; 15] = [
        Self::TarExtract,
        Self::TarCreate,
        Self::Copy,
        Self::Remove,
        Self::GitCommit,
        Self::GitStatus,
        Self::GitClone,
        Self::MakeJ2,
        Self::MakeJ4,
        Self::Configure,
        Self::ShellLoop,
        Self::Sqlite,
        Self::Rocksdb,
        Self::Varmail,
        Self::Webserver,
    ];

    /// As it is written on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TarExtract => "tar-extract",
            Self::TarCreate => "tar-create",
            Self::Copy => "copy",
            Self::Remove => "remove",
            Self::GitCommit => "git-commit",
            Self::GitStatus => "git-status",
            Self::GitClone => "git-clone",
            Self::MakeJ2 => "make-j2",
            Self::MakeJ4 => "make-j4",
            Self::Configure => "configure",
            Self::ShellLoop => "shell-loop",
            Self::Sqlite => "sqlite",
            Self::Rocksdb => "rocksdb",
            Self::Varmail => "varmail",
            Self::Webserver => "webserver",
        }
    }

    /// The text of the report.
    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::TarExtract => "tar -x, 3 trees",
            Self::TarCreate => "tar -c, 3 trees",
            Self::Copy => "cp -a, 3 trees",
            Self::Remove => "rm -r, 3 trees",
            Self::GitCommit => "git add, commit",
            Self::GitStatus => "git status, 10 times",
            Self::GitClone => "git clone",
            Self::MakeJ2 => "make -j2",
            Self::MakeJ4 => "make -j4",
            Self::Configure => "configure",
            Self::ShellLoop => "shell, 1,000 commands",
            Self::Sqlite => "sqlite3, 200 commits",
            Self::Rocksdb => "rocksdb, fill and read",
            Self::Varmail => "varmail, 4 threads",
            Self::Webserver => "webserver, 4 threads",
        }
    }

    /// It waits for the device most of its time. It is compared with ext4 only, because tmpfs has
    /// nothing to sync.
    pub(super) const fn syncs(self) -> bool {
        matches!(self, Self::Sqlite | Self::Varmail)
    }

    pub(super) const fn needs(self) -> &'static [Need] {
        match self {
            Self::TarExtract | Self::TarCreate => &[TAR],
            Self::GitCommit | Self::GitStatus | Self::GitClone => &[GIT],
            Self::MakeJ2 | Self::MakeJ4 => &[MAKE, CC],
            Self::Configure => &[CC],
            Self::Sqlite => &[SQLITE],
            Self::Rocksdb => &[DB_BENCH],
            Self::Copy | Self::Remove | Self::ShellLoop | Self::Varmail | Self::Webserver => &[],
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|workload| workload.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no workload has this name; take some of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_one_name_in_every_form() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse(), Ok(workload));
            let json = serde_json::to_string(&workload).expect("JSON");
            assert_eq!(json, format!("\"{workload}\""));
        }
        let refused = "emacs".parse::<Workload>().expect_err("not a workload");
        assert!(refused.contains("tar-extract"), "{refused}");
    }
}
