//! `warren run` beside other commands that end its fleet or its mount: its command runs in the pool
//! or not at all, and nothing is left behind.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::e2e::harness::case::{Case, run_unmounting};
use crate::e2e::harness::fleet::warren;
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process::{self, wait_until};
use crate::e2e::harness::survivors::{nothing_left, one_process, processes};

const LIMIT: Duration = Duration::from_secs(60);

/// Rounds of [`run_beside_stop`]. In each, the stop comes at another moment.
const ROUNDS: u32 = 24;

const CASES: &[(&str, Case)] = &[
    ("run_beside_stop", run_beside_stop),
    ("run_of_a_stopped_fleet", run_of_a_stopped_fleet),
    ("run_keeps_its_mount", run_keeps_its_mount),
    ("run_ended_before_its_command", run_ended_before_its_command),
];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_unmounting(CASES, ground, cells, tally);
}

fn pool(ground: &Ground, name: &str) -> Result<String> {
    let pool = ground.path(name).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "64M", &pool])?.expect_success("mkfs")?;
    Ok(pool)
}

fn has_mount() -> Result<bool> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("cannot read mounts")?;
    Ok(mounts.contains("fuse.warren"))
}

fn names_in(directory: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(directory).context("cannot list a directory")?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().context("cannot list a directory")
}

/// A stop comes as soon as the mount is there, or a little later. The directory below is never
/// written to, a command that ran has run in the pool, and neither a mount nor a directory is left.
fn run_beside_stop(ground: &Ground, cells: u16) -> Result<()> {
    let pool = pool(ground, &format!("run-stopped-{cells}"))?;
    let below = ground.path(&format!("run-stopped-{cells}.mounted"));
    let runtime = ground.path(&format!("run-stopped-{cells}.runtime"));
    for directory in [&below, &runtime] {
        std::fs::create_dir_all(directory).context("cannot make a directory")?;
    }
    std::fs::write(below.join("host"), "precious").context("cannot write")?;
    let script = "stat -f -c %t . && rm -f * && echo > written";
    for round in 0..ROUNDS {
        let mut command = Command::new(&ground.warren);
        command.args(["run", "--pool", &pool]);
        if round % 2 == 0 {
            command.arg("--mount").arg(&below);
        }
        command.args(["--", "bash", "-c", script]).env("XDG_RUNTIME_DIR", &runtime);
        let mut run = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start warren run")?;
        let is_begun = || Ok(has_mount()? || run.try_wait().context("cannot wait")?.is_some());
        wait_until("the mount is there", is_begun)?;
        // It chooses the moment of the stop. What follows must hold at any.
        std::thread::sleep(Duration::from_millis(2) * (round / 2));
        warren(ground, &["stop", &pool])?;
        let (status, late) = process::wait(&mut run, LIMIT)?;
        ensure!(!late, "round {round}: the run hangs");
        let mut said = String::new();
        run.stdout.context("no output")?.read_to_string(&mut said).context("its output")?;
        // The number of FUSE in statfs(2).
        ensure!(
            said.is_empty() || said == "65735546\n",
            "round {round}: the command ran in {said}"
        );
        ensure!(said.is_empty() != status.success(), "round {round}: {status}, said {said:?}");
        nothing_left().with_context(|| format!("round {round}"))?;
        ensure!(names_in(&below)? == ["host"], "round {round}: the host's directory was changed");
        let left: Vec<_> =
            names_in(&runtime)?.into_iter().filter(|it| it.starts_with("warren-run")).collect();
        ensure!(left.is_empty(), "round {round}: {left:?} is left");
    }
    Ok(())
}

/// A fleet that its command has stopped in order leaves the run nothing to end: the command's code
/// is that of the run.
fn run_of_a_stopped_fleet(ground: &Ground, cells: u16) -> Result<()> {
    let pool = pool(ground, &format!("run-itself-{cells}"))?;
    let program = ground.warren.to_string_lossy();
    for code in [0, 3] {
        let script = format!("cd / && \"$0\" stop --force \"$1\" && exit {code}");
        let words = ["run", "--pool", &pool, "--", "bash", "-c", &script, &program, &pool];
        let ran = warren(ground, &words)?;
        ensure!(ran.code() == code, "exit {} instead of {code}: {}", ran.code(), ran.stderr);
        nothing_left()?;
    }
    Ok(())
}

/// A mount stays until the command has ended, also if the command has left it.
fn run_keeps_its_mount(ground: &Ground, cells: u16) -> Result<()> {
    let pool = pool(ground, &format!("run-kept-{cells}"))?;
    let program = ground.warren.to_string_lossy();
    let script =
        "cd / && { \"$0\" stop \"$1\"; test $? = 4; } && echo kept > \"$WARREN_ROOT/file\"";
    let words = ["run", "--pool", &pool, "--", "bash", "-c", script, &program, &pool];
    warren(ground, &words)?.expect_success("a run beside a stop")?;
    let read = warren(ground, &["run", "--pool", &pool, "--", "cat", "file"])?;
    ensure!(read.stdout == "kept\n", "read {:?}: {}", read.stdout, read.stderr);
    Ok(())
}

/// A run that waits for a stopped fleet ends by a signal.
fn run_ended_before_its_command(ground: &Ground, cells: u16) -> Result<()> {
    let pool = pool(ground, &format!("run-ended-{cells}"))?;
    let mounted = ground.path(&format!("run-ended-{cells}.mounted"));
    std::fs::create_dir_all(&mounted).context("cannot make a directory")?;
    let at = mounted.to_string_lossy().into_owned();
    warren(ground, &["mount", &pool, &at])?.expect_success("mount")?;
    // None of the two can resume the other one.
    let stopped = [one_process(&["warren keeper"])?, one_process(&["warren supervisor"])?];
    for pid in stopped {
        kill_process(pid, Signal::STOP).context("cannot stop a process")?;
    }
    let mut run = Command::new(&ground.warren)
        .args(["run", "--pool", &pool, "--", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start warren run")?;
    let is_mounting = || Ok(processes(&["warren __mount"]).len() == 2);
    let waits = wait_until("the run waits for its mount", is_mounting);
    kill_process(Pid::from_child(&run), Signal::INT).context("cannot signal a process")?;
    let ended = process::wait(&mut run, Duration::from_secs(10));
    for pid in stopped {
        kill_process(pid, Signal::CONT).context("cannot resume a process")?;
    }
    waits?;
    let (status, late) = ended?;
    ensure!(!late && status.code() == Some(128 + 2), "the run ended with {status}");
    warren(ground, &["umount", &at])?.expect_success("umount")?;
    warren(ground, &["stop", &pool])?.expect_success("stop").map(drop)
}
