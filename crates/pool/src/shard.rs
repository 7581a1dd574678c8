//! One cell's shard: the interface, the elements here, and the elements on their way.
//!
//! Invariants:
//! * While a `get` waits, no element lies here.
//! * An element that was sent is kept as a copy until its receiver has taken it. It is used only if
//!   the receiver can no longer take it: it died, or said goodbye, before it answered.
//! * `arrivals` grows with every element that comes to this shard from anywhere, even one that is
//!   passed on at once. Searches rest on it.

use std::collections::{BTreeMap, VecDeque};

use warren_base::CellId;

use crate::search::{Question, Search};
use crate::{Algorithm, DISTANCE_DEFAULT, Effect, PoolMessage, SearchNo, Tuning};

/// A `get` that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What `get` says at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Get<T> {
    Got(T),
    /// [`Effect::Resolved`] with this ticket follows, perhaps at once.
    Pending(Ticket),
}

/// The shard takes no elements, because it still joins or already leaves. The element comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotMember<T>(pub T);

/// The order of a shard's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Some member may not know us yet.
    Joining {
        leave_after: bool,
    },
    Member,
    /// Passing our elements on.
    Leaving,
    /// Nothing left; waiting to be forgotten.
    Departing,
    /// `Left`, `LastLeft` or `JoinFailed` was said.
    Over,
}

/// What is known of another shard.
#[derive(Clone, Debug)]
pub(crate) struct Peer<T> {
    pub distance: u32,
    /// It knows us.
    pub welcomed: bool,
    /// It takes elements.
    pub ready: bool,
    pub leaving: bool,
    /// It knows that we leave.
    pub noted: bool,
    /// How many elements it may have.
    pub estimate: u64,
    /// Questions it has not answered.
    pub asked: u32,
    /// Copies of what was sent and not yet taken, oldest first.
    pub unacked: VecDeque<Vec<T>>,
}

impl<T> Peer<T> {
    pub(crate) fn new() -> Self {
        Self {
            distance: DISTANCE_DEFAULT,
            welcomed: false,
            ready: false,
            leaving: false,
            noted: false,
            estimate: 0,
            asked: 0,
            unacked: VecDeque::new(),
        }
    }
}

/// One cell's shard of a pool of `T`.
#[derive(Clone, Debug)]
pub struct Pool<T> {
    pub(crate) me: CellId,
    pub(crate) algorithm: Algorithm,
    pub(crate) tuning: Tuning,
    pub(crate) phase: Phase,
    pub(crate) peers: BTreeMap<CellId, Peer<T>>,
    /// Where elements go in the centralized algorithm. Cells may disagree for a while; then a
    /// search is longer.
    pub(crate) center: CellId,
    /// Elements here. The newest is handed out first, the oldest is sent away first.
    pub(crate) elements: VecDeque<T>,
    pub(crate) arrivals: u64,
    pub(crate) waiting: VecDeque<Ticket>,
    pub(crate) search: Option<Search>,
    pub(crate) deferred: Vec<Question>,
    pub(crate) last_search: SearchNo,
    /// Among peers of one distance, this or the next one after is asked first.
    pub(crate) ask_first: CellId,
    /// The same for sending.
    pub(crate) send_first: CellId,
    pub(crate) idle_calls: u32,
    pub(crate) last_estimate: u64,
    distances: BTreeMap<CellId, u32>,
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
            peers: BTreeMap::new(),
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
            distances: BTreeMap::new(),
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

    /// The shard of a cell that was lost, begun anew and empty. All `others` are told by
    /// [`Self::peer_replaced`]; until then they may overlook what comes to lie here.
    pub fn rejoin(
        me: CellId,
        others: impl Iterator<Item = CellId>,
        algorithm: Algorithm,
        tuning: Tuning,
    ) -> Self {
        let mut pool = Self::create(me, algorithm, tuning);
        others.for_each(|cell| pool.know(cell));
        pool.center = pool.members().fold(me, CellId::min);
        pool
    }

    /// The cell died, as [`Self::peer_died`] would say, and has a shard again. What was on its way
    /// to the dead is not taken back: it may have been taken there, and put to a use that outlives
    /// it.
    pub fn peer_replaced(&mut self, cell: CellId) {
        if let Some(peer) = self.peers.get_mut(&cell) {
            peer.unacked.clear();
        }
        self.peer_died(cell);
        self.know(cell);
        if self.search.is_some() {
            self.begin_search();
        }
    }

    fn know(&mut self, cell: CellId) {
        let peer = self.meet(cell);
        (peer.welcomed, peer.ready) = (true, true);
    }

    /// What to do next. To be called until `None` after every other call.
    pub fn poll(&mut self) -> Option<Effect<T>> {
        self.effects.pop_front()
    }

    /// Puts an element in. Refused until [`Effect::Ready`] and after [`leave`](Self::leave): an
    /// element in a shard that not everybody knows could be missed by a search.
    pub fn add(&mut self, element: T) -> Result<(), NotMember<T>> {
        if self.phase != Phase::Member {
            return Err(NotMember(element));
        }
        let elsewhere = self.center != self.me && self.waiting.is_empty();
        if self.algorithm == Algorithm::Centralized && elsewhere && self.takes(self.center) {
            self.arrivals += 1;
            self.transfer(self.center, SearchNo::NONE, vec![element]);
        } else {
            self.accept(vec![element]);
        }
        Ok(())
    }

