//! Joining, leaving, dying.
//!
//! **Join.** The new shard says `Hello` to its contact and to everybody it hears of in a `Welcome`,
//! until all it knows have welcomed it. Then it is ready, if one of those is. Of two that join at
//! the same time, the one that comes second to any established shard hears there of the first and
//! greets it; so when a shard is ready, every ready shard knows it. Only then does it take
//! elements, and is sent some.
//!
//! **Leave.**
//!
//! ```text
//! leave -> Leaving to all -> all have Noted: no more elements come
//!       -> elements passed on, all taken
//!       -> Goodbye to all -> all have said Farewell: nobody refers to us -> Left
//! ```
//!
//! Elements go to ready shards that stay. If all that are left leave, the one with the lowest
//! number gathers them and is the last; it hands them to its caller.
//!
//! **Death.** What was sent to the dead and not taken is taken back: a shard takes before it does
//! anything else with a transfer, and everything the dead said was heard first. Searches begin anew
//! without it.

use warren_base::CellId;
use warren_base::limits::CELLS_MAX;

use crate::shard::Phase;
use crate::{Effect, Pool, PoolMessage, SearchNo};

impl<T: Clone> Pool<T> {
    /// Leaves the pool. [`Effect::Left`] or [`Effect::LastLeft`] follows; until then messages must
    /// go on.
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
        if room && cell != self.me && !self.peers.contains_key(&cell) {
            self.meet(cell);
            self.send(cell, PoolMessage::Hello);
        }
    }

    pub(crate) fn on_hello(&mut self, from: CellId) {
        if self.phase == Phase::Departing {
            // What we know shrinks with every farewell: no basis for a newcomer.
            self.send(from, PoolMessage::Goodbye);
            return;
        }
        let members = self.members().filter(|&cell| cell != from).collect();
        let (center, ready) = (self.center, !matches!(self.phase, Phase::Joining { .. }));
        let newcomer = !self.peers.contains_key(&from);
        if newcomer && self.peers.len() >= CELLS_MAX {
            return;
        }
        // Whoever greets us knows us.
        self.meet(from).welcomed = true;
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
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.welcomed = true;
        peer.ready |= ready;
        if matches!(self.phase, Phase::Joining { .. }) {
            members.into_iter().for_each(|cell| self.greet(cell));
            if self.peers.contains_key(&center) {
                self.center = center;
            }
        }
    }

    pub(crate) fn on_ready(&mut self, from: CellId, members: Vec<CellId>) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.ready = true;
        if matches!(self.phase, Phase::Joining { .. }) {
            members.into_iter().for_each(|cell| self.greet(cell));
        }
    }

    pub(crate) fn on_leaving(&mut self, from: CellId) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.leaving = true;
        }
        self.choose_center();
        self.send(from, PoolMessage::Noted);
    }

    pub(crate) fn on_noted(&mut self, from: CellId) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.noted = true;
        }
    }

    pub(crate) fn on_goodbye(&mut self, from: CellId) {
        self.forget(from);
        self.send(from, PoolMessage::Farewell);
    }

    /// The peer has gone. What it did not take is here again.
    pub(crate) fn forget(&mut self, cell: CellId) {
        let Some(peer) = self.peers.remove(&cell) else { return };
        self.choose_center();
        self.accept(peer.unacked.into_iter().flatten().collect());
        if self.search.is_some() {
            self.begin_search();
        }
        self.settle_moving();
    }

    /// If the center goes, the lowest that stays is the next.
    fn choose_center(&mut self) {
        if self.center == self.me || self.takes(self.center) {
            return;
        }
        let staying = self.members().find(|&cell| self.takes(cell));
        self.center = staying.map_or(self.me, |lowest| lowest.min(self.me));
    }

    /// Goes on to the next phase if its time has come.
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
            // Not "we are alone": the pool may live on among cells that we never heard of.
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
        let settled = |peer: &crate::shard::Peer<T>| peer.noted && peer.asked == 0;
        let quiet = self.waiting.is_empty() && !self.is_moving();
        if quiet && self.peers.values().all(settled) {
            self.phase = Phase::Departing;
            self.broadcast(&PoolMessage::Goodbye);
        }
    }

    /// Who gets our elements: a ready shard that stays, in turn; or, if all leave, the lowest, if
    /// that is not us. While somebody joins there may be nobody yet.
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
