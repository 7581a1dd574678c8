//! A pool device that fails while processes of its fleet are killed, in a running fleet. Synced
//! data is there afterwards, refused changes are not, and reads continue.
//!
//! ```text
//! round: open, compare with the records -> programs work -> kills? -> the device fails -> kills?
//!        -> the device is whole again -> kills? -> look, probe, query the status
//!        -> stop, or kill all -> cut the power? -> fsck -> the next round opens the pool again
//! ```
//!
//! The device is [`device`], opened as a file, or through a loop device as a block device. The
//! programs are in [`load`]. The kernel must have FUSE and, for the second case, a loop device;
//! without one that case is skipped.

pub(super) mod device;
mod load;
mod plan;
mod states;
pub(super) mod watch;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Signal, kill_process};
use warren_base::Rng;

use super::kills::Victim;
use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process;
use crate::e2e::harness::survivors::{await_no_survivors, end_survivors, nothing_left};
use device::{Device, Fault, What, Whose};
use load::Program;
use plan::{End, Ending, Kind, Plan};
use states::Figures;
use watch::Watch;

/// Rounds of each case: on a file, and on a block device.
const ROUNDS: u32 = 4;
const ROUNDS_FULL: u32 = 40;
/// Rounds on one pool.
const ROUNDS_A_POOL: u32 = 8;
const PROGRAMS: usize = 3;
const POOL_BYTES: u64 = 256 << 20;
/// Less than the programs' files, so that the device is read. A cell takes at least half of it.
const CACHE_MIB: u16 = 8;

/// The longest that any call may take, even if processes die meanwhile.
const CALL_MAX: Duration = Duration::from_secs(5);
/// A call that takes longer is assumed never to return.
const HANG: Duration = Duration::from_secs(30);
/// The time in which the status must show that the fleet is read-only, or changes are durable
/// again.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// The time in which a start on a device that fails must succeed or fail.
const START_MAX: Duration = Duration::from_secs(15);
/// The longest part of a round.
const PART_MAX_MS: u64 = 400;

/// Exit code of a `stop` that the fleet refused.
const SERVES_ON: i32 = 9;
/// The status of a fleet that accepts no changes.
const READ_ONLY: &str = "  READ-ONLY since ";

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if !ground.options.wants("device_faults") {
        return;
    }
    for kind in [Kind::File, Kind::Block] {
        tally.case(&format!("device_faults on a {} ({cells} cells)", kind.name()), || {
            let verdict = device_faults(ground, cells, kind);
            if verdict.is_err() {
                end_survivors();
            }
            verdict
        });
    }
}

fn device_faults(ground: &Ground, cells: u16, kind: Kind) -> Result<Verdict> {
    if kind == Kind::Block && process::quietly("losetup", &["--find"]).is_err() {
        return Ok(Verdict::Skipped("no loop device".to_owned()));
    }
    let rounds = if ground.options.full { ROUNDS_FULL } else { ROUNDS };
    let rounds = ground.options.kills.unwrap_or(rounds);
    let mut totals = Totals::default();
    let mut left = rounds;
    for pool in 0_u64.. {
        let name = format!("faulty-{}-{cells}-{pool}", kind.name().replace(' ', "-"));
        let seed = ground.seed ^ (pool << 32) ^ (u64::from(cells) << 48) ^ ((kind as u64) << 63);
        let here = left.min(ROUNDS_A_POOL);
        let worked = Pool::make(ground, &name, cells, kind, seed).and_then(|mut pool| {
            let worked = pool.rounds(here, &mut totals);
            // No process may hold the device when it is removed.
            end_survivors();
            worked
        });
        worked.with_context(|| name)?;
        left -= here;
        if left == 0 {
            break;
        }
    }
    println!("{totals}");
    nothing_left()?;
    Ok(Verdict::Passed)
}

/// The same, of a fleet on a device that `disturb` may let fail. Returns how long it took.
type DisturbDevice<'d> = dyn FnMut(&Fleet, &Device, &[Arc<Watch>]) -> Result<Duration> + 'd;

