//! The order of clients' requests: the user that has used the least time, the clients of a user in
//! turn, the requests of a client in order.
//!
//! So a user waits no longer for others than they would have to wait for it, however many requests
//! they send, through however many clients, and however long each takes ([`Shares`]). A user that
//! may not go on is passed over. Of its requests, those that may not wait (`goes_first`) are found
//! by checking each once; the others are set aside until the user may go on.
//!
//! A user that asks one thing at a time has no request waiting when it was just answered. If the
//! next one in turn has used more, and takes long, then the driver is told to wait a moment for the
//! next request of the first ([`Turns::awaits`], after Iyer and Druschel, SOSP'01). It pays for the
//! wait as for a request, so no user gets more than its share by this.
//!
//! Most requests find an empty queue. Such a request is kept apart, so that it needs no look-up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use warren_base::{ClientId, Instant};

use crate::shares::Shares;

/// Empty entries of users, and of a user's clients, that are kept, so that they are not allocated
/// for each request.
const KEPT: usize = 64;

/// The longest wait for the next request of a user, from its answer on. It is waited for only if
/// the next one in turn takes as long. A client that does nothing else sends its next request one
/// to two microseconds after the answer.
const PATIENCE: Duration = Duration::from_micros(4);

/// After one wait in vain the user is not awaited after its next answer, after two after the next
/// three, and so on up to this many doublings.
const MISSES_MAX: u8 = 6;

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
    /// Where it is in the order: the start of its next request, and the number of its arrival.
    place: Option<(u64, u64)>,
    /// Requests that were not checked yet, and older ones that were checked and set aside.
    fresh: Clients<T>,
    aside: Clients<T>,
}

impl<T> User<T> {
    const fn new() -> Self {
        Self { place: None, fresh: Clients::new(), aside: Clients::new() }
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.aside.is_empty()
    }
}

/// The next request in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next<T> {
    pub uid: u32,
    pub request: T,
    /// Its user may not go on. The request is let through because it goes first.
    pub is_exempt: bool,
}

/// A user that was just answered.
#[derive(Clone, Copy, Debug)]
struct Expected {
    uid: u32,
    until: Instant,
    /// Other requests wait because of it.
    is_awaited: bool,
}

