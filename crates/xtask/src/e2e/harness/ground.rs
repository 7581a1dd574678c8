//! The common ground of all cases: the place where they run, and the tally of their results.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::options::{Options, fresh_seed};
use super::process;
use crate::cargo::release_binary;

/// Scripts and programs of the cases, in folders by subject.
pub(crate) const CASES: &str = "crates/xtask/cases";

/// Everything a case may use.
pub(crate) struct Ground {
    pub root: PathBuf,
    pub warren: PathBuf,
    /// A directory of this run, on an ordinary file system.
    pub place: PathBuf,
    pub options: Options,
    pub seed: u64,
}

impl Ground {
    pub(crate) fn prepare(root: &Path, options: &Options) -> Result<Self> {
        let seed = options.seed.map_or_else(fresh_seed, Ok)?;
        // Short, because the address of a socket in a mount has 108 bytes.
        let place = std::env::temp_dir().join(format!("we2e-{:06x}", seed & 0xff_ffff));
        if place.exists() {
            std::fs::remove_dir_all(&place).context("cannot clear the working directory")?;
        }
        std::fs::create_dir_all(place.join("run")).context("cannot make the working directory")?;
        // A private directory for the sockets of these fleets.
        process::quietly("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])?;
        if !Path::new("/sys/fs/fuse/connections")
            .read_dir()
            .is_ok_and(|mut list| list.next().is_some())
        {
            let _absent = process::quietly(
                "mount",
                &["-t", "fusectl", "fusectl", "/sys/fs/fuse/connections"],
            );
        }
        Ok(Self {
            root: root.to_path_buf(),
            warren: release_binary(root),
            place,
            options: options.clone(),
            seed,
        })
    }

    /// A script, or the source of a program, of the cases.
    pub(crate) fn case(&self, name: &str) -> PathBuf {
        self.root.join(CASES).join(name)
    }

    /// A new path in the working directory. Nothing is created there.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }
}

/// The results of the cases.
#[derive(Default)]
pub(crate) struct Tally {
    passed: usize,
    skipped: usize,
    /// A case and its error each.
    failed: Vec<String>,
    names: Vec<String>,
}

/// The result of a case that found nothing wrong.
pub(crate) enum Verdict {
    Passed,
    Skipped(String),
}

impl Tally {
    /// Runs one case and prints its line.
    pub(crate) fn case(&mut self, name: &str, run: impl FnOnce() -> Result<Verdict>) {
        let start = Instant::now();
        let verdict = run();
        let seconds = start.elapsed().as_secs_f64();
        self.names.push(name.to_owned());
        match verdict {
            Ok(Verdict::Passed) => {
                println!("{name}: ok ({seconds:.1} s)");
                self.passed += 1;
            }
            Ok(Verdict::Skipped(why)) => {
                println!("{name}: skipped: {why}");
                self.skipped += 1;
            }
            Err(error) => {
                println!("{name}: FAILED ({seconds:.1} s): {error:#}");
                self.failed.push(format!("{name}: {error:#}"));
            }
        }
    }

    /// A name of which there is no case fails.
    pub(crate) fn miss(&mut self, wanted: &[String]) {
        let is_missed =
            |only: &&String| !self.names.iter().any(|name| name.contains(only.as_str()));
        let missed: Vec<&String> = wanted.iter().filter(is_missed).collect();
        self.failed.extend(missed.iter().map(|only| {
            format!("no case is named {only:?}; `cargo xtask e2e` alone prints all names")
        }));
    }

    /// Prints the sum. What failed is left in a file for the process that started this one.
    pub(crate) fn finish(&self, failures: &Path) -> Result<bool> {
        println!(
            "end to end: {} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped
        );
        if !self.failed.is_empty() {
            std::fs::write(failures, self.failed.join("\n"))
                .with_context(|| format!("cannot write {}", failures.display()))?;
        }
        Ok(self.failed.is_empty())
    }
}
