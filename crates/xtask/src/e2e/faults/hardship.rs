//! A fleet under hard conditions: almost no cache, a front that does not answer, a cell that does
//! not, programs that are killed.
//!
//! A process that is stopped (`SIGSTOP`) is found and replaced. Nothing resumes it, so a program
//! that ended beside it did not wait for that.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::e2e::harness::fleet::{Fleet, MOUNT};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process::{self, Outcome};
use crate::e2e::harness::script;
use crate::e2e::harness::survivors::survivors;
use crate::killed;

/// The least cache that a cell takes.
const CACHE_MIB_MIN: u16 = 4;

/// Work beside a stopped process takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Programs at a time that are killed, and how many of them in all.
const PROGRAMS: u32 = 4;
const KILLS: u32 = 200;
const KILLS_FULL: u32 = 1_000;

type Case = fn(&Ground, u16) -> Result<Verdict>;

const CASES: &[(&str, Case)] = &[
    ("tiny_cache", tiny_cache),
    ("stopped_front", stopped_front),
    ("stopped_cell", stopped_cell),
    ("killed_programs", killed_programs),
    ("keeper_short_of_descriptors", keeper_short_of_descriptors),
    ("fewer_descriptors_than_polled", fewer_descriptors_than_polled),
];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    for (name, case) in CASES.iter().filter(|(name, _)| ground.options.wants(name)) {
        tally.case(&format!("{name} ({cells} cells)"), || case(ground, cells));
    }
}

/// A C project with `make -j2`, and git, with less cache than their files take.
fn tiny_cache(ground: &Ground, cells: u16) -> Result<Verdict> {
    let cache = format!("{}MiB", cells * CACHE_MIB_MIN);
    let options = ["--cache", cache.as_str()];
    let fleet = Fleet::start_with(ground, &format!("tiny-{cells}"), "4G", cells, &options)?;
    fleet.during(|fleet| {
        for name in ["c_project", "git"] {
            match script::run_one(ground, fleet, name)? {
                Verdict::Passed => {}
                skipped @ Verdict::Skipped(_) => return Ok(skipped),
            }
        }
        Ok(Verdict::Passed)
    })
}

/// Programs are killed at any moment of their work. Every call of theirs that returned has
/// happened, at most one call that was under way has too, and their locks are free for the next
/// program.
fn killed_programs(ground: &Ground, cells: u16) -> Result<Verdict> {
    let kills = if ground.options.full { KILLS_FULL } else { KILLS };
    let fleet = Fleet::start(ground, &format!("killed-programs-{cells}"), "4G", cells)?;
    fleet.during(|fleet| {
        let one = |at: u32| {
            let dir = fleet.mounted.join(format!("killed-{at}"));
            let seed = ground.seed.wrapping_add(u64::from(at));
            killed::kill_many(&dir, kills / PROGRAMS, seed).with_context(|| format!("program {at}"))
        };
        let calls: u64 = std::thread::scope(|scope| {
            let killers: Vec<_> = (0..PROGRAMS).map(|at| scope.spawn(move || one(at))).collect();
            let calls = killers.into_iter().map(|it| it.join().expect("it does not panic"));
            calls.sum::<Result<u64>>()
        })?;
        println!("{kills} programs killed in {calls} calls");
        Ok(Verdict::Passed)
    })
}

