//! The next event of all: it is applied to its cell, to the supervisor, or to the world.

use warren_base::{CellId, ClientId, Epoch};
use warren_cell::{Event, IoId, SlotRef};
use warren_proto::{Request, RequestHeader};
use warren_supervisor::Event as SupervisorEvent;

use super::device::{Doing, draw_flush_behind, note_incident};
use super::kill::kill_cell;
use super::lie::lie;
use super::lose::plan_review;
use super::start::reserve_replayed;
use super::successor::start_successor;
use super::supervise::notify_supervisor;
use super::turn::{deliver_peer, happen_to, obey};
use super::watch::{look_at_cell, look_at_turns};
use super::{Happening, Surroundings};

/// Applies the next event, if there is one.
pub(crate) fn happen_next<W: Surroundings>(world: &mut W) -> bool {
    let fleet = world.fleet_mut();
    let Some(happening) = fleet.sim.advance() else { return false };
    fleet.sim.trace.event(fleet.sim.now, happening.words(W::words), &happening);
    happen(world, happening);
    true
}

fn happen<W: Surroundings>(world: &mut W, happening: Happening<W::Own>) {
    let fleet = world.fleet_mut();
    if let Some(cell) = happening.addressee() {
        let (sim, _, host) = fleet.parts_of(cell);
        if let Some(until) = host.pause(sim) {
            return sim.plan_at(until, happening);
        }
    }
    match happening {
        Happening::Request { cell, from, header, request } => {
            offer_request(world, cell, from, header, request);
        }
        Happening::Reply { from, to, seq, hint, answer } => {
            world.answered(from, to, seq, hint, answer);
        }
        Happening::Peer { from, to, link } => {
            if let Some(message) = fleet.links.next(&mut fleet.sim, from, to, link) {
                deliver_peer(world, from, to, message);
            }
        }
        Happening::Order { to, epoch } => take_order(world, to, epoch),
        Happening::Report { from, epoch } => take_report(world, from, epoch),
        Happening::CellIo { cell, epoch, io } => cell_io_done(world, cell, epoch, io),
        Happening::HostMeasured { cell, epoch, blocks } => {
            if fleet.host(cell).is_running(epoch) {
                happen_to(world, cell, Event::HostMeasured { blocks });
            }
        }
        Happening::Exited { cell, epoch } => {
            notify_supervisor(world, SupervisorEvent::CellExited { cell, epoch, by_itself: false });
        }
        Happening::Start { cell } => start_successor(world, cell),
        Happening::Kill { cell, epoch } => execute_verdict(world, cell, epoch),
        Happening::Look { cell, epoch, errs } => look_at_cell(world, cell, epoch, errs),
        Happening::Review { cell } => review(world, cell),
        Happening::Posted { cell, client } => look_at_stream(world, cell, client),
        Happening::Turns => look_at_turns(world),
        Happening::Lie { cell, epoch, of, number } => lie(world, (cell, epoch), of, number),
        Happening::LateReport { from, epoch, report } => {
            fleet.sim.count(match fleet.epoch(from) == epoch {
                true => "a report of a lost cell",
                false => "a report of an earlier epoch",
            });
            notify_supervisor(world, SupervisorEvent::Report { from, epoch, report });
        }
        Happening::SupervisorIo { by, io } => {
            // The I/O of a dead supervisor was over before another took over.
            if fleet.supervisor.number == by {
                let (sim, incidents) = (&mut fleet.sim, &mut fleet.incidents);
                let result = fleet.device.end_supervised(sim, incidents, io);
                notify_supervisor(world, SupervisorEvent::IoDone { io, result });
            }
        }
        Happening::Tick { cell, epoch, at } => {
            let host = fleet.host_mut(cell);
            if host.epoch == epoch && host.wake.take_if(|wake| *wake == at).is_some() {
                happen_to(world, cell, Event::Tick);
            }
        }
        Happening::SupervisorTick { at } => {
            if fleet.supervisor.wake.take_if(|wake| *wake == at).is_some() {
                notify_supervisor(world, SupervisorEvent::Tick);
            }
        }
        Happening::Own(own) => world.happen(own),
    }
}

fn take_order<W: Surroundings>(world: &mut W, to: CellId, epoch: Epoch) {
    let (sim, _, host) = world.fleet_mut().parts_of(to);
    if host.is_running(epoch) {
        let order = host.next_order(sim);
        obey(world, to, order);
    }
}

fn take_report<W: Surroundings>(world: &mut W, from: CellId, epoch: Epoch) {
    let (sim, device, host) = world.fleet_mut().parts_of(from);
    if host.is_running(epoch) {
        let report = host.next_report(sim);
        reserve_replayed(&mut device.disk, &report);
        notify_supervisor(world, SupervisorEvent::Report { from, epoch, report });
    }
}

/// The supervisor kills a cell.
fn execute_verdict<W: Surroundings>(world: &mut W, id: CellId, epoch: Epoch) {
    let fleet = world.fleet_mut();
    if fleet.host(id).is_running(epoch) {
        fleet.sim.count("a cell ended by a verdict");
        kill_cell(world, id);
    } else if fleet.host(id).is_starting && fleet.epoch(id) == epoch {
        // A caretaker that waits for the I/O of the process before it.
        fleet.host_mut(id).is_to_end = true;
    }
}

/// Ends an I/O of a cell. That of a dead cell may still reach the device, or not.
fn cell_io_done<W: Surroundings>(world: &mut W, id: CellId, epoch: Epoch, io: IoId) {
    let fleet = world.fleet_mut();
    let (sim, device, host) = fleet.parts_of(id);
    let Some(done) = device.take(sim, host, epoch, io) else { return };
    if !host.is_running(epoch) {
        device.let_land(sim, host, &done);
        return start_successor(world, id);
    }
    note_incident(&mut fleet.incidents, id, &done, fleet.sim.places);
    let (sim, device, host) = fleet.parts_of(id);
    let mut result = device.carry_out(sim, host, &done);
    match done.doing {
        Doing::WriteThrough if result.is_ok() => match draw_flush_behind(sim) {
            true => return device.submit_flush(sim, host, io),
            false => device.harden(&done),
        },
        Doing::Flush(_) => result = device.flush_result(Some(id)),
        _ => {}
    }
    happen_to(world, id, Event::IoDone { io, result });
}

/// A request is in its slot. A cell that cannot take it finds it there later.
fn offer_request<W: Surroundings>(
    world: &mut W,
    cell: CellId,
    from: SlotRef,
    header: RequestHeader,
    request: Request,
) {
    if world.fleet_mut().host_mut(cell).slots.submit(from, header, request.clone()) {
        happen_to(world, cell, Event::Request { from, header, request });
    }
}

/// A cell looks at the stream of a client that has posted.
fn look_at_stream<W: Surroundings>(world: &mut W, cell: CellId, client: ClientId) {
    let fleet = world.fleet_mut();
    let is_watched = fleet.lanes.streams.is_watched((cell, client));
    if fleet.host(cell).slots.is_ready && is_watched {
        happen_to(world, cell, Event::Posted { client });
    }
}

/// A cell reviews what waits, and will again.
fn review<W: Surroundings>(world: &mut W, cell: CellId) {
    plan_review(world.fleet_mut(), cell);
    if !world.fleet().host(cell).dead {
        happen_to(world, cell, Event::Review);
    }
}
