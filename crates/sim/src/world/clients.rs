//! The simulated clients: slots, the calls in them, and the history of what they observed.
//!
//! A client touches only its own state and shared memory, so a step of it may run at any moment,
//! also between two stores of a cell. Every answered request is an operation of the history, and so
//! is a call answered from copies alone. A call that needed both is one more operation, in a
//! separate process, because its requests are in the slot's process.

use std::rc::Rc;
use std::sync::Arc;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, ClientId, Errno, Ino, MapVersion, SlotNo, Timestamp};
use warren_cell::SlotRef;
use warren_client::{Cache, Call, Caller, Op, PathOp, Send, ShardMap, Step};
use warren_proto::{
    Answer, Answered, Capabilities, CreateFlags, Credentials, InodeRef, Position, Reply, Request,
};

use super::answers::{check_answer, may_have_locked};
use super::claims::{forge, is_rightly_granted};
use super::copies::{begin_with_kept, claim_another, keep_changed, payload_of};
use super::front::{Front, action_of, repeat_refused};
use super::kept::{KeptHandles, request_keeping};
use super::paths::{PathAnswers, Stepped};
use super::program::{Draw, Drawn, Holdings};
use super::{Own, World};
use crate::fleet::Happening;
use crate::history::{Action, Excuses, KEY, NEVER, Operation, Outcome, Window};

/// Upper limit of entries with long names in one page of a listing.
const PAGE_MAX: usize = 30;
/// Pages that a front's kernel writes back concurrently.
const WRITERS: usize = 2;
/// The longest time until a front's successor reads an answer that is in the slot.
const ANSWER_READ_NANOS: u64 = 20_000;
/// Copies that a client keeps: few enough that some are evicted.
const COPIES_MAX: usize = 40;

/// What a slot does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotState {
    Absent,
    /// Between calls.
    Thinking,
    /// In a call, not waiting: may be stepped at any moment.
    Stepping,
    Waiting,
    /// Nothing left to do, or an idle slot that belongs to no program.
    Finished,
}

struct Asked {
    cell: CellId,
    request: Request,
    operation: Operation,
    /// Another slot has asked to cancel the request.
    is_cancelled: bool,
    /// The front that sent it was killed; its successor sends this again.
    again: Option<Send>,
}

pub(super) struct Whole {
    pub(super) op: Op,
    pub(super) invoked: u64,
    pub(super) from: Timestamp,
    pub(super) asked: bool,
    /// A cell answered the request that the call consists of.
    direct: bool,
    /// It names an inode that the client has not reached.
    pub(super) forged: bool,
    /// Entries in the answered pages of a listing, and whether the last page was among them.
    listed: usize,
    ended: bool,
}

impl Whole {
    pub(super) fn new(op: Op, invoked: u64, from: Timestamp, forged: bool) -> Self {
        Self { op, invoked, from, asked: false, direct: false, forged, listed: 0, ended: false }
    }
}

pub(super) struct Slot {
    pub state: SlotState,
    pub holdings: Holdings,
    /// Only the step planned last counts.
    pub ticket: u64,
    call: Option<Call>,
    whole: Option<Whole>,
    asked: Option<Asked>,
    payload: Rc<[u8]>,
    /// For a page under write-back: what a program stored, and its position in the file.
    stored: Option<(Position, Rc<[u8]>)>,
    /// A call that waits until the stores in mappings are written back.
    pub(super) deferred: Option<Drawn>,
    /// What a front sent last, and whether it is to be sent again.
    pub(super) last_sent: Option<Send>,
    asks_again: bool,
    seq: u32,
}

impl Slot {
    fn new(state: SlotState) -> Self {
        Self {
            state,
            holdings: Holdings::default(),
            ticket: 0,
            call: None,
            whole: None,
            asked: None,
            payload: Rc::from([]),
            stored: None,
            deferred: None,
            last_sent: None,
            asks_again: false,
            seq: 0,
        }
    }

