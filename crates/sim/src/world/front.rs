//! A front: a client whose copies are in a kernel that reads no lease words. At every cell it waits
//! for recalls, has the kernel drop the recalled copies, late at times, and acknowledges.
//!
//! It waits on two lanes at each cell. On one lane it handles one recall at a time. Dropping pages
//! waits for the requests that lock them, and delays everything after them on the lane. So does
//! dropping a name for those that lock its directory, but after [`LATE`] the kernel drops all
//! names at once.
//!
//! **A killed front** has a successor (decision 7). Until then its kernel continues: it answers
//! from its copies and keeps its new requests. Answers stay in the slots. The successor handles the
//! recalls in its slots from their beginning, takes the answers of requests that changed something,
//! and sends all others again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Ino, Instant, SlotNo};
use warren_cell::{Plant, SlotRef};
use warren_client::{Op, Send};
use warren_proto::{
    AccessMode, Answer, Capabilities, LeaseKey, Position, Reply, Request, RequestHeader,
};

use super::Own;
use super::clients::{At, Slot, Whole};
use super::copies::{note_names, unpin};
use super::kept::keeps;
use super::kernel::Kernel;
use super::program::shared::SHARED_REACH;
use super::{Phase, World};
use crate::history::{Action, Excuses, Operation, Outcome, Window};

/// The longest time until a killed front has a successor, in nanoseconds.
const SUCCESSOR_NANOS: u64 = 500_000;

/// The longest wait for requests that lock a directory.
const LATE: Duration = Duration::from_micros(100);

/// ClientMemory of a cell: one for names and attributes, one for pages.
const LANES: usize = 2;

/// The recalls of one cell on one lane.
#[derive(Default)]
struct Listener {
    seq: u32,
    /// The recall in progress: its number, and the keys that are left to drop.
    recall: Option<(u64, BTreeSet<LeaseKey>)>,
    /// The recall as it is in the slot, for a successor.
    answer: Vec<LeaseKey>,
    /// Dropping waits for a request.
    blocked: bool,
    /// Since when it waits for requests that lock a directory.
    names_wait: Option<Instant>,
}

pub(super) struct Front {
    pub kernel: Kernel,
    /// By cell and lane.
    listeners: Vec<Listener>,
    /// A request that a program will make again, since it used the copy dropped last.
    wanted: Option<Request>,
    /// Files whose stored pages the kernel writes back completely.
    written_back: BTreeSet<Ino>,
    /// Its process was killed, and there is no successor yet. The kernel continues without it.
    pub is_dead: bool,
    /// Requests that the kernel has made meanwhile, by slot.
    pub unsent: BTreeMap<usize, Send>,
}

impl Front {
    /// Slots it needs beside those for calls.
    pub(super) const fn slots(cells: usize) -> usize {
        LANES * cells
    }

    pub(super) fn new(cells: usize) -> Self {
        let listeners = (0..Self::slots(cells)).map(|_| Listener::default()).collect();
        let written_back = BTreeSet::new();
        let (is_dead, unsent) = (false, BTreeMap::new());
        Self { kernel: Kernel::default(), listeners, wanted: None, written_back, is_dead, unsent }
    }

    pub(super) fn is_recalled(&self) -> bool {
        self.listeners.iter().any(|listener| listener.recall.is_some())
    }
}

/// A kernel walks a path again and sends a change of names once more that was refused.
pub(super) fn repeat_refused(world: &mut World, at: At) {
    if world.clients[at.client].is_gone {
        return;
    }
    world.fleet.sim.count("a kernel repeated a change that was refused");
    let send = world.slot(at).last_sent.clone().expect("a front's request");
    world.send(at, send);
}

impl World {
    fn front(&mut self, client: usize) -> &mut Front {
        self.clients[client].front.as_mut().expect("only fronts are recalled")
    }

    /// Often repeats the request whose copy was dropped.
    pub(super) fn wanted_again(&mut self, client: usize) -> Option<Op> {
        let wanted = self.clients[client].front.as_mut()?.wanted.take()?;
        Some(Op::Ino(wanted, Capabilities::default()))
    }

