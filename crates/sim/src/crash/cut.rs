//! The power is cut.

use super::audit::suppose_under_way;
use super::client::Client;
use super::wild::doubt_files;
use super::{Stage, World};
use crate::fleet::DeviceFaults;
use crate::outage::Outage;
use crate::simulation::Faults;

/// Cuts the power: only the contents of the disk are left.
pub(super) fn cut_power(world: &mut World) {
    doubt_files(world);
    suppose_under_way(world);
    let under_way = world.fleet.vanish();
    let cut = world.fleet.device.disk.cut(under_way, &mut world.fleet.sim.rng);
    world.fleet.sim.note(&("power cut", cut.lost, cut.torn));
    world.clients.iter_mut().for_each(Client::reset);
    world.cut_at = u64::MAX;
    if world.outage.excuses(u64::MAX) {
        world.fleet.sim.count("a power cut while a cell was out");
    }
    world.outage = Outage::default();
    (world.is_working, world.is_stopping) = (false, false);
    world.fleet.sim.faults = Faults::default();
    world.fleet.incidents.begin_anew();
    world.stage = Stage::Starting;
    world.fleet.sim.count("power cut");
    world.fleet.count_after_loss("power cut after a failed flush");
    world.fleet.device.faults = DeviceFaults::default();
    count_many(world, "write lost", cut.lost);
    count_many(world, "torn block", cut.torn);
}

fn count_many(world: &mut World, what: &'static str, times: u64) {
    (0..times).for_each(|_| world.fleet.sim.count(what));
}
