//! Finding an element anywhere, or being sure that there is none.
//!
//! A search serves all gets that wait here. It goes in two rounds:
//!
//! 1. **Pull**: ask the peers one after the other for elements. The first that has some ends the
//!    search. One that has none says so, and how many elements ever came to it (`arrivals`); but
//!    not before everything that it sent has been taken.
//! 2. **Check**: if all had none, ask all again, at once. If each still has none and `arrivals` is
//!    what it was, the pool was empty, and the gets that waited when this round began are told so.
//!    Anything else begins a new search; it means that elements have come somewhere, so searches do
//!    not go round for nothing.
//!
//! Why that is right. Let `T` be the moment at which the second round begins. A shard whose
//! `arrivals` did not change between its two answers had no element all that time, `T` included,
//! and sent none. What it had sent before its first answer had been taken by then. So at `T`
//! nothing lay in a shard and nothing was on the way. The searcher itself is looked at at `T`. A
//! shard that it does not know at `T` has never been ready, so it has nothing and nobody sends to
//! it; one that it has forgotten said goodbye, or is dead. A change of membership begins a new
//! search.
//!
//! Nobody waits in a circle: a transfer is taken at once, whatever its receiver waits for.

use std::collections::BTreeMap;

use warren_base::CellId;

use crate::shard::Phase;
use crate::{Algorithm, Effect, Pool, PoolMessage, SearchNo, Ticket};

#[derive(Clone, Debug)]
pub(crate) struct Search {
    pub number: SearchNo,
    /// The peers, in the order of asking.
    order: Vec<CellId>,
    /// What each said of its arrivals in the first round.
    arrivals: BTreeMap<CellId, u64>,
    round: Round,
}

impl Search {
    fn has_asked_all(&self) -> bool {
        matches!(self.round, Round::Pull { at } if at == self.order.len())
    }
}

/// What a peer asked while something that was sent from here was on the way.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    from: CellId,
    search: SearchNo,
    /// How many it pulls; `None` if it checks.
    want: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Round {
    /// The peer at this place of the order was asked; behind the last, all were.
    Pull { at: usize },
    /// So many answers are missing. Gets up to this ticket waited when the round began.
    Check { missing: usize, up_to: Ticket },
}

impl<T: Clone> Pool<T> {
    /// Searches for those who wait, from the start.
    pub(crate) fn begin_search(&mut self) {
        self.search = None;
        if self.waiting.is_empty() || matches!(self.phase, Phase::Joining { .. }) {
            return;
        }
        let order = self.asking_order();
        if order.is_empty() {
            self.resolve_empty(Ticket(u64::MAX));
            return;
        }
        self.last_search.0 += 1;
        self.search = Some(Search {
            number: self.last_search,
            order,
            arrivals: BTreeMap::new(),
            round: Round::Pull { at: 0 },
        });
        self.pull_or_check();
    }

    /// The center first if there is one, else the nearest, and among those equally near in turn.
    fn asking_order(&self) -> Vec<CellId> {
        let mut order: Vec<CellId> = self.members().collect();
        let centralized = self.algorithm == Algorithm::Centralized;
        let away = |cell: &CellId| (centralized && *cell != self.center, self.peers[cell].distance);
        order.sort_by_key(|cell| (away(cell), *cell < self.ask_first, *cell));
        order
    }

    fn pull_or_check(&mut self) {
        let Some(search) = &mut self.search else { return };
        let Round::Pull { at } = search.round else { return };
        let number = search.number;
        if let Some(&to) = search.order.get(at) {
            let bulk = self.algorithm >= Algorithm::Bulk;
            let want = if bulk { self.tuning.bulk } else { 1 };
            self.ask(to, PoolMessage::Pull { search: number, want });
            return;
        }
        self.check_if_settled();
    }

    /// If all were asked and had none, and nothing that we sent is on the way: the second round.
    fn check_if_settled(&mut self) {
        let all_asked = self.search.as_ref().is_some_and(Search::has_asked_all);
        if all_asked && !self.is_moving() {
            self.begin_check();
        }
    }

