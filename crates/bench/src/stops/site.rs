//! A fleet, its mounts and the programs on them, and one stop after another of their processes.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use warren_base::Rng;
use warren_runtime::{FleetStatus, interposer, status};

use super::kind::{Kind, Load};
use super::place::{DIRECTORIES, make_directories};
use super::victim::Victim;
use super::worker::{self, Reply};
use crate::contender::fuse::KeptMount;
use crate::error::BenchError;
use crate::ground::{Ground, Interruption};
use crate::micro::worker::now_ns;
use crate::process::{Answering, children, this_program};

/// Bytes of the pool.
const POOL_BYTES: u64 = 256 << 20;

/// The time for which nothing has used an idle fleet before a process is stopped.
const IDLE: Duration = Duration::from_millis(300);

/// The least time for which programs are observed after a stop. A stopped process is missed after
/// less.
const OBSERVED: Duration = Duration::from_millis(300);

/// The longest wait of programs. A longer one counts as endless.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The time in which a stopped process must be replaced, after all directories work again.
const REPLACEMENT_MAX: Duration = PATIENCE;

/// The interval between two looks at the programs and the fleet.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// All this stands on a site.
pub(super) struct Shape {
    pub cells: u16,
    pub mounts: u16,
    pub load: Load,
    /// The library in the programs.
    pub library: Option<PathBuf>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cells, mounts, load, .. } = self;
        write!(f, "{cells} cells, {mounts} mounts, {load}")
    }
}

/// The outcome of a stop that was endured.
pub(super) struct Outcome {
    pub wait: Duration,
    /// From the stop until the stopped process had ended, if it did before it was resumed.
    pub ended: Option<Duration>,
}

/// The fields are dropped in order.
pub(super) struct Site {
    /// By mount.
    workers: Vec<Answering>,
    mounts: Vec<KeptMount>,
    ground: Ground,
    cells: u16,
    load: Load,
    library: Option<PathBuf>,
}

impl Site {
    /// Makes a pool and mount points in a directory. Their names have the number of the site.
    pub(super) fn new(
        scratch: &Path,
        number: u32,
        shape: &Shape,
        interruption: &Interruption,
    ) -> Result<Self, BenchError> {
        let Shape { cells, load, ref library, .. } = *shape;
        let ground = Ground::start_with_bytes(scratch, cells, POOL_BYTES)?;
        let mount =
            |at| KeptMount::new(ground.pool(), scratch.join(format!("mount-{number}-{at}")));
        let mounts = (0..shape.mounts).map(mount).collect::<Result<Vec<_>, _>>()?;
        let first = mounts.first().expect("at least one mount");
        make_directories(first.at(), &ground, cells, interruption)?;
        let library = library.clone();
        let mut site = Self { workers: Vec::new(), mounts, ground, cells, load, library };
        for at in 0..site.mounts.len() {
            let mut command = site.program();
            command.arg(worker::ROLE).arg(at.to_string());
            // Its own mount is the first.
            let (before, from) = site.mounts.split_at(at);
            command.args(from.iter().chain(before).map(KeptMount::at));
            site.workers.push(Answering::start(&mut command)?);
        }
        Ok(site)
    }

    /// The command of this program as the load wants it.
    fn program(&self) -> Command {
        let mut command = this_program();
        if let Some(library) = &self.library {
            interposer::load(&mut command, library);
        }
        command
    }

    /// Stops a process of the kind, and waits until all is over.
    pub(super) fn endure(
        &mut self,
        kind: Kind,
        rng: &mut Rng,
        interruption: &Interruption,
    ) -> Result<Outcome, BenchError> {
        self.order("run", interruption)?;
        self.await_back(now_ns(), Duration::ZERO, interruption)?;
        let holder = match kind {
            Kind::Client => Some(self.hold(interruption)?),
            _ => None,
        };
        let victim = self.process(kind, holder.as_ref(), rng)?.map(Victim::new).transpose()?;
        if self.load == Load::Idle {
            self.order("rest", interruption)?;
            thread::sleep(IDLE);
        } else {
            thread::sleep(Duration::from_nanos(rng.below(worker::PAUSE.as_nanos() as u64)));
        }
        let (stopped, stop_ns) = (Instant::now(), now_ns());
        victim.as_ref().map_or(Ok(()), Victim::stop)?;
        if self.load == Load::Idle {
            self.order("run", interruption)?;
        }
        let within = if kind.is_replaced() { REPLACEMENT_MAX } else { Duration::ZERO };
        let (watched, are_back) = (victim.as_ref(), AtomicBool::new(false));
        let ended = thread::scope(|scope| {
            let ended = scope.spawn(|| watched.and_then(|it| it.await_end(&are_back, within)));
            let back = self.await_back(stop_ns, OBSERVED, interruption);
            are_back.store(true, Ordering::Relaxed);
            let ended = ended.join().expect("the wait does not panic");
            back.map(|()| ended)
        })?;
        drop(victim);
        self.await_whole(interruption)?;
        self.await_back(now_ns(), Duration::ZERO, interruption)?;
        let (_, wait_ns) = self.order(&format!("look {stop_ns}"), interruption)?;
        drop(holder);
        self.order("rest", interruption)?;
        let ended = ended.map(|at| at.saturating_duration_since(stopped));
        Ok(Outcome { wait: Duration::from_nanos(wait_ns), ended })
    }

