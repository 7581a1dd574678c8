//! The dispatch order of a cell, and its back-pressure on clients.
//!
//! ```text
//! first   completions: replies of peers, finished I/O, the timer
//! then    requests of peers
//! then    requests of clients: the user first that has used the least time of the cell, the
//!         clients of each in turn
//! ```
//!
//! If a user that was just answered has used less than the next one in turn, and that one's
//! requests take long, then there is no work for a moment ([`Chosen::Wait`]): its next request
//! comes first.
//!
//! Each user has a share of the [`TASKS_MAX`] live tasks (`base::budget`), however many clients it
//! has. Requests beyond the share stay in their slots. Two kinds of request are taken even then,
//! because a few users could otherwise stop a cell for good: requests that end tasks (they release
//! a lock, cancel a request, acknowledge a recall), and requests of a user that has almost none in
//! progress. So other users delay a user's requests only beyond its share, and they never delay
//! root's. No request of a peer or a client is ever dropped here.
//!
//! A request that waits for a file lock is not a live task: it ends only when other requests
//! execute, and these need room.
//!
//! A request is peeked at where its client can still change it. So a request that was let through
//! as one that ends tasks is checked again when it has been taken, in the cell's own copy.
//!
//! Invariant: a slot is in the queue at most once (its memory ensures that), so the queue holds at
//! most all slots of all clients.

use warren_base::budget::{ROOT, may_take, reserve_of};
use warren_base::limits::{SLOTS_MAX, TASKS_MAX};
use warren_base::{CellId, Instant};
use warren_cell::{PeerMessage, SlotRef};
use warren_mailbox::{Dispatch, DispatchLimits, Next as Taken, Sender, Work as Next};
use warren_proto::{Capabilities, Request};
use warren_supervisor::ADMISSIONS_MAX;

use super::disk::Finished;
use super::memory::SharedMemory;

/// A user may have so many requests in progress, however many tasks are live.
const SHARE_MIN: usize = 2;
const SHARES_FROM: usize = TASKS_MAX / 4;

/// The same for root.
const SHARE_MIN_OF_ROOT: usize = reserve_of(TASKS_MAX);

/// The queue has room for every slot of every client.
const CLIENTS_QUEUED: usize = ADMISSIONS_MAX * SLOTS_MAX;

/// An event that finishes work.
#[derive(Debug)]
pub(super) enum Completion {
    Peer {
        from: CellId,
        message: PeerMessage,
    },
    Io(Finished),
    /// Blocks that the host has room for.
    HostMeasured(u64),
    /// The core's timer.
    Timer,
}

/// A slot whose request is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClientWork {
    pub from: SlotRef,
    /// The request was let through because it looked like one that [ends
    /// tasks](Request::ends_tasks). If it is any other, it is refused.
    pub must_end_tasks: bool,
}

pub(super) type Work = Next<Completion, (CellId, PeerMessage), ClientWork>;

/// The next step of the cell.
#[derive(Debug)]
pub(super) enum Chosen {
    Work(Work),
    /// The loop gathers again, because the next request of a user is awaited. That is bounded to
    /// microseconds.
    Wait,
    Nothing,
}

/// All that has arrived and waits.
pub(super) struct Intake {
    dispatch: Dispatch<Completion, (CellId, PeerMessage), SlotRef>,
    /// Set when clients' requests were queued and none could be taken: [`SharedMemory::eased`] and
    /// the number of live tasks then. None can be taken until the first grows, the second falls, or
    /// another request arrives.
    stuck_since: Option<(u64, usize)>,
    /// A buffer for requests that are peeked at.
    body: Vec<u8>,
}

impl Intake {
    pub(super) fn new() -> Self {
        let limits = DispatchLimits { clients_queued: CLIENTS_QUEUED, ..DispatchLimits::default() };
        let (stuck_since, body) = (None, Vec::new());
        Self { dispatch: Dispatch::new(limits), stuck_since, body }
    }

