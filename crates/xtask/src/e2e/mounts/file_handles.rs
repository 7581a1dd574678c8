//! File handles that outlive a mount and a fleet, a working directory that another mount's user
//! removes, and a swap file. The programs are `file_handles.c` and `removed_dirs.c` in
//! `cases/names`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::fleet::{Fleet, MOUNT};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process;
use crate::e2e::harness::programs::compiled;
use crate::e2e::harness::tree;

const CASES: &[(&str, Case)] = &[
    ("handles_after_restarts", handles_after_restarts),
    ("removed_by_another_mount", removed_by_another_mount),
    ("swap_file", swap_file),
];

const LIMIT: Duration = Duration::from_secs(60);
/// Files of `file_handles.c` that it has removed or replaced.
const REMOVED: usize = 3;

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
}

/// Runs the program, and returns what it prints.
fn handles(ground: &Ground, part: &str, dir: &Path, file: &Path) -> Result<String> {
    let mut command = Command::new(compiled(ground, "names/file_handles")?);
    command.arg(part).arg(dir).arg(file);
    let outcome = process::run(command, &ground.path("run"), LIMIT)?;
    Ok(outcome.expect_success(part)?.stdout)
}

fn same(what: &str, expected: &str, found: &str) -> Result<()> {
    let wrong = tree::differences(expected.lines(), found.lines());
    ensure!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
    Ok(())
}

fn handles_after_restarts(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("handles-{cells}");
    let kept = ground.path(&format!("{name}.handles"));
    let mut expected = String::new();
    let fleet = Fleet::start(ground, &name, "512M", cells)?;
    let dir = fleet.mounted.join("tree");
    fleet.during(|fleet| {
        fs::create_dir(&dir).context("cannot make a directory")?;
        handles(ground, "make", &dir, &kept)?;
        handles(ground, "change", &dir, &kept)?;
        expected = handles(ground, "show", &dir, &kept)?;
        let stale = expected.matches("ESTALE").count();
        ensure!(stale == REMOVED, "{stale} of {REMOVED} are stale:\n{expected}");
        fleet.umount()?;
        fleet.warren(MOUNT, &[&fleet.pool, &fleet.mounted])?.expect_success("mount")?;
        same("mounted again", &expected, &handles(ground, "show", &dir, &kept)?)?;
        Ok(Verdict::Passed)
    })?;
    let fleet = Fleet::resume(ground, &name, cells % 3 + 1)?;
    fleet.during(|_| {
        same("another fleet", &expected, &handles(ground, "show", &dir, &kept)?)?;
        Ok(Verdict::Passed)
    })?;
    of_another_pool(ground, &format!("{name}-other"), cells, &kept)
}

/// A pool in which the same inode numbers are in use.
fn of_another_pool(ground: &Ground, name: &str, cells: u16, kept: &Path) -> Result<()> {
    let fleet = Fleet::start(ground, name, "512M", cells)?;
    fleet.during(|fleet| {
        let dir = fleet.mounted.join("tree");
        fs::create_dir(&dir).context("cannot make a directory")?;
        handles(ground, "make", &dir, &ground.path(&format!("{name}.handles")))?;
        let shown = handles(ground, "show", &dir, kept)?;
        let is_stale = |line: &str| line.ends_with(": ESTALE");
        ensure!(shown.lines().all(is_stale), "handles of another pool:\n{shown}");
        Ok(Verdict::Passed)
    })?;
    Ok(())
}

/// The kernel of the first mount learns of it by recalls alone.
fn removed_by_another_mount(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("removed-{cells}"), "512M", cells)?;
    fleet.during(|fleet| {
        let reference = ground.path(&format!("removed-{cells}.reference"));
        fs::create_dir_all(&reference).context("cannot make a directory")?;
        fleet.with_second_front(|second| {
            for removal in [&["rmdir"][..], &["rm", "-r"], &["mv", "-T", "OTHER"]] {
                let expected = removed(ground, &reference, &reference, removal)?;
                let found = removed(ground, &fleet.mounted, second, removal)?;
                let [expected, found] = [expected, found].map(|all| without_path(&all));
                same(&removal.join(" "), &expected, &found)?;
            }
            Ok(())
        })?;
        Ok(Verdict::Passed)
    })?;
    Ok(())
}

/// A kernel that has only been told to look the name up again still shows the old path (decision
/// 62).
fn without_path(printed: &str) -> String {
    printed.lines().filter(|line| !line.starts_with("getcwd:")).collect::<Vec<_>>().join("\n")
}

/// Returns what a program finds in its directory below `here` after the removal of that below
/// `there`.
fn removed(ground: &Ground, here: &Path, there: &Path, removal: &[&str]) -> Result<String> {
    let top = here.join("top");
    if top.exists() {
        fs::remove_dir_all(&top).context("cannot remove a directory")?;
    }
    for name in ["dir", "other"] {
        fs::create_dir_all(top.join(name)).context("cannot make a directory")?;
    }
    fs::write(top.join("file"), "x").context("cannot make a file")?;
    let mut command = Command::new(compiled(ground, "names/removed_dirs")?);
    command.arg(top.join("dir"));
    for word in removal {
        match *word {
            "OTHER" => command.arg(there.join("top/other")),
            word => command.arg(word),
        };
    }
    command.arg(there.join("top/dir"));
    let outcome = process::run(command, &ground.path("run"), LIMIT)?;
    Ok(outcome.expect_success("removed_dirs")?.stdout)
}

/// It is refused, and stays a file like any other.
fn swap_file(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("swap-{cells}"), "512M", cells)?;
    fleet.during(|fleet| {
        let file = fleet.mounted.join("swap");
        fs::write(&file, vec![0; 8 << 20]).context("cannot make a file")?;
        process::quietly("mkswap", &[&file.to_string_lossy()])?;
        let before = fs::read(&file).context("cannot read")?;
        let mut command = Command::new("swapon");
        command.arg(&file);
        let refused = process::run(command, &ground.path("run"), LIMIT)?;
        ensure!(refused.stderr.contains("Invalid argument"), "swapon: {}", refused.stderr);
        fs::OpenOptions::new().write(true).open(&file).context("cannot open it to write")?;
        ensure!(fs::read(&file).context("cannot read")? == before, "the file has changed");
        fs::remove_file(&file).context("cannot remove it")?;
        Ok(Verdict::Passed)
    })?;
    Ok(())
}
