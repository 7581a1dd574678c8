//! Scripts that run twice, on the reference file system and on a mount, and must print and leave
//! the same both times.
//!
//! A script is a bash file whose first comment lines are its directives:
//!
//! ```text
//! # limit: SECONDS      how long it may run (60)
//! # tree: no            only its output is compared, not the tree that it leaves
//! # needs: PROGRAM...   skipped without these
//! # full                only in long runs
//! ```
//!
//! Both runs see their directory under the same path (a bind mount), so that paths in outputs and
//! generated files agree.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::fleet::Fleet;
use super::ground::{CASES, Ground, Tally, Verdict};
use super::preloaded;
use super::process::{self, Outcome, tail};
use super::tree;
use crate::packages;

const LIMIT_DEFAULT: Duration = Duration::from_secs(60);

/// The beginning of every script: it stops at the first failure, and uses one language.
const PREAMBLE: &str =
    "set -euo pipefail; umask 022; export LC_ALL=C TZ=UTC; cd \"$HERE\"; . \"$SCRIPT\"";

pub(crate) struct Script {
    name: String,
    path: PathBuf,
    limit: Duration,
    compare_tree: bool,
    full: bool,
    needs: Vec<String>,
}

/// All scripts of the cases, in the order of their names.
pub(crate) fn load(root: &Path) -> Result<Vec<Script>> {
    let mut scripts = Vec::new();
    for folder in listed(&root.join(CASES))? {
        for path in listed(&folder)? {
            if path.extension().is_some_and(|end| end == "sh") {
                let text =
                    std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                scripts.push(Script::parse(path, &text)?);
            }
        }
    }
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(scripts)
}

fn listed(directory: &Path) -> Result<Vec<PathBuf>> {
    let reading = || format!("cannot list {}", directory.display());
    let entries = std::fs::read_dir(directory).with_context(reading)?;
    entries.map(|entry| Ok(entry.with_context(reading)?.path())).collect()
}

impl Script {
    fn parse(path: PathBuf, text: &str) -> Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (mut limit, mut compare_tree, mut full) = (LIMIT_DEFAULT, true, false);
        let mut needs = Vec::new();
        for line in text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim) {
            if let Some(seconds) = line.strip_prefix("limit:") {
                let seconds = seconds.trim().parse().with_context(|| format!("limit of {name}"))?;
                limit = Duration::from_secs(seconds);
            } else if let Some(programs) = line.strip_prefix("needs:") {
                needs.extend(programs.split_whitespace().map(str::to_owned));
            }
            compare_tree &= line != "tree: no";
            full |= line == "full";
        }
        Ok(Self { name, path, limit, compare_tree, full, needs })
    }

    fn missing(&self) -> Option<&String> {
        self.needs.iter().find(|program| !packages::present(program))
    }

    fn run(&self, ground: &Ground, here: &Path) -> Result<Outcome> {
        let full = ground.options.full;
        let place = ground.path("run");
        let mut command = preloaded::program(ground, "bash");
        command
            .args(["-c", PREAMBLE, self.name.as_str()])
            .env("HERE", here)
            .env("SCRIPT", &self.path)
            .env("CASES", self.path.parent().unwrap_or(Path::new(".")))
            .env("REPO", &ground.root)
            .env("HOME", &place)
            .env("PLACE", &ground.place)
            .env("SEED", ground.seed.to_string())
            .env("FILES", if full { "20000" } else { "2000" })
            .env("STEPS", if full { "10000" } else { "3000" })
            .env("RUNS", if full { "8" } else { "3" })
            .env("MODULES", if full { "60" } else { "12" });
        process::run(command, &place, self.limit)
    }
}

/// Runs every script on one mount; a fresh fleet is started after one that did not end in time.
pub(crate) fn run_all(ground: &Ground, scripts: &[Script], cells: u16, tally: &mut Tally) {
    let mut fleet: Option<Fleet> = None;
    for script in scripts {
        let name = format!("{} ({cells} cells)", script.name);
        if !wanted(ground, script) {
            continue;
        }
        tally.case(&name, || {
            if let Some(program) = script.missing() {
                return Ok(Verdict::Skipped(format!("no {program}")));
            }
            let ready = match fleet.take() {
                Some(ready) => ready,
                None => {
                    Fleet::start(ground, &format!("pool-{cells}-{}", script.name), "16G", cells)?
                }
            };
            let on_mount = ready.mounted.join(&script.name);
            let verdict = compare(ground, script, &on_mount);
            if ready.answers() {
                // The files of a failed script do not matter to the next.
                let _left = std::fs::remove_dir_all(&on_mount);
                fleet = Some(ready);
            } else {
                println!("{}", ready.last_words());
                ready.kill();
            }
            verdict
        });
    }
    if let Some(fleet) = fleet {
        tally.case(&format!("fsck after the scripts ({cells} cells)"), || {
            fleet.stop_and_check().map(|()| Verdict::Passed)
        });
    }
}