    pub(super) fn takes_completions(&self) -> bool {
        self.dispatch.takes_replies()
    }

    pub(super) fn takes_peers(&self) -> bool {
        self.dispatch.takes_peers()
    }

    /// The caller checks [`Self::takes_completions`] first.
    pub(super) fn push_completion(&mut self, completion: Completion) {
        self.dispatch.push_reply(completion).expect("there was room");
    }

    /// The caller checks [`Self::takes_peers`] first.
    pub(super) fn push_peer(&mut self, from: CellId, message: PeerMessage) {
        self.dispatch.push_peer((from, message)).expect("there was room");
    }

    /// False if no more slots can be queued.
    pub(super) fn push_client(&mut self, sender: Sender, from: SlotRef) -> bool {
        self.stuck_since = None;
        self.dispatch.push_client(sender, from).is_ok()
    }

    /// Whether anything is queued.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        !self.dispatch.is_empty()
    }

    /// Clients' requests that wait in their slots.
    pub(super) fn clients_waiting(&self) -> usize {
        self.dispatch.clients_queued()
    }

    /// The next completion or peer's request. Peers' requests need no limit here: the tasks of
    /// their own cells bound them.
    #[inline]
    pub(super) fn next_urgent(&mut self) -> Option<Work> {
        self.dispatch.take_urgent()
    }

    /// The next work at this time, while `live` tasks are live.
    #[inline]
    pub(super) fn next(&mut self, now: Instant, live: usize, memory: &mut SharedMemory) -> Chosen {
        if let Some(urgent) = self.next_urgent() {
            return Chosen::Work(urgent);
        }
        if let Some((eased, then)) = self.stuck_since
            && eased == memory.eased()
            && live >= then
        {
            return Chosen::Nothing;
        }
        if let Some(uid) = self.dispatch.awaits(now, |uid| may_go_on(uid, live, memory)) {
            memory.meter().run(uid);
            return Chosen::Wait;
        }
        let body = &mut self.body;
        let taken = self.dispatch.take_client(
            |uid| may_go_on(uid, live, memory),
            |from| seems_to_end_tasks(*from, memory, body),
        );
        self.stuck_since = (taken.is_none() && live >= SHARES_FROM).then(|| (memory.eased(), live));
        let Some(Taken { uid, request: from, is_exempt }) = taken else { return Chosen::Nothing };
        memory.meter().run(uid);
        Chosen::Work(Next::Client(ClientWork { from, must_end_tasks: is_exempt }))
    }

    /// Charges the users with what the cell has spent for them until now.
    #[inline]
    pub(super) fn charge(&mut self, now: Instant, memory: &mut SharedMemory) {
        let answered = memory.meter().read(now, |uid, time| self.dispatch.charge(uid, time));
        if let Some(uid) = answered {
            self.dispatch.answered(uid, now);
        }
    }

    /// The cell sleeps: what users have used does not matter any more.
    pub(super) fn rest(&mut self) {
        self.dispatch.rest();
    }
}

/// Whether another request of the user may become a task beside the `live` ones.
#[inline]
fn may_go_on(uid: u32, live: usize, memory: &SharedMemory) -> bool {
    if live < SHARES_FROM {
        return true;
    }
    let own = memory.in_progress(uid);
    let least = if uid == ROOT { SHARE_MIN_OF_ROOT } else { SHARE_MIN };
    own < least || may_take(uid, own, live, TASKS_MAX)
}

/// Whether the slot's request looks like one that other requests may wait for.
fn seems_to_end_tasks(from: SlotRef, memory: &SharedMemory, body: &mut Vec<u8>) -> bool {
    // An empty slot or a refused request makes no task.
    let of = |body: &[u8]| Request::from_body(body, &mut Capabilities::default());
    !memory.peek(from, body) || of(body).map_or(true, |request| request.ends_tasks())
}

#[cfg(test)]
mod tests;
