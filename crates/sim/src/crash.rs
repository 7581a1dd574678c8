//! The crash campaign: a fleet serves clients, its power is cut at any moment, and what a recovery makes
//! of the pool must be what was promised: whatever was synced, and nothing that never was.
//!
//! ```text
//! mkfs -> [ fleet -> clients work under faults -> power cut
//!           -> recovery, which a power cut may end too -> fsck
//!           -> fleet of another size -> everything is read back and compared ] -> next life
//! ```
//!
//! One seed, one queue of events, virtual time: a seed always runs alike. While clients work, cells are
//! killed alone too (`kill.rs`): their successors take over their frames, and the power cut comes later.

mod audit;
mod client;
mod disk;
mod fleet;
mod kill;
mod mix;
mod model;

use std::time::Duration;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Instant, Rng, Timestamp};
use warren_cell::Plant;
use warren_disk::format::{FormatOptions, image};
use warren_disk::fsck;
use warren_supervisor::{Event as Heard, Failure as Ended};

use crate::run::{Failure, Summary, many, twice};
use crate::world::Broken;
use crate::world::lanes::Lanes;
use crate::world::queue::EventQueue;
use crate::world::trace::Trace;
use client::Client;
use disk::Disk;
use fleet::{Fleet, Happening};
use mix::Mix;

/// When virtual time begins, by the wall clock.
const EPOCH: Timestamp = Timestamp(1_700_000_000_000_000_000);
/// Bytes of the pool: a mix with many clients fills it at times.
const POOL_BYTES: u64 = 96 << 20;
/// Events without which a phase must be over: far more than the slowest needs.
const EVENTS_MAX: u64 = 1_000_000;
/// Virtual time in which some operation must end, if nothing is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// Findings of fsck that a failure shows.
const FINDINGS_SHOWN: usize = 20;
/// Power cuts of one recovery.
const CUTS_OF_RECOVERY_MAX: u64 = 3;

/// What to break, to show that it is found.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// No write and no flush fails.
    pub sound_device: bool,
    pub plant: Option<Plant>,
}

/// Runs one seed. The same seed always does the same.
pub fn run(seed: u64, options: Options) -> Result<Summary, Failure> {
    twice(seed, &|verbose| World::run(seed, options, verbose))
}

