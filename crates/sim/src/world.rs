//! The simulated world: one queue of events, one seed, virtual time, and nothing else that could
//! differ between two runs.
//!
//! ```text
//! mkfs -> first life: safety under faults -> heal: everything must finish -> stop, fsck
//!      -> second life, other number of cells: look at everything -> stop, fsck
//!      -> the history of both lives must be linearizable
//! ```

mod admission;
mod audit;
mod clients;
mod damage;
mod front;
mod kernel;
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
use warren_supervisor::Event as Heard;

use crate::damage::strike;
use crate::fleet::disk::Disk;
use crate::fleet::incident::{changes, takes_space};
use crate::fleet::trace::{Coverage, Trace};
use crate::fleet::{
    EPOCH, Faults, Fleet, Happening, MAP_VERSION, Pace, happen_next, tell_supervisor,
};
use crate::history::{Action, Excuses, Operation, Window};
use crate::linear::{Explanation, SEARCH_MAX, Verdict, check};
use crate::model::State;
use crate::swarm::Swarm;
use audit::Audit;
use clients::{At, Client, SlotState};
use program::Known;

/// Virtual time in which something must return, if anything is under way: far more than the slowest
/// mix needs for a whole run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Events of a run: a run has about 20 a call.
const EVENTS_MAX: u64 = 3_000_000;

/// Tree nodes that cells keep where one is damaged: it is soon read again.
const NODES_FEW: usize = 2;

/// Bytes of the pool: enough that only a mix that wants to runs out.
const POOL_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Faults may happen; calls are begun.
    Safety,
    /// No more faults, no more calls; what is held is given back.
    Heal,
    /// The supervisor was told to stop.
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
    /// Keep the text of the last events.
    pub verbose: bool,
}

/// What a run was like.
#[derive(Clone, Debug)]
pub struct Ran {
    pub hash: u64,
    pub events: u64,
    pub operations: usize,
    /// States the checker looked at.
    pub looked_at: usize,
    pub coverage: Coverage,
}

/// The rule that was broken, and what led there.
#[derive(Clone, Debug)]
pub struct Broken {
    pub rule: String,
    pub lines: Vec<String>,
}

/// What happens beside what happens to the fleet.
#[derive(Debug)]
pub enum Own {
    Step {
        at: At,
        ticket: u64,
    },
    /// A front's kernel drops what a cell recalls.
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
    /// Its successor goes on.
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
    /// Checkpoints up to here in the order of events were looked at.
    looked_at: u64,
    /// The pool is as of a checkpoint: the fleet could not end as it should.
    lost: bool,
    /// Numbers of processes given out. The first is the restart's.
    processes: usize,
    calls_left: u64,
    /// The first call of all, which lets others than root in.
    opening: Option<Op>,
    audit: Option<Audit>,
    /// The state after all calls that were checked last.
    last: Option<State>,
    /// What is to be damaged, and when.
    damage: damage::Due,
    last_return: Instant,
    /// The events up to here are of interest in a failure.
    blamed_at: Instant,
}

impl World {
    /// Runs a seed from beginning to end.
    pub fn run(plan: Plan) -> Result<Ran, Broken> {
        let mut world = Self::new(plan);
        let looked_at = world.live_twice().map_err(|rule| {
            let lines = world.fleet.trace.lines_until(world.blamed_at);
            Broken { rule, lines }
        })?;
        Ok(Ran {
            hash: world.fleet.trace.hash(),
            events: world.fleet.trace.events,
            operations: world.history.len(),
            looked_at,
            coverage: std::mem::take(&mut world.fleet.trace.coverage),
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
        };
        let image = image(&options).expect("the options are sensible");
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        let open_up = Request::SetAttr { ino: Ino::ROOT, handle: None, set };
        // Programs first have to open the file that they share.
        let calls_left = if swarm.shares_pages { 2 * plan.calls } else { plan.calls };
        let damage = plan.damage.then(|| damage::Due::draw(plan.seed, calls_left));
        let damage = damage.unwrap_or_default();
        let mut fleet = Fleet::new(rng, Disk::new(image), Trace::new(plan.verbose));
        fleet.plant = plan.plant;
        fleet.frames = swarm.frames;
        fleet.nodes_max = swarm.nodes_max;
        if damage.evicts() {
            fleet.nodes_max = NODES_FEW;
        }
        fleet.chunks = swarm.chunks.map(|chunks| chunks as usize);
        fleet.pace = Pace { message: swarm.message_delay, io: swarm.io_delay };
        fleet.faults.stall = swarm.stall;
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
            calls_left,
            opening: Some(Op::Ino(open_up, Capabilities::default())),
            audit: None,
            last: None,
            damage,
            last_return: Instant(1),
            blamed_at: Instant(u64::MAX),
        }
    }

    fn live_twice(&mut self) -> Result<usize, String> {
        self.fleet.start(Some(self.swarm.cells))?;
        self.invite_clients();
        self.live()?;
        self.check_history()?;
        self.fsck("after the stop")?;
        if !self.is_lost() && self.swarm.chunks.is_none() {
            damage::check_kept(&mut self.fleet, POOL_BYTES / BLOCK_SIZE as u64)?;
        }
        self.restart()?;
        self.live()?;
        // After a loss the pool is as of its last checkpoint, and nobody knows yet what that must hold.
        let looked_at = if self.is_lost() { 0 } else { self.check_history()? };
        self.fsck("after the second stop")?;
        Ok(looked_at)
    }

