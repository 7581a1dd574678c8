//! The log: each event of a fleet and its mounts is recorded once, and a log that cannot be written
//! harms nothing else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::e2e::harness::command::as_user;
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process::{self, wait_until};
use crate::e2e::harness::programs::Program;
use crate::e2e::harness::survivors::{end_survivors, nothing_left, one_process};

/// A user that the fleet admits, but that may not stop it.
const CLIENT: u32 = 4321;
const PERMISSION: i32 = 5;
const IN_USE: i32 = 4;

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if !ground.options.wants("log_of_faults") {
        return;
    }
    tally.case(&format!("log_of_faults ({cells} cells)"), || {
        let place = ground.path(&format!("logs-{cells}"));
        let result = log_of_faults(ground, cells, &place).and_then(|()| nothing_left());
        if result.is_err() {
            end_survivors();
        }
        let _detached = process::quietly("umount", &["--lazy", &place.to_string_lossy()]);
        result.map(|()| Verdict::Passed)
    });
}

/// The log of a fleet and of one of its mounts, in a directory of a small file system.
struct Log {
    host: PathBuf,
    directory: PathBuf,
    file: PathBuf,
}

impl Log {
    fn prepare(place: &Path) -> Result<Self> {
        fs::create_dir_all(place).context("cannot make a directory")?;
        let host = place.to_path_buf();
        process::quietly("mount", &["-t", "tmpfs", "-o", "size=256k", "tmpfs", &path(&host)])?;
        let directory = host.join("log");
        fs::create_dir(&directory).context("cannot make a directory")?;
        Ok(Self { file: directory.join("warren.log"), directory, host })
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap_or_default()
    }

    fn count(&self, words: &[&str]) -> usize {
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        self.text().lines().filter(has_all).count()
    }

