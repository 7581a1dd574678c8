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
//! peer or a client has sent is ever dropped here.
//!
//! Invariant: a slot is in the queue or held aside, never both, at most once (its memory sees to
//! that), so all slots of all clients bound both.

use std::collections::VecDeque;
use std::convert::Infallible;

use warren_base::limits::{SLOTS_MAX, TASKS_MAX};
use warren_base::{CellId, Errno};
use warren_cell::{IoId, PeerMessage, SlotRef};
use warren_mailbox::{Dispatch, DispatchLimits, Origin, Work as Next};
use warren_proto::{LockType, Request, Wire};
use warren_supervisor::ADMISSIONS_MAX;

use super::memory::SharedMemory;

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
    Io {
        io: IoId,
        result: Result<(), Errno>,
    },
    /// The core's timer.
    Timer,
}

/// There is no idle work yet.
pub type Work = Next<Completion, (CellId, PeerMessage), SlotRef, Infallible>;

/// Everything that has come and waits to be done.
pub struct Intake {
    dispatch: Dispatch<Completion, (CellId, PeerMessage), SlotRef, Infallible>,
    /// Looked at and left in their slots, oldest first.
    held: VecDeque<SlotRef>,
    /// Where requests are looked at.
    body: Vec<u8>,
}

impl Intake {
    pub fn new() -> Self {
        let limits = DispatchLimits { clients_queued: CLIENTS_QUEUED, ..DispatchLimits::default() };
        Self { dispatch: Dispatch::new(limits), held: VecDeque::new(), body: Vec::new() }
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
    pub fn push_client(&mut self, slot: SlotRef) -> bool {
        self.dispatch.push_client(slot).is_ok()
    }

    /// Clients' requests that wait in their slots.
    pub fn clients_waiting(&self) -> usize {
        self.dispatch.clients_queued() + self.held.len()
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
        if !self.held.is_empty() {
            self.release_held();
        }
        self.dispatch.take_next()
    }

    /// As many held requests as there is room for get behind what is queued.
    fn release_held(&mut self) {
        let places = CLIENTS_QUEUED - self.dispatch.clients_queued();
        let room = self.dispatch.room(Origin::Client).min(places).min(self.held.len());
        for slot in self.held.drain(..room) {
            let pushed = self.dispatch.push_client(slot);
            assert!(pushed.is_ok(), "there was room");
        }
    }

    #[cold]
    fn next_under_pressure(&mut self, memory: &SharedMemory) -> Option<Work> {
        let urgent = self.dispatch.take_urgent();
        if urgent.is_some() {
            return urgent;
        }
        let share = (TASKS_MAX / memory.clients().max(1)).max(SHARE_MIN);
        let may_pass = |slot: &SlotRef| memory.in_work(slot.client) < share;
        while let Some(slot) = self.dispatch.take_client_aside() {
            if may_pass(&slot) || ends_tasks(slot, memory, &mut self.body) {
                return Some(Work::Client(slot));
            }
            self.held.push_back(slot);
        }
        let passes = self.held.iter().position(may_pass)?;
        self.held.remove(passes).map(Work::Client)
    }
}

/// Whether the slot's request is one that others may be waiting for.
fn ends_tasks(slot: SlotRef, memory: &SharedMemory, body: &mut Vec<u8>) -> bool {
    if !memory.peek(slot, body) {
        // It is nothing or is refused: either takes no task.
        return true;
    }
    match Request::from_bytes(body) {
        Ok(Request::Lock { spec, .. }) => spec.lock == LockType::Unlock,
        Ok(Request::ReleaseLocks { .. } | Request::Cancel { .. } | Request::AwaitRecall { .. }) => {
            true
        }
        Ok(_) => false,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests;
