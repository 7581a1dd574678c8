//! The simulated world: one queue of events, one seed, virtual time, and nothing else that could
//! differ between two runs.
//!
//! ```text
//! mkfs -> first life: safety under faults -> heal: everything must finish -> stop, fsck
//!      -> second life, other number of cells: look at everything -> stop, fsck
//!      -> the history of both lives must be linearizable
//! ```

mod admission;
mod adopt;
mod audit;
mod clients;
mod device;
mod disk;
mod fleet;
mod front;
mod kernel;
mod kill;
pub(crate) mod lanes;
pub(crate) mod process;
mod program;
pub(crate) mod queue;
pub(crate) mod trace;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, ClientId, Ino, Instant, MapVersion, Rng, Timestamp};
use warren_cell::Plant;
use warren_client::Op;
use warren_disk::format::{FormatOptions, image, log_suggested};
use warren_disk::fsck;
use warren_proto::{Credentials, Request, SetAttr};
use warren_supervisor::Event as Heard;

use crate::history::{Action, Excuses, Operation, Window};
use crate::linear::{Explanation, Verdict, check};
use crate::model::State;
use crate::swarm::Swarm;
use audit::Audit;
use clients::{At, Client, SlotState};
use disk::Disk;
use fleet::{CellHost, Happening, SupervisorHost};
use lanes::Lanes;
use process::Link;
use program::Known;
use queue::EventQueue;
use trace::Trace;

pub use trace::Coverage;

/// When virtual time begins, by the wall clock.
const EPOCH: Timestamp = Timestamp(1_700_000_000_000_000_000);

/// Virtual time in which something must return, if anything is under way: far more than the slowest
/// mix needs for a whole run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Events of a run: a run has about 20 a call.
const EVENTS_MAX: u64 = 3_000_000;

/// Findings of fsck that a failure shows.
const FINDINGS_SHOWN: usize = 20;

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

pub struct World {
    swarm: Swarm,
    plant: Option<Plant>,
    rng: Rng,
    now: Instant,
    places: u64,
    queue: EventQueue<Happening>,
    trace: Trace,
    disk: Disk,
    lanes: Lanes,
    map: Vec<CellId>,
    cells: Vec<CellHost>,
    links: BTreeMap<(CellId, CellId), Link>,
    supervisor: SupervisorHost,
    clients: Vec<Client>,
    known: Known,
    history: Vec<Operation>,
    phase: Phase,
    lives: usize,
    admitted: bool,
    /// The superblock names a new checkpoint since this was last looked at.
    switched: bool,
    io_failed: bool,
    /// A write or flush of the supervisor failed.
    supervisor_failed: bool,
    /// Something acknowledged may not be on the device: a flush failed, or a cell is dead.
    lost: bool,
    healed_at: u64,
    /// Where in the order of events the last checkpoint was done, and a flush failed.
    switched_at: u64,
    flush_failed_at: Option<u64>,
    /// Where in the order of events the event under way began.
    event_began: u64,
    /// Numbers of processes given out. The first is the restart's.
    processes: usize,
    /// Links between cells made so far.
    links_made: u64,
    calls_left: u64,
    /// The first call of all, which lets others than root in.
    opening: Option<Op>,
    audit: Option<Audit>,
    last_return: Instant,
    /// The events up to here are of interest in a failure.
    blamed_at: Instant,
    failure: Option<String>,
}

