//! Faults planted in the product's source, one at a time: how many of them do the tests find?
//!
//! Each mutant (`mutants/*table.rs`) is one textual change, with the
//! command that must fail because of it. A copy of the tree is changed, built and tested; the
//! product itself has no planted fault. A mutant that no longer applies, or does not compile, is an
//! error: the table moves with the code.
//!
//! ```text
//! copy of the tree -> change -> build (must pass) -> test (must fail, or not end in time)
//!                       ^                                           |
//!                       +------------------ change back <-----------+
//!
//! target/mutants/tree    the copy
//! target/mutants/build   its target directory
//! ```
//!
//! The copy has a target directory of its own. Cargo hashes the paths of a workspace's packages
//! relative to its root, so in a shared directory the packages of copy and product have the same
//! names and fingerprints. The product's fingerprints would then list the files of the copy, and
//! cargo would not see an edit of the product.

mod disk_table;
mod driver_table;
mod table;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::target_directory;
use disk_table::DISK_MUTANTS;
use driver_table::DRIVER_MUTANTS;
use table::{MUTANTS, Mutant};

/// The share of the tried mutants that the tests have to find, in percent.
const FOUND_PERCENT: usize = 90;
/// A simulation that takes longer hangs. The slowest takes about a minute and a half on two cores.
const SIMULATION_MAX: Duration = Duration::from_secs(300);
/// The same for the tests of one crate, which take a few seconds.
const TESTS_MAX: Duration = Duration::from_secs(60);
/// The first build compiles all packages.
const BUILD_MAX: Duration = Duration::from_secs(1800);

/// The part of the table to try.
#[derive(Clone, Default)]
pub(crate) struct Options {
    /// Mutants whose file, or whose number, contains this.
    only: Option<String>,
    /// The part, from 0 on, and the number of parts.
    part: Option<(usize, usize)>,
    /// Only those that the tests are known to find. Others may survive.
    only_proven: bool,
    /// Print the table as in `docs/testing.md`.
    print: bool,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value =
                || arguments.next().with_context(|| format!("{argument} wants a value"));
            match argument.as_str() {
                "--only" => options.only = Some(value()?.clone()),
                "--part" => {
                    let value = value()?;
                    let (part, of) = value.split_once('/').context("--part wants K/N")?;
                    options.part = Some((part.parse()?, of.parse()?));
                }
                "--proven" => options.only_proven = true,
                "--print" => options.print = true,
                other => bail!("unknown option {other:?} of mutants"),
            }
        }
        if let Some((part, of)) = options.part {
            ensure!(part < of, "--part wants K/N with K less than N");
        }
        Ok(options)
    }

    fn takes(&self, number: usize, mutant: &Mutant) -> bool {
        let is_named =
            |only: &String| only.parse() == Ok(number) || mutant.file.contains(only.as_str());
        self.only.as_ref().is_none_or(is_named)
            && (mutant.is_proven || !self.only_proven)
            && self.part.is_none_or(|(part, of)| number % of == part)
    }
}

enum Verdict {
    Found,
    FoundHanging,
    Survived,
}

/// All mutants, with their numbers.
fn numbered() -> impl Iterator<Item = (usize, &'static Mutant)> {
    (1..).zip(MUTANTS.iter().chain(DISK_MUTANTS).chain(DRIVER_MUTANTS))
}

/// Tries mutants. Returns true if enough of them are found.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    if options.print {
        print_table();
        return Ok(true);
    }
    let chosen = numbered().filter(|(number, mutant)| options.takes(*number, mutant));
    let chosen: Vec<(usize, &Mutant)> = chosen.collect();
    ensure!(!chosen.is_empty(), "no mutant is meant");
    let tree = Tree::copy(root)?;
    let (mut found, mut survived, mut invalid) = (0, Vec::new(), 0);
    for (number, mutant) in &chosen {
        let start = Instant::now();
        let verdict = match tree.try_mutant(mutant) {
            Ok(verdict) => verdict,
            Err(error) => {
                println!("{number:3} INVALID: {error:#}: {}", mutant.what);
                invalid += 1;
                continue;
            }
        };
        let text = match verdict {
            Verdict::Found => "found",
            Verdict::FoundHanging => "found: it hangs",
            Verdict::Survived => "SURVIVED",
        };
        let seconds = start.elapsed().as_secs_f64();
        println!("{number:3} {text}: {} ({seconds:.0} s)", mutant.what);
        match verdict {
            Verdict::Survived => survived.push(*number),
            _ => found += 1,
        }
    }
    println!("{found} of {} mutants were found; survivors: {survived:?}", chosen.len());
    Ok(invalid == 0 && found * 100 >= chosen.len() * FOUND_PERCENT)
}

/// A copy of the tree, and its target directory.
struct Tree {
    root: PathBuf,
    target: PathBuf,
}

