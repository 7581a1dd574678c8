//! Repair: computes one new checkpoint without the faults that a check finds.
//!
//! Order:
//! 1. *Survey.* Reads every tree as far as possible; corrects a node with one flipped bit by its
//!    checksum. Repairs faults in an inode's own records at once (`repair/mend.rs`), and records
//!    which blocks are referred to (`repair/space.rs`) and which names lead to which inodes
//!    (`repair/names.rs`).
//! 2. *Decisions.* Gives each chunk one owner and each block one user (`repair/owners.rs`); gives
//!    each inode a name, a list of its names, or deletes it (`repair/links.rs`).
//! 3. *Writing.* Builds a new tree from all records for each shard with a fault
//!    (`repair/write.rs`); the other shards keep theirs.
//!
//! Invariants:
//! * The repair overwrites nothing that the last checkpoint refers to, except the table of
//!   discarded logs. Its result is a further checkpoint, so a power failure leaves the old state or
//!   the new one, and an interrupted repair starts again.
//! * A copy in doubt stays in doubt until everything else is valid: overwriting it earlier would
//!   make the older copy valid.
//! * Every change has a [`Mend`] that reports it.
//! * File data is never invented: a block with a wrong checksum keeps it, and reading it stays EIO.
//! * The set-id bits of an inode that had to be created anew are not guessed: it gets only rights
//!   for its owner, root.
//!
//! Memory: some hundred bytes per inode, the records of one shard at a time, and the new trees.

mod collect;
mod footing;
mod inode;
mod kept;
mod links;
mod mend;
mod names;
mod outcome;
mod owners;
mod records;
mod repairer;
mod space;
mod write;

pub use footing::{Footing, NoFooting, footing};
pub use kept::{KeptLog, kept_logs};
pub use mend::Mend;
pub use outcome::{Repair, RepairError};

use crate::read::{Progress, Read};
use records::Shard;
use repairer::Repairer;
use warren_base::ShardId;

/// Computes the repair of the pool on a device of `device_blocks` blocks, read through `read`.
/// Discards the logs of a pool without the clean mark: to keep their content, replay them first.
pub fn repair(
    device_blocks: u64,
    read: Read<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Repair, RepairError> {
    let mut repairer = Repairer::begin(device_blocks, read)?;
    repairer.survey(progress);
    repairer.decide_space();
    repairer.decide_names()?;
    repairer.write(progress)
}

impl Repairer<'_> {
    fn survey(&mut self, progress: &mut dyn FnMut(Progress)) {
        let shards = self.superblock.layout.shards();
        for shard in (0..shards).map(ShardId) {
            let before = self.mends.count;
            let found = self.shard(shard);
            self.space.add(shard, &found);
            self.census.add(&found);
            if found.incomplete || self.mends.count != before {
                self.dirty.insert(shard);
            }
            let blocks_read = self.reader.blocks_read;
            progress(Progress { shards_done: shard.0 + 1, shards, blocks_read });
        }
        self.mends.reported = true;
    }

    /// The records of a shard, after repairing each inode's own.
    fn shard(&mut self, shard: ShardId) -> Shard {
        let mut found = self.collect(shard);
        self.mend(&mut found);
        found
    }
}