    /// Waits for `count` lines with all of these words, and no more.
    fn expect(&self, count: usize, words: &[&str]) -> Result<()> {
        let awaited =
            wait_until(&format!("a line with {words:?}"), || Ok(self.count(words) >= count));
        awaited.with_context(|| self.text())?;
        let found = self.count(words);
        ensure!(found == count, "{found} lines with {words:?}, not {count}:\n{}", self.text());
        Ok(())
    }
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn kill(words: &[&str]) -> Result<()> {
    let pid: Pid = one_process(words)?;
    kill_process(pid, Signal::KILL).context("cannot kill a process")
}

fn log_of_faults(ground: &Ground, cells: u16, place: &Path) -> Result<()> {
    let log = Log::prepare(place)?;
    let file = path(&log.file);
    let options = ["--log", &file, "--clients", &CLIENT.to_string()];
    let fleet = Fleet::start_with(ground, &format!("logged-{cells}"), "256M", cells, &options)?;
    let second = fleet.mounted.with_extension("second");
    fs::create_dir_all(&second).context("cannot make a mount point")?;
    fleet.warren(&["mount", "--log", &file], &[&fleet.pool, &second])?.expect_success("mount")?;
    log.expect(1, &["INFO", " keeper: the fleet serves"])?;
    log.expect(2, &[" supervisor: a mount is admitted"])?;
    log.expect(1, &[" mount of ", "second: the mount is served"])?;
    deaths(&log)?;
    refusals(ground, &fleet, &log, &second)?;
    let begun = |fleet: &Fleet| fs::write(fleet.mounted.join("file"), "x").context("no service");
    // A full file system, then a directory that is gone. The fleet serves, reports it, and records
    // it later.
    let ballast = log.host.join("ballast");
    let _full = fs::write(&ballast, vec![0; 1 << 20]);
    let last = unrecorded(&fleet, &log, 2, || begun(&fleet))?;
    fs::remove_file(&ballast).context("cannot make room")?;
    recorded(&fleet, &log, last)?;
    let elsewhere = log.host.join("elsewhere");
    fs::rename(&log.directory, &elsewhere).context("cannot rename")?;
    let last = unrecorded(&fleet, &log, last + 1, || begun(&fleet))?;
    fs::rename(&elsewhere, &log.directory).context("cannot rename")?;
    recorded(&fleet, &log, last)?;
    fleet.warren(&["umount"], &[&second])?.expect_success("umount")?;
    fleet.stop_and_check()?;
    log.expect(1, &[" keeper: the fleet has ended"])?;
    log.expect(1, &[" mount of ", "second: the mount has ended"])?;
    check_lines(&log)
}

/// The deaths of a cell, a supervisor and a front.
fn deaths(log: &Log) -> Result<()> {
    kill(&["warren cell 0"])?;
    log.expect(1, &["INFO", " keeper: cell 0 (epoch 1) ended: signal: 9"])?;
    log.expect(1, &["WARN", " supervisor: cell 0 ended (signal: 9 (SIGKILL)); a successor"])?;
    log.expect(1, &["WARN", " supervisor: cell 0 serves again after ", "(epoch 2)"])?;
    kill(&["warren supervisor"])?;
    log.expect(1, &["WARN", " keeper: the supervisor ended (signal: 9 (SIGKILL)); another"])?;
    log.expect(1, &["WARN", " supervisor: the supervisor serves again after "])?;
    kill(&["warren front", "second"])?;
    log.expect(1, &["WARN", " mount of ", "second: the front of ", "ended (signal: 9 (SIGKILL))"])?;
    log.expect(1, &["WARN", "second serves again after "])
}

/// The refusals of a client and of a stop.
fn refusals(ground: &Ground, fleet: &Fleet, log: &Log, second: &Path) -> Result<()> {
    let refused = as_user(ground, CLIENT, None, &["stop", &path(&fleet.pool)])?;
    ensure!(refused.code() == PERMISSION, "exit {}: {}", refused.code(), refused.stderr);
    let uid = format!("uid={CLIENT}");
    log.expect(
        1,
        &["WARN", " supervisor: a client was refused", &uid, "by=warren", "not permitted"],
    )?;
    let program = Program::mapping(ground, &second.join("mapped"))?;
    let refused = fleet.warren(&["stop"], &[&fleet.pool])?;
    ensure!(refused.code() == IN_USE, "exit {}: {}", refused.code(), refused.stderr);
    drop(program);
    log.expect(1, &["INFO", " supervisor: the fleet is to stop uid=0"])?;
    log.expect(1, &["WARN", " supervisor: the stop is refused", "python3"])
}

/// Cell 0, of this epoch, dies until nothing can be recorded: the last page of a file may have room
/// for some lines. The fleet serves then. Returns the epoch of the last process that died.
fn unrecorded(
    fleet: &Fleet,
    log: &Log,
    mut epoch: u32,
    serves: impl Fn() -> Result<()>,
) -> Result<u32> {
    let is_reported = || fleet.status().map(|status| status.contains("NOTHING CAN BE RECORDED"));
    loop {
        kill(&["warren cell 0"])?;
        let back = format!("(epoch {})", epoch + 1);
        let is_recorded = || log.count(&["serves again", &back]) > 0;
        wait_until("a record, or trouble", || Ok(is_recorded() || is_reported()?))?;
        if !is_recorded() {
            break;
        }
        epoch += 1;
    }
    serves()?;
    let json = fleet.warren(&["status", "--json"], &[&fleet.pool])?.expect_success("status")?;
    ensure!(json.stdout.contains("\"log_trouble\":\""), "{}", json.stdout);
    Ok(epoch)
}

/// That death is recorded now.
fn recorded(fleet: &Fleet, log: &Log, epoch: u32) -> Result<()> {
    log.expect(1, &[" keeper: ", &format!("cell 0 (epoch {epoch}) ended: signal: 9")])?;
    log.expect(1, &[" supervisor: cell 0 serves again", &format!("(epoch {})", epoch + 1)])?;
    wait_until("status tells no more", || Ok(!fleet.status()?.contains("NOTHING CAN BE")))?;
    let status = fleet.status()?;
    ensure!(status.contains(&format!("  log {}\n", log.file.display())), "{status}");
    Ok(())
}

/// Checks that the file has whole lines of one form, and that only its owner can read it.
fn check_lines(log: &Log) -> Result<()> {
    let mode = fs::metadata(&log.file).context("no log")?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "mode {mode:o}");
    for line in log.text().lines() {
        let is_time = line.len() > 25 && line.as_bytes()[10] == b'T' && line.as_bytes()[23] == b'Z';
        let has_level =
            ["INFO ", "WARN ", "ERROR"].iter().any(|level| line.get(25..30) == Some(level));
        ensure!(is_time && has_level && line[30..].starts_with(" pool="), "{line:?}");
    }
    Ok(())
}
