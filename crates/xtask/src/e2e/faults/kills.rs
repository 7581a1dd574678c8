//! Cells are killed or stopped while programs work, and no program sees more than a pause.
//! Supervisors are too, and sometimes a cell with one.
//!
//! `cases/faults/acknowledged.py` records every answer that it got, and `cases/faults/churned.py`
//! what is in each file of a full pool, whose blocks are moved. In a long run ordinary scripts work
//! beside the former. The pauses that the fleet's supervisor reports are collected.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use warren_base::Rng;

use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::preloaded;
use crate::e2e::harness::process;
use crate::e2e::harness::script;
use crate::e2e::harness::survivors::survivors;

/// Cells killed.
const KILLS: usize = 6;
const KILLS_FULL: usize = 1000;

/// Supervisors killed.
const DEATHS: usize = 6;
const DEATHS_FULL: usize = 200;

/// The time for which a cell may be without a successor that serves.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// The longest time between two kills.
const LULL_MAX: Duration = Duration::from_millis(400);

/// The time that the programs need in addition to the kills themselves.
const PATIENCE: Duration = Duration::from_secs(60);

/// The file that ends the recording program.
const ENOUGH: &str = "enough";

/// The supervisor's message when a cell serves again.
const BACK: &str = "serves again after ";

/// Programs that run beside the recording one, one after the other, as long as cells die.
const SCRIPTS: &[&str] = &["git", "sqlite", "c_project"];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if ground.options.wants("killed_cells") {
        tally.case(&format!("killed_cells ({cells} cells)"), || {
            let name = format!("killed-cells-{cells}");
            // Room for the writes between two checkpoints, which kills delay.
            let size = if ground.options.cache_mib.is_some() { "16G" } else { "4G" };
            let cache = ground.options.cache_mib.map(|mib| format!("{mib}MiB"));
            let options = cache.as_ref().map(|cache| ["--cache", cache]);
            let options = options.as_ref().map_or(&[][..], |options| options);
            let fleet = Fleet::start_with(ground, &name, size, cells, options)?;
            let usual = if ground.options.full { KILLS_FULL } else { KILLS };
            let kills = ground.options.kills.map_or(usual, |kills| kills as usize);
            fleet.during(|fleet| killed(ground, fleet, (Victim::Cell, Work::Acknowledged), kills))
        });
    }
    if ground.options.wants("cleaned_cells") {
        tally.case(&format!("cleaned_cells ({cells} cells)"), || {
            let fleet = Fleet::start(ground, &format!("cleaned-{cells}"), "256M", cells)?;
            let usual = if ground.options.full { KILLS_FULL } else { KILLS };
            let kills = ground.options.kills.map_or(usual, |kills| kills as usize);
            fleet.during(|fleet| killed(ground, fleet, (Victim::Cell, Work::Churned), kills))
        });
    }
    if ground.options.wants("unread_words") {
        tally.case(&format!("unread_words ({cells} cells)"), || unread_words(ground, cells));
    }
    if ground.options.wants("killed_supervisors") {
        tally.case(&format!("killed_supervisors ({cells} cells)"), || {
            let fleet = Fleet::start(ground, &format!("orphaned-{cells}"), "4G", cells)?;
            let kills = if ground.options.full { DEATHS_FULL } else { DEATHS };
            // The stop at the end meets a supervisor that has taken over.
            let kind = (Victim::Supervisor, Work::Acknowledged);
            fleet.during(|fleet| killed(ground, fleet, kind, kills))
        });
    }
}

/// The reader of a fleet's output is gone, or reads no more. Its processes die and get successors
/// as usual.
fn unread_words(ground: &Ground, cells: u16) -> Result<Verdict> {
    for (name, is_full) in [("unread", false), ("stalled", true)] {
        let (reader, writer) = if is_full { full_pipe()? } else { pipe().context("a pipe")? };
        // A pipe is not broken as long as it has a reader.
        let reader = is_full.then_some(reader);
        let fleet = Fleet::start_saying(ground, &format!("{name}-{cells}"), "1G", cells, writer)?;
        fleet.during(|fleet| {
            std::fs::write(fleet.mounted.join("kept"), "kept").context("cannot write")?;
            for victim in [Victim::Cell, Victim::Supervisor] {
                let until = Instant::now() + PATIENCE;
                let killed = Killer::new(ground, fleet, victim).kill(2, until)?;
                ensure!(killed >= 2, "{killed} {} killed", victim.plural());
            }
            let kept = std::fs::read_to_string(fleet.mounted.join("kept")).context("lost")?;
            ensure!(kept == "kept", "{name}: found {kept:?}");
            Ok(Verdict::Passed)
        })?;
        drop(reader);
    }
    Ok(Verdict::Passed)
}

