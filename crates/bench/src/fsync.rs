//! `warren bench fsync`: append 4 KiB and fsync, by one and by several writers at once.
//!
//! Each writer is a client of its own with a file of its own. A run has rounds. In a round, each
//! number of writers appends a batch to Warren, then to files of a file system on the same device
//! or an equal one ([`Medium`]). A single writer also writes to the bare device, which is the lower
//! bound. The device requests of Warren are read from the cells' vitals before and after each
//! batch.
//!
//! ```text
//! contender  the interface of the compared systems
//! warren     writers through the client library     kernel   writers through system calls
//! bare       a writer to the bare device            report   the result as text
//! ```

mod bare;
mod contender;
mod kernel;
mod report;
mod warren;

use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use warren_base::Errno;

use crate::client::file_system_of;
use crate::error::BenchError;
use crate::ground::{Ground, Interruption};
use crate::machine::Machine;
use crate::medium::{Medium, Places};
use crate::sample::{Figures, median, median_ratio};
use bare::Bare;
use contender::{Contender, Counts, Writer};
use kernel::KernelWriters;
use warren::WarrenWriters;

/// Numbers of concurrent writers.
const WIDTHS: [usize; 2] = [1, 8];

/// Rounds that are not counted.
const ROUNDS_BEFORE: u32 = 2;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsyncOptions {
    /// The directory of the temporary pool and of the files to compare with, or of the files behind
    /// loop devices.
    pub directory: PathBuf,
    pub on: Medium,
    pub rounds: u32,
    /// Appends of each writer in a batch.
    pub calls: u32,
    /// Measure Warren alone.
    pub alone: bool,
}