impl Tree {
    fn copy(from: &Path) -> Result<Self> {
        let place = target_directory(from).join("mutants");
        let tree = Self { root: place.join("tree"), target: place.join("build") };
        let listing = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(from)
            .output()
            .context("cannot list the tree's files")?;
        ensure!(listing.status.success(), "git does not list the tree's files");
        let listing = String::from_utf8(listing.stdout)?;
        let mut copied = BTreeSet::new();
        for file in listing.lines() {
            let (old, new) = (from.join(file), tree.root.join(file));
            let Ok(bytes) = fs::read(&old) else { continue };
            copied.insert(new.clone());
            // An unchanged file keeps its time, so that cargo does not build it again.
            if fs::read(&new).is_ok_and(|there| there == bytes) {
                continue;
            }
            fs::create_dir_all(new.parent().context("a file without a directory")?)?;
            fs::write(&new, bytes).with_context(|| format!("cannot write {}", new.display()))?;
        }
        remove_all_but(&copied, &tree.root)?;
        Ok(tree)
    }

    fn try_mutant(&self, mutant: &Mutant) -> Result<Verdict> {
        let path = self.root.join(mutant.file);
        let sound = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let changed = mutant.apply(&sound)?;
        fs::write(&path, changed)?;
        let verdict = self.judge(mutant);
        fs::write(&path, sound)?;
        verdict
    }

    fn judge(&self, mutant: &Mutant) -> Result<Verdict> {
        let (cargo, program) = mutant.found_by.split_once(" -- ").unwrap_or((mutant.found_by, ""));
        let build = if cargo.starts_with("test") { "--no-run" } else { "" };
        let builds = cargo.replacen("run ", "build ", 1);
        let arguments = builds.split_whitespace().chain(build.split_whitespace());
        ensure!(self.cargo(arguments, BUILD_MAX)? == Some(true), "it does not compile");
        let arguments = cargo.split_whitespace().chain(["--"]).chain(program.split_whitespace());
        let simulates = mutant.found_by.contains("warren-sim");
        let longest = if simulates { SIMULATION_MAX } else { TESTS_MAX };
        Ok(match self.cargo(arguments, longest)? {
            Some(true) => Verdict::Survived,
            Some(false) => Verdict::Found,
            None => Verdict::FoundHanging,
        })
    }

    /// Whether it succeeded; `None` if it did not end in time.
    fn cargo<'a>(
        &self,
        arguments: impl Iterator<Item = &'a str>,
        longest: Duration,
    ) -> Result<Option<bool>> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut child = Command::new(cargo)
            .args(arguments)
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            // Each fault changes little.
            .env("CARGO_INCREMENTAL", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot run cargo")?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status.success()));
            }
            if start.elapsed() > longest {
                end_group(&child);
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Removes the files of an earlier copy that the tree no longer has, because cargo finds tests and
/// programs by their place.
fn remove_all_but(kept: &BTreeSet<PathBuf>, directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_all_but(kept, &path)?;
        } else if !kept.contains(&path) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Ends cargo and its child processes.
fn end_group(child: &std::process::Child) {
    let group = rustix::process::Pid::from_child(child);
    // It may have ended meanwhile.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
}

impl Mutant {
    fn apply(&self, sound: &str) -> Result<String> {
        let places = sound.matches(self.find).count();
        ensure!(places == 1, "{:?} is {places} times in {}", self.find, self.file);
        Ok(sound.replacen(self.find, self.replace, 1))
    }
}

fn print_table() {
    println!("| | file | fault | found by | seen |\n| --- | --- | --- | --- | --- |");
    for (number, mutant) in numbered() {
        let file = mutant.file.trim_start_matches("crates/");
        let seen = if mutant.is_proven { "yes" } else { "" };
        println!("| {number} | `{file}` | {} | `{}` | {seen} |", mutant.what, mutant.found_by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_the_tree_no_longer_has_are_removed() {
        let directory = std::env::temp_dir().join(format!("mutants-{}", std::process::id()));
        let (kept, old) = (directory.join("kept.rs"), directory.join("tests/old.rs"));
        fs::create_dir_all(directory.join("tests")).expect("a directory");
        [&kept, &old].into_iter().for_each(|file| fs::write(file, "").expect("a file"));
        remove_all_but(&BTreeSet::from([kept.clone()]), &directory).expect("files to remove");
        assert!(kept.exists() && !old.exists());
        fs::remove_dir_all(&directory).expect("a directory");
    }

    #[test]
    fn every_mutant_applies_to_the_tree_as_it_is() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (number, mutant) in numbered() {
            let sound = fs::read_to_string(root.join(mutant.file)).expect(mutant.file);
            let changed = mutant.apply(&sound);
            let changed = changed.unwrap_or_else(|error| panic!("mutant {number}: {error}"));
            assert_ne!(changed, sound, "mutant {number}");
        }
    }
}