    /// States looked at.
    fn check_history(&mut self) -> Result<usize, String> {
        match check(&State::new(0, 0, EPOCH), &self.history, SEARCH_MAX) {
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
        self.blamed_at = Instant((explanation.until.0 - EPOCH.0).max(0) as u64);
        format!("{so_far}{explanation}")
    }

    /// One client, who looks at everything.
    fn restart(&mut self) -> Result<(), String> {
        if self.is_lost() {
            self.fleet.count("a fleet started after a loss");
        }
        let (at, returned) = (self.fleet.place(), self.fleet.place());
        self.history.push(Operation {
            process: 0,
            client: ClientId(0),
            credentials: Rc::default(),
            action: Action::Restart,
            payload: Rc::from([]),
            invoked: at,
            returned,
            hint: at,
            window: Window { from: self.fleet.wall(), to: self.fleet.wall() },
            excuses: Excuses::default(),
            outcome: None,
        });
        self.fleet.faults = Faults::default();
        // What was under way when the fleet ended does not get there.
        self.fleet.vanish();
        if damage::before_restart(&mut self.fleet, &mut self.damage) {
            self.note_damage();
        }
        self.clients.clear();
        self.phase = Phase::Heal;
        self.last_return = self.fleet.now;
        self.fleet.chunks = None;
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

    /// Until the fleet has stopped.
    fn live(&mut self) -> Result<(), String> {
        while self.phase != Phase::Stopped {
            if !happen_next(self) {
                return Err(format!("nothing will ever happen again; {}", self.under_way()));
            }
            self.damage_shard();
            if let Some(failure) = self.fleet.failure.take() {
                return Err(failure);
            }
            // A checkpoint is as the last but one says, or the last.
            let is_new = std::mem::replace(&mut self.looked_at, self.fleet.switched_at)
                != self.fleet.switched_at;
            if is_new && self.fleet.rng.chance(1, 8) {
                self.fleet.count("fsck while running");
                self.fsck("while running")?;
            }
            if self.phase == Phase::Heal && self.all_finished() {
                self.phase = Phase::Stopping;
                self.last_return = self.fleet.now;
                if self.is_first_life() {
                    self.fleet.faults = Faults {
                        kills: self.swarm.kills,
                        deaths: self.swarm.deaths,
                        ..Faults::default()
                    };
                }
                tell_supervisor(self, Heard::Stop);
            }
            if self.fleet.now - self.last_return > PATIENCE {
                return Err(format!("nothing returns any more; {}", self.under_way()));
            }
            if self.fleet.trace.events > EVENTS_MAX {
                return Err(format!("the run does not end; {}", self.under_way()));
            }
        }
        // A fleet that was lost ends while answers are on their way: what they tell has happened.
        while let Some((_, happening)) = self.fleet.queue.next() {
            if let Happening::Reply { from, to, seq, hint, answer } = happening {
                self.would_answer(from, to, seq, hint, answer.answer);
            }
        }
        // And while cells are dead that had executed more.
        for id in (0..self.fleet.cells.len() as u16).map(CellId) {
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
        self.history.push(damage::operation(&mut self.fleet, process));
    }

    fn all_finished(&self) -> bool {
        let mut slots = self.clients.iter().flat_map(|client| &client.slots);
        slots.all(|slot| slot.state == SlotState::Finished)
    }

    fn heal(&mut self) {
        self.phase = Phase::Heal;
        self.fleet.heal();
        self.last_return = self.fleet.now;
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
        // The second superblock copy is brought up to date while cells already go on.
        // While a fleet runs the device lies behind what is known.
        let is_known = self.phase == Phase::Stopped && !self.is_lost();
        let state = self.last.as_ref().filter(|_| is_known);
        let matters = |finding: &Finding, all: &[Finding]| {
            !matches!(finding, Finding::SuperblockBehind { .. })
                && !damage::is_explained(&self.fleet, state, finding, all)
        };
        let blocks = POOL_BYTES / BLOCK_SIZE as u64;
        let Some(findings) = self.fleet.disk.damage(blocks, matters) else { return Ok(()) };
        // Wrong answers tell more than a wrong disk, where it is known which are right.
        if !self.is_lost() {
            self.check_history()?;
        }
        Err(format!("fsck {when}:{findings}"))
    }

    fn plan(&mut self, nanos: u64, own: Own) {
        self.fleet.plan(nanos, Happening::Own(own));
    }

    fn is_first_life(&self) -> bool {
        self.audit.is_none()
    }

    /// Whether something acknowledged may not be on the device.
    fn is_lost(&self) -> bool {
        self.lost || self.fleet.flush_failed_at.is_some()
    }

    fn think_time(&mut self) -> u64 {
        if self.fleet.rng.chance(1, 10) {
            self.fleet.rng.below(50_000)
        } else {
            self.fleet.rng.below(500)
        }
    }

    /// What excuses an error that `from` answers now to a request that was made at place `invoked`.
    fn excuses(&self, request: &Request, from: CellId, invoked: u64) -> Excuses {
        let mut excuses = Excuses::default();
        let is_small = self.swarm.chunks.is_some() && self.is_first_life();
        excuses.set(Excuses::NO_SPACE, is_small && takes_space(request));
        excuses.set(Excuses::READ_ONLY, self.fleet.may_be_read_only() && changes(request));
        excuses.set(Excuses::DAMAGED, self.fleet.incidents.has_damage());
        excuses.set(Excuses::IO, self.fleet.incidents.excuse_io(request, from, invoked));
        excuses
    }
}
