//! An event of a cell: it is applied, and its effects are carried out. The cell's process may die
//! before, at any store, or among the effects.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use warren_base::CellId;
use warren_cell::{Effect, Event, PeerMessage, Plant};
use warren_proto::control::{Order, Report, Suspicion};

use super::effect::{carry_out, note_executed};
use super::kill::{draw_death, kill_cell};
use super::lie::draw_liar;
use super::lose::{draw_lost_message, draw_lost_wakeup, note_lost_wakeup};
use super::memory::SharedMemory;
use super::process::{Death, Killed};
use super::{Fleet, Surroundings};

/// Applies an event to a cell, and carries out its effects.
pub(super) fn happen_to<W: Surroundings>(world: &mut W, id: CellId, event: Event) {
    let fleet = world.fleet_mut();
    if fleet.host(id).dead {
        return;
    }
    let death = draw_death(fleet, id);
    if death == Some(Death::Before) {
        return kill_cell(world, id);
    }
    let loses = draw_lost_wakeup(fleet, id);
    draw_liar(fleet, id);
    let mut cell = fleet.host_mut(id).cell.take().expect("a cell does one thing at a time");
    fleet.event_began = fleet.sim.place();
    let now = fleet.sim.clock();
    let mut effects = Vec::new();
    let stores_left = match death {
        Some(Death::AtStore(stores)) => Some(stores),
        _ => None,
    };
    let mut memory = SharedMemory { world, cell: id, stores_left };
    let emptied = cell.chunks_emptied();
    if loses {
        cell.lose_wakeup();
    }
    let apply = || {
        cell.apply(now, event, &mut memory, &mut effects);
        cell.add_checksums(usize::MAX, &mut memory);
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(apply)) {
        if !panic.is::<Killed>() {
            resume_unwind(panic);
        }
        world.fleet_mut().sim.count("a cell killed at a store");
        return kill_cell(world, id);
    }
    let fleet = world.fleet_mut();
    if loses && cell.has_lost_wakeup() {
        note_lost_wakeup(fleet, id);
    }
    if cell.chunks_emptied() > emptied {
        fleet.sim.count("chunks emptied");
    }
    for (to, seq, answer) in cell.decided() {
        note_executed(fleet, id, (to, seq), answer);
    }
    if death.is_some() {
        fleet.sim.count("a cell killed among its effects");
        let done = fleet.sim.rng.below(effects.len() as u64 + 1) as usize;
        effects.truncate(done);
        carry_out_all(world, id, effects);
        return kill_cell(world, id);
    }
    let is_ready = cell.is_ready();
    fleet.host_mut(id).cell = Some(cell);
    carry_out_all(world, id, effects);
    let slots = &mut world.fleet_mut().host_mut(id).slots;
    if is_ready && !std::mem::replace(&mut slots.is_ready, true) {
        world.serves(id);
        look_at_slots(world.fleet_mut(), id);
    }
}

pub(super) fn carry_out_all<W: Surroundings>(world: &mut W, id: CellId, effects: Vec<Effect>) {
    for effect in effects {
        if let Effect::Report(Report::Expelled { client }) = effect {
            world.fleet_mut().lanes.close(id, client);
            world.let_go(id, client);
        }
        carry_out(world.fleet_mut(), id, effect);
    }
}

/// Delivers a message. If it is damaged its receiver reads nothing more from the sender, and
/// continues; the supervisor ends one of the two.
pub(super) fn deliver_peer<W: Surroundings>(
    world: &mut W,
    from: CellId,
    to: CellId,
    message: PeerMessage,
) {
    if draw_lost_message(world.fleet_mut(), from, to, &message) {
        return;
    }
    let fleet = world.fleet_mut();
    let may_end = fleet.may_be_lost(from) && fleet.may_be_lost(to);
    if !may_end || !fleet.links.is_damaged(&mut fleet.sim, &message) {
        return happen_to(world, to, Event::Peer { from, message });
    }
    if fleet.sim.plant != Some(Plant::ReadOn) {
        fleet.links.make_void(&mut fleet.sim, from, to);
        let suspect =
            Report::Suspect { cell: from, epoch: fleet.epoch(from), why: Suspicion::Record };
        let (sim, _, host) = fleet.parts_of(to);
        host.send_report(sim, suspect);
    }
}

/// A cell receives an order, after its driver's part of it.
pub(super) fn obey<W: Surroundings>(world: &mut W, to: CellId, order: Order) {
    let fleet = world.fleet_mut();
    let mut admitted = None;
    match &order {
        Order::Lost { cell: lost, .. } => {
            let lost = *lost;
            while let Some(message) = remaining_message(world.fleet_mut(), lost, to) {
                deliver_peer(world, lost, to, message);
            }
        }
        Order::Joined { cell, .. } => fleet.links.open(&mut fleet.sim, *cell, to),
        Order::Failed { .. } => fleet.incidents.checkpoint_failed(to, fleet.sim.places),
        Order::Admit { client, .. } => {
            let keep_words = fleet.sim.plant == Some(Plant::KeepWords);
            fleet.lanes.reopen(to, *client, keep_words);
            admitted = Some(*client);
        }
        _ => {}
    }
    happen_to(world, to, Event::Order(order));
    if let Some(client) = admitted {
        let fleet = world.fleet_mut();
        fleet.host_mut(to).slots.admitted.insert(client);
        look_at_slots(fleet, to);
    }
}

/// The driver of a serving cell looks at all slots of the clients that it knows.
pub(super) fn look_at_slots<H>(fleet: &mut Fleet<H>, id: CellId) {
    let slots = &fleet.host(id).slots;
    let waiting = if slots.is_ready { slots.waiting() } else { Vec::new() };
    if !waiting.is_empty() {
        fleet.sim.count("a successor found requests waiting");
    }
    for (from, header, request) in waiting {
        fleet.plan_request(id, from, header, request);
    }
}

fn remaining_message<H>(fleet: &mut Fleet<H>, lost: CellId, to: CellId) -> Option<PeerMessage> {
    fleet.links.remaining(&mut fleet.sim, lost, to)
}