    /// Ends all in order. Returns the damage of the pool, if there is any.
    pub(super) fn finish(self) -> Result<Option<String>, BenchError> {
        let Self { workers, mounts, ground, .. } = self;
        drop(workers);
        drop(mounts);
        match ground.stop() {
            Ok(stopped) => stopped.damage(),
            Err(error) => Ok(Some(format!("the fleet does not stop: {error}"))),
        }
    }

    /// Takes the mounts from programs that may wait, so that they end.
    pub(super) fn give_up(self) {
        let Self { workers, mounts, ground, .. } = self;
        drop(mounts);
        drop(workers);
        drop(ground);
    }

    /// Sends an order to all workers. Returns the sum of the directories that are back, and the
    /// longest wait in nanoseconds.
    fn order(
        &mut self,
        line: &str,
        interruption: &Interruption,
    ) -> Result<(usize, u64), BenchError> {
        self.workers.iter_mut().for_each(|it| it.order(line));
        let until = Some(Instant::now() + PATIENCE);
        let mut all = (0, 0);
        for worker in &mut self.workers {
            let reply = worker.reply(until, interruption)?;
            match reply.and_then(|it| it.parse().ok()) {
                Some(Reply::Wait(back, ns)) => all = (all.0 + back, ns.max(all.1)),
                Some(Reply::Failed(why)) => return Err(BenchError::Failed(why)),
                None => {
                    let why = format!("a program ended during {line:?}");
                    return Err(BenchError::Failed(why));
                }
            }
        }
        Ok(all)
    }

    /// Waits until a round that began after a time has ended in all directories through all mounts,
    /// and at least so long.
    fn await_back(
        &mut self,
        since_ns: u64,
        at_least: Duration,
        interruption: &Interruption,
    ) -> Result<(), BenchError> {
        let begun = Instant::now();
        let all = DIRECTORIES * self.mounts.len();
        loop {
            let (back, _) = self.order(&format!("look {since_ns}"), interruption)?;
            if back == all && begun.elapsed() >= at_least {
                return Ok(());
            }
            if begun.elapsed() >= PATIENCE {
                let seconds = PATIENCE.as_secs();
                let why = format!("{back} of {all} directories work after {seconds} s");
                return Err(BenchError::Stuck(why));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until the fleet and all its cells serve.
    fn await_whole(&self, interruption: &Interruption) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            interruption.check()?;
            let why = match status(self.ground.pool()) {
                Ok(status) => match self.lack(&status) {
                    None => return Ok(()),
                    Some(lack) => lack,
                },
                Err(error) => error.to_string(),
            };
            if begun.elapsed() >= PATIENCE {
                return Err(BenchError::Stuck(format!("the fleet is not whole again: {why}")));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// A fleet that is whole lacks nothing. Returns what this one lacks.
    fn lack(&self, status: &FleetStatus) -> Option<String> {
        let ready = status.cells.iter().filter(|cell| cell.state == "ready").count();
        let (all, state) = (self.cells, &status.state);
        let harm = &status.harm;
        if state != "serving" || ready != usize::from(all) {
            Some(format!("it is {state}, and {ready} of {all} cells are ready"))
        } else if !harm.given_up.is_empty() || !harm.taken_out.is_empty() {
            Some(format!("what was given up: {harm:?}"))
        } else {
            None
        }
    }

    fn hold(&self, interruption: &Interruption) -> Result<Answering, BenchError> {
        let mut command = self.program();
        let what = if self.load == Load::Idle { worker::WAITS } else { worker::WRITES };
        command.arg(worker::ROLE_HOLDER).arg(what).arg(self.mounts[0].at());
        let mut holder = Answering::start(&mut command)?;
        match holder.reply(Some(Instant::now() + PATIENCE), interruption)? {
            Some(_) => Ok(holder),
            None => Err(BenchError::Failed("a program cannot open and lock its files".to_owned())),
        }
    }

    /// A process of the kind, chosen at random if there are several.
    fn process(
        &self,
        kind: Kind,
        holder: Option<&Answering>,
        rng: &mut Rng,
    ) -> Result<Option<u32>, BenchError> {
        let status = status(self.ground.pool())?;
        let keeper = rng.pick(&self.mounts).keeper();
        let process = match kind {
            Kind::Cell => rng.pick(&status.cells).pid,
            Kind::Front => front(keeper)?,
            Kind::Supervisor => status.supervisor_pid,
            Kind::Keeper => status.keeper_pid,
            Kind::Mount => keeper,
            Kind::Client => holder.expect("a holder was started").id(),
            Kind::None => return Ok(None),
        };
        Ok(Some(process))
    }
}

/// The process of the front that a mount keeper has started.
fn front(keeper: u32) -> Result<u32, BenchError> {
    let is_front = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|word| word == b"front")
    };
    let missing = || BenchError::Failed("a mount has no front".to_owned());
    children(keeper)?.into_iter().find(is_front).ok_or_else(missing)
}
