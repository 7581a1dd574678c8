//! The crash campaign: a fleet serves clients, its power is cut at any moment, and the pool after a
//! recovery must have all that was synced, and nothing that never existed.
//!
//! ```text
//! mkfs -> [ fleet -> clients work under faults -> power cut
//! -> recovery, which a power cut may end too -> fsck
//! -> fleet of another size -> everything is read back and compared ] -> next life
//! ```
//!
//! One seed, one queue of events, virtual time: a seed always has the same run. While clients work,
//! single cells are also killed, and their successors take over their frames. The supervisor may be
//! killed from the start of a fleet to its end, and another one takes over. The power may be cut at
//! any point of that.

mod audit;
mod calls;
mod client;
mod damage;
mod growth;
mod mix;
mod model;
mod rot;
mod surroundings;
mod wild;

use std::time::Duration;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Instant, Rng};
use warren_cell::{Backing, Plant};
use warren_proto::control::Report;
use warren_supervisor::{Event as SupervisorEvent, Failure as Ended};

use crate::damage::strike;
use crate::fleet::disk::Disk;
use crate::fleet::{
    DeviceFaults, Fleet, Happening, Lost, happen_next, needs_recovery, notify_supervisor,
};
use crate::outage::{self, Outage};
use crate::run::{Broken, Failure, Summary, many, twice};
use crate::simulation::Faults;
use crate::simulation::trace::Trace;
use crate::simulation::wall::WallClock;
use client::Client;
use damage::{Due, damage_at_cut, is_explained};
use growth::Growths;
use mix::Mix;

/// Bytes of the pool: a mix with many clients fills it at times.
const POOL_BYTES: u64 = 96 << 20;
/// Chunks that the host of a sparse pool has room for before clients work.
const HOST_ROOM: u64 = 1000;
/// Events after which a phase counts as stuck: far more than the slowest needs.
const EVENTS_MAX: u64 = 1_000_000;
/// Virtual time in which every operation must end, whatever has failed.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
/// Tree nodes that cells keep where one is damaged: it is soon read again.
const NODES_FEW: usize = 2;
/// Power cuts of one recovery.
const CUTS_OF_RECOVERY_MAX: u64 = 3;

/// Faults to plant, to show that the campaign finds them.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// No read, no write and no flush fails.
    pub sound_device: bool,
    pub plant: Option<Plant>,
    /// One shard is damaged at a random moment.
    pub damage: bool,
    /// In each life one cell is taken out for a while.
    pub outage: bool,
}

/// Runs one seed. The same seed always does the same.
pub fn run(seed: u64, options: Options) -> Result<Summary, Failure> {
    twice(seed, &|verbose| World::run(seed, options, verbose))
}

/// Runs seeds `first..first + count` on `threads` threads until one fails. `progress` is called
/// with the number of finished ones.
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
    /// No client is admitted yet, or ever (in a recovery).
    Starting,
    Serving,
    Ended(Result<(), Ended>),
}

/// Why the world stands still.
#[derive(Debug)]
enum Halt {
    /// The planned number of events has happened.
    Cut,
    /// The requested object lies in the shard that is damaged.
    Unreadable,
    Broken(String),
}

impl Halt {
    fn within(self, what: &str) -> Self {
        match self {
            Self::Broken(rule) => Self::Broken(format!("{what}: {rule}")),
            Self::Cut | Self::Unreadable => self,
        }
    }
}

/// The world's own events, besides those of the fleet.
#[derive(Debug)]
enum Own {
    /// A client applies for admission.
    Connect { client: usize },
    /// A client makes its next call.
    Step { client: usize },
    /// A checkpoint is requested.
    Nudge,
    /// The pool is to grow.
    Grow,
}

