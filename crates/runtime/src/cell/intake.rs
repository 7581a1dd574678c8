//! What a cell does next: its dispatch order and its back-pressure.
//!
//! ```text
//! first   what finishes work: replies of peers, finished I/O, the timer
//! then    requests of peers
//! then    requests of clients, in the order in which their slots were found rung
//! ```
//!
//! While [`TASKS_MAX`] tasks are live, clients' requests stay in their slots. Two kinds must not wait
//! even then, or a few clients could stop a cell for good: requests that end tasks (they give a lock
//! back, cancel, acknowledge a recall), and those of a client that has no more in work than its
//! share of the tasks. So a client is held up by others only beyond its share. No request that a
//! peer or a client has sent is ever dropped here. What waited goes on in turn by client.
//!
//! A request is looked at where its client can still change it. So one that was let through by what
//! it looked like is judged again when it has been taken, by its one copy.
//!
//! Invariant: a slot is in the queue or held aside, never both, at most once (its memory sees to
//! that), so all slots of all clients bound both.

mod held;

use std::convert::Infallible;

use warren_base::CellId;
use warren_base::limits::{SLOTS_MAX, TASKS_MAX};
use warren_cell::{PeerMessage, SlotRef};
use warren_mailbox::{Dispatch, DispatchLimits, Origin, Work as Next};
use warren_proto::{LockType, Request};
use warren_supervisor::ADMISSIONS_MAX;

use super::disk::Finished;
use super::memory::SharedMemory;
use held::Held;

/// Requests a client may have in work however many tasks are live: one that waits for recalls, as
/// a front always has at every cell, and one more.
const SHARE_MIN: usize = 2;

/// Every slot of every client fits.
const CLIENTS_QUEUED: usize = ADMISSIONS_MAX * SLOTS_MAX;

/// What finishes work.
#[derive(Debug)]
pub enum Completion {
    Peer {
        from: CellId,
        message: PeerMessage,
    },
    Io(Finished),
    /// The core's timer.
    Timer,
}

/// A slot whose request is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientWork {
    pub from: SlotRef,
    /// It goes first only because it looked like one that [`ends_tasks`]: anything else is refused.
    pub must_end_tasks: bool,
}

/// There is no idle work yet.
pub type Work = Next<Completion, (CellId, PeerMessage), ClientWork, Infallible>;

/// Everything that has come and waits to be done.
pub struct Intake {
    dispatch: Dispatch<Completion, (CellId, PeerMessage), ClientWork, Infallible>,
    /// Looked at and left in their slots.
    held: Held,
    /// [`SharedMemory::eased`] when nothing held might pass; until it grows nothing does.
    stuck_since: Option<u64>,
    /// Where requests are looked at.
    body: Vec<u8>,
}

impl Intake {
    pub fn new() -> Self {
        let limits = DispatchLimits { clients_queued: CLIENTS_QUEUED, ..DispatchLimits::default() };
        let (held, stuck_since, body) = (Held::new(), None, Vec::new());
        Self { dispatch: Dispatch::new(limits), held, stuck_since, body }
    }

    pub fn takes_completions(&self) -> bool {
        self.dispatch.takes_replies()
    }

    pub fn takes_peers(&self) -> bool {
        self.dispatch.takes_peers()
    }

    /// Comes after [`Self::takes_completions`].
    pub fn push_completion(&mut self, completion: Completion) {
        self.dispatch.push_reply(completion).expect("there was room");
    }

    /// Comes after [`Self::takes_peers`].
    pub fn push_peer(&mut self, from: CellId, message: PeerMessage) {
        self.dispatch.push_peer((from, message)).expect("there was room");
    }

    /// False if no more slots can be queued.
    pub fn push_client(&mut self, from: SlotRef) -> bool {
        self.dispatch.push_client(ClientWork { from, must_end_tasks: false }).is_ok()
    }

    /// Clients' requests that wait in their slots.
    pub fn clients_waiting(&self) -> usize {
        self.dispatch.clients_queued() + self.held.len()
    }

    /// The next that finishes work, or of a peer.
    pub fn next_urgent(&mut self) -> Option<Work> {
        self.dispatch.set_live(Origin::Peer, 0);
        self.dispatch.take_urgent()
    }

    /// What to do next while `live` tasks are.
    #[inline]
    pub fn next(&mut self, live: usize, memory: &SharedMemory) -> Option<Work> {
        self.dispatch.set_live(Origin::Client, live);
        // Peers' requests are bounded where they come from, by their own cells' tasks.
        self.dispatch.set_live(Origin::Peer, 0);
        if self.dispatch.room(Origin::Client) == 0 {
            return self.next_under_pressure(memory);
        }
        if self.held.len() > 0 {
            self.release_held();
        }
        self.dispatch.take_next()
    }

    /// As many held requests as there is room for get behind what is queued.
    fn release_held(&mut self) {
        let places = CLIENTS_QUEUED - self.dispatch.clients_queued();
        for _ in 0..self.dispatch.room(Origin::Client).min(places) {
            let Some(from) = self.held.pop(|_| true) else { break };
            assert!(self.push_client(from), "there was room");
        }
    }

    #[cold]
    fn next_under_pressure(&mut self, memory: &SharedMemory) -> Option<Work> {
        let urgent = self.dispatch.take_urgent();
        if urgent.is_some() {
            return urgent;
        }
        let share = (TASKS_MAX / memory.clients().max(1)).max(SHARE_MIN);
        let may_pass = |client| memory.in_work(client) < share;
        while let Some(ClientWork { from, .. }) = self.dispatch.take_client_aside() {
            let may_pass = may_pass(from.client);
            if may_pass || seems_to_end_tasks(from, memory, &mut self.body) {
                return Some(Work::Client(ClientWork { from, must_end_tasks: !may_pass }));
            }
            self.held.push(from);
        }
        if self.stuck_since == Some(memory.eased()) {
            return None;
        }
        let passes = self.held.pop(may_pass);
        self.stuck_since = passes.is_none().then(|| memory.eased());
        passes.map(|from| Work::Client(ClientWork { from, must_end_tasks: false }))
    }
}

/// Whether the slot's request looks like one that others may be waiting for.
fn seems_to_end_tasks(from: SlotRef, memory: &SharedMemory, body: &mut Vec<u8>) -> bool {
    // What is nothing or is refused takes no task.
    !memory.peek(from, body) || Request::from_body(body).map_or(true, |(r, _)| ends_tasks(&r))
}

/// Whether the request takes no task for long, but may end others'.
pub fn ends_tasks(request: &Request) -> bool {
    match request {
        Request::Lock { spec, .. } => spec.lock == LockType::Unlock,
        Request::ReleaseLocks { .. } | Request::Cancel { .. } | Request::AwaitRecall { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