    pub(super) fn has_dead_front(&self, client: usize) -> bool {
        let client = &self.clients[client];
        !client.is_gone && client.front.as_ref().is_some_and(|front| front.is_dead)
    }

    /// Answers from the kernel's copies, if it has them.
    pub(super) fn ask_kernel(&mut self, at: At, op: &Op) -> Option<(Answer, Vec<u8>)> {
        let Op::Ino(request, _) = op else { return None };
        let with_pages = self.are_pages_right(at, op);
        let client = &self.clients[at.client];
        let front = client.front.as_ref()?;
        if let Request::Read { handle, .. } = request
            && !client.slots[at.slot].holdings.may_read(*handle)
        {
            return None;
        }
        let answered = front.kernel.answer(request, with_pages)?;
        let recalled = front.is_recalled();
        self.fleet.sim.count(match request {
            Request::Lookup { .. } => "a kernel knew a name",
            Request::GetAttr { .. } => "a kernel knew attributes",
            _ => "a kernel knew pages",
        });
        if recalled {
            self.fleet.sim.count("a front used copies while others were recalled");
        }
        Some(answered)
    }

    /// Whether the copies of pages must be current. When a front shrinks a file that another
    /// changes, other fronts may have older pages until their recall ends (decision 17). So only a
    /// program that has locked the file reads them, and a program locks the file before it shrinks
    /// it.
    fn are_pages_right(&self, at: At, op: &Op) -> bool {
        let Op::Ino(Request::Read { handle, .. }, _) = op else { return true };
        if self.swarm.cuts_freely {
            return false;
        }
        !self.swarm.cuts_under_locks
            || self.clients[at.client].slots[at.slot].holdings.has_locked(handle.ino)
    }

    pub(super) fn listen_everywhere(&mut self, client: usize) {
        if self.clients[client].front.is_none() {
            return;
        }
        for listener in 0..Front::slots(self.fleet.cells.len()) {
            self.listen(client, listener, 0);
        }
    }

    fn listen(&mut self, client: usize, number: usize, acknowledged: u64) {
        let calls = self.clients[client].slots.len();
        let id = self.clients[client].id;
        let listener = &mut self.front(client).listeners[number];
        listener.seq += 1;
        let header = RequestHeader { seq: listener.seq, ..RequestHeader::default() };
        let from = SlotRef { client: id, slot: SlotNo((calls + number) as u16) };
        let (cell, pages) = (CellId((number / LANES) as u16), number % LANES == 1);
        self.fleet.plan_request(cell, from, header, Request::AwaitRecall { pages, acknowledged });
    }

    /// A cell answers a waiting slot with a recall.
    pub(super) fn recalled(&mut self, at: At, seq: u32, answer: Answer) {
        let (client, listener_no) = (at.client, at.slot - self.clients[at.client].slots.len());
        if self.clients[client].is_gone {
            return;
        }
        let listener = &mut self.front(client).listeners[listener_no];
        let Ok(Reply::Recall { number, keys, .. }) = answer else {
            return self.fleet.sim.fail(format!("a front that listens was answered {answer:?}"));
        };
        if listener.seq != seq || listener.recall.is_some() {
            return self.fleet.sim.fail("a front is recalled that does not listen".to_owned());
        }
        listener.answer.clone_from(&keys);
        listener.recall = Some((number, keys.into_iter().collect()));
        self.fleet.sim.count("a recall");
        let mut delay = self.fleet.sim.message_delay();
        if self.fleet.sim.rng.chance(self.swarm.late_recall, 1000) {
            self.fleet.sim.count("a late acknowledgement");
            delay *= 200;
            // Late is either the drop or, if that is done now, the acknowledgement. Dropping pages
            // takes long.
            let is_soon = if listener_no % LANES == 1 { 1 } else { 3 };
            if self.fleet.sim.rng.chance(is_soon, 4) {
                self.drop_keys(client, listener_no);
            }
        }
        self.plan(delay, Own::DropCopies { client, listener: listener_no });
        if self.fleet.sim.rng.chance(self.swarm.front_kills, 100) {
            let delay = self.fleet.sim.rng.below(2 * delay);
            self.plan(delay, Own::KillFront { client });
        }
    }

