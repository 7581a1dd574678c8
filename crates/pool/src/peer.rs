//! A shard's phase, and its knowledge of the other shards.

use std::collections::{BTreeMap, VecDeque};

use warren_base::CellId;

/// The stages of a shard's life, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// A member may not know this shard yet.
    Joining {
        leave_after: bool,
    },
    Member,
    /// Its elements are being sent to other shards.
    Leaving,
    /// It has no elements, and waits until all members have removed it.
    Departing,
    /// After `Left`, `LastLeft` or `JoinFailed`.
    Over,
}

impl Phase {
    /// Whether the shard takes transfers. The sender of a transfer to a departing shard receives
    /// `Goodbye` instead of a reply, and keeps its elements. No shard sends to a joining shard, nor
    /// before it is ready itself.
    pub(crate) const fn takes(self) -> bool {
        matches!(self, Self::Member | Self::Leaving)
    }
}

/// The state of another shard, as far as it is known here.
#[derive(Clone, Debug)]
pub(crate) struct Peer<T> {
    /// It knows this shard.
    pub welcomed: bool,
    /// It receives elements.
    pub ready: bool,
    pub leaving: bool,
    /// It knows that this shard leaves.
    pub noted: bool,
    /// The number of elements that it may have.
    pub estimate: u64,
    /// Questions that it has not answered.
    pub asked: u32,
    /// Copies of the elements that were sent and not acknowledged, oldest first.
    pub unacked: VecDeque<Vec<T>>,
    /// The number of transfers that were sent to it, and have arrived from it. Each is taken only
    /// if all before it were, so that a repeated one is not taken twice.
    pub given: u64,
    pub taken: u64,
}

impl<T> Peer<T> {
    pub(crate) fn new() -> Self {
        Self {
            welcomed: false,
            ready: false,
            leaving: false,
            noted: false,
            estimate: 0,
            asked: 0,
            unacked: VecDeque::new(),
            given: 0,
            taken: 0,
        }
    }

    /// The number of the oldest transfer that is not acknowledged.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (!self.unacked.is_empty()).then(|| self.given - self.unacked.len() as u64 + 1)
    }

    /// It has taken all transfers up to this number. Returns whether that is news.
    pub(crate) fn acknowledge(&mut self, number: u64) -> bool {
        let before = self.unacked.len();
        while self.oldest().is_some_and(|oldest| oldest <= number) {
            self.unacked.pop_front();
        }
        self.unacked.len() < before
    }
}

/// The other shards that are known, by cell.
#[derive(Clone, Debug)]
pub(crate) struct PeerShards<T> {
    known: BTreeMap<CellId, Peer<T>>,
}

impl<T> PeerShards<T> {
    pub(crate) const fn new() -> Self {
        Self { known: BTreeMap::new() }
    }

    /// The entry of `cell`, which is made if there is none.
    pub(crate) fn meet(&mut self, cell: CellId) -> &mut Peer<T> {
        self.known.entry(cell).or_insert_with(Peer::new)
    }

    /// Makes `cell` a member without a handshake.
    pub(crate) fn know(&mut self, cell: CellId) {
        let peer = self.meet(cell);
        (peer.welcomed, peer.ready) = (true, true);
    }

    pub(crate) fn remove(&mut self, cell: CellId) -> Option<Peer<T>> {
        self.known.remove(&cell)
    }

    pub(crate) fn get(&self, cell: CellId) -> Option<&Peer<T>> {
        self.known.get(&cell)
    }

    pub(crate) fn get_mut(&mut self, cell: CellId) -> Option<&mut Peer<T>> {
        self.known.get_mut(&cell)
    }

    pub(crate) fn contains(&self, cell: CellId) -> bool {
        self.known.contains_key(&cell)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = CellId> {
        self.known.keys().copied()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Peer<T>> {
        self.known.values()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (CellId, &Peer<T>)> {
        self.known.iter().map(|(cell, peer)| (*cell, peer))
    }

    /// Whether elements can be sent to `cell`.
    pub(crate) fn takes(&self, cell: CellId) -> bool {
        self.known.get(&cell).is_some_and(|peer| peer.ready && !peer.leaving)
    }

    /// Whether elements that were sent from here may not have arrived.
    pub(crate) fn is_moving(&self) -> bool {
        self.known.values().any(|peer| !peer.unacked.is_empty())
    }

    /// The number of elements of `cell` as it has reported it.
    pub(crate) fn set_estimate(&mut self, cell: CellId, size: u64) {
        if let Some(peer) = self.known.get_mut(&cell) {
            peer.estimate = size;
        }
    }

    /// Whether the transfer with this number is the next one of the cell.
    pub(crate) fn is_next(&self, from: CellId, number: u64) -> bool {
        self.known.get(&from).is_some_and(|peer| peer.ready && number == peer.taken + 1)
    }

    /// The cell knows that this shard leaves.
    pub(crate) fn noted(&mut self, cell: CellId) {
        if let Some(peer) = self.known.get_mut(&cell) {
            peer.noted = true;
        }
    }

    /// The cell has answered a question.
    pub(crate) fn answered(&mut self, cell: CellId) {
        if let Some(peer) = self.known.get_mut(&cell) {
            peer.asked = peer.asked.saturating_sub(1);
        }
    }
}
