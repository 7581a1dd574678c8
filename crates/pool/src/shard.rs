//! One cell's shard: the interface, its elements, and the elements that it has sent.
//!
//! Invariants:
//! * While a `get` waits, the shard has no elements.
//! * A copy of a sent element is kept until its receiver has acknowledged it. The copy is used only
//!   if the receiver can no longer take the element: it died, or sent `Goodbye`, before its reply.
//! * `arrivals` grows with each element that comes to this shard, also if it is passed on at once.
//!   Searches depend on it.

use std::collections::VecDeque;

use warren_base::CellId;

use crate::peer::{PeerShards, Phase};
use crate::question::{Question, Search};
use crate::{Algorithm, Effect, PoolMessage, SearchNo, Ticket, Tuning};

/// The immediate result of `get`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Get<T> {
    Got(T),
    /// [`Effect::Resolved`] with this ticket follows, perhaps at once.
    Pending(Ticket),
}

/// The shard takes no elements, because it is still joining or already leaving. The element is
/// returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotMember<T>(pub T);

/// One cell's shard of a pool of `T`.
#[derive(Clone, Debug)]
pub struct Pool<T> {
    pub(crate) me: CellId,
    pub(crate) algorithm: Algorithm,
    pub(crate) tuning: Tuning,
    pub(crate) phase: Phase,
    pub(crate) peers: PeerShards<T>,
    /// The shard of all elements in the centralized algorithm. Cells may disagree for a while; then
    /// a search takes longer.
    pub(crate) center: CellId,
    /// The elements. The newest is handed out first, the oldest is sent away first.
    pub(crate) elements: VecDeque<T>,
    pub(crate) arrivals: u64,
    pub(crate) waiting: VecDeque<Ticket>,
    pub(crate) search: Option<Search>,
    pub(crate) deferred: Vec<Question>,
    pub(crate) last_search: SearchNo,
    /// This peer, or the next one after it, is asked first.
    pub(crate) ask_first: CellId,
    /// The same for sending.
    pub(crate) send_first: CellId,
    pub(crate) idle_calls: u32,
    pub(crate) last_estimate: u64,
    last_ticket: u64,
    effects: VecDeque<Effect<T>>,
}

impl<T: Clone> Pool<T> {
    /// The first shard of a new pool.
    pub fn create(me: CellId, algorithm: Algorithm, tuning: Tuning) -> Self {
        assert!(tuning.bulk > 0 && tuning.idle_calls > 0 && tuning.estimate_step > 0);
        Self {
            me,
            algorithm,
            tuning,
            phase: Phase::Member,
            peers: PeerShards::new(),
            center: me,
            elements: VecDeque::new(),
            arrivals: 0,
            waiting: VecDeque::new(),
            search: None,
            deferred: Vec::new(),
            last_search: SearchNo::LAST_RESERVED,
            ask_first: me,
            send_first: me,
            idle_calls: 0,
            last_estimate: 0,
            last_ticket: 0,
            effects: VecDeque::new(),
        }
    }

    /// A further shard of the pool that `contact` has a shard of. [`Effect::Ready`] or
    /// [`Effect::JoinFailed`] follows.
    pub fn join(me: CellId, contact: CellId, algorithm: Algorithm, tuning: Tuning) -> Self {
        let mut pool = Self::create(me, algorithm, tuning);
        pool.phase = Phase::Joining { leave_after: false };
        pool.center = contact;
        pool.greet(contact);
        pool
    }

    /// The empty shard of the successor of a lost cell. All `others` must call
    /// [`Self::peer_replaced`]; until then their searches may miss elements here.
    pub fn rejoin(
        me: CellId,
        others: impl Iterator<Item = CellId>,
        algorithm: Algorithm,
        tuning: Tuning,
    ) -> Self {
        let mut pool = Self::create(me, algorithm, tuning);
        others.for_each(|cell| pool.peers.know(cell));
        pool.center = pool.members().fold(me, CellId::min);
        pool
    }