    /// The bytes that the call under way writes.
    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The front is killed. Its successor repeats every request that changes nothing.
    pub(super) fn lose_front(&mut self) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| changes_nothing(&asked.request)) {
            asked.again = self.last_sent.clone();
        }
    }

    /// The request under way, for a failure report.
    pub(super) fn under_way(&self) -> Option<&Request> {
        self.asked.as_ref().map(|asked| &asked.request)
    }
}

pub(super) struct Client {
    pub id: ClientId,
    pub credentials: Rc<Credentials>,
    pub slots: Vec<Slot>,
    /// How many of the slots belong to programs. The kernel writes pages back through the others.
    pub programs: usize,
    /// The first of its processes: two per slot (requests, and calls as wholes), and one for its
    /// end.
    pub process: usize,
    pub front: Option<Front>,
    pub kept: KeptHandles,
    paths: PathAnswers,
    pub is_gone: bool,
    caller: Caller,
    cache: Cache,
    map: ShardMap,
}

impl Client {
    pub(super) fn new(
        credentials: Credentials,
        slots: u16,
        map: &[CellId],
        version: MapVersion,
        near: CellId,
    ) -> Self {
        Self {
            id: ClientId(u32::MAX),
            caller: Caller { credentials: Arc::new(credentials.clone()), near },
            credentials: Rc::new(credentials),
            slots: (0..slots).map(|_| Slot::new(SlotState::Absent)).collect(),
            programs: slots.into(),
            process: 0,
            front: None,
            kept: KeptHandles::default(),
            paths: PathAnswers::default(),
            is_gone: false,
            cache: Cache::new(COPIES_MAX),
            map: ShardMap::new(version, map.to_vec()),
        }
    }
}

impl Client {
    /// Adds the slots through which a front's kernel writes pages back.
    pub(super) fn add_writers(&mut self) {
        self.slots.extend((0..WRITERS).map(|_| Slot::new(SlotState::Finished)));
    }
}

/// A client and one of its slots, by their indexes in the harness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    pub client: usize,
    pub slot: usize,
}

impl World {
    pub(super) fn slot(&mut self, at: At) -> &mut Slot {
        &mut self.clients[at.client].slots[at.slot]
    }

    fn slot_ref(&self, at: At) -> SlotRef {
        SlotRef { client: self.clients[at.client].id, slot: SlotNo(at.slot as u16) }
    }

    /// The process of the slot's requests; the next number is that of its calls as wholes.
    pub(super) fn process(&self, at: At) -> usize {
        self.clients[at.client].process + at.slot * 2
    }

    /// Returns the first of `count` unused process numbers.
    pub(super) fn new_processes(&mut self, count: usize) -> usize {
        let first = self.processes;
        self.processes += count;
        first
    }

    /// Begins a call in the slot, or steps the call it is in.
    pub(super) fn go_on(&mut self, at: At) {
        match self.slot(at).state {
            SlotState::Thinking => self.begin_call(at),
            SlotState::Stepping => self.step_call(at, None),
            SlotState::Absent | SlotState::Waiting | SlotState::Finished => {}
        }
    }

    fn begin_call(&mut self, at: At) {
        if self.slot(at).deferred.is_none() && self.store_in_mapping(at) {
            return self.think(at);
        }
        let deferred = self.slot(at).deferred.take();
        let Some((op, bytes)) = deferred.or_else(|| self.choose_call(at)) else {
            self.slot(at).state = SlotState::Finished;
            return;
        };
        if self.is_to_write_back(at, &op) {
            let slot = self.slot(at);
            (slot.state, slot.deferred) = (SlotState::Waiting, Some((op, bytes)));
            return;
        }
        let (mut op, forged) = self.reach(at, op);
        if let Op::Ino(request, _) = &mut op {
            request_keeping(request, &self.swarm);
            if let Some(front) = &self.clients[at.client].front {
                front.kernel.mark(request);
            }
        }
        let (invoked, from) = (self.fleet.sim.place(), self.fleet.sim.wall());
        if let Some((answer, payload)) = self.ask_kernel(at, &op) {
            let whole = Whole::new(op, invoked, from, forged);
            if let Some(action) = action_of(&whole.op) {
                let outcome = Outcome { answer, payload: payload.into() };
                self.record_whole(at, &whole, action, outcome);
            }
            return self.think(at);
        }
        let whole = Whole::new(op, invoked, from, forged);
        if let Some((whole, bytes)) = begin_with_kept(self, at, whole, bytes) {
            self.start_call(at, whole.op.clone(), whole, bytes);
        }
    }

