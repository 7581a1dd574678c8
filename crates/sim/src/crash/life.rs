//! A run: lives of fleets, one after the other.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Instant, Rng};
use warren_cell::Backing;
use warren_supervisor::Event as SupervisorEvent;

use super::audit::{read_back, set_up};
use super::client::Client;
use super::cut::cut_power;
use super::damage::{Due, damage_at_cut, is_explained};
use super::growth::Growths;
use super::mix::Mix;
use super::pump::{pump, start_fleet};
use super::rot::rot_log;
use super::surroundings::plan_nudge;
use super::wild::doubt_files;
use super::{Halt, Options, Own, POOL_BYTES, Stage, World};
use crate::fleet::disk::Disk;
use crate::fleet::{Fleet, Lost, needs_recovery, notify_supervisor};
use crate::outage::Outage;
use crate::run::{Broken, Failure, Summary, many, twice};
use crate::simulation::trace::Trace;
use crate::simulation::wall::WallClock;

/// Chunks that the host of a sparse pool has room for before clients work.
const HOST_ROOM: u64 = 1000;
/// Tree nodes that cells keep where one is damaged: it is soon read again.
const NODES_FEW: usize = 2;
/// Power cuts of one recovery.
const CUTS_OF_RECOVERY_MAX: u64 = 3;

