//! The order in which a process takes its messages (fos thesis section 3.3).
//!
//! Replies first, because they finish work; then peers' requests, because a task of the peer waits
//! for them; then clients' requests, the user first that has used the least time ([`Turns`]). The
//! driver decides which users may go on, and leaves requests queued if none may. This puts
//! back-pressure on the senders: the queues fill up, and a push returns `Full`. Replies and peers'
//! requests are always handed out, so two cells whose clients wait for each other both make
//! progress.

use std::time::Duration;

use warren_base::{BoundedQueue, Full, Instant};

use crate::turns::{Next, Sender, Turns};

/// The next work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work<R, P, C> {
    Reply(R),
    Peer(P),
    Client(C),
}

/// The limits of queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DispatchLimits {
    pub replies_queued: usize,
    pub peers_queued: usize,
    pub clients_queued: usize,
}

impl Default for DispatchLimits {
    /// Every live client task can have one request at a peer, so the queue has room for all
    /// replies.
    fn default() -> Self {
        let tasks = warren_base::limits::TASKS_MAX;
        Self { replies_queued: 2 * tasks, peers_queued: tasks, clients_queued: tasks }
    }
}

/// Replies `R`, peers' requests `P` and clients' requests `C` of one process.
#[derive(Clone)]
pub struct Dispatch<R, P, C> {
    replies: BoundedQueue<R>,
    peers: BoundedQueue<P>,
    clients: Turns<C>,
    clients_queued_max: usize,
}

impl<R, P, C> Dispatch<R, P, C> {
    pub fn new(limits: DispatchLimits) -> Self {
        Self {
            replies: BoundedQueue::new(limits.replies_queued),
            peers: BoundedQueue::new(limits.peers_queued),
            clients: Turns::default(),
            clients_queued_max: limits.clients_queued,
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

    /// The work before any client's request: a reply or a peer's request.
    #[inline]
    pub fn take_urgent<T>(&mut self) -> Option<Work<R, P, T>> {
        self.replies.pop().map(Work::Reply).or_else(|| self.peers.pop().map(Work::Peer))
    }

    /// The next request of a user that may go on, or an exempt request (it ends tasks). See
    /// [`Turns::pop`].
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

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.peers.is_empty() && self.clients.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::ClientId;

    type Numbers = Dispatch<u32, u32, u32>;

    const ANYONE: Sender = Sender { uid: 7, client: ClientId(1) };

    fn dispatch() -> Numbers {
        Dispatch::new(DispatchLimits { replies_queued: 4, peers_queued: 4, clients_queued: 4 })
    }

    fn next(dispatch: &mut Numbers) -> Option<Work<u32, u32, u32>> {
        let client = |dispatch: &mut Numbers| dispatch.take_client(|_| true, |_| false);
        dispatch.take_urgent().or_else(|| Some(Work::Client(client(dispatch)?.request)))
    }

    #[test]
    fn replies_then_peers_then_clients() {
        let mut dispatch = dispatch();
        dispatch.push_client(ANYONE, 5).unwrap();
        dispatch.push_client(ANYONE, 6).unwrap();
        dispatch.push_peer(3).unwrap();
        dispatch.push_reply(1).unwrap();
        dispatch.push_reply(2).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| next(&mut dispatch)).collect();
        let expected =
            [Work::Reply(1), Work::Reply(2), Work::Peer(3), Work::Client(5), Work::Client(6)];
        assert_eq!(order, expected);
        assert!(dispatch.is_empty());
    }

    #[test]
    fn full_queues_press_back_each_on_its_own_senders() {
        let mut dispatch = dispatch();
        for request in 0..4 {
            dispatch.push_client(ANYONE, request).unwrap();
        }
        assert_eq!(dispatch.push_client(ANYONE, 4), Err(Full(4)));
        assert!(dispatch.takes_peers() && dispatch.takes_replies());
        for request in 0..4 {
            dispatch.push_peer(request).unwrap();
            dispatch.push_reply(request).unwrap();
        }
        assert!(!dispatch.takes_peers() && !dispatch.takes_replies());
        assert_eq!(dispatch.push_peer(4), Err(Full(4)));
        assert_eq!(dispatch.push_reply(4), Err(Full(4)));
        assert_eq!(next(&mut dispatch), Some(Work::Reply(0)));
        assert!(dispatch.takes_replies() && !dispatch.takes_peers());
    }

    #[test]
    fn requests_of_users_that_may_not_go_on_stay_queued() {
        let mut dispatch = dispatch();
        let other = Sender { uid: 8, ..ANYONE };
        for (sender, request) in [(ANYONE, 1), (other, 3)] {
            dispatch.push_client(sender, request).unwrap();
        }
        let taken = dispatch.take_client(|uid| uid == 8, |_| false);
        assert_eq!(taken, Some(Next { uid: 8, request: 3, is_exempt: false }));
        assert_eq!(dispatch.take_client(|uid| uid == 8, |_| false), None);
        assert_eq!(dispatch.clients_queued(), 1);
        assert_eq!(next(&mut dispatch), Some(Work::Client(1)));
    }
}