    pub(super) fn start_call(&mut self, at: At, op: Op, whole: Whole, bytes: Vec<u8>) {
        let client = &mut self.clients[at.client];
        client.paths.begin(at.slot, &op);
        let (caller, slot) = (client.caller.clone(), &mut client.slots[at.slot]);
        slot.payload = Rc::from(bytes);
        slot.call = Some(Call::with_payload(op, caller, slot.payload.len() as u32));
        slot.whole = Some(whole);
        slot.state = SlotState::Stepping;
        self.step_call(at, None);
    }

    /// Has the front's kernel write a page back, if a slot for that is free.
    pub(super) fn write_page_back(&mut self, client: usize, ino: Ino) -> bool {
        let of = &mut self.clients[client];
        let is_idle = |slot: &Slot| slot.state == SlotState::Finished;
        let idle = of.slots[of.programs..].iter().position(is_idle);
        let (Some(idle), Some(front)) = (idle, &mut of.front) else { return false };
        let Some((page, stored, bytes)) = front.kernel.next_stored(ino) else { return false };
        let at = At { client, slot: of.programs + idle };
        let (start, position) = (page * BLOCK_SIZE as u64, Position::At(page * BLOCK_SIZE as u64));
        let (kill_privileges, write_back, direct) = (false, true, false);
        let handle = stored.handle;
        let write = Request::Write { handle, position, kill_privileges, write_back, direct };
        let op = Op::Ino(write, Capabilities::default());
        // If others meanwhile shrink and extend the file, the page brings the removed bytes back.
        let whole = self.swarm.cuts_freely;
        let slot = self.slot(at);
        slot.stored = Some(match whole {
            true => (position, bytes.as_slice().into()),
            false => (Position::At(start + stored.start as u64), stored.bytes.into()),
        });
        self.fleet.sim.count("a mapped page written back");
        let whole = Whole::new(op.clone(), self.fleet.sim.place(), self.fleet.sim.wall(), false);
        self.start_call(at, op, whole, bytes);
        true
    }

    /// Continues calls that waited for the write-back of mappings.
    pub(super) fn go_on_deferred(&mut self, client: usize) {
        for slot in 0..self.clients[client].programs {
            let at = At { client, slot };
            let Slot { call, state, deferred, .. } = self.slot(at);
            if deferred.is_some() && call.is_none() && *state == SlotState::Waiting {
                self.think(at);
            }
        }
    }

    /// Adds the capabilities for the inodes that the call names, as if the client had walked to
    /// them: the harness knows the key. Sometimes it makes a capability wrong; then the call is
    /// forged and must be refused.
    fn reach(&mut self, at: At, op: Op) -> (Op, bool) {
        let may_forge = self.audit.is_none() && self.calls_left > 0;
        let Client { id, front, .. } = &self.clients[at.client];
        let id = *id;
        match op {
            op if front.is_some() => (op, false),
            Op::Ino(request, _) => {
                let mut capabilities = KEY.all_for(id, &request);
                if may_forge && self.fleet.sim.rng.chance(1, FORGED_EVERY) {
                    capabilities =
                        forge(&mut self.fleet.sim.rng, &self.known.files, id, capabilities);
                }
                let forged = !is_reached(id, &request, capabilities);
                (Op::Ino(request, capabilities), forged)
            }
            Op::List(InodeRef { ino, .. }) => {
                (Op::List(InodeRef { ino, capability: KEY.capability(id, ino) }), false)
            }
            op => (op, false),
        }
    }

