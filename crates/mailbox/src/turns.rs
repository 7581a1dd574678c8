//! The order of clients' requests: users in turn, the clients of a user in turn, the requests of a
//! client in order.
//!
//! So a request waits for one request of each other user, however many requests a user sends, and
//! through however many clients. A user that may not go on is passed over. Of its requests, those
//! that may not wait (`goes_first`) are found by checking each once; the others are set aside until
//! the user may go on.
//!
//! Most requests find an empty queue. Such a request is kept apart, so that it needs no look-up.

use std::collections::{BTreeMap, VecDeque};

use warren_base::ClientId;

/// Empty entries of users, and of a user's clients, that are kept, so that they are not allocated
/// for each request.
const KEPT: usize = 64;

/// A request's user and client.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sender {
    pub uid: u32,
    pub client: ClientId,
}

/// Requests of one user, clients in turn.
#[derive(Clone, Debug)]
struct Clients<T> {
    /// Clients with requests, the next one first.
    ring: VecDeque<ClientId>,
    queues: BTreeMap<ClientId, VecDeque<T>>,
}

impl<T> Clients<T> {
    const fn new() -> Self {
        Self { ring: VecDeque::new(), queues: BTreeMap::new() }
    }

    fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    fn push(&mut self, client: ClientId, request: T) {
        let queue = self.queues.entry(client).or_default();
        if queue.is_empty() {
            self.ring.push_back(client);
        }
        queue.push_back(request);
    }

    fn pop(&mut self) -> Option<(ClientId, T)> {
        let client = self.ring.pop_front()?;
        let queue = self.queues.get_mut(&client)?;
        let request = queue.pop_front()?;
        if !queue.is_empty() {
            self.ring.push_back(client);
        } else if self.queues.len() > KEPT {
            self.queues.remove(&client);
        }
        Some((client, request))
    }
}

#[derive(Clone, Debug)]
struct User<T> {
    /// Requests that were not checked yet, and older ones that were checked and set aside.
    fresh: Clients<T>,
    aside: Clients<T>,
}

impl<T> User<T> {
    const fn new() -> Self {
        Self { fresh: Clients::new(), aside: Clients::new() }
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.aside.is_empty()
    }
}

/// The next request in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next<T> {
    pub request: T,
    /// Its user may not go on. The request is let through because it goes first.
    pub is_exempt: bool,
}

/// Requests that wait for their turn.
#[derive(Clone, Debug)]
pub(crate) struct Turns<T> {
    only: Option<(Sender, T)>,
    /// Users with requests, the next one first.
    ring: VecDeque<u32>,
    users: BTreeMap<u32, User<T>>,
    /// Without `only`.
    len: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { only: None, ring: VecDeque::new(), users: BTreeMap::new(), len: 0 }
    }
}

