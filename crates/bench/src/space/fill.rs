//! Filling a fragmented file system.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};

use super::file::{is_full, write};
use super::place::{OTHER_USER, Place, Subject, USER, shown};
use crate::error::{BenchError, system};
use crate::ground::Interruption;

/// Directories that are filled first, and directories that are new afterwards.
const DIRECTORIES: usize = 50;
const NEW_DIRECTORIES: usize = 20;

/// Bytes of a small file, in a file system of at most so many. In larger ones files are larger, so
/// that their number stays the same.
const SMALL: u64 = 8 << 10;
const SMALL_UP_TO: u64 = 2 << 30;

/// A way to fill the fragmented file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Experiment {
    NewDirectories,
    OldDirectories,
    OneFile,
    /// Small files of another user, after holes were punched in a large one.
    AfterPunching,
}

impl Experiment {
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewDirectories => "new directories",
            Self::OldDirectories => "old directories",
            Self::OneFile => "one file",
            Self::AfterPunching => "after punching",
        }
    }
}

/// The result of an experiment, in bytes, without inodes and directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Filled {
    #[serde(flatten)]
    pub subject: Subject,
    pub experiment: Experiment,
    /// The bytes that `df` showed as available to the user before.
    pub shown: u64,
    /// Data that was written until there was no space.
    pub written: u64,
    /// The bytes that `df` shows as available afterwards.
    pub left: u64,
}

/// Performs all experiments.
pub(super) fn run(place: &Place, interruption: &Interruption) -> Result<Vec<Filled>, BenchError> {
    let subject = place.subject;
    let small = SMALL * subject.bytes.div_ceil(SMALL_UP_TO);
    let mut results = place.as_user(USER, |at| {
        let results = fill_fragments(at, subject, small, interruption)?;
        punch_full(&at.join("punched"), interruption)?;
        Ok(results)
    })?;
    let attacked = (subject, Experiment::AfterPunching);
    results.push(place.as_user(OTHER_USER, |at| {
        write_full(at, attacked, || fill_new(at, "other", small, interruption))
    })?);
    Ok(results)
}

fn fill_fragments(
    at: &Path,
    subject: Subject,
    small: u64,
    interruption: &Interruption,
) -> Result<Vec<Filled>, BenchError> {
    let old = directories(at, "old", DIRECTORIES)?;
    fill_small(&old, "first", small, interruption)?;
    remove_every_second(&old)?;
    let new = (subject, Experiment::NewDirectories);
    let again = (subject, Experiment::OldDirectories);
    let one = (subject, Experiment::OneFile);
    let results = vec![
        write_full(at, new, || fill_new(at, "new", small, interruption))?,
        write_full(at, again, || fill_small(&old, "again", small, interruption))?,
        write_full(at, one, || fill_one(&at.join("one"), interruption))?,
    ];
    old.iter().try_for_each(fs::remove_dir_all).map_err(system("remove a directory"))?;
    Ok(results)
}

/// The files that were written until there was no space.
struct Made {
    bytes: u64,
    files: Vec<PathBuf>,
}

/// Writes until there is no space, and removes it again.
fn write_full(
    at: &Path,
    (subject, experiment): (Subject, Experiment),
    write: impl FnOnce() -> Result<Made, BenchError>,
) -> Result<Filled, BenchError> {
    let before = shown(at)?;
    let made = write()?;
    let left = shown(at)?;
    made.files.iter().try_for_each(fs::remove_file).map_err(system("remove a file"))?;
    Ok(Filled { subject, experiment, shown: before, written: made.bytes, left })
}

/// Makes so many directories, or fewer if there is no space.
fn directories(at: &Path, name: &str, count: usize) -> Result<Vec<PathBuf>, BenchError> {
    let paths = (0..count).map(|number| at.join(format!("{name}-{number}")));
    let mut made = Vec::new();
    for path in paths {
        match fs::create_dir(&path) {
            Ok(()) => made.push(path),
            Err(error) if is_full(&error) => break,
            Err(error) => return Err(system("make a directory")(error)),
        }
    }
    Ok(made)
}

/// Writes small files in these directories in turn until none fits.
fn fill_small(
    at: &[PathBuf],
    round: &str,
    size: u64,
    interruption: &Interruption,
) -> Result<Made, BenchError> {
    let mut made = Made { bytes: 0, files: Vec::new() };
    for directory in at.iter().cycle() {
        interruption.check()?;
        let path = directory.join(format!("{round}-{}", made.files.len()));
        let bytes = write_file(&path, size)?;
        made.bytes += bytes;
        made.files.extend(path.exists().then_some(path));
        if bytes < size {
            break;
        }
    }
    Ok(made)
}

/// The same in new directories, which stay.
fn fill_new(
    at: &Path,
    name: &str,
    size: u64,
    interruption: &Interruption,
) -> Result<Made, BenchError> {
    fill_small(&directories(at, name, NEW_DIRECTORIES)?, name, size, interruption)
}

fn remove_every_second(at: &[PathBuf]) -> Result<(), BenchError> {
    at.iter().try_for_each(remove_half).map_err(system("remove a file"))
}

fn remove_half(directory: &PathBuf) -> io::Result<()> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        paths.push(entry?.path());
    }
    paths.sort_unstable();
    paths.iter().step_by(2).try_for_each(fs::remove_file)
}

/// Writes until the file has so many bytes or there is no space. Returns the bytes.
fn write_file(path: &Path, size: u64) -> Result<u64, BenchError> {
    match write(path, size) {
        (written, Err(error)) if is_full(&error) => Ok(written),
        (written, result) => result.map_err(system("write a file")).map(|()| written),
    }
}

fn fill_one(path: &Path, interruption: &Interruption) -> Result<Made, BenchError> {
    interruption.check()?;
    let bytes = write_file(path, u64::MAX)?;
    Ok(Made { bytes, files: vec![path.to_owned()] })
}

/// Fills the file system with one file, and leaves one block of each chunk in it.
fn punch_full(path: &Path, interruption: &Interruption) -> Result<(), BenchError> {
    let size = fill_one(path, interruption)?.bytes;
    let file = OpenOptions::new().write(true).open(path).map_err(system("open a file"))?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let (block, chunk) = (BLOCK_SIZE as u64, CHUNK_BLOCKS * BLOCK_SIZE as u64);
    for start in (0..size).step_by(chunk as usize) {
        interruption.check()?;
        fallocate(&file, flags, start + block, chunk - block).map_err(system("punch a hole"))?;
    }
    Ok(())
}
