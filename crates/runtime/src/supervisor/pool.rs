//! The pool as the supervisor has it: locked, read, and written only by the supervisor (cells write
//! blocks of chunks, the supervisor all blocks before them).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, CellId, Errno, ShardId};
use warren_cell::Backing;
use warren_device::PoolFile;
use warren_disk::{CopiesState, Layout, Owner};
use warren_supervisor::Ledger;

use super::memory::incomplete;
use crate::error::{FleetError, system};
use crate::message::Runs;
use crate::pool::blocks::{self, Blocks, errno_of_device};
use crate::pool::grow;

/// A pool that this fleet has locked.
pub(super) struct OpenPool {
    /// Every process with a descriptor of this open file holds the lock.
    lock: PoolFile,
    /// The open file for reads and writes.
    file: PoolFile,
}

impl OpenPool {
    /// Locks the pool and reads its metadata.
    pub(super) fn open(path: &Path) -> Result<(Self, Ledger, CopiesState), FleetError> {
        let file = PoolFile::open_exclusive(path)?;
        let pool = Self { file: file.try_clone()?, lock: file };
        let (ledger, copies) = blocks::load(&pool, path)?;
        Ok((pool, ledger, copies))
    }

    /// Takes over the pool of an earlier supervisor: its lock, and an open file that was made
    /// before that supervisor wrote anything, so that write errors since then are still reported on
    /// it.
    pub(super) fn adopt(kept: Vec<OwnedFd>, path: &Path) -> Result<Self, FleetError> {
        let [lock, file]: [OwnedFd; 2] = kept.try_into().map_err(|_| incomplete())?;
        let [lock, file] = [PoolFile::from_fd(lock, path)?, PoolFile::from_fd(file, path)?];
        Ok(Self { lock, file })
    }

    /// Copies for the keeper: the lock, and an open file for the next supervisor. They must be made
    /// before this supervisor writes.
    pub(super) fn kept(&self) -> Result<Vec<OwnedFd>, FleetError> {
        Ok(vec![self.share()?, self.reopen()?])
    }

    /// Blocks that the host can still allocate.
    pub(super) fn host_room(&self) -> u64 {
        self.file.host_room()
    }

    /// Damage to the pool's file, which should have so many blocks.
    pub(super) fn harm(&self, blocks: u64) -> Option<&'static str> {
        self.file.harm(blocks)
    }

    /// Makes the file so many blocks long and has the host allocate these runs of it. A block
    /// device must have them.
    pub(super) fn extend(
        &mut self,
        blocks: u64,
        runs: &[(BlockNo, u64)],
    ) -> Result<(), FleetError> {
        let Self { file, lock } = self;
        grow::extend(file, blocks, runs)?;
        lock.grow(blocks);
        Ok(())
    }

    /// Bytes behind the pool that it could grow into.
    pub(super) fn bytes_behind(&self, layout: &Layout) -> u64 {
        layout.bytes_behind(self.file.len_now())
    }

    pub(super) fn backing(&self, ledger: &Ledger) -> Backing {
        match (self.file.is_block_device(), ledger.superblock().reserved) {
            (true, _) => Backing::Device,
            (false, true) => Backing::Whole,
            (false, false) => Backing::OnDemand,
        }
    }

    /// Has the host allocate the used chunks, or the whole pool. They are allocated already, unless
    /// the file was copied sparsely or made sparse.
    pub(super) fn reserve_used(&self, ledger: &Ledger) -> Result<(), FleetError> {
        let is_used = |owner| owner != Owner::Free || ledger.superblock().reserved;
        for (block, count) in runs(ledger, is_used) {
            self.file.reserve(block, count)?;
        }
        Ok(())
    }

    /// Returns free chunks to the host that an earlier fleet kept allocated.
    pub(super) fn discard_free(&self, ledger: &Ledger) -> Result<(), FleetError> {
        if self.backing(ledger) == Backing::OnDemand {
            for (block, count) in runs(ledger, |owner| owner == Owner::Free) {
                self.file.discard(block, count)?;
            }
        }
        Ok(())
    }

    /// A new open file, for a cell's I/O.
    pub(super) fn reopen(&self) -> Result<OwnedFd, FleetError> {
        Ok(self.file.reopen()?.into())
    }

    /// The same open file, and so the same lock, for a cell.
    pub(super) fn share(&self) -> Result<OwnedFd, FleetError> {
        self.lock.as_fd().try_clone_to_owned().map_err(system("share the pool device"))
    }
}

impl Blocks for OpenPool {
    fn len_blocks(&self) -> u64 {
        self.file.len_blocks()
    }

    fn read(&self, block: BlockNo, into: &mut [u8]) -> Result<(), Errno> {
        self.file.read_blocks(block, into).map_err(|error| errno_of_device(&error))
    }

    fn write(&self, block: BlockNo, bytes: &[u8]) -> Result<(), Errno> {
        self.file.write_blocks(block, bytes).map_err(|error| errno_of_device(&error))
    }

    fn flush(&self) -> Result<(), Errno> {
        self.file.flush().map_err(|error| errno_of_device(&error))
    }

    fn reserve(&self, block: BlockNo, count: u64) -> Result<(), Errno> {
        self.file.fill(block, count).map_err(|error| errno_of_device(&error))
    }
}

/// Runs of blocks in neighbouring chunks with such owners.
fn runs(ledger: &Ledger, wanted: impl Fn(Owner) -> bool) -> Vec<(BlockNo, u64)> {
    let regions = ledger.regions();
    let chunks = regions.iter().filter(|&(_, owner)| wanted(owner)).map(|(chunk, _)| chunk);
    let chunks: Vec<u64> = chunks.collect();
    let runs = chunks.chunk_by(|a, b| a + 1 == *b);
    let blocks = |chunks: u64| chunks * CHUNK_BLOCKS;
    runs.map(|run| (BlockNo(blocks(run[0])), blocks(run.len() as u64))).collect()
}

/// The shards of a cell with their root slots, for a `CellStart`.
pub(super) fn roots_of(ledger: &Ledger, owners: &[CellId], cell: CellId) -> Vec<(u16, Box<[u8]>)> {
    let shards = (0..owners.len() as u16).filter(|&shard| owners[usize::from(shard)] == cell);
    shards.filter_map(|shard| Some((shard, ledger.root(ShardId(shard))?.encode()))).collect()
}

/// The chunks of the cell's shards, in runs.
pub(super) fn chunks_of(ledger: &Ledger, owners: &[CellId], cell: CellId) -> Vec<(u16, Runs)> {
    let chunks = ledger.chunks_of_shards().into_iter();
    let own = chunks.filter(|(shard, _)| owners[usize::from(shard.0)] == cell);
    own.map(|(shard, chunks)| (shard.0, Runs::of(&chunks))).collect()
}
