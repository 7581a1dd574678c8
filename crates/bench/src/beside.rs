//! `warren bench beside`: how much slower the clients of one user become beside clients of another
//! user that send requests without a pause.
//!
//! ```text
//! round:  for each attack, for each victim:  a period alone, a period beside the attackers
//! period: the victim executes one operation in a closed loop, and each is timed
//! ```
//!
//! The victim has a processor for itself, so that it waits for the cell and not for a processor. A
//! victim on a mount shares it with the mount's front.
//! The attackers have those that neither the victim nor the cell has. If there are none, they share
//! the cell's, and the attack without requests shows what the victim loses because of that.
//!
//! ```text
//! operation  the operations, and the clients       mounted  a victim on a mount
//! report     the result as text
//! ```

mod mounted;
mod operation;
mod report;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::contender::fuse::KeptMount;
use crate::contender::namespace;
use crate::costs::{self, Costs};
use crate::error::BenchError;
use crate::ground::{Ground, Interruption};
use crate::machine::{self, Machine, Pinned};
use crate::sample::{median, median_ratio, quantile};
use mounted::Program;
pub use operation::Operation;
use operation::{Client, make_parent};

/// Clients that attack at once.
const ATTACKERS: usize = 2;

/// The user of the attackers, and the ordinary user among the victims.
const ATTACKER_UID: u32 = 61_001;
const VICTIM_UID: u32 = 61_002;

/// Operations of a period: without as many, it has no 99th percentile and goes on, up to
/// [`PERIOD_MAX`].
const SAMPLES_MIN: usize = 100;
const PERIOD_MAX: Duration = Duration::from_secs(1);

/// The time for which operations are executed before they count.
const WARM_UP: Duration = Duration::from_millis(5);

/// The pause after an attack, in which the cell finishes what the attack has left: no request tells
/// when that is done.
const SETTLE: Duration = Duration::from_millis(10);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BesideOptions {
    /// Where the temporary pool is made.
    pub directory: PathBuf,
    pub rounds: u32,
    /// A victim is observed for this time alone, and as long beside the attackers, in each round.
    pub period: Duration,
    pub attacks: Vec<Operation>,
}

impl Default for BesideOptions {
    fn default() -> Self {
        let (directory, period) = (std::env::temp_dir(), Duration::from_millis(100));
        Self { directory, rounds: 5, period, attacks: Operation::ATTACKS.to_vec() }
    }
}

/// The result. Its `Display` is the report as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BesideReport {
    pub machine: Machine,
    pub rounds: u32,
    pub period_ms: u64,
    pub attackers: usize,
    /// Whether the attackers shared the cell's processor, because there were only two.
    pub beside_cell: bool,
    /// By attack, then by victim.
    pub pairs: Vec<Pair>,
    pub costs: Costs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum User {
    Ordinary,
    Root,
    /// A program of root on a mount, without the library: its calls go through the kernel and the
    /// front.
    Mount,
}

impl User {
    pub const ALL: [Self; 3] = [Self::Ordinary, Self::Root, Self::Mount];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "user",
            Self::Root => "root",
            Self::Mount => "mount",
        }
    }

    const fn uid(self) -> u32 {
        match self {
            Self::Ordinary => VICTIM_UID,
            Self::Root | Self::Mount => 0,
        }
    }
}

/// A victim beside an attack: medians over the rounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pair {
    pub attack: Operation,
    pub victim: Operation,
    pub user: User,
    pub alone: Times,
    pub beside: Times,
    /// The medians of the times beside the attackers divided by the times alone just before.
    pub mean_ratio: f64,
    pub p99_ratio: f64,
    /// Operations of all attackers together.
    pub attacks_a_second: f64,
}

/// Times of single operations, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    pub mean_ns: f64,
    pub p99_ns: f64,
}

/// The periods of a pair, one of each kind a round.
#[derive(Clone, Default)]
struct Periods {
    alone: Vec<Times>,
    beside: Vec<Times>,
    attacks_a_second: Vec<f64>,
}