impl<T> Turns<T> {
    pub(crate) fn len(&self) -> usize {
        self.len + usize::from(self.only.is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn push(&mut self, sender: Sender, request: T) {
        if self.is_empty() {
            self.only = Some((sender, request));
            return;
        }
        self.spill();
        self.enqueue(sender, request);
    }

    fn spill(&mut self) {
        if let Some((sender, request)) = self.only.take() {
            self.enqueue(sender, request);
        }
    }

    fn enqueue(&mut self, Sender { uid, client }: Sender, request: T) {
        let user = self.users.entry(uid).or_insert_with(User::new);
        if user.is_empty() {
            self.ring.push_back(uid);
        }
        user.fresh.push(client, request);
        self.len += 1;
    }

    /// The next request of a user that may go on, or one that goes first. After `None` there is
    /// none until another request is pushed or another user may go on.
    #[inline]
    pub(crate) fn pop(
        &mut self,
        may_go_on: impl Fn(u32) -> bool,
        goes_first: impl FnMut(&T) -> bool,
    ) -> Option<Next<T>> {
        if let Some((_, request)) = self.only.take_if(|(sender, _)| may_go_on(sender.uid)) {
            return Some(Next { request, is_exempt: false });
        }
        self.spill();
        if self.len == 0 { None } else { self.pop_in_turn(may_go_on, goes_first) }
    }

    fn pop_in_turn(
        &mut self,
        may_go_on: impl Fn(u32) -> bool,
        mut goes_first: impl FnMut(&T) -> bool,
    ) -> Option<Next<T>> {
        for _ in 0..self.ring.len() {
            let uid = self.ring.pop_front()?;
            let user = self.users.get_mut(&uid)?;
            let next = if may_go_on(uid) {
                let request = user.aside.pop().or_else(|| user.fresh.pop());
                request.map(|(_, request)| Next { request, is_exempt: false })
            } else {
                pop_exempt(user, &mut goes_first)
            };
            if !user.is_empty() {
                self.ring.push_back(uid);
            } else if self.users.len() > KEPT {
                self.users.remove(&uid);
            }
            if next.is_some() {
                self.len -= 1;
                return next;
            }
        }
        None
    }
}

/// The next of the user's requests that goes first. Requests before it are set aside.
fn pop_exempt<T>(user: &mut User<T>, mut goes_first: impl FnMut(&T) -> bool) -> Option<Next<T>> {
    while let Some((client, request)) = user.fresh.pop() {
        if goes_first(&request) {
            return Some(Next { request, is_exempt: true });
        }
        user.aside.push(client, request);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn of(uid: u32, client: u32) -> Sender {
        Sender { uid, client: ClientId(client) }
    }

    fn drain(turns: &mut Turns<u32>) -> Vec<u32> {
        let pop = || turns.pop(|_| true, |_| false).map(|next| next.request);
        std::iter::from_fn(pop).collect()
    }

    #[test]
    fn users_take_turns_and_so_do_the_clients_of_each() {
        let mut turns = Turns::default();
        // Forty clients of one user, then two of another user, then root.
        for client in 0..40 {
            (0..3).for_each(|n| turns.push(of(7, client), 100 * client + n));
        }
        for (sender, request) in [(of(8, 50), 5000), (of(8, 50), 5001), (of(8, 51), 5100)] {
            turns.push(sender, request);
        }
        turns.push(of(0, 60), 6000);
        assert_eq!(turns.len(), 124);
        let order = drain(&mut turns);
        assert_eq!(order[..10], [0, 5000, 6000, 100, 5100, 200, 5001, 300, 400, 500]);
        assert_eq!(
            order[43..46],
            [3900, 1, 101],
            "each client once, before one has its second turn"
        );
        assert!(turns.is_empty());
    }

    #[test]
    fn a_late_user_is_next_but_one_in_a_flood() {
        let mut turns = Turns::default();
        (0..1000).for_each(|n| turns.push(of(7, n % 40), n));
        for late in 2000..2100 {
            turns.push(of(8, 1), late);
            turns.push(of(7, late % 40), late + 1000);
            let served: Vec<_> = (0..2)
                .map(|_| turns.pop(|_| true, |_| false).expect("a thousand wait").request)
                .collect();
            assert!(served.contains(&late), "{late}: {served:?}");
        }
    }

    #[test]
    fn a_user_that_may_not_go_on_delays_no_other_and_is_checked_once() {
        let mut turns = Turns::default();
        (0..10).for_each(|n| turns.push(of(7, n % 2), n));
        let mut looks = Vec::new();
        let may = |uid| uid != 7;
        let mut look = |request: &u32| {
            looks.push(*request);
            *request == 4
        };
        assert_eq!(turns.pop(may, &mut look), Some(Next { request: 4, is_exempt: true }));
        turns.push(of(8, 9), 80);
        assert_eq!(turns.pop(may, &mut look), Some(Next { request: 80, is_exempt: false }));
        assert_eq!((turns.pop(may, &mut look), turns.pop(may, &mut look)), (None, None));
        turns.push(of(7, 0), 10);
        assert_eq!(turns.pop(may, &mut look), None);
        looks.sort_unstable();
        assert_eq!(looks, (0..=10).collect::<Vec<_>>());
        // The requests that were set aside follow, each client's in order.
        let order = drain(&mut turns);
        let of_client = |odd: u32| order.iter().copied().filter(move |n| n % 2 == odd);
        assert!(of_client(0).eq([0, 2, 6, 8, 10]) && of_client(1).eq([1, 3, 5, 7, 9]));
    }

    #[test]
    fn a_single_request_is_checked_like_any_other() {
        let mut turns = Turns::default();
        turns.push(of(7, 1), 1);
        assert_eq!(turns.pop(|_| false, |_| false), None);
        assert_eq!((turns.len(), drain(&mut turns)), (1, vec![1]));
        turns.push(of(7, 1), 2);
        assert_eq!(turns.pop(|_| false, |_| true), Some(Next { request: 2, is_exempt: true }));
        assert!(turns.is_empty());
    }

    #[test]
    fn users_and_clients_that_come_and_go_leave_nothing() {
        let mut turns = Turns::default();
        for n in 0..10_000 {
            turns.push(of(n, n), n);
            turns.push(of(0, n), n);
            assert_eq!(drain(&mut turns).len(), 2);
        }
        assert!(turns.users.len() <= KEPT + 1 && turns.users[&0].fresh.queues.len() <= KEPT + 1);
    }
}
