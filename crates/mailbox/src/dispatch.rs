//! The order in which a process takes its messages (fos thesis section 3.3).
//!
//! Replies first, because they finish work; then peers' requests, because a task of the peer waits
//! for them; then clients' requests, the user first that has used the least time ([`Turns`]). At
//! the limit of live tasks no new requests are handed out. This puts back-pressure on the senders:
//! their queues fill up, and a push returns `Full`.
//!
//! Invariants:
//! * A reply is always handed out, however many tasks are live.
//! * Live tasks of peers and of clients are counted apart, so a flood of clients never delays a
//!   peer's request. Two cells whose clients wait for each other both make progress.
//! * A request is live from `take_next` until `finished`, however short it was; or the driver sets
//!   the number of live tasks with `set_live`.

use std::time::Duration;

use warren_base::{BoundedQueue, Full, Instant};

use crate::turns::{Next, Sender, Turns};

/// The sender of the request that a task serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    Peer,
    Client,
}

/// The next work. `Peer` and `Client` must be followed by [`Dispatch::finished`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work<R, P, C> {
    Reply(R),
    Peer(P),
    Client(C),
}

/// The limits of queues and of live tasks. None is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DispatchLimits {
    pub replies_queued: usize,
    pub peers_queued: usize,
    pub clients_queued: usize,
    /// Tasks for peers that may be live at once.
    pub peer_tasks: usize,
    /// Tasks for clients that may be live at once.
    pub client_tasks: usize,
}

impl Default for DispatchLimits {
    /// Every live client task can have one request at a peer, so the queue has room for all
    /// replies.
    fn default() -> Self {
        let tasks = warren_base::limits::TASKS_MAX;
        Self {
            replies_queued: 2 * tasks,
            peers_queued: tasks,
            clients_queued: tasks,
            peer_tasks: tasks,
            client_tasks: tasks,
        }
    }
}

/// Replies `R`, peers' requests `P` and clients' requests `C` of one process.
#[derive(Clone)]
pub struct Dispatch<R, P, C> {
    replies: BoundedQueue<R>,
    peers: BoundedQueue<P>,
    clients: Turns<C>,
    clients_queued_max: usize,
    peer_tasks: LiveTasks,
    client_tasks: LiveTasks,
}

#[derive(Clone)]
struct LiveTasks {
    live: usize,
    limit: usize,
}

impl LiveTasks {
    fn new(limit: usize) -> Self {
        assert!(limit > 0);
        Self { live: 0, limit }
    }

    fn room(&self) -> usize {
        self.limit.saturating_sub(self.live)
    }

    fn has_room(&self) -> bool {
        self.live < self.limit
    }
}

impl<R, P, C> Dispatch<R, P, C> {
    pub fn new(limits: DispatchLimits) -> Self {
        Self {
            replies: BoundedQueue::new(limits.replies_queued),
            peers: BoundedQueue::new(limits.peers_queued),
            clients: Turns::default(),
            clients_queued_max: limits.clients_queued,
            peer_tasks: LiveTasks::new(limits.peer_tasks),
            client_tasks: LiveTasks::new(limits.client_tasks),
        }
    }

    pub fn push_reply(&mut self, reply: R) -> Result<(), Full<R>> {
        self.replies.push(reply)
    }

    pub fn push_peer(&mut self, request: P) -> Result<(), Full<P>> {
        self.peers.push(request)
    }

    pub fn push_client(&mut self, sender: Sender, request: C) -> Result<(), Full<C>> {
        if !self.takes_clients() {
            return Err(Full(request));
        }
        self.clients.push(sender, request);
        Ok(())
    }

    /// The next work, if any can be done.
    pub fn take_next(&mut self) -> Option<Work<R, P, C>> {
        let urgent = self.take_urgent();
        if urgent.is_some() {
            return urgent;
        }
        if !self.client_tasks.has_room() {
            return None;
        }
        let Next { request, .. } = self.clients.pop(|_| true, |_| false)?;
        self.client_tasks.live += 1;
        Some(Work::Client(request))
    }

    /// The work before any client's request: a reply or a peer's request.
    pub fn take_urgent(&mut self) -> Option<Work<R, P, C>> {
        if let Some(reply) = self.replies.pop() {
            return Some(Work::Reply(reply));
        }
        pop_within(&mut self.peers, &mut self.peer_tasks).map(Work::Peer)
    }

