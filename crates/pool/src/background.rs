//! Moving elements while the cell is idle, so that later gets find them near.

use warren_base::CellId;

use crate::peer::{Peer, Phase};
use crate::{Algorithm, Pool, PoolMessage, SearchNo};

impl<T: Clone> Pool<T> {
    /// To be called whenever the cell is idle. One call of `idle_calls` does background work.
    pub fn idle(&mut self) {
        if self.phase != Phase::Member {
            return;
        }
        self.idle_calls += 1;
        if self.idle_calls < self.tuning.idle_calls {
            return;
        }
        self.idle_calls = 0;
        match self.algorithm {
            Algorithm::Centralized | Algorithm::Distributed | Algorithm::Bulk => {}
            Algorithm::BackgroundPull => self.pull_some(),
            Algorithm::BackgroundPush => self.push_some(|_| true),
            Algorithm::EstimatedPush => {
                self.send_size();
                let poorer = self.local_size().saturating_sub(self.tuning.estimate_gap);
                self.push_some(|peer| peer.estimate < poorer);
            }
        }
    }

    fn pull_some(&mut self) {
        // One at a time: `asked` counts a pull that is not answered yet.
        let asking = self.peers.values().any(|peer| peer.asked > 0);
        if asking || self.elements.len() >= self.tuning.pull_below {
            return;
        }
        if let Some(from) = self.next_to_send(|_| true) {
            self.send_first = CellId(from.0.wrapping_add(1));
            let (search, want) = (SearchNo::BACKGROUND, self.tuning.bulk);
            self.ask(from, PoolMessage::Pull { search, want });
        }
    }

    fn push_some(&mut self, wanted: impl Fn(&Peer<T>) -> bool) {
        if self.elements.len() <= self.tuning.push_above {
            return;
        }
        if let Some(to) = self.next_to_send(wanted) {
            self.send_first = CellId(to.0.wrapping_add(1));
            let batch = self.take_oldest(self.tuning.bulk as usize);
            self.transfer(to, SearchNo::NONE, batch);
        }
    }

    /// Sends the number of elements to all other shards, if it has changed much. (In the thesis a
    /// master collects the numbers and distributes them; with at most 64 cells that saves nothing.)
    fn send_size(&mut self) {
        let size = self.local_size();
        if size.abs_diff(self.last_estimate) >= self.tuning.estimate_step {
            self.last_estimate = size;
            self.broadcast(&PoolMessage::Estimate { size });
        }
    }

    /// The ready, staying, wanted shard whose turn it is. All have their turn, because the shards
    /// with few elements need not be near.
    pub(crate) fn next_to_send(&self, wanted: impl Fn(&Peer<T>) -> bool) -> Option<CellId> {
        let able = |peer: &Peer<T>| peer.ready && !peer.leaving && wanted(peer);
        let candidates = self.peers.iter().filter(|(_, peer)| able(peer));
        candidates.map(|(cell, _)| cell).min_by_key(|&cell| (cell < self.send_first, cell))
    }
}