    fn choose_call(&mut self, at: At) -> Option<(Op, Vec<u8>)> {
        if let Some(audit) = &mut self.audit {
            return audit.next_call().map(|request| (request, Vec::new()));
        }
        if self.calls_left == 0 {
            let release = self.slot(at).holdings.release();
            let nothing = Capabilities::default();
            return release.map(|request| (Op::Ino(request, nothing), Vec::new()));
        }
        self.calls_left -= 1;
        if self.calls_left == 0 {
            self.heal();
        }
        if let Some(first) = self.opening.take() {
            return Some((first, Vec::new()));
        }
        if self.fleet.sim.rng.chance(self.swarm.hangups, 10_000) {
            let client = self.fleet.sim.rng.below(self.clients.len() as u64) as usize;
            let delay = self.fleet.sim.rng.below(50_000);
            self.plan(delay, Own::Hangup { client });
        }
        if self.fleet.sim.rng.chance(self.swarm.front_kills, 1000) {
            let delay = self.fleet.sim.rng.below(50_000);
            self.plan(delay, Own::KillFront { client: at.client });
        }
        if let Some(op) = self.cancel_another(at) {
            return Some((op, Vec::new()));
        }
        if let Some(op) = self.wanted_again(at.client).or_else(|| claim_another(self)) {
            return Some((op, Vec::new()));
        }
        let now = self.fleet.sim.wall();
        let client = &self.clients[at.client];
        let mut draw = Draw {
            swarm: &self.swarm,
            known: &self.known,
            holdings: &client.slots[at.slot].holdings,
            slot: SlotNo(at.slot as u16),
            uid: client.credentials.uid,
            front: client.front.is_some(),
            may_write: !self.swarm.one_writer || at.client == 0,
            now,
            rng: &mut self.fleet.sim.rng,
        };
        Some(draw.draw())
    }

    /// Sometimes cancels another slot of the client that waits for a lock.
    fn cancel_another(&mut self, at: At) -> Option<Op> {
        if !self.fleet.sim.rng.chance(self.swarm.cancels, 100) {
            return None;
        }
        let waits = |(_, slot): &(usize, &Slot)| {
            slot.asked
                .as_ref()
                .is_some_and(|a| matches!(a.request, Request::Lock { wait: true, .. }))
        };
        let slots = &mut self.clients[at.client].slots;
        let (other, _) = slots.iter().enumerate().find(waits)?;
        let slot = &mut slots[other];
        slot.asked.as_mut().expect("it waits").is_cancelled = true;
        let cancel = Request::Cancel { slot: SlotNo(other as u16), seq: slot.seq };
        self.fleet.sim.count("a wait for a lock cancelled");
        Some(Op::Ino(cancel, Capabilities::default()))
    }

    pub(super) fn step_call(&mut self, at: At, input: Option<Answered>) {
        let client = &mut self.clients[at.client];
        let slot = &mut client.slots[at.slot];
        let call = slot.call.as_mut().expect("a slot that steps is in a call");
        let words = self.fleet.lanes.words_of(client.id);
        match client.paths.step(at.slot, &words) {
            Some(Stepped::Going) => return self.plan_step(at, STEP_NANOS),
            Some(Stepped::Answer(answer)) => {
                self.fleet.sim.count("a path answered without a walk");
                return self.finish_call(at, answer);
            }
            None => {}
        }
        match call.step(&mut client.cache, &client.map, &words, input) {
            Step::Send(send) => self.send(at, send),
            Step::Yield => {
                slot.state = SlotState::Stepping;
                self.plan_step(at, STEP_NANOS);
            }
            Step::AwaitMap(_) => {
                // The map of a simulated fleet does not change, so this answer is wrong.
                self.fleet.sim.fail(format!("{at:?} was sent to wait for another shard map"));
            }
            Step::Done(answered) => {
                if let Some(whole) = &slot.whole {
                    client.paths.end(&whole.op, call, &answered.answer);
                }
                self.finish_call(at, answered.answer);
            }
        }
    }

