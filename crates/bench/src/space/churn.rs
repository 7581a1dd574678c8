//! Files that come and go on a file system that stays nearly full.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use warren_base::Rng;

use super::file::{is_full, write};
use super::place::{Place, Subject, USER, shown};
use crate::error::{BenchError, system};
use crate::ground::Interruption;
use crate::sample::median;

const DIRECTORIES: u64 = 50;
/// Parts of what the user may fill: on the full file system, and on the empty one.
const FULL: f64 = 0.9;
const EMPTY: f64 = 0.1;

/// A period on the full file system, and one on the empty one.
const PERIOD: Duration = Duration::from_secs(10);

/// Most files are small. The others have most of the bytes.
const SMALL_MAX: u64 = 64 << 10;
const LARGE_MIN: u64 = 1 << 20;
const LARGE_MAX: u64 = 8 << 20;
const ONE_IS_LARGE: u64 = 10;

/// All runs draw the same files.
const SEED: u64 = 7;

/// `df` may show a hundredth, and this for each cell, more than what fits.
const TOLERANCE_A_CELL: u64 = 4 << 20;

/// The cost of writing, times that on an empty file system.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Churned {
    #[serde(flatten)]
    pub subject: Subject,
    pub seconds: u64,
    /// Bytes that were written to the full file system.
    pub bytes: u64,
    /// Seconds a MiB, times that on an empty file system of the same kind just after: the median
    /// over periods, and the largest.
    pub ratio: f64,
    pub ratio_max: f64,
    /// Writes for which there was no space, and those of them for which `df` showed space.
    pub refused: u64,
    pub refused_with_space: u64,
}

/// Measures Warren and ext4, which share the time.
pub(super) fn run(
    scratch: &Path,
    (bytes, cells): (u64, u16),
    time: Duration,
    interruption: &Interruption,
) -> Result<Vec<Churned>, BenchError> {
    let kinds = [Some(cells), None];
    let mut trees = Vec::new();
    for cells in kinds {
        let pair = [Place::new(scratch, bytes, cells)?, Place::new(scratch, bytes, cells)?];
        let tolerance = TOLERANCE_A_CELL * u64::from(cells.unwrap_or(0));
        trees.push(pair.map(|place| (Tree::new(tolerance), place)));
    }
    for [(tree, place), (empty, other)] in &mut trees {
        place.as_user(USER, |at| tree.set_up(at, FULL, interruption))?;
        other.as_user(USER, |at| empty.set_up(at, EMPTY, interruption))?;
    }
    let mut ratios = vec![Vec::new(); kinds.len()];
    let start = Instant::now();
    while start.elapsed() < time || ratios[0].is_empty() {
        for ([(tree, place), (empty, other)], ratios) in trees.iter_mut().zip(&mut ratios) {
            let full = place.as_user(USER, |at| tree.churn(at, FULL, interruption))?;
            let base = other.as_user(USER, |at| empty.churn(at, EMPTY, interruption))?;
            ratios.push(full / base);
        }
    }
    let seconds = start.elapsed().as_secs();
    let results = trees.iter().zip(&ratios).map(|([(tree, place), _], ratios)| Churned {
        subject: place.subject,
        seconds,
        bytes: tree.written,
        ratio: median(ratios),
        ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        refused: tree.refused,
        refused_with_space: tree.refused_with_space,
    });
    Ok(results.collect())
}

/// The files of one user.
struct Tree {
    files: Vec<(PathBuf, u64)>,
    /// Bytes of all files.
    held: u64,
    /// Bytes that the user could write at first.
    room: u64,
    made: u64,
    random: Rng,
    tolerance: u64,
    written: u64,
    refused: u64,
    refused_with_space: u64,
}

impl Tree {
    /// `df` may show so many bytes more than what fits, beside a hundredth.
    const fn new(tolerance: u64) -> Self {
        Self {
            files: Vec::new(),
            held: 0,
            room: 0,
            made: 0,
            random: Rng::new(SEED),
            tolerance,
            written: 0,
            refused: 0,
            refused_with_space: 0,
        }
    }

    /// Makes the directories, and files up to this part of the file system.
    fn set_up(
        &mut self,
        at: &Path,
        part: f64,
        interruption: &Interruption,
    ) -> Result<(), BenchError> {
        for number in 0..DIRECTORIES {
            fs::create_dir(at.join(number.to_string())).map_err(system("make a directory"))?;
        }
        self.room = shown(at)?;
        while !self.is_above(part) {
            interruption.check()?;
            self.make(at)?;
        }
        (self.written, self.refused, self.refused_with_space) = (0, 0, 0);
        Ok(())
    }

    fn is_above(&self, part: f64) -> bool {
        self.held as f64 > part * self.room as f64
    }

    /// Makes and removes files for a period. Returns the seconds that a MiB took to write.
    fn churn(
        &mut self,
        at: &Path,
        part: f64,
        interruption: &Interruption,
    ) -> Result<f64, BenchError> {
        let (start, before) = (Instant::now(), self.written);
        let mut writing = Duration::ZERO;
        while start.elapsed() < PERIOD {
            interruption.check()?;
            if self.is_above(part) {
                self.remove()?;
            } else {
                writing += self.make(at)?;
            }
        }
        let mib = (self.written - before) as f64 / f64::from(1 << 20);
        Ok(writing.as_secs_f64() / mib)
    }

    /// A new file of a random size. Returns how long that took.
    fn make(&mut self, at: &Path) -> Result<Duration, BenchError> {
        let is_large = self.random.below(ONE_IS_LARGE) == 0;
        let size = if is_large {
            LARGE_MIN + self.random.below(LARGE_MAX - LARGE_MIN)
        } else {
            1 + self.random.below(SMALL_MAX)
        };
        let directory = self.random.below(DIRECTORIES).to_string();
        let path = at.join(directory).join(format!("f-{}", self.made));
        self.made += 1;
        let start = Instant::now();
        let (bytes, result) = write(&path, size);
        let took = start.elapsed();
        (self.held, self.written) = (self.held + bytes, self.written + bytes);
        let is_there = bytes > 0 || path.exists();
        self.files.extend(is_there.then_some((path, bytes)));
        match result {
            Err(error) if is_full(&error) => {
                self.refused += 1;
                self.refused_with_space += u64::from(self.had_space(at, size - bytes)?);
            }
            other => other.map_err(system("write a file"))?,
        }
        Ok(took)
    }

    fn had_space(&self, at: &Path, needed: u64) -> Result<bool, BenchError> {
        Ok(shown(at)? > needed + self.room / 100 + self.tolerance)
    }

    fn remove(&mut self) -> Result<(), BenchError> {
        let at = self.random.below(self.files.len() as u64) as usize;
        let (path, bytes) = self.files.swap_remove(at);
        self.held -= bytes;
        fs::remove_file(path).map_err(system("remove a file"))
    }
}