/// A keeper that has no descriptors left takes in a mount when it has some again. One that cannot
/// start the next supervisor for want of descriptors retries until it can. Programs do not notice.
fn keeper_short_of_descriptors(ground: &Ground, cells: u16) -> Result<Verdict> {
    /// Longer than failing attempts may take.
    const SHORTAGE: Duration = Duration::from_secs(9);
    let fleet = Fleet::start(ground, &format!("short-{cells}"), "1G", cells)?;
    fleet.during(|fleet| {
        let limit = |open: &str| {
            let limit = format!("--nofile={open}:");
            process::quietly("prlimit", &["--pid", &fleet.pid().to_string(), &limit])
        };
        // Its open descriptors stay, and are more than this. The number that it needs must be
        // larger.
        let few = (8 + 2 * cells).to_string();
        limit(&few)?;
        let second = fleet.mounted.with_extension("second");
        std::fs::create_dir_all(&second).context("cannot make a mount point")?;
        let mut mounting = Command::new(&ground.warren)
            .args(MOUNT)
            .args([&fleet.pool, &second])
            .spawn()
            .context("cannot mount")?;
        bash(ground, &fleet.mounted, "for i in $(seq 50); do echo x > file; cat file; done")?
            .expect_success("with a keeper without descriptors")?;
        // Less than it waits for, during several of its looks at the supervisor.
        limit("1")?;
        bash(ground, &fleet.mounted, "for i in $(seq 50); do echo x > file; sleep 0.01; done")?
            .expect_success("with a keeper that may open nothing")?;
        limit("1024")?;
        let (status, late) = process::wait(&mut mounting, PATIENCE)?;
        ensure!(!late && status.success(), "the mount ended with {status}");
        fleet.warren(&["umount"], &[&second])?.expect_success("umount")?;
        limit(&few)?;
        drop(Stopped::find(&["warren supervisor "])?.kill()?);
        let until = Instant::now() + SHORTAGE;
        while Instant::now() < until {
            bash(ground, &fleet.mounted, "echo x >> file; cat file > /dev/null")?
                .expect_success("without a supervisor")?;
        }
        limit("1024")?;
        let status = fleet.status()?;
        ensure!(status.contains("restarted once"), "says {status:?}");
        Ok(Verdict::Passed)
    })
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    /// The one process of Warren's whose command line has all of `words`.
    fn find(words: &[&str]) -> Result<Self> {
        for pid in survivors().into_keys() {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid
                && words.iter().all(|word| line.contains(word))
            {
                kill_process(pid, Signal::STOP).context("cannot stop a process")?;
                return Ok(Self(pid));
            }
        }
        bail!("no process of Warren's is called {words:?}")
    }
}

impl Stopped {
    fn kill(self) -> Result<Self> {
        kill_process(self.0, Signal::KILL).context("cannot kill a process")?;
        Ok(self)
    }
}

impl Stopped {
    /// The process was ended, and not resumed.
    fn expect_replaced(self) -> Result<()> {
        let is_gone = process::holds_within(PATIENCE, || Ok(!process_is_there(self.0)))?;
        ensure!(is_gone, "process {:?} was not replaced", self.0);
        Ok(())
    }
}

/// Whether the process has not been reaped.
fn process_is_there(pid: Pid) -> bool {
    Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may be gone, which the case detects.
        let _gone = kill_process(self.0, Signal::CONT);
    }
}

fn bash(ground: &Ground, directory: &Path, script: &str) -> Result<Outcome> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory).env("LC_ALL", "C");
    process::run(command, &ground.path("run"), PATIENCE)
}