/// All clients. The victims are in the order of [`User::ALL`].
struct Clients {
    attackers: Attackers,
    victims: Vec<Victim>,
}

enum Victim {
    Client(Box<Client>),
    Program(Program),
}

struct Attackers {
    clients: Vec<Client>,
    /// Their processors.
    cpus: Vec<usize>,
}

/// Measures. The calling program must hand the roles of processes to [`warren_runtime::dispatch`],
/// [`warren_fuse::dispatch`] and [`crate::dispatch`].
pub fn run(options: &BesideOptions) -> Result<BesideReport, BenchError> {
    namespace::run_inside(&options.directory, |scratch, interruption| {
        measure(options, scratch, interruption)
    })
}

fn measure(
    options: &BesideOptions,
    scratch: &Path,
    interruption: &Interruption,
) -> Result<BesideReport, BenchError> {
    if !rustix::process::geteuid().is_root() {
        let why = "clients of several users: no permission to admit them; run it as root";
        return Err(BenchError::Unavailable(why.to_owned()));
    }
    let (victim_cpu, cell_cpu) = machine::places()?;
    let mut attacker_cpus = machine::processors()?;
    attacker_cpus.retain(|&cpu| cpu != victim_cpu && cpu != cell_cpu);
    let beside_cell = attacker_cpus.is_empty();
    if beside_cell {
        attacker_cpus.push(cell_cpu);
    }
    let ground = Ground::start_for_all(&options.directory, 1)?;
    for process in ground.cell_processes()? {
        machine::pin(Some(process), cell_cpu)?;
    }
    let mount = {
        let _pinned = Pinned::pin(victim_cpu)?;
        KeptMount::new(ground.pool(), scratch.join("mount"))?
    };
    let mut clients = Clients::new(&ground, mount.at(), attacker_cpus)?;
    let pairs = pairs(&options.attacks);
    let mut periods = vec![Periods::default(); pairs.len()];
    let mut costs = costs::Measured::default();
    for _ in 0..options.rounds {
        costs.measure(interruption)?;
        let _pinned = Pinned::pin(victim_cpu)?;
        for (pair, periods) in pairs.iter().zip(&mut periods) {
            interruption.check()?;
            clients.measure(*pair, options.period, periods)?;
        }
    }
    Ok(BesideReport {
        machine: Machine::detect(),
        rounds: options.rounds,
        period_ms: options.period.as_millis() as u64,
        attackers: ATTACKERS,
        beside_cell,
        pairs: pairs.iter().zip(&periods).map(|(pair, periods)| periods.result(*pair)).collect(),
        costs: costs.costs(),
    })
}

/// All pairs of an attack and a victim, in the order of a round.
fn pairs(attacks: &[Operation]) -> Vec<(Operation, Operation, User)> {
    let mut pairs = Vec::new();
    for &attack in attacks {
        for victim in Operation::OF_VICTIMS {
            pairs.extend(User::ALL.map(|user| (attack, victim, user)));
        }
    }
    pairs
}

impl Clients {
    fn new(ground: &Ground, mount: &Path, cpus: Vec<usize>) -> Result<Self, BenchError> {
        make_parent(ground)?;
        let clients = (0..ATTACKERS).map(|at| Client::new(ground, ATTACKER_UID, at));
        let attackers = Attackers { clients: clients.collect::<Result<_, _>>()?, cpus };
        let victim = |(at, user): (usize, User)| match user {
            User::Mount => Program::new(mount).map(Victim::Program),
            _ => {
                let client = Client::new(ground, user.uid(), ATTACKERS + at)?;
                Ok(Victim::Client(Box::new(client)))
            }
        };
        let victims = User::ALL.into_iter().enumerate().map(victim).collect::<Result<_, _>>()?;
        Ok(Self { attackers, victims })
    }

    fn measure(
        &mut self,
        (attack, victim, user): (Operation, Operation, User),
        period: Duration,
        periods: &mut Periods,
    ) -> Result<(), BenchError> {
        let Self { attackers, victims } = self;
        let client = &mut victims[user as usize];
        periods.alone.push(observe(client, victim, period)?);
        let (times, attacks_a_second) =
            attackers.run(attack, || observe(client, victim, period))?;
        periods.beside.push(times);
        periods.attacks_a_second.push(attacks_a_second);
        thread::sleep(SETTLE);
        Ok(())
    }
}

