//! The pool as the supervisor has it: locked, read, and written only by itself (cells write blocks
//! of chunks, the supervisor everything before them).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Errno, ShardId};
use warren_device::{DeviceError, PoolFile};
use warren_disk::{CopiesState, Owner, Superblock, SuperblockError};
use warren_supervisor::Ledger;

use super::memory::incomplete;
use crate::error::{FleetError, system};
use crate::message::Runs;

/// What stands for a block that cannot be read: no magic, and not the zeros of a block never written.
const UNREADABLE: u8 = 0xEE;

/// A pool that this fleet has locked.
pub struct OpenPool {
    /// Whoever has a descriptor of this open file holds the lock.
    lock: PoolFile,
    /// What is read and written.
    file: PoolFile,
}

impl OpenPool {
    /// Locks the pool and reads what the supervisor must know of it.
    pub fn open(path: &Path) -> Result<(Self, Ledger, CopiesState), FleetError> {
        let file = match PoolFile::open_exclusive(path) {
            Err(DeviceError::TooShort { .. }) => return Err(not_a_pool(path)),
            file => file?,
        };
        let pool = Self { file: file.try_clone()?, lock: file };
        let (ledger, copies) = pool.load(path)?;
        Ok((pool, ledger, copies))
    }

    /// One that an earlier supervisor had opened: its lock, and an open file that was made before it wrote
    /// anything, so that errors of what it wrote are still to be seen there.
    pub fn adopt(kept: Vec<OwnedFd>, path: &Path) -> Result<Self, FleetError> {
        let [lock, file]: [OwnedFd; 2] = kept.try_into().map_err(|_| incomplete())?;
        let [lock, file] = [PoolFile::from_fd(lock, path)?, PoolFile::from_fd(file, path)?];
        Ok(Self { lock, file })
    }

    /// For the keeper: the lock, and an open file for the next supervisor. Before this one writes.
    pub fn kept(&self) -> Result<Vec<OwnedFd>, FleetError> {
        Ok(vec![self.share()?, self.reopen()?])
    }

    /// Reads what the supervisor must know of the pool.
    pub fn load(&self, path: &Path) -> Result<(Ledger, CopiesState), FleetError> {
        let (superblock, copies) = self.superblock(path)?;
        let layout = superblock.layout;
        let (has, needs) = (self.file.len_blocks(), layout.total_blocks());
        if has < needs {
            return Err(FleetError::BadPool {
                pool: path.to_path_buf(),
                what: format!("truncated: has {has} of {needs} blocks; restore it from a copy"),
            });
        }
        let pages = layout.region_pages();
        let [first, second] = [0, 1].map(|copy| self.read(layout.region_page(copy, 0), pages));
        let roots = self.read(layout.roots_start(), 2 * layout.roots_blocks());
        let tables = [0, 1].map(|copy| self.read(layout.log_table(copy), 1));
        let tables = [&tables[0][..], &tables[1]];
        let ledger = Ledger::load(superblock, [&first, &second], &roots, tables)
            .map_err(|error| damaged(path, &error.to_string()))?;
        Ok((ledger, copies))
    }

    fn superblock(&self, path: &Path) -> Result<(Superblock, CopiesState), FleetError> {
        if self.file.len_blocks() < 2 {
            return Err(not_a_pool(path));
        }
        let blocks = self.read(BlockNo(0), 2);
        let (a, b) = blocks.split_at(BLOCK_SIZE);
        match Superblock::choose(a, b) {
            Ok(chosen) => Ok(chosen),
            Err(SuperblockError::NotAPool) => Err(not_a_pool(path)),
            Err(error @ SuperblockError::UnknownVersion(_)) => Err(FleetError::BadPool {
                pool: path.to_path_buf(),
                what: format!("{error}; use the version of Warren that made it"),
            }),
            Err(error) => Err(damaged(path, &error.to_string())),
        }
    }

