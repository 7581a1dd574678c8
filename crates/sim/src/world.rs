//! The simulated world: one event queue, one seed and virtual time, so that two runs of one seed
//! are equal.
//!
//! ```text
//! mkfs -> first life: safety under faults -> heal: everything must finish -> stop, fsck
//!      -> second life, other number of cells: look at everything -> stop, fsck
//!      -> the history of both lives must be linearizable
//! ```

mod admission;
mod answers;
mod audit;
mod claims;
mod clients;
mod copies;
mod damage;
mod front;
mod kept;
mod kernel;
mod names;
mod paths;
mod program;
mod surroundings;

use std::rc::Rc;
use std::time::Duration;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, ClientId, Ino, Instant, Rng};
use warren_cell::Plant;
use warren_client::Op;
use warren_disk::format::{FormatOptions, image, log_suggested};
use warren_fsck::Finding;
use warren_proto::{Capabilities, Credentials, Request, SetAttr};
use warren_supervisor::Event as SupervisorEvent;

use crate::damage::strike;
use crate::fleet::disk::Disk;
use crate::fleet::incident::{changes, takes_space};
use crate::fleet::{Fleet, Happening, Lost, MAP_VERSION, happen_next, notify_supervisor};
use crate::history::{Action, Excuses, Operation, Window};
use crate::linear::{Explanation, SEARCH_MAX, Verdict, check};
use crate::model::State;
use crate::outage::{self, Outage};
use crate::simulation::trace::{Coverage, Trace};
use crate::simulation::wall::{EPOCH, WallClock};
use crate::simulation::{Faults, Pace};
use crate::swarm::Swarm;
use audit::Audit;
use clients::{At, Client, SlotState};
use copies::check_kept;
use program::Known;

/// If calls are under way, one of them must return within this virtual time. It is far more than
/// the slowest mix needs for a whole run.
const RETURN_TIMEOUT: Duration = Duration::from_secs(60);

/// Events of a run: a run has about 20 per call.
const EVENTS_MAX: u64 = 3_000_000;

/// Tree nodes that cells keep where one is damaged: it is soon read again.
const NODES_FEW: usize = 2;

/// Size of the pool: only a mix with a small chunk limit runs out of space.
const POOL_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Faults may occur; clients begin calls.
    Safety,
    /// No more faults and no more calls; clients release what they hold.
    Heal,
    /// The supervisor was asked to stop.
    Stopping,
    Stopped,
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Calls that clients begin.
    pub calls: u64,
    pub cells: Option<u16>,
    pub plant: Option<Plant>,
    pub kills: bool,
    /// One shard is damaged.
    pub damage: bool,
    /// One cell is taken out for a while.
    pub outage: bool,
    /// Whether to keep the text of the last events.
    pub verbose: bool,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    pub hash: u64,
    pub events: u64,
    pub operations: usize,
    /// States that the checker tried.
    pub looked_at: usize,
    pub coverage: Coverage,
}

/// The violated rule, and the last events before it.
#[derive(Clone, Debug)]
pub struct Broken {
    pub rule: String,
    pub lines: Vec<String>,
}

/// Events beside those of the fleet.
#[derive(Debug)]
pub enum Own {
    Step {
        at: At,
        ticket: u64,
    },
    /// A front's kernel drops the copies that a cell recalls.
    DropCopies {
        client: usize,
        listener: usize,
    },
    /// A client's connection breaks.
    Hangup {
        client: usize,
    },
    /// A front's process is killed.
    KillFront {
        client: usize,
    },
    /// A killed front's successor starts.
    StartFront {
        client: usize,
    },
}

pub struct World {
    swarm: Swarm,
    fleet: Fleet<Own>,
    clients: Vec<Client>,
    known: Known,
    history: Vec<Operation>,
    phase: Phase,
    admitted: bool,
    /// Checkpoints up to this event were checked.
    looked_at: u64,
    /// The pool is in the state of a checkpoint, because the fleet could not stop in order.
    lost: bool,
    /// Process numbers used so far. The first is the restart's.
    processes: usize,
    calls_left: u64,
    /// The first call of all: it gives other users than root access.
    opening: Option<Op>,
    audit: Option<Audit>,
    /// The state after all calls that were checked last.
    last: Option<State>,
    /// What is to be damaged, and when.
    damage: damage::Due,
    outage: Outage,
    last_return: Instant,
    /// A failure report shows the events up to this time.
    blamed_at: Instant,
}

