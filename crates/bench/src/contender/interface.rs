//! The interface of a contender, and the names of all.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::traffic::Traffic;
use crate::error::BenchError;
use crate::process;

/// The contenders, in the order of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ContenderName {
    /// Warren, mounted, and with the library in the programs that answers calls without the kernel.
    #[serde(rename = "interposed")]
    Interposed,
    /// Warren, mounted.
    #[serde(rename = "fuse")]
    Fuse,
    /// The example of libfuse, with write-back and long time-outs, over tmpfs.
    #[serde(rename = "passthrough_ll")]
    PassthroughLl,
    #[serde(rename = "tmpfs")]
    Tmpfs,
    #[serde(rename = "ext4")]
    Ext4,
    #[serde(rename = "xfs")]
    Xfs,
}

/// A file system at a path. It is unmounted, and its processes end, when it is dropped.
pub(crate) trait Contender {
    fn name(&self) -> ContenderName;

    /// The directory under which programs make their files.
    fn directory(&self) -> &Path;

    /// Adds to a command what a program on it needs beside the path, like a library.
    fn prepare(&self, _command: &mut Command) {}

    /// The command that starts this program on it, so far without arguments.
    fn program(&self) -> Command {
        let mut command = process::this_program();
        self.prepare(&mut command);
        command
    }

    /// Counts of the processes that serve it, when they have done what they were asked. `None` if
    /// it has none, or none that are known.
    fn traffic(&self) -> Result<Option<Traffic>, BenchError> {
        Ok(None)
    }
}

impl ContenderName {
    pub const ALL: [Self; 6] =
        [Self::Interposed, Self::Fuse, Self::PassthroughLl, Self::Tmpfs, Self::Ext4, Self::Xfs];

    /// It is Warren, served by a fleet.
    pub(crate) const fn has_cells(self) -> bool {
        matches!(self, Self::Interposed | Self::Fuse)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Interposed => "interposed",
            Self::Fuse => "fuse",
            Self::PassthroughLl => "passthrough_ll",
            Self::Tmpfs => "tmpfs",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

impl fmt::Display for ContenderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ContenderName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|contender| contender.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no contender has this name; take some of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_has_one_name_in_every_form() {
        for contender in ContenderName::ALL {
            assert_eq!(contender.name().parse(), Ok(contender));
            let json = serde_json::to_string(&contender).expect("JSON");
            assert_eq!(json, format!("\"{contender}\""));
        }
        assert!("nfs".parse::<ContenderName>().is_err());
    }
}
