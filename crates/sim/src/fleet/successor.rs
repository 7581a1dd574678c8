//! A cell's successor starts.

use warren_base::CellId;
use warren_cell::{Cell, Plant};

use super::start::successor_config;
use super::turn::{carry_out_all, obey};
use super::{Happening, Surroundings};

/// Starts the wanted successor, once no I/O of its predecessors is in flight.
pub(super) fn start_successor<W: Surroundings>(world: &mut W, id: CellId) {
    let fleet = world.fleet_mut();
    let starts_early = fleet.sim.plant == Some(Plant::StartEarly);
    let host = fleet.host(id);
    if !host.is_starting || !(fleet.device.is_idle(id) || starts_early) {
        return;
    }
    let mut effects = Vec::new();
    let cell = Cell::new(successor_config(fleet, id), fleet.sim.clock(), &mut effects);
    let beginning = fleet.host_mut(id).begin_successor(cell);
    // It has written nothing yet that a flush could have lost.
    fleet.device.open(Some(id));
    for other in fleet.cell_ids().filter(|other| *other != id) {
        fleet.links.open(&mut fleet.sim, other, id);
    }
    for order in beginning {
        obey(world, id, order);
        let fleet = world.fleet_mut();
        if fleet.host(id).dead {
            return fleet.sim.count("a successor killed before its first turn");
        }
    }
    let fleet = world.fleet_mut();
    let (sim, _, host) = fleet.parts_of(id);
    host.plan_order(sim);
    if std::mem::take(&mut fleet.host_mut(id).is_to_end) {
        let epoch = fleet.epoch(id);
        fleet.sim.plan(0, Happening::Kill { cell: id, epoch });
    }
    carry_out_all(world, id, effects);
}
