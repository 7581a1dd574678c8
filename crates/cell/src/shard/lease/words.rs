//! Word leases: a holder has a word of memory, and its copy is valid while the word has the lease's
//! stamp.
//!
//! A lease is revoked by a store of 0 into the holder's word. The store delivers the revocation, so
//! the cell waits for no acknowledgement. If a client has a lease on each of its words, the next
//! one displaces another, which a different shard may have granted ([`Stamps`]): it stays here for
//! a while, and counts no more.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use warren_base::{ClientId, Epoch, FixedState, Ino, siphash_2_4};
use warren_proto::{Lease, LeaseKey};

use crate::event::Memory;
use crate::lease::stamps::{Stamps, WordLease};

/// Half of the key under which the seed of the map is made; the other half is the pool's secret.
/// The keys of the map are names that clients choose.
const SEED_KEY: u64 = u64::from_le_bytes(*b"WarrWord");

#[derive(Debug)]
struct Holder {
    client: ClientId,
    lease: WordLease,
}

/// The holders of leases on one object, in the order of their grants. Usually there is only one,
/// which takes no memory of its own.
#[derive(Debug)]
struct Holders {
    first: Holder,
    others: Vec<Holder>,
}

impl Holders {
    fn iter(&self) -> impl Iterator<Item = &Holder> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn find(&mut self, client: ClientId) -> Option<&mut Holder> {
        let mut holders = std::iter::once(&mut self.first).chain(&mut self.others);
        holders.find(|holder| holder.client == client)
    }

    /// Keeps the holders for which `keep` holds. Returns whether there are any.
    fn retain(&mut self, mut keep: impl FnMut(&Holder) -> bool) -> bool {
        let keeps_first = keep(&self.first);
        self.others.retain(keep);
        if keeps_first {
            return true;
        }
        let has_others = !self.others.is_empty();
        if has_others {
            self.first = self.others.remove(0);
        }
        has_others
    }
}

/// The word leases on the objects of one shard.
#[derive(Debug)]
pub(crate) struct Words {
    holders: HashMap<LeaseKey, Holders, FixedState>,
}

impl Words {
    pub(crate) fn new(epoch: Epoch, secret: u64) -> Self {
        let seed = siphash_2_4([secret, SEED_KEY], &epoch.0.to_le_bytes());
        Self { holders: HashMap::with_hasher(FixedState::seeded(seed)) }
    }

    /// Grants a lease. A client that holds it already gets the same word and stamp again.
    pub(crate) fn grant(
        &mut self,
        key: LeaseKey,
        client: ClientId,
        stamps: &mut Stamps,
        memory: &mut dyn Memory,
    ) -> Lease {
        let mut holders = match self.holders.entry(key) {
            Entry::Occupied(holders) => holders,
            Entry::Vacant(none) => {
                let lease = stamps.grant(client, memory);
                none.insert(Holders { first: Holder { client, lease }, others: Vec::new() });
                return stamps.lease(lease);
            }
        };
        let holders = holders.get_mut();
        let lease = match holders.find(client) {
            Some(held) if stamps.grants_again(client, held.lease) => held.lease,
            Some(held) => {
                held.lease = stamps.grant(client, memory);
                held.lease
            }
            None => {
                let lease = stamps.grant(client, memory);
                holders.others.push(Holder { client, lease });
                lease
            }
        };
        stamps.lease(lease)
    }

    /// Whether the client has a lease on `key`.
    pub(crate) fn holds(&self, key: &LeaseKey, client: ClientId, stamps: &Stamps) -> bool {
        let mut holders = self.holders.get(key).into_iter().flat_map(Holders::iter);
        holders.any(|holder| holder.client == client && stamps.has(client, holder.lease))
    }

    /// Revokes all leases on `key`.
    pub(crate) fn revoke(&mut self, key: &LeaseKey, stamps: &mut Stamps, memory: &mut dyn Memory) {
        if self.holders.is_empty() {
            return;
        }
        if let Some(holders) = self.holders.remove(key) {
            holders.iter().for_each(|holder| stamps.revoke(holder.client, holder.lease, memory));
        }
    }

    /// Revokes the leases on the list of a directory's names, but not that of `except`.
    pub(crate) fn revoke_listings(
        &mut self,
        dir: Ino,
        except: Option<ClientId>,
        stamps: &mut Stamps,
        memory: &mut dyn Memory,
    ) {
        if self.holders.is_empty() {
            return;
        }
        let key = LeaseKey::Names(dir);
        let Some(holders) = self.holders.get_mut(&key) else { return };
        let are_left = holders.retain(|holder| {
            let stays = Some(holder.client) == except;
            if !stays {
                stamps.revoke(holder.client, holder.lease, memory);
            }
            stays
        });
        if !are_left {
            self.holders.remove(&key);
        }
    }

    /// Revokes the leases on all names of a directory. A copy of a name also states that its holder
    /// may search the directory, and the right to do so has changed. (A front's kernel checks that
    /// itself, each time.) This examines every object, which is acceptable because it is rare.
    pub(crate) fn revoke_names(&mut self, dir: Ino, stamps: &mut Stamps, memory: &mut dyn Memory) {
        let is_name = |key: &LeaseKey| match key {
            LeaseKey::Name(of, _) | LeaseKey::Names(of) => *of == dir,
            _ => false,
        };
        self.revoke_all(is_name, stamps, memory);
    }

    /// Revokes the leases on the open files of all inodes, as rarely.
    pub(crate) fn revoke_opens(&mut self, stamps: &mut Stamps, memory: &mut dyn Memory) {
        self.revoke_all(|key| matches!(key, LeaseKey::Opens(_)), stamps, memory);
    }

    fn revoke_all(
        &mut self,
        is_revoked: impl Fn(&LeaseKey) -> bool,
        stamps: &mut Stamps,
        memory: &mut dyn Memory,
    ) {
        self.holders.retain(|key, holders| {
            let revoked = is_revoked(key);
            if revoked {
                for Holder { client, lease } in holders.iter() {
                    stamps.revoke(*client, *lease, memory);
                }
            }
            !revoked
        });
    }

    /// Forgets the leases that other shards have displaced.
    pub(crate) fn forget_displaced(&mut self, stamps: &Stamps) {
        self.retain(|holder| stamps.has(holder.client, holder.lease));
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.retain(|holder| holder.client != client);
    }

    /// The number of leases, including displaced ones.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.holders.values().map(|holders| holders.iter().count()).sum()
    }

    fn retain(&mut self, keep: impl Fn(&Holder) -> bool) {
        self.holders.retain(|_, holders| holders.retain(&keep));
    }
}