    /// A front's process is killed, between any two of its messages.
    pub(super) fn kill_front(&mut self, client: usize) {
        let may_die = self.phase == Phase::Safety && !self.clients[client].is_gone;
        let Some(front) = &mut self.clients[client].front else { return };
        if !may_die || std::mem::replace(&mut front.is_dead, true) {
            return;
        }
        let is_recalled = front.is_recalled();
        let under_way = self.clients[client].slots.iter().any(|slot| slot.under_way().is_some());
        self.fleet.sim.count("a front killed");
        if is_recalled {
            self.fleet.sim.count("a front killed while it was recalled");
        }
        if under_way {
            self.fleet.sim.count("a front killed with a request under way");
        }
        let of = &mut self.clients[client];
        of.slots.iter_mut().for_each(Slot::lose_front);
        of.kept.forget_changed();
        let is_inherited = |(_, slot): &(usize, &Slot)| slot.under_way().is_some();
        let inherited = of.slots.iter().enumerate().filter(is_inherited);
        of.kept.names.lose(inherited.map(|(number, _)| number).collect());
        let delay = self.fleet.sim.rng.below(SUCCESSOR_NANOS);
        self.plan(delay, Own::StartFront { client });
    }

    /// The front's successor starts the recalls in its slots again, and sends the requests that the
    /// kernel has kept.
    pub(super) fn start_front(&mut self, client: usize) {
        if self.clients[client].is_gone {
            return;
        }
        let forgets = self.fleet.sim.plant == Some(Plant::ForgetRecalls);
        let front = self.front(client);
        front.is_dead = false;
        let unsent = std::mem::take(&mut front.unsent);
        for number in 0..front.listeners.len() {
            let listener = &mut self.front(client).listeners[number];
            let Some((recall_no, keys)) = &mut listener.recall else { continue };
            keys.extend(listener.answer.iter().cloned());
            if forgets {
                let recall_no = *recall_no;
                listener.recall = None;
                self.listen(client, number, recall_no);
                continue;
            }
            let delay = self.fleet.sim.message_delay();
            self.plan(delay, Own::DropCopies { client, listener: number });
        }
        for (slot, send) in unsent {
            self.send(At { client, slot }, send);
        }
        self.write_back(client);
    }

    /// Has the kernel drop the recalled copies; acknowledges when all are dropped.
    pub(super) fn drop_copies(&mut self, client: usize, listener: usize) {
        if self.clients[client].is_gone || self.front(client).is_dead {
            return;
        }
        if let Some(number) = self.drop_keys(client, listener) {
            self.front(client).listeners[listener].recall = None;
            self.listen(client, listener, number);
        }
        self.write_back(client);
    }

    /// Drops as much of a recall as can be dropped now. Returns its number when all is dropped.
    fn drop_keys(&mut self, client: usize, of: usize) -> Option<u64> {
        let now = self.fleet.sim.now;
        let front = self.clients[client].front.as_mut().expect("only fronts are recalled");
        let Front { kernel, listeners, wanted, written_back, .. } = front;
        let listener = &mut listeners[of];
        let (number, keys) = listener.recall.as_mut()?;
        listener.blocked = false;
        while let Some(key) = keys.first() {
            *wanted = match key {
                LeaseKey::Attr(ino) => Some(Request::GetAttr { ino: *ino }),
                LeaseKey::Name(dir, name) => {
                    Some(Request::Lookup { dir: *dir, name: name.clone() })
                }
                LeaseKey::Pages(_) | LeaseKey::Opens(_) | LeaseKey::Names(_) => wanted.take(),
            };
            match key {
                LeaseKey::Name(dir, _) if kernel.locks_names(*dir) => {
                    let since = *listener.names_wait.get_or_insert(now);
                    let late = since + LATE;
                    if now >= late {
                        self.fleet.sim.count("all names dropped, because one had to wait");
                        kernel.void_names();
                        keys.retain(|key| !matches!(key, LeaseKey::Name(..)));
                        listener.names_wait = None;
                        continue;
                    }
                    listener.blocked = true;
                    self.fleet.sim.count("a recall of a name waits for a request in its directory");
                    let left = (late - now).as_nanos() as u64;
                    self.plan(left, Own::DropCopies { client, listener: of });
                    return None;
                }
                LeaseKey::Pages(ino) if kernel.locks_pages(*ino) => {
                    listener.blocked = true;
                    if kernel.has_stored(*ino) {
                        written_back.insert(*ino);
                    }
                    self.fleet.sim.count("a recall of pages waits for a read or write of them");
                    return None;
                }
                key => kernel.void(key),
            }
            keys.pop_first();
        }
        listener.names_wait = None;
        Some(*number)
    }

