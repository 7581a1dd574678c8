//! A run: one event queue, one seed and virtual time, so that two runs of one seed are equal.
//!
//! ```text
//! mkfs -> first life: safety under faults -> heal: everything must finish -> stop, fsck
//!      -> second life, other number of cells: look at everything -> stop, fsck
//!      -> the history of both lives must be linearizable
//! ```

use std::rc::Rc;
use std::time::Duration;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Ino, Instant, Rng};
use warren_cell::Plant;
use warren_client::Op;
use warren_disk::format::log_suggested;
use warren_fsck::Finding;
use warren_proto::{Capabilities, Credentials, Request, SetAttr};
use warren_supervisor::Event as SupervisorEvent;

use super::admission::invite_clients;
use super::audit::Audit;
use super::client::{Client, SlotState};
use super::copies::check_kept;
use super::damage::Due;
use super::posting::Posts;
use super::posts::note_lost_posts;
use super::program::Known;
use super::record::{note_damage, would_answer};
use super::{Phase, World, damage};
use crate::damage::strike;
use crate::fleet::disk::Disk;
use crate::fleet::{Fleet, Happening, Lost, MAP_VERSION, happen_next, notify_supervisor};
use crate::history::{Action, History, Operation};
use crate::linear::{Explanation, SEARCH_MAX, Verdict, check};
use crate::model::State;
use crate::outage::{self, Outage};
use crate::run::{Broken, Failure, Summary, many, twice};
use crate::simulation::Faults;
use crate::simulation::trace::Trace;
use crate::simulation::wall::{EPOCH, WallClock};
use crate::swarm::Swarm;

/// If calls are under way, one of them must return within this virtual time. It is far more than
/// the slowest mix needs for a whole run.
const RETURN_TIMEOUT: Duration = Duration::from_secs(60);

/// Events of a run: a run has about 20 per call.
const EVENTS_MAX: u64 = 3_000_000;

/// Tree nodes that cells keep where one is damaged: it is soon read again.
const NODES_FEW: usize = 2;

/// Size of the pool: only a mix with a small chunk limit runs out of space.
const POOL_BYTES: u64 = 256 << 20;

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    /// Calls that clients begin, if the seed's swarm does not change that.
    pub steps: u64,
    /// Fixes the number of cells.
    pub cells: Option<u16>,
    /// A fault to plant, to show that it is found.
    pub plant: Option<Plant>,
    /// Cells are killed in some seeds.
    pub kills: bool,
    /// One shard is damaged at a random moment.
    pub damage: bool,
    /// One cell is taken out for a while.
    pub outage: bool,
}

/// The default number of calls of a run.
pub const STEPS_DEFAULT: u64 = 500;

impl Options {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            steps: STEPS_DEFAULT,
            cells: None,
            plant: None,
            kills: true,
            damage: false,
            outage: false,
        }
    }
}

/// Runs one seed. The same seed gives the same run.
pub fn run(options: Options) -> Result<Summary, Failure> {
    twice(options.seed, &|verbose| attempt(options, verbose))
}