    /// The cell died, as in [`Self::peer_died`], and has a shard again. Elements that were on their
    /// way to it are not taken back, because the dead process may have taken them and used them for
    /// something that outlives it.
    pub fn peer_replaced(&mut self, cell: CellId) {
        if let Some(peer) = self.peers.get_mut(cell) {
            peer.unacked.clear();
        }
        self.peer_died(cell);
        self.peers.know(cell);
        if self.search.is_some() {
            self.begin_search();
        }
    }

    /// The next action. The driver calls this until `None` after every other call.
    pub fn poll(&mut self) -> Option<Effect<T>> {
        self.effects.pop_front()
    }

    /// Adds an element. It is refused until [`Effect::Ready`] and after [`leave`](Self::leave),
    /// because a search of a shard that does not know this one would miss it.
    pub fn add(&mut self, element: T) -> Result<(), NotMember<T>> {
        if self.phase != Phase::Member {
            return Err(NotMember(element));
        }
        let elsewhere = self.center != self.me && self.waiting.is_empty();
        if self.algorithm == Algorithm::Centralized && elsewhere && self.peers.takes(self.center) {
            self.arrivals += 1;
            self.transfer(self.center, SearchNo::NONE, vec![element]);
        } else {
            self.accept(vec![element]);
        }
        Ok(())
    }

    /// Takes any element. The caller limits the number of waiting gets by its live tasks. Must not
    /// be called after [`leave`](Self::leave), because a shard that is being removed cannot search.
    /// Gets that were waiting then are resolved first.
    pub fn get(&mut self) -> Get<T> {
        let able = matches!(self.phase, Phase::Joining { leave_after: false } | Phase::Member);
        assert!(able, "the shard leaves, or is no more");
        if let Some(element) = self.elements.pop_back() {
            return Get::Got(element);
        }
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.waiting.push_back(ticket);
        if self.search.is_none() {
            self.begin_search();
        }
        Get::Pending(ticket)
    }

    /// Takes wanted elements of this shard, at most `count`, the newest first.
    pub fn take_newest(&mut self, count: usize, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let (mut taken, mut passed) = (Vec::new(), Vec::new());
        while taken.len() < count
            && let Some(element) = self.elements.pop_back()
        {
            if wanted(&element) { &mut taken } else { &mut passed }.push(element);
        }
        self.elements.extend(passed.into_iter().rev());
        taken
    }

    /// About how many elements the pool has. It is not exact while other shards use the pool.
    pub fn size(&self) -> u64 {
        let estimates = self.peers.values().map(|peer| peer.estimate);
        estimates.fold(self.local_size(), u64::saturating_add)
    }

    /// Elements in this shard.
    pub fn local_size(&self) -> u64 {
        self.elements.len() as u64
    }

    /// The elements of this shard.
    pub fn elements(&self) -> impl Iterator<Item = &T> {
        self.elements.iter()
    }

    /// Whether the shard takes adds.
    pub fn is_member(&self) -> bool {
        self.phase == Phase::Member
    }

    /// Cells whose shards are known.
    pub fn members(&self) -> impl Iterator<Item = CellId> {
        self.peers.cells()
    }

    /// Handles a message of another shard. It may contain anything: a wrong reply is ignored.
    pub fn handle(&mut self, from: CellId, message: PoolMessage<T>) {
        if self.phase == Phase::Over || from == self.me {
            return;
        }
        match message {
            PoolMessage::Hello => self.on_hello(from),
            PoolMessage::Welcome { members, center, ready } => {
                self.on_welcome(from, members, center, ready);
            }
            PoolMessage::Ready { members } => self.on_ready(from, members),
            PoolMessage::Leaving => self.on_leaving(from),
            PoolMessage::Noted => self.peers.noted(from),
            PoolMessage::Goodbye => self.on_goodbye(from),
            PoolMessage::Farewell if self.phase == Phase::Departing => self.forget(from),
            PoolMessage::Farewell => {}
            PoolMessage::Pull { search, want } => self.on_pull(from, search, want),
            PoolMessage::Check { search } => self.on_check(from, search),
            PoolMessage::Empty { search, arrivals } => self.on_empty(from, search, arrivals),
            PoolMessage::NotEmpty { search } => self.on_not_empty(from, search),
            PoolMessage::Transfer { search, number, elements, left } => {
                self.on_transfer(from, search, (number, elements), left);
            }
            PoolMessage::Taken { number, size } => self.on_taken(from, number, size),
            PoolMessage::Known { inquiry, taken, missing } => {
                self.on_known(from, inquiry, taken, missing);
            }
            PoolMessage::Estimate { size } => self.peers.set_estimate(from, size),
        }
        self.advance();
    }

