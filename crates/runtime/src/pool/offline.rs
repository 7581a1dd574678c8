//! A pool that this process has for itself, to check, inspect or repair it.
//!
//! A check never writes to the device: the blocks that a replay of the logs writes are kept in
//! memory, as an overlay, and are read instead of the device's. The overlay is at most a few times
//! the size of the logs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno};
use warren_device::PoolFile;
use warren_disk::Superblock;
use warren_fsck::{Footing, KeptLog};

use super::blocks::{self, Blocks, errno_of_device};
use super::recovery::{self, CutLogs};
use crate::error::FleetError;

/// The purpose for which a pool is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To read the pool, while no other process has it open.
    Check,
    /// To write to the pool, while no other process has it open.
    Repair,
    /// To read the pool, even if a fleet serves it and changes it meanwhile.
    Beside,
}

/// The opened pool.
pub struct OfflinePool {
    file: PoolFile,
    path: PathBuf,
    /// The overlay: blocks written, if the device must not be changed.
    over: Option<RefCell<BTreeMap<BlockNo, Box<[u8]>>>>,
}

impl OfflinePool {
    pub fn open(path: &Path, purpose: Purpose) -> Result<Self, FleetError> {
        let file = match purpose {
            Purpose::Check => PoolFile::open_to_check(path),
            Purpose::Repair => PoolFile::open_exclusive(path),
            Purpose::Beside => PoolFile::open_beside(path),
        }?;
        let over = (purpose != Purpose::Repair).then(RefCell::default);
        Ok(Self { file, path: path.to_path_buf(), over })
    }

    /// The pool's file, of a pool that may be written.
    pub(crate) fn file_mut(&mut self) -> &mut PoolFile {
        &mut self.file
    }

    /// The valid superblock.
    pub fn superblock(&self) -> Result<Superblock, FleetError> {
        Ok(blocks::superblock(self, &self.path)?.0)
    }

    /// Whether the pool was not left in order, so that its logs are valid.
    pub fn has_logs(&self) -> Result<bool, FleetError> {
        let (ledger, _) = blocks::load(self, &self.path)?;
        Ok(recovery::is_needed(&ledger))
    }

    /// Replays the logs. If the pool is only checked, as the next start would, which gives up
    /// damaged shards. If the pool may be repaired, this fails where there are any that are not
    /// given up yet: then [`Self::replay_on`] may lose less. If it fails the pool is unchanged.
    pub fn replay(&self) -> Result<(), FleetError> {
        let (ledger, copies) = blocks::load(self, &self.path)?;
        let replayed = match self.over {
            Some(_) => recovery::recover(self, ledger, copies),
            None => recovery::recover_whole(self, ledger, copies),
        };
        if let (Err(_), Some(over)) = (&replayed, &self.over) {
            over.borrow_mut().clear();
        }
        replayed
    }

    /// Replays as much of the logs as possible on `footing`, whose checkpoint is written. Returns
    /// which logs were cut. If it fails the pool is unchanged.
    pub fn replay_on(&self, footing: &Footing) -> Result<CutLogs, FleetError> {
        replay_on(footing, self, &self.path)
    }

    /// Replays the log records that were kept for a shard, of a pool without logs. Returns how many
    /// were replayed. The rest is given up. If it fails the pool is unchanged.
    pub fn replay_kept(&self, kept: &KeptLog) -> Result<u64, FleetError> {
        replay_kept(kept, self, &self.path)
    }
}

fn replay_kept(kept: &KeptLog, pool: &dyn Blocks, path: &Path) -> Result<u64, FleetError> {
    let pool = Corrected { pool, nodes: &kept.corrected, flipped: &kept.flipped };
    let (ledger, copies) = blocks::load(&pool, path)?;
    recovery::replay_kept(&kept.records, &pool, ledger, copies)
}

fn replay_on(footing: &Footing, pool: &dyn Blocks, path: &Path) -> Result<CutLogs, FleetError> {
    let pool = Corrected { pool, nodes: &footing.corrected, flipped: &[] };
    let load = || blocks::load_without(&footing.lost, &pool, path);
    recovery::recover_without(&footing.lost, &pool, load)
}

/// The pool with some of its nodes and root slots corrected.
struct Corrected<'a> {
    pool: &'a dyn Blocks,
    nodes: &'a BTreeMap<BlockNo, Box<[u8]>>,
    /// Bits of root slots. The recovery reads these once, before it writes any.
    flipped: &'a [(BlockNo, usize)],
}

impl Blocks for Corrected<'_> {
    fn len_blocks(&self) -> u64 {
        self.pool.len_blocks()
    }

    fn read(&self, block: BlockNo, into: &mut [u8]) -> Result<(), Errno> {
        self.pool.read(block, into)?;
        lay_over(self.nodes, block, into);
        let blocks = (into.len() / BLOCK_SIZE) as u64;
        for (at, bit) in
            self.flipped.iter().filter(|(at, _)| (block.0..block.0 + blocks).contains(&at.0))
        {
            let byte = (at.0 - block.0) as usize * BLOCK_SIZE + bit / 8;
            into[byte] ^= 1 << (bit % 8);
        }
        Ok(())
    }

    fn write(&self, block: BlockNo, bytes: &[u8]) -> Result<(), Errno> {
        self.pool.write(block, bytes)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.pool.flush()
    }
}

/// Copies the blocks of `over` that lie within what was read from `block` on. Returns their number.
fn lay_over(over: &BTreeMap<BlockNo, Box<[u8]>>, block: BlockNo, into: &mut [u8]) -> usize {
    let end = block.offset((into.len() / BLOCK_SIZE) as u64);
    let mut covered = 0;
    for (at, bytes) in over.range(block..end) {
        let from = (at.0 - block.0) as usize * BLOCK_SIZE;
        into[from..from + BLOCK_SIZE].copy_from_slice(bytes);
        covered += 1;
    }
    covered
}

impl Blocks for OfflinePool {
    fn len_blocks(&self) -> u64 {
        self.file.len_blocks()
    }

    fn read(&self, block: BlockNo, into: &mut [u8]) -> Result<(), Errno> {
        let below = self.file.read_blocks(block, into).map_err(|error| errno_of_device(&error));
        let Some(over) = &self.over else { return below };
        let covered = lay_over(&over.borrow(), block, into);
        if covered == into.len() / BLOCK_SIZE { Ok(()) } else { below }
    }

    fn write(&self, block: BlockNo, bytes: &[u8]) -> Result<(), Errno> {
        let Some(over) = &self.over else {
            return self.file.write_blocks(block, bytes).map_err(|error| errno_of_device(&error));
        };
        let blocks = bytes.chunks_exact(BLOCK_SIZE).map(Box::from);
        over.borrow_mut().extend((block.0..).map(BlockNo).zip(blocks));
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        match self.over {
            Some(_) => Ok(()),
            None => self.file.flush().map_err(|error| errno_of_device(&error)),
        }
    }

    fn reserve(&self, block: BlockNo, count: u64) -> Result<(), Errno> {
        match self.over {
            Some(_) => Ok(()),
            None => self.file.fill(block, count).map_err(|error| errno_of_device(&error)),
        }
    }
}

#[cfg(test)]
mod tests;