    pub(super) fn send(&mut self, at: At, mut send: Send) {
        if let Some(front) = self.clients[at.client].front.as_mut().filter(|front| front.is_dead) {
            // The kernel keeps the request.
            front.unsent.insert(at.slot, send);
            self.slot(at).state = SlotState::Waiting;
            return;
        }
        if let Request::Cancel { slot, .. } = send.request {
            // It goes to the cell of the other request or, if that is finished, to any cell.
            let other = At { client: at.client, slot: usize::from(slot.0) };
            send.cell = self.slot(other).asked.as_ref().map_or(send.cell, |asked| asked.cell);
        }
        let from = self.slot_ref(at);
        let process = self.process(at);
        let (invoked, wall) = (self.fleet.sim.place(), self.fleet.sim.wall());
        let client = &mut self.clients[at.client];
        let slot = &mut client.slots[at.slot];
        let mut payload = match &send.request {
            Request::Write { .. } | Request::SetXattr { .. } => slot.payload.clone(),
            _ => Rc::from([]),
        };
        self.fleet.lanes.put_request(from, &payload);
        let whole = slot.whole.as_mut().expect("in a call");
        whole.asked = true;
        whole.direct |= matches!(&whole.op, Op::Ino(request, _) if *request == send.request);
        let reached = client.front.is_some()
            || is_reached(client.id, &send.request, send.header.capabilities);
        if !reached && !whole.forged {
            let rule = format!("{at:?} cannot name what it walked to: {:?}", send.request);
            return self.fleet.sim.fail(rule);
        }
        let mut done = send.request.clone();
        if let (Request::Write { position, .. }, Some((at, bytes))) = (&mut done, &slot.stored) {
            (*position, payload) = (*at, bytes.clone());
        }
        let action = if reached { Action::Request(done) } else { Action::Forged(done) };
        slot.seq += 1;
        slot.state = SlotState::Waiting;
        let operation = Operation {
            process,
            client: client.id,
            credentials: client.credentials.clone(),
            action,
            payload,
            invoked,
            returned: NEVER,
            hint: invoked,
            window: Window { from: wall, to: wall, steps: false },
            excuses: Excuses::default(),
            outcome: None,
        };
        let request = send.request.clone();
        let is_again = slot.asks_again;
        slot.asked =
            Some(Asked { cell: send.cell, request, operation, is_cancelled: false, again: None });
        slot.asks_again = false;
        slot.last_sent = client.front.is_some().then(|| send.clone());
        let mut header = send.header;
        header.seq = slot.seq;
        if !is_again {
            self.note_asked(at, &send.request);
        }
        self.fleet.plan_request(send.cell, from, header, send.request);
    }

    /// Delivers an answer to the client. It must be the answer to the slot's request.
    pub(super) fn client_answered(
        &mut self,
        from: CellId,
        to: SlotRef,
        (seq, hint): (u32, u64),
        Answered { answer, granted, mut changed }: Answered,
    ) {
        let Some(client) = self.clients.iter().position(|client| client.id == to.client) else {
            return self.fleet.sim.fail(format!("{from} answers a client that does not exist"));
        };
        let at = At { client, slot: usize::from(to.slot.0) };
        if self.has_dead_front(client) {
            // The answer stays in the slot until a successor reads it.
            let answer = Answered { answer, granted, changed };
            let reply = Happening::Reply { from, to, seq, hint, answer };
            return self.fleet.sim.plan(ANSWER_READ_NANOS, reply);
        }
        if at.slot >= self.clients[client].slots.len() {
            return self.recalled(at, seq, answer);
        }
        // When a successor reported what a lost cell had done for this client, that was recorded.
        if self.clients[client].is_gone && self.slot(at).asked.is_none() {
            return;
        }
        let slot = self.slot(at);
        let fits = slot.seq == seq && slot.asked.as_ref().is_some_and(|asked| asked.cell == from);
        if !fits {
            return self
                .fleet
                .sim
                .fail(format!("{from} answers a request that {at:?} does not wait for"));
        }
        let asked = slot.asked.take().expect("it is asked");
        let Asked { request, mut operation, is_cancelled, again, .. } = asked;
        let again = again.filter(|_| !self.clients[client].is_gone);
        self.last_return = self.fleet.sim.now;
        let payload = payload_of(&mut self.fleet, from, (to, seq), &answer);
        if again.is_none() {
            keep_changed(self, client, &mut changed, from);
            self.note_answered(at, &request, &answer, &payload);
        }
        if request.was_refused(&answer) {
            return repeat_refused(self, at);
        }
        let receiver = &self.clients[client];
        if !is_rightly_granted((receiver.id, receiver.front.is_some()), &answer, granted) {
            self.fleet.sim.fail(format!("{at:?} was granted something else with {answer:?}"));
        }
        let is_audit = self.audit.is_some();
        check_answer(&mut self.fleet, is_audit, (&request, operation.invoked), &answer);
        if !matches!(answer, Ok(Reply::Moved(_))) {
            operation.returned = self.fleet.sim.place();
            operation.hint = hint;
            operation.window.to = self.fleet.sim.wall();
            operation.excuses = self.excuses(&request, from, operation.invoked);
            operation.excuses.set(Excuses::CANCELLED, is_cancelled);
            match &operation.action {
                Action::Forged(_) => self.fleet.sim.count("a forged capability"),
                _ => self.see(at, &request, &answer),
            }
            operation.outcome = Some(Outcome { answer: answer.clone(), payload: payload.into() });
            self.note_refused(at, &mut operation);
            self.history.push(operation);
        }
        if let Some(send) = again {
            self.ask_again(at, send);
        } else if !self.clients[at.client].is_gone {
            self.step_call(at, Some(Answered { answer, granted, changed }));
        }
    }

