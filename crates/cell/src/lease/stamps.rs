//! Which lease each word of each client has, whatever shard has granted it.
//!
//! Keys share words by their hashes, so a lease may displace one that another shard has granted to
//! the same client. That shard notices it when it asks here for its own lease, and is asked to
//! forget such leases when there are many.
//!
//! Invariant: a stamp is never used twice, not even by another epoch of the cell.

use hashbrown::HashMap;
use warren_base::limits::LEASE_WORDS;
use warren_base::{ClientId, Epoch, FixedState};
use warren_proto::Lease;

use crate::event::Memory;
use crate::plant::{Plant, Planted};

/// Stamps begin with the epoch.
const EPOCH_SHIFT: u32 = 40;

/// The number of a word lease. It is the stamp of the lease, except under [`Plant::ReuseStamp`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant(u64);

/// A word of a client: the client's number above the word's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place(u64);

impl Place {
    const fn of(client: ClientId, word: u32) -> Self {
        Self((client.0 as u64) << 32 | word as u64)
    }

    fn is_of(self, client: ClientId) -> bool {
        self.0 >> 32 == u64::from(client.0)
    }
}

#[derive(Debug)]
pub(crate) struct Stamps {
    /// The last lease on each word, unless it was revoked.
    current: HashMap<Place, Grant, FixedState>,
    next: u64,
    /// How many leases were displaced, at most, that their shards have not forgotten.
    displaced: usize,
    plant: Planted,
}

impl Stamps {
    pub(crate) fn new(epoch: Epoch, plant: Planted) -> Self {
        let next = (u64::from(epoch.0) << EPOCH_SHIFT) + 1;
        Self { current: HashMap::default(), next, displaced: 0, plant }
    }

    /// Whether the word still has this lease, which its shard has not revoked.
    pub(crate) fn has(&self, client: ClientId, word: u32, grant: Grant) -> bool {
        let is_current = || self.current.get(&Place::of(client, word)) == Some(&grant);
        // Cheaper than the search, which would find the lease.
        let none_is_displaced = self.displaced == 0;
        debug_assert!(!none_is_displaced || is_current(), "word {word} of {client:?}");
        none_is_displaced || is_current()
    }

    /// Gives the word a new lease. `replaced` is the last one on this word that the same shard has
    /// granted to the client.
    pub(crate) fn grant(
        &mut self,
        client: ClientId,
        word: u32,
        replaced: Option<Grant>,
        memory: &mut dyn Memory,
    ) -> Grant {
        let grant = Grant(self.next);
        self.next += 1;
        let old = self.current.insert(Place::of(client, word), grant);
        self.displaced += usize::from(old.is_some() && old != replaced);
        memory.store_word(client, word, self.lease(word, grant).stamp);
        grant
    }

    /// Stores the stamp of a lease that the client has again, and returns the lease.
    pub(crate) fn renew(
        &self,
        client: ClientId,
        word: u32,
        grant: Grant,
        memory: &mut dyn Memory,
    ) -> Lease {
        let lease = self.lease(word, grant);
        memory.store_word(client, word, lease.stamp);
        lease
    }

    /// The lease as the client sees it.
    pub(crate) fn lease(&self, word: u32, Grant(number): Grant) -> Lease {
        let first = (number >> EPOCH_SHIFT << EPOCH_SHIFT) + 1;
        let stamp = if self.plant == Some(Plant::ReuseStamp) { first } else { number };
        Lease { word, stamp }
    }

    /// Revokes the lease, unless another has displaced it.
    pub(crate) fn revoke(
        &mut self,
        client: ClientId,
        word: u32,
        grant: Grant,
        memory: &mut dyn Memory,
    ) {
        if self.has(client, word, grant) {
            self.current.remove(&Place::of(client, word));
            memory.store_word(client, word, 0);
        }
    }

    /// Whether so many leases were displaced that the shards must forget them. Otherwise each shard
    /// could have a lease on every word.
    pub(crate) fn are_many_displaced(&self) -> bool {
        self.displaced >= LEASE_WORDS && self.displaced >= self.current.len()
    }

    /// Every shard has forgotten the leases that were displaced.
    pub(crate) const fn displaced_are_forgotten(&mut self) {
        self.displaced = 0;
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.current.retain(|place, _| !place.is_of(client));
    }
}
