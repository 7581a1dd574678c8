//! The blocks of a pool that a fleet or a command has open, and the metadata that a supervisor
//! reads first.

use std::collections::BTreeSet;
use std::path::Path;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno, ShardId};
use warren_device::DeviceError;
use warren_disk::{CopiesState, Superblock, SuperblockError};
use warren_supervisor::Ledger;

use crate::error::FleetError;

/// Fills a block that cannot be read. It is no magic number, and differs from the zeros of a block
/// that was never written.
const UNREADABLE: u8 = 0xEE;

/// A device may fail to read a block now and read it a moment later.
const READ_TRIES: u32 = 3;

/// Synchronous reads, writes and flushes.
pub trait Blocks {
    fn len_blocks(&self) -> u64;
    /// Fills `into`, a whole number of blocks.
    fn read(&self, block: BlockNo, into: &mut [u8]) -> Result<(), Errno>;
    /// Writes a whole number of blocks.
    fn write(&self, block: BlockNo, bytes: &[u8]) -> Result<(), Errno>;
    fn flush(&self) -> Result<(), Errno>;
    /// Has the host allocate blocks.
    fn reserve(&self, _block: BlockNo, _count: u64) -> Result<(), Errno> {
        Ok(())
    }
}

/// Reads the metadata that the supervisor needs.
pub(crate) fn load(blocks: &dyn Blocks, path: &Path) -> Result<(Ledger, CopiesState), FleetError> {
    load_without(&BTreeSet::new(), blocks, path)
}

/// The same without these shards, whose root slots may be damaged.
pub(crate) fn load_without(
    lost: &BTreeSet<ShardId>,
    blocks: &dyn Blocks,
    path: &Path,
) -> Result<(Ledger, CopiesState), FleetError> {
    let (superblock, copies) = superblock(blocks, path)?;
    let layout = superblock.layout;
    let (has, needs) = (blocks.len_blocks(), layout.total_blocks());
    if has < needs {
        return Err(FleetError::BadPool {
            pool: path.to_path_buf(),
            what: format!("truncated: has {has} of {needs} blocks; restore it from a copy"),
        });
    }
    let [first, second] = [0, 1].map(|copy| {
        let runs = layout.region_runs(copy);
        runs.flat_map(|(block, count)| read(blocks, block, count)).collect::<Vec<u8>>()
    });
    let roots = read(blocks, layout.roots_start(), 2 * layout.roots_blocks());
    let tables = [0, 1].map(|copy| read(blocks, layout.log_table(copy), 1));
    let tables = [&tables[0][..], &tables[1]];
    let ledger = Ledger::load_without(lost, superblock, [&first, &second], &roots, tables)
        .map_err(|error| damaged(path, &error.to_string()))?;
    if has_unread_slots(&ledger, &roots) {
        return Err(FleetError::PoolIo {
            pool: path.to_path_buf(),
            doing: "read its root slots",
            errno: Errno::EIO,
        });
    }
    Ok((ledger, copies))
}

/// Whether a shard is given up because a block with one of its root slots could not be read. The
/// slot may be good. Checkpoints write such a block as a whole and would destroy it.
fn has_unread_slots(ledger: &Ledger, roots: &[u8]) -> bool {
    let layout = ledger.superblock().layout;
    let is_unread_slot = |shard: ShardId, slot: usize| {
        let block = layout.root_slot(shard, slot).block.0 - layout.roots_start().0;
        is_unread(&roots[block as usize * BLOCK_SIZE..][..BLOCK_SIZE])
    };
    ledger.unreadable().keys().any(|shard| (0..2).any(|slot| is_unread_slot(*shard, slot)))
}

/// The valid superblock, and the state of its other copy.
pub(crate) fn superblock(
    blocks: &dyn Blocks,
    path: &Path,
) -> Result<(Superblock, CopiesState), FleetError> {
    if blocks.len_blocks() < 2 {
        return Err(not_a_pool(path));
    }
    let both = read(blocks, BlockNo(0), 2);
    let (a, b) = both.split_at(BLOCK_SIZE);
    match Superblock::choose(a, b) {
        Ok(chosen) => Ok(chosen),
        // It may hold a superblock.
        Err(SuperblockError::NotAPool) if is_unread(a) || is_unread(b) => Err(FleetError::PoolIo {
            pool: path.to_path_buf(),
            doing: "read its superblocks",
            errno: Errno::EIO,
        }),
        Err(SuperblockError::NotAPool) => Err(not_a_pool(path)),
        Err(error @ SuperblockError::UnknownVersion(_)) => Err(FleetError::BadPool {
            pool: path.to_path_buf(),
            what: format!("{error}; use the version of Warren that made it"),
        }),
        Err(error) => Err(damaged(path, &error.to_string())),
    }
}

/// Reads blocks that have two copies. An unreadable block is treated like a damaged one: the other
/// copy may be good.
fn read(pool: &dyn Blocks, block: BlockNo, blocks: u64) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    if pool.read(block, &mut bytes).is_ok() {
        return bytes;
    }
    for (at, bytes) in (0..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
        let is_read = (0..READ_TRIES).any(|_| pool.read(block.offset(at), bytes).is_ok());
        if !is_read {
            bytes.fill(UNREADABLE);
        }
    }
    bytes
}

fn is_unread(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == UNREADABLE)
}

pub(crate) fn errno_of_device(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Io { source, .. } => crate::error::errno_of(source),
        DeviceError::NoSpace(_) => Errno::ENOSPC,
        _ => Errno::EIO,
    }
}

/// It may be a pool whose superblocks were overwritten, so the message must not advise `mkfs`.
fn not_a_pool(path: &Path) -> FleetError {
    FleetError::BadPool {
        pool: path.to_path_buf(),
        what: "not a Warren pool: it has no Warren superblock; check the path. If it was a pool, \
               restore it from a backup: `warren mkfs` would destroy what is left of it"
            .into(),
    }
}

fn damaged(path: &Path, why: &str) -> FleetError {
    FleetError::BadPool {
        pool: path.to_path_buf(),
        what: format!("{why}; check the pool with `warren fsck`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeros, with some unreadable blocks.
    struct Zeros(&'static [u64]);

    impl Blocks for Zeros {
        fn len_blocks(&self) -> u64 {
            16
        }

        fn read(&self, block: BlockNo, into: &mut [u8]) -> Result<(), Errno> {
            let end = block.0 + (into.len() / BLOCK_SIZE) as u64;
            into.fill(0);
            if self.0.iter().any(|bad| (block.0..end).contains(bad)) {
                return Err(Errno::EIO);
            }
            Ok(())
        }

        fn write(&self, _: BlockNo, _: &[u8]) -> Result<(), Errno> {
            Err(Errno::EROFS)
        }

        fn flush(&self) -> Result<(), Errno> {
            Ok(())
        }
    }

    #[test]
    fn a_pool_that_lost_its_superblocks_is_not_called_a_place_for_a_new_one() {
        let line = superblock(&Zeros(&[]), Path::new("pool")).expect_err("no pool").to_string();
        assert!(line.contains("no Warren superblock") && line.contains("backup"), "{line}");
        assert!(line.contains("`warren mkfs` would destroy"), "{line}");
    }

    #[test]
    fn an_unreadable_device_is_not_reported_as_no_pool() {
        let error = |unreadable| {
            superblock(&Zeros(unreadable), Path::new("pool")).expect_err("no pool").to_string()
        };
        for unreadable in [&[0, 1][..], &[0], &[1]] {
            assert_eq!(error(unreadable), "pool: cannot read its superblocks: input/output error");
        }
    }
}