    /// A front's successor repeats a request of its predecessor.
    fn ask_again(&mut self, at: At, send: Send) {
        self.fleet.sim.count("a front's successor asked again");
        self.slot(at).asks_again = true;
        self.send(at, send);
    }

    fn note_refused(&mut self, at: At, operation: &mut Operation) {
        let holdings = &mut self.clients[at.client].slots[at.slot].holdings;
        if may_have_locked(&self.outage, holdings, operation) {
            self.fleet.sim.count("a call refused that may have its lock");
            operation.process = self.new_processes(1);
        }
    }

    /// Counts the entries of a page of a listing.
    pub(super) fn note_page(&mut self, at: At, request: &Request, answer: &Answer) {
        let (Request::ReadDir { cookie, .. }, Ok(Reply::Listing { entries, end, .. })) =
            (request, answer)
        else {
            return;
        };
        if let Some(whole) = &mut self.slot(at).whole
            && matches!(whole.op, Op::List(_))
        {
            // A listing that was restarted counts from zero.
            whole.listed = if *cookie == 0 { entries.len() } else { whole.listed + entries.len() };
            whole.ended = *end;
        }
    }

    /// A listing must consist of exactly its pages and contain no name twice.
    fn check_listing(&mut self, whole: &Whole, answer: &Answer) {
        let (Op::List(dir), Ok(Reply::Listing { entries, .. })) = (&whole.op, answer) else {
            return;
        };
        let mut names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        if names.len() != whole.listed || entries.len() != whole.listed || !whole.ended {
            let (listed, named) = (entries.len(), names.len());
            let rule = format!(
                "a listing of {dir:?} has {listed} entries with {named} names; its pages had {}",
                whole.listed
            );
            return self.fleet.sim.fail(rule);
        }
        if entries.len() > PAGE_MAX {
            self.fleet.sim.count("a listing of several pages");
        }
    }

    /// Records an answer that no client waits for. The call has taken effect: also a read has
    /// changed an access time and put its bytes into the lane.
    pub(super) fn would_answer(
        &mut self,
        from: CellId,
        to: SlotRef,
        seq: u32,
        hint: u64,
        answer: Answer,
    ) {
        if matches!(answer, Ok(Reply::Moved(_))) {
            return;
        }
        let payload = payload_of(&mut self.fleet, from, (to, seq), &answer);
        let Some(client) = self.clients.iter_mut().find(|client| client.id == to.client) else {
            return;
        };
        let Some(slot) = client.slots.get_mut(usize::from(to.slot.0)) else { return };
        let asked = slot.asked.take_if(|_| slot.seq == seq);
        if let Some(Asked { request, mut operation, is_cancelled, .. }) = asked {
            operation.hint = hint;
            operation.window.to = self.fleet.sim.wall();
            operation.excuses = self.excuses(&request, from, operation.invoked);
            operation.excuses.set(Excuses::CANCELLED, is_cancelled);
            operation.outcome = Some(Outcome { answer, payload: payload.into() });
            self.history.push(operation);
        }
    }