    fn begin_check(&mut self) {
        let (Some(search), Some(&up_to)) = (&mut self.search, self.waiting.back()) else { return };
        search.round = Round::Check { missing: search.order.len(), up_to };
        let (number, order) = (search.number, search.order.clone());
        order.into_iter().for_each(|to| self.ask(to, PoolMessage::Check { search: number }));
    }

    pub(crate) fn ask(&mut self, to: CellId, question: PoolMessage<T>) {
        self.peers.get_mut(&to).expect("questions go to known shards").asked += 1;
        self.send(to, question);
    }

    pub(crate) fn on_pull(&mut self, from: CellId, search: SearchNo, want: u32) {
        let elements = match self.phase {
            Phase::Member | Phase::Leaving if self.peers.contains_key(&from) => {
                self.take_oldest(want.min(self.tuning.bulk) as usize)
            }
            _ => Vec::new(),
        };
        if elements.is_empty() {
            self.answer_empty(from, search, Some(want));
        } else {
            self.transfer(from, search, elements);
        }
    }

    pub(crate) fn on_check(&mut self, from: CellId, search: SearchNo) {
        if self.elements.is_empty() {
            self.answer_empty(from, search, None);
        } else {
            self.send(from, PoolMessage::NotEmpty { search });
        }
    }

    /// While something moves the answer is put off: one question of each kind a peer. Who asks
    /// another has given up the one before.
    fn answer_empty(&mut self, from: CellId, search: SearchNo, want: Option<u32>) {
        if self.is_moving() {
            let same = |old: &Question| old.from == from && old.want.is_some() == want.is_some();
            let earlier = self.deferred.iter().position(same);
            if let Some(Question { search, .. }) = earlier.map(|at| self.deferred.remove(at)) {
                self.send(from, PoolMessage::NotEmpty { search });
            }
            self.deferred.push(Question { from, search, want });
        } else {
            let arrivals = self.arrivals;
            self.send(from, PoolMessage::Empty { search, arrivals });
        }
    }

    /// Something that was sent has been taken, or is here again: what waited for that goes on.
    pub(crate) fn settle_moving(&mut self) {
        if self.is_moving() {
            return;
        }
        self.check_if_settled();
        for Question { from, search, want } in std::mem::take(&mut self.deferred) {
            match want {
                _ if !self.peers.contains_key(&from) => {}
                Some(want) => self.on_pull(from, search, want),
                None => self.on_check(from, search),
            }
        }
    }

    pub(crate) fn on_empty(&mut self, from: CellId, number: SearchNo, arrivals: u64) {
        self.answered(from);
        let Some(search) = &mut self.search else { return };
        if search.number != number {
            return;
        }
        match &mut search.round {
            Round::Pull { at } if search.order.get(*at) == Some(&from) => {
                *at += 1;
                search.arrivals.insert(from, arrivals);
                self.ask_first = CellId(from.0.wrapping_add(1));
                self.pull_or_check();
            }
            Round::Pull { .. } => {}
            Round::Check { missing, up_to } => {
                // Each answers once: its entry is taken out, so that a second answer is a change.
                if search.arrivals.remove(&from) != Some(arrivals) {
                    self.begin_search();
                    return;
                }
                *missing -= 1;
                if *missing == 0 {
                    let up_to = *up_to;
                    self.resolve_empty(up_to);
                    self.begin_search();
                }
            }
        }
    }

    pub(crate) fn on_not_empty(&mut self, from: CellId, number: SearchNo) {
        self.answered(from);
        if self.search.as_ref().is_some_and(|search| search.number == number) {
            self.ask_first = from;
            self.begin_search();
        }
    }

    /// The pool was empty at a moment when the gets up to this ticket waited.
    fn resolve_empty(&mut self, up_to: Ticket) {
        while let Some(ticket) = self.waiting.pop_front_if(|ticket| *ticket <= up_to) {
            self.effect(Effect::Resolved { ticket, element: None });
        }
    }
}
