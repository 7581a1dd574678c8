//! Events of the supervisor, and its effects.

use std::time::Duration;

use warren_base::{CellId, ClientId, Epoch, ShardId};
use warren_cell::Plant;
use warren_proto::control::{Order, Report};
use warren_supervisor::{Effect as SupervisorEffect, Event as SupervisorEvent, Hint, Verdict};

use super::adopt::{draw_supervisors_death, kill_supervisor, take_over};
use super::{Fleet, Happening, Surroundings};

/// The time between two looks at turns: runs are short.
const TURNS_EVERY: Duration = Duration::from_micros(2);

/// Applies an event to the supervisor, and carries out its effects.
pub(crate) fn notify_supervisor<W: Surroundings>(world: &mut W, event: SupervisorEvent) {
    let fleet = world.fleet_mut();
    count_ended(fleet, &event);
    let mut supervisor = fleet.supervisor.supervisor.take().expect("it does one thing at a time");
    let mut effects = Vec::new();
    let given_up = match &event {
        SupervisorEvent::Report { from, epoch, report: Report::GivenUp { shard, .. } } => {
            Some(*shard).filter(|_| fleet.host(*from).is_running(*epoch))
        }
        _ => None,
    };
    supervisor.apply(fleet.sim.now, fleet.sim.wall(), event, &mut effects);
    fleet.supervisor.supervisor = Some(supervisor);
    while draw_supervisors_death(world.fleet_mut(), &effects) {
        let mut death = kill_supervisor(world.fleet_mut(), effects);
        carry_out_all(world, std::mem::take(&mut death.done));
        let (left, catching_up) = take_over(world.fleet_mut(), death);
        carry_out_all(world, left);
        effects = catching_up;
    }
    if let Some(shard) = given_up {
        check_named(world.fleet_mut(), shard);
    }
    carry_out_all(world, effects);
    plan_looks_at_turns(world.fleet_mut());
}

/// Whether the status names a shard that was reported as given up.
pub(crate) fn check_named<H>(fleet: &mut Fleet<H>, shard: ShardId) {
    let status = fleet.supervisor().status();
    if !status.given_up.iter().any(|(named, _)| *named == shard) {
        fleet.sim.fail(format!("the status does not name {shard:?}, which was given up"));
    }
}

fn carry_out_all<W: Surroundings>(world: &mut W, effects: Vec<SupervisorEffect>) {
    for effect in effects {
        world.fleet_mut().sim.note(&("supervisor", &effect));
        carry_out(world, effect);
    }
    for host in &mut world.fleet_mut().cells {
        host.beginning.get_or_insert(host.orders.len());
    }
}

fn carry_out<W: Surroundings>(world: &mut W, effect: SupervisorEffect) {
    let fleet = world.fleet_mut();
    match effect {
        SupervisorEffect::Send { to, order } => send_order(fleet, to, order),
        SupervisorEffect::Write { io, block, bytes } => {
            let (sim, by) = (&mut fleet.sim, fleet.supervisor.number);
            fleet.device.supervise(sim, by, io, Some((block, bytes)));
        }
        SupervisorEffect::Flush { io } => {
            fleet.device.supervise(&mut fleet.sim, fleet.supervisor.number, io, None);
        }
        SupervisorEffect::Wake(at) => {
            let at = at.max(fleet.sim.now);
            fleet.supervisor.wake = Some(at);
            fleet.sim.plan_at(at, Happening::SupervisorTick { at });
        }
        SupervisorEffect::FleetReady => world.fleet_is_ready(),
        SupervisorEffect::NewClient { connection, client } => world.numbered(connection, client),
        SupervisorEffect::AdmitClient { client } => world.admit(client),
        SupervisorEffect::RefuseClient { connection, errno } => world.refuse(connection, errno),
        SupervisorEffect::ForgetClient { client } => check_forgotten(fleet, client),
        // Only a client whose stop can be refused gets a reply.
        SupervisorEffect::MayStop | SupervisorEffect::StopRefused { .. } => {}
        SupervisorEffect::Restart { cell, epoch, is_caretaker } => {
            restart_cell(fleet, cell, epoch, is_caretaker);
        }
        SupervisorEffect::Kill { cell, epoch, verdict } => {
            fleet.sim.count(match verdict {
                Verdict::Accused { .. } => "an accused cell is to end",
                Verdict::AccusesAgain { .. } => "an accuser is to end",
                Verdict::Hangs { why: Hint::Silent, .. } => "a silent cell is to end",
                Verdict::Hangs { .. } => "a cell that hangs is to end",
                Verdict::VotedDown { .. } => "a false accuser is to end",
                Verdict::LostWakeup => "a cell that lost a wake-up is to end",
                Verdict::Rejoins => "a caretaker is to end",
                Verdict::Misbehaves { .. } => unreachable!("nothing here damages reports"),
            });
            let is_spared = fleet.sim.plant == Some(Plant::SpareAccusers);
            if !(is_spared && matches!(verdict, Verdict::VotedDown { .. })) {
                let delay = fleet.sim.message_delay();
                fleet.sim.plan(delay, Happening::Kill { cell, epoch });
            }
        }
        // Each stop of a cell ends by itself here.
        SupervisorEffect::Resume { .. } => fleet.sim.count("a stopped cell is to be resumed"),
        SupervisorEffect::Grown { result } => world.grown(result),
        SupervisorEffect::Exit(result) => world.fleet_ended(result),
    }
}