impl World {
    /// Runs a seed from beginning to end.
    pub fn run(plan: Plan) -> Result<Ran, Broken> {
        let mut world = Self::new(plan);
        let looked_at = world.live_twice().map_err(|rule| {
            let lines = world.fleet.sim.trace.lines_until(world.blamed_at);
            Broken { rule, lines }
        })?;
        Ok(Ran {
            hash: world.fleet.sim.trace.hash(),
            events: world.fleet.sim.trace.events,
            operations: world.history.len(),
            looked_at,
            coverage: std::mem::take(&mut world.fleet.sim.trace.coverage),
        })
    }

    fn new(plan: Plan) -> Self {
        let mut rng = Rng::new(plan.seed);
        let mut swarm = Swarm::draw(&mut rng, plan.cells);
        if !plan.kills {
            swarm.kills = 0;
        }
        let options = FormatOptions {
            size_bytes: POOL_BYTES,
            shards: swarm.shards,
            log_bytes: log_suggested(POOL_BYTES),
            uuid: [7; 16],
            secret: rng.next_u64(),
            now: EPOCH,
            uid: 0,
            gid: 0,
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        let image = image(&options).expect("the options are sensible");
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        let open_up = Request::SetAttr { ino: Ino::ROOT, handle: None, set };
        // Programs first have to open the file that they share.
        let calls_left = if swarm.shares_pages { 2 * plan.calls } else { plan.calls };
        let damage = plan.damage.then(|| damage::Due::draw(plan.seed, calls_left));
        let damage = damage.unwrap_or_default();
        let outage = match plan.outage {
            true => Outage::draw(plan.seed, calls_left),
            false => Outage::default(),
        };
        let mut fleet = Fleet::new(rng, Disk::new(image), Trace::new(plan.verbose));
        fleet.sim.plant = plan.plant;
        fleet.lost = Lost::draw(plan.seed);
        fleet.sim.wall_clock = WallClock::draw(plan.seed);
        fleet.sizes.frames = swarm.frames;
        fleet.sizes.nodes_max = swarm.nodes_max;
        fleet.sizes.space.eager_cleaning = swarm.space.eager_cleaning;
        fleet.sizes.space.reserve.chunks = swarm.space.reserve;
        if damage.evicts() {
            fleet.sizes.nodes_max = NODES_FEW;
        }
        fleet.sizes.chunks = swarm.space.chunks.map(|chunks| chunks as usize);
        fleet.sim.pace = Pace { message: swarm.message_delay, io: swarm.io_delay };
        fleet.sim.faults.stall = swarm.stall;
        Self {
            swarm,
            fleet,
            clients: Vec::new(),
            known: Known::default(),
            history: Vec::new(),
            phase: Phase::Safety,
            admitted: false,
            looked_at: 0,
            lost: false,
            processes: 1,
            // Programs first open the file that they share.
            calls_left,
            opening: Some(Op::Ino(open_up, Capabilities::default())),
            audit: None,
            last: None,
            damage,
            outage,
            last_return: Instant(1),
            blamed_at: Instant(u64::MAX),
        }
    }

    fn live_twice(&mut self) -> Result<usize, String> {
        self.fleet.start(Some(self.swarm.cells))?;
        self.invite_clients();
        self.live()?;
        let looked_at = self.check_history()?;
        if self.is_lost() && self.outage.is_behind(self.fleet.incidents.switched_at) {
            // Only a replay of the logs would make the pool whole.
            self.fleet.sim.count("a fleet that ended while a cell was out");
            return Ok(looked_at);
        }
        self.fsck("after the stop")?;
        if !self.is_lost() && self.swarm.space.chunks.is_none() {
            damage::check_kept(&mut self.fleet, POOL_BYTES / BLOCK_SIZE as u64)?;
        }
        self.restart()?;
        self.live()?;
        // After a loss the pool is in the state of its last checkpoint, and there is no model of
        // that state to compare with.
        let looked_at = if self.is_lost() { 0 } else { self.check_history()? };
        self.fsck("after the second stop")?;
        Ok(looked_at)
    }

    /// Returns the number of states tried.
    fn check_history(&mut self) -> Result<usize, String> {
        let (clock, mut stepped) = (&self.fleet.sim.wall_clock, Vec::new());
        if clock.has_steps() {
            stepped.clone_from(&self.history);
            stepped.iter_mut().for_each(|it| it.window = clock.window(it.window));
        }
        let history = if clock.has_steps() { &stepped } else { &self.history };
        match check(&State::new(0, 0, EPOCH), history, SEARCH_MAX) {
            Verdict::Linearizable { last, looked_at } => {
                self.last = Some(last);
                Ok(looked_at)
            }
            Verdict::Illegal(explanation) => Err(self.blame(&explanation, "")),
            Verdict::Undecided(explanation) => {
                Err(self.blame(&explanation, "the search was given up; so far "))
            }
        }
    }

    fn blame(&mut self, explanation: &Explanation, so_far: &str) -> String {
        let until = Instant((explanation.until.0 - EPOCH.0).max(0) as u64);
        // A clock that steps does not show when that was.
        self.blamed_at =
            if self.fleet.sim.wall_clock.has_steps() { Instant(u64::MAX) } else { until };
        format!("{so_far}{explanation}")
    }

    /// Starts one client, which reads everything.
    fn restart(&mut self) -> Result<(), String> {
        if self.is_lost() {
            self.fleet.sim.count("a fleet started after a loss");
        }
        let (at, returned) = (self.fleet.sim.place(), self.fleet.sim.place());
        self.history.push(Operation {
            process: 0,
            client: ClientId(0),
            credentials: Rc::default(),
            action: Action::Restart,
            payload: Rc::from([]),
            invoked: at,
            returned,
            hint: at,
            window: Window { from: self.fleet.sim.wall(), to: self.fleet.sim.wall(), steps: false },
            excuses: Excuses::default(),
            outcome: None,
        });
        self.fleet.sim.faults = Faults::default();
        // Messages under way when the fleet ended are lost.
        self.fleet.vanish();
        self.outage = Outage::default();
        if damage::before_restart(&mut self.fleet, &mut self.damage) {
            self.note_damage();
        }
        self.clients.clear();
        self.phase = Phase::Heal;
        self.last_return = self.fleet.sim.now;
        self.fleet.sizes.chunks = None;
        self.fleet.start(Some(self.swarm.cells_later))?;
        let credentials = Credentials::default();
        let mut client = Client::new(credentials, 1, &self.fleet.map, MAP_VERSION, CellId(0));
        client.process = self.new_processes(2);
        self.clients.push(client);
        let known = self.last.as_ref().filter(|_| self.fleet.incidents.has_damage());
        let known =
            known.map(|state| state.inodes().map(|(ino, inode)| (ino, inode.kind)).collect());
        self.audit = Some(Audit::of(known.unwrap_or_default()));
        Ok(())
    }

    /// Runs until the fleet has stopped.
    fn live(&mut self) -> Result<(), String> {
        while self.phase != Phase::Stopped {
            if !happen_next(self) {
                return Err(format!("there are no more events; {}", self.under_way()));
            }
            self.damage_shard();
            advance_outage(self);
            check_kept(self);
            if let Some(failure) = self.fleet.sim.failure.take() {
                return Err(failure);
            }
            // The new checkpoint is in the state of the last one or of the one before.
            let is_new = std::mem::replace(&mut self.looked_at, self.fleet.incidents.switched_at)
                != self.fleet.incidents.switched_at;
            let is_whole = !self.outage.is_behind(self.fleet.incidents.switched_at);
            if is_new && is_whole && self.fleet.sim.rng.chance(1, 8) {
                self.fleet.sim.count("fsck while running");
                self.fsck("while running")?;
            }
            if self.phase == Phase::Heal && self.outage.is_over() && self.all_finished() {
                self.phase = Phase::Stopping;
                self.last_return = self.fleet.sim.now;
                if self.is_first_life() {
                    self.fleet.sim.faults = Faults {
                        kills: self.swarm.kills,
                        deaths: self.swarm.deaths,
                        ..Faults::default()
                    };
                }
                notify_supervisor(self, SupervisorEvent::Stop);
            }
            if self.fleet.sim.now - self.last_return > RETURN_TIMEOUT {
                return Err(format!("no call returns; {}", self.under_way()));
            }
            if self.fleet.sim.trace.events > EVENTS_MAX {
                return Err(format!("the run does not end; {}", self.under_way()));
            }
        }
        // When a fleet is lost while answers are under way, the effects of these calls have
        // happened.
        while let Some((_, happening)) = self.fleet.sim.queue.next() {
            if let Happening::Reply { from, to, seq, hint, answer } = happening {
                self.would_answer(from, to, seq, hint, answer.answer);
            }
        }
        // A dead cell may also have executed requests that it had not answered.
        for id in self.fleet.cell_ids() {
            let slots = &mut self.fleet.cells[usize::from(id.0)].slots;
            for ((to, seq), (hint, answer)) in std::mem::take(&mut slots.executed) {
                self.would_answer(id, to, seq, hint, answer);
            }
        }
        Ok(())
    }

    /// Damages a shard, if it is time and there is one that it can be done to.
    fn damage_shard(&mut self) {
        if self.phase != Phase::Safety || !self.fleet.is_served() {
            return;
        }
        let Some(mut plan) = self.damage.take(self.calls_left) else { return };
        match strike(self, &mut plan) {
            true => self.note_damage(),
            false => self.damage.put_back(plan, self.calls_left),
        }
    }

    fn note_damage(&mut self) {
        let process = self.new_processes(1);
        let damaged = damage::damaged(&self.fleet);
        self.history.push(damage::operation(&mut self.fleet, process, damaged));
    }

    fn all_finished(&self) -> bool {
        let mut slots = self.clients.iter().flat_map(|client| &client.slots);
        slots.all(|slot| slot.state == SlotState::Finished)
    }

    fn heal(&mut self) {
        self.phase = Phase::Heal;
        self.fleet.heal();
        self.last_return = self.fleet.sim.now;
    }

    fn under_way(&self) -> String {
        let mut text = format!("phase {:?}; under way:", self.phase);
        for client in self.clients.iter().filter(|client| !client.is_gone) {
            for slot in &client.slots {
                if let Some(request) = slot.under_way() {
                    text.push_str(&format!("\n    {} {request:?}", client.id));
                }
            }
        }
        text
    }

    fn fsck(&mut self, when: &str) -> Result<(), String> {
        // The second superblock copy is updated after the cells have continued.
        // While a fleet runs the device lies behind what is known.
        let is_known = self.phase == Phase::Stopped && !self.is_lost();
        let state = self.last.as_ref().filter(|_| is_known);
        let matters = |finding: &Finding, all: &[Finding]| {
            !matches!(finding, Finding::SuperblockBehind { .. })
                && !damage::is_explained(&self.fleet, state, finding, all)
        };
        let blocks = POOL_BYTES / BLOCK_SIZE as u64;
        let Some(findings) = self.fleet.device.disk.damage(blocks, matters) else { return Ok(()) };
        // If the right answers are known, a wrong answer explains more than a wrong disk.
        if !self.is_lost() {
            self.check_history()?;
        }
        Err(format!("fsck {when}:{findings}"))
    }

    fn plan(&mut self, nanos: u64, own: Own) {
        self.fleet.sim.plan(nanos, Happening::Own(own));
    }

    fn is_first_life(&self) -> bool {
        self.audit.is_none()
    }

    /// Whether something acknowledged may be missing on the device.
    fn is_lost(&self) -> bool {
        self.lost || self.fleet.device.faults.has_lost_flush()
    }

    fn think_time(&mut self) -> u64 {
        if self.fleet.sim.rng.chance(1, 10) {
            self.fleet.sim.rng.below(50_000)
        } else {
            self.fleet.sim.rng.below(500)
        }
    }

    /// The excuses for an error that `from` returns now for a request invoked at position
    /// `invoked`.
    fn excuses(&self, request: &Request, from: CellId, invoked: u64) -> Excuses {
        let mut excuses = Excuses::default();
        let is_small = self.swarm.space.chunks.is_some() && self.is_first_life();
        excuses.set(Excuses::NO_SPACE, is_small && takes_space(request));
        excuses.set(
            Excuses::READ_ONLY,
            self.fleet.device.faults.may_be_read_only() && changes(request),
        );
        excuses.set(Excuses::DAMAGED, may_be_refused(self, invoked));
        let is_partial = *request == Request::Sync && self.outage.excuses(invoked);
        let has_failed = self.fleet.incidents.excuse_io(request, from, invoked);
        excuses.set(Excuses::IO, is_partial || has_failed);
        excuses
    }
}

/// Whether a call that was invoked at this place may be refused for the shards that it needs.
fn may_be_refused(world: &World, invoked: u64) -> bool {
    world.fleet.incidents.has_damage() || world.outage.excuses(invoked)
}

/// The outage goes on. The history says which shards calls may be refused for.
fn advance_outage(world: &mut World) {
    let (left, heals) = (world.calls_left, world.phase != Phase::Safety);
    let outage = std::mem::take(&mut world.outage);
    let (outage, out) = outage::advance(world, outage, left, heals);
    world.outage = outage;
    if let Some(cell) = out {
        let process = world.new_processes(1);
        let these = outage::shards_of(&world.fleet, cell);
        let damaged = damage::shards(&world.fleet, Rc::new(these));
        world.history.push(damage::operation(&mut world.fleet, process, damaged));
    }
}
