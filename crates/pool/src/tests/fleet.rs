//! The fleet: one FIFO for each ordered pair of cells, delivered in any order between pairs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warren_base::{CellId, Rng};
use warren_proto::Wire;

use crate::peer::Phase;
use crate::{Algorithm, Effect, Get, Inquiry, Pool, PoolMessage, Ticket, Tuning};

const STEPS: usize = 700;
const CELLS_ALIVE_MAX: usize = 6;

#[derive(Clone, Copy)]
pub(super) struct Faults {
    pub joins: bool,
    pub leaves: bool,
    pub deaths: bool,
    pub losses: bool,
}

/// A message in a channel.
enum Parcel {
    /// Encoded, as between processes.
    Message(Vec<u8>),
    /// The sender waits for long.
    Inquiry(Inquiry),
    /// The sender is dead; this comes after all that it sent.
    Died,
    /// The sender has no shard; this answers a message to it.
    NoShard,
}

/// The number of times that each rare thing happened.
#[derive(Debug, Default)]
pub(super) struct Reached {
    found_late: u64,
    empty: u64,
    pushed: u64,
    left: u64,
    last_left: u64,
    join_failed: u64,
    lost: u64,
    taken_back: u64,
    pub(super) found_lost: u64,
}

impl Reached {
    pub(super) fn add(&mut self, other: &Self) {
        self.found_late += other.found_late;
        self.empty += other.empty;
        self.pushed += other.pushed;
        self.left += other.left;
        self.last_left += other.last_left;
        self.join_failed += other.join_failed;
        self.lost += other.lost;
        self.taken_back += other.taken_back;
        self.found_lost += other.found_lost;
    }

    pub(super) fn all(&self) -> bool {
        let counts = [self.found_late, self.empty, self.pushed, self.left, self.last_left];
        counts.into_iter().chain([self.join_failed, self.lost, self.taken_back]).all(|n| n > 0)
    }
}

pub(super) struct Fleet {
    seed: u64,
    rng: Rng,
    algorithm: Algorithm,
    faults: Faults,
    cells: BTreeMap<CellId, Pool<u64>>,
    /// Cells that were ordered to leave.
    leaving: BTreeSet<CellId>,
    channels: BTreeMap<(CellId, CellId), VecDeque<Parcel>>,
    next_cell: u16,
    next_element: u64,
    /// Elements in the pool, wherever they are.
    present: BTreeSet<u64>,
    /// Elements that were sent to a cell which died before it took them: from, to, which.
    untaken: BTreeSet<(CellId, CellId, u64)>,
    /// Elements on the way from the dead, of which the dead had the copies.
    orphans: BTreeSet<(CellId, CellId, u64)>,
    /// The cell whose death is being booked.
    burying: Option<CellId>,
    /// Dead cells whose death is not known to any cell yet.
    dying: BTreeSet<CellId>,
    step: usize,
    /// The last step after which the pool was empty.
    last_empty: usize,
    /// Gets that wait, and since which step.
    waiting: BTreeMap<(CellId, Ticket), usize>,
    reached: Reached,
}

impl Fleet {
    /// One whole run. Every check is inside; a failure names the seed.
    pub(super) fn run(seed: u64, algorithm: Algorithm, faults: Faults) -> Reached {
        let mut fleet = Self::new(seed, algorithm, faults);
        for _ in 0..STEPS {
            fleet.random_step();
        }
        fleet.heal();
        fleet.reached
    }

    fn new(seed: u64, algorithm: Algorithm, faults: Faults) -> Self {
        let first = CellId(50);
        let mut fleet = Self {
            seed,
            rng: Rng::new(seed),
            algorithm,
            faults,
            cells: BTreeMap::new(),
            leaving: BTreeSet::new(),
            channels: BTreeMap::new(),
            next_cell: 0,
            next_element: 0,
            present: BTreeSet::new(),
            untaken: BTreeSet::new(),
            orphans: BTreeSet::new(),
            burying: None,
            dying: BTreeSet::new(),
            step: 0,
            last_empty: 0,
            waiting: BTreeMap::new(),
            reached: Reached::default(),
        };
        let tuning = fleet.tuning();
        fleet.cells.insert(first, Pool::create(first, algorithm, tuning));
        for _ in 0..3 {
            fleet.join();
        }
        if !faults.joins {
            fleet.deliver_all();
            fleet.review_all();
            assert!(fleet.cells.values().all(Pool::is_member), "seed {seed}");
        }
        fleet
    }