    /// Takes an element out, any one. How many gets may wait is the caller's to bound, by its live
    /// tasks. Not to be called after [`leave`](Self::leave): whoever is being forgotten cannot
    /// search. Gets that waited then are answered first.
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

    /// Takes elements out that lie in this shard and are wanted, at most `count`, the newest first.
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

    /// About how many elements the pool has. Never exact while others use it.
    pub fn size(&self) -> u64 {
        let estimates = self.peers.values().map(|peer| peer.estimate);
        estimates.fold(self.local_size(), u64::saturating_add)
    }

    /// Elements in this shard.
    pub fn local_size(&self) -> u64 {
        self.elements.len() as u64
    }

    /// A hint: how far away `cell` is, [`DISTANCE_DEFAULT`] if never set. Nearer shards are asked
    /// first.
    pub fn locality(&mut self, cell: CellId, distance: u32) {
        self.distances.insert(cell, distance);
        if let Some(peer) = self.peers.get_mut(&cell) {
            peer.distance = distance;
        }
    }

    /// What lies in this shard.
    pub fn elements(&self) -> impl Iterator<Item = &T> {
        self.elements.iter()
    }

    /// Whether the shard takes adds.
    pub fn is_member(&self) -> bool {
        self.phase == Phase::Member
    }

    /// Cells whose shards are known.
    pub fn members(&self) -> impl Iterator<Item = CellId> {
        self.peers.keys().copied()
    }

    /// Takes a message of another shard. It may hold anything: a peer's wrong answer is ignored,
    /// never believed.
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
            PoolMessage::Noted => self.on_noted(from),
            PoolMessage::Goodbye => self.on_goodbye(from),
            PoolMessage::Farewell if self.phase == Phase::Departing => self.forget(from),
            PoolMessage::Farewell => {}
            PoolMessage::Pull { search, want } => self.on_pull(from, search, want),
            PoolMessage::Check { search } => self.on_check(from, search),
            PoolMessage::Empty { search, arrivals } => self.on_empty(from, search, arrivals),
            PoolMessage::NotEmpty { search } => self.on_not_empty(from, search),
            PoolMessage::Transfer { search, elements, left } => {
                self.on_transfer(from, search, elements, left);
            }
            PoolMessage::Taken { size } => self.on_taken(from, size),
            PoolMessage::Estimate { size } => self.estimate(from, size),
        }
        self.advance();
    }

    /// The cell is dead, by agreement, and everything it had sent to anybody was handled.
    pub fn peer_died(&mut self, cell: CellId) {
        if self.phase == Phase::Over {
            return;
        }
        if let Some(peer) = self.peers.get(&cell) {
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

    /// What is known of `cell` from now on.
    pub(crate) fn meet(&mut self, cell: CellId) -> &mut Peer<T> {
        let distance = self.distances.get(&cell).copied().unwrap_or(DISTANCE_DEFAULT);
        let unknown = || Peer { distance, ..Peer::new() };
        self.peers.entry(cell).or_insert_with(unknown)
    }

    /// Whether elements can be sent to `cell`.
    pub(crate) fn takes(&self, cell: CellId) -> bool {
        self.peers.get(&cell).is_some_and(|peer| peer.ready && !peer.leaving)
    }

    /// Whether elements that were sent from here may not have arrived.
    pub(crate) fn is_moving(&self) -> bool {
        self.peers.values().any(|peer| !peer.unacked.is_empty())
    }

    /// Elements have come: gets that wait have them first.
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

    /// Sends elements to a peer and keeps a copy until it has them.
    pub(crate) fn transfer(&mut self, to: CellId, search: SearchNo, elements: Vec<T>) {
        let peer = self.peers.get_mut(&to).expect("elements go to known shards");
        peer.unacked.push_back(elements.clone());
        peer.estimate = peer.estimate.saturating_add(elements.len() as u64);
        let left = self.local_size();
        self.send(to, PoolMessage::Transfer { search, elements, left });
    }

    /// Takes the oldest elements out, at most `count`.
    pub(crate) fn take_oldest(&mut self, count: usize) -> Vec<T> {
        let count = count.min(self.elements.len());
        self.elements.drain(..count).collect()
    }

    fn on_transfer(&mut self, from: CellId, search: SearchNo, elements: Vec<T>, left: u64) {
        if search != SearchNo::NONE {
            self.answered(from);
        }
        self.estimate(from, left);
        // Whoever sends to one that departs will find its goodbye before an answer, and keep its
        // elements. To one that joins nobody sends, nor does anybody before it is ready.
        let takes = matches!(self.phase, Phase::Member | Phase::Leaving);
        if !takes || self.peers.get(&from).is_none_or(|peer| !peer.ready) {
            return;
        }
        self.accept(elements);
        let size = self.local_size();
        self.send(from, PoolMessage::Taken { size });
        if self.search.as_ref().is_some_and(|current| current.number == search) {
            self.ask_first = from;
            self.begin_search();
        }
    }

    fn on_taken(&mut self, from: CellId, size: u64) {
        let taken = self.peers.get_mut(&from).and_then(|peer| peer.unacked.pop_front());
        if taken.is_some() {
            self.estimate(from, size);
            self.settle_moving();
        }
    }

    fn estimate(&mut self, of: CellId, size: u64) {
        if let Some(peer) = self.peers.get_mut(&of) {
            peer.estimate = size;
        }
    }

    /// One question to `peer` is answered.
    pub(crate) fn answered(&mut self, peer: CellId) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.asked = peer.asked.saturating_sub(1);
        }
    }
}