/// So many fleets on one device, which `disturb` disturbs. After each the device may lose what is
/// not durable, and the next fleet must have all that was synced.
pub(super) fn disturbed(
    ground: &Ground,
    (name, cells, seed): (&str, u16, u64),
    fleets: u32,
    disturb: &mut DisturbDevice<'_>,
) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut pool = Pool::make(ground, name, cells, Kind::File, seed)?;
    let mut by_pool =
        |pool: &mut Pool<'_>, fleet: &Fleet, watches: &[Arc<Watch>], _: &mut Totals| {
            Ok((None, disturb(fleet, &pool.device, watches)?))
        };
    for fleet in 0..fleets {
        let end = *pool.rng.pick(&[End::Stop, End::Stop, End::KillAll]);
        let ending = Ending { is_killed: true, end, cuts_power: pool.rng.chance(1, 2) };
        pool.round(fleet == 0, ending, &mut by_pool, &mut totals)
            .with_context(|| format!("fleet {fleet} on a device that fails: {ending:?}"))?;
        totals.rounds += 1;
    }
    pool.last_look()?;
    Ok(totals)
}

/// The counts of a case.
#[derive(Default)]
pub(super) struct Totals {
    pub rounds: u32,
    kills: u32,
    injected: [u64; 3],
    pub read_only: u32,
    pub ended: u32,
    whole_kills: u32,
    power_cuts: u32,
    starts: u32,
    failed_starts: u32,
    figures: Figures,
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [reads, writes, flushes] = self.injected;
        let Figures { calls, synced, refused, failed, read, slowest, slowest_call } = &self.figures;
        write!(
            f,
            "{} rounds: {} processes and {} fleets killed, {} power cuts; {reads} reads, {writes} writes and {flushes} \
             flushes failed; {} of {} starts on a failing device failed; {} fleets read-only, {} ended by themselves; {calls} calls, {synced} synced, {read} read, \
             {refused} refused, {failed} failed; the slowest took {} ms ({slowest_call})",
            self.rounds,
            self.kills,
            self.whole_kills,
            self.power_cuts,
            self.failed_starts,
            self.starts,
            self.read_only,
            self.ended,
            slowest.as_millis(),
        )
    }
}

/// A loop device over the file, which disappears with its last user.
struct Loop {
    _held: File,
}

impl Loop {
    /// Creates it as `path`.
    fn over(file: &Path, path: &Path) -> Result<Self> {
        let made = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(file)
            .output()
            .context("losetup")?;
        ensure!(made.status.success(), "losetup: {}", String::from_utf8_lossy(&made.stderr));
        let name = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let held = File::open(&name).context("cannot hold a loop device");
        // From now on it disappears when no process has it open.
        process::quietly("losetup", &["--detach", &name])?;
        std::os::unix::fs::symlink(&name, path).context("cannot name a loop device")?;
        Ok(Self { _held: held? })
    }
}

/// Disturbs a fleet and its device while the programs, to which these states belong, work. Returns
/// since when the device fails, if it still does, and else for how long it did.
type Disturb<'d> = dyn FnMut(&mut Pool<'_>, &Fleet, &[Arc<Watch>], &mut Totals) -> Result<(Option<Instant>, Duration)>
    + 'd;

/// A program at work, and the state that the case watches.
type AtWork = (Arc<Watch>, JoinHandle<(Program, Result<()>)>);

/// A pool on a device that fails, and the programs that work on it.
struct Pool<'a> {
    ground: &'a Ground,
    name: String,
    cells: u16,
    kind: Kind,
    rng: Rng,
    programs: Vec<Program>,
    _loop: Option<Loop>,
    device: Device,
}

impl<'a> Pool<'a> {
    fn make(ground: &'a Ground, name: &str, cells: u16, kind: Kind, seed: u64) -> Result<Self> {
        let path = ground.path(name);
        let under: PathBuf = match kind {
            Kind::File => path.clone(),
            Kind::Block => path.with_extension("device"),
        };
        let device = Device::mount(&under, POOL_BYTES, seed)?;
        let through = match kind {
            Kind::File => None,
            Kind::Block => Some(Loop::over(&under, &path)?),
        };
        let path = path.to_string_lossy();
        warren(ground, &["mkfs", "--force", "--log-size", "8M", &path])?.expect_success("mkfs")?;
        let programs = (0..PROGRAMS).map(|number| Program::new(number, seed)).collect();
        let (name, rng) = (name.to_owned(), Rng::new(seed));
        Ok(Self { ground, name, cells, kind, rng, programs, _loop: through, device })
    }

