//! The growth of a pool: the steps that a fleet and a pool without a fleet share, and the latter.
//! `client/grow.rs` decides which of both carries it out.
//!
//! ```text
//! file extended, blocks allocated, fsync ─▶ map pages, log table ─▶ flush ─▶ superblock ─▶ flush
//!                                                                   ─▶ its other copy ─▶ flush
//! ```
//!
//! The pool has its new size from the second flush on. Logs that count stay as they are, so a pool
//! that was not left in order grows without a recovery.

use std::path::Path;

use warren_base::limits::{BLOCK_SIZE, POOL_BLOCKS_MAX};
use warren_base::{BlockNo, Errno};
use warren_device::{DeviceError, PoolFile};
use warren_disk::{CopiesState, Superblock};

use super::blocks::{self, Blocks};
use super::offline::{OfflinePool, Purpose};
use crate::error::FleetError;
use crate::limit;

/// Makes a pool that no fleet serves so many blocks large.
pub(crate) fn grow_offline(path: &Path, blocks: u64) -> Result<(), FleetError> {
    let mut pool = OfflinePool::open(path, Purpose::Repair)?;
    let (ledger, copies) = blocks::load(&pool, path)?;
    let before = ledger.superblock();
    if before.layout.total_blocks() == blocks {
        return Ok(());
    }
    let Some(layout) = before.layout.grown(blocks) else {
        return Err(refusal(path, Errno::EINVAL));
    };
    let runs = extension(path, before, blocks)?;
    extend(pool.file_mut(), blocks, &runs)?;
    let failed = |errno| FleetError::PoolIo { pool: path.to_path_buf(), doing: "grow it", errno };
    let commit = || {
        // The copy that counts must not be the one that the commit overwrites.
        if let CopiesState::Behind(copy) | CopiesState::Bad(copy, _) = copies {
            pool.write(before.layout.superblock(copy), &before.encode())?;
            pool.flush()?;
        }
        let (writes, superblock) = ledger.growth(layout);
        writes.iter().try_for_each(|(block, bytes)| pool.write(*block, bytes))?;
        pool.flush()?;
        for (block, bytes) in superblock.commit() {
            pool.write(block, &bytes)?;
            pool.flush()?;
        }
        Ok(())
    };
    commit().map_err(failed)
}

/// Why a pool does not grow.
pub(crate) fn refusal(path: &Path, errno: Errno) -> FleetError {
    let what = match errno {
        Errno::EINVAL => {
            "a pool only grows, by 256 KiB or more, to at most 64 TiB; give such a size"
        }
        Errno::EBUSY => "grows to another size already; wait for that",
        Errno::EAGAIN => "its fleet starts or stops; try again",
        Errno::EROFS => "nothing can be recorded, see `warren status`; repair the device first",
        _ => {
            let what = format!(
                "keeps its size, because its checkpoint failed: {errno}; remove the cause and try again"
            );
            return FleetError::Ungrown { pool: path.to_path_buf(), what };
        }
    };
    FleetError::Ungrown { pool: path.to_path_buf(), what: what.into() }
}

/// The runs of blocks that the host must allocate before the pool has so many blocks: the new pages
/// of the region map, or everything.
pub(crate) fn extension(
    path: &Path,
    superblock: &Superblock,
    blocks: u64,
) -> Result<Vec<(BlockNo, u64)>, FleetError> {
    let before = superblock.layout;
    let layout = before.grown(blocks).ok_or_else(|| refusal(path, Errno::EINVAL))?;
    let needs = || format!("{}: so large a pool", path.display());
    limit::require_files(needs, blocks * BLOCK_SIZE as u64)?;
    if superblock.reserved {
        return Ok(vec![(BlockNo(before.total_blocks()), blocks - before.total_blocks())]);
    }
    let pages = before.region_pages()..layout.region_pages();
    Ok(pages.map(|page| (layout.region_page(0, page), 2)).collect())
}

/// Makes the pool's file so many blocks long and has the host allocate these runs. If that fails
/// the file is as long as before.
pub(crate) fn extend(
    file: &mut PoolFile,
    blocks: u64,
    runs: &[(BlockNo, u64)],
) -> Result<(), FleetError> {
    match file.extend(blocks, runs) {
        Err(DeviceError::TooShort(pool)) => {
            let mib = (file.len_blocks() * BLOCK_SIZE as u64) >> 20;
            let what = format!("its device has only {mib} MiB; make the device larger first");
            Err(FleetError::Ungrown { pool, what })
        }
        extended => Ok(extended?),
    }
}

/// The line about a file that is longer than its pool.
pub fn behind_line(path: &Path, bytes: u64) -> String {
    let path = path.display();
    format!("{path}: has {bytes} bytes behind its pool; `warren grow {path}` makes them part of it")
}

const _: () = assert!(POOL_BLOCKS_MAX * BLOCK_SIZE as u64 == 64 << 40);