impl Victim {
    fn perform(&mut self, operation: Operation) -> Result<(), BenchError> {
        match self {
            Self::Client(client) => client.perform(operation),
            Self::Program(program) => program.perform(operation),
        }
    }
}

/// One period of a victim.
fn observe(
    client: &mut Victim,
    operation: Operation,
    period: Duration,
) -> Result<Times, BenchError> {
    let begun = Instant::now();
    while begun.elapsed() < WARM_UP {
        client.perform(operation)?;
    }
    let (begun, mut samples) = (Instant::now(), Vec::new());
    let mut last = begun;
    loop {
        client.perform(operation)?;
        let now = Instant::now();
        samples.push((now - last).as_nanos() as f64);
        last = now;
        let elapsed = now - begun;
        if elapsed >= period && (samples.len() >= SAMPLES_MIN || elapsed >= PERIOD_MAX) {
            return Ok(Times::of(&samples));
        }
    }
}

impl Attackers {
    /// Does something while the attackers are active. Also returns their operations a second.
    fn run<T>(
        &mut self,
        attack: Operation,
        work: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, f64), BenchError> {
        let (enough, attacks) = (AtomicBool::new(false), AtomicU64::new(0));
        let begun = AtomicUsize::new(0);
        let Self { clients, cpus } = self;
        thread::scope(|scope| {
            let (enough, attacks, begun, cpus) = (&enough, &attacks, &begun, &*cpus);
            let start = |client| {
                scope.spawn(move || {
                    machine::pin_among(None, cpus)?;
                    repeat(client, attack, begun, (enough, attacks))
                })
            };
            let threads: Vec<_> = clients.iter_mut().map(start).collect();
            // An attacker that failed has ended.
            while begun.load(Ordering::Relaxed) < threads.len()
                && !threads.iter().any(thread::ScopedJoinHandle::is_finished)
            {
                thread::yield_now();
            }
            let (before, since) = (attacks.load(Ordering::Relaxed), Instant::now());
            let done = work();
            let count = attacks.load(Ordering::Relaxed) - before;
            let seconds = since.elapsed().as_secs_f64();
            enough.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().expect("an attacker does not panic")?;
            }
            Ok((done?, count as f64 / seconds))
        })
    }
}

/// The loop of an attacker. `begun` counts those that have executed an operation.
fn repeat(
    client: &mut Client,
    attack: Operation,
    begun: &AtomicUsize,
    (enough, attacks): (&AtomicBool, &AtomicU64),
) -> Result<(), BenchError> {
    client.perform(attack)?;
    begun.fetch_add(1, Ordering::Relaxed);
    while !enough.load(Ordering::Relaxed) {
        client.perform(attack)?;
        attacks.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

impl Times {
    fn of(samples: &[f64]) -> Self {
        let mean_ns = samples.iter().sum::<f64>() / samples.len() as f64;
        Self { mean_ns, p99_ns: quantile(samples, 0.99) }
    }

    fn median(periods: &[Self]) -> Self {
        Self { mean_ns: median(&means(periods)), p99_ns: median(&p99s(periods)) }
    }
}

fn means(periods: &[Times]) -> Vec<f64> {
    periods.iter().map(|times| times.mean_ns).collect()
}

fn p99s(periods: &[Times]) -> Vec<f64> {
    periods.iter().map(|times| times.p99_ns).collect()
}

impl Periods {
    fn result(&self, (attack, victim, user): (Operation, Operation, User)) -> Pair {
        Pair {
            attack,
            victim,
            user,
            alone: Times::median(&self.alone),
            beside: Times::median(&self.beside),
            mean_ratio: median_ratio(&means(&self.beside), &means(&self.alone)),
            p99_ratio: median_ratio(&p99s(&self.beside), &p99s(&self.alone)),
            attacks_a_second: median(&self.attacks_a_second),
        }
    }
}
