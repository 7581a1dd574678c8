//! Events happen until the world has what it waits for, or the power is cut.

use std::time::Duration;

use warren_base::{Errno, Instant};
use warren_supervisor::Failure as Ended;

use super::{Halt, Stage, World};
use crate::damage::strike;
use crate::fleet::happen_next;
use crate::outage;

/// Events after which a phase counts as stuck: far more than the slowest needs.
const EVENTS_MAX: u64 = 1_000_000;
/// Virtual time in which every operation must end, whatever has failed.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn start_fleet(world: &mut World, cells: Option<u16>) -> Result<(), Halt> {
    world.stage = Stage::Starting;
    world.fleet.start(cells).map_err(Halt::Broken)?;
    let blocks = world.fleet.supervisor().ledger().superblock().layout.total_blocks();
    if world.growths.check(blocks).map_err(Halt::Broken)? {
        world.fleet.sim.count("a pool grown although the power was cut");
    }
    Ok(())
}

/// Whether the fleet may end with this failure. Failed writes of cells end no fleet, but they
/// may make a last checkpoint fail.
fn may_fail(world: &World, failure: Ended) -> bool {
    let is_broken = matches!(failure, Ended::Unreadable { cell, errno: Errno::EIO }
        if world.fleet.incidents.excuse_broken(cell));
    is_broken
        || (matches!(failure, Ended::TakenOut { .. }) && !world.outage.is_over())
        || world.rotten == Some(failure)
        || world.fleet.device.faults.may_be_read_only()
        || (world.is_stopping && world.fleet.device.faults.cells > 0)
}

/// Runs events until the condition holds.
pub(super) fn pump(world: &mut World, until: impl Fn(&World) -> bool) -> Result<(), Halt> {
    let begun = world.fleet.sim.trace.events;
    world.answered_at = world.fleet.sim.now;
    while !until(world) {
        if world.fleet.sim.trace.events >= world.cut_at {
            return Err(Halt::Cut);
        }
        damage_shard(world);
        advance_outage(world);
        if !happen_next(world) {
            let text = format!("there are no more events; {}", under_way(world));
            return Err(Halt::Broken(text));
        }
        if let Some(failure) = world.fleet.sim.failure.take() {
            return Err(Halt::Broken(failure));
        }
        if let Stage::Ended(Err(failure)) = world.stage
            && !may_fail(world, failure)
        {
            return Err(Halt::Broken(format!("the fleet ended: {failure}")));
        }
        let is_late = world.fleet.sim.now - waits_since(world) > PROGRESS_TIMEOUT;
        if is_late || world.fleet.sim.trace.events - begun > EVENTS_MAX {
            return Err(Halt::Broken(format!("the fleet makes no progress; {}", under_way(world))));
        }
    }
    Ok(())
}

/// Damages a shard, if it is time and there is one that it can be done to.
fn damage_shard(world: &mut World) {
    let now = world.fleet.sim.trace.events;
    if !world.is_working || !world.fleet.is_served() {
        return;
    }
    let Some(mut due) = world.damage.take_if(|due| due.is_now(now)) else { return };
    if !strike(world, &mut due.plan) {
        world.damage = Some(due.postpone(now));
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

/// The time since which a client has waited without any answer.
fn waits_since(world: &World) -> Instant {
    let waiting = world.clients.iter().filter(|client| client.under_way.is_some());
    waiting.map(|client| client.asked.1).min().unwrap_or(world.answered_at)
}

fn under_way(world: &World) -> String {
    let requests = world.clients.iter().filter_map(|client| client.under_way.as_ref());
    let lines = requests.map(|(request, _)| format!("\n    {request:?}"));
    format!("{:?}, under way:{}", world.stage, lines.collect::<String>())
}