/// Runs seeds `options.seed..options.seed + count` on `threads` threads until one fails; reports
/// the lowest seed that failed by then. `progress` is called with the number of finished seeds.
pub fn run_many(
    options: Options,
    count: u64,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Summary, Failure> {
    let run = |seed| run(Options { seed, ..options });
    many(options.seed, count, threads, progress, &run)
}

/// Runs a seed from beginning to end.
fn attempt(options: Options, verbose: bool) -> Result<Summary, Broken> {
    let mut world = draw_world(options, verbose);
    let looked_at = live_twice(&mut world).map_err(|rule| {
        let lines = world.fleet.sim.trace.lines_until(world.blamed_at);
        Broken { rule, lines }
    })?;
    let operations = world.history.operations.len() as u64;
    Ok(Summary::of_run(world.fleet.sim.trace, operations, looked_at as u64))
}

/// Draws the world of a seed.
fn draw_world(options: Options, verbose: bool) -> World {
    let Options { seed, steps, cells, plant, kills, damage, outage } = options;
    let mut rng = Rng::new(seed);
    let mut swarm = Swarm::draw(&mut rng, cells);
    if !kills {
        swarm.faults.kills = 0;
    }
    let is_refused = damage || outage;
    let posts = if is_refused { Posts::default() } else { Posts::draw(seed, &swarm) };
    let log_bytes = log_suggested(POOL_BYTES);
    let disk = Disk::format(POOL_BYTES, swarm.shape.shards, log_bytes, rng.next_u64());
    let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let open_up = Request::SetAttr { ino: Ino::ROOT, handle: None, set };
    // Programs first have to open the file that they share.
    let calls_left = if swarm.shares_pages { 2 * steps.max(1) } else { steps.max(1) };
    let damage = if damage { Due::draw(seed, calls_left) } else { Due::default() };
    let outage = if outage { Outage::draw(seed, calls_left) } else { Outage::default() };
    let mut fleet = Fleet::new(rng, disk, Trace::new(verbose));
    fleet.sim.plant = plant;
    fleet.lost = Lost::draw(seed);
    fleet.sim.wall_clock = WallClock::draw(seed);
    fleet.sizes.frames = swarm.shape.frames;
    fleet.sizes.nodes_max = swarm.shape.nodes_max;
    fleet.sizes.space.eager_cleaning = swarm.space.eager_cleaning;
    fleet.sizes.space.reserve.chunks = swarm.space.reserve;
    if damage.evicts() {
        fleet.sizes.nodes_max = NODES_FEW;
    }
    fleet.sizes.chunks = swarm.space.chunks.map(|chunks| chunks as usize);
    fleet.sim.pace = swarm.pace;
    fleet.sim.faults.stall = swarm.faults.stall;
    World {
        swarm,
        fleet,
        clients: Vec::new(),
        known: Known::default(),
        members: Vec::new(),
        history: History::default(),
        phase: Phase::Safety,
        admitted: false,
        looked_at: 0,
        lost: false,
        calls_left,
        opening: Some(Op::Ino(open_up, Capabilities::default())),
        audit: None,
        last: None,
        damage,
        outage,
        posts,
        lost_posts: Vec::new(),
        last_return: Instant(1),
        blamed_at: Instant(u64::MAX),
    }
}

fn live_twice(world: &mut World) -> Result<usize, String> {
    world.fleet.start(Some(world.swarm.shape.cells))?;
    invite_clients(world);
    live(world)?;
    let looked_at = check_history(world)?;
    if world.is_lost() && world.outage.is_behind(world.fleet.incidents.switched_at) {
        // Only a replay of the logs would make the pool whole.
        world.fleet.sim.count("a fleet that ended while a cell was out");
        return Ok(looked_at);
    }
    fsck(world, "after the stop")?;
    if !world.is_lost() && world.swarm.space.chunks.is_none() {
        damage::check_kept(&mut world.fleet, POOL_BYTES / BLOCK_SIZE as u64)?;
    }
    restart(world)?;
    live(world)?;
    // After a loss the pool is in the state of its last checkpoint, and there is no model of
    // that state to compare with.
    let looked_at = if world.is_lost() { 0 } else { check_history(world)? };
    fsck(world, "after the second stop")?;
    Ok(looked_at)
}

/// Returns the number of states tried.
fn check_history(world: &mut World) -> Result<usize, String> {
    note_lost_posts(world);
    let (clock, mut stepped) = (&world.fleet.sim.wall_clock, Vec::new());
    if clock.has_steps() {
        stepped.clone_from(&world.history.operations);
        stepped.iter_mut().for_each(|it| it.window = clock.window(it.window));
    }
    let history = if clock.has_steps() { &stepped } else { &world.history.operations };
    match check(&State::new(0, 0, EPOCH), history, SEARCH_MAX) {
        Verdict::Linearizable { last, looked_at } => {
            world.last = Some(last);
            Ok(looked_at)
        }
        Verdict::Illegal(explanation) => Err(blame(world, &explanation, "")),
        Verdict::Undecided(explanation) => {
            Err(blame(world, &explanation, "the search was given up; so far "))
        }
    }
}

fn blame(world: &mut World, explanation: &Explanation, so_far: &str) -> String {
    let until = Instant((explanation.until.0 - EPOCH.0).max(0) as u64);
    // A clock that steps does not show when that was.
    world.blamed_at =
        if world.fleet.sim.wall_clock.has_steps() { Instant(u64::MAX) } else { until };
    format!("{so_far}{explanation}")
}

/// Starts one client, which reads everything.
fn restart(world: &mut World) -> Result<(), String> {
    // Other clients get the numbers of these.
    note_lost_posts(world);
    if world.is_lost() {
        world.fleet.sim.count("a fleet started after a loss");
    }
    let (at, wall) = ((world.fleet.sim.place(), world.fleet.sim.place()), world.fleet.sim.wall());
    world.history.operations.push(Operation::new(0, Action::Restart, at, wall));
    world.fleet.sim.faults = Faults::default();
    // Messages under way when the fleet ended are lost.
    world.fleet.vanish();
    world.outage = Outage::default();
    if damage::before_restart(&mut world.fleet, &mut world.damage) {
        note_damage(world);
    }
    world.clients.clear();
    world.phase = Phase::Heal;
    world.last_return = world.fleet.sim.now;
    world.fleet.sizes.chunks = None;
    world.fleet.start(Some(world.swarm.shape.cells_later))?;
    let credentials = Credentials::default();
    let mut client = Client::new(credentials, 1, &world.fleet.map, MAP_VERSION, CellId(0));
    client.process = world.history.new_processes(2);
    world.clients.push(client);
    let known = world.last.as_ref().filter(|_| world.fleet.incidents.has_damage());
    let known = known.map(|state| state.inodes().map(|(ino, inode)| (ino, inode.kind)).collect());
    world.audit = Some(Audit::of_tree(known.unwrap_or_default()));
    Ok(())
}

/// Runs until the fleet has stopped.
fn live(world: &mut World) -> Result<(), String> {
    while world.phase != Phase::Stopped {
        if !happen_next(world) {
            return Err(format!("there are no more events; {}", under_way(world)));
        }
        damage_shard(world);
        advance_outage(world);
        check_kept(world);
        if let Some(failure) = world.fleet.sim.failure.take() {
            return Err(failure);
        }
        // The new checkpoint is in the state of the last one or of the one before.
        let is_new = std::mem::replace(&mut world.looked_at, world.fleet.incidents.switched_at)
            != world.fleet.incidents.switched_at;
        let is_whole = !world.outage.is_behind(world.fleet.incidents.switched_at);
        if is_new && is_whole && world.fleet.sim.rng.chance(1, 8) {
            world.fleet.sim.count("fsck while running");
            fsck(world, "while running")?;
        }
        if world.phase == Phase::Heal && world.outage.is_over() && all_finished(world) {
            world.phase = Phase::Stopping;
            world.last_return = world.fleet.sim.now;
            if world.is_first_life() {
                world.fleet.sim.faults = Faults {
                    kills: world.swarm.faults.kills,
                    deaths: world.swarm.faults.deaths,
                    ..Faults::default()
                };
            }
            notify_supervisor(world, SupervisorEvent::Stop);
        }
        if world.fleet.sim.now - world.last_return > RETURN_TIMEOUT {
            return Err(format!("no call returns; {}", under_way(world)));
        }
        if world.fleet.sim.trace.events > EVENTS_MAX {
            return Err(format!("the run does not end; {}", under_way(world)));
        }
    }
    // When a fleet is lost while answers are under way, the effects of these calls have
    // happened.
    while let Some((_, happening)) = world.fleet.sim.queue.next() {
        if let Happening::Reply { from, to, seq, hint, answer } = happening {
            would_answer(world, from, to, seq, hint, answer.answer);
        }
    }
    // A dead cell may also have executed requests that it had not answered.
    for id in world.fleet.cell_ids() {
        let slots = &mut world.fleet.host_mut(id).slots;
        for ((to, seq), (hint, answer)) in std::mem::take(&mut slots.executed) {
            would_answer(world, id, to, seq, hint, answer);
        }
    }
    Ok(())
}

/// Damages a shard, if it is time and there is one that it can be done to.
fn damage_shard(world: &mut World) {
    if world.phase != Phase::Safety || !world.fleet.is_served() {
        return;
    }
    let Some(mut plan) = world.damage.take(world.calls_left) else { return };
    match strike(world, &mut plan) {
        true => note_damage(world),
        false => world.damage.put_back(plan, world.calls_left),
    }
}

fn all_finished(world: &World) -> bool {
    let mut slots = world.clients.iter().flat_map(|client| &client.slots);
    slots.all(|slot| slot.state == SlotState::Finished)
}

fn under_way(world: &World) -> String {
    let mut text = format!("phase {:?}; under way:", world.phase);
    for client in world.clients.iter().filter(|client| !client.is_gone) {
        for slot in &client.slots {
            if let Some(request) = slot.under_way() {
                text.push_str(&format!("\n    {} {request:?}", client.id));
            }
        }
    }
    text
}

fn fsck(world: &mut World, when: &str) -> Result<(), String> {
    // The second superblock copy is updated after the cells have continued.
    // While a fleet runs the device lies behind what is known.
    let is_known = world.phase == Phase::Stopped && !world.is_lost();
    let state = world.last.as_ref().filter(|_| is_known);
    let matters = |finding: &Finding, all: &[Finding]| {
        !matches!(finding, Finding::SuperblockBehind { .. })
            && !damage::is_explained(&world.fleet, state, finding, all)
    };
    let blocks = POOL_BYTES / BLOCK_SIZE as u64;
    let Some(findings) = world.fleet.device.disk.damage(blocks, matters) else { return Ok(()) };
    // If the right answers are known, a wrong answer explains more than a wrong disk.
    if !world.is_lost() {
        check_history(world)?;
    }
    Err(format!("fsck {when}:{findings}"))
}

/// The outage goes on. The history says which shards calls may be refused for.
fn advance_outage(world: &mut World) {
    let (left, heals) = (world.calls_left, world.phase != Phase::Safety);
    let outage = std::mem::take(&mut world.outage);
    let (outage, out) = outage::advance(world, outage, left, heals);
    world.outage = outage;
    if let Some(cell) = out {
        let process = world.history.new_processes(1);
        let these = outage::shards_of(&world.fleet, cell);
        let damaged = damage::shards(&world.fleet, Rc::new(these));
        world.history.operations.push(damage::operation(&mut world.fleet, process, damaged));
    }
}
