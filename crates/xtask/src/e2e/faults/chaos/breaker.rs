//! Breaks things in waves, and undoes in another order what must be undone.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getpriority_process, getrlimit, kill_process,
    pidfd_open, pidfd_send_signal, prlimit, setpriority_process,
};
use warren_base::Rng;

use super::super::cell_memory::{self, CellMemory};
use super::super::device_faults::device::{self, Device, What, Whose};
use super::super::device_faults::watch::Watch;
use super::super::kills::await_cells;
use super::damage::{self, DirtyPage};
use super::fault::{Fault, Role};
use super::host::Host;
use super::ledger::{Ledger, Who};
use super::marked::Hits;
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::survivors::survivors;

const FAULTS_A_WAVE: u64 = 4;

/// Later waves at whose end something that is held for long may be resumed.
const LATE_WAVES: u64 = 3;

/// Threads of a moment in which the machine is busy.
const BUSY_THREADS: usize = 16;

/// The longest pause between two faults.
const PARTS_MS: u64 = 300;

/// In which all processes of a kind are stopped one by one, and resumed.
const SWIZZLE_MS: u64 = 1000;

/// A process that is throttled runs, and stands still, for so long at a time.
const RUNS: Duration = Duration::from_millis(20);
const STANDS: Duration = Duration::from_millis(30);

/// The least priority of a thread.
const NICEST: i32 = 19;

/// The number of bytes that a process without memory may still map.
const MEMORY_LEFT: u64 = 1 << 20;

/// Forged records within a minute. Twelve alarms end a fleet (decision 19).
const FORGED_MAX: usize = 6;
const FORGED_IN: Duration = Duration::from_secs(60);

/// A device that refuses a number of requests refuses up to so many.
const REFUSED_MAX: u64 = 6;

/// The way in which a fault is undone.
enum Undo<'a> {
    Resume(Pid),
    /// Its soft limit is raised to its hard limit, as it was.
    Limit(Pid, Resource),
    /// Threads that stop or compute, until they see that it is over.
    End(Background),
    /// The priorities of threads.
    Nice(Vec<(Pid, i32)>, Background),
    Remove(PathBuf),
    Mend(&'a Device),
}

impl Undo<'_> {
    /// The process may be gone.
    fn undo(self) {
        match self {
            Self::Resume(pid) => resume(pid),
            Self::Limit(pid, resource) => drop(limit_softly(pid, resource, None)),
            Self::End(background) => background.end(),
            Self::Remove(file) => drop(std::fs::remove_file(file)),
            Self::Mend(device) => device.heal(),
            Self::Nice(threads, background) => {
                background.end();
                for (thread, was) in threads {
                    let _gone = setpriority_process(Some(thread), was);
                }
            }
        }
    }
}

/// Threads that work until they are ended.
struct Background(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Background {
    fn start(threads: usize, work: impl Fn(&AtomicBool) + Clone + Send + 'static) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let (is_over, work) = (Arc::clone(&is_over), work.clone());
            std::thread::spawn(move || work(&is_over))
        };
        let threads = (0..threads).map(start).collect();
        Self(is_over, threads)
    }

    fn end(self) {
        self.0.store(true, Ordering::Relaxed);
        for thread in self.1 {
            thread.join().expect("it does not panic");
        }
    }
}

/// Something to be undone when so many more waves have ended.
struct Wound<'a> {
    undo: Undo<'a>,
    waves: u64,
}

/// A device that can fail, and the programs that must know when it does.
pub(super) struct Failing<'a> {
    pub device: &'a Device,
    pub watches: Vec<Arc<Watch>>,
}

/// The parts that are broken besides processes.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub fleet: &'a Fleet,
    pub host: Option<&'a Host>,
    pub failing: Option<&'a Failing<'a>>,
    pub hits: Option<&'a Hits>,
}

impl Scene<'_> {
    /// Whether this process has files open on the mount of this mount keeper. While it serves
    /// nothing, no process can be started from here, and none is before the wave has ended.
    fn has_files_behind(&self, keeper: Pid) -> bool {
        let line = std::fs::read(format!("/proc/{}/cmdline", keeper.as_raw_nonzero()));
        let mounted = self.fleet.mounted.as_os_str().as_encoded_bytes();
        let has_files = self.hits.is_some() || self.failing.is_some();
        has_files
            && line.is_ok_and(|line| line.strip_suffix(&[0]).unwrap_or(&line).ends_with(mounted))
    }
}