struct World {
    mix: Mix,
    fleet: Fleet<Own>,
    /// The clients that work, and the auditor.
    clients: Vec<Client>,
    stage: Stage,
    /// Clients work, and anything may fail.
    is_working: bool,
    is_stopping: bool,
    /// The event at which the power is cut.
    cut_at: u64,
    answered_at: Instant,
    answered_from: CellId,
    operations: u64,
    damage: Option<Due>,
    outage: Outage,
    /// From which the outages are drawn, one for each life.
    outages: Option<Rng>,
    growths: Growths,
    /// The failure with which a recovery must end, because a log is damaged.
    rotten: Option<Ended>,
}

impl World {
    fn run(seed: u64, options: Options, verbose: bool) -> Result<Summary, Broken> {
        let mut world = Self::new(seed, options, verbose);
        if let Err(halt) = world.live() {
            let rule = match halt {
                Halt::Broken(rule) => rule,
                Halt::Cut => "the power was cut out of turn".into(),
                Halt::Unreadable => "a sound object cannot be read".into(),
            };
            let lines = world.fleet.sim.trace.lines_until(Instant(u64::MAX));
            return Err(Broken { rule, lines });
        }
        Ok(Summary::of_run(world.fleet.sim.trace, world.operations, 0))
    }

    fn new(seed: u64, options: Options, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut mix = Mix::draw(&mut rng);
        if options.sound_device {
            mix.mend_device();
        }
        let log_bytes = (2 + u64::from(mix.cells_max) * mix.log_blocks) * BLOCK_SIZE as u64;
        let disk = Disk::format(POOL_BYTES, mix.shards, log_bytes, rng.next_u64());
        let mut trace = Trace::new(verbose);
        trace.note(Instant(0), &mix);
        let mut fleet = Fleet::new(rng, disk, trace);
        fleet.sim.plant = options.plant;
        fleet.lost = Lost::draw(seed);
        fleet.sim.wall_clock = WallClock::draw(seed);
        fleet.sizes.frames = mix.frames;
        fleet.sizes.nodes_max = mix.nodes_max;
        fleet.sizes.space = mix.space;
        if mix.space.backing == Backing::OnDemand {
            fleet.make_sparse(HOST_ROOM).expect("a new pool");
        }
        fleet.sim.pace = mix.pace;
        let damage = options.damage.then(|| Due::draw(seed, mix.lives));
        if damage.as_ref().is_some_and(|due| due.plan.evicts) {
            fleet.sizes.nodes_max = NODES_FEW;
        }
        Self {
            clients: (0..=mix.clients).map(|_| Client::default()).collect(),
            mix,
            fleet,
            stage: Stage::Starting,
            is_working: false,
            is_stopping: false,
            cut_at: u64::MAX,
            answered_at: Instant(1),
            answered_from: CellId(0),
            operations: 0,
            damage,
            outage: Outage::default(),
            outages: options.outage.then(|| Rng::new(seed)),
            growths: Growths::draw(seed, POOL_BYTES / BLOCK_SIZE as u64),
            rotten: None,
        }
    }

