//! Faults of many kinds at once, beside programs that check every answer.
//!
//! ```text
//! round: cells, mounts, programs with and without the library are drawn
//!   wave: break one thing after the other ──▶ wait ──▶ heal in another order ──▶ all cells serve
//!         (after FoundationDB's swizzle)
//!   the programs end, each with the files that it remembers
//!   stop, fsck, another number of cells, the same files
//! ```
//!
//! A short run is a case like others; `cargo xtask chaos --minutes N` goes on with new rounds for
//! so long. What is drawn follows from the seed, what happens does not.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use warren_base::Rng;

use super::fleet::{Fleet, MOUNT};
use super::ground::{Ground, Tally, Verdict};
use super::kills::{Pauses, Victim, await_cells};
use super::lifecycle::{end_survivors, survivors};
use super::process;
use crate::cargo::interposer;

/// Waves of the short run, and of each round of a long one.
const WAVES: u32 = 8;
const WAVES_LONG: u32 = 25;
const FAULTS_A_WAVE: u64 = 4;

/// A program ends when it is told to. This limit ends what hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// Threads of a moment in which the machine is busy.
const BUSY_THREADS: usize = 16;

const PARTS_MS: u64 = 300;

/// Something that is broken.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(Victim),
    /// Until it is replaced.
    Stop(Victim),
    /// For a moment: it moves again in the middle of its trial, or is gone by then.
    Interrupt(Victim),
    /// These are not replaced, and are resumed when the wave ends.
    StopKeeper,
    StopMountKeeper,
    StopProgram,
    /// All processes of the fleet and of its mounts, for a moment.
    Freeze,
    /// More threads than processors compute for a moment.
    Busy,
}

/// Each with its weight.
const FAULTS: [(Fault, u64); 14] = [
    (Fault::Kill(Victim::Cell), 4),
    (Fault::Kill(Victim::Supervisor), 2),
    (Fault::Kill(Victim::Front), 2),
    (Fault::Stop(Victim::Cell), 4),
    (Fault::Stop(Victim::Supervisor), 2),
    (Fault::Stop(Victim::Front), 2),
    (Fault::Interrupt(Victim::Cell), 3),
    (Fault::Interrupt(Victim::Supervisor), 1),
    (Fault::Interrupt(Victim::Front), 1),
    (Fault::StopKeeper, 1),
    (Fault::StopMountKeeper, 1),
    (Fault::StopProgram, 2),
    (Fault::Freeze, 1),
    (Fault::Busy, 2),
];

impl Fault {
    fn draw(rng: &mut Rng) -> Self {
        let all: u64 = FAULTS.iter().map(|(_, weight)| weight).sum();
        let mut left = rng.below(all);
        for (fault, weight) in FAULTS {
            match left.checked_sub(weight) {
                Some(rest) => left = rest,
                None => return fault,
            }
        }
        unreachable!("less than the sum of all weights")
    }

    fn name(self) -> String {
        match self {
            Self::Kill(victim) => format!("{} killed", victim.plural()),
            Self::Stop(victim) => format!("{} stopped", victim.plural()),
            Self::Interrupt(victim) => format!("{} interrupted", victim.plural()),
            Self::StopKeeper => "keepers stopped".into(),
            Self::StopMountKeeper => "mount keepers stopped".into(),
            Self::StopProgram => "programs stopped".into(),
            Self::Freeze => "fleets frozen".into(),
            Self::Busy => "busy moments".into(),
        }
    }
}

/// The counts of all rounds.
#[derive(Default)]
struct Totals {
    rounds: u32,
    injected: BTreeMap<String, u32>,
    operations: u64,
    longest_ms: u64,
    pauses: Vec<Pauses>,
}

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if !ground.options.wants("chaos") {
        return;
    }
    tally.case(&format!("chaos ({cells} cells)"), || {
        let minutes = ground.options.minutes.map(u64::from);
        let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
        let mut totals = Totals::default();
        let mut rounds = 0_u64;
        let worked = loop {
            let rng = Rng::new(ground.seed ^ rounds << 32);
            let cells = if rounds == 0 { cells } else { 1 + (rounds % 4) as u16 };
            if let Err(error) = round(ground, rng, (rounds, cells), &mut totals) {
                break Err(error.context(format!("round {rounds} with {cells} cells")));
            }
            rounds += 1;
            if until.is_none_or(|until| Instant::now() >= until) {
                break Ok(Verdict::Passed);
            }
        };
        println!("{totals}");
        if worked.is_err() {
            end_survivors();
        }
        worked
    });
}