pub(super) struct Breaker<'a> {
    scene: Scene<'a>,
    /// The process groups of the programs.
    programs: Vec<Pid>,
    rng: Rng,
    ledger: &'a mut Ledger,
    wounds: Vec<Wound<'a>>,
    /// When records were forged.
    forged: Vec<Instant>,
    /// Since when something is wounded, and the longest that something was.
    since: Instant,
    longest: Duration,
}

impl<'a> Breaker<'a> {
    pub(super) fn new(
        scene: Scene<'a>,
        programs: Vec<Pid>,
        rng: Rng,
        ledger: &'a mut Ledger,
    ) -> Self {
        let (wounds, forged) = (Vec::new(), Vec::new());
        let (since, longest) = (Instant::now(), Duration::ZERO);
        Self { scene, programs, rng, ledger, wounds, forged, since, longest }
    }

    /// Runs so many waves. Returns the longest time in which something was held that no process
    /// replaces.
    pub(super) fn run(mut self, waves: u32) -> (Result<()>, Duration) {
        let result = (0..waves).try_for_each(|_| self.wave());
        while !self.wounds.is_empty() {
            self.heal();
        }
        self.ledger.healed();
        (result, self.longest)
    }

    fn wave(&mut self) -> Result<()> {
        if self.wounds.is_empty() {
            self.since = Instant::now();
        }
        for _ in 0..1 + self.rng.below(FAULTS_A_WAVE) {
            let fault = Fault::draw(&mut self.rng, self.scene.failing.is_some());
            self.inject(fault);
            self.rest(PARTS_MS);
        }
        self.heal();
        let served = await_cells(self.scene.fleet);
        self.ledger.rest(Duration::ZERO);
        if self.wounds.is_empty() {
            self.ledger.healed();
        }
        self.ledger.read(&self.scene.fleet.words());
        served
    }

    /// Undoes what is due, in any order.
    fn heal(&mut self) {
        let mut due: Vec<Wound<'_>> = self.wounds.extract_if(.., |it| it.waves == 0).collect();
        self.wounds.iter_mut().for_each(|it| it.waves -= 1);
        let pause = PARTS_MS.min(SWIZZLE_MS / due.len().max(1) as u64).max(1);
        while !due.is_empty() {
            let at = self.rng.below(due.len() as u64) as usize;
            due.swap_remove(at).undo.undo();
            self.rest(pause);
        }
        if self.wounds.is_empty() {
            self.longest = self.longest.max(self.since.elapsed());
        }
    }

    fn rest(&mut self, max_ms: u64) {
        let time = self.rng.below(max_ms);
        self.ledger.rest(Duration::from_millis(time));
    }

    /// Breaks something, if it is there.
    fn inject(&mut self, fault: Fault) {
        let Some(role) = fault.role() else {
            return self.inject_around(fault);
        };
        let processes = role.processes(self.scene.fleet, &self.programs);
        if processes.is_empty() {
            return;
        }
        match fault {
            Fault::Swizzle(_) => return self.swizzle(fault, processes),
            Fault::FlipPage | Fault::FlipChecksum => return self.flip(fault, processes),
            Fault::Forge => return self.forge(&processes),
            _ => {}
        }
        let victim = *self.rng.pick(&processes);
        // It may have ended in the meantime.
        let Ok(process) = pidfd_open(victim, PidfdFlags::empty()) else { return };
        let process = self.ledger.open(fault, victim, process);
        if let Some(signal) = fault.signal() {
            let _gone = pidfd_send_signal(process, signal);
        }
        let undo = match fault {
            Fault::Kill(_) | Fault::Stop(_) | Fault::Interrupt(_) => None,
            Fault::Hold(_) | Fault::HoldLong(_) => Some(Undo::Resume(victim)),
            Fault::Throttle(_) => Some(Undo::End(throttle(victim))),
            Fault::Starve(_) => starve(victim),
            Fault::FewDescriptors(_) => self.limit_descriptors(victim),
            Fault::LittleMemory(_) => limit_memory(victim),
            _ => unreachable!("not of one process alone"),
        };
        if let Fault::Interrupt(_) = fault {
            self.rest(PARTS_MS);
            resume(victim);
        }
        let is_late = matches!(fault, Fault::HoldLong(_)) && !self.scene.has_files_behind(victim);
        let waves = if is_late { 1 + self.rng.below(LATE_WAVES) } else { 0 };
        self.wounds.extend(undo.map(|undo| Wound { undo, waves }));
    }