    /// The cell is dead, all cells agree on that, and all its messages have been handled.
    pub fn peer_died(&mut self, cell: CellId) {
        if self.phase == Phase::Over {
            return;
        }
        if let Some(peer) = self.peers.get(cell) {
            let estimate = peer.estimate;
            self.effect(Effect::Lost { cell, estimate });
        }
        self.peer_gone(cell);
    }

    /// The cell has no shard of this pool: a message to it could not be delivered.
    pub fn peer_gone(&mut self, cell: CellId) {
        if self.phase != Phase::Over {
            self.forget(cell);
            self.advance();
        }
    }

    pub(crate) fn effect(&mut self, effect: Effect<T>) {
        self.effects.push_back(effect);
    }

    pub(crate) fn send(&mut self, to: CellId, message: PoolMessage<T>) {
        self.effect(Effect::Send { to, message });
    }

    pub(crate) fn broadcast(&mut self, message: &PoolMessage<T>) {
        let all: Vec<CellId> = self.members().collect();
        all.into_iter().for_each(|to| self.send(to, message.clone()));
    }

    /// Takes in elements. Waiting gets receive them first.
    pub(crate) fn accept(&mut self, elements: Vec<T>) {
        self.arrivals += elements.len() as u64;
        for element in elements {
            match self.waiting.pop_front() {
                Some(ticket) => self.effect(Effect::Resolved { ticket, element: Some(element) }),
                None => self.elements.push_back(element),
            }
        }
        if self.waiting.is_empty() {
            self.search = None;
        }
    }

    /// Sends elements to a peer and keeps a copy until it has acknowledged them.
    pub(crate) fn transfer(&mut self, to: CellId, search: SearchNo, elements: Vec<T>) {
        let peer = self.peers.get_mut(to).expect("elements go to known shards");
        peer.unacked.push_back(elements.clone());
        peer.given += 1;
        let number = peer.given;
        peer.estimate = peer.estimate.saturating_add(elements.len() as u64);
        let left = self.local_size();
        self.send(to, PoolMessage::Transfer { search, number, elements, left });
    }

    /// Removes the oldest elements, at most `count`.
    pub(crate) fn take_oldest(&mut self, count: usize) -> Vec<T> {
        let count = count.min(self.elements.len());
        self.elements.drain(..count).collect()
    }

    fn on_transfer(
        &mut self,
        from: CellId,
        search: SearchNo,
        (number, elements): (u64, Vec<T>),
        left: u64,
    ) {
        if search != SearchNo::NONE {
            self.peers.answered(from);
        }
        self.peers.set_estimate(from, left);
        if !self.phase.takes() || !self.peers.is_next(from, number) {
            return;
        }
        self.peers.get_mut(from).expect("it is known").taken = number;
        self.accept(elements);
        let size = self.local_size();
        self.send(from, PoolMessage::Taken { number, size });
        if self.search.as_ref().is_some_and(|current| current.number == search) {
            self.ask_first = from;
            self.begin_search();
        }
    }

    fn on_taken(&mut self, from: CellId, number: u64, size: u64) {
        if self.peers.get_mut(from).is_some_and(|peer| peer.acknowledge(number)) {
            self.peers.set_estimate(from, size);
            self.settle_moving();
        }
    }
}