/// A pipe that is full, so that its writer waits.
fn full_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).context("a pipe")?;
    while rustix::io::write(&writer, &[b'.'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).context("a pipe that blocks")?;
    Ok((reader, writer))
}

/// Whose processes are killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Victim {
    Cell,
    Supervisor,
    Front,
    MountKeeper,
}

impl Victim {
    /// The beginning of such a process's command line.
    const fn begins(self) -> &'static [u8] {
        match self {
            Self::Cell => b"warren\0cell\0",
            Self::Supervisor => b"warren\0supervisor\0",
            Self::Front => b"warren\0front\0",
            Self::MountKeeper => b"warren\0__mount",
        }
    }

    pub(super) fn processes(self) -> Vec<Pid> {
        survivors().into_keys().filter_map(|pid| process_of(self, pid)).collect()
    }

    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Cell => "cells",
            Self::Supervisor => "supervisors",
            Self::Front => "fronts",
            Self::MountKeeper => "mount keepers",
        }
    }
}

/// The program whose files are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Acknowledged,
    Churned,
}

impl Work {
    const fn name(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Churned => "churned",
        }
    }

    fn log(self, ground: &Ground) -> PathBuf {
        ground.path(&format!("{}.log", self.name()))
    }
}

fn killed(
    ground: &Ground,
    fleet: &Fleet,
    (victim, work): (Victim, Work),
    kills: usize,
) -> Result<Verdict> {
    // An upper limit: it ends when the kills are done.
    let time = Duration::from_secs(4) + (LULL_MAX + Duration::from_millis(300)) * kills as u32;
    let mut program = set_to_work(ground, fleet, work, time)?;
    let over = AtomicBool::new(false);
    let (killed, beside) = std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            let killed = Killer::new(ground, fleet, victim).kill(kills, Instant::now() + time);
            over.store(true, Ordering::Relaxed);
            let enough = File::create(ground.path(ENOUGH)).context("cannot stop the program");
            enough.and(killed)
        });
        let beside = match work {
            Work::Acknowledged if ground.options.full => work_beside(ground, fleet, &over),
            _ => Ok(0),
        };
        (killing.join(), beside)
    });
    let killed = killed.map_err(|_| anyhow::anyhow!("the killer failed"))?;
    let (status, late) = process::wait(&mut program, time + PATIENCE)?;
    let said = std::fs::read_to_string(work.log(ground)).unwrap_or_default();
    ensure!(!late && status.success(), "{status}: {}", process::tail(&said));
    let (killed, beside) = (killed?, beside?);
    // On a busy machine not all kills happen within the time.
    ensure!(2 * killed >= kills, "only {killed} of {kills} {} were killed", victim.plural());
    println!("{killed} {} killed; {}", victim.plural(), said.trim_end());
    if beside > 0 {
        println!("beside that {beside} scripts came to their ends");
    }
    println!("{}", Pauses::of(&fleet.words()));
    Ok(Verdict::Passed)
}

fn set_to_work(ground: &Ground, fleet: &Fleet, work: Work, time: Duration) -> Result<Child> {
    // A file of a run with another number of cells.
    let _absent = std::fs::remove_file(ground.path(ENOUGH));
    let place = fleet.mounted.join(work.name());
    std::fs::create_dir(&place).context("cannot make a directory")?;
    let log = File::create(work.log(ground)).context("cannot make a log")?;
    preloaded::program(ground, "python3")
        .arg(ground.case(&format!("faults/{}.py", work.name())))
        .args([time.as_secs().to_string(), ground.seed.to_string()])
        .arg(ground.path(ENOUGH))
        .arg(ground.options.cache_mib.unwrap_or_default().to_string())
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share a log")?)
        .stderr(log)
        .spawn()
        .context("cannot start a program")
}

/// Runs scripts until the kills are over. Returns how many.
fn work_beside(ground: &Ground, fleet: &Fleet, over: &AtomicBool) -> Result<usize> {
    let mut ended = 0;
    while !over.load(Ordering::Relaxed) {
        for name in SCRIPTS {
            if let Verdict::Passed = script::run_one(ground, fleet, name)? {
                ended += 1;
            }
        }
    }
    Ok(ended)
}