/// The processes on trial are looked at as long as a trial depends on their turns.
pub(super) fn plan_looks_at_turns<H>(fleet: &mut Fleet<H>) {
    let mut cells = fleet.cell_ids();
    if !fleet.lost.looks && cells.any(|cell| fleet.supervisor().detector().counts_turns(cell)) {
        fleet.lost.looks = true;
        fleet.sim.plan(TURNS_EVERY.as_nanos() as u64, Happening::Turns);
    }
}

/// Sends an order to a cell, and counts what it says of checkpoints and recoveries.
fn send_order<H>(fleet: &mut Fleet<H>, to: CellId, order: Order) {
    match order {
        Order::Switched { number, .. } => {
            fleet.incidents.switched(number, fleet.sim.place());
            fleet.sim.count("a checkpoint");
            fleet.incidents.is_checkpointing = false;
        }
        Order::Drain { .. } => fleet.incidents.is_checkpointing = true,
        Order::Abandoned { .. } => fleet.incidents.is_checkpointing = false,
        Order::Failed { .. } => {
            fleet.sim.count("a checkpoint that failed");
            fleet.incidents.is_checkpointing = false;
        }
        Order::Replay => fleet.sim.count("logs replayed"),
        _ => {}
    }
    let (sim, _, host) = fleet.parts_of(to);
    host.send_order(sim, order);
}

/// Counts ended processes, by the supervisor's next event.
fn count_ended<H>(fleet: &mut Fleet<H>, event: &SupervisorEvent) {
    match event {
        SupervisorEvent::Report { from, epoch, report: Report::Ready { .. } }
            if fleet.epoch(*from) == *epoch =>
        {
            fleet.host_mut(*from).ended_in_a_row = 0;
        }
        SupervisorEvent::CellExited { cell, .. } => fleet.host_mut(*cell).ended_in_a_row += 1,
        _ => {}
    }
}

/// The supervisor wants a successor.
fn restart_cell<H>(fleet: &mut Fleet<H>, id: CellId, epoch: Epoch, is_caretaker: bool) {
    if !fleet.host(id).dead {
        let rule = format!("cell {id} gets a successor, and its process is not gone");
        return fleet.sim.fail(rule);
    }
    fleet.links.make(&mut fleet.sim, fleet.cells.len() as u16, id);
    fleet.host_mut(id).prepare_successor(epoch, is_caretaker);
    let delay = fleet.sim.message_delay();
    fleet.sim.plan(delay, Happening::Start { cell: id });
}

/// A client that the supervisor forgets must be unknown to all cells.
fn check_forgotten<H>(fleet: &mut Fleet<H>, client: ClientId) {
    let is_known = |cell: &CellId| !fleet.lanes.is_closed(*cell, client);
    if let Some(cell) = fleet.cell_ids().find(is_known) {
        fleet.sim.fail(format!("{client} is forgotten, but {cell} has not let it go"));
    }
}
