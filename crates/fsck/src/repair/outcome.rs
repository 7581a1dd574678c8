//! A repair that is ready to be written, or why there is none.

use super::mend::Mend;
use thiserror::Error;
use warren_disk::{BlockWrite, NodeError};

/// Why a pool cannot be repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RepairError {
    #[error("neither superblock can be read")]
    NoSuperblock,
    #[error("the end of the device is cut off")]
    TooShort,
    #[error("no free space for what has to be written anew")]
    NoSpace,
    #[error("the shard of the root directory has no numbers of inodes left")]
    NoNumbers,
    /// A fault of this program: nothing is written then.
    #[error("the repair would write a node that no cell can read: {0}")]
    Unreadable(NodeError),
}

/// A repair that is ready to be written, in the order of its fields; [`Repair::into_stages`]
/// defines the flushes.
#[derive(Clone, Debug)]
pub struct Repair {
    /// In the order of the decisions, at most [`MENDS_MAX`].
    pub mends: Vec<Mend>,
    pub further_mends: u64,
    /// For a pool whose logs are discarded, a log table without logs, at both places. The later
    /// writes may overwrite blocks that the logs name, so these must first be out of use.
    pub farewell: Vec<BlockWrite>,
    /// New tree nodes and copies of file data, in blocks without a reference.
    pub body: Vec<BlockWrite>,
    /// Root slots, region map and log table, at the places that are not valid.
    pub heads: Vec<BlockWrite>,
    pub superblocks: [BlockWrite; 2],
    /// Overwrites slots and pages of the map that are in doubt or lost. While one of these exists,
    /// the pool is not opened, or not from stale copies; so the rest of the repair must be valid
    /// first.
    pub tails: Vec<BlockWrite>,
}

impl Repair {
    /// The writes in stages: each stage is flushed before the next, and its writes may be in any
    /// order.
    pub fn into_stages(self) -> Vec<Vec<BlockWrite>> {
        let [first, second] = self.superblocks;
        let superblocks = [vec![first], vec![second]];
        let before = [self.farewell, self.body, self.heads].into_iter();
        let all = before.chain(superblocks).chain([self.tails]);
        all.filter(|stage| !stage.is_empty()).collect()
    }
}