    /// Small numbers, so that little traffic reaches everything.
    fn tuning(&self) -> Tuning {
        Tuning {
            bulk: 4,
            idle_calls: 2,
            pull_below: 5,
            push_above: 6,
            estimate_step: 3,
            estimate_gap: 2,
        }
    }

    fn random_step(&mut self) {
        self.step += 1;
        // Phases of plenty and of want, so that both emptiness and pushing come about.
        let adds = if (self.step / 100).is_multiple_of(2) { 30 } else { 8 };
        match self.rng.below(200) {
            n if n < adds => self.add(),
            n if n < 50 => self.get(),
            n if n < 70 => self.idle(),
            70 if self.faults.joins => self.join(),
            71 if self.faults.leaves => self.leave(),
            72 if self.faults.deaths => self.die(),
            73 if self.faults.losses => {
                let cell = self.any_cell().expect("none leaves");
                self.review(cell);
            }
            _ => self.deliver_one(),
        }
        if self.present.is_empty() {
            self.last_empty = self.step;
        }
    }

    fn any_cell(&mut self) -> Option<CellId> {
        let cells: Vec<CellId> = self.cells.keys().copied().collect();
        if cells.is_empty() { None } else { Some(*self.rng.pick(&cells)) }
    }

    fn add(&mut self) {
        let Some(cell) = self.any_cell() else { return };
        let element = self.next_element;
        self.next_element += 1;
        self.present.insert(element);
        if self.cells.get_mut(&cell).unwrap().add(element).is_err() {
            self.present.remove(&element);
        }
        self.carry_out(cell);
    }

    fn get(&mut self) {
        let Some(cell) = self.any_cell() else { return };
        if self.leaving.contains(&cell) {
            return;
        }
        match self.cells.get_mut(&cell).unwrap().get() {
            Get::Got(element) => self.hand_out(element),
            Get::Pending(ticket) => {
                self.waiting.insert((cell, ticket), self.step);
            }
        }
        self.carry_out(cell);
    }

    fn idle(&mut self) {
        let Some(cell) = self.any_cell() else { return };
        self.cells.get_mut(&cell).unwrap().idle();
        self.carry_out(cell);
    }

    fn join(&mut self) {
        if self.cells.len() >= CELLS_ALIVE_MAX {
            return;
        }
        self.next_cell += 1;
        // Numbers on both sides of the first cell's.
        let cell = CellId(if self.next_cell.is_multiple_of(2) {
            50 + self.next_cell
        } else {
            50 - self.next_cell.min(49)
        });
        if self.cells.contains_key(&cell)
            || self.channels.keys().any(|pair| pair.0 == cell || pair.1 == cell)
        {
            return;
        }
        let tuning = self.tuning();
        let pool = match self.any_cell() {
            Some(contact) => Pool::join(cell, contact, self.algorithm, tuning),
            None => Pool::create(cell, self.algorithm, tuning),
        };
        self.cells.insert(cell, pool);
        self.carry_out(cell);
    }

    fn leave(&mut self) {
        let Some(cell) = self.any_cell() else { return };
        self.leaving.insert(cell);
        self.cells.get_mut(&cell).unwrap().leave();
        self.carry_out(cell);
    }

    /// The cell is gone between two steps.
    fn die(&mut self) {
        let Some(cell) = self.any_cell() else { return };
        let dead = self.cells.remove(&cell).unwrap();
        self.burying = Some(cell);
        for element in &dead.elements {
            assert!(self.present.remove(element), "seed {}", self.seed);
        }
        self.waiting.retain(|(of, _), _| *of != cell);
        let to_dead: Vec<_> = self.channels.keys().copied().filter(|pair| pair.1 == cell).collect();
        for pair in to_dead {
            self.drop_channel(pair);
        }
        // Copies of what an earlier dead had not taken die with their holder.
        let undelivered = self.channels.keys().copied().filter(|pair| pair.0 == cell);
        let undelivered: Vec<_> =
            undelivered.filter(|pair| !self.cells.contains_key(&pair.1)).collect();
        for pair in undelivered {
            self.drop_channel(pair);
        }
        for (receiver, peer) in dead.peers.iter() {
            for &element in peer.unacked.iter().flatten() {
                if self.untaken.remove(&(cell, receiver, element)) {
                    self.present.remove(&element);
                } else {
                    self.orphans.insert((cell, receiver, element));
                }
            }
        }
        self.burying = None;
        self.dying.insert(cell);
        self.pass_barrier();
    }

