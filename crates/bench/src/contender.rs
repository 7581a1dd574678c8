//! The file systems that programs are run on: their interface, and how each is mounted. Their mounts
//! are in a mount namespace of the benchmark.
//!
//! ```text
//! fuse         Warren, mounted or interposed        namespace   mounts that no other process sees
//! passthrough  libfuse's example over tmpfs         traffic     requests and sleeps of a call
//! kernel       tmpfs, ext4, xfs
//! ```
//!
//! A new contender has a [`Contender`] of its own and a place in [`set_up`].

pub(crate) mod fuse;
mod kernel;
pub(crate) mod namespace;
mod passthrough;
pub(crate) mod traffic;

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::ground::Interruption;
use crate::process;
use fuse::WarrenMount;
use kernel::KernelMount;
use passthrough::Passthrough;
use traffic::Traffic;

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

/// Those that this machine has.
pub(crate) struct Contenders {
    pub set_up: Vec<Box<dyn Contender>>,
    /// The others, each with the reason.
    pub left_out: Vec<String>,
}

impl Contenders {
    /// In the order of the report. Without Warren's own mount nothing is worth a comparison, so
    /// that the reason why there is none is an error.
    pub(crate) fn new(
        names: &[ContenderName],
        scratch: &Path,
        cells: u16,
        interruption: &Interruption,
    ) -> Result<Self, BenchError> {
        let mut contenders = Self { set_up: Vec::new(), left_out: Vec::new() };
        for name in ContenderName::ALL.into_iter().filter(|name| names.contains(name)) {
            interruption.check()?;
            match set_up(name, scratch, cells, interruption) {
                Ok(contender) => contenders.set_up.push(contender),
                Err(BenchError::Unavailable(why)) if name != ContenderName::Fuse => {
                    contenders.left_out.push(format!("{name}: {why}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(contenders)
    }
}

/// Makes a contender under a directory of the benchmark's own. Warren has so many cells.
fn set_up(
    name: ContenderName,
    scratch: &Path,
    cells: u16,
    interruption: &Interruption,
) -> Result<Box<dyn Contender>, BenchError> {
    let at = scratch.join(name.name());
    Ok(match name {
        ContenderName::Interposed => Box::new(WarrenMount::interposed(scratch, at, cells)?),
        ContenderName::Fuse => Box::new(WarrenMount::new(scratch, at, cells)?),
        ContenderName::PassthroughLl => Box::new(Passthrough::new(scratch, at, interruption)?),
        ContenderName::Tmpfs => Box::new(KernelMount::tmpfs(at)?),
        ContenderName::Ext4 => Box::new(KernelMount::ext4(scratch, at)?),
        ContenderName::Xfs => Box::new(KernelMount::xfs(scratch, at)?),
    })
}

impl ContenderName {
    pub const ALL: [Self; 6] =
        [Self::Interposed, Self::Fuse, Self::PassthroughLl, Self::Tmpfs, Self::Ext4, Self::Xfs];

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
