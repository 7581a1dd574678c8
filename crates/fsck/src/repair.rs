//! Repair: what a check finds wrong, put right in one new checkpoint.
//!
//! Order:
//! 1. *Survey.* Every tree is read as far as it can be; a node with one flipped bit is corrected by
//!    its checksum. What is wrong with an inode's own records is mended there and then
//!    (`repair/mend.rs`); which blocks are referred to (`repair/space.rs`) and which names lead
//!    where (`repair/names.rs`) is remembered.
//! 2. *Decisions.* Each chunk gets one owner and each block one user (`repair/owners.rs`), each
//!    inode a name, a list of its names or an end (`repair/links.rs`).
//! 3. *Writing.* A shard about which anything was wrong gets a new tree, from all of its records
//!    (`repair/write.rs`); the others keep theirs.
//!
//! Invariants:
//! * Nothing that the last checkpoint refers to is overwritten, but the table of logs that are
//!   given up. What is returned is one checkpoint more, so a power failure leaves the old state or
//!   the new one, and a repair that was interrupted begins anew.
//! * What is in doubt stays so until everything else counts: what took its place before would make
//!   the older one count.
//! * Nothing changes without a [`Mend`] that says so.
//! * File data is never invented: a block with a wrong checksum keeps it, and reading it stays EIO.
//! * A set-id bit of an inode that had to be made anew is not guessed: it has no rights but its
//!   owner's, root.
//!
//! Memory: some hundred bytes for each inode, the records of one shard at a time, and the new
//! trees.

mod bit;
mod collect;
mod footing;
mod inode;
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
pub use mend::Mend;
pub use outcome::{Repair, RepairError};

use crate::read::{Progress, Read};
use records::Shard;
use repairer::Repairer;
use warren_base::ShardId;

/// Works out the repair of the pool on a device of `device_blocks` blocks, which `read` reads. The
/// logs of a pool without the clean mark are given up: to keep what they hold, replay them
/// first.
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

    /// The records of a shard, each inode's own put right.
    fn shard(&mut self, shard: ShardId) -> Shard {
        let mut found = self.collect(shard);
        self.mend(&mut found);
        found
    }
}
