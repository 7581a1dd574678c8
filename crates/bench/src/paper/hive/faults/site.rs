//! A fleet, its pool and its mount, for one fault.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use warren_base::{Errno, Rng};
use warren_proto::InodeRef;
use warren_runtime::{FaultStatus, status};

use super::class::FaultClass;
use super::outcome::Outcome;
use super::pointer::{self, Way};
use crate::contender::fuse::KeptMount;
use crate::error::{BenchError, system};
use crate::ground::{Ground, Interruption};
use crate::paper::hive::client::{Client, OpenFile, failed};
use crate::paper::hive::compile::{Compilation, FILES};

/// As in the paper.
pub(super) const CELLS: u16 = 4;

/// Bytes of the pool, which is made anew for each fault.
const POOL_BYTES: u64 = 256 << 20;

/// The directories of the first pmake, and of that which checks.
const FIRST: &str = "first";
const CHECK: &str = "check";

/// The time limit of both pmakes after the fault. If they take longer, the mount is taken from
/// them.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time in which a successor must serve.
const RECOVERY_MAX: Duration = Duration::from_secs(20);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The fields are dropped in order.
pub(super) struct Site<'a> {
    compilation: &'a Compilation,
    client: Client,
    /// Directories on two cells, and a file that moves between them.
    directories: [InodeRef; 2],
    file: OpenFile,
    /// The directory of the first pmake.
    of_pmake: InodeRef,
    /// `None` when it was taken from programs that did not end.
    mount: Option<KeptMount>,
    ground: Ground,
}

/// An injected fault.
struct Injected {
    at: Instant,
    cell: u16,
    /// The process of the cell.
    process: OwnedFd,
    /// When the process was gone, if that is known.
    gone: Option<Instant>,
    /// The answer to the rename beside it.
    moved: Result<(), Errno>,
}

/// The results of both pmakes.
struct Worked {
    first: Result<(), BenchError>,
    check: Result<(), BenchError>,
}

impl<'a> Site<'a> {
    /// Makes a pool in a directory, and mounts it at a path.
    pub(super) fn new(
        scratch: &Path,
        mount: PathBuf,
        compilation: &'a Compilation,
    ) -> Result<Self, BenchError> {
        let ground = Ground::start_with_bytes(scratch, CELLS, POOL_BYTES)?;
        let mount = KeptMount::new(ground.pool(), mount)?;
        for directory in [FIRST, CHECK] {
            compilation.place(&mount.at().join(directory))?;
        }
        let mut client = Client::new(&ground)?;
        let made = client.two_directories().and_then(|directories| {
            let file = client.make_file(directories[0], "moved")?;
            Ok((directories, file, client.directory(FIRST)?))
        });
        let (directories, file, of_pmake) = made.map_err(failed("make a file to be moved"))?;
        let mount = Some(mount);
        Ok(Self { compilation, client, directories, file, of_pmake, mount, ground })
    }

    /// Injects a fault of the class, the one of this number, and waits until all is over.
    pub(super) fn endure(
        mut self,
        class: FaultClass,
        number: u32,
        rng: &mut Rng,
        interruption: &Interruption,
    ) -> Result<Outcome, BenchError> {
        let started = AtomicU32::new(0);
        let compilation = self.compilation;
        let at = self.mount.as_ref().map(|mount| mount.at().to_owned()).unwrap_or_default();
        let (mut outcome, worked) = thread::scope(|scope| {
            let started = &started;
            let working = scope.spawn(move || work(compilation, &at, started, interruption));
            let injected = self.inject(class, number, started, rng)?;
            let gone = watch(&injected, &working);
            if !working.is_finished() {
                // The programs get errors instead of waiting for ever.
                self.mount = None;
            }
            let outcome = self.settle(&injected, gone)?;
            let worked = working.join().expect("the compilation does not panic");
            Ok::<_, BenchError>((outcome, worked))
        })?;
        interruption.check()?;
        outcome.is_unharmed = worked.first.is_ok();
        outcome.escaped.extend(worked.check.err().map(|why| format!("pmake after it: {why}")));
        if class == FaultClass::Transaction {
            outcome.escaped.extend(self.torn_name());
        }
        outcome.escaped.extend(self.damage()?);
        Ok(outcome)
    }

    fn inject(
        &mut self,
        class: FaultClass,
        number: u32,
        started: &AtomicU32,
        rng: &mut Rng,
    ) -> Result<Injected, BenchError> {
        let moment = Duration::from_nanos(rng.below(self.compilation.took.as_nanos() as u64));
        let cells = status(self.ground.pool())?.cells;
        let victim = match class {
            FaultClass::Random => rng.below(cells.len() as u64) as u16,
            FaultClass::Transaction => self.cell_of(*rng.pick(&self.directories))?,
            // The cell that serves pmake: a fault of another one may have no effect on it.
            _ => self.cell_of(self.of_pmake)?,
        };
        let victim = cells.iter().find(|it| it.cell == victim);
        let victim = victim.ok_or(Errno::EIO).map_err(failed("find a cell"))?;
        match class {
            FaultClass::Creation => await_start(1 + rng.below(FILES.into()) as u32, started)?,
            _ => thread::sleep(moment),
        }
        let pid = Pid::from_raw(victim.pid as i32).ok_or(Errno::EIO).map_err(failed("kill"))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(system("watch a cell"))?;
        let send = |signal| kill_process(pid, signal).map_err(system("send a signal to a cell"));
        let (mut at, mut gone, mut moved) = (Instant::now(), None, Ok(()));
        match class {
            FaultClass::Creation | FaultClass::Random => send(Signal::KILL)?,
            FaultClass::Stopped => send(Signal::STOP)?,
            FaultClass::Transaction => {
                let to = self.directories[1];
                // The answer comes when a successor serves, and so the end is awaited before it.
                let kill = || {
                    at = Instant::now();
                    send(Signal::KILL)?;
                    Ok::<_, BenchError>(end_of(&process, PATIENCE))
                };
                let (answer, killed) = self.client.rename_during(&mut self.file, to, kill);
                gone = killed?;
                moved = answer;
            }
            FaultClass::Pointer => {
                let way = Way::ALL[number as usize % Way::ALL.len()];
                pointer::corrupt(victim.pid, way, rng)?;
                at = Instant::now();
            }
        }
        Ok(Injected { at, cell: victim.cell, process, gone, moved })
    }

