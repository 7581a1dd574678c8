//! Events in, effects carried out: for cells, and for the supervisor.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use warren_base::{CellId, Epoch, Instant, ShardId};
use warren_cell::{Effect, Event, IoId, PeerBody, PeerMessage, Plant, SlotRef};
use warren_proto::Answered;
use warren_proto::control::{Order, Report};
use warren_proto::{Answer, PeerReply, Reply};
use warren_supervisor::{
    Effect as SupervisorEffect, Event as SupervisorEvent, Hint, LOOK_EVERY, Seen, Verdict,
};

use super::image::has_records;
use super::io::Doing;
use super::kill::{
    draw_liar, draw_lost_wakeup, kill_cell, lie, look_at_slots, look_at_turns, loses, lost_wakeup,
    offer, plan_looks_at_turns, review, start_successor,
};
use super::memory::SharedMemory;
use super::process::{Death, Killed};
use super::{Fleet, Happening, Surroundings, adopt};

/// Applies the next event, if there is one.
pub(crate) fn happen_next<W: Surroundings>(world: &mut W) -> bool {
    let fleet = world.fleet_mut();
    let Some(happening) = fleet.sim.advance() else { return false };
    let at = fleet.sim.now;
    fleet.sim.trace.event(at, words::<W>(&happening), &happening);
    happen(world, happening);
    true
}

/// The event's contribution to the trace's hash.
fn words<W: Surroundings>(happening: &Happening<W::Own>) -> [u64; 4] {
    let cell = |id: CellId| u64::from(id.0);
    match happening {
        Happening::Request { cell: to, from, header, .. } => {
            [1, cell(*to), u64::from(from.client.0), u64::from(header.seq)]
        }
        Happening::Reply { from, to, seq, answer, .. } => {
            let errno = answer.answer.as_ref().err().map_or(0, |errno| errno.raw() as u64);
            [2 + (errno << 8), cell(*from), u64::from(to.client.0), u64::from(*seq)]
        }
        Happening::Peer { from, to, .. } => [4, cell(*from), cell(*to), 0],
        Happening::Order { to, .. } => [5, cell(*to), 0, 0],
        Happening::Report { from, .. } => [6, cell(*from), 0, 0],
        Happening::CellIo { cell: of, io, .. } => [7, cell(*of), io.0, 0],
        Happening::SupervisorIo { by, io } => [8, io.0, *by, 0],
        Happening::Tick { cell: of, .. } => [9, cell(*of), 0, 0],
        Happening::SupervisorTick { .. } => [10, 0, 0, 0],
        Happening::Exited { cell: of, epoch } => [13, cell(*of), u64::from(epoch.0), 0],
        Happening::HostMeasured { cell: of, blocks, .. } => [15, cell(*of), *blocks, 0],
        Happening::Start { cell: of } => [14, cell(*of), 0, 0],
        Happening::Kill { cell: of, epoch } => [15, cell(*of), u64::from(epoch.0), 0],
        Happening::Review { cell: of } => [18, cell(*of), 0, 0],
        Happening::Turns => [19, 0, 0, 0],
        Happening::Lie { cell: of, epoch, number, .. } => {
            [20, cell(*of), u64::from(epoch.0), *number]
        }
        Happening::LateReport { from, epoch, .. } => [16, cell(*from), u64::from(epoch.0), 0],
        Happening::Look { cell: of, epoch, .. } => [17, cell(*of), u64::from(epoch.0), 0],
        Happening::Own(own) => W::words(own),
    }
}

