//! A repair that is ready to be written, or why there is none.

use super::mend::Mend;
use thiserror::Error;
use warren_disk::BlockWrite;

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
}

/// A repair that is ready to be written, in the order of its fields; [`Repair::into_stages`] says
/// where flushes are.
#[derive(Clone, Debug)]
pub struct Repair {
    /// In the order in which they were decided on, at most [`MENDS_MAX`].
    pub mends: Vec<Mend>,
    pub further_mends: u64,
    /// Of a pool with logs, which are given up, a log table without any, in both places: what
    /// follows may be written over what the logs name, so first of all they are not replayed any
    /// more.
    pub farewell: Vec<BlockWrite>,
    /// New tree nodes and copies of file data, where nothing is referred to.
    pub body: Vec<BlockWrite>,
    /// Root slots, region map and log table, as far as they do not count.
    pub heads: Vec<BlockWrite>,
    pub superblocks: [BlockWrite; 2],
    /// Slots and pages of the map over those that are in doubt or lost. As long as one of these
    /// lies there the pool is not opened, or not with anything of the past: the rest of the repair
    /// counts before they go.
    pub tails: Vec<BlockWrite>,
}

impl Repair {
    /// What is to be written, and flushed before the next of it is: within each in any order.
    pub fn into_stages(self) -> Vec<Vec<BlockWrite>> {
        let [first, second] = self.superblocks;
        let superblocks = [vec![first], vec![second]];
        let before = [self.farewell, self.body, self.heads].into_iter();
        let all = before.chain(superblocks).chain([self.tails]);
        all.filter(|stage| !stage.is_empty()).collect()
    }
}
