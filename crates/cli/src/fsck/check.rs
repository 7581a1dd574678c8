//! One check of a pool, with its progress.

use std::path::Path;

use warren_base::BlockNo;
use warren_fsck::{Options, ReadError, Report};
use warren_runtime::{Blocks, OfflinePool};

use super::bar::Bar;
use crate::failure::{CODE_FSCK_OPERATIONAL, Failure};

pub(super) fn check_pool(
    path: &Path,
    pool: &OfflinePool,
    options: Options,
    bar: &mut Bar,
) -> Result<Report, Failure> {
    bar.begin("checking");
    let mut read = reader(pool);
    let mut progress = |progress| bar.show(progress);
    let report = warren_fsck::check(options, pool.len_blocks(), &mut read, &mut progress);
    bar.clear();
    if report.superblock.is_none() {
        let why = report.findings.first().map_or_else(String::new, |found| format!(" ({found})"));
        let path = path.display();
        let line = format!(
            "{path}: not a pool that can be read{why}; check the path. If it was a pool, restore \
             it from a backup: `warren mkfs` would destroy what is left of it"
        );
        return Err(Failure::new(CODE_FSCK_OPERATIONAL, line));
    }
    Ok(report)
}

pub(super) fn reader(
    pool: &OfflinePool,
) -> impl FnMut(BlockNo, &mut [u8]) -> Result<(), ReadError> + '_ {
    |block, bytes| pool.read(block, bytes).map_err(ReadError)
}
