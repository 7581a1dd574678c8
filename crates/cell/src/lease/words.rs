//! Word leases: a holder has a word of memory, and its copy is valid while the word has the lease's
//! stamp.
//!
//! A lease is revoked by a store of 0 into the holder's word. The store delivers the revocation, so
//! the cell waits for no acknowledgement. Keys share words by their hashes; a client has one lease
//! on a word at most.
//!
//! Invariant: a stamp is never used twice, not even by another epoch of the cell.

use std::hash::BuildHasher;

use hashbrown::HashMap;
use warren_base::limits::LEASE_WORDS;
use warren_base::{ClientId, Epoch, FixedState, Ino};
use warren_proto::{Lease, LeaseKey};

use crate::event::Memory;
use crate::plant::{Plant, Planted};

#[derive(Debug)]
struct Holder {
    client: ClientId,
    key: LeaseKey,
    stamp: u64,
}

#[derive(Debug)]
pub(super) struct Words {
    holders: HashMap<u32, Vec<Holder>, FixedState>,
    next_stamp: u64,
    plant: Planted,
}

/// Holders see the word, so the hash has no secret seed that it could disclose. A client that
/// chooses names which share a word loses only leases of its own, because a client has only one
/// lease on a word.
fn word_of(key: &LeaseKey) -> u32 {
    let hash = FixedState::default().hash_one(key);
    (hash % LEASE_WORDS as u64) as u32
}

impl Words {
    pub(super) fn new(epoch: Epoch, plant: Planted) -> Self {
        let next_stamp = (u64::from(epoch.0) << 40) + 1;
        Self { holders: HashMap::default(), next_stamp, plant }
    }

    /// Grants a lease. A client that holds it already gets the same word and stamp again.
    pub(super) fn grant(
        &mut self,
        key: LeaseKey,
        client: ClientId,
        memory: &mut dyn Memory,
    ) -> Lease {
        let word = word_of(&key);
        // Usually only one client uses a word.
        let holders = self.holders.entry(word).or_insert_with(|| Vec::with_capacity(1));
        if let Some(held) = holders.iter().find(|h| h.client == client && h.key == key) {
            return Lease { word, stamp: held.stamp };
        }
        holders.retain(|holder| holder.client != client);
        let stamp = self.next_stamp;
        self.next_stamp += u64::from(self.plant != Some(Plant::ReuseStamp));
        holders.push(Holder { client, key, stamp });
        memory.store_word(client, word, stamp);
        Lease { word, stamp }
    }

    /// Revokes all leases on `key`.
    pub(super) fn revoke(&mut self, key: &LeaseKey, memory: &mut dyn Memory) {
        if self.holders.is_empty() {
            return;
        }
        let word = word_of(key);
        let Some(holders) = self.holders.get_mut(&word) else { return };
        holders.retain(|holder| {
            let revoked = holder.key == *key;
            if revoked {
                memory.store_word(holder.client, word, 0);
            }
            !revoked
        });
        if holders.is_empty() {
            self.holders.remove(&word);
        }
    }

    /// Revokes the leases on all names of a directory. This examines every word, which is
    /// acceptable because it is rare.
    pub(super) fn revoke_names(&mut self, dir: Ino, memory: &mut dyn Memory) {
        self.holders.retain(|word, holders| {
            holders.retain(|holder| {
                let revoked = matches!(&holder.key, LeaseKey::Name(of, _) if *of == dir);
                if revoked {
                    memory.store_word(holder.client, *word, 0);
                }
                !revoked
            });
            !holders.is_empty()
        });
    }

    pub(super) fn forget_client(&mut self, client: ClientId) {
        self.holders.retain(|_, holders| {
            holders.retain(|holder| holder.client != client);
            !holders.is_empty()
        });
    }
}