    /// Breaks what is not one process.
    fn inject_around(&mut self, fault: Fault) {
        match fault {
            Fault::FullHost => {
                let Some(Ok(ballast)) = self.scene.host.map(Host::fill) else { return };
                self.wounds.push(Wound { undo: Undo::Remove(ballast), waves: 0 });
            }
            Fault::Refuse(what) => {
                let Some(failing) = self.scene.failing else { return };
                self.refuse(what, failing);
            }
            Fault::Freeze => self.freeze(),
            _ => busy(Duration::from_millis(self.rng.below(2 * PARTS_MS))),
        }
        self.ledger.count(fault);
    }

    /// The device refuses requests of one kind. No flush that fails loses anything, because a
    /// process may die before it knows of it (decision 14).
    fn refuse(&mut self, what: What, failing: &'a Failing<'a>) {
        for watch in &failing.watches {
            watch.reads_may_fail.fetch_or(what == What::Read, Ordering::SeqCst);
            watch.may_fail.store(true, Ordering::SeqCst);
        }
        let times = self.rng.chance(1, 2).then(|| 1 + self.rng.below(REFUSED_MAX));
        let one_in = *self.rng.pick(&[1, 3, 20]);
        failing.device.inject(device::Fault {
            what,
            whose: Whose::All,
            times,
            one_in,
            loses: false,
        });
        self.wounds.push(Wound { undo: Undo::Mend(failing.device), waves: 0 });
    }

    /// Flips a bit in the frames of a cell that has a marked page, and kills the cell before it
    /// runs again: what a living cell has is not checked.
    fn flip(&mut self, fault: Fault, mut processes: Vec<Pid>) {
        let Some(hits) = self.scene.hits else { return };
        while !processes.is_empty() {
            let at = self.rng.below(processes.len() as u64) as usize;
            let victim = processes.swap_remove(at);
            let Ok(process) = pidfd_open(victim, PidfdFlags::empty()) else { continue };
            if !cell_memory::stop(victim) {
                continue;
            }
            let memory = CellMemory::open(victim).ok();
            let found = memory.and_then(|it| Some((DirtyPage::find(&it, &mut self.rng)?, it)));
            let Some((page, memory)) = found else {
                resume(victim);
                continue;
            };
            hits.insert(page.mark, fault);
            let process = self.ledger.open(fault, victim, process);
            let _gone = match fault {
                Fault::FlipPage => page.flip(&memory, &mut self.rng),
                _ => page.flip_checksum(&memory, &mut self.rng),
            };
            let _gone = pidfd_send_signal(process, Signal::KILL);
            return;
        }
    }