    /// A program stores in a page that it has mapped. Returns whether it did.
    pub(super) fn store_in_mapping(&mut self, at: At) -> bool {
        let client = &mut self.clients[at.client];
        let Some(front) = &mut client.front else { return false };
        let may_store = self.swarm.stores && self.calls_left > 0 && self.audit.is_none();
        if !may_store || !self.fleet.sim.rng.chance(1, 4) {
            return false;
        }
        let holdings = &client.slots[at.slot].holdings;
        let both = AccessMode::READ | AccessMode::WRITE;
        let mapped = holdings.handles.iter().find(|(handle, access)| {
            Some(handle.ino) == self.known.shared
                && access.contains(both)
                && (self.swarm.cuts_freely || holdings.has_locked(handle.ino))
        });
        let Some((handle, _)) = mapped else { return false };
        let offset = self.fleet.sim.rng.below(SHARED_REACH);
        let bytes = self.fleet.sim.rng.next_u64().to_le_bytes();
        let is_done = front.kernel.store(*handle, offset, bytes);
        if is_done {
            self.fleet.sim.count("a program stored in a mapped page");
        }
        is_done
    }

    /// Whether the stores in mappings must be written back before the call. Programs unmap before
    /// they release a lock; kernels write back before they close, sync, truncate or write.
    pub(super) fn is_to_write_back(&mut self, at: At, op: &Op) -> bool {
        let Op::Ino(request, _) = op else { return false };
        let stored = |ino: &Ino| {
            self.clients[at.client]
                .front
                .as_ref()
                .is_some_and(|front| front.kernel.has_stored(*ino))
        };
        let ino = match request {
            Request::Fsync { ino, .. } => *ino,
            Request::CopyRange { source, .. } if stored(&source.ino) => source.ino,
            Request::CopyRange { handle, .. }
            | Request::Lock { handle, .. }
            | Request::Close { handle }
            | Request::Write { handle, .. }
            | Request::Fallocate { handle, .. } => handle.ino,
            Request::SetAttr { ino, set, .. } if set.size.is_some() => *ino,
            Request::Open { ino, access } if access.contains(AccessMode::TRUNCATE) => *ino,
            _ => return false,
        };
        let Some(front) = &mut self.clients[at.client].front else { return false };
        if !front.kernel.has_stored(ino) {
            return false;
        }
        front.written_back.insert(ino);
        self.write_back(at.client);
        true
    }

    /// Starts the write-backs that are required, as far as slots are free.
    fn write_back(&mut self, client: usize) {
        if self.clients[client].is_gone {
            return;
        }
        let files: Vec<Ino> = self.front(client).written_back.iter().copied().collect();
        for ino in files {
            while self.write_page_back(client, ino) {}
            let Front { kernel, written_back, .. } = self.front(client);
            if !kernel.has_stored(ino) {
                written_back.remove(&ino);
            }
        }
    }