    fn cell_of(&mut self, directory: InodeRef) -> Result<u16, BenchError> {
        self.client.cell_of(directory).map(|cell| cell.0).map_err(failed("getattr"))
    }

    /// Waits until all successors serve. Returns what the fleet has noted of the fault.
    fn settle(&self, injected: &Injected, gone: Option<Instant>) -> Result<Outcome, BenchError> {
        let faults = self.await_successors(gone.is_some())?;
        let mut outcome = Outcome::default();
        if let Some(fault) = faults.iter().find(|fault| fault.cell == injected.cell) {
            let ms = |us: u64| us as f64 / 1000.0;
            let ended = gone.map_or(0.0, |gone| (gone - injected.at).as_secs_f64() * 1000.0);
            outcome.was_noticed = true;
            outcome.detection_ms =
                fault.barrier_us.map(|barrier| ended.max(ms(fault.ended_us)) + ms(barrier));
            outcome.recovery_ms = fault.recovery_us.map(ms);
        }
        let others = faults.iter().filter(|fault| fault.cell != injected.cell);
        outcome.escaped.extend(others.map(|it| format!("cell {} {}", it.cell, it.cause)));
        if faults.iter().any(|fault| fault.recovery_us.is_none()) {
            outcome.escaped.push("a successor does not serve".to_owned());
        }
        outcome.escaped.extend(injected.moved.err().map(|errno| format!("rename: {errno}")));
        Ok(outcome)
    }

    /// Waits until the successors of all cells that have ended serve.
    fn await_successors(&self, has_ended: bool) -> Result<Vec<FaultStatus>, BenchError> {
        let deadline = Instant::now() + RECOVERY_MAX;
        loop {
            let faults = status(self.ground.pool())?.faults;
            let is_over = faults.iter().all(|fault| fault.recovery_us.is_some());
            if (is_over && !(has_ended && faults.is_empty())) || Instant::now() >= deadline {
                return Ok(faults);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Why the file that was moved does not have exactly one name.
    fn torn_name(&mut self) -> Option<String> {
        let [here, there] = self.directories;
        let file = &self.file;
        let mut is_in = |dir| self.client.is_named(file, dir);
        match (is_in(here), is_in(there)) {
            (Ok(here), Ok(there)) if here != there => None,
            (Ok(_), Ok(_)) => Some("a moved file has not one name".to_owned()),
            (Err(errno), _) | (_, Err(errno)) => Some(format!("a moved file: {errno}")),
        }
    }

    /// Stops the fleet and checks the pool. Returns what is wrong, if anything is.
    fn damage(self) -> Result<Option<String>, BenchError> {
        drop((self.client, self.mount));
        match self.ground.stop() {
            Ok(stopped) => stopped.damage(),
            Err(error) => Ok(Some(format!("the fleet does not stop: {error}"))),
        }
    }
}

/// Both pmakes, one after the other.
fn work(
    compilation: &Compilation,
    mount: &Path,
    started: &AtomicU32,
    interruption: &Interruption,
) -> Worked {
    let run = |directory: &str, on_start: &dyn Fn(u32)| {
        let at = mount.join(directory);
        compilation.run(&at, &|_| {}, on_start, interruption)?;
        compilation.compare(&at, interruption)
    };
    let first = run(FIRST, &|number| started.store(number, Ordering::Relaxed));
    // No start is waited for any more, also if the first pmake has failed.
    started.store(FILES, Ordering::Relaxed);
    Worked { first, check: run(CHECK, &|_| {}) }
}

/// Waits until a compiler of this number is being started.
fn await_start(number: u32, started: &AtomicU32) -> Result<(), BenchError> {
    let deadline = Instant::now() + PATIENCE;
    while started.load(Ordering::Relaxed) < number {
        if Instant::now() >= deadline {
            return Err(BenchError::Stuck("the compiler is not started".to_owned()));
        }
        thread::yield_now();
    }
    Ok(())
}

/// Waits until both pmakes are over, or have had enough time. Returns when the process was gone, if
/// it is.
fn watch(injected: &Injected, working: &ScopedJoinHandle<'_, Worked>) -> Option<Instant> {
    let deadline = Instant::now() + PATIENCE;
    let mut gone = injected.gone;
    loop {
        let is_over = working.is_finished() || Instant::now() >= deadline;
        if gone.is_some() {
            thread::sleep(LOOK_EVERY);
        } else {
            gone = end_of(&injected.process, LOOK_EVERY);
        }
        if is_over {
            return gone;
        }
    }
}

/// When the process was gone, if that is within the time. A signal may end the wait early.
fn end_of(process: &OwnedFd, within: Duration) -> Option<Instant> {
    let timeout = Timespec::try_from(within).ok();
    let mut end = [PollFd::new(process, PollFlags::IN)];
    let is_gone = matches!(poll(&mut end, timeout.as_ref()), Ok(ready) if ready > 0);
    is_gone.then(Instant::now)
}
