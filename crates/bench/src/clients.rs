//! `warren bench clients`: what many small clients cost a fleet that most of them do not use.
//!
//! Idle clients are admissions with leases, all in this process: of each it keeps only the socket,
//! as long as which an admission lasts. Their memory stays what a client made of it.
//!
//! ```text
//! begin:  all idle clients: memory, descriptors, the fleet's time on processors
//! round:  for each number of idle clients: null requests of the one client that is busy
//!         admissions and ends, without idle clients and beside all of them
//! ```
//!
//! ```text
//! calls    requests of a client
//! crowd    the idle clients             footprint   what the fleet's processes take
//! report   the result as text
//! ```

mod calls;
mod crowd;
mod footprint;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use warren_runtime::{ConnectOptions, Slot, connect, raise_descriptor_limit};

use crate::error::BenchError;
use crate::ground::{Ground, Interruption};
use crate::machine::{self, Machine, Pinned};
use crate::sample::{Figures, median, median_ratio, time_batch};
use calls::{null, slot_of};
use crowd::Crowd;
pub use footprint::Cost;
use footprint::{Footprint, Processes};

/// Batches of null requests in a round, for each number of idle clients.
const BATCHES: u32 = 15;

/// Null requests before a batch counts, so that the cell is awake.
const WARM_UP: u32 = 200;

/// Admissions that are measured in a round, without idle clients and beside them.
const ADMISSIONS: u32 = 20;

/// The pause after the number of idle clients has changed: what their end leaves to do is over.
const SETTLE: Duration = Duration::from_millis(50);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientsOptions {
    /// Where the temporary pool is made.
    pub directory: PathBuf,
    pub cells: u16,
    /// Idle clients.
    pub idle: u32,
    pub rounds: u32,
    /// Calls of a batch.
    pub calls: u32,
    /// The time for which the idle fleet is watched.
    pub watch: Duration,
}

impl Default for ClientsOptions {
    fn default() -> Self {
        let directory = std::env::temp_dir();
        let watch = Duration::from_secs(5);
        Self { directory, cells: 1, idle: 1000, rounds: 7, calls: 200, watch }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClientsReport {
    pub machine: Machine,
    pub cells: u16,
    pub idle: u32,
    pub rounds: u32,
    pub calls: u32,
    pub slots: u16,
    /// Leases that each idle client holds.
    pub leases: u32,
    /// By number of idle clients; the first without any.
    pub null: Vec<NullBeside>,
    /// Without idle clients, and beside all of them.
    pub admission: Vec<AdmissionBeside>,
    pub footprint: Cost,
}

/// Null requests beside so many idle clients.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct NullBeside {
    pub idle: u32,
    #[serde(flatten)]
    pub figures: Figures,
    /// The median over rounds of its time divided by the time without idle clients.
    pub ratio: f64,
}

/// Medians beside so many idle clients.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct AdmissionBeside {
    pub idle: u32,
    /// From the connection until the admission can be used.
    pub welcome_us: f64,
    /// From then until the first answer.
    pub first_answer_us: f64,
    /// From the client's end until the fleet has forgotten it, as its status shows; the status is
    /// asked for all the time.
    pub end_us: f64,
    /// Time on processors that an admission, a request and the end take of the fleet's processes.
    pub fleet_cpu_us: f64,
}