    /// A page was written back, or the write-back failed.
    pub(super) fn wrote_back(&mut self, client: usize, op: &Op, answer: &Answer) {
        let Op::Ino(Request::Write { handle, position: Position::At(at), .. }, _) = op else {
            return self.fleet.sim.fail(format!("a kernel writes {op:?} back"));
        };
        let page = at / BLOCK_SIZE as u64;
        self.front(client).kernel.wrote_back(handle.ino, page, answer.is_ok());
        self.write_back(client);
        self.go_on_deferred(client);
        self.drop_blocked(client);
    }

    /// A request of the front is sent.
    pub(super) fn note_asked(&mut self, at: At, request: &Request) {
        let client = &mut self.clients[at.client];
        if let Some(front) = &mut client.front {
            let written = client.slots[at.slot].payload().len() as u64;
            front.kernel.ask(at.slot, request, written);
            if keeps(&self.swarm) {
                client.kept.names.begin(request);
            }
        }
    }

    /// A request is answered, so its pages are not locked any more.
    pub(super) fn note_answered(
        &mut self,
        at: At,
        request: &Request,
        answer: &Answer,
        read: &[u8],
    ) {
        self.note_page(at, request, answer);
        let client = &mut self.clients[at.client];
        if let Some(front) = &mut client.front {
            front.kernel.answered(at.slot, answer, client.slots[at.slot].payload(), read);
        }
        // A client that is expelled has no handles. It may still read the answer of before.
        let is_gone = client.is_gone;
        if let Some(opened) = answer.as_ref().ok().and_then(Reply::opened).filter(|_| !is_gone) {
            let ino = opened.handle.ino;
            self.fleet.lanes.mark_used(client.id, ino);
            client.kept.note_opened(request, opened, self.fleet.map[usize::from(ino.shard().0)]);
        }
        if let Request::Open { ino, .. } = request
            && !is_gone
        {
            unpin(self, at, *ino, answer.is_ok());
        }
        if self.clients[at.client].front.is_none() {
            return;
        }
        note_names(self, at, request, answer);
        self.drop_blocked(at.client);
    }

    /// Retries the drops that waited for a request to be answered.
    fn drop_blocked(&mut self, client: usize) {
        let front = self.front(client);
        let blocked: Vec<usize> =
            (0..front.listeners.len()).filter(|of| front.listeners[*of].blocked).collect();
        for listener in blocked {
            let delay = self.fleet.sim.message_delay();
            self.plan(delay, Own::DropCopies { client, listener });
        }
    }

    /// A call that was answered from copies or with kept handles.
    pub(super) fn record_whole(&mut self, at: At, whole: &Whole, action: Action, outcome: Outcome) {
        let returned = self.fleet.sim.place();
        self.last_return = self.fleet.sim.now;
        let client = &self.clients[at.client];
        let mut excuses = self.excuses_of_copies(at);
        excuses.set(Excuses::DAMAGED, super::may_be_refused(self, whole.invoked));
        let is_excused = self.fleet.incidents.excuse_calls(whole.invoked);
        excuses.set(Excuses::IO, outcome.answer == Err(Errno::EIO) && is_excused);
        let operation = Operation {
            process: self.process(at) + usize::from(whole.asked),
            client: client.id,
            credentials: client.credentials.clone(),
            action,
            payload: Rc::from([]),
            invoked: whole.invoked,
            returned,
            hint: whole.invoked.midpoint(returned),
            window: Window { from: whole.from, to: self.fleet.sim.wall(), steps: false },
            excuses,
            outcome: Some(outcome),
        };
        self.history.push(operation);
    }

    /// A read changes the access time without waiting for the fronts' copies of it.
    fn excuses_of_copies(&self, at: At) -> Excuses {
        let mut excuses = Excuses::default();
        excuses.set(Excuses::OLD_ATIME, self.clients[at.client].front.is_some());
        excuses
    }
}

/// What the call is in the history. `None` for a call that consists of several requests.
pub(super) fn action_of(op: &Op) -> Option<Action> {
    match op {
        Op::Ino(request, _) => Some(Action::Request(request.clone())),
        Op::At(path, _) => {
            Some(Action::Stat { path: Rc::from(&*path.bytes), follow_last: path.follow_last })
        }
        _ => None,
    }
}