    /// The next request of a user that may go on, whatever the number of live tasks, or an exempt
    /// request (it ends tasks). For a driver that counts live tasks itself. See [`Turns::pop`].
    #[inline]
    pub fn take_client(
        &mut self,
        may_go_on: impl Fn(u32) -> bool,
        goes_first: impl FnMut(&C) -> bool,
    ) -> Option<Next<C>> {
        self.clients.pop(may_go_on, goes_first)
    }

    /// A user whose next request is worth a wait, although others wait. See [`Turns::awaits`].
    #[inline]
    pub fn awaits(&mut self, now: Instant, may_go_on: impl Fn(u32) -> bool) -> Option<u32> {
        self.clients.awaits(now, may_go_on)
    }

    /// Requests of the user, or waits for them, have taken this time.
    #[inline]
    pub fn charge(&mut self, uid: u32, time: Duration) {
        self.clients.charge(uid, time);
    }

    /// A request of the user was answered at this time.
    #[inline]
    pub fn answered(&mut self, uid: u32, now: Instant) {
        self.clients.answered(uid, now);
    }

    /// The process sleeps, so what users have used does not matter any more.
    pub fn rest(&mut self) {
        self.clients.rest();
    }

    /// Sets the number of live tasks, for a driver that counts them itself instead of calling
    /// [`Self::finished`].
    pub fn set_live(&mut self, origin: Origin, live: usize) {
        match origin {
            Origin::Peer => self.peer_tasks.live = live,
            Origin::Client => self.client_tasks.live = live,
        }
    }

    /// The number of requests of this origin that may be handed out before one must finish.
    pub fn room(&self, origin: Origin) -> usize {
        match origin {
            Origin::Peer => self.peer_tasks.room(),
            Origin::Client => self.client_tasks.room(),
        }
    }

    /// A request from `take_next` has been answered, or given up.
    pub fn finished(&mut self, origin: Origin) {
        let tasks = match origin {
            Origin::Peer => &mut self.peer_tasks,
            Origin::Client => &mut self.client_tasks,
        };
        assert!(tasks.live > 0, "a task finished that was not live");
        tasks.live -= 1;
    }

    /// Requests handed out and not finished.
    pub fn live(&self, origin: Origin) -> usize {
        match origin {
            Origin::Peer => self.peer_tasks.live,
            Origin::Client => self.client_tasks.live,
        }
    }

    /// Whether requests of this origin wait for live tasks to finish.
    pub fn is_pressed(&self, origin: Origin) -> bool {
        match origin {
            Origin::Peer => !self.peer_tasks.has_room() && !self.peers.is_empty(),
            Origin::Client => !self.client_tasks.has_room() && !self.clients.is_empty(),
        }
    }

    /// Whether more replies can be queued.
    pub fn takes_replies(&self) -> bool {
        !self.replies.is_full()
    }

    /// Whether more peers' requests can be queued. If not, the cell leaves them in their rings.
    pub fn takes_peers(&self) -> bool {
        !self.peers.is_full()
    }

    /// Whether more clients' requests can be queued. If not, the cell leaves them in their slots.
    fn takes_clients(&self) -> bool {
        self.clients.len() < self.clients_queued_max
    }

    /// Clients' requests that are queued.
    pub fn clients_queued(&self) -> usize {
        self.clients.len()
    }

    /// Whether nothing is queued. Live tasks do not count.
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.peers.is_empty() && self.clients.is_empty()
    }
}

