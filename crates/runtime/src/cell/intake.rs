//! What a cell does next: its dispatch order and its back-pressure.
//!
//! ```text
//! first   what finishes work: replies of peers, finished I/O, the timer
//! then    requests of peers
//! then    requests of clients: users in turn, the clients of each in turn
//! ```
//!
//! Of [`TASKS_MAX`] live tasks a user has a share (`base::budget`), through however many clients;
//! beyond it its requests stay in their slots. Two kinds must not wait even then, or a few could
//! stop a cell for good: requests that end tasks (they give a lock back, cancel, acknowledge a
//! recall), and those of a user that has almost nothing in work. So a user is held up by others
//! only beyond its share, and root never. No request that a peer or a client has sent is ever
//! dropped here.
//!
//! A request that waits for a file lock is no live task: it ends when others go on, who must find
//! room.
//!
//! A request is looked at where its client can still change it. So one that was let through by what
//! it looked like is judged again when it has been taken, by its one copy.
//!
//! Invariant: a slot is in the queue at most once (its memory sees to that), so all slots of all
//! clients bound it.

use warren_base::CellId;
use warren_base::budget::{ROOT, may_take, reserve_of};
use warren_base::limits::{SLOTS_MAX, TASKS_MAX};
use warren_cell::{PeerMessage, SlotRef};
use warren_mailbox::{Dispatch, DispatchLimits, Next as Taken, Origin, Sender, Work as Next};
use warren_proto::{Capabilities, Request};
use warren_supervisor::ADMISSIONS_MAX;

use super::disk::Finished;
use super::memory::SharedMemory;

/// Requests that a user may have in work however many tasks are live, and so many are live at a
/// cell before anybody is asked how many it has.
const SHARE_MIN: usize = 2;
const NOBODY_ASKS: usize = TASKS_MAX / 4;

/// The same for root.
const SHARE_MIN_OF_ROOT: usize = reserve_of(TASKS_MAX);

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
    /// Blocks that the host has room for.
    HostMeasured(u64),
    /// The core's timer.
    Timer,
}

/// A slot whose request is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientWork {
    pub from: SlotRef,
    /// It goes first only because it looked like one that [ends tasks](Request::ends_tasks): anything else is refused.
    pub must_end_tasks: bool,
}

/// There is no idle work yet.
pub type Work = Next<Completion, (CellId, PeerMessage), ClientWork>;

/// Everything that has come and waits to be done.
pub struct Intake {
    dispatch: Dispatch<Completion, (CellId, PeerMessage), SlotRef>,
    /// [`SharedMemory::eased`] and the live tasks when nobody that has requests might go on; until
    /// the one grows, the other falls or another request comes, nobody may.
    stuck_since: Option<(u64, usize)>,
    /// Where requests are looked at.
    body: Vec<u8>,
}

impl Intake {
    pub fn new() -> Self {
        let limits = DispatchLimits { clients_queued: CLIENTS_QUEUED, ..DispatchLimits::default() };
        let (stuck_since, body) = (None, Vec::new());
        Self { dispatch: Dispatch::new(limits), stuck_since, body }
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
    pub fn push_client(&mut self, sender: Sender, from: SlotRef) -> bool {
        self.stuck_since = None;
        self.dispatch.push_client(sender, from).is_ok()
    }

    /// Clients' requests that wait in their slots.
    pub fn clients_waiting(&self) -> usize {
        self.dispatch.clients_queued()
    }

    /// The next that finishes work, or of a peer. Peers' requests are bounded where they come from,
    /// by their own cells' tasks.
    #[inline]
    pub fn next_urgent(&mut self) -> Option<Work> {
        self.dispatch.set_live(Origin::Peer, 0);
        Some(match self.dispatch.take_urgent()? {
            Next::Reply(completion) => Next::Reply(completion),
            Next::Peer(request) => Next::Peer(request),
            Next::Client(_) => unreachable!("clients' requests are taken by user"),
        })
    }

    /// What to do next while `live` tasks are.
    #[inline]
    pub fn next(&mut self, live: usize, memory: &SharedMemory) -> Option<Work> {
        let urgent = self.next_urgent();
        if urgent.is_some() {
            return urgent;
        }
        if let Some((eased, then)) = self.stuck_since
            && eased == memory.eased()
            && live >= then
        {
            return None;
        }
        let body = &mut self.body;
        let taken = self.dispatch.take_client(
            |uid| may_go_on(uid, live, memory),
            |from| seems_to_end_tasks(*from, memory, body),
        );
        self.stuck_since = (taken.is_none() && live >= NOBODY_ASKS).then(|| (memory.eased(), live));
        let Taken { request: from, is_exempt } = taken?;
        Some(Next::Client(ClientWork { from, must_end_tasks: is_exempt }))
    }
}

/// Whether another request of the user's may become a task beside `live` ones.
#[inline]
fn may_go_on(uid: u32, live: usize, memory: &SharedMemory) -> bool {
    if live < NOBODY_ASKS {
        return true;
    }
    let own = memory.in_work(uid);
    let least = if uid == ROOT { SHARE_MIN_OF_ROOT } else { SHARE_MIN };
    own < least || may_take(uid, own, live, TASKS_MAX)
}

/// Whether the slot's request looks like one that others may be waiting for.
fn seems_to_end_tasks(from: SlotRef, memory: &SharedMemory, body: &mut Vec<u8>) -> bool {
    // What is nothing or is refused takes no task.
    let of = |body: &[u8]| Request::from_body(body, &mut Capabilities::default());
    !memory.peek(from, body) || of(body).map_or(true, |request| request.ends_tasks())
}

#[cfg(test)]
mod tests;