    /// The first barrier of recovery: when all that the dead had sent was handled, all cells
    /// are informed.
    fn pass_barrier(&mut self) {
        for dead in self.dying.clone() {
            if self.channels.keys().any(|pair| pair.0 == dead) {
                continue;
            }
            self.dying.remove(&dead);
            for &to in self.cells.keys() {
                self.channels.entry((dead, to)).or_default().push_back(Parcel::Died);
            }
        }
    }

    /// No cell will receive this message: a transfer in it is with its sender alone, or lost.
    fn drop_channel(&mut self, pair: (CellId, CellId)) {
        for parcel in self.channels.remove(&pair).unwrap() {
            self.note_untaken(pair, &parcel);
        }
    }

    fn note_untaken(&mut self, (from, to): (CellId, CellId), parcel: &Parcel) {
        let Parcel::Message(bytes) = parcel else { return };
        if let Ok(PoolMessage::Transfer { elements, .. }) = PoolMessage::<u64>::from_bytes(bytes) {
            self.reached.taken_back += 1;
            if self.cells.contains_key(&from) || self.burying == Some(from) {
                self.untaken.extend(elements.into_iter().map(|element| (from, to, element)));
            } else {
                for element in elements {
                    if self.orphans.remove(&(from, to, element)) {
                        self.present.remove(&element);
                    }
                }
            }
        }
    }

    fn deliver_one(&mut self) {
        let pairs: Vec<_> = self.channels.keys().copied().collect();
        if pairs.is_empty() {
            return;
        }
        let pair = *self.rng.pick(&pairs);
        self.deliver(pair);
    }

    fn deliver(&mut self, (from, to): (CellId, CellId)) {
        let queue = self.channels.get_mut(&(from, to)).expect("a channel with something in it");
        let parcel = queue.pop_front().unwrap();
        if queue.is_empty() {
            self.channels.remove(&(from, to));
        }
        let Some(pool) = self.cells.get_mut(&to) else {
            self.note_untaken((from, to), &parcel);
            let known_dead = !self.dying.contains(&to);
            let bounces = matches!(parcel, Parcel::Message(_)) && known_dead;
            if bounces && self.cells.contains_key(&from) {
                self.channels.entry((to, from)).or_default().push_back(Parcel::NoShard);
            }
            self.pass_barrier();
            return;
        };
        // A departing shard takes nothing: its sender keeps it, and loses it if it dies with it.
        if pool.phase == Phase::Departing {
            self.note_untaken((from, to), &parcel);
        }
        let pool = self.cells.get_mut(&to).expect("it was there a moment ago");
        match parcel {
            Parcel::Message(bytes) => {
                let message = PoolMessage::from_bytes(&bytes).expect("what was encoded decodes");
                pool.handle(from, message);
            }
            Parcel::Inquiry(inquiry) => crate::inquired(pool, from, inquiry),
            Parcel::Died => pool.peer_died(from),
            Parcel::NoShard => pool.peer_gone(from),
        }
        self.carry_out(to);
        self.pass_barrier();
    }

    fn carry_out(&mut self, cell: CellId) {
        while let Some(effect) = self.cells.get_mut(&cell).and_then(Pool::poll) {
            match effect {
                Effect::Send { to, message } => self.send(cell, to, &message),
                Effect::Resolved { ticket, element } => self.resolve(cell, ticket, element),
                Effect::Ready => {}
                Effect::Lost { .. } => self.reached.lost += 1,
                Effect::LostMessage { .. } => self.reached.found_lost += 1,
                Effect::Left => {
                    self.reached.left += 1;
                    self.end(cell, &[]);
                }
                Effect::LastLeft { elements } => {
                    self.reached.last_left += 1;
                    self.end(cell, &elements);
                }
                Effect::JoinFailed { waiting } => {
                    self.reached.join_failed += 1;
                    for ticket in waiting {
                        self.waiting.remove(&(cell, ticket)).expect("a get of this cell");
                    }
                    self.end(cell, &[]);
                }
            }
        }
    }