    /// Runs so many rounds, and checks the pool once more.
    fn rounds(&mut self, rounds: u32, totals: &mut Totals) -> Result<()> {
        for round in 0..rounds {
            let plan = Plan::draw(&mut self.rng, self.cells, self.kind);
            let describe = || format!("round {round}: {plan:?}");
            let begun = Instant::now();
            let disturb: &mut Disturb<'_> =
                &mut |pool, _fleet, watches, totals| pool.disturb(&plan, watches, totals);
            self.round(round == 0, plan.ending, disturb, totals).with_context(describe)?;
            totals.rounds += 1;
            if self.rng.chance(1, 4) {
                self.start_failing(totals)?;
            }
            if self.ground.options.keep {
                let failed =
                    [What::Read, What::Write, What::Flush].map(|it| self.device.injected(it));
                println!("{}: {failed:?} failed ({} ms)", describe(), begun.elapsed().as_millis());
            }
        }
        self.last_look()
    }

    /// Compares everything, and stops.
    fn last_look(&mut self) -> Result<()> {
        let fleet = self.open(false).context("the last look")?;
        self.programs.iter_mut().for_each(Program::close);
        fleet.stop_and_check()
    }

    /// Starts a fleet on the device, which is whole, and checks that all durable data is there.
    fn open(&mut self, is_first: bool) -> Result<Fleet> {
        self.device.begin();
        let cache = format!("{}MiB", CACHE_MIB.max(CACHE_MIB / 2 * self.cells));
        let options = ["--cache", cache.as_str()];
        let fleet = Fleet::resume_with(self.ground, &self.name, self.cells, &options)?;
        let mut look = || -> Result<()> {
            if is_first {
                load::fill_shelf(&fleet.mounted)?;
            }
            for program in &mut self.programs {
                program.check(&fleet.mounted)?;
                program.begin(&fleet.mounted)?;
            }
            Ok(())
        };
        match look() {
            Ok(()) => Ok(fleet),
            Err(error) => {
                let words = fleet.last_words();
                fleet.kill();
                Err(error.context(words))
            }
        }
    }

    fn round(
        &mut self,
        is_first: bool,
        ending: Ending,
        disturb: &mut Disturb<'_>,
        totals: &mut Totals,
    ) -> Result<()> {
        let mut fleet = self.open(is_first)?;
        let worked = self
            .work(&fleet, disturb, totals)
            .and_then(|()| self.look(&mut fleet, ending, totals))
            .and_then(|is_read_only| self.end(&mut fleet, ending.end, is_read_only, totals));
        let words = fleet.words();
        let is_panic = ["panicked", "assertion"].iter().any(|word| words.contains(word));
        let last = fleet.last_words();
        fleet.kill();
        worked.with_context(|| last.clone())?;
        ensure!(!is_panic, "a process panicked: {last}");
        await_no_survivors()?;
        self.device.heal();
        let number = |what| self.device.injected(what);
        for (sum, what) in totals.injected.iter_mut().zip([What::Read, What::Write, What::Flush]) {
            *sum += number(what);
        }
        if ending.cuts_power {
            self.device.cut_power();
            totals.power_cuts += 1;
        }
        self.check()
    }