/// Runs seeds `first..first + count` on `threads` threads until one fails. `progress` is told how many
/// are done.
pub fn run_many(
    first: u64,
    count: u64,
    options: Options,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Summary, Failure> {
    many(first, count, threads, progress, &|seed| run(seed, options))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nobody is admitted yet, or ever (a recovery).
    Starting,
    Serving,
    Ended(Result<(), Ended>),
}

/// Why the world stands still.
#[derive(Debug)]
enum Halt {
    /// As many events have happened as were to.
    Cut,
    Broken(String),
}

impl Halt {
    fn within(self, what: &str) -> Self {
        match self {
            Self::Broken(rule) => Self::Broken(format!("{what}: {rule}")),
            Self::Cut => self,
        }
    }
}

struct World {
    mix: Mix,
    plant: Option<Plant>,
    rng: Rng,
    now: Instant,
    queue: EventQueue<Happening>,
    trace: Trace,
    disk: Disk,
    lanes: Lanes,
    fleet: Fleet,
    /// Those that work, and one that looks.
    clients: Vec<Client>,
    /// Fleets so far.
    epoch: u32,
    stage: Stage,
    /// Clients work, and devices may fail.
    is_working: bool,
    is_stopping: bool,
    /// The event at which the power is cut.
    cut_at: u64,
    /// Faults of the device in this life.
    faults: u64,
    answered_at: Instant,
    answered_from: CellId,
    operations: u64,
    failure: Option<String>,
}

impl World {
    fn run(seed: u64, options: Options, verbose: bool) -> Result<Summary, Broken> {
        let mut world = Self::new(seed, options, verbose);
        if let Err(halt) = world.live() {
            let rule = match halt {
                Halt::Broken(rule) => rule,
                Halt::Cut => "the power was cut out of turn".into(),
            };
            let lines = world.trace.lines_until(Instant(u64::MAX));
            return Err(Broken { rule, lines });
        }
        Ok(Summary {
            runs: 1,
            hash: world.trace.hash(),
            events: world.trace.events,
            operations: world.operations,
            looked_at: 0,
            coverage: std::mem::take(&mut world.trace.coverage),
        })
    }

    fn new(seed: u64, options: Options, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut mix = Mix::draw(&mut rng);
        if options.sound_device {
            (mix.write_fails, mix.flush_fails) = (0, 0);
        }
        let format = FormatOptions {
            size_bytes: POOL_BYTES,
            shards: mix.shards,
            log_bytes: (2 + u64::from(mix.cells_max) * mix.log_blocks) * BLOCK_SIZE as u64,
            uuid: [7; 16],
            secret: rng.next_u64(),
            now: EPOCH,
            uid: 0,
            gid: 0,
            label: String::new(),
        };
        let image = image(&format).expect("the options are sensible");
        let mut trace = Trace::new(verbose);
        trace.note(Instant(0), &mix);
        Self {
            clients: (0..=mix.clients).map(|_| Client::default()).collect(),
            mix,
            plant: options.plant,
            rng,
            now: Instant(1),
            queue: EventQueue::new(),
            trace,
            disk: Disk::new(image),
            lanes: Lanes::default(),
            fleet: Fleet::default(),
            epoch: 0,
            stage: Stage::Starting,
            is_working: false,
            is_stopping: false,
            cut_at: u64::MAX,
            faults: 0,
            answered_at: Instant(1),
            answered_from: CellId(0),
            operations: 0,
            failure: None,
        }
    }

    /// The client that only looks.
    fn auditor(&self) -> usize {
        self.clients.len() - 1
    }

    fn live(&mut self) -> Result<(), Halt> {
        for life in 0..self.mix.lives {
            self.open(life > 0)?;
            if life == 0 {
                self.set_up()?;
            } else {
                self.audit()?;
            }
            self.work()?;
            self.power_cut();
            self.recover()?;
        }
        self.open(true)?;
        self.audit()?;
        self.stop()?;
        self.fsck("at the end")
    }

    /// Starts a fleet that serves; its power may be cut before it does.
    fn open(&mut self, may_be_cut: bool) -> Result<(), Halt> {
        loop {
            let cells = 1 + self.rng.below(u64::from(self.mix.cells_max)) as u16;
            self.start_fleet(Some(cells));
            if may_be_cut && self.rng.chance(1, 8) {
                self.cut_at = self.trace.events + self.rng.below(60);
            }
            match self.pump(|world| world.stage == Stage::Serving) {
                Err(Halt::Cut) => {
                    self.count("power cut while opening");
                    self.power_cut();
                    self.recover()?;
                }
                opened => {
                    self.cut_at = u64::MAX;
                    return opened;
                }
            }
        }
    }

    /// Clients work until the power goes out, or the fleet was stopped in peace.
    fn work(&mut self) -> Result<(), Halt> {
        (self.is_working, self.faults) = (true, 0);
        self.plan_nudge();
        (0..self.auditor()).for_each(|client| self.plan_step(client));
        self.cut_at = self.trace.events + self.rng.below(self.mix.events);
        let is_over = |world: &Self| matches!(world.stage, Stage::Ended(_));
        match self.pump(is_over) {
            Err(Halt::Cut) if self.rng.chance(1, 6) => {}
            Err(Halt::Cut) => return Ok(()),
            // Only a device that fails ends a fleet.
            ended => return ended,
        }
        self.is_stopping = true;
        self.count("a stop");
        self.tell_supervisor(Heard::Stop);
        let some = self.trace.events + self.rng.below(200);
        self.cut_at = if self.rng.chance(1, 2) { some } else { u64::MAX };
        match self.pump(is_over) {
            Err(Halt::Cut) => {
                self.count("power cut while stopping");
                Ok(())
            }
            Ok(()) if self.stage == Stage::Ended(Ok(())) => {
                self.clients.iter_mut().for_each(Client::promise);
                self.count("stopped in peace");
                Ok(())
            }
            ended => ended,
        }
    }

    fn stop(&mut self) -> Result<(), Halt> {
        self.is_stopping = true;
        self.tell_supervisor(Heard::Stop);
        self.pump(|world| matches!(world.stage, Stage::Ended(_)))
    }

    /// The power is cut: what is left is what the disk holds.
    fn power_cut(&mut self) {
        self.suppose_under_way();
        let under_way = self.fleet_vanishes();
        let cut = self.disk.cut(under_way, &mut self.rng);
        self.trace.note(self.now, &("power cut", cut.lost, cut.torn));
        self.queue.clear();
        self.lanes = Lanes::default();
        self.clients.iter_mut().for_each(Client::reset);
        self.cut_at = u64::MAX;
        (self.is_working, self.is_stopping, self.faults) = (false, false, 0);
        self.stage = Stage::Starting;
        self.count("power cut");
        self.count_many("write lost", cut.lost);
        self.count_many("torn block", cut.torn);
    }

    /// Replays the logs, however often the power is cut meanwhile.
    fn recover(&mut self) -> Result<(), Halt> {
        let mut cuts =
            if self.rng.chance(1, 3) { self.rng.below(CUTS_OF_RECOVERY_MAX + 1) } else { 0 };
        while self.needs_recovery() {
            self.start_fleet(None);
            if cuts > 0 {
                cuts -= 1;
                self.cut_at = self.trace.events + self.rng.below(150);
            }
            match self.pump(|world| matches!(world.stage, Stage::Ended(_))) {
                Err(Halt::Cut) => {
                    self.count("power cut while recovering");
                    self.power_cut();
                }
                Err(halt) => return Err(halt.within("recovery")),
                Ok(()) if self.stage != Stage::Ended(Ok(())) => {
                    return Err(Halt::Broken(format!("recovery: {:?}", self.stage)));
                }
                Ok(()) => {
                    self.count("recovered");
                    self.power_cut();
                }
            }
        }
        self.fsck("after recovery")
    }

    /// Lets things happen until something has.
    fn pump(&mut self, until: impl Fn(&Self) -> bool) -> Result<(), Halt> {
        let begun = self.trace.events;
        self.answered_at = self.now;
        while !until(self) {
            if self.trace.events >= self.cut_at {
                return Err(Halt::Cut);
            }
            let Some((at, happening)) = self.queue.next() else {
                // After a failed flush the supervisor records nothing more, and who needs that waits.
                if self.faults > 0 && self.is_working {
                    self.count("stuck on a broken device");
                    return Err(Halt::Cut);
                }
                return Err(Halt::Broken(format!(
                    "nothing happens any more; {}",
                    self.under_way()
                )));
            };
            self.now = at;
            self.trace.event(at, summary(&happening), &happening);
            self.happen(happening);
            if let Some(failure) = self.failure.take() {
                return Err(Halt::Broken(failure));
            }
            if let (Stage::Ended(Err(failure)), 0) = (self.stage, self.faults) {
                return Err(Halt::Broken(format!("the fleet ended: {failure}")));
            }
            let is_late = self.now - self.answered_at > PATIENCE && self.faults == 0;
            if is_late || self.trace.events - begun > EVENTS_MAX {
                return Err(Halt::Broken(format!("nothing comes to an end; {}", self.under_way())));
            }
        }
        Ok(())
    }

    fn under_way(&self) -> String {
        let requests = self.clients.iter().filter_map(|client| client.under_way.as_ref());
        let lines = requests.map(|(request, _)| format!("\n    {request:?}"));
        format!("{:?}, under way:{}", self.stage, lines.collect::<String>())
    }

    fn fsck(&mut self, when: &str) -> Result<(), Halt> {
        let disk = &self.disk;
        let mut read = |block: BlockNo, into: &mut [u8]| {
            disk.read(block, into);
            Ok(())
        };
        let options = fsck::Options { contents: true, ..fsck::Options::default() };
        let blocks = POOL_BYTES / BLOCK_SIZE as u64;
        let report = fsck::check(options, blocks, &mut read, &mut |_| {});
        let damage = |finding: &&fsck::Finding| finding.severity() == fsck::Severity::Damage;
        let findings = report.findings.iter().filter(damage).take(FINDINGS_SHOWN);
        let findings: String = findings.map(|finding| format!("\n    {finding}")).collect();
        match findings.is_empty() {
            true => Ok(()),
            false => Err(Halt::Broken(format!("fsck {when}:{findings}"))),
        }
    }

    fn wall(&self) -> Timestamp {
        Timestamp(EPOCH.0 + self.now.0 as i64)
    }

    fn plan(&mut self, nanos: u64, happening: Happening) {
        self.queue.plan(Instant(self.now.0 + nanos), happening);
    }

    fn message_delay(&mut self) -> u64 {
        1 + self.rng.below(self.mix.message_delay)
    }

    fn io_delay(&mut self) -> u64 {
        1 + self.rng.below(self.mix.io_delay)
    }

    fn count(&mut self, what: &'static str) {
        self.trace.count(what);
    }

    fn count_many(&mut self, what: &'static str, times: u64) {
        (0..times).for_each(|_| self.trace.count(what));
    }

    fn fail(&mut self, rule: String) {
        self.failure.get_or_insert(rule);
    }
}

/// What goes into the trace's hash.
fn summary(happening: &Happening) -> [u64; 4] {
    let cell = |id: CellId| u64::from(id.0);
    match happening {
        Happening::Request { cell: to, from, header, .. } => {
            [1, cell(*to), u64::from(from.client.0), u64::from(header.seq)]
        }
        Happening::Reply { from, to, seq, answer } => {
            let errno = answer.as_ref().err().map_or(0, |errno| errno.raw() as u64);
            [2 + (errno << 8), cell(*from), u64::from(to.client.0), u64::from(*seq)]
        }
        Happening::Step { client } => [3, *client as u64, 0, 0],
        Happening::Peer { from, to, .. } => [4, cell(*from), cell(*to), 0],
        Happening::Order { to, .. } => [5, cell(*to), 0, 0],
        Happening::Report { from, .. } => [6, cell(*from), 0, 0],
        Happening::Exited { cell: of, .. } => [12, cell(*of), 0, 0],
        Happening::Start { cell: of } => [13, cell(*of), 0, 0],
        Happening::CellIo { cell: of, io, .. } => [7, cell(*of), io.0, 0],
        Happening::SupervisorIo { io } => [8, io.0, 0, 0],
        Happening::Tick { cell: of, .. } => [9, cell(*of), 0, 0],
        Happening::SupervisorTick { .. } => [10, 0, 0, 0],
        Happening::Nudge => [11, 0, 0, 0],
    }
}
