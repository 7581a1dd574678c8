//! `warren grow`: makes a pool larger, whether a fleet serves it or not.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_disk::Layout;
use warren_disk::format::SIZE_MAX;
use warren_runtime::{Blocks, OfflinePool, Purpose};

use crate::arguments::Grow;
use crate::failure::{CODE_USAGE, Failure, print_json};
use crate::output::say;
use crate::size;

#[derive(Serialize)]
struct Grown<'a> {
    pool: &'a Path,
    size_bytes: u64,
    size_bytes_before: u64,
}

pub(crate) fn perform(arguments: &Grow) -> Result<ExitCode, Failure> {
    let pool = &arguments.pool;
    let opened = OfflinePool::open(pool, Purpose::Beside)?;
    let layout = opened.superblock()?.layout;
    let blocks = wanted(pool, &layout, arguments.size, opened.len_blocks())?;
    drop(opened);
    warren_runtime::grow(pool, blocks)?;
    let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
    let (size_bytes, size_bytes_before) = (bytes(blocks), bytes(layout.total_blocks()));
    if arguments.json {
        print_json(&Grown { pool, size_bytes, size_bytes_before })?;
    } else {
        let (now, before) = (size::display(size_bytes), size::display(size_bytes_before));
        say!("{}: {now}, grown from {before}", pool.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The blocks that the pool is to have: those of `size`, or of the file or device as it is.
fn wanted(
    pool: &Path,
    layout: &Layout,
    size: Option<u64>,
    device_blocks: u64,
) -> Result<u64, Failure> {
    let usage = |line: String| Err(Failure::new(CODE_USAGE, format!("{}: {line}", pool.display())));
    let is_whole = size.is_none();
    let size = size.unwrap_or_else(|| (device_blocks * BLOCK_SIZE as u64).min(SIZE_MAX));
    let blocks = size / BLOCK_SIZE as u64;
    let has = size::display(layout.total_blocks() * BLOCK_SIZE as u64);
    if size > SIZE_MAX {
        let (size, most) = (size::display(size), size::display(SIZE_MAX));
        return usage(format!("{size} is too large; give {most} or less"));
    } else if layout.grown(blocks).is_some() {
        return Ok(blocks);
    }
    let chunk = size::display(CHUNK_BLOCKS * BLOCK_SIZE as u64);
    match blocks {
        _ if is_whole => usage(format!(
            "has {has}, all of its file or device; give a larger SIZE, or make the device larger"
        )),
        _ if blocks < layout.total_blocks() => {
            usage(format!("has {has}, and a pool cannot shrink; give a larger SIZE"))
        }
        _ => usage(format!("has {has} already; give a SIZE that is at least {chunk} larger")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::limits::POOL_BLOCKS_MAX;

    #[test]
    fn a_size_that_is_not_larger_is_refused_with_the_size_that_the_pool_has() {
        let layout = Layout::new(1 << 19, 256, 16_386).expect("2 GiB");
        let wanted = |size, device| wanted(Path::new("/pool"), &layout, size, device);
        assert_eq!(wanted(Some(3 << 30), 1 << 19), Ok(3 << 18));
        assert_eq!(wanted(None, 1 << 20), Ok(1 << 20));
        assert_eq!(wanted(None, u64::MAX / 4096), Ok(POOL_BLOCKS_MAX));
        for (size, remedy) in [
            (Some(1 << 30), "cannot shrink; give a larger SIZE"),
            (Some(0), "cannot shrink"),
            (Some(2 << 30), "at least 256 KiB larger"),
            (Some((2 << 30) + 4096), "at least 256 KiB larger"),
            (Some(1 << 50), "give 64 TiB or less"),
            (None, "give a larger SIZE, or make the device larger"),
        ] {
            let failure = wanted(size, 1 << 19).expect_err("not larger");
            assert_eq!(failure.code(), CODE_USAGE);
            let line = failure.to_string();
            assert!(line.starts_with("/pool: ") && line.contains(remedy), "{size:?}: {line}");
            assert!(size == Some(1 << 50) || line.contains("has 2 GiB"), "{size:?}: {line}");
        }
    }
}
