//! Lost messages between shards.
//!
//! The driver sees what waits for long ([`Pool::unanswered`]), and sends that to the other shard,
//! behind all earlier messages. The other shard answers with what it knows ([`Pool::inquired`]),
//! behind all its earlier answers. So what it does not know, and has not answered, was lost: that is
//! proof without a time limit.
//!
//! * A *transfer*: transfers are numbered, and a shard takes them only in their order. The sender
//!   repeats all that were not taken. A repeated transfer that has arrived is not taken again.
//! * A *question*, or its answer: the search begins again, under another number.
//! * A message of the *handshake* of a join: `Hello` and `Ready` are repeated, which changes nothing
//!   at a shard that has them.
//!
//! The elements of a transfer that was taken are not taken back if the receiver dies after its
//! `Taken` was lost: the driver calls [`Pool::peer_replaced`] for a cell that may have lost
//! messages, and not [`Pool::peer_died`].

use warren_base::CellId;

use crate::peer::Phase;
use crate::question::Round;
use crate::{Effect, Inquiry, Pool, PoolMessage, SearchNo};

impl<T: Clone> Pool<T> {
    /// What this shard waits for, by cell.
    pub fn unanswered(&self) -> impl Iterator<Item = (CellId, Inquiry)> + '_ {
        self.peers.iter().filter_map(|(cell, peer)| {
            let search = self.asks(cell);
            let greets = self.is_joining() && !peer.welcomed;
            let waits = peer.oldest().is_some() || search != SearchNo::NONE || greets;
            waits.then(|| (cell, Inquiry { oldest: peer.oldest().unwrap_or(0), search }))
        })
    }

    /// Another shard waits for these. It has sent nothing of that after the question.
    pub fn inquired(&mut self, from: CellId, inquiry: Inquiry) {
        let is_deferred =
            self.deferred.iter().any(|it| it.from == from && it.search == inquiry.search);
        let missing = if is_deferred { SearchNo::NONE } else { inquiry.search };
        let (_, taken) = self.exchanged(from);
        self.send(from, PoolMessage::Known { inquiry, taken, missing });
    }

    pub(crate) fn on_known(
        &mut self,
        from: CellId,
        inquiry: Inquiry,
        taken: u64,
        missing: SearchNo,
    ) {
        let is_joining = self.is_joining();
        let Some(peer) = self.peers.get_mut(from) else { return };
        let was_acknowledged = peer.acknowledge(taken.min(peer.given));
        let is_lost = inquiry.oldest > 0 && peer.oldest() == Some(inquiry.oldest);
        let greets = is_joining && !peer.welcomed;
        let asks = missing != SearchNo::NONE && self.asks(from) == missing;
        if was_acknowledged || is_lost || greets || asks {
            self.effect(Effect::LostMessage { cell: from });
        }
        if greets {
            self.send(from, PoolMessage::Hello);
        }
        if is_lost {
            self.repeat_transfers(from);
        }
        if was_acknowledged {
            self.settle_moving();
        }
        if asks && self.asks(from) == missing {
            self.peers.answered(from);
            self.begin_search();
        }
    }

    fn repeat_transfers(&mut self, to: CellId) {
        if self.phase == Phase::Member {
            // It takes nothing from a shard that it does not know to be ready.
            let members = self.members().collect();
            self.send(to, PoolMessage::Ready { members });
        }
        let Some(peer) = self.peers.get(to) else { return };
        let (copies, left) = (peer.unacked.clone(), self.local_size());
        let numbers = peer.oldest().unwrap_or(0)..;
        for (number, elements) in numbers.zip(copies) {
            let search = SearchNo::NONE;
            self.send(to, PoolMessage::Transfer { search, number, elements, left });
        }
    }

    /// The search whose question the cell has not answered.
    fn asks(&self, cell: CellId) -> SearchNo {
        let Some(search) = &self.search else { return SearchNo::NONE };
        let is_asked = match search.round {
            Round::Pull { at } => search.order.get(at) == Some(&cell),
            Round::Check { .. } => search.arrivals.contains_key(&cell),
        };
        if is_asked { search.number } else { SearchNo::NONE }
    }

    fn is_joining(&self) -> bool {
        matches!(self.phase, Phase::Joining { .. })
    }
}
