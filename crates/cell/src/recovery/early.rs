//! Messages that reach a recovering cell before it can process them.

use std::collections::{BTreeMap, VecDeque};

use warren_base::{CellId, ClientId, Lsn};
use warren_proto::PeerRequest;

#[derive(Debug, Default)]
pub(crate) struct Early {
    requests: VecDeque<(CellId, PeerRequest)>,
    /// Clients that are gone. The log must be replayed first, because it may name them.
    expelled: Vec<ClientId>,
    /// Up to where early messages depend on other cells' logs.
    points: BTreeMap<CellId, Lsn>,
}

impl Early {
    pub(crate) fn keep_request(&mut self, from: CellId, request: PeerRequest) {
        self.requests.push_back((from, request));
    }

    pub(crate) fn take_requests(&mut self) -> VecDeque<(CellId, PeerRequest)> {
        std::mem::take(&mut self.requests)
    }

    /// The successor of the lost cell sends its messages again.
    pub(crate) fn forget_peer(&mut self, lost: CellId) {
        self.requests.retain(|(from, _)| *from != lost);
    }

    pub(crate) fn expel(&mut self, client: ClientId) {
        self.expelled.push(client);
    }

    pub(crate) fn take_expelled(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.expelled)
    }

    /// A message came that depends on another cell's log up to `lsn`.
    pub(crate) fn note_dependency(&mut self, cell: CellId, lsn: Lsn) {
        let known = self.points.entry(cell).or_default();
        *known = (*known).max(lsn);
    }

    pub(crate) fn take_points(&mut self) -> BTreeMap<CellId, Lsn> {
        std::mem::take(&mut self.points)
    }
}