impl World {
    /// Runs a seed from beginning to end.
    pub fn run(plan: Plan) -> Result<Ran, Broken> {
        let mut world = Self::new(plan);
        let looked_at = world.live_twice().map_err(|rule| world.broken(rule))?;
        Ok(Ran {
            hash: world.trace.hash(),
            events: world.trace.events,
            operations: world.history.len(),
            looked_at,
            coverage: std::mem::take(&mut world.trace.coverage),
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
        };
        let image = image(&options).expect("the options are sensible");
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        let open_up = Request::SetAttr { ino: Ino::ROOT, handle: None, set };
        Self {
            swarm,
            plant: plan.plant,
            rng,
            now: Instant(1),
            places: 0,
            queue: EventQueue::new(),
            trace: Trace::new(plan.verbose),
            disk: Disk::new(image),
            lanes: Lanes::default(),
            map: Vec::new(),
            cells: Vec::new(),
            links: BTreeMap::new(),
            supervisor: SupervisorHost::none(),
            clients: Vec::new(),
            known: Known::default(),
            history: Vec::new(),
            phase: Phase::Safety,
            lives: 0,
            admitted: false,
            switched: false,
            io_failed: false,
            supervisor_failed: false,
            lost: false,
            healed_at: u64::MAX,
            switched_at: 0,
            flush_failed_at: None,
            event_began: 0,
            processes: 1,
            links_made: 0,
            calls_left: plan.calls,
            opening: Some(Op::Ino(open_up)),
            audit: None,
            last_return: Instant(1),
            blamed_at: Instant(u64::MAX),
            failure: None,
        }
    }

    fn broken(&self, rule: String) -> Broken {
        Broken { rule, lines: self.trace.lines_until(self.blamed_at) }
    }

    fn live_twice(&mut self) -> Result<usize, String> {
        self.start_fleet(self.swarm.cells);
        self.invite_clients();
        self.live()?;
        self.check_history()?;
        self.fsck("after the stop")?;
        self.restart();
        self.live()?;
        // After a loss the pool is as of its last checkpoint, and nobody knows yet what that must hold.
        let looked_at = if self.lost { 0 } else { self.check_history()? };
        self.fsck("after the second stop")?;
        Ok(looked_at)
    }

    /// States looked at.
    fn check_history(&mut self) -> Result<usize, String> {
        match check(&State::new(0, 0, EPOCH), &self.history) {
            Verdict::Linearizable { looked_at, .. } => Ok(looked_at),
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
    fn restart(&mut self) {
        if self.lost {
            self.count("a fleet started after a loss");
        }
        let (at, returned) = (self.place(), self.place());
        self.history.push(Operation {
            process: 0,
            client: ClientId(0),
            credentials: Rc::default(),
            action: Action::Restart,
            payload: Rc::from([]),
            invoked: at,
            returned,
            hint: at,
            window: Window { from: self.wall(), to: self.wall() },
            excuses: Excuses::default(),
            outcome: None,
        });
        self.cells.clear();
        self.links.clear();
        self.clients.clear();
        self.lanes = Lanes::default();
        self.phase = Phase::Heal;
        self.last_return = self.now;
        self.start_fleet(self.swarm.cells_later);
        let credentials = Credentials::default();
        let mut client = Client::new(credentials, 1, &self.map, MapVersion(1), CellId(0));
        client.process = self.new_processes(2);
        self.clients.push(client);
        self.audit = Some(Audit::new());
    }

    /// Until the fleet has stopped.
    fn live(&mut self) -> Result<(), String> {
        while self.phase != Phase::Stopped {
            let Some((at, happening)) = self.queue.next() else {
                return Err(format!("nothing will ever happen again; {}", self.under_way()));
            };
            self.now = at;
            self.trace.event(at, summary(&happening), &happening);
            self.happen(happening);
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if std::mem::take(&mut self.switched) && self.rng.chance(1, 8) {
                self.count("fsck while running");
                self.fsck("while running")?;
            }
            if self.phase == Phase::Heal && self.all_finished() {
                self.phase = Phase::Stopping;
                self.last_return = self.now;
                self.tell_supervisor(Heard::Stop);
            }
            if self.now - self.last_return > PATIENCE {
                return Err(format!("nothing returns any more; {}", self.under_way()));
            }
            if self.trace.events > EVENTS_MAX {
                return Err(format!("the run does not end; {}", self.under_way()));
            }
        }
        // A fleet that was lost ends while answers are on their way: what they tell has happened.
        while let Some((_, happening)) = self.queue.next() {
            if let Happening::Reply { from, to, seq, hint, answer } = happening {
                self.would_answer(from, to, seq, hint, answer);
            }
        }
        Ok(())
    }

    fn all_finished(&self) -> bool {
        let mut slots = self.clients.iter().flat_map(|client| &client.slots);
        slots.all(|slot| slot.state == SlotState::Finished)
    }

    fn heal(&mut self) {
        self.phase = Phase::Heal;
        self.heal_device();
        self.healed_at = self.places;
        self.last_return = self.now;
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
        let disk = &self.disk;
        let mut read = |block: BlockNo, into: &mut [u8]| {
            assert_eq!(into.len(), BLOCK_SIZE);
            disk.read(block, into);
            Ok(())
        };
        let options = fsck::Options { contents: true, ..fsck::Options::default() };
        let blocks = POOL_BYTES / BLOCK_SIZE as u64;
        let report = fsck::check(options, blocks, &mut read, &mut |_| {});
        // The second superblock copy is brought up to date while cells already go on.
        let counts = |finding: &&fsck::Finding| {
            finding.severity() == fsck::Severity::Damage
                && !matches!(finding, fsck::Finding::SuperblockBehind { .. })
        };
        let findings = report.findings.iter().filter(counts).take(FINDINGS_SHOWN);
        let findings: String = findings.map(|finding| format!("\n    {finding}")).collect();
        if findings.is_empty() {
            return Ok(());
        }
        // Wrong answers tell more than a wrong disk, where it is known which are right.
        if !self.lost {
            self.check_history()?;
        }
        Err(format!("fsck {when}:{findings}"))
    }

    /// The next place in the order of events.
    fn place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    fn wall(&self) -> Timestamp {
        Timestamp(EPOCH.0 + self.now.0 as i64)
    }

    fn plan(&mut self, nanos: u64, happening: Happening) {
        self.queue.plan(Instant(self.now.0 + nanos), happening);
    }

    fn message_delay(&mut self) -> u64 {
        self.delay(self.swarm.message_delay)
    }

    fn io_delay(&mut self) -> u64 {
        self.delay(self.swarm.io_delay)
    }

    fn delay(&mut self, slowest: u64) -> u64 {
        let usual = 1 + self.rng.below(slowest);
        if self.phase == Phase::Safety && self.rng.chance(self.swarm.stall, 1000) {
            self.count("a stall");
            return usual * 50;
        }
        usual
    }

    fn think_time(&mut self) -> u64 {
        if self.rng.chance(1, 10) { self.rng.below(50_000) } else { self.rng.below(500) }
    }

    fn excuses(&self, invoked: u64) -> Excuses {
        let mut excuses = Excuses::default();
        excuses.set(Excuses::NO_SPACE, self.swarm.chunks.is_some() && self.lives == 1);
        // A checkpoint that had failed already may be told of later.
        let is_healed = self.healed_at < invoked.min(self.switched_at) && !self.is_broken();
        excuses.set(Excuses::IO, self.io_failed && !is_healed);
        excuses
    }

    /// Whether the supervisor records nothing any more: whoever syncs is told so to the end.
    fn is_broken(&self) -> bool {
        self.lost || self.supervisor_failed
    }

    fn count(&mut self, what: &'static str) {
        self.trace.count(what);
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
        Happening::Reply { from, to, seq, answer, .. } => {
            let errno = answer.as_ref().err().map_or(0, |errno| errno.raw() as u64);
            [2 + (errno << 8), cell(*from), u64::from(to.client.0), u64::from(*seq)]
        }
        Happening::Step { at: At { client, slot }, ticket } => {
            [3, *client as u64, *slot as u64, *ticket]
        }
        Happening::Peer { from, to, .. } => [4, cell(*from), cell(*to), 0],
        Happening::Order { to, .. } => [5, cell(*to), 0, 0],
        Happening::Report { from, .. } => [6, cell(*from), 0, 0],
        Happening::CellIo { cell: of, io, .. } => [7, cell(*of), io.0, 0],
        Happening::Exited { cell: of, epoch } => [13, cell(*of), u64::from(epoch.0), 0],
        Happening::Start { cell: of } => [14, cell(*of), 0, 0],
        Happening::SupervisorIo { by, io } => [8, io.0, *by, 0],
        Happening::Tick { cell: of, .. } => [9, cell(*of), 0, 0],
        Happening::DropCopies { client, listener } => [11, *listener as u64, *client as u64, 0],
        Happening::Hangup { client } => [12, *client as u64, 0, 0],
        Happening::SupervisorTick { .. } => [10, 0, 0, 0],
    }
}