    /// The client that only reads.
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
            if let Some(due) = &mut self.damage {
                due.begin_life(self.fleet.sim.trace.events, self.mix.events);
            }
            self.work()?;
            self.power_cut();
            if let Some(due) = self.damage.take_if(|due| due.is_at_cut()) {
                damage_at_cut(&mut self.fleet, due);
            }
            if self.fleet.sim.rng.chance(1, 4) {
                self.rot()?;
            }
            self.recover()?;
        }
        self.open(true)?;
        self.audit()?;
        self.stop()?;
        self.fsck("at the end")
    }

    /// Starts a fleet that serves. Its power may be cut before.
    fn open(&mut self, may_be_cut: bool) -> Result<(), Halt> {
        loop {
            let cells = 1 + self.fleet.sim.rng.below(u64::from(self.mix.cells_max)) as u16;
            self.start(Some(cells))?;
            self.fleet.sim.faults.deaths = self.mix.faults.deaths;
            if may_be_cut && self.fleet.sim.rng.chance(1, 8) {
                self.cut_at = self.fleet.sim.trace.events + self.fleet.sim.rng.below(60);
            }
            match self.pump(|world| world.stage == Stage::Serving) {
                Err(Halt::Cut) => {
                    self.fleet.sim.count("power cut while opening");
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

    /// Clients work until the power is cut, or the fleet was stopped in order.
    fn work(&mut self) -> Result<(), Halt> {
        self.is_working = true;
        self.fleet.sim.faults = self.mix.faults;
        let is_harmed = self.damage.is_some() || self.fleet.incidents.has_damage();
        if is_harmed || self.outages.is_some() {
            self.fleet.sim.faults.wild = 0;
        }
        if let Some(host) = &mut self.fleet.device.disk.host {
            let (room, takes_back) = self.mix.host;
            host.share(room, takes_back);
        }
        self.plan_nudge();
        if let Some(delay) = self.growths.delay() {
            self.plan(delay, Own::Grow);
        }
        (0..self.auditor()).for_each(|client| self.plan_step(client));
        self.cut_at = self.fleet.sim.trace.events + self.fleet.sim.rng.below(self.mix.events);
        if let Some(rng) = &mut self.outages {
            self.outage = Outage::draw(rng.next_u64(), self.cut_at - self.fleet.sim.trace.events);
        }
        let is_over = |world: &Self| matches!(world.stage, Stage::Ended(_));
        match self.pump(is_over) {
            Err(Halt::Cut) if self.fleet.sim.rng.chance(1, 6) => {}
            Err(Halt::Cut) if self.fleet.sim.rng.chance(1, 6) => return self.answer_all(),
            Err(Halt::Cut) => return Ok(()),
            // Only a failing device ends a fleet.
            ended => return ended,
        }
        self.is_stopping = true;
        self.fleet.sim.count("a stop");
        notify_supervisor(self, SupervisorEvent::Stop);
        let some = self.fleet.sim.trace.events + self.fleet.sim.rng.below(200);
        self.cut_at = if self.fleet.sim.rng.chance(1, 2) { some } else { u64::MAX };
        match self.pump(is_over) {
            Err(Halt::Cut) => {
                self.fleet.sim.count("power cut while stopping");
                Ok(())
            }
            Ok(()) if self.stage == Stage::Ended(Ok(())) => {
                self.doubt();
                self.clients.iter_mut().for_each(Client::promise);
                self.fleet.sim.count("stopped in order");
                Ok(())
            }
            ended => ended,
        }
    }

    /// Stops new requests, and waits until all are answered, whatever has failed.
    fn answer_all(&mut self) -> Result<(), Halt> {
        (self.is_working, self.cut_at) = (false, u64::MAX);
        self.fleet.sim.count("all clients answered");
        self.pump(|world| {
            let is_idle = world.clients.iter().all(|client| client.under_way.is_none());
            is_idle || matches!(world.stage, Stage::Ended(_))
        })
    }

    fn stop(&mut self) -> Result<(), Halt> {
        self.is_stopping = true;
        notify_supervisor(self, SupervisorEvent::Stop);
        self.pump(|world| matches!(world.stage, Stage::Ended(_)))
    }

    /// Cuts the power: only the contents of the disk are left.
    fn power_cut(&mut self) {
        self.doubt();
        self.suppose_under_way();
        let under_way = self.fleet.vanish();
        let cut = self.fleet.device.disk.cut(under_way, &mut self.fleet.sim.rng);
        self.fleet.sim.note(&("power cut", cut.lost, cut.torn));
        self.clients.iter_mut().for_each(Client::reset);
        self.cut_at = u64::MAX;
        if self.outage.excuses(u64::MAX) {
            self.fleet.sim.count("a power cut while a cell was out");
        }
        self.outage = Outage::default();
        (self.is_working, self.is_stopping) = (false, false);
        self.fleet.sim.faults = Faults::default();
        self.fleet.incidents.begin_anew();
        self.stage = Stage::Starting;
        self.fleet.sim.count("power cut");
        self.fleet.count_after_loss("power cut after a failed flush");
        self.fleet.device.faults = DeviceFaults::default();
        self.count_many("write lost", cut.lost);
        self.count_many("torn block", cut.torn);
    }

    fn start(&mut self, cells: Option<u16>) -> Result<(), Halt> {
        self.stage = Stage::Starting;
        self.fleet.start(cells).map_err(Halt::Broken)?;
        let blocks = self.fleet.supervisor().ledger().superblock().layout.total_blocks();
        if self.growths.check(blocks).map_err(Halt::Broken)? {
            self.fleet.sim.count("a pool grown although the power was cut");
        }
        Ok(())
    }

    /// Whether the fleet may end with this failure. Failed writes of cells end no fleet, but they
    /// may make a last checkpoint fail.
    fn may_fail(&self, failure: Ended) -> bool {
        let is_broken = matches!(failure, Ended::Unreadable { cell, errno: Errno::EIO }
            if self.fleet.incidents.excuse_broken(cell));
        is_broken
            || (matches!(failure, Ended::TakenOut { .. }) && !self.outage.is_over())
            || self.rotten == Some(failure)
            || self.fleet.device.faults.may_be_read_only()
            || (self.is_stopping && self.fleet.device.faults.cells > 0)
    }

    /// Replays the logs, however often the power is cut meanwhile.
    fn recover(&mut self) -> Result<(), Halt> {
        let mut cuts = if self.fleet.sim.rng.chance(1, 3) {
            self.fleet.sim.rng.below(CUTS_OF_RECOVERY_MAX + 1)
        } else {
            0
        };
        while needs_recovery(&self.fleet.device.disk).map_err(Halt::Broken)? {
            self.start(None)?;
            if cuts > 0 {
                cuts -= 1;
                self.cut_at = self.fleet.sim.trace.events + self.fleet.sim.rng.below(150);
            }
            match self.pump(|world| matches!(world.stage, Stage::Ended(_))) {
                Err(Halt::Cut) => {
                    self.fleet.sim.count("power cut while recovering");
                    self.power_cut();
                }
                Err(halt) => return Err(halt.within("recovery")),
                Ok(()) if self.stage != Stage::Ended(Ok(())) => {
                    return Err(Halt::Broken(format!("recovery: {:?}", self.stage)));
                }
                Ok(()) => {
                    self.fleet.sim.count("recovered");
                    self.power_cut();
                }
            }
        }
        self.fsck("after recovery")
    }

    /// Runs events until the condition holds.
    fn pump(&mut self, until: impl Fn(&Self) -> bool) -> Result<(), Halt> {
        let begun = self.fleet.sim.trace.events;
        self.answered_at = self.fleet.sim.now;
        while !until(self) {
            if self.fleet.sim.trace.events >= self.cut_at {
                return Err(Halt::Cut);
            }
            self.damage_shard();
            advance_outage(self);
            if !happen_next(self) {
                let text = format!("there are no more events; {}", self.under_way());
                return Err(Halt::Broken(text));
            }
            if let Some(failure) = self.fleet.sim.failure.take() {
                return Err(Halt::Broken(failure));
            }
            if let Stage::Ended(Err(failure)) = self.stage
                && !self.may_fail(failure)
            {
                return Err(Halt::Broken(format!("the fleet ended: {failure}")));
            }
            let is_late = self.fleet.sim.now - self.waits_since() > PROGRESS_TIMEOUT;
            if is_late || self.fleet.sim.trace.events - begun > EVENTS_MAX {
                return Err(Halt::Broken(format!(
                    "the fleet makes no progress; {}",
                    self.under_way()
                )));
            }
        }
        Ok(())
    }

    /// Damages a shard, if it is time and there is one that it can be done to.
    fn damage_shard(&mut self) {
        let now = self.fleet.sim.trace.events;
        if !self.is_working || !self.fleet.is_served() {
            return;
        }
        let Some(mut due) = self.damage.take_if(|due| due.is_now(now)) else { return };
        if !strike(self, &mut due.plan) {
            self.damage = Some(due.postpone(now));
        }
    }

    /// The time since which a client has waited without any answer.
    fn waits_since(&self) -> Instant {
        let waiting = self.clients.iter().filter(|client| client.under_way.is_some());
        waiting.map(|client| client.asked.1).min().unwrap_or(self.answered_at)
    }

    fn under_way(&self) -> String {
        let requests = self.clients.iter().filter_map(|client| client.under_way.as_ref());
        let lines = requests.map(|(request, _)| format!("\n    {request:?}"));
        format!("{:?}, under way:{}", self.stage, lines.collect::<String>())
    }

    fn fsck(&mut self, when: &str) -> Result<(), Halt> {
        let blocks = self.growths.device_blocks();
        let models: Vec<_> = self.clients.iter().filter_map(|it| it.model.as_ref()).collect();
        let matters = |finding: &_, all: &[_]| !is_explained(&self.fleet, &models, finding, all);
        match self.fleet.device.disk.damage(blocks, matters) {
            None => Ok(()),
            Some(findings) => Err(Halt::Broken(format!("fsck {when}:{findings}"))),
        }
    }

    fn plan(&mut self, nanos: u64, own: Own) {
        self.fleet.sim.plan(nanos, Happening::Own(own));
    }

    fn nudge(&mut self) {
        if self.stage == Stage::Serving {
            let (from, epoch) = (CellId(0), self.fleet.epoch(CellId(0)));
            let report = Report::WantCheckpoint { cell: from };
            notify_supervisor(self, SupervisorEvent::Report { from, epoch, report });
            self.plan_nudge();
        }
    }

    fn plan_nudge(&mut self) {
        if self.mix.nudge > 0 {
            let delay = self.fleet.sim.rng.below(self.mix.nudge);
            self.plan(delay, Own::Nudge);
        }
    }

    fn grow(&mut self) {
        let layout = self.fleet.supervisor().ledger().superblock().layout;
        let Some(grown) = self.growths.next_layout(&layout) else { return };
        let blocks = grown.total_blocks();
        if self.stage != Stage::Serving || self.fleet.supervisor().may_grow(blocks).is_err() {
            return;
        }
        if let Some(host) = &mut self.fleet.device.disk.host {
            let new = layout.chunks()..grown.chunks();
            new.filter(|chunk| grown.is_reserved(*chunk)).for_each(|chunk| host.force(chunk));
        }
        self.growths.ask(blocks);
        notify_supervisor(self, SupervisorEvent::Grow { blocks });
        if let Some(delay) = self.growths.delay_again() {
            self.plan(delay, Own::Grow);
        }
    }

    fn growth_ended(&mut self, result: Result<(), Errno>) {
        let blocks = self.fleet.supervisor().ledger().superblock().layout.total_blocks();
        match result {
            Ok(()) => {
                self.growths.answered(blocks);
                self.fleet.sim.count("a pool grown");
            }
            Err(_) => self.fleet.sim.count("a growth failed"),
        }
    }

    fn count_many(&mut self, what: &'static str, times: u64) {
        (0..times).for_each(|_| self.fleet.sim.count(what));
    }
}

/// The outage of this life goes on.
fn advance_outage(world: &mut World) {
    if world.outages.is_some() {
        let left = world.cut_at.saturating_sub(world.fleet.sim.trace.events);
        let heals = !world.is_working || world.is_stopping;
        let outage = std::mem::take(&mut world.outage);
        world.outage = outage::advance(world, outage, left, heals).0;
    }
}
