//! Starting a fleet, in the foreground or behind a command, and the roles of its processes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use warren_base::limits::CELLS_MAX;
use warren_log::Target;
use warren_proto::Wire;

use crate::client::control;
use crate::clients::Clients;
use crate::error::{ErrorKind, FleetError, system};
use crate::keeper::keep;
use crate::limit;
use crate::link::{Link, Packet, Received, Wait};
use crate::message::{FleetPlan, Launch};
use crate::process::{self, ROLE_CELL, ROLE_KEEPER, ROLE_SUPERVISOR, Tie, pool_name, role_args};
use crate::silence::Silence;
use crate::supervisor::journal::LEN_MAX as RECORD_LEN_MAX;
use crate::{cell, notice, supervisor};

/// The time in which a fleet must open its pool.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of the cells' caches by default.
const CACHE_BYTES_DEFAULT: u64 = 256 << 20;

/// The fleet to start.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    pub pool: PathBuf,
    /// 1 to 64; may differ from the last time.
    pub cells: u16,
    /// Threads of a cell.
    pub threads: u16,
    /// Bytes of the caches of file data and tree nodes, all cells together.
    pub cache_bytes: u64,
    /// The users that it admits besides root and the user who starts it.
    pub clients: Clients,
    /// These users may change nothing.
    pub read_only: bool,
    /// The fleet ends with its last mount.
    pub ends_with_mounts: bool,
    /// Where its log goes.
    pub log: Target,
}

impl ServeOptions {
    pub fn new(pool: impl Into<PathBuf>, cells: u16) -> Self {
        let (cache_bytes, clients) = (CACHE_BYTES_DEFAULT, Clients::default());
        let log = Target::default();
        Self {
            pool: pool.into(),
            cells,
            threads: 1,
            cache_bytes,
            clients,
            read_only: false,
            ends_with_mounts: false,
            log,
        }
    }

    fn plan(&self) -> Result<FleetPlan, FleetError> {
        if self.cells == 0 || usize::from(self.cells) > CELLS_MAX {
            return Err(FleetError::CellCount(self.cells));
        }
        let fleet = || format!("{}: a fleet of {} cells", self.pool.display(), self.cells);
        limit::require(fleet, limit::of_fleet(usize::from(self.cells)))?;
        self.log.check()?;
        let pool = fs::canonicalize(&self.pool).map_err(|e| FleetError::opening(&self.pool, &e))?;
        // Of a block device there is no limit.
        let pool_len = fs::metadata(&pool).map_or(0, |found| found.len());
        limit::require_files(fleet, pool_len.max(self.cache_bytes).max(RECORD_LEN_MAX))?;
        Ok(FleetPlan {
            pool: pool.into_os_string().into_vec().into(),
            cells: self.cells,
            threads: self.threads,
            cache_bytes: self.cache_bytes,
            clients: self.clients,
            read_only: self.read_only,
            ends_with_mounts: self.ends_with_mounts,
            log: self.log.word().into_vec().into(),
        })
    }
}

/// Serves a pool in the foreground until a signal or [`control::stop`] ends it. `on_ready` gets the
/// number of cells when clients may come.
pub fn serve(options: &ServeOptions, mut on_ready: impl FnMut(u16)) -> Result<(), FleetError> {
    keep(options.plan()?, None, &mut |cells| {
        notice::ready();
        on_ready(cells);
    })
}

/// Whether a background fleet ends when the process that started it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// It stops when the [`Fleet`] is dropped or its process dies.
    WithStarter,
    /// It stays until [`control::stop`].
    Stays,
}

/// A fleet in the background.
#[derive(Debug)]
pub struct Fleet {
    keeper: Child,
    link: Link,
    pool: PathBuf,
    /// The number of cells with which it was started.
    pub cells: u16,
    lifetime: Lifetime,
}

/// Starts a fleet in the background and waits until clients may come.
pub fn start_fleet(options: &ServeOptions, lifetime: Lifetime) -> Result<Fleet, FleetError> {
    let doing = "start the fleet";
    let plan = options.plan()?;
    let (ours, theirs) = Link::pair().map_err(system(doing))?;
    let args = role_args([ROLE_KEEPER.as_bytes(), pool_name(&plan.pool)]);
    let keeper = process::spawn(&args, theirs.into_fd(), Tie::Daemon).map_err(system(doing))?;
    let mut fleet =
        Fleet { keeper, link: ours, pool: options.pool.clone(), cells: plan.cells, lifetime };
    let begin = Launch::Begin { plan, tied: lifetime == Lifetime::WithStarter };
    fleet.link.send(&begin.to_bytes(), &[], Wait::Yes).map_err(system(doing))?;
    match fleet.await_ready(READY_TIMEOUT) {
        Ok(()) => Ok(fleet),
        Err(error @ FleetError::Unready { .. }) => {
            fleet.give_up();
            Err(error)
        }
        Err(error) => {
            fleet.end();
            Err(error)
        }
    }
}