    /// A request may have been granted a lock before its client was expelled, and not been answered
    /// because pages had to be dropped first. Other owners were refused because of it meanwhile.
    pub(super) fn note_pending_locks(&mut self, cell: CellId, id: ClientId) {
        let client = self.clients.iter_mut().find(|client| client.id == id && client.is_gone);
        for slot in client.into_iter().flat_map(|client| &mut client.slots) {
            let awaits_lock = |asked: &mut Asked| {
                asked.cell == cell && matches!(asked.request, Request::Lock { wait: true, .. })
            };
            if let Some(Asked { mut operation, .. }) = slot.asked.take_if(awaits_lock) {
                operation.outcome = Some(Outcome::of(Ok(Reply::Done)));
                self.history.push(operation);
            }
        }
    }

    /// Records what a predecessor executed for clients that are gone, and that took effect.
    pub(super) fn note_unanswered(&mut self, id: CellId) {
        let host = &self.fleet.cells[usize::from(id.0)];
        let cell = host.cell.as_ref().expect("it is ready");
        let is_new = |(to, seq, _): &(SlotRef, u32, &Answer)| !host.slots.is_answered(*to, *seq);
        let executed = cell.unanswered().filter(is_new);
        let executed: Vec<_> = executed.map(|(to, seq, a)| (to, seq, a.clone())).collect();
        let lost_at = host.slots.lost_at;
        for (hint, (to, seq, answer)) in (lost_at..).zip(executed) {
            if self.clients.iter().any(|client| client.id == to.client && client.is_gone) {
                self.would_answer(id, to, seq, hint, answer);
            } else {
                let slots = &mut self.fleet.cells[usize::from(id.0)].slots;
                slots.executed.entry((to, seq)).or_insert((hint, answer));
            }
        }
    }

    /// Updates what the client and the harness know from an answer.
    fn see(&mut self, at: At, request: &Request, answer: &Answer) {
        match answer {
            Ok(reply) => {
                self.slot(at).holdings.note(request, reply);
                self.known.note(request);
                if let Reply::Created { entry, .. } | Reply::Entry(entry) = reply {
                    self.known.learn(entry.ino, entry.kind);
                }
                if let Reply::Neighbours(found) = reply {
                    self.fleet.sim.count("a name looked up with its neighbours");
                    found.iter().for_each(|one| self.known.learn(one.entry.ino, one.entry.kind));
                }
                self.count_success(request);
            }
            Err(errno) => self.see_error(at, request, *errno),
        }
    }

    fn see_error(&mut self, at: At, request: &Request, errno: Errno) {
        match errno {
            Errno::EINTR => self.fleet.sim.count("a wait for a lock interrupted"),
            Errno::ENOSPC => self.fleet.sim.count("ENOSPC answered"),
            Errno::EIO => self.fleet.sim.count("EIO answered"),
            Errno::ESTALE => self.fleet.sim.count("a stale inode refused"),
            Errno::EDEADLK => self.fleet.sim.count("a deadlock of record locks found"),
            Errno::EACCES | Errno::EPERM => self.fleet.sim.count("permission denied"),
            Errno::ENOTEMPTY => self.fleet.sim.count("a full directory kept"),
            Errno::EINVAL if matches!(request, Request::Rename { .. }) => {
                self.fleet.sim.count("a rename into itself refused");
            }
            _ => {}
        }
        // An inode that is gone has nothing left to release.
        if super::damage::is_gone(&self.fleet, request, errno) {
            let holdings = &mut self.slot(at).holdings;
            if let Request::Close { handle } = request {
                holdings.handles.retain(|(held, _)| held != handle);
            }
            // A handle that is not open for this changes no lock, and its existing locks stay.
            if let Request::Lock { handle, spec, .. } = request
                && (errno == Errno::ESTALE || holdings.would_unlock(*handle, spec.lock))
            {
                holdings.locks.retain(|(held, _)| held.ino != handle.ino);
            }
            if let Some(gone) = subject(request).filter(|_| errno == Errno::ESTALE)
                && self.fleet.sim.rng.chance(3, 4)
            {
                self.known.forget(gone);
            }
        }
    }