    /// Blocks of which there are two each. One that cannot be read is as one that is damaged: the other
    /// may do.
    fn read(&self, block: BlockNo, blocks: u64) -> Vec<u8> {
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        if self.file.read_blocks(block, &mut bytes).is_ok() {
            return bytes;
        }
        for (at, bytes) in (0..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            if self.file.read_blocks(block.offset(at), bytes).is_err() {
                bytes.fill(UNREADABLE);
            }
        }
        bytes
    }

    /// Waits.
    pub fn read_for_recovery(&self, block: BlockNo, blocks: u64) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        self.file.read_blocks(block, &mut bytes).map_err(|error| errno_of_device(&error))?;
        Ok(bytes)
    }

    /// Waits.
    pub fn write(&self, block: BlockNo, bytes: &[u8]) -> Result<(), Errno> {
        self.file.write_blocks(block, bytes).map_err(|error| errno_of_device(&error))
    }

    /// Waits.
    pub fn flush(&self) -> Result<(), Errno> {
        self.file.flush().map_err(|error| errno_of_device(&error))
    }

    /// For a cell's I/O: an open file of its own.
    pub fn reopen(&self) -> Result<OwnedFd, FleetError> {
        Ok(self.file.reopen()?.into())
    }

    /// For a cell: the same open file, and so the same lock.
    pub fn share(&self) -> Result<OwnedFd, FleetError> {
        self.lock.as_fd().try_clone_to_owned().map_err(system("share the pool device"))
    }
}

fn errno_of_device(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Io { source, .. } => crate::error::errno_of(source),
        DeviceError::NoSpace(_) => Errno::ENOSPC,
        _ => Errno::EIO,
    }
}

fn not_a_pool(path: &Path) -> FleetError {
    FleetError::BadPool {
        pool: path.to_path_buf(),
        what: "not a Warren pool; make one with `warren mkfs`".into(),
    }
}

fn damaged(path: &Path, why: &str) -> FleetError {
    FleetError::BadPool {
        pool: path.to_path_buf(),
        what: format!("{why}; check the pool with `warren fsck`"),
    }
}

/// Owner of every shard: round-robin, so that neighbours (and the siblings that a directory's
/// children are hashed to) spread over all cells.
pub fn owners(shards: u16, cells: u16) -> Vec<CellId> {
    (0..shards).map(|shard| CellId(shard % cells)).collect()
}

/// The free chunks as each cell gets them to begin with: contiguous pieces of about equal size, so
/// that what a cell writes lies together.
pub fn shares_of_free(ledger: &Ledger, cells: u16) -> Vec<Vec<u64>> {
    let regions = ledger.regions();
    let free: Vec<u64> =
        regions.iter().filter(|&(_, owner)| owner == Owner::Free).map(|(chunk, _)| chunk).collect();
    let cells = usize::from(cells);
    let (share, extra) = (free.len() / cells, free.len() % cells);
    let mut rest = free.as_slice();
    (0..cells)
        .map(|cell| {
            let (mine, others) = rest.split_at(share + usize::from(cell < extra));
            rest = others;
            mine.to_vec()
        })
        .collect()
}

/// The shards of a cell with their root slots, as a `CellStart` carries them.
pub fn roots_of(ledger: &Ledger, owners: &[CellId], cell: CellId) -> Vec<(u16, Box<[u8]>)> {
    let shards = (0..owners.len() as u16).filter(|&shard| owners[usize::from(shard)] == cell);
    shards
        .map(|shard| {
            let root = ledger.root(ShardId(shard));
            (shard, root.map(|root| root.encode()).unwrap_or_default())
        })
        .collect()
}

/// The chunks of the cell's shards, in runs.
pub fn chunks_of(ledger: &Ledger, owners: &[CellId], cell: CellId) -> Vec<(u16, Runs)> {
    let chunks = ledger.chunks_of_shards().into_iter();
    let own = chunks.filter(|(shard, _)| owners[usize::from(shard.0)] == cell);
    own.map(|(shard, chunks)| (shard.0, Runs::of(&chunks))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_shards_lie_on_different_cells() {
        for cells in 2..=64 {
            let owners = owners(256, cells);
            assert!(owners.windows(2).all(|pair| pair[0] != pair[1]));
            assert_eq!(owners.iter().max(), Some(&CellId(cells - 1)));
        }
    }
}
