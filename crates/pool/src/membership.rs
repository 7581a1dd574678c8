//! Members that join, leave or die.
//!
//! **Join.** The new shard sends `Hello` to its contact and to each member named in a `Welcome`,
//! until all shards that it knows have welcomed it. Then it is ready, if any of those is. If two
//! shards join at the same time, a ready shard names the first of them to the second, which sends
//! it `Hello`. So when a shard is ready, all ready shards know it. Only then does it take elements,
//! and other shards send it elements.
//!
//! **Leave.**
//!
//! ```text
//! leave -> Leaving to all -> all have Noted: no more elements come
//!       -> elements sent to other shards, all acknowledged
//!       -> Goodbye to all -> Farewell from all: no shard knows this one -> Left
//! ```
//!
//! Elements go to ready shards that stay. If all remaining shards leave, the shard with the lowest
//! number collects the elements. It leaves last, and returns them to its caller.
//!
//! **Death.** Elements that were sent to a dead shard and not acknowledged are taken back. This is
//! safe, because a shard acknowledges a transfer before it uses the elements, and all messages of
//! the dead shard were handled before. Searches start again without it.

use warren_base::CellId;
use warren_base::limits::CELLS_MAX;

use crate::peer::{Peer, Phase};
use crate::{Effect, Pool, PoolMessage, SearchNo};

impl<T: Clone> Pool<T> {
    /// Leaves the pool. [`Effect::Left`] or [`Effect::LastLeft`] follows; until then the driver
    /// must deliver messages.
    pub fn leave(&mut self) {
        match &mut self.phase {
            Phase::Joining { leave_after } => *leave_after = true,
            Phase::Member => self.begin_leaving(),
            Phase::Leaving | Phase::Departing | Phase::Over => {}
        }
        self.advance();
    }

    fn begin_leaving(&mut self) {
        self.phase = Phase::Leaving;
        self.broadcast(&PoolMessage::Leaving);
    }

    pub(crate) fn greet(&mut self, cell: CellId) {
        let room = self.peers.len() < CELLS_MAX;
        if room && cell != self.me && !self.peers.contains(cell) {
            self.peers.meet(cell);
            self.send(cell, PoolMessage::Hello);
        }
    }

    pub(crate) fn on_hello(&mut self, from: CellId) {
        if self.phase == Phase::Departing {
            // The known members shrink with each `Farewell`, so a newcomer cannot use them.
            self.send(from, PoolMessage::Goodbye);
            return;
        }
        let members = self.members().filter(|&cell| cell != from).collect();
        let (center, ready) = (self.center, !matches!(self.phase, Phase::Joining { .. }));
        let newcomer = !self.peers.contains(from);
        if newcomer && self.peers.len() >= CELLS_MAX {
            return;
        }
        // The sender of a `Hello` knows this shard.
        self.peers.meet(from).welcomed = true;
        self.send(from, PoolMessage::Welcome { members, center, ready });
        if newcomer && self.phase == Phase::Leaving {
            self.send(from, PoolMessage::Leaving);
        }
        if newcomer && self.search.is_some() {
            self.begin_search();
        }
    }

    pub(crate) fn on_welcome(
        &mut self,
        from: CellId,
        members: Vec<CellId>,
        center: CellId,
        ready: bool,
    ) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        peer.welcomed = true;
        peer.ready |= ready;
        if matches!(self.phase, Phase::Joining { .. }) {
            members.into_iter().for_each(|cell| self.greet(cell));
            if self.peers.contains(center) {
                self.center = center;
            }
        }
    }

    pub(crate) fn on_ready(&mut self, from: CellId, members: Vec<CellId>) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        peer.ready = true;
        if matches!(self.phase, Phase::Joining { .. }) {
            members.into_iter().for_each(|cell| self.greet(cell));
        }
    }

    pub(crate) fn on_leaving(&mut self, from: CellId) {
        if let Some(peer) = self.peers.get_mut(from) {
            peer.leaving = true;
        }
        self.choose_center();
        self.send(from, PoolMessage::Noted);
    }

    pub(crate) fn on_goodbye(&mut self, from: CellId) {
        self.forget(from);
        self.send(from, PoolMessage::Farewell);
    }

    /// Removes the peer. Elements that it has not acknowledged are here again.
    pub(crate) fn forget(&mut self, cell: CellId) {
        let Some(peer) = self.peers.remove(cell) else { return };
        self.choose_center();
        self.accept(peer.unacked.into_iter().flatten().collect());
        if self.search.is_some() {
            self.begin_search();
        }
        self.settle_moving();
    }

    /// If the center leaves, the lowest shard that stays is the next.
    fn choose_center(&mut self) {
        if self.center == self.me || self.peers.takes(self.center) {
            return;
        }
        let staying = self.members().find(|&cell| self.peers.takes(cell));
        self.center = staying.map_or(self.me, |lowest| lowest.min(self.me));
    }

    /// Enters the next phase if its conditions are met.
    pub(crate) fn advance(&mut self) {
        match self.phase {
            Phase::Joining { leave_after } => self.advance_join(leave_after),
            Phase::Leaving => self.advance_leave(),
            Phase::Departing if self.peers.is_empty() => self.end(Effect::Left),
            Phase::Member | Phase::Departing | Phase::Over => {}
        }
    }

    fn advance_join(&mut self, leave_after: bool) {
        if self.peers.values().any(|peer| !peer.welcomed) {
            return;
        }
        if self.peers.values().all(|peer| !peer.ready) {
            // The pool may still exist among cells that this shard does not know, so it cannot be
            // taken for empty.
            let waiting = std::mem::take(&mut self.waiting).into();
            self.broadcast(&PoolMessage::Goodbye);
            self.end(Effect::JoinFailed { waiting });
        } else {
            self.phase = Phase::Member;
            self.choose_center();
            let members = self.members().collect();
            self.broadcast(&PoolMessage::Ready { members });
            self.effect(Effect::Ready);
            self.begin_search();
            if leave_after {
                self.leave();
            }
        }
    }

    fn advance_leave(&mut self) {
        if self.peers.is_empty() {
            self.begin_search();
            let elements = std::mem::take(&mut self.elements).into();
            self.end(Effect::LastLeft { elements });
            return;
        }
        let Some(first) = self.heir() else { return };
        self.pass_on(first);
        let settled = |peer: &Peer<T>| peer.noted && peer.asked == 0;
        let quiet = self.waiting.is_empty() && !self.peers.is_moving();
        if quiet && self.peers.values().all(settled) {
            self.phase = Phase::Departing;
            self.broadcast(&PoolMessage::Goodbye);
        }
    }

    /// The shard that receives the elements: a ready shard that stays, in turn; or, if all leave,
    /// the lowest shard unless it is this one. While a shard joins there may be none yet.
    fn heir(&self) -> Option<CellId> {
        if let Some(staying) = self.next_to_send(|_| true) {
            return Some(staying);
        }
        let all_leave = self.peers.values().all(|peer| peer.leaving);
        self.members().next().filter(|&lowest| all_leave && lowest < self.me)
    }

    fn pass_on(&mut self, first: CellId) {
        let mut to = first;
        while !self.elements.is_empty() {
            let batch = self.take_oldest(self.tuning.bulk as usize);
            self.transfer(to, SearchNo::NONE, batch);
            self.send_first = CellId(to.0.wrapping_add(1));
            to = self.next_to_send(|_| true).unwrap_or(first);
        }
    }

    fn end(&mut self, effect: Effect<T>) {
        assert!(self.waiting.is_empty() && self.elements.is_empty());
        self.phase = Phase::Over;
        self.search = None;
        self.effect(effect);
    }
}