    /// Forges a record of a cell. One of the two cells is ended for it.
    fn forge(&mut self, processes: &[Pid]) {
        self.forged.retain(|at| at.elapsed() < FORGED_IN);
        let victim = *self.rng.pick(processes);
        let Some(Who::Cell(sender)) = Who::of(Role::Cell, victim) else { return };
        if self.forged.len() >= FORGED_MAX || !cell_memory::stop(victim) {
            return;
        }
        let forged = damage::forge(victim, sender, &mut self.rng);
        if let Some(receiver) = forged {
            self.forged.push(Instant::now());
            let is_end = |pid: &&Pid| {
                let who = Who::of(Role::Cell, **pid);
                [sender, receiver].iter().any(|cell| who == Some(Who::Cell(*cell)))
            };
            let ends = processes.iter().filter(is_end);
            let ends =
                ends.filter_map(|pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?)));
            self.ledger.count(Fault::Forge);
            for (pid, process) in ends {
                self.ledger.watch(Fault::Forge, pid, process);
            }
        }
        resume(victim);
    }

    /// Stops these one by one, and resumes those that are still there in another order.
    fn swizzle(&mut self, fault: Fault, mut processes: Vec<Pid>) {
        let pause = (SWIZZLE_MS / processes.len() as u64).max(1);
        let mut stopped = Vec::new();
        while !processes.is_empty() {
            let at = self.rng.below(processes.len() as u64) as usize;
            let victim = processes.swap_remove(at);
            if let Ok(process) = pidfd_open(victim, PidfdFlags::empty()) {
                let process = self.ledger.open(fault, victim, process);
                let _gone = pidfd_send_signal(process, Signal::STOP);
                stopped.push(victim);
            }
            self.rest(pause);
        }
        let wounds = stopped.into_iter().map(|pid| Wound { undo: Undo::Resume(pid), waves: 0 });
        self.wounds.extend(wounds);
    }

    /// Stops everything, and resumes it in any order.
    fn freeze(&mut self) {
        let all = survivors().into_keys().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let mut all: Vec<Pid> = all.collect();
        for pid in &all {
            let _gone = kill_process(*pid, Signal::STOP);
        }
        self.rest(PARTS_MS);
        while !all.is_empty() {
            let at = self.rng.below(all.len() as u64) as usize;
            resume(all.swap_remove(at));
        }
    }

    /// Fewer than the process has open, or a few more.
    fn limit_descriptors(&mut self, pid: Pid) -> Option<Undo<'static>> {
        const MORE: usize = 4;
        let open = format!("/proc/{}/fd", pid.as_raw_nonzero());
        let open = std::fs::read_dir(open).ok()?.count();
        let limit = 1 + self.rng.below((open + MORE) as u64);
        limit_softly(pid, Resource::Nofile, Some(limit))
    }
}

/// It may have been replaced or resumed.
fn resume(pid: Pid) {
    let _gone = kill_process(pid, Signal::CONT);
}

/// Stops and resumes the process all the time. It is resumed last.
fn throttle(pid: Pid) -> Background {
    Background::start(1, move |is_over| {
        while !is_over.load(Ordering::Relaxed) && kill_process(pid, Signal::STOP).is_ok() {
            std::thread::sleep(STANDS);
            resume(pid);
            std::thread::sleep(RUNS);
        }
    })
}

/// Gives the threads of the process the least priority, beside threads that compute.
fn starve(pid: Pid) -> Option<Undo<'static>> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let tasks = std::fs::read_dir(tasks).ok()?.flatten();
    let tasks = tasks.filter_map(|task| Pid::from_raw(task.file_name().to_str()?.parse().ok()?));
    let lower = |task: Pid| {
        let was = getpriority_process(Some(task)).ok().filter(|was| *was < NICEST)?;
        setpriority_process(Some(task), NICEST).ok().map(|()| (task, was))
    };
    let lowered = tasks.filter_map(lower).collect();
    let burn = |is_over: &AtomicBool| while !is_over.load(Ordering::Relaxed) {};
    Some(Undo::Nice(lowered, Background::start(processors, burn)))
}

fn limit_memory(pid: Pid) -> Option<Undo<'static>> {
    let line = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).ok()?;
    let pages: u64 = line.split(' ').next()?.parse().ok()?;
    let limit = pages * rustix::param::page_size() as u64 + MEMORY_LEFT;
    limit_softly(pid, Resource::As, Some(limit))
}

/// Changes the soft limit alone; `None`: to the hard limit, to which all of Warren's processes have
/// raised it. Their hard limit is that of this process.
fn limit_softly(pid: Pid, resource: Resource, limit: Option<u64>) -> Option<Undo<'static>> {
    let maximum = getrlimit(resource).maximum;
    let limit = Rlimit { current: limit.or(maximum), maximum };
    prlimit(Some(pid), resource, limit).ok().map(|_was| Undo::Limit(pid, resource))
}

fn busy(time: Duration) {
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        for _ in 0..BUSY_THREADS {
            scope.spawn(|| while Instant::now() < until {});
        }
    });
}
