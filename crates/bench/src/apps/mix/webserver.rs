//! A web server: many small files are read, and each request is logged.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use warren_base::Rng;

use super::read::read_whole;
use super::threads::THREADS;

const DIRECTORIES: u64 = 20;
const FILES: u64 = 1000;
/// Rounds of each thread. In each it reads [`READS`] files and appends once.
const LOOPS: u32 = 500;
const READS: u32 = 10;
const APPEND_BYTES: usize = 4096;

pub(in crate::apps) const LOG_BYTES: u64 = (THREADS * LOOPS) as u64 * APPEND_BYTES as u64;

pub(super) fn prepare(directory: &Path) -> io::Result<()> {
    for number in 0..DIRECTORIES {
        fs::create_dir(directory.join(format!("pages-{number}")))?;
    }
    for file in 0..FILES {
        fs::write(path(directory, file), vec![file as u8; length(file)])?;
    }
    File::create_new(directory.join("log")).map(drop)
}

pub(super) fn run(directory: &Path, thread: u32) -> io::Result<()> {
    let mut rng = Rng::new(u64::from(thread));
    let mut log = File::options().append(true).open(directory.join("log"))?;
    let mut buffer = Vec::new();
    for _ in 0..LOOPS {
        for _ in 0..READS {
            let file = rng.below(FILES);
            read_whole(&path(directory, file), length(file), file as u8, &mut buffer)?;
        }
        log.write_all(&[b'x'; APPEND_BYTES])?;
    }
    Ok(())
}

fn path(directory: &Path, file: u64) -> PathBuf {
    directory.join(format!("pages-{}/page-{file}", file % DIRECTORIES))
}

/// 1 to 16 KiB.
fn length(file: u64) -> usize {
    ((file % 16 + 1) << 10) as usize
}