/// Runs one script on this fleet, by its name.
pub(crate) fn run_one(ground: &Ground, fleet: &Fleet, name: &str) -> Result<Verdict> {
    let scripts = load(&ground.root)?;
    let script = scripts.iter().find(|script| script.name == name).context("no such script")?;
    if let Some(program) = script.missing() {
        return Ok(Verdict::Skipped(format!("no {program}")));
    }
    compare(ground, script, &fleet.mounted.join(name)).with_context(|| name.to_owned())
}

/// The scripts against the reference file system on both sides.
pub(crate) fn rehearse(ground: &Ground, scripts: &[Script], tally: &mut Tally) {
    for script in scripts.iter().filter(|script| wanted(ground, script)) {
        tally.case(&script.name, || {
            if let Some(program) = script.missing() {
                return Ok(Verdict::Skipped(format!("no {program}")));
            }
            compare(ground, script, &ground.path(&format!("rehearsal-{}", script.name)))
        });
    }
}

fn wanted(ground: &Ground, script: &Script) -> bool {
    ground.options.wants(&script.name) && (ground.options.full || !script.full)
}

/// Runs the script in a new directory of the reference and in `on_mount`, and compares.
fn compare(ground: &Ground, script: &Script, on_mount: &Path) -> Result<Verdict> {
    let reference = ground.path(&format!("reference-{}", script.name));
    // Removes the files of an earlier run that failed.
    let _absent = std::fs::remove_dir_all(&reference);
    let expected = run_in(ground, script, &reference).context("on the reference")?;
    if expected.timed_out || !expected.status.success() {
        let said = format!("{}\n{}", tail(&expected.stdout), tail(&expected.stderr));
        bail!("the reference itself ended with {}: {}", expected.code(), said.trim());
    }
    if let Some(why) = expected.stdout.strip_prefix("skipped: ") {
        return Ok(Verdict::Skipped(why.trim().to_owned()));
    }
    let found = run_in(ground, script, on_mount)?;
    if found.timed_out {
        bail!("not finished within {} s: {}", script.limit.as_secs(), tail(&found.stdout));
    }
    let mut wrong = Vec::new();
    if found.code() != expected.code() {
        wrong.push(format!("exit {}, expected {}", found.code(), expected.code()));
    }
    wrong.extend(tree::differences(expected.stdout.lines(), found.stdout.lines()));
    if !wrong.is_empty() {
        bail!("{}\n{}", wrong.join("\n"), tail(&found.stderr));
    }
    if script.compare_tree {
        compare_trees(&reference, on_mount)?;
    }
    std::fs::remove_dir_all(&reference).context("cannot remove the reference tree")?;
    std::fs::remove_dir_all(on_mount).context("cannot remove the tree on the mount")?;
    Ok(Verdict::Passed)
}

fn compare_trees(reference: &Path, on_mount: &Path) -> Result<()> {
    let (expected, found) = (tree::listing(reference)?, tree::listing(on_mount)?);
    let expected = expected.iter().map(String::as_str);
    let wrong = tree::differences(expected, found.iter().map(String::as_str));
    if !wrong.is_empty() {
        bail!("the trees differ:\n{}", wrong.join("\n"));
    }
    Ok(())
}

/// Runs the script with `directory`, which is created, bound to the common path.
fn run_in(ground: &Ground, script: &Script, directory: &Path) -> Result<Outcome> {
    let here = ground.path("here");
    for path in [directory, &here] {
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let (from, to) = (directory.to_string_lossy(), here.to_string_lossy());
    process::quietly("mount", &["--bind", &from, &to])?;
    let outcome = script.run(ground, &here);
    process::quietly("umount", &["--lazy", &to])?;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_read_from_the_first_comment_lines() {
        let text = "# What.\n# limit: 5\n# tree: no\n# needs: git tar\n# full\necho\n# limit: 9\n";
        let script = Script::parse("cases/some.sh".into(), text).expect("parse");
        assert_eq!(script.name, "some");
        assert_eq!(script.limit, Duration::from_secs(5));
        assert!(!script.compare_tree && script.full);
        assert_eq!(script.needs, ["git", "tar"]);
        assert!(Script::parse("cases/bad.sh".into(), "# limit: soon\n").is_err());
    }
}