fn round(
    ground: &Ground,
    mut rng: Rng,
    (number, cells): (u64, u16),
    totals: &mut Totals,
) -> Result<()> {
    let name = format!("chaos-{number}");
    let fleet = Fleet::start(ground, &name, "4G", cells)?;
    let pool = fleet.pool.clone();
    fleet.during(|fleet| {
        let mounts = mounts(ground, fleet, 1 + rng.below(3), &name)?;
        let mut programs = Vec::new();
        for at in 0..=mounts.len() {
            let is_interposed = ground.options.interposed || rng.chance(1, 2);
            programs.push(Program::start(ground, (number, at), &mounts, is_interposed)?);
        }
        let waves = if ground.options.minutes.is_some() { WAVES_LONG } else { WAVES };
        let mut breaker = Breaker { fleet, rng, injected: &mut totals.injected };
        let broken = (0..waves).try_for_each(|_| breaker.wave());
        for program in &mut programs {
            File::create(&program.enough).context("cannot end a program")?;
        }
        let ended: Vec<Result<(u64, u64)>> = programs.into_iter().map(Program::ended).collect();
        broken?;
        for ended in ended {
            let (operations, longest_ms) = ended?;
            totals.operations += operations;
            totals.longest_ms = totals.longest_ms.max(longest_ms);
        }
        totals.pauses.push(Pauses::of(&fleet.words()));
        for mount in mounts.iter().skip(1) {
            fleet.warren(&["umount"], &[mount])?.expect_success("umount")?;
        }
        let sums = sums(ground, fleet)?;
        std::fs::write(ground.path("sums"), sums).context("cannot note the files")?;
        Ok(Verdict::Passed)
    })?;
    totals.rounds += 1;
    let again = Fleet::resume(ground, &name, 1 + (cells + 1) % 4)?;
    again.during(|fleet| {
        let noted = std::fs::read_to_string(ground.path("sums")).context("no notes")?;
        ensure!(sums(ground, fleet)? == noted, "files have changed over the restart");
        Ok(Verdict::Passed)
    })?;
    std::fs::remove_file(pool).context("cannot remove a pool")
}

/// The first is the fleet's own.
fn mounts(ground: &Ground, fleet: &Fleet, count: u64, name: &str) -> Result<Vec<PathBuf>> {
    let mut mounts = vec![fleet.mounted.clone()];
    for at in 1..count {
        let mount = ground.path(&format!("{name}.mounted{at}"));
        std::fs::create_dir_all(&mount).context("cannot make a mount point")?;
        fleet.warren(MOUNT, &[&fleet.pool, &mount])?.expect_success("mount")?;
        mounts.push(mount);
    }
    Ok(mounts)
}

/// Names and contents of all files.
fn sums(ground: &Ground, fleet: &Fleet) -> Result<String> {
    let mut command = Command::new("bash");
    let script = "find . -type f -print0 | sort -z | xargs -0 cksum; find . | sort";
    command.args(["-euo", "pipefail", "-c", script]).current_dir(&fleet.mounted);
    let outcome = process::run(command, &ground.path("run"), PATIENCE)?;
    Ok(outcome.expect_success("reading all files")?.stdout)
}

/// `cases/acknowledged.py`, which remembers every answer.
struct Program {
    child: Child,
    enough: PathBuf,
    log: PathBuf,
}

impl Program {
    fn start(
        ground: &Ground,
        (round, at): (u64, usize),
        mounts: &[PathBuf],
        is_interposed: bool,
    ) -> Result<Self> {
        let place = mounts[at % mounts.len()].join(format!("program{at}"));
        std::fs::create_dir(&place).context("cannot make a directory")?;
        let (enough, log) =
            (ground.path(&format!("enough{at}")), ground.path(&format!("program{at}.log")));
        let _absent = std::fs::remove_file(&enough);
        let words = File::create(&log).context("cannot make a log")?;
        let mut command = Command::new("python3");
        if is_interposed {
            command.env("LD_PRELOAD", interposer(&ground.root));
        }
        let child = command
            .arg(ground.root.join("crates/xtask/cases/acknowledged.py"))
            .arg(PATIENCE.as_secs().to_string())
            .arg((ground.seed.wrapping_add(round) % 1_000_000 + at as u64).to_string())
            .arg(&enough)
            .current_dir(place)
            .stdin(Stdio::null())
            .stdout(words.try_clone().context("cannot share a log")?)
            .stderr(words)
            .spawn()
            .context("cannot start a program")?;
        Ok(Self { child, enough, log })
    }