impl Default for FsyncOptions {
    fn default() -> Self {
        let directory = std::env::temp_dir();
        Self { directory, on: Medium::File, rounds: 40, calls: 50, alone: false }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FsyncReport {
    pub machine: Machine,
    pub on: Medium,
    pub rounds: u32,
    pub calls: u32,
    pub widths: Vec<Width>,
}

/// So many writers at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Width {
    pub writers: usize,
    pub warren: Speed,
    /// Requests to the device for each append.
    pub device: PerAppend,
    /// The bare device, with one writer only, and the file system.
    pub others: Vec<Other>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Other {
    pub name: String,
    pub speed: Speed,
    /// The median over rounds of its time divided by Warren's (above 1: Warren is faster).
    pub ratio: f64,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Speed {
    /// The median over rounds, of all writers together.
    pub appends_a_second: f64,
    /// The latency of single appends with their fsyncs.
    #[serde(flatten)]
    pub latency: Figures,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PerAppend {
    pub writes: f64,
    pub blocks: f64,
    pub flushes: f64,
}

/// The times and counts of a contender in all rounds, with one number of writers.
#[derive(Default)]
struct Measured {
    /// Nanoseconds an append of each round: the time from the first start to the last end, shared.
    batches: Vec<f64>,
    /// Nanoseconds of each append.
    latencies: Vec<f64>,
    counts: Counts,
}

/// Measures. The calling program must hand the roles of a fleet's processes to
/// [`warren_runtime::dispatch`].
pub fn run(options: &FsyncOptions) -> Result<FsyncReport, BenchError> {
    let interruption = Interruption::watch()?;
    let places = Places::new(options.on, &options.directory)?;
    let ground = match &places.pool {
        Some(device) => Ground::on_device(device, 1)?,
        None => Ground::start(&options.directory, 1)?,
    };
    let mut contenders = contenders(options, &places, &ground)?;
    let mut measured: Vec<[Measured; WIDTHS.len()]> =
        contenders.iter().map(|_| Default::default()).collect();
    for round in 0..ROUNDS_BEFORE + options.rounds {
        for (at, width) in WIDTHS.into_iter().enumerate() {
            for (contender, into) in contenders.iter_mut().zip(&mut measured) {
                interruption.check()?;
                if contender.writers().len() < width {
                    continue;
                }
                let batch = run_batch(contender.as_mut(), width, options.calls)?;
                if round >= ROUNDS_BEFORE {
                    into[at].add(batch);
                }
            }
        }
    }
    let machine = Machine::detect();
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
    let widths = (0..WIDTHS.len()).map(|at| result(at, &names, &measured, options)).collect();
    let (on, rounds, calls) = (options.on, options.rounds, options.calls);
    Ok(FsyncReport { machine, on, rounds, calls, widths })
}

/// All contenders, Warren first.
fn contenders(
    options: &FsyncOptions,
    places: &Places,
    ground: &Ground,
) -> Result<Vec<Box<dyn Contender>>, BenchError> {
    let most = WIDTHS[WIDTHS.len() - 1];
    let mut contenders: Vec<Box<dyn Contender>> =
        vec![Box::new(WarrenWriters::new(ground.pool(), most)?)];
    if !options.alone {
        let name = match options.on {
            Medium::File => file_system_of(&options.directory).unwrap_or("kernel"),
            Medium::Loop | Medium::Zram => "ext4",
        };
        contenders.push(Box::new(Bare::new(&places.bare)?));
        contenders.push(Box::new(KernelWriters::new(name, &places.directory, most)?));
    }
    Ok(contenders)
}

/// All writers start together, each with a thread of its own.
fn run_batch(
    contender: &mut dyn Contender,
    width: usize,
    calls: u32,
) -> Result<Measured, BenchError> {
    let name = contender.name().to_owned();
    let before = contender.counts()?;
    let start = Barrier::new(width);
    let timed: Vec<Result<Timed, Errno>> = std::thread::scope(|scope| {
        let writers = contender.writers()[..width].iter_mut();
        let threads: Vec<_> = writers
            .map(|writer| scope.spawn(|| time_appends(writer.as_mut(), calls, &start)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Errno::EIO))).collect()
    });
    let timed: Result<Vec<Timed>, Errno> = timed.into_iter().collect();
    let timed = timed.map_err(|errno| BenchError::call(&name, "append", errno))?;
    let (begun, ended) = (timed.iter().map(|t| t.begun).min(), timed.iter().map(|t| t.ended).max());
    let elapsed = match (begun, ended) {
        (Some(begun), Some(ended)) => (ended - begun).as_nanos() as f64,
        _ => 0.0,
    };
    Ok(Measured {
        batches: vec![elapsed / (width as f64 * f64::from(calls))],
        latencies: timed.into_iter().flat_map(|timed| timed.latencies).collect(),
        counts: contender.counts()?.since(before),
    })
}

struct Timed {
    begun: Instant,
    ended: Instant,
    latencies: Vec<f64>,
}

fn time_appends(writer: &mut dyn Writer, calls: u32, start: &Barrier) -> Result<Timed, Errno> {
    start.wait();
    let begun = Instant::now();
    let (mut last, mut latencies) = (begun, Vec::with_capacity(calls as usize));
    for _ in 0..calls {
        writer.append()?;
        let now = Instant::now();
        latencies.push((now - last).as_nanos() as f64);
        last = now;
    }
    Ok(Timed { begun, ended: last, latencies })
}

impl Measured {
    fn add(&mut self, batch: Self) {
        self.batches.extend(batch.batches);
        self.latencies.extend(batch.latencies);
        self.counts.writes += batch.counts.writes;
        self.counts.blocks += batch.counts.blocks;
        self.counts.flushes += batch.counts.flushes;
    }

    fn speed(&self) -> Speed {
        Speed {
            appends_a_second: 1e9 / median(&self.batches),
            latency: Figures::of(&self.latencies),
        }
    }
}

fn result(
    at: usize,
    names: &[&str],
    measured: &[[Measured; WIDTHS.len()]],
    options: &FsyncOptions,
) -> Width {
    let (warren, writers) = (&measured[0][at], WIDTHS[at]);
    let appends = f64::from(options.rounds * options.calls) * writers as f64;
    let per_append = |count: u64| count as f64 / appends;
    let device = PerAppend {
        writes: per_append(warren.counts.writes),
        blocks: per_append(warren.counts.blocks),
        flushes: per_append(warren.counts.flushes),
    };
    let others =
        names.iter().zip(measured).skip(1).filter(|(_, other)| !other[at].batches.is_empty());
    let others = others.map(|(name, other)| Other {
        name: (*name).to_owned(),
        speed: other[at].speed(),
        ratio: median_ratio(&other[at].batches, &warren.batches),
    });
    Width { writers, warren: warren.speed(), device, others: others.collect() }
}