    fn count_success(&mut self, request: &Request) {
        let owner = |ino: Ino| self.fleet.map.get(usize::from(ino.shard().0)).copied();
        self.fleet.sim.count(match request {
            Request::Rename { from, dir, .. } if owner(*from) != owner(*dir) => {
                "rename over two cells"
            }
            Request::Link { ino, dir, .. } if owner(*ino) != owner(*dir) => "link over two cells",
            Request::Create { flags, .. } if flags.contains(CreateFlags::EXISTING) => {
                "a name looked up to open it"
            }
            Request::Rename { .. } => "rename in one cell",
            Request::Rmdir { .. } => "rmdir",
            Request::CopyRange { .. } => "a range copied",
            Request::Lock { wait: true, .. } => "lock granted to a waiting call",
            _ => return,
        });
    }

    fn finish_call(&mut self, at: At, answer: Answer) {
        let whole = self.slot(at).whole.take().expect("in a call");
        self.slot(at).call = None;
        let copied =
            matches!(whole.op, Op::Ino(Request::Lookup { .. } | Request::GetAttr { .. }, _));
        // The request that a cell refused is in the history by itself.
        let refused = whole.forged && whole.asked;
        if copied && !whole.asked {
            self.fleet.sim.count("answered from copies");
        }
        let walked = matches!(whole.op, Op::At(_, PathOp::Stat)) && !whole.asked;
        if walked {
            self.fleet.sim.count("a path walked over copies");
        }
        if ((copied && !whole.direct) || walked)
            && !refused
            && let Some(action) = action_of(&whole.op)
        {
            self.record_whole(at, &whole, action, Outcome::of(answer.clone()));
        }
        self.check_listing(&whole, &answer);
        if at.slot >= self.clients[at.client].programs {
            self.slot(at).state = SlotState::Finished;
            return self.wrote_back(at.client, &whole.op, &answer);
        }
        if let Some(audit) = &mut self.audit {
            audit.see(&whole.op, &answer);
        }
        self.think(at);
    }

    pub(super) fn plan_step(&mut self, at: At, nanos: u64) {
        let slot = self.slot(at);
        slot.ticket += 1;
        let ticket = slot.ticket;
        self.plan(nanos, Own::Step { at, ticket });
    }

    pub(super) fn think(&mut self, at: At) {
        self.slot(at).state = SlotState::Thinking;
        let think = self.think_time();
        self.plan_step(at, think);
    }
}

/// One of so many calls on inodes is forged.
const FORGED_EVERY: u64 = 40;

/// Whether the client has reached every inode that the request names.
fn is_reached(client: ClientId, request: &Request, presented: Capabilities) -> bool {
    let (inode, other) = request.named();
    let admits = |ino: Option<Ino>, shown| ino.is_none_or(|ino| KEY.admits(client, ino, shown));
    admits(inode, presented.inode) && admits(other, presented.other)
}

/// Time between two loads of a client, in nanoseconds.
const STEP_NANOS: u64 = 200;

/// Whether executing the request twice has the same effect as once, for a front's ledger.
const fn changes_nothing(request: &Request) -> bool {
    matches!(
        request,
        Request::Lookup { .. }
            | Request::Neighbours { .. }
            | Request::GetAttr { .. }
            | Request::Claim { .. }
            | Request::ReadLink { .. }
            | Request::ReadDir { .. }
            | Request::Read { .. }
            | Request::Fsync { .. }
            | Request::FindData { .. }
            | Request::Sync
            | Request::StatFs
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::TestLock { .. }
    )
}

/// The inode that a request refers to by number.
const fn subject(request: &Request) -> Option<Ino> {
    match request {
        Request::GetAttr { ino }
        | Request::SetAttr { ino, .. }
        | Request::Open { ino, .. }
        | Request::ReadLink { ino } => Some(*ino),
        Request::Lookup { dir, .. }
        | Request::Neighbours { dir, .. }
        | Request::Create { dir, .. }
        | Request::Unlink { dir, .. }
        | Request::Rmdir { dir, .. }
        | Request::ReadDir { dir, .. } => Some(*dir),
        _ => None,
    }
}
