//! Effects of a cell are carried out.

use warren_base::{BlockNo, CellId, ShardId};
use warren_cell::{Effect, FrameNo, IoId, PeerBody, SlotRef};
use warren_proto::control::Report;
use warren_proto::{Answer, Answered, PeerReply, Reply};

use super::device::Doing;
use super::image::has_records;
use super::{Fleet, Happening};

/// Carries out an effect of a cell.
pub(super) fn carry_out<H>(fleet: &mut Fleet<H>, id: CellId, effect: Effect) {
    fleet.sim.note(&(id, &effect));
    if fleet.host(id).is_caretaker {
        count_of_caretaker(fleet, &effect);
    }
    match effect {
        Effect::Reply { to, seq, answer, payload_len, beside } => {
            fleet.lanes.note_reply(id, to, seq, payload_len);
            let slots = &mut fleet.host_mut(id).slots;
            slots.answered.insert(to, seq);
            let known = slots.executed.remove(&(to, seq));
            let place = fleet.sim.place();
            let (hint, delay) = (known.map_or(place, |(hint, _)| hint), fleet.sim.message_delay());
            let answer = Answered::from((answer, beside));
            fleet.sim.plan(delay, Happening::Reply { from: id, to, seq, hint, answer });
        }
        // Drivers of real cells bound a user's live tasks; here there are few.
        Effect::AwaitsLock { .. } => {}
        Effect::Send { to, message } => fleet.links.send(&mut fleet.sim, id, to, message),
        Effect::Report(report) => report_to_supervisor(fleet, id, report),
        // The checksum has detected damaged messages before.
        Effect::Suspect { cell, why } => fleet.sim.fail(format!("{id} suspects {cell}: {why}")),
        Effect::Read { io, block, frames } => submit(fleet, id, io, Doing::Read, block, frames),
        Effect::Write { io, block, frames } => submit(fleet, id, io, Doing::Write, block, frames),
        Effect::WriteThrough { io, block, frames } => {
            submit(fleet, id, io, Doing::WriteThrough, block, frames);
        }
        Effect::Flush { io } => {
            let (sim, device, host) = fleet.parts_of(id);
            device.submit_flush(sim, host, io);
        }
        Effect::Reserve { io, block, count } => {
            submit(fleet, id, io, Doing::Reserve(count), block, Vec::new());
        }
        Effect::Discard { io, block, count } => {
            submit(fleet, id, io, Doing::Discard(count), block, Vec::new());
        }
        Effect::MeasureHost => {
            let (epoch, blocks) = (fleet.epoch(id), fleet.device.disk.host_room());
            let delay = fleet.sim.message_delay();
            fleet.sim.plan(delay, Happening::HostMeasured { cell: id, epoch, blocks });
        }
        Effect::Wake(at) => {
            let at = at.max(fleet.sim.now);
            let host = fleet.host_mut(id);
            host.wake = Some(at);
            let epoch = host.epoch;
            fleet.sim.plan_at(at, Happening::Tick { cell: id, epoch, at });
        }
    }
}

fn submit<H>(
    fleet: &mut Fleet<H>,
    id: CellId,
    io: IoId,
    doing: Doing,
    block: BlockNo,
    frames: Vec<FrameNo>,
) {
    let (sim, device, host) = fleet.parts_of(id);
    device.submit(sim, host, io, doing, (block, frames));
}

/// Sends a report. A liar does not answer when it is asked about others.
fn report_to_supervisor<H>(fleet: &mut Fleet<H>, id: CellId, report: Report) {
    if let Report::GivenUp { shard, .. } = report {
        note_given_up(fleet, id, shard);
    }
    if let Report::Discarded { ino, generation, .. } = report
        && fleet.incidents.wild.was_discarded(ino, generation, fleet.epoch(id))
    {
        fleet.sim.count("a file has lost pages");
    }
    if matches!(report, Report::LostMessage { .. }) {
        fleet.sim.count("a lost message found");
    }
    let is_answer = matches!(report, Report::Asked { .. } | Report::Answered { .. });
    if is_answer && fleet.host(id).is_lying() {
        return;
    }
    if matches!(report, Report::Stuck { .. }) {
        fleet.device.faults.is_stuck = true;
        fleet.sim.count("a full log that the device refuses");
    }
    let (sim, _, host) = fleet.parts_of(id);
    host.send_report(sim, report);
}

/// The cell has executed a request, and answers it later.
pub(super) fn note_executed<H>(
    fleet: &mut Fleet<H>,
    id: CellId,
    request: (SlotRef, u32),
    answer: &Answer,
) {
    if !fleet.host(id).slots.executed.contains_key(&request) {
        let place = fleet.sim.place();
        fleet.host_mut(id).slots.executed.insert(request, (place, answer.clone()));
    }
}

/// Counts what caretakers do beside refusing.
fn count_of_caretaker<H>(fleet: &mut Fleet<H>, effect: &Effect) {
    match effect {
        Effect::Send { message, .. }
            if matches!(message.body, PeerBody::Reply(PeerReply::Committed { .. })) =>
        {
            fleet.sim.count("a transaction owed by a caretaker");
        }
        Effect::Reply { answer: Ok(Reply::Done), .. } => {
            fleet.sim.count("given back to a caretaker");
        }
        Effect::Write { frames, .. } if frames[0].0 < fleet.sizes.frames => {
            fleet.sim.count("placed pages written again by a caretaker");
        }
        Effect::WriteThrough { frames, .. }
            if frames.last().is_some_and(|last| last.0 < fleet.sizes.frames) =>
        {
            fleet.sim.count("a caretaker's log that ends before data that is nowhere");
        }
        _ => {}
    }
}

/// The cell has given a shard up. Where the campaign damages one, that is the only one.
fn note_given_up<H>(fleet: &mut Fleet<H>, id: CellId, shard: ShardId) {
    let is_checkpointing = fleet.incidents.is_checkpointing;
    let had_records = !is_checkpointing && has_records(fleet, id, shard);
    match &mut fleet.incidents.damage {
        None => {}
        Some(damage) if damage.shard == shard => {
            damage.had_records |= had_records && !damage.is_given_up;
            damage.is_given_up = true;
            fleet.sim.count("a shard given up");
        }
        Some(_) => fleet.sim.fail(format!("{id} gives up {shard:?}, which is sound")),
    }
}
