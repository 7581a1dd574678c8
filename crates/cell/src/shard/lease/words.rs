//! Word leases: a holder has a word of memory, and its copy is valid while the word has the lease's
//! stamp.
//!
//! A lease is revoked by a store of 0 into the holder's word. The store delivers the revocation, so
//! the cell waits for no acknowledgement. Keys share words by their hashes; a client has one lease
//! on a word at most. If another shard grants the next one on the word, the lease of this shard is
//! displaced ([`Stamps`]): it stays here for a while, and counts no more.

use std::hash::BuildHasher;

use hashbrown::HashMap;
use warren_base::limits::LEASE_WORDS;
use warren_base::{ClientId, FixedState, Ino};
use warren_proto::{Lease, LeaseKey};

use crate::event::Memory;
use crate::lease::stamps::{Grant, Stamps};

#[derive(Debug)]
struct Holder {
    client: ClientId,
    key: LeaseKey,
    grant: Grant,
}

/// The word leases on the objects of one shard.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// By word. A client has one at most on each.
    holders: HashMap<u32, Vec<Holder>, FixedState>,
}

/// Holders see the word, so the hash has no secret seed that it could disclose. A client that
/// chooses names which share a word loses only leases of its own, because a client has only one
/// lease on a word.
pub(super) fn word_of(key: &LeaseKey) -> u32 {
    let hash = FixedState::default().hash_one(key);
    (hash % LEASE_WORDS as u64) as u32
}

impl Words {
    /// Grants a lease. A client that holds it already gets the same word and stamp again. The stamp
    /// is stored again, because another word may have taken its place: see [`Memory::store_word`].
    pub(super) fn grant(
        &mut self,
        key: LeaseKey,
        client: ClientId,
        stamps: &mut Stamps,
        memory: &mut dyn Memory,
    ) -> Lease {
        let word = word_of(&key);
        // Usually only one client uses a word.
        let holders = self.holders.entry(word).or_insert_with(|| Vec::with_capacity(1));
        let own = holders.iter().position(|holder| holder.client == client);
        if let Some(held) = own.map(|at| &holders[at])
            && held.key == key
            && stamps.has(client, word, held.grant)
        {
            return stamps.renew(client, word, held.grant, memory);
        }
        let replaced = own.map(|at| holders.remove(at).grant);
        let grant = stamps.grant(client, word, replaced, memory);
        holders.push(Holder { client, key, grant });
        stamps.lease(word, grant)
    }

    /// Revokes all leases on `key`.
    pub(super) fn revoke(&mut self, key: &LeaseKey, stamps: &mut Stamps, memory: &mut dyn Memory) {
        if self.holders.is_empty() {
            return;
        }
        let word = word_of(key);
        let Some(holders) = self.holders.get_mut(&word) else { return };
        holders.retain(|holder| {
            let revoked = holder.key == *key;
            if revoked {
                stamps.revoke(holder.client, word, holder.grant, memory);
            }
            !revoked
        });
        if holders.is_empty() {
            self.holders.remove(&word);
        }
    }

    /// Revokes the leases on all names of a directory. This examines every word, which is
    /// acceptable because it is rare.
    pub(super) fn revoke_names(&mut self, dir: Ino, stamps: &mut Stamps, memory: &mut dyn Memory) {
        let is_name = |key: &LeaseKey| matches!(key, LeaseKey::Name(of, _) if *of == dir);
        self.revoke_all(is_name, stamps, memory);
    }

    /// Revokes the leases on the open files of all inodes, as rarely.
    pub(super) fn revoke_opens(&mut self, stamps: &mut Stamps, memory: &mut dyn Memory) {
        self.revoke_all(|key| matches!(key, LeaseKey::Opens(_)), stamps, memory);
    }

    fn revoke_all(
        &mut self,
        is_revoked: impl Fn(&LeaseKey) -> bool,
        stamps: &mut Stamps,
        memory: &mut dyn Memory,
    ) {
        self.retain(|word, holder| {
            let revoked = is_revoked(&holder.key);
            if revoked {
                stamps.revoke(holder.client, word, holder.grant, memory);
            }
            !revoked
        });
    }

    pub(super) fn forget_displaced(&mut self, stamps: &Stamps) {
        self.retain(|word, holder| stamps.has(holder.client, word, holder.grant));
    }

    pub(super) fn forget_client(&mut self, client: ClientId) {
        self.retain(|_, holder| holder.client != client);
    }

    /// How many leases there are, including those that were displaced.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.holders.values().map(Vec::len).sum()
    }

    fn retain(&mut self, mut keep: impl FnMut(u32, &Holder) -> bool) {
        self.holders.retain(|word, holders| {
            holders.retain(|holder| keep(*word, holder));
            !holders.is_empty()
        });
    }
}
