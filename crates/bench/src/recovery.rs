//! `warren bench recovery`: the time until the first reply after a kill, with as much in the logs
//! as there can be without a checkpoint.
//!
//! ```text
//! fill:   files made, written and synced by several clients, until half of a log is used
//! cell:   kill -9 of one cell -> its successor's first answer; what clients meet meanwhile
//! fleet:  kill -9 of the keeper, and so of all -> replay in memory -> a start -> the first answer
//! ```
//!
//! Both kills find logs filled anew, each on a pool of its own: a recovery ends with a checkpoint.

use std::fmt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Ino};
use warren_proto::typed::{Create, Created, Typed};
use warren_proto::{
    AccessMode, Capabilities, CreateFlags, FileName, InodeRef, NewInode, Position, Request,
};
use warren_runtime::{
    ConnectOptions, Connection, Lifetime, OfflinePool, Purpose, ServeOptions, connect,
};
use warren_runtime::{Slot, start_fleet, status};

use crate::error::{BenchError, system};
use crate::ground::{Ground, Interruption};
use crate::machine::Machine;

/// An ordinary client acts for itself, so the identity in its requests is ignored.
const IDENTITY: (u32, u32) = (0, 0);

/// Clients that fill the logs, and the bytes that they write to each file.
const WRITERS: usize = 8;
const FILE_BYTES: usize = 3000;

/// One file in so many is synced, and so its data is logged. The next sync covers the operations on
/// all others.
const FILES_A_SYNC: u32 = 4;

/// The time for which clients are observed while they make links: before the kill, and from the
/// first answer of the killed cell's successor on.
const OBSERVED: Duration = Duration::from_millis(200);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveryOptions {
    /// Where the temporary pools are made.
    pub directory: PathBuf,
    pub cells: u16,
    /// Bytes of all logs together.
    pub log_bytes: u64,
}

