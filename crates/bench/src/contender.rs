//! The file systems that programs are run on, and how each is mounted. Their mounts are in a mount
//! namespace of the benchmark.
//!
//! ```text
//! fuse         Warren, mounted or interposed        interface   what all have in common
//! passthrough  libfuse's example over tmpfs         namespace   mounts that no other process sees
//! kernel       tmpfs, ext4, xfs                     traffic     requests and sleeps of a call
//! ```
//!
//! A new contender has a [`Contender`] of its own and a place in [`set_up`].

pub(crate) mod fuse;
mod interface;
pub(crate) mod kernel;
pub(crate) mod namespace;
mod passthrough;
pub(crate) mod traffic;

use std::path::Path;

use crate::error::BenchError;
use crate::ground::Interruption;
use fuse::WarrenMount;
pub(crate) use interface::Contender;
pub use interface::ContenderName;
use kernel::KernelMount;
use passthrough::Passthrough;

/// The contenders that this machine has.
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