    fn send(&mut self, from: CellId, to: CellId, message: &PoolMessage<u64>) {
        use crate::SearchNo;
        if matches!(message, PoolMessage::Transfer { search: SearchNo::NONE, .. }) {
            self.reached.pushed += 1;
        }
        if self.faults.losses && self.rng.chance(1, 20) {
            return;
        }
        let parcel = Parcel::Message(message.to_bytes());
        self.channels.entry((from, to)).or_default().push_back(parcel);
    }

    fn end(&mut self, cell: CellId, elements: &[u64]) {
        for element in elements {
            assert!(self.present.remove(element), "seed {}: given back twice", self.seed);
        }
        let pool = self.cells.remove(&cell).unwrap();
        assert!(
            pool.elements.is_empty() && !pool.peers.is_moving(),
            "seed {}: left with some",
            self.seed
        );
        assert!(!self.waiting.keys().any(|(of, _)| *of == cell), "seed {}: left a get", self.seed);
    }

    fn hand_out(&mut self, element: u64) {
        assert!(self.present.remove(&element), "seed {}: element {element} twice", self.seed);
    }

    fn resolve(&mut self, cell: CellId, ticket: Ticket, element: Option<u64>) {
        let since = self.waiting.remove(&(cell, ticket)).expect("a ticket is resolved once");
        match element {
            Some(element) => {
                self.reached.found_late += 1;
                self.hand_out(element);
            }
            None => {
                self.reached.empty += 1;
                let was_empty = self.last_empty >= since || self.present.is_empty();
                assert!(was_empty, "seed {}: {:?} missed by {cell:?}", self.seed, self.present);
            }
        }
    }

    fn deliver_all(&mut self) {
        let mut rounds = 0;
        while let Some(&pair) = self.channels.keys().next() {
            self.deliver(pair);
            rounds += 1;
            assert!(rounds < 100_000, "seed {}: messages without end", self.seed);
        }
    }

    /// The cell asks about all that it waits for.
    fn review(&mut self, cell: CellId) {
        let inquiries: Vec<_> = crate::unanswered(&self.cells[&cell]).collect();
        for (to, inquiry) in inquiries {
            self.channels.entry((cell, to)).or_default().push_back(Parcel::Inquiry(inquiry));
        }
    }

    /// Nothing more is lost, until nothing waits any more.
    fn review_all(&mut self) {
        let losses = std::mem::take(&mut self.faults.losses);
        let mut rounds = 0;
        while losses && self.cells.values().any(|pool| crate::unanswered(pool).next().is_some()) {
            for cell in self.cells.keys().copied().collect::<Vec<_>>() {
                self.review(cell);
            }
            self.deliver_all();
            rounds += 1;
            assert!(rounds < 10, "seed {}: what was lost is not found", self.seed);
        }
        self.faults.losses = losses;
    }

    /// No more faults: every get is answered, and everything can be taken out.
    fn heal(&mut self) {
        self.deliver_all();
        self.review_all();
        self.faults.losses = false;
        assert!(self.waiting.is_empty(), "seed {}: {:?} wait for ever", self.seed, self.waiting);
        let stuck: Vec<_> =
            self.leaving.iter().filter(|cell| self.cells.contains_key(cell)).collect();
        assert!(stuck.is_empty(), "seed {}: {stuck:?} cannot leave", self.seed);
        assert!(self.cells.values().all(Pool::is_member), "seed {}: a join hangs", self.seed);
        let Some(cell) = self.any_cell() else {
            assert!(self.present.is_empty(), "seed {}: lost {:?}", self.seed, self.present);
            return;
        };
        let reachable = self.cells[&cell].members().count() + 1 == self.cells.len();
        assert!(reachable, "seed {}: the pool fell apart", self.seed);
        while !self.present.is_empty() {
            let before = self.present.len();
            match self.cells.get_mut(&cell).unwrap().get() {
                Get::Got(element) => self.hand_out(element),
                Get::Pending(ticket) => {
                    self.waiting.insert((cell, ticket), self.step);
                }
            }
            self.carry_out(cell);
            self.deliver_all();
            assert!(self.present.len() < before, "seed {}: lost {:?}", self.seed, self.present);
        }
        self.step += 1;
    }
}