impl Fleet {
    fn await_ready(&mut self, limit: Duration) -> Result<(), FleetError> {
        let deadline = Instant::now() + limit;
        let silence = Silence::of_keeper;
        if limit > control::PATIENCE && !control::is_readable(&self.link, control::PATIENCE)? {
            let silence = silence(self.keeper.id());
            // A start may take long, with long logs.
            if silence.has_stopped() {
                let (pool, seconds) = (self.pool.display(), control::PATIENCE.as_secs());
                let line = format!("{pool}: its fleet is not ready after {seconds} s: {silence}");
                warren_log::say(&line);
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if !control::is_readable(&self.link, left)? {
            let (pool, seconds) = (self.pool.clone(), limit.as_secs());
            let states = silence(self.keeper.id()).states();
            return Err(FleetError::Unready { pool, seconds, states });
        }
        let packet = control::await_packet(&mut self.link, deadline)?;
        match launch_message(&packet)? {
            Launch::Ready { .. } => Ok(()),
            Launch::Failed { kind, line } => Err(FleetError::reported(kind, &line)),
            _ => Err(FleetError::Died("the keeper".into())),
        }
    }

    pub fn pool(&self) -> &Path {
        &self.pool
    }

    pub fn keeper_pid(&self) -> u32 {
        self.keeper.id()
    }

    /// Stops the fleet after a last checkpoint and waits until it is gone. If the fleet refuses the
    /// stop, it continues to serve, unless it ends with its starter. A fleet that another process
    /// has stopped in order has stopped too.
    pub fn stop(mut self) -> Result<(), FleetError> {
        let stopped = control::stop(&self.pool, control::StopOptions::default());
        // Also reaps the keeper; if the stop failed, the closed link stops it.
        match stopped {
            Ok(()) => match self.await_keeper().map_err(system("wait for the keeper"))? {
                status if status.success() => Ok(()),
                _ => Err(FleetError::Died("the keeper".into())),
            },
            Err(error) if matches!(error.kind(), ErrorKind::StopRefused | ErrorKind::PoolInUse) => {
                Err(error)
            }
            Err(error) => {
                self.end();
                match self.keeper.try_wait() {
                    Ok(Some(status)) if status.success() && error.kind() == ErrorKind::NoFleet => {
                        Ok(())
                    }
                    _ => Err(error),
                }
            }
        }
    }

    /// Leaves the fleet running, if its lifetime allows it.
    pub fn detach(self) {
        drop(self);
    }

    /// Waits until the keeper is gone. It waits for the processes of the fleet, and these may wait
    /// for the device.
    fn await_keeper(&mut self) -> std::io::Result<ExitStatus> {
        let (pool, pid) = (self.pool.display(), self.keeper.id());
        let line = format!("{pool}: waits for the fleet's processes to end (keeper: {pid})");
        warren_log::say_if_slow(&line, || self.keeper.wait())
    }

    /// Kills a fleet that is not ready in time, and waits for its keeper's end for a bounded time:
    /// a process of it may be stopped, or wait for the device. It has acknowledged nothing.
    fn give_up(&mut self) {
        const END_WAIT: Duration = Duration::from_secs(5);
        let pidfd = process::open_pidfd(rustix::process::Pid::from_child(&self.keeper));
        // It may have ended by itself.
        let _ended = self.keeper.kill();
        if let Ok(pidfd) = pidfd {
            let _ended = control::is_readable(&pidfd, END_WAIT);
        }
        let _reaped = self.keeper.try_wait();
        self.lifetime = Lifetime::Stays;
    }

    /// Sends the keeper SIGTERM, and kills it if it does not end (its children die with it).
    fn end(&mut self) {
        const TIMEOUT: Duration = Duration::from_secs(20);
        let pid = rustix::process::Pid::from_child(&self.keeper);
        if matches!(self.keeper.try_wait(), Ok(None)) {
            // The child is not reaped yet, so no other process can have the number.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let deadline = Instant::now() + TIMEOUT;
        while matches!(self.keeper.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = self.keeper.kill();
                let _ = self.await_keeper();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::WithStarter {
            self.end();
        }
    }
}

fn launch_message(packet: &Packet) -> Result<Launch, FleetError> {
    Launch::from_bytes(&packet.bytes).map_err(|_| FleetError::Died("the keeper".into()))
}

/// Runs a role of a fleet's process to its end if `args` (without the program's name) name one. The
/// command calls this before it parses its arguments.
pub fn dispatch(args: &[OsString]) -> Option<ExitCode> {
    let role = args.first()?.to_str()?;
    let ended = match role {
        ROLE_KEEPER if process::has_link() => keeper_main(),
        ROLE_SUPERVISOR if process::has_link() => supervisor::main(),
        ROLE_CELL if process::has_link() => {
            let number = args.get(1).and_then(|n| n.to_str()?.parse().ok()).unwrap_or(0);
            cell::main(number)
        }
        _ => return None,
    };
    // The error has been sent over the link of the process.
    Some(ended.map_or_else(|error| ExitCode::from(error.exit_code()), |()| ExitCode::SUCCESS))
}

/// The keeper of a background fleet.
fn keeper_main() -> Result<(), FleetError> {
    let mut link = process::begin("warren-keeper", false)?;
    // A session of its own keeps the terminal's signals away.
    rustix::process::setsid().ok();
    let Received::Packet(packet) =
        link.receive(Wait::Yes).map_err(system("receive from the starter"))?
    else {
        return Err(FleetError::Died("the starter".into()));
    };
    let Launch::Begin { plan, tied } = launch_message(&packet)? else {
        return Err(FleetError::Died("the starter".into()));
    };
    let send = |message: Launch| {
        // A starter that does not listen any more needs no answer.
        let _ = link.send(&message.to_bytes(), &[], Wait::No);
    };
    let ended = keep(plan, tied.then_some(&link), &mut |cells| send(Launch::Ready { cells }));
    match &ended {
        Ok(()) => send(Launch::Stopped),
        Err(error) => {
            let (kind, line) = error.report();
            send(Launch::Failed { kind, line });
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_fleet_that_another_process_has_stopped_is_stopped() {
        let pool = std::env::temp_dir().join(format!("warren-stopped-{}", std::process::id()));
        fs::write(&pool, "no fleet serves it").expect("a file");
        let stop = |script| {
            let mut keeper = Command::new("sh")
                .args(["-c", script])
                .stdout(Stdio::piped())
                .spawn()
                .expect("a shell");
            let stdout = keeper.stdout.take().expect("piped");
            BufReader::new(stdout).read_line(&mut String::new()).expect("it has its traps");
            let (link, _theirs) = Link::pair().expect("pair");
            Fleet { keeper, link, pool: pool.clone(), cells: 1, lifetime: Lifetime::Stays }.stop()
        };
        // A keeper that still ends gets SIGTERM.
        let ends_later = "trap 'exit 0' TERM; echo; while :; do sleep 0.01; done";
        for script in ["trap '' TERM; echo; exit 0", ends_later] {
            assert!(stop(script).is_ok(), "{script}");
        }
        for script in ["echo; exit 1", "echo; kill -KILL $$"] {
            let error = stop(script).expect_err("it has not ended in order");
            assert_eq!(error.kind(), ErrorKind::NoFleet, "{script}");
        }
        fs::remove_file(&pool).expect("cleanup");
    }

    #[test]
    fn a_stopped_fleet_that_is_not_ready_is_named_and_ended() {
        // It holds the other end of the link, as a keeper does.
        let keeper = Command::new("sleep").arg("1000").spawn().expect("a process");
        let pid = keeper.id();
        let own = rustix::process::Pid::from_child(&keeper);
        rustix::process::kill_process(own, rustix::process::Signal::STOP).expect("stop");
        let (link, _theirs) = Link::pair().expect("pair");
        let (pool, lifetime) = (PathBuf::from("/pool"), Lifetime::WithStarter);
        let mut fleet = Fleet { keeper, link, pool, cells: 1, lifetime };
        let begun = Instant::now();
        let error = fleet.await_ready(Duration::from_secs(1)).expect_err("it does not answer");
        let line = error.to_string();
        assert!(line.contains(&format!("keeper, process {pid}, is in state T")), "{line}");
        assert!(line.ends_with("start it again"), "{line}");
        fleet.give_up();
        drop(fleet);
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        assert!(crate::process_stat::ProcessStat::of(pid).is_none(), "it is reaped");
    }
}
