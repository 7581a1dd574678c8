//! The directories, a round of a program in one of them, and the check of what all rounds have left
//! there.
//!
//! ```text
//! <mount>/directory-7/held        held open by the program that is stopped; each round reads it
//! <mount>/directory-7/0-41-new    made, written and locked through mount 0 in round 41, then
//!                                 read through the next mount
//! <mount>/directory-7/0-41-kept   renamed so; unlinked in a later round
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{BenchError, system};
use crate::ground::{Ground, Interruption};
use crate::paper::hive::client::{self, Client};

/// Directories in which programs work, spread over all cells.
pub(super) const DIRECTORIES: usize = 24;

/// Directories that are made until so many are on all cells. Names are spread by a hash.
const CANDIDATES_MAX: usize = 64 * DIRECTORIES;

/// The names of the directories begin so.
const DIRECTORY: &str = "directory-";

/// The file that is held open, and its contents.
pub(super) const HELD: &str = "held";
pub(super) const HELD_CONTENTS: &[u8] = b"held open\n";

/// Files of the last rounds stay for the check.
const KEPT: u64 = 3;

/// A directory, and the program that works in it.
pub(super) struct Place {
    /// The directory by each mount. The program works through the first.
    at: Vec<PathBuf>,
    /// The number of its mount, with which the names of its files begin.
    mount: u16,
}

impl Place {
    /// The directories of all mounts, of which the first is that of number `mount`.
    pub(super) fn all(mounts: &[PathBuf], mount: u16) -> io::Result<Vec<Self>> {
        let names = names(mounts.first().ok_or(io::ErrorKind::InvalidInput)?)?;
        let place =
            |name: &String| Self { at: mounts.iter().map(|it| it.join(name)).collect(), mount };
        Ok(names.iter().map(place).collect())
    }

    /// The round of this number. Fails with a line if a call fails, or contents are wrong.
    pub(super) fn round(&self, number: u64) -> Result<(), String> {
        let (own, other) = (&self.at[0], &self.at[1 % self.at.len()]);
        let (new, kept) = (self.name(number, "new"), self.name(number, "kept"));
        self.make(number, &own.join(&new)).map_err(failed("make", own, &new))?;
        self.compare(other, &new, &self.contents(number))?;
        let renamed = fs::rename(own.join(&new), own.join(&kept));
        renamed.map_err(failed("rename", own, &new))?;
        if let Some(old) = number.checked_sub(KEPT) {
            let old = self.name(old, "kept");
            fs::remove_file(own.join(&old)).map_err(failed("unlink", own, &old))?;
        }
        self.compare(own, HELD, HELD_CONTENTS)
    }

    /// Compares the files after so many rounds by each mount. Fails with a line.
    pub(super) fn check(&self, rounds: u64) -> Result<(), String> {
        let kept = rounds.saturating_sub(KEPT)..rounds;
        let mut names: Vec<String> = kept.clone().map(|it| self.name(it, "kept")).collect();
        names.sort();
        for at in &self.at {
            let listed = self.listed(at).map_err(failed("list", at, ""))?;
            if listed != names {
                return Err(format!("{}: has {listed:?} instead of {names:?}", at.display()));
            }
            for number in kept.clone() {
                self.compare(at, &self.name(number, "kept"), &self.contents(number))?;
            }
        }
        Ok(())
    }

    fn make(&self, number: u64, path: &Path) -> io::Result<()> {
        let mut file = File::create_new(path)?;
        file.try_lock()?;
        file.write_all(&self.contents(number))
    }

    fn compare(&self, at: &Path, name: &str, contents: &[u8]) -> Result<(), String> {
        let read = fs::read(at.join(name)).map_err(failed("read", at, name))?;
        if read == contents {
            return Ok(());
        }
        let (len, wanted) = (read.len(), contents.len());
        Err(format!("{}/{name}: has other contents, {len} bytes instead of {wanted}", at.display()))
    }

    /// The names of the program's own files, in order.
    fn listed(&self, at: &Path) -> io::Result<Vec<String>> {
        let own = format!("{}-", self.mount);
        let mut names = Vec::new();
        for entry in fs::read_dir(at)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(&own) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn name(&self, number: u64, state: &str) -> String {
        format!("{}-{number}-{state}", self.mount)
    }

    /// They name the directory, the program and the round.
    fn contents(&self, number: u64) -> Vec<u8> {
        let directory = self.at[0].file_name().unwrap_or_default().display();
        format!("{directory} {} {number}\n", self.mount).repeat(20).into_bytes()
    }
}

/// The names of the directories, in order.
pub(super) fn names(mount: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(mount)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(DIRECTORY) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn failed(call: &str, at: &Path, name: &str) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{}/{name}: cannot {call} it: {error}", at.display())
}

/// Makes directories, about as many on each cell, each with a file to be held.
pub(super) fn make_directories(
    mount: &Path,
    ground: &Ground,
    cells: u16,
    interruption: &Interruption,
) -> Result<(), BenchError> {
    let mut client = Client::new(ground)?;
    let share = DIRECTORIES.div_ceil(usize::from(cells));
    let mut on_cell = vec![0; usize::from(cells)];
    let mut made = 0;
    for number in 0..CANDIDATES_MAX {
        interruption.check()?;
        let name = format!("{DIRECTORY}{number}");
        let at = mount.join(&name);
        fs::create_dir(&at).map_err(system("make a directory on the mount"))?;
        let cell = client.directory(&name).and_then(|it| client.cell_of(it));
        let count = &mut on_cell[usize::from(cell.map_err(client::failed("getattr"))?.0)];
        if *count == share {
            fs::remove_dir(&at).map_err(system("remove a directory on the mount"))?;
            continue;
        }
        *count += 1;
        made += 1;
        let held = fs::write(at.join(HELD), HELD_CONTENTS);
        held.map_err(system("make a file on the mount"))?;
        if made == DIRECTORIES {
            return Ok(());
        }
    }
    let why = format!("{made} of {CANDIDATES_MAX} directories are spread over {cells} cells");
    Err(BenchError::Unavailable(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::Scratch;

    #[test]
    fn rounds_leave_what_the_check_expects_and_nothing_else() {
        let scratch = Scratch::new(&std::env::temp_dir()).expect("a directory");
        let at = scratch.path().join("directory-1");
        fs::create_dir(&at).expect("a directory");
        fs::write(at.join(HELD), HELD_CONTENTS).expect("a file");
        // Two paths to one directory are what two mounts are.
        let mounts = [scratch.path().to_owned(), scratch.path().join("directory-1/..")];
        let places = Place::all(&mounts, 0).expect("places");
        let [place] = places.as_slice() else { panic!("one directory") };
        for rounds in 0..6 {
            place.check(rounds).expect("what the rounds left");
            place.round(rounds).expect("a round");
        }
        assert!(place.check(5).is_err());
        fs::write(at.join("0-4-kept"), "other").expect("a file");
        let why = place.check(6).expect_err("wrong contents");
        assert!(why.contains("0-4-kept: has other contents"), "{why}");
    }
}
