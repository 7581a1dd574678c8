//! Finding an element in any shard, or proving that there is none.
//!
//! A search serves all waiting gets of this shard. It has two rounds:
//!
//! 1. **Pull**: ask the peers one after the other for elements. The first that has some ends the
//!    search. A peer without elements replies with the number of elements that it has ever received
//!    (`arrivals`), but only after all elements that it sent have been acknowledged.
//! 2. **Check**: if no peer had any, ask all again, at once. If each still has none and the same
//!    `arrivals`, the pool was empty, and the gets that waited when this round began end with that
//!    result. Otherwise a new search starts. Elements have arrived at a shard then, so searches are
//!    not repeated without progress.
//!
//! Proof. Let `T` be the moment at which the second round starts. A shard whose `arrivals` did not
//! change between its two replies had no element all that time, `T` included, and sent none. The
//! elements that it had sent before its first reply had been acknowledged by then. So at `T` no
//! element was in a shard or on the way. The searching shard checks itself at `T`. A shard that it
//! does not know at `T` has never been ready, so it has no elements and no shard sends to it. A
//! shard that it has removed has sent `Goodbye`, or is dead. A change of membership starts a new
//! search.
//!
//! No deadlock: a shard takes a transfer at once, also while it waits itself.

use std::collections::BTreeMap;

use warren_base::CellId;

use crate::peer::Phase;
use crate::question::{Question, Round, Search};
use crate::{Algorithm, Effect, Pool, PoolMessage, SearchNo, Ticket};

impl<T: Clone> Pool<T> {
    /// Starts a search for the waiting gets, from the first round.
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

    /// The center first if there is one, and the others in turn.
    fn asking_order(&self) -> Vec<CellId> {
        let mut order: Vec<CellId> = self.members().collect();
        let centralized = self.algorithm == Algorithm::Centralized;
        let is_later = |cell: CellId| centralized && cell != self.center;
        order.sort_by_key(|cell| (is_later(*cell), *cell < self.ask_first, *cell));
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

    /// Starts the second round if no peer had elements and no element from here is on the way.
    fn check_if_settled(&mut self) {
        let all_asked = self.search.as_ref().is_some_and(Search::has_asked_all);
        if all_asked && !self.peers.is_moving() {
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
        self.peers.get_mut(to).expect("questions go to known shards").asked += 1;
        self.send(to, question);
    }

    pub(crate) fn on_pull(&mut self, from: CellId, search: SearchNo, want: u32) {
        let elements = match self.phase {
            Phase::Member | Phase::Leaving if self.peers.contains(from) => {
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

    /// While elements from here are on the way, the reply is deferred. For each peer and kind one
    /// question is kept: a peer that asks again has abandoned its earlier search.
    fn answer_empty(&mut self, from: CellId, search: SearchNo, want: Option<u32>) {
        if self.peers.is_moving() {
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

    /// Sent elements have been acknowledged, or are here again: resumes the search and deferred
    /// replies.
    pub(crate) fn settle_moving(&mut self) {
        if self.peers.is_moving() {
            return;
        }
        self.check_if_settled();
        for Question { from, search, want } in std::mem::take(&mut self.deferred) {
            match want {
                _ if !self.peers.contains(from) => {}
                Some(want) => self.on_pull(from, search, want),
                None => self.on_check(from, search),
            }
        }
    }

    pub(crate) fn on_empty(&mut self, from: CellId, number: SearchNo, arrivals: u64) {
        self.peers.answered(from);
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
                // Each replies once: its entry is removed, so that a second reply is a change.
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
        self.peers.answered(from);
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
