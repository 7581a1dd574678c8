//! One check of a pool, with its progress.

use std::path::Path;

use warren_base::BlockNo;
use warren_disk::SuperblockError;
use warren_fsck::{Finding, Options, ReadError, Report};
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
        return Err(no_superblock(path, report.findings.first()));
    }
    Ok(report)
}

fn no_superblock(path: &Path, found: Option<&Finding>) -> Failure {
    let why = found.map_or_else(String::new, |found| format!(" ({found})"));
    let path = path.display();
    let line = match found {
        Some(Finding::Superblock(error @ SuperblockError::UnknownVersion(_))) => {
            format!("{path}: {error}; use the version of Warren that made it")
        }
        _ => format!(
            "{path}: not a pool that can be read{why}; check the path. If it was a pool, restore \
             it from a backup: `warren mkfs` would destroy what is left of it"
        ),
    };
    Failure::new(CODE_FSCK_OPERATIONAL, line)
}

pub(super) fn reader(
    pool: &OfflinePool,
) -> impl FnMut(BlockNo, &mut [u8]) -> Result<(), ReadError> + '_ {
    |block, bytes| pool.read(block, bytes).map_err(ReadError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_a_later_format_is_not_called_damaged() {
        let found = Finding::Superblock(SuperblockError::UnknownVersion(99));
        let line = no_superblock(Path::new("pool"), Some(&found)).to_string();
        assert!(line.contains("version 99") && line.contains("use the version"), "{line}");
        assert!(!line.contains("mkfs") && !line.contains("backup"), "{line}");
        let found = Finding::Superblock(SuperblockError::NotAPool);
        let line = no_superblock(Path::new("pool"), Some(&found)).to_string();
        assert!(line.contains("mkfs` would destroy"), "{line}");
    }
}