struct Killer<'a> {
    fleet: &'a Fleet,
    victim: Victim,
    rng: Rng,
}

impl<'a> Killer<'a> {
    fn new(ground: &Ground, fleet: &'a Fleet, victim: Victim) -> Self {
        Self { fleet, victim, rng: Rng::new(ground.seed) }
    }

    /// Kills so many, but none after `until`. Most serve again before the next one dies. Some die
    /// together, or while they recover, and with some supervisors a cell.
    fn kill(mut self, kills: usize, until: Instant) -> Result<usize> {
        let mut killed = 0;
        while killed < kills && Instant::now() < until {
            std::thread::sleep(LULL_MAX.mul_f64(self.rng.below(1000) as f64 / 1000.0));
            let together = if self.rng.chance(1, 5) { 2 } else { 1 };
            for _ in 0..together {
                killed += usize::from(self.kill_one(self.victim)?);
            }
            if self.victim == Victim::Supervisor && self.rng.chance(1, 4) {
                self.kill_one(Victim::Cell)?;
            }
            if self.rng.chance(1, 6) {
                std::thread::sleep(Duration::from_millis(self.rng.below(30)));
                killed += usize::from(self.kill_one(self.victim)?);
            }
            await_cells(self.fleet)?;
        }
        Ok(killed)
    }

    fn kill_one(&mut self, victim: Victim) -> Result<bool> {
        let processes = victim.processes();
        if processes.is_empty() {
            return Ok(false);
        }
        let victim = *self.rng.pick(&processes);
        // One that is stopped is found and killed.
        let signal = if self.rng.chance(1, 3) { Signal::STOP } else { Signal::KILL };
        // It may have ended in the meantime.
        Ok(kill_process(victim, signal).is_ok())
    }
}

/// Waits until every cell serves.
pub(super) fn await_cells(fleet: &Fleet) -> Result<()> {
    let mut status = String::new();
    let are_ready = process::holds_within(PAUSE_MAX, || {
        status = fleet.status()?;
        Ok(!status.is_empty() && status.lines().filter(|line| is_cell(line)).all(is_ready))
    })?;
    ensure!(are_ready, "a cell does not come back:\n{status}");
    Ok(())
}

/// The process, if it is of this kind.
fn process_of(victim: Victim, pid: u32) -> Option<Pid> {
    let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).ok()?;
    let is_one = line.starts_with(victim.begins());
    is_one.then(|| Pid::from_raw(i32::try_from(pid).ok()?)).flatten()
}

fn is_cell(line: &str) -> bool {
    line.starts_with("  cell ")
}

fn is_ready(line: &str) -> bool {
    line.contains(": ready,")
}

/// The times in which cells did not serve, in milliseconds, as the supervisor reports them.
pub(super) struct Pauses(Vec<u64>);

impl Pauses {
    pub(super) fn of(words: &str) -> Self {
        let pause = |line: &str| line.split_once(BACK)?.1.split(' ').next()?.parse().ok();
        let mut pauses: Vec<u64> = words.lines().filter_map(pause).collect();
        pauses.sort_unstable();
        Self(pauses)
    }
}

impl std::fmt::Display for Pauses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |part: usize| self.0.get(self.0.len().saturating_sub(1) * part / 100);
        let ms = |part| at(part).copied().unwrap_or_default();
        let (median, most, longest) = (ms(50), ms(95), ms(100));
        let count = self.0.len();
        write!(
            f,
            "{count} pauses: median {median} ms, 95 of 100 up to {most} ms, longest {longest} ms"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_read_from_what_the_supervisor_says() {
        let words = "warren: cell 1 ended; a successor takes over
            warren: cell 1 serves again after 30 ms (epoch 2)
            warren: cell 0 serves again after 9 ms (epoch 2)";
        assert_eq!(Pauses::of(words).0, [9, 30]);
        let shown = Pauses::of(words).to_string();
        assert_eq!(shown, "2 pauses: median 9 ms, 95 of 100 up to 9 ms, longest 30 ms");
        let line = "  cell 0: ready, pid 7, 8 shards, 3 requests";
        assert!(is_cell(line) && is_ready(line) && !is_ready("  cell 0: starting, pid 7"));
    }
}