    /// Checks that the pool is sound. The last open files of a killed fleet may take a moment to
    /// close.
    fn check(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLE_MAX;
        loop {
            let checked = warren(self.ground, &["fsck", "-n", &self.path()])?;
            if checked.code() == 0 {
                return Ok(());
            }
            let is_in_use = checked.stderr.contains("in use") && Instant::now() < deadline;
            ensure!(is_in_use, "fsck: {}{}", checked.stdout, checked.stderr);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a fleet on a device that fails, and kills it, whether it serves or not.
    fn start_failing(&mut self, totals: &mut Totals) -> Result<()> {
        let what = *self.rng.pick(&[What::Read, What::Write, What::Flush]);
        let times = self.rng.chance(1, 2).then(|| 1 + self.rng.below(20));
        let one_in = *self.rng.pick(&[1, 3, 20]);
        let loses = what == What::Flush && self.rng.chance(1, 2);
        self.device.begin();
        self.device.inject(Fault { what, whose: Whose::All, times, one_in, loses });
        let begun = Instant::now();
        let started = Fleet::resume(self.ground, &self.name, self.cells);
        let took = begun.elapsed();
        totals.failed_starts += u32::from(started.is_err());
        totals.starts += 1;
        let words = match started {
            Ok(mut fleet) => {
                fleet.kill_keeper()?;
                let words = fleet.words();
                fleet.kill();
                words
            }
            Err(error) => format!("{error:#}"),
        };
        await_no_survivors()?;
        self.device.heal();
        let fault = format!("{what:?}, {times:?} times, one in {one_in}");
        ensure!(took < START_MAX, "{fault}: a start took {} ms: {words}", took.as_millis());
        ensure!(!words.contains("panicked"), "{what:?}: {words}");
        if self.rng.chance(1, 2) {
            self.device.cut_power();
        }
        self.check().with_context(|| format!("a start with {what:?} {times:?} {one_in}"))
    }

    fn path(&self) -> String {
        self.ground.path(&self.name).to_string_lossy().into_owned()
    }

    /// The programs work while the fleet is disturbed.
    fn work(
        &mut self,
        fleet: &Fleet,
        disturb: &mut Disturb<'_>,
        totals: &mut Totals,
    ) -> Result<()> {
        let (mut at_work, mut watches) = (Vec::new(), Vec::new());
        for mut program in self.programs.drain(..) {
            let (mounted, watch) = (fleet.mounted.clone(), program.watch.clone());
            let thread = std::thread::spawn(move || {
                let worked = program.work(&mounted);
                (program, worked)
            });
            watches.push(watch.clone());
            at_work.push((watch, thread));
        }
        let disturbed = disturb(self, fleet, &watches, totals);
        for watch in &watches {
            watch.is_over.store(true, Ordering::Relaxed);
        }
        let (failing, failed_for) = *disturbed.as_ref().unwrap_or(&(None, Duration::MAX / 2));
        self.gather(at_work, failing, failed_for)?;
        disturbed.map(drop)
    }

    /// The device fails and processes are killed, as planned.
    fn disturb(
        &mut self,
        plan: &Plan,
        watches: &[Arc<Watch>],
        totals: &mut Totals,
    ) -> Result<(Option<Instant>, Duration)> {
        let (mut failing, mut failed_for) = (None, Duration::ZERO);
        for (part, victims) in plan.kills.iter().enumerate() {
            let fault = &plan.fault;
            if part == 1 {
                for watch in watches {
                    watch.reads_may_fail.store(fault.what == What::Read, Ordering::SeqCst);
                    watch.may_fail.store(true, Ordering::SeqCst);
                }
                self.device.inject(fault.clone());
                failing = Some(Instant::now());
            }
            if part == 2 && !plan.ending.end.is_failing() {
                self.device.heal();
                failed_for = failing.take().map_or(failed_for, |since: Instant| since.elapsed());
            }
            self.rest();
            for victim in victims {
                totals.kills += u32::from(self.kill(*victim)?);
                std::thread::sleep(Duration::from_millis(self.rng.below(60)));
            }
            self.rest();
        }
        Ok((failing, failed_for))
    }

    fn rest(&mut self) {
        std::thread::sleep(Duration::from_millis(self.rng.below(PART_MAX_MS)));
    }

    /// Kills one process of this kind, if there is one.
    fn kill(&mut self, victim: Victim) -> Result<bool> {
        let processes = victim.processes();
        if processes.is_empty() {
            return Ok(false);
        }
        let process = *self.rng.pick(&processes);
        let killed = || kill_process(process, Signal::KILL);
        // It may have ended in the meantime. A front has no flush under way.
        Ok(if victim == Victim::Front { killed() } else { self.device.kill(killed) }.is_ok())
    }

    /// Joins the programs when they have ended.
    fn gather(
        &mut self,
        at_work: Vec<AtWork>,
        failing: Option<Instant>,
        failed_for: Duration,
    ) -> Result<()> {
        let deadline = Instant::now() + HANG;
        let late = || at_work.iter().find(|(_, thread)| !thread.is_finished());
        while late().is_some() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut failed = late().map(|(watch, _)| anyhow!("it hangs: {:?}", watch.call()));
        if failed.is_some() {
            process::abort_connections();
        }
        for (_, thread) in at_work {
            let (program, worked) = thread.join().map_err(|_| anyhow!("a program panicked"))?;
            if let Err(error) = worked {
                failed = Some(error);
            }
            let (slowest, call) = (program.figures.slowest, &program.figures.slowest_call);
            let failed_for = failing.map_or(failed_for, |since| since.elapsed());
            if slowest > CALL_MAX + failed_for {
                failed = Some(anyhow!("{call} took {} ms", slowest.as_millis()));
            }
            self.programs.push(program);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Checks the running fleet: reads are right, and either the status shows that it is read-only,
    /// or changes are durable (if the device is whole again). Returns whether it is read-only.
    fn look(&mut self, fleet: &mut Fleet, ending: Ending, totals: &mut Totals) -> Result<bool> {
        for program in &mut self.programs {
            program.look_at_all(&fleet.mounted)?;
        }
        let deadline = Instant::now() + SETTLE_MAX;
        loop {
            if self.programs.iter().any(Program::is_alone) || fleet.is_gone() {
                totals.ended += 1;
                self.must_have_been_killed(ending)?;
                return Ok(false);
            }
            let status = fleet.warren(&["status"], &[&fleet.pool])?;
            let json = fleet.warren(&["status", "--json"], &[&fleet.pool])?;
            if status.code() == 0 && status.stdout.contains(READ_ONLY) {
                let json = json.stdout;
                let is_in_json =
                    json.contains("\"broken\":\"") && !json.contains("\"read_only_since\":null");
                ensure!(is_in_json, "not in the JSON: {json}");
                ensure!(self.device.has_failed(), "read-only without a fault");
                let kept = self.programs[0].probe(&fleet.mounted)?;
                ensure!(!kept, "a fleet that is read-only promises");
                totals.read_only += 1;
                self.stop_cells(fleet)?;
                return Ok(true);
            }
            let saw = self.programs.iter().any(|program| program.saw_read_only);
            let is_late = Instant::now() > deadline;
            if !saw && ending.end.is_failing() {
                return Ok(false);
            }
            if !saw && self.programs[0].probe(&fleet.mounted)? {
                return Ok(false);
            }
            ensure!(
                !is_late,
                "neither read-only nor are changes promised: {}{}",
                status.stdout,
                status.stderr
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops all cells of a fleet that is read-only. It replaces none, so the cells that the
    /// programs need are resumed, and the programs read on.
    fn stop_cells(&mut self, fleet: &mut Fleet) -> Result<()> {
        let cells = Victim::Cell.processes();
        let signal = |signal| {
            for cell in &cells {
                let _gone = kill_process(*cell, signal);
            }
        };
        signal(Signal::STOP);
        let programs = &mut self.programs;
        let (ends, has_ended) = channel();
        let is_resumed = std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let read = programs.iter_mut().try_for_each(|it| it.look_at_all(&fleet.mounted));
                // The receiver may have given up.
                let _given_up = ends.send(());
                read
            });
            let is_resumed = has_ended.recv_timeout(HANG).is_ok();
            signal(Signal::CONT);
            reads.join().map_err(|_| anyhow!("a program panicked"))?.map(|()| is_resumed)
        });
        let is_resumed = is_resumed.context("with cells that were stopped")?;
        ensure!(is_resumed, "the cells were not resumed within {} s", HANG.as_secs());
        ensure!(fleet.words().contains("cannot be replaced now; it is resumed"), "not logged");
        Ok(())
    }

    /// A fleet may end by itself only if a process was killed and the device failed.
    fn must_have_been_killed(&self, ending: Ending) -> Result<()> {
        ensure!(ending.is_killed && self.device.has_failed(), "the fleet has ended");
        Ok(())
    }

    fn end(
        &mut self,
        fleet: &mut Fleet,
        end: End,
        is_read_only: bool,
        totals: &mut Totals,
    ) -> Result<()> {
        for program in &mut self.programs {
            program.close();
            totals.figures.add(&std::mem::take(&mut program.figures));
        }
        let is_gone = self.programs.iter().any(Program::is_alone) || fleet.is_gone();
        if is_gone || matches!(end, End::KillAll | End::KillAllFailing) {
            totals.whole_kills += u32::from(!is_gone);
            return fleet.kill_keeper();
        }
        let stopped = fleet.warren(&["stop"], &[&fleet.pool])?;
        match stopped.code() {
            0 if !is_read_only => self.programs.iter_mut().for_each(Program::settle),
            SERVES_ON if is_read_only || end.is_failing() => {
                let given_up = fleet.warren(&["stop", "--discard"], &[&fleet.pool])?;
                given_up.expect_success("stop --discard")?;
            }
            code => bail!("stop: exit {code}: {}{}", stopped.stdout, stopped.stderr),
        }
        let is_gone = process::holds_within(SETTLE_MAX, || Ok(fleet.is_gone()))?;
        ensure!(is_gone, "the fleet has stopped and is not gone");
        Ok(())
    }
}
