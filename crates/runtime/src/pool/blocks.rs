//! The blocks of a pool that a fleet or a command holds, and what a supervisor must know of them
//! before anything else.

use std::collections::BTreeSet;
use std::path::Path;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno, ShardId};
use warren_device::DeviceError;
use warren_disk::{CopiesState, Superblock, SuperblockError};
use warren_supervisor::Ledger;

use crate::error::FleetError;

/// What stands for a block that cannot be read: no magic, and not the zeros of a block never
/// written.
const UNREADABLE: u8 = 0xEE;

/// Reads, writes and flushes that are waited for.
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

/// Reads what the supervisor must know of the pool.
pub fn load(blocks: &dyn Blocks, path: &Path) -> Result<(Ledger, CopiesState), FleetError> {
    load_without(&BTreeSet::new(), blocks, path)
}

/// The same without these shards, whose root slots may be bad.
pub fn load_without(
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
    let pages = layout.region_pages();
    let [first, second] = [0, 1].map(|copy| read(blocks, layout.region_page(copy, 0), pages));
    let roots = read(blocks, layout.roots_start(), 2 * layout.roots_blocks());
    let tables = [0, 1].map(|copy| read(blocks, layout.log_table(copy), 1));
    let tables = [&tables[0][..], &tables[1]];
    let ledger = Ledger::load_without(lost, superblock, [&first, &second], &roots, tables)
        .map_err(|error| damaged(path, &error.to_string()))?;
    Ok((ledger, copies))
}

/// The superblock that counts, and how the other stands to it.
pub fn superblock(
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
        // Nothing is known of it: least of all may a new pool be made there.
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

/// Blocks of which there are two each. One that cannot be read is as one that is damaged: the other
/// may do.
fn read(pool: &dyn Blocks, block: BlockNo, blocks: u64) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    if pool.read(block, &mut bytes).is_ok() {
        return bytes;
    }
    for (at, bytes) in (0..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
        if pool.read(block.offset(at), bytes).is_err() {
            bytes.fill(UNREADABLE);
        }
    }
    bytes
}

fn is_unread(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == UNREADABLE)
}

pub fn errno_of_device(error: &DeviceError) -> Errno {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeros, of which some blocks cannot be read.
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
    fn what_cannot_be_read_is_not_called_no_pool() {
        let told = |unreadable| {
            superblock(&Zeros(unreadable), Path::new("pool")).expect_err("no pool").to_string()
        };
        assert!(told(&[]).contains("mkfs"));
        for unreadable in [&[0, 1][..], &[0], &[1]] {
            assert_eq!(told(unreadable), "pool: cannot read its superblocks: input/output error");
        }
    }
}