/// Times of one number of idle clients: a median of each round.
#[derive(Default)]
struct Times {
    idle: u32,
    null: Vec<f64>,
    welcome: Vec<f64>,
    first_answer: Vec<f64>,
    end: Vec<f64>,
    fleet_cpu: Vec<f64>,
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Measures. The calling program must hand the roles of a fleet's processes to
/// [`warren_runtime::dispatch`].
pub fn run(options: &ClientsOptions) -> Result<ClientsReport, BenchError> {
    let interruption = Interruption::watch()?;
    let (client_cpu, cell_cpu) = machine::places()?;
    raise_descriptor_limit();
    let ground = Ground::start(&options.directory, options.cells)?;
    for process in ground.cell_processes()? {
        machine::pin(Some(process), cell_cpu)?;
    }
    let mut crowd = Crowd::new(ground.pool(), options.cells)?;
    let processes = Processes::of(ground.pool())?;
    let connection = connect(ground.pool(), &ConnectOptions::SMALL)?;
    let mut slot = slot_of(&connection)?;
    // First, while the processes have no memory of earlier clients to use again.
    let footprint = measure_footprint(&mut crowd, &processes, options)?;
    let mut times: Vec<Times> = levels(options.idle);
    let pinned = Pinned::pin(client_cpu)?;
    for round in 0..options.rounds {
        // To and fro, because a change of the number takes long.
        let order: Vec<usize> = match round % 2 {
            0 => (0..times.len()).collect(),
            _ => (0..times.len()).rev().collect(),
        };
        for at in order {
            interruption.check()?;
            crowd.become_many(times[at].idle)?;
            std::thread::sleep(SETTLE);
            measure(&mut slot, options, &mut times[at])?;
            if times[at].idle == 0 || times[at].idle == options.idle {
                measure_admissions(&crowd, &processes, &mut times[at])?;
            }
        }
    }
    drop(pinned);
    interruption.check()?;
    let (cells, idle, rounds, calls) = (options.cells, options.idle, options.rounds, options.calls);
    let (slots, leases) = (ConnectOptions::SMALL.slots, crowd.leases());
    let (null, admission) = results(&times);
    let machine = Machine::detect();
    Ok(ClientsReport {
        machine,
        cells,
        idle,
        rounds,
        calls,
        slots,
        leases,
        null,
        admission,
        footprint,
    })
}

/// The numbers of idle clients: none, tens, and all.
fn levels(idle: u32) -> Vec<Times> {
    let mut levels: Vec<u32> = [0, 10, 100].into_iter().filter(|&level| level < idle).collect();
    levels.push(idle);
    levels.into_iter().map(|idle| Times { idle, ..Times::default() }).collect()
}

fn measure(slot: &mut Slot, options: &ClientsOptions, times: &mut Times) -> Result<(), BenchError> {
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        time_batch(WARM_UP, |_| null(slot))?;
        batches.push(time_batch(options.calls, |_| null(slot))?);
    }
    times.null.push(median(&batches));
    Ok(())
}

fn measure_admissions(
    crowd: &Crowd,
    processes: &Processes,
    times: &mut Times,
) -> Result<(), BenchError> {
    let (mut welcome, mut first_answer, mut end) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ADMISSIONS {
        let begun = Instant::now();
        let connection = connect(crowd.pool(), &ConnectOptions::SMALL)?;
        welcome.push(micros(begun));
        let begun = Instant::now();
        let mut slot = slot_of(&connection)?;
        null(&mut slot)?;
        first_answer.push(micros(begun));
        let begun = Instant::now();
        drop((slot, connection));
        crowd.await_ends()?;
        end.push(micros(begun));
    }
    times.welcome.push(median(&welcome));
    times.first_answer.push(median(&first_answer));
    times.end.push(median(&end));
    let before = Footprint::of(processes)?;
    for _ in 0..ADMISSIONS {
        let connection = connect(crowd.pool(), &ConnectOptions::SMALL)?;
        null(&mut slot_of(&connection)?)?;
    }
    std::thread::sleep(SETTLE);
    let used = Footprint::of(processes)?.cpu_ns() - before.cpu_ns();
    times.fleet_cpu.push(used as f64 / 1000.0 / f64::from(ADMISSIONS));
    crowd.await_ends()?;
    Ok(())
}

fn results(times: &[Times]) -> (Vec<NullBeside>, Vec<AdmissionBeside>) {
    let alone = &times[0].null;
    let null = times.iter().map(|times| {
        let (figures, ratio) = (Figures::of(&times.null), median_ratio(&times.null, alone));
        NullBeside { idle: times.idle, figures, ratio }
    });
    let measured = times.iter().filter(|times| !times.end.is_empty());
    let admission = measured.map(|times| AdmissionBeside {
        idle: times.idle,
        welcome_us: median(&times.welcome),
        first_answer_us: median(&times.first_answer),
        end_us: median(&times.end),
        fleet_cpu_us: median(&times.fleet_cpu),
    });
    (null.collect(), admission.collect())
}

/// Measures the resources that all idle clients take, beyond those of the fleet without them.
fn measure_footprint(
    crowd: &mut Crowd,
    processes: &Processes,
    options: &ClientsOptions,
) -> Result<Cost, BenchError> {
    crowd.become_many(0)?;
    std::thread::sleep(SETTLE);
    let before = Footprint::of(processes)?;
    crowd.become_many(options.idle)?;
    std::thread::sleep(SETTLE);
    let after = Footprint::of(processes)?;
    let segments = crowd.segment_bytes()?;
    // What admissions have left to do, checkpoints among it, is over.
    std::thread::sleep(Duration::from_secs(1));
    let (asleep, begun) = (Footprint::of(processes)?, Instant::now());
    std::thread::sleep(options.watch);
    let (watched, seconds) = (Footprint::of(processes)?, begun.elapsed().as_secs_f64());
    Ok(Cost::new((&before, &after), (&asleep, &watched, seconds), segments, options.idle))
}