impl Default for RecoveryOptions {
    fn default() -> Self {
        Self { directory: std::env::temp_dir(), cells: 2, log_bytes: 256 << 20 }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoveryReport {
    pub machine: Machine,
    pub cells: u16,
    pub log_bytes: u64,
    pub cell: CellDeath,
    pub fleet: FleetDeath,
}

/// The records that were logged since the last checkpoint.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    pub files: u64,
    /// Bytes that reached the device: logs, and data that was written back.
    pub written_bytes: u64,
    pub seconds: f64,
    /// Checkpoints meanwhile: with one the logs hold less.
    pub checkpoints: u64,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CellDeath {
    pub load: Load,
    /// From the kill to the first answer.
    pub answer_ms: f64,
    /// The longest that each of several clients waited for a link to be made before the kill, and
    /// from the kill until after the recovery; in ascending order. Their directories are on all
    /// cells, and those on the cells that live should wait no longer than before.
    pub longest_ms: [Longest; 2],
}

/// Milliseconds of several clients.
type Longest = [f64; WRITERS];

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FleetDeath {
    pub load: Load,
    /// The replay of the logs and its checkpoint by themselves, written to memory.
    pub replay_ms: f64,
    /// From the start until clients may come, with a replay; and until the first answer.
    pub start_ms: f64,
    pub answer_ms: f64,
    /// A start of the same pool when it was left in order.
    pub clean_start_ms: f64,
}

pub fn run(options: &RecoveryOptions) -> Result<RecoveryReport, BenchError> {
    let interruption = Interruption::watch()?;
    let cell = kill_cell(options)?;
    interruption.check()?;
    let fleet = kill_fleet(options)?;
    let (cells, log_bytes) = (options.cells, options.log_bytes);
    Ok(RecoveryReport { machine: Machine::detect(), cells, log_bytes, cell, fleet })
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::Call { contender: "warren".to_owned(), call, errno }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

fn kill(pid: u32) -> Result<(), BenchError> {
    let pid = Pid::from_raw(pid as i32).ok_or(Errno::EIO).map_err(failed("kill"))?;
    kill_process(pid, Signal::KILL).map_err(system("kill a process"))
}

fn kill_cell(options: &RecoveryOptions) -> Result<CellDeath, BenchError> {
    let ground = Ground::start_with_log(&options.directory, options.cells, options.log_bytes)?;
    let load = fill(&ground, options.log_bytes)?;
    let connection = connect(ground.pool(), &ConnectOptions::default())?;
    let mut slot = connection.slot().ok_or(Errno::EAGAIN).map_err(failed("connect"))?;
    let victim = status(ground.pool())?.cells.first().map_or(0, |cell| cell.pid);
    let ((), before) = beside_clients(&ground, WRITERS, || {
        std::thread::sleep(OBSERVED);
        Ok(())
    })?;
    let (answer_ms, meanwhile) = beside_clients(&ground, 2 * WRITERS, || {
        let begun = Instant::now();
        kill(victim)?;
        slot.call_cell(CellId(0), IDENTITY, &Request::Null, 0).map_err(failed("null"))?;
        let answer_ms = millis(begun);
        std::thread::sleep(OBSERVED);
        Ok(answer_ms)
    })?;
    Ok(CellDeath { load, answer_ms, longest_ms: [before, meanwhile] })
}

/// Does something while clients make links in directories of their own, which have numbers from
/// `first` on. Also returns the longest that each of them waited.
fn beside_clients<T>(
    ground: &Ground,
    first: usize,
    work: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, Longest), BenchError> {
    let (enough, ready) = (AtomicBool::new(false), Barrier::new(WRITERS + 1));
    std::thread::scope(|scope| {
        let (enough, ready) = (&enough, &ready);
        let client = |at: usize| {
            scope.spawn(move || {
                let filler = Filler::new(ground, first + at);
                ready.wait();
                filler?.longest(enough)
            })
        };
        let clients: Vec<_> = (0..WRITERS).map(client).collect();
        ready.wait();
        let done = work();
        enough.store(true, Ordering::Relaxed);
        let mut longest = [0.0; WRITERS];
        for (longest, client) in longest.iter_mut().zip(clients) {
            *longest = client.join().expect("a client panicked")?;
        }
        longest.sort_by(f64::total_cmp);
        Ok((done?, longest))
    })
}

fn kill_fleet(options: &RecoveryOptions) -> Result<FleetDeath, BenchError> {
    let ground = Ground::start_with_log(&options.directory, options.cells, options.log_bytes)?;
    let load = fill(&ground, options.log_bytes)?;
    kill(status(ground.pool())?.keeper_pid)?;
    let begun = Instant::now();
    // Waits for all that had the pool.
    let pool = loop {
        match OfflinePool::open(ground.pool(), Purpose::Check) {
            Ok(pool) => break pool,
            Err(_) if begun.elapsed() < Duration::from_secs(10) => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    };
    let begun = Instant::now();
    pool.replay()?;
    let replay_ms = millis(begun);
    drop(pool);
    let serve = ServeOptions::new(ground.pool(), options.cells);
    let begun = Instant::now();
    let fleet = start_fleet(&serve, Lifetime::WithStarter)?;
    let start_ms = millis(begun);
    let connection = connect(ground.pool(), &ConnectOptions::default())?;
    let mut slot = connection.slot().ok_or(Errno::EAGAIN).map_err(failed("connect"))?;
    slot.call_cell(CellId(0), IDENTITY, &Request::Null, 0).map_err(failed("null"))?;
    let answer_ms = millis(begun);
    drop((slot, connection));
    fleet.stop()?;
    let begun = Instant::now();
    let fleet = start_fleet(&serve, Lifetime::WithStarter)?;
    let clean_start_ms = millis(begun);
    fleet.stop()?;
    Ok(FleetDeath { load, replay_ms, start_ms, answer_ms, clean_start_ms })
}

/// Fills the logs to just before half, where a checkpoint would free them.
fn fill(ground: &Ground, log_bytes: u64) -> Result<Load, BenchError> {
    const PART: f64 = 0.47;
    let begun = Instant::now();
    let (before, enough) = (written(ground)?, AtomicBool::new(false));
    let goal = before.0 + (log_bytes as f64 * PART) as u64;
    let files = std::thread::scope(|scope| {
        let writer = |at| {
            let enough = &enough;
            scope.spawn(move || Filler::new(ground, at)?.run(enough))
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        while writers.iter().all(|it| !it.is_finished()) {
            if written(ground)?.0 >= goal || begun.elapsed() > Duration::from_secs(60) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        enough.store(true, Ordering::Relaxed);
        let files = writers.into_iter().map(|it| it.join().expect("a writer panicked"));
        files.sum::<Result<u64, BenchError>>()
    })?;
    let after = written(ground)?;
    let (written_bytes, checkpoints) = (after.0 - before.0, after.1 - before.1);
    Ok(Load { files, written_bytes, seconds: begun.elapsed().as_secs_f64(), checkpoints })
}

/// Bytes written to the device, and checkpoints.
fn written(ground: &Ground) -> Result<(u64, u64), BenchError> {
    let status = status(ground.pool())?;
    let blocks: u64 = status.cells.iter().map(|cell| cell.device.blocks_written).sum();
    Ok((blocks * BLOCK_SIZE as u64, status.checkpoint.checkpoints))
}

/// A client that makes files in a directory of its own.
struct Filler {
    slot: Slot,
    dir: InodeRef,
    _connection: Connection,
}

impl Filler {
    fn new(ground: &Ground, at: usize) -> Result<Self, BenchError> {
        let options = ConnectOptions { slots: 1, ..ConnectOptions::default() };
        let connection = connect(ground.pool(), &options)?;
        let mut slot = connection.slot().ok_or(Errno::EAGAIN).map_err(failed("connect"))?;
        slot.payload_out()[..FILE_BYTES].fill(7);
        let mut filler = Self { slot, dir: InodeRef::ROOT, _connection: connection };
        let ino = filler.create(&format!("directory-{at}"), NewInode::directory(0o700))?.0;
        filler.dir = InodeRef { ino, capability: filler.slot.granted() };
        Ok(filler)
    }

    fn create(
        &mut self,
        name: &str,
        new: NewInode,
    ) -> Result<(Ino, Option<warren_proto::Handle>), BenchError> {
        let is_file = new == NewInode::regular(0o600);
        let open = if is_file { CreateFlags::OPEN } else { CreateFlags::empty() };
        let request = Create {
            dir: self.dir.ino,
            name: FileName::new(name.as_bytes()).map_err(failed("name"))?,
            new,
            flags: CreateFlags::EXCLUSIVE | open,
            access: AccessMode::WRITE,
        };
        let authority = Capabilities::of(self.dir.capability);
        let answer = self.slot.call(authority, &request.into_request(), 0);
        let Created { entry, opened } = Create::reply(answer).map_err(failed("create"))?;
        Ok((entry.ino, opened.map(|it| it.handle)))
    }

    fn run(mut self, enough: &AtomicBool) -> Result<u64, BenchError> {
        let mut files = 0;
        while !enough.load(Ordering::Relaxed) {
            for in_turn in 0..FILES_A_SYNC {
                let (ino, handle) =
                    self.create(&format!("file-{files}"), NewInode::regular(0o600))?;
                let handle = handle.ok_or(Errno::EPROTO).map_err(failed("create"))?;
                let position = Position::At(0);
                let write = Request::Write {
                    handle,
                    position,
                    kill_privileges: false,
                    write_back: false,
                    direct: false,
                };
                self.slot.call(IDENTITY, &write, FILE_BYTES).map_err(failed("write"))?;
                if in_turn + 1 == FILES_A_SYNC {
                    let handle = Some(handle);
                    let fsync = Request::Fsync { ino, handle, data_only: false };
                    self.slot.call(IDENTITY, &fsync, 0).map_err(failed("fsync"))?;
                }
                let close = Request::Close { handle };
                self.slot.call(IDENTITY, &close, 0).map_err(failed("close"))?;
                files += 1;
            }
        }
        Ok(files)
    }

    /// Makes symbolic links, and returns the longest time of one in milliseconds.
    fn longest(mut self, enough: &AtomicBool) -> Result<f64, BenchError> {
        let (mut files, mut longest) = (0, 0.0f64);
        while !enough.load(Ordering::Relaxed) {
            let begun = Instant::now();
            self.create(&format!("link-{files}"), NewInode::symlink(b"target"))?;
            longest = longest.max(millis(begun));
            files += 1;
        }
        Ok(longest)
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, cores, kernel, .. } = &self.machine;
        let (cells, mib) = (self.cells, self.log_bytes >> 20);
        writeln!(
            f,
            "{processor}, {cores} cores, Linux {kernel}; {cells} cells, logs of {mib} MiB"
        )?;
        let CellDeath { load, answer_ms, longest_ms } = self.cell;
        writeln!(f, "\none cell is killed\n  {load}")?;
        writeln!(f, "  its successor's first answer after {answer_ms:.0} ms")?;
        for (when, longest) in ["before", "meanwhile"].into_iter().zip(longest_ms) {
            let longest = longest.map(|ms| format!("{ms:.1}")).join(", ");
            writeln!(f, "  longest call of each of {WRITERS} clients {when}: {longest} ms")?;
        }
        let FleetDeath { load, replay_ms, start_ms, answer_ms, clean_start_ms } = self.fleet;
        writeln!(f, "\nthe whole fleet is killed\n  {load}")?;
        writeln!(f, "  the replay by itself, in memory: {replay_ms:.0} ms")?;
        writeln!(f, "  clients may come after {start_ms:.0} ms, first answer {answer_ms:.0} ms")?;
        writeln!(f, "  a start of the pool when left in order: {clean_start_ms:.0} ms")
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, written_bytes, seconds, checkpoints } = self;
        let mib = written_bytes >> 20;
        write!(f, "before: {files} files, {mib} MiB on the device in {seconds:.1} s, ")?;
        write!(f, "{checkpoints} checkpoints")
    }
}