/// One front is stopped. It is replaced, and both mounts go on, also with what the stopped one held
/// in its kernel's caches.
fn stopped_front(ground: &Ground, cells: u16) -> Result<Verdict> {
    let fleet = Fleet::start(ground, &format!("stopped-front-{cells}"), "1G", cells)?;
    fleet.during(|fleet| {
        let prepare = "mkdir theirs; for i in $(seq 50); do echo $i > theirs/$i; done
            cat theirs/* > /dev/null; ls -l theirs > /dev/null";
        bash(ground, &fleet.mounted, prepare)?.expect_success("preparing")?;
        fleet.with_second_front(|second| beside_stopped_front(ground, fleet, second))?;
        Ok(Verdict::Passed)
    })
}

fn beside_stopped_front(ground: &Ground, fleet: &Fleet, second: &Path) -> Result<()> {
    bash(ground, second, "mkdir ours")?.expect_success("preparing")?;
    let stopped = Stopped::find(&["warren front ", &fleet.mounted.to_string_lossy()])?;
    let work = "cd ours; for i in $(seq 200); do echo $i > f$i; done
        mkdir d; mv f1 f2 f3 d; rm f4; ln f5 l; test $(ls | wc -l) = 198
        test $(cat f* l d/* | wc -l) = 200; sync f5
        dd if=/dev/zero of=big bs=1M count=20 2> /dev/null; test $(stat -c %s big) = 20971520
        cd ../theirs; for i in $(seq 50); do echo more >> $i; done; rm 50; cat * | wc -l";
    let outcome = bash(ground, second, work)?.expect_success("beside a stopped front")?;
    ensure!(outcome.stdout == "98\n", "said {:?}", outcome.stdout);
    let after = "test $(ls ours | wc -l) = 199; test $(cat theirs/* | wc -l) = 98; echo x > ours/x";
    bash(ground, &fleet.mounted, after)?.expect_success("behind a stopped front")?;
    stopped.expect_replaced()
}

/// A cell is stopped, and replaced. No write fails, and every file can be written meanwhile. Then
/// one is stopped when the fleet is to stop.
fn stopped_cell(ground: &Ground, cells: u16) -> Result<Verdict> {
    let fleet = Fleet::start(ground, &format!("stopped-cell-{cells}"), "1G", cells)?;
    fleet.during(|fleet| {
        for (place, cell) in [("first", cells - 1), ("second", 0)] {
            beside_stopped_cell(ground, fleet, (place, cell), cells)?;
        }
        // The fleet ends it.
        std::mem::forget(Stopped::find(&["cell 0 "])?);
        Ok(Verdict::Passed)
    })
}

/// Files in directories of their own lie on cells of all numbers.
fn beside_stopped_cell(
    ground: &Ground,
    fleet: &Fleet,
    (place, cell): (&str, u16),
    cells: u16,
) -> Result<()> {
    // The probability that none lies on the stopped cell is below one in 300,000.
    let count = 12 * usize::from(cells).max(2);
    let prepare = format!(
        "mkdir {place}; cd {place}
         for i in $(seq {count}); do mkdir d$i; echo 0 > d$i/f; done; cat d*/f > /dev/null"
    );
    bash(ground, &fleet.mounted, &prepare)?.expect_success("preparing")?;
    let stopped = Stopped::find(&[&format!("cell {cell} ")])?;
    let work = format!(
        "cd {place}
         pids=; for i in $(seq {count}); do echo 1 >> d$i/f & pids=\"$pids $!\"; done
         for pid in $pids; do wait $pid; done
         test $(cat d*/f | wc -l) = {}
         ls -lR . > /dev/null; mkdir d; mv d1 d; sync d/d1/f",
        2 * count
    );
    bash(ground, &fleet.mounted, &work)?.expect_success("beside a stopped cell")?;
    stopped.expect_replaced()
}

/// Processes that may open fewer descriptors than they wait for, because their limit was lowered
/// from outside. They wait on, instead of computing, and calls continue.
fn fewer_descriptors_than_polled(ground: &Ground, cells: u16) -> Result<Verdict> {
    /// A process that computes has all of it, or less on a busy machine, where this finds it
    /// seldom. One that waits has next to none on any machine.
    const WATCHED: Duration = Duration::from_secs(1);
    const TICKS_MAX: u64 = 30;
    let fleet = Fleet::start(ground, &format!("fewer-{cells}"), "1G", cells)?;
    fleet.during(|fleet| {
        for role in ["warren __mount ", "warren front "] {
            let pid = Stopped::find(&[role])?.0.as_raw_nonzero();
            let limit = |open: &str| {
                let limit = format!("--nofile={open}:");
                process::quietly("prlimit", &["--pid", &pid.to_string(), &limit])
            };
            for open in ["0", "1", "2"] {
                limit(open)?;
                let before = ticks(pid)?;
                std::thread::sleep(WATCHED);
                let ticks = ticks(pid)?.saturating_sub(before);
                ensure!(ticks < TICKS_MAX, "{role}with a limit of {open} computed {ticks} ticks");
                limit("1024")?;
                bash(ground, &fleet.mounted, "echo x > file; cat file")?.expect_success(role)?;
            }
        }
        Ok(Verdict::Passed)
    })
}

/// The processor time that the process has had, in hundredths of a second.
fn ticks(pid: std::num::NonZeroI32) -> Result<u64> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("it is gone")?;
    let (_, fields) = line.rsplit_once(')').context("no name")?;
    let times = fields.split_whitespace().skip(11).take(2);
    Ok(times.filter_map(|time| time.parse::<u64>().ok()).sum())
}