    /// Waits for its end. Returns its operations, and how many milliseconds the longest took.
    fn ended(mut self) -> Result<(u64, u64)> {
        let (status, late) = process::wait(&mut self.child, PATIENCE)?;
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        ensure!(!late && status.success(), "{status}: {}", process::tail(&said));
        let numbers = said.split_whitespace().filter_map(|word| word.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        ensure!(numbers.len() == 2, "a program said {said:?}");
        Ok((numbers[0], numbers[1]))
    }
}

struct Breaker<'a> {
    fleet: &'a Fleet,
    rng: Rng,
    injected: &'a mut BTreeMap<String, u32>,
}

impl Breaker<'_> {
    fn wave(&mut self) -> Result<()> {
        let mut stopped = Vec::new();
        for _ in 0..1 + self.rng.below(FAULTS_A_WAVE) {
            let fault = Fault::draw(&mut self.rng);
            if self.inject(fault, &mut stopped)? {
                *self.injected.entry(fault.name()).or_default() += 1;
            }
            self.sleep();
        }
        while !stopped.is_empty() {
            let at = self.rng.below(stopped.len() as u64) as usize;
            resume(stopped.swap_remove(at));
            self.sleep();
        }
        await_cells(self.fleet)
    }

    fn sleep(&mut self) {
        std::thread::sleep(Duration::from_millis(self.rng.below(PARTS_MS)));
    }

    /// Breaks something. False if it was not there.
    fn inject(&mut self, fault: Fault, stopped: &mut Vec<Pid>) -> Result<bool> {
        let pick = |rng: &mut Rng, processes: Vec<Pid>| {
            (!processes.is_empty()).then(|| *rng.pick(&processes))
        };
        let (victim, signal) = match fault {
            Fault::Kill(victim) => (pick(&mut self.rng, victim.processes()), Signal::KILL),
            Fault::Stop(victim) | Fault::Interrupt(victim) => {
                (pick(&mut self.rng, victim.processes()), Signal::STOP)
            }
            Fault::StopKeeper => {
                (i32::try_from(self.fleet.pid()).ok().and_then(Pid::from_raw), Signal::STOP)
            }
            Fault::StopMountKeeper => {
                (pick(&mut self.rng, Victim::MountKeeper.processes()), Signal::STOP)
            }
            Fault::StopProgram => (pick(&mut self.rng, programs()), Signal::STOP),
            Fault::Freeze => {
                self.freeze();
                return Ok(true);
            }
            Fault::Busy => {
                busy(Duration::from_millis(self.rng.below(2 * PARTS_MS)));
                return Ok(true);
            }
        };
        let Some(victim) = victim else { return Ok(false) };
        // It may have ended in the meantime.
        let is_done = kill_process(victim, signal).is_ok();
        match fault {
            Fault::Interrupt(_) => {
                self.sleep();
                resume(victim);
            }
            Fault::StopKeeper | Fault::StopMountKeeper | Fault::StopProgram => {
                stopped.push(victim);
            }
            _ => {}
        }
        Ok(is_done)
    }

    /// Stops everything, and resumes it in any order.
    fn freeze(&mut self) {
        let all = survivors().into_keys().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let mut all: Vec<Pid> = all.collect();
        for pid in &all {
            let _gone = kill_process(*pid, Signal::STOP);
        }
        self.sleep();
        while !all.is_empty() {
            let at = self.rng.below(all.len() as u64) as usize;
            resume(all.swap_remove(at));
        }
    }
}

/// It may have been replaced or resumed.
fn resume(pid: Pid) {
    let _gone = kill_process(pid, Signal::CONT);
}

/// The processes of the loads.
fn programs() -> Vec<Pid> {
    let is_one = |pid: i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let name = b"acknowledged.py";
        line.windows(name.len()).any(|part| part == name)
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_one(*pid)).filter_map(Pid::from_raw).collect()
}

fn busy(time: Duration) {
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        for _ in 0..BUSY_THREADS {
            scope.spawn(|| while Instant::now() < until {});
        }
    });
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let injected: u32 = self.injected.values().sum();
        let kinds = self.injected.iter().map(|(name, count)| format!("{count} {name}"));
        let kinds: Vec<String> = kinds.collect();
        let (rounds, operations, longest) = (self.rounds, self.operations, self.longest_ms);
        writeln!(f, "{injected} faults in {rounds} rounds: {}", kinds.join(", "))?;
        writeln!(f, "{operations} operations, the longest took {longest} ms")?;
        write!(f, "cells: {}", Pauses::of_all(&self.pauses))
    }
}