/// Requests that wait for their turn.
#[derive(Clone, Debug)]
pub(crate) struct Turns<T> {
    only: Option<(Sender, T)>,
    /// Users with requests: the place of each ([`User::place`]), and the user.
    order: BTreeSet<(u64, u64, u32)>,
    users: BTreeMap<u32, User<T>>,
    /// Without `only`.
    len: usize,
    arrivals: u64,
    shares: Shares,
    expected: Option<Expected>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            only: None,
            order: BTreeSet::new(),
            users: BTreeMap::new(),
            len: 0,
            arrivals: 0,
            shares: Shares::default(),
            expected: None,
        }
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
        user.fresh.push(client, request);
        if user.place.is_none() {
            self.arrivals += 1;
            let (start, number) = (self.shares.start(uid), self.arrivals);
            user.place = Some((start, number));
            self.order.insert((start, number, uid));
        }
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
        if let Some((sender, request)) = self.only.take_if(|(sender, _)| may_go_on(sender.uid)) {
            self.shares.serve(sender.uid);
            return Some(Next { uid: sender.uid, request, is_exempt: false });
        }
        self.spill();
        if self.len == 0 { None } else { self.pop_in_turn(may_go_on, goes_first) }
    }

    fn pop_in_turn(
        &mut self,
        may_go_on: impl Fn(u32) -> bool,
        mut goes_first: impl FnMut(&T) -> bool,
    ) -> Option<Next<T>> {
        let users = &mut self.users;
        let (uid, request, is_exempt) = self.order.iter().find_map(|&(_, _, uid)| {
            let user = users.get_mut(&uid)?;
            let is_exempt = !may_go_on(uid);
            let taken = if is_exempt {
                pop_exempt(user, &mut goes_first)
            } else {
                user.aside.pop().or_else(|| user.fresh.pop()).map(|(_, request)| request)
            };
            Some((uid, taken?, is_exempt))
        })?;
        self.len -= 1;
        self.shares.serve(uid);
        self.arrivals += 1;
        let number = self.arrivals;
        self.replace(uid, |_| number);
        Some(Next { uid, request, is_exempt })
    }

    /// Puts the user where it belongs in the order now. `number` gives the number of its arrival
    /// from the one that it had.
    fn replace(&mut self, uid: u32, number: impl FnOnce(u64) -> u64) {
        let Some(user) = self.users.get_mut(&uid) else { return };
        let Some((start, old)) = user.place.take() else { return };
        self.order.remove(&(start, old, uid));
        if !user.is_empty() {
            let place = (self.shares.start(uid), number(old));
            user.place = Some(place);
            self.order.insert((place.0, place.1, uid));
        } else if self.users.len() > KEPT {
            self.users.remove(&uid);
        }
    }

    /// The user has used this time: for the request that was popped last, for an earlier one that
    /// goes on, or because it was awaited.
    #[inline]
    pub(crate) fn charge(&mut self, uid: u32, time: Duration) {
        self.shares.charge(uid, time);
        if self.len > 0 {
            self.replace(uid, |number| number);
        }
    }

    /// A request of the user was answered at this time.
    #[inline]
    pub(crate) fn answered(&mut self, uid: u32, now: Instant) {
        let account = self.shares.account_mut(uid);
        if account.pause > 0 {
            account.pause -= 1;
        } else {
            self.expected = Some(Expected { uid, until: now + PATIENCE, is_awaited: false });
        }
    }

    /// The user whose next request is worth a wait, although others have requests. `may_go_on` is
    /// as for [`Self::pop`].
    #[inline]
    pub(crate) fn awaits(&mut self, now: Instant, may_go_on: impl Fn(u32) -> bool) -> Option<u32> {
        let expected = self.expected?;
        if self.is_empty() {
            return None;
        }
        if let Some((sender, _)) = &self.only
            && sender.uid == expected.uid
        {
            self.has_come(expected);
            return None;
        }
        self.awaits_beside(expected, now, may_go_on)
    }

    fn awaits_beside(
        &mut self,
        expected: Expected,
        now: Instant,
        may_go_on: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let Expected { uid, until, is_awaited } = expected;
        if self.users.get(&uid).is_some_and(|user| !user.is_empty()) {
            self.has_come(expected);
            return None;
        }
        if now >= until {
            self.expected = None;
            if is_awaited {
                let account = self.shares.account_mut(uid);
                account.misses = (account.misses + 1).min(MISSES_MAX);
                account.pause = (1 << account.misses) - 1;
            }
            return None;
        }
        let only = self.only.as_ref().map(|(sender, _)| sender.uid);
        let waiting = only.into_iter().chain(self.order.iter().map(|(_, _, uid)| *uid));
        let next = waiting.into_iter().find(|uid| may_go_on(*uid))?;
        let is_long = self.shares.account(next).cost >= PATIENCE;
        if !is_long || self.shares.start(uid) >= self.shares.start(next) {
            return None;
        }
        self.expected = Some(Expected { is_awaited: true, ..expected });
        Some(uid)
    }

    /// The expected user has sent its next request.
    fn has_come(&mut self, expected: Expected) {
        self.expected = None;
        if expected.is_awaited {
            self.shares.account_mut(expected.uid).misses = 0;
        }
    }

    /// Nothing waits, and the process sleeps: from now on, all users are equal.
    pub(crate) fn rest(&mut self) {
        self.shares.forgive();
        self.expected = None;
    }
}

/// The next of the user's requests that goes first. Requests before it are set aside.
fn pop_exempt<T>(user: &mut User<T>, mut goes_first: impl FnMut(&T) -> bool) -> Option<T> {
    while let Some((client, request)) = user.fresh.pop() {
        if goes_first(&request) {
            return Some(request);
        }
        user.aside.push(client, request);
    }
    None
}

#[cfg(test)]
mod tests;