/// Runs one seed. The same seed always does the same.
pub fn run(seed: u64, options: Options) -> Result<Summary, Failure> {
    twice(seed, &|verbose| attempt(seed, options, verbose))
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

fn attempt(seed: u64, options: Options, verbose: bool) -> Result<Summary, Broken> {
    let mut world = draw_world(seed, options, verbose);
    if let Err(halt) = live_all(&mut world) {
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

fn draw_world(seed: u64, options: Options, verbose: bool) -> World {
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
    World {
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

fn live_all(world: &mut World) -> Result<(), Halt> {
    for life in 0..world.mix.lives {
        open_pool(world, life > 0)?;
        if life == 0 {
            set_up(world)?;
        } else {
            read_back(world)?;
        }
        if let Some(due) = &mut world.damage {
            due.begin_life(world.fleet.sim.trace.events, world.mix.events);
        }
        work(world)?;
        cut_power(world);
        if let Some(due) = world.damage.take_if(|due| due.is_at_cut()) {
            damage_at_cut(&mut world.fleet, due);
        }
        if world.fleet.sim.rng.chance(1, 4) {
            rot_log(world)?;
        }
        recover_pool(world)?;
    }
    open_pool(world, true)?;
    read_back(world)?;
    stop_fleet(world)?;
    fsck(world, "at the end")
}

/// Starts a fleet that serves. Its power may be cut before.
fn open_pool(world: &mut World, may_be_cut: bool) -> Result<(), Halt> {
    loop {
        let cells = 1 + world.fleet.sim.rng.below(u64::from(world.mix.cells_max)) as u16;
        start_fleet(world, Some(cells))?;
        world.fleet.sim.faults.deaths = world.mix.faults.deaths;
        if may_be_cut && world.fleet.sim.rng.chance(1, 8) {
            world.cut_at = world.fleet.sim.trace.events + world.fleet.sim.rng.below(60);
        }
        match pump(world, |world| world.stage == Stage::Serving) {
            Err(Halt::Cut) => {
                world.fleet.sim.count("power cut while opening");
                cut_power(world);
                recover_pool(world)?;
            }
            opened => {
                world.cut_at = u64::MAX;
                return opened;
            }
        }
    }
}

/// Clients work until the power is cut, or the fleet was stopped in order.
fn work(world: &mut World) -> Result<(), Halt> {
    world.is_working = true;
    world.fleet.sim.faults = world.mix.faults;
    let is_harmed = world.damage.is_some() || world.fleet.incidents.has_damage();
    if is_harmed || world.outages.is_some() {
        world.fleet.sim.faults.wild = 0;
    }
    if let Some(host) = &mut world.fleet.device.disk.host {
        let (room, takes_back) = world.mix.host;
        host.share(room, takes_back);
    }
    plan_nudge(world);
    if let Some(delay) = world.growths.delay() {
        world.plan(delay, Own::Grow);
    }
    (0..world.auditor()).for_each(|client| world.plan_step(client));
    world.cut_at = world.fleet.sim.trace.events + world.fleet.sim.rng.below(world.mix.events);
    if let Some(rng) = &mut world.outages {
        world.outage = Outage::draw(rng.next_u64(), world.cut_at - world.fleet.sim.trace.events);
    }
    let is_over = |world: &World| matches!(world.stage, Stage::Ended(_));
    match pump(world, is_over) {
        Err(Halt::Cut) if world.fleet.sim.rng.chance(1, 6) => {}
        Err(Halt::Cut) if world.fleet.sim.rng.chance(1, 6) => return answer_all(world),
        Err(Halt::Cut) => return Ok(()),
        // Only a failing device ends a fleet.
        ended => return ended,
    }
    world.is_stopping = true;
    world.fleet.sim.count("a stop");
    notify_supervisor(world, SupervisorEvent::Stop);
    let some = world.fleet.sim.trace.events + world.fleet.sim.rng.below(200);
    world.cut_at = if world.fleet.sim.rng.chance(1, 2) { some } else { u64::MAX };
    match pump(world, is_over) {
        Err(Halt::Cut) => {
            world.fleet.sim.count("power cut while stopping");
            Ok(())
        }
        Ok(()) if world.stage == Stage::Ended(Ok(())) => {
            doubt_files(world);
            world.clients.iter_mut().for_each(Client::promise);
            world.fleet.sim.count("stopped in order");
            Ok(())
        }
        ended => ended,
    }
}

/// Stops new requests, and waits until all are answered, whatever has failed.
fn answer_all(world: &mut World) -> Result<(), Halt> {
    (world.is_working, world.cut_at) = (false, u64::MAX);
    world.fleet.sim.count("all clients answered");
    pump(world, |world| {
        let is_idle = world.clients.iter().all(|client| client.under_way.is_none());
        is_idle || matches!(world.stage, Stage::Ended(_))
    })
}

fn stop_fleet(world: &mut World) -> Result<(), Halt> {
    world.is_stopping = true;
    notify_supervisor(world, SupervisorEvent::Stop);
    pump(world, |world| matches!(world.stage, Stage::Ended(_)))
}

/// Replays the logs, however often the power is cut meanwhile.
fn recover_pool(world: &mut World) -> Result<(), Halt> {
    let mut cuts = if world.fleet.sim.rng.chance(1, 3) {
        world.fleet.sim.rng.below(CUTS_OF_RECOVERY_MAX + 1)
    } else {
        0
    };
    while needs_recovery(&world.fleet.device.disk).map_err(Halt::Broken)? {
        start_fleet(world, None)?;
        if cuts > 0 {
            cuts -= 1;
            world.cut_at = world.fleet.sim.trace.events + world.fleet.sim.rng.below(150);
        }
        match pump(world, |world| matches!(world.stage, Stage::Ended(_))) {
            Err(Halt::Cut) => {
                world.fleet.sim.count("power cut while recovering");
                cut_power(world);
            }
            Err(halt) => return Err(halt.within("recovery")),
            Ok(()) if world.stage != Stage::Ended(Ok(())) => {
                return Err(Halt::Broken(format!("recovery: {:?}", world.stage)));
            }
            Ok(()) => {
                world.fleet.sim.count("recovered");
                cut_power(world);
            }
        }
    }
    fsck(world, "after recovery")
}

fn fsck(world: &mut World, when: &str) -> Result<(), Halt> {
    let blocks = world.growths.device_blocks();
    let models: Vec<_> = world.clients.iter().filter_map(|it| it.model.as_ref()).collect();
    let matters = |finding: &_, all: &[_]| !is_explained(&world.fleet, &models, finding, all);
    match world.fleet.device.disk.damage(blocks, matters) {
        None => Ok(()),
        Some(findings) => Err(Halt::Broken(format!("fsck {when}:{findings}"))),
    }
}
