//! Lost messages between shards.
//!
//! The driver sees what waits for long ([`unanswered`]), and sends that to the other shard,
//! behind all earlier messages. The other shard answers with what it knows ([`inquired`]),
//! behind all its earlier answers. So what it does not know, and has not answered, was lost: that
//! is proof without a time limit.
//!
//! * A *transfer*: transfers are numbered, and a shard takes them only in their order. The
//!   sender repeats all that were not taken. A repeated one that has arrived is not taken again.
//! * A *question*, or its answer: the search begins again, under another number.
//! * A message of the *handshake* of a join: `Hello` and `Ready` are repeated, which changes
//!   nothing at a shard that has them.
//!
//! The elements of a transfer that was taken are not taken back if the receiver dies after its
//! `Taken` was lost: the driver calls [`Pool::peer_replaced`] for a cell that may have lost
//! messages, and not [`Pool::peer_died`].

use warren_base::CellId;

use crate::peer::Phase;
use crate::question::Round;
use crate::{Effect, Inquiry, Pool, PoolMessage, SearchNo};

/// Returns the cells at which this shard waits for something, and for what.
pub fn unanswered<T: Clone>(pool: &Pool<T>) -> impl Iterator<Item = (CellId, Inquiry)> + '_ {
    pool.peers.iter().filter_map(|(cell, peer)| {
        let search = asks(pool, cell);
        let greets = is_joining(pool) && !peer.welcomed;
        let waits = peer.oldest().is_some() || search != SearchNo::NONE || greets;
        waits.then(|| (cell, Inquiry { oldest: peer.oldest().unwrap_or(0), search }))
    })
}

/// Another shard waits for these. It has sent nothing of that after the question.
pub fn inquired<T: Clone>(pool: &mut Pool<T>, from: CellId, inquiry: Inquiry) {
    let is_deferred = pool.deferred.iter().any(|it| it.from == from && it.search == inquiry.search);
    let missing = if is_deferred { SearchNo::NONE } else { inquiry.search };
    let (_, taken) = exchanged(pool, from);
    pool.send(from, PoolMessage::Known { inquiry, taken, missing });
}

impl<T: Clone> Pool<T> {
    pub(crate) fn on_known(
        &mut self,
        from: CellId,
        inquiry: Inquiry,
        taken: u64,
        missing: SearchNo,
    ) {
        let is_joining = is_joining(self);
        let Some(peer) = self.peers.get_mut(from) else { return };
        let was_acknowledged = peer.acknowledge(taken.min(peer.given));
        let is_lost = inquiry.oldest > 0 && peer.oldest() == Some(inquiry.oldest);
        let greets = is_joining && !peer.welcomed;
        let is_missing = missing != SearchNo::NONE && asks(self, from) == missing;
        if was_acknowledged || is_lost || greets || is_missing {
            self.effect(Effect::LostMessage { cell: from });
        }
        if greets {
            self.send(from, PoolMessage::Hello);
        }
        if is_lost {
            repeat_transfers(self, from);
        }
        if was_acknowledged {
            self.settle_moving();
        }
        if is_missing && asks(self, from) == missing {
            self.peers.answered(from);
            self.begin_search();
        }
    }
}

fn repeat_transfers<T: Clone>(pool: &mut Pool<T>, to: CellId) {
    if pool.phase == Phase::Member {
        // It takes nothing from a shard that it does not know to be ready.
        let members = pool.members().collect();
        pool.send(to, PoolMessage::Ready { members });
    }
    let Some(peer) = pool.peers.get(to) else { return };
    let (copies, left) = (peer.unacked.clone(), pool.local_size());
    let numbers = peer.oldest().unwrap_or(0)..;
    for (number, elements) in numbers.zip(copies) {
        let search = SearchNo::NONE;
        pool.send(to, PoolMessage::Transfer { search, number, elements, left });
    }
}

/// The search whose question the cell has not answered.
fn asks<T: Clone>(pool: &Pool<T>, cell: CellId) -> SearchNo {
    let Some(search) = &pool.search else { return SearchNo::NONE };
    let is_asked = match search.round {
        Round::Pull { at } => search.order.get(at) == Some(&cell),
        Round::Check { .. } => search.arrivals.contains_key(&cell),
    };
    if is_asked { search.number } else { SearchNo::NONE }
}

fn is_joining<T: Clone>(pool: &Pool<T>) -> bool {
    matches!(pool.phase, Phase::Joining { .. })
}

/// Whether a transfer with this number is taken. Others are repeated and have arrived, or follow a
/// lost one, with which they will be repeated.
pub fn takes<T: Clone>(pool: &Pool<T>, from: CellId, number: u64) -> bool {
    pool.phase.takes() && pool.peers.is_next(from, number)
}

/// The number of transfers that this shard has sent to the other one, and has taken from it.
pub fn exchanged<T: Clone>(pool: &Pool<T>, with: CellId) -> (u64, u64) {
    pool.peers.get(with).map_or((0, 0), |peer| (peer.given, peer.taken))
}