#[inline]
fn pop_within<T>(queue: &mut BoundedQueue<T>, tasks: &mut LiveTasks) -> Option<T> {
    if !tasks.has_room() {
        return None;
    }
    let request = queue.pop()?;
    tasks.live += 1;
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::{ClientId, Rng};

    type Numbers = Dispatch<u32, u32, u32>;

    const ANYONE: Sender = Sender { uid: 7, client: ClientId(1) };

    fn limits(peer_tasks: usize, client_tasks: usize) -> DispatchLimits {
        let (replies_queued, peers_queued, clients_queued) = (4, 4, 4);
        DispatchLimits { replies_queued, peers_queued, clients_queued, peer_tasks, client_tasks }
    }

    #[test]
    fn replies_then_peers_then_clients() {
        let mut dispatch = Numbers::new(limits(9, 9));
        dispatch.push_client(ANYONE, 5).unwrap();
        dispatch.push_client(ANYONE, 6).unwrap();
        dispatch.push_peer(3).unwrap();
        dispatch.push_reply(1).unwrap();
        dispatch.push_reply(2).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| dispatch.take_next()).collect();
        let expected =
            [Work::Reply(1), Work::Reply(2), Work::Peer(3), Work::Client(5), Work::Client(6)];
        assert_eq!(order, expected);
        assert!(dispatch.is_empty());
    }

    #[test]
    fn live_tasks_press_back_but_not_on_replies_or_peers() {
        let mut dispatch = Numbers::new(limits(1, 2));
        for request in 0..4 {
            dispatch.push_client(ANYONE, request).unwrap();
        }
        assert_eq!(dispatch.push_client(ANYONE, 4), Err(Full(4)));
        assert_eq!(dispatch.take_next(), Some(Work::Client(0)));
        assert_eq!(dispatch.take_next(), Some(Work::Client(1)));
        assert_eq!(dispatch.take_next(), None);
        assert!(dispatch.is_pressed(Origin::Client) && !dispatch.is_pressed(Origin::Peer));
        dispatch.push_peer(10).unwrap();
        dispatch.push_peer(11).unwrap();
        assert_eq!(dispatch.take_next(), Some(Work::Peer(10)));
        assert_eq!(dispatch.take_next(), None, "peers have a limit too");
        dispatch.push_reply(20).unwrap();
        assert_eq!(dispatch.take_next(), Some(Work::Reply(20)));
        dispatch.finished(Origin::Peer);
        assert_eq!(dispatch.take_next(), Some(Work::Peer(11)));
        dispatch.finished(Origin::Client);
        assert_eq!(dispatch.take_next(), Some(Work::Client(2)));
    }

    /// Two cells flooded by clients whose every request needs the other cell: there is no deadlock.
    #[test]
    fn flooded_cells_that_need_each_other_go_on() {
        let mut rng = Rng::new(9);
        let mut cells = [Numbers::new(limits(1, 2)), Numbers::new(limits(1, 2))];
        let (mut answered, mut offered) = (0, 0);
        // Client tasks of each cell whose request to the other has not been accepted yet.
        let mut unsent: [Vec<u32>; 2] = [vec![], vec![]];
        for _ in 0..20_000 {
            let here = rng.below(2) as usize;
            let there = 1 - here;
            while cells[here].push_client(ANYONE, offered).is_ok() {
                offered += 1;
            }
            while let Some(&request) = unsent[here].last() {
                if cells[there].push_peer(request).is_err() {
                    break;
                }
                unsent[here].pop();
            }
            match cells[here].take_next() {
                Some(Work::Client(request)) => unsent[here].push(request),
                Some(Work::Peer(request)) => {
                    cells[there].push_reply(request).unwrap();
                    cells[here].finished(Origin::Peer);
                }
                Some(Work::Reply(_)) => {
                    cells[here].finished(Origin::Client);
                    answered += 1;
                }
                None => {}
            }
            assert!(cells[here].live(Origin::Client) <= 2);
        }
        assert!(answered > 4000, "{answered}");
    }

    #[test]
    #[should_panic(expected = "not live")]
    fn finishing_what_was_not_live_is_our_own_mistake() {
        Numbers::new(DispatchLimits::default()).finished(Origin::Peer);
    }

    #[test]
    fn a_count_from_outside_presses_and_a_request_taken_by_user_makes_nothing_live() {
        let mut dispatch = Numbers::new(limits(1, 2));
        let other = Sender { uid: 8, ..ANYONE };
        for (sender, request) in [(ANYONE, 1), (ANYONE, 2), (other, 3)] {
            dispatch.push_client(sender, request).unwrap();
        }
        dispatch.set_live(Origin::Client, 5);
        assert_eq!((dispatch.take_next(), dispatch.room(Origin::Client)), (None, 0));
        let taken = dispatch.take_client(|uid| uid == 8, |_| false);
        assert_eq!(taken, Some(Next { uid: 8, request: 3, is_exempt: false }));
        assert_eq!(dispatch.take_client(|uid| uid == 8, |_| false), None);
        assert_eq!(dispatch.live(Origin::Client), 5);
        dispatch.set_live(Origin::Client, 1);
        assert_eq!(dispatch.room(Origin::Client), 1);
        assert_eq!(dispatch.take_urgent(), None);
        assert_eq!(dispatch.take_next(), Some(Work::Client(1)));
        assert_eq!(dispatch.live(Origin::Client), 2);
    }
}