fn happen<W: Surroundings>(world: &mut W, happening: Happening<W::Own>) {
    let fleet = world.fleet_mut();
    if let Some(until) = addressee(&happening).and_then(|cell| fleet.pause(cell)) {
        return fleet.sim.plan_at(until, happening);
    }
    match happening {
        Happening::Request { cell, from, header, request } => {
            offer(world, cell, from, header, request);
        }
        Happening::Reply { from, to, seq, hint, answer } => {
            world.answered(from, to, seq, hint, answer);
        }
        Happening::Peer { from, to, link } => {
            if let Some(message) = fleet.next_of_link(from, to, link) {
                deliver_peer(world, from, to, message);
            }
        }
        Happening::Order { to, epoch } => {
            if fleet.is_running(to, epoch) {
                let order = fleet.next_order(to);
                obey(world, to, order);
            }
        }
        Happening::Report { from, epoch } => {
            if fleet.is_running(from, epoch) {
                let report = fleet.next_report(from);
                notify_supervisor(world, SupervisorEvent::Report { from, epoch, report });
            }
        }
        Happening::CellIo { cell, epoch, io } => cell_io_done(world, cell, epoch, io),
        Happening::HostMeasured { cell, epoch, blocks } => {
            if fleet.is_running(cell, epoch) {
                happen_to(world, cell, Event::HostMeasured { blocks });
            }
        }
        Happening::Exited { cell, epoch } => {
            notify_supervisor(world, SupervisorEvent::CellExited { cell, epoch, by_itself: false });
        }
        Happening::Start { cell } => start_successor(world, cell),
        Happening::Kill { cell, epoch } => execute_verdict(world, cell, epoch),
        Happening::Look { cell, epoch, errs } => look(world, cell, epoch, errs),
        Happening::Review { cell } => review(world, cell),
        Happening::Turns => look_at_turns(world),
        Happening::Lie { cell, epoch, of, number } => lie(world, (cell, epoch), of, number),
        Happening::LateReport { from, epoch, report } => {
            fleet.count_late_report(from, epoch);
            notify_supervisor(world, SupervisorEvent::Report { from, epoch, report });
        }
        Happening::SupervisorIo { by, io } => {
            // The I/O of a dead supervisor was over before another took over.
            if fleet.supervisor.number == by {
                let result = fleet.supervisor_io_done(io);
                notify_supervisor(world, SupervisorEvent::IoDone { io, result });
            }
        }
        Happening::Tick { cell, epoch, at } => {
            let host = fleet.host(cell);
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

/// The cell to whose process it happens.
const fn addressee<H>(happening: &Happening<H>) -> Option<CellId> {
    match happening {
        Happening::Request { cell, .. }
        | Happening::Peer { to: cell, .. }
        | Happening::Order { to: cell, .. }
        | Happening::CellIo { cell, .. }
        | Happening::Review { cell }
        | Happening::Tick { cell, .. } => Some(*cell),
        _ => None,
    }
}

/// The supervisor kills a cell.
fn execute_verdict<W: Surroundings>(world: &mut W, id: CellId, epoch: Epoch) {
    let fleet = world.fleet_mut();
    if fleet.is_running(id, epoch) {
        fleet.sim.count("a cell ended by a verdict");
        kill_cell(world, id);
    } else if fleet.host(id).is_starting && fleet.epoch(id) == epoch {
        // A caretaker that waits for the I/O of the process before it.
        fleet.host(id).is_to_end = true;
    }
}

/// The supervisor's watch looks at a cell that was stopped, or (`errs`) accuses it first although
/// it may work.
fn look<W: Surroundings>(world: &mut W, id: CellId, epoch: Epoch, errs: bool) {
    let fleet = world.fleet_mut();
    // A successor too many would end the fleet.
    if !fleet.is_running(id, epoch) || !fleet.may_be_lost(id) {
        return;
    }
    if errs {
        fleet.sim.count("a hint that is wrong");
        let why = Hint::Sleeps;
        notify_supervisor(world, SupervisorEvent::Hangs { cell: id, epoch, why });
    }
    let fleet = world.fleet_mut();
    let now = fleet.sim.now;
    let seen = fleet.host(id).pause.look(now);
    if fleet.host(id).pause.end(now).is_some() || seen != Seen::Nothing {
        let next = Happening::Look { cell: id, epoch, errs: false };
        fleet.sim.plan(LOOK_EVERY.as_nanos() as u64, next);
    }
    match seen {
        Seen::Nothing => {}
        Seen::Hangs(why) => {
            fleet.sim.count("a hint that a cell hangs");
            notify_supervisor(world, SupervisorEvent::Hangs { cell: id, epoch, why });
        }
        Seen::Moves => {
            fleet.sim.count("an accused cell that moves again");
            notify_supervisor(world, SupervisorEvent::Moves { cell: id, epoch });
        }
    }
}

/// Applies an event to a cell, and carries out its effects.
pub(super) fn happen_to<W: Surroundings>(world: &mut W, id: CellId, event: Event) {
    let fleet = world.fleet_mut();
    if fleet.host(id).dead {
        return;
    }
    let death = fleet.draw_death(id);
    if death == Some(Death::Before) {
        return kill_cell(world, id);
    }
    let loses = draw_lost_wakeup(fleet, id);
    draw_liar(fleet, id);
    let mut cell = fleet.host(id).cell.take().expect("a cell does one thing at a time");
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
        lost_wakeup(fleet, id);
    }
    if cell.chunks_emptied() > emptied {
        fleet.sim.count("chunks emptied");
    }
    for (to, seq, answer) in cell.decided() {
        fleet.note_executed(id, (to, seq), answer);
    }
    if death.is_some() {
        fleet.sim.count("a cell killed among its effects");
        let done = fleet.sim.rng.below(effects.len() as u64 + 1) as usize;
        effects.truncate(done);
        carry_out(world, id, effects);
        return kill_cell(world, id);
    }
    let is_ready = cell.is_ready();
    fleet.host(id).cell = Some(cell);
    carry_out(world, id, effects);
    let slots = &mut world.fleet_mut().host(id).slots;
    if is_ready && !std::mem::replace(&mut slots.is_ready, true) {
        world.serves(id);
        look_at_slots(world.fleet_mut(), id);
    }
}

pub(super) fn carry_out<W: Surroundings>(world: &mut W, id: CellId, effects: Vec<Effect>) {
    for effect in effects {
        if let Effect::Report(Report::Expelled { client }) = effect {
            world.fleet_mut().lanes.close(id, client);
            world.let_go(id, client);
        }
        world.fleet_mut().carry_out(id, effect);
    }
}

impl<H> Fleet<H> {
    fn count_late_report(&mut self, from: CellId, epoch: Epoch) {
        self.sim.count(match self.epoch(from) == epoch {
            true => "a report of a lost cell",
            false => "a report of an earlier epoch",
        });
    }

    /// The end of the pause of the cell's process, if it is stopped: perhaps just now.
    fn pause(&mut self, id: CellId) -> Option<Instant> {
        if self.host(id).dead {
            return None;
        }
        let now = self.sim.now;
        let is_stopped = self.host(id).pause.end(now).is_some();
        if !is_stopped && self.sim.is_drawn(self.sim.faults.pauses, 10_000) {
            self.sim.count("a cell paused");
            let pause = &mut self.cells[usize::from(id.0)].pause;
            pause.begin(now, &mut self.sim.rng);
            let (errs, epoch) = (self.sim.rng.chance(1, 8), self.epoch(id));
            self.sim.plan(LOOK_EVERY.as_nanos() as u64, Happening::Look { cell: id, epoch, errs });
        }
        self.host(id).pause.end(now)
    }

    /// The cell has executed a request, and answers it later.
    fn note_executed(&mut self, id: CellId, request: (SlotRef, u32), answer: &Answer) {
        if !self.host(id).slots.executed.contains_key(&request) {
            let place = self.sim.place();
            self.host(id).slots.executed.insert(request, (place, answer.clone()));
        }
    }

    /// Carries out an effect of a cell.
    pub(super) fn carry_out(&mut self, id: CellId, effect: Effect) {
        self.sim.trace.note(self.sim.now, &(id, &effect));
        if self.host(id).is_caretaker {
            count_of_caretaker(self, &effect);
        }
        match effect {
            Effect::Reply { to, seq, answer, payload_len, granted, changed } => {
                self.lanes.note_reply(id, to, seq, payload_len);
                let slots = &mut self.host(id).slots;
                slots.answered.insert(to, seq);
                let known = slots.executed.remove(&(to, seq));
                let place = self.sim.place();
                let (hint, delay) =
                    (known.map_or(place, |(hint, _)| hint), self.sim.message_delay());
                let answer = Answered { answer, granted, changed };
                self.sim.plan(delay, Happening::Reply { from: id, to, seq, hint, answer });
            }
            // Drivers of real cells bound a user's live tasks; here there are few.
            Effect::AwaitsLock { .. } => {}
            Effect::Send { to, message } => self.send_peer(id, to, message),
            Effect::Report(report) => {
                if let Report::GivenUp { shard, .. } = report {
                    note_given_up(self, id, shard);
                }
                if let Report::Discarded { ino, generation, .. } = report
                    && self.incidents.wild.was_discarded(ino, generation, self.epoch(id))
                {
                    self.sim.count("a file has lost pages");
                }
                if matches!(report, Report::LostMessage { .. }) {
                    self.sim.count("a lost message found");
                }
                let is_answer = matches!(report, Report::Asked { .. } | Report::Answered { .. });
                let host = self.host(id);
                if is_answer && host.lies == Some(host.epoch) {
                    return;
                }
                if matches!(report, Report::Stuck { .. }) {
                    self.is_stuck = true;
                    self.sim.count("a full log that the device refuses");
                }
                self.send_report(id, report);
            }
            // The checksum has detected damaged messages before.
            Effect::Suspect { cell, why } => self.sim.fail(format!("{id} suspects {cell}: {why}")),
            Effect::Read { io, block, frames } => self.submit(id, io, Doing::Read, block, frames),
            Effect::Write { io, block, frames } => self.submit(id, io, Doing::Write, block, frames),
            Effect::WriteThrough { io, block, frames } => {
                self.submit(id, io, Doing::WriteThrough, block, frames);
            }
            Effect::Flush { io } => self.submit_flush(id, io),
            Effect::Reserve { io, block, count } => {
                self.submit(id, io, Doing::Reserve(count), block, Vec::new());
            }
            Effect::Discard { io, block, count } => {
                self.submit(id, io, Doing::Discard(count), block, Vec::new());
            }
            Effect::MeasureHost => {
                let (epoch, blocks) = (self.host(id).epoch, self.disk.host_room());
                let delay = self.sim.message_delay();
                self.sim.plan(delay, Happening::HostMeasured { cell: id, epoch, blocks });
            }
            Effect::Wake(at) => {
                let at = at.max(self.sim.now);
                let host = self.host(id);
                host.wake = Some(at);
                let epoch = host.epoch;
                self.sim.plan_at(at, Happening::Tick { cell: id, epoch, at });
            }
        }
    }
}

/// What caretakers do beside refusing.
fn count_of_caretaker<H>(fleet: &mut Fleet<H>, effect: &Effect) {
    match effect {
        Effect::Send { message, .. }
            if matches!(message.body, PeerBody::Reply(PeerReply::Committed { .. })) =>
        {
            fleet.sim.count("a transaction owed by a caretaker");
        }
        Effect::Reply { answer: Ok(Reply::Done), .. } => {
            fleet.sim.count("given back to a caretaker")
        }
        Effect::Write { frames, .. } if frames[0].0 < fleet.frames => {
            fleet.sim.count("placed pages written again by a caretaker");
        }
        Effect::WriteThrough { frames, .. }
            if frames.last().is_some_and(|last| last.0 < fleet.frames) =>
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

/// Ends an I/O of a cell. That of a dead cell may still reach the device, or not.
fn cell_io_done<W: Surroundings>(world: &mut W, id: CellId, epoch: Epoch, io: IoId) {
    let fleet = world.fleet_mut();
    let Some(done) = fleet.take_io(id, epoch, io) else { return };
    if !fleet.is_running(id, epoch) {
        fleet.let_io_land(id, &done);
        return start_successor(world, id);
    }
    fleet.note_incident(id, &done);
    let mut result = fleet.do_io(id, &done);
    match done.doing {
        Doing::WriteThrough if result.is_ok() => match fleet.draw_flush_behind() {
            true => return fleet.submit_flush(id, io),
            false => fleet.harden(&done),
        },
        Doing::Flush(_) => result = fleet.flush_result_of_cell(id),
        _ => {}
    }
    happen_to(world, id, Event::IoDone { io, result });
}

/// Delivers a message. If it is damaged its receiver reads nothing more from the sender, and
/// continues; the supervisor ends one of the two.
fn deliver_peer<W: Surroundings>(world: &mut W, from: CellId, to: CellId, message: PeerMessage) {
    if loses(world.fleet_mut(), from, to, &message) {
        return;
    }
    if !world.fleet_mut().is_damaged(from, to, &message) {
        return happen_to(world, to, Event::Peer { from, message });
    }
    if world.fleet_mut().plant != Some(Plant::ReadOn) {
        world.fleet_mut().suspect(from, to);
    }
}

/// A cell receives an order, after its driver's part of it.
pub(super) fn obey<W: Surroundings>(world: &mut W, to: CellId, order: Order) {
    let fleet = world.fleet_mut();
    let mut admitted = None;
    match &order {
        Order::Lost { cell: lost, .. } => {
            let lost = *lost;
            while let Some(message) = world.fleet_mut().remaining_message(lost, to) {
                deliver_peer(world, lost, to, message);
            }
        }
        Order::Joined { cell, .. } => fleet.open_link(*cell, to),
        Order::Failed { .. } => fleet.incidents.checkpoint_failed(to, fleet.sim.places),
        Order::Admit { client, .. } => {
            let keep_words = fleet.plant == Some(Plant::KeepWords);
            fleet.lanes.reopen(to, *client, keep_words);
            admitted = Some(*client);
        }
        _ => {}
    }
    happen_to(world, to, Event::Order(order));
    if let Some(client) = admitted {
        let fleet = world.fleet_mut();
        fleet.host(to).slots.admitted.insert(client);
        look_at_slots(fleet, to);
    }
}

/// Applies an event to the supervisor, and carries out its effects.
pub(crate) fn notify_supervisor<W: Surroundings>(world: &mut W, event: SupervisorEvent) {
    let fleet = world.fleet_mut();
    fleet.count_ended(&event);
    let mut supervisor = fleet.supervisor.supervisor.take().expect("it does one thing at a time");
    let mut effects = Vec::new();
    let given_up = match &event {
        warren_supervisor::Event::Report { from, epoch, report: Report::GivenUp { shard, .. } } => {
            Some(*shard).filter(|_| fleet.is_running(*from, *epoch))
        }
        _ => None,
    };
    supervisor.apply(fleet.sim.now, fleet.sim.wall(), event, &mut effects);
    fleet.supervisor.supervisor = Some(supervisor);
    while world.fleet_mut().draw_supervisors_death(&effects) {
        effects = adopt::replace_supervisor(world, effects);
    }
    if let Some(shard) = given_up {
        check_named(world.fleet_mut(), shard);
    }
    follow(world, effects);
    plan_looks_at_turns(world.fleet_mut());
}

/// Whether the status names a shard that was reported as given up.
pub(crate) fn check_named<H>(fleet: &mut Fleet<H>, shard: ShardId) {
    let status = fleet.supervisor().status();
    if !status.given_up.iter().any(|(named, _)| *named == shard) {
        fleet.sim.fail(format!("the status does not name {shard:?}, which was given up"));
    }
}

pub(super) fn follow<W: Surroundings>(world: &mut W, effects: Vec<SupervisorEffect>) {
    for effect in effects {
        world.fleet_mut().sim.note(&("supervisor", &effect));
        follow_one(world, effect);
    }
    for host in &mut world.fleet_mut().cells {
        host.beginning.get_or_insert(host.orders.len());
    }
}

fn follow_one<W: Surroundings>(world: &mut W, effect: SupervisorEffect) {
    let fleet = world.fleet_mut();
    match effect {
        SupervisorEffect::Send { to, order } => fleet.send_order(to, order),
        SupervisorEffect::Write { io, block, bytes } => fleet.supervise_write(io, (block, bytes)),
        SupervisorEffect::Flush { io } => fleet.supervise_flush(io),
        SupervisorEffect::Wake(at) => {
            let at = at.max(fleet.sim.now);
            fleet.supervisor.wake = Some(at);
            fleet.sim.plan_at(at, Happening::SupervisorTick { at });
        }
        SupervisorEffect::FleetReady => world.fleet_is_ready(),
        SupervisorEffect::NewClient { connection, client } => world.numbered(connection, client),
        SupervisorEffect::AdmitClient { client } => world.admit(client),
        SupervisorEffect::RefuseClient { connection, errno } => world.refuse(connection, errno),
        SupervisorEffect::ForgetClient { client } => fleet.check_forgotten(client),
        // Only a client whose stop can be refused gets a reply.
        SupervisorEffect::MayStop | SupervisorEffect::StopRefused { .. } => {}
        SupervisorEffect::Restart { cell, epoch, is_caretaker } => {
            fleet.restart_cell(cell, epoch, is_caretaker);
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
            let is_spared = fleet.plant == Some(Plant::SpareAccusers);
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
