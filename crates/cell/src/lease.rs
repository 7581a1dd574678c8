//! Leases: who may keep a copy of what this cell would answer (design 6; Hare 3.6, uFS).
//!
//! A word lease is revoked by storing 0 into the holder's word: the store is the delivery, nobody is
//! waited for. An acknowledged lease is held for a cache that cannot read words (the kernel's, behind
//! a FUSE front): it is *recalled*, and whoever wants to change the object waits until the holder has
//! acknowledged.
//!
//! Invariants: a stamp is never used twice, by no epoch of the cell; a key that is being recalled is
//! granted to nobody.

use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use warren_base::limits::LEASE_WORDS;
use warren_base::{ClientId, Epoch, FixedState, Ino};
use warren_proto::{Lease, LeaseKey};

use crate::Memory;

#[derive(Debug)]
struct Holder {
    client: ClientId,
    key: LeaseKey,
    stamp: u64,
}

/// What is on its way to one acknowledging holder.
#[derive(Debug, Default)]
struct Recalls {
    /// Not yet sent.
    queued: BTreeSet<LeaseKey>,
    /// Sent with this number, not yet acknowledged.
    sent: Option<(u64, BTreeSet<LeaseKey>)>,
    next: u64,
}

impl Recalls {
    fn names(&self, key: &LeaseKey) -> bool {
        let sent = self.sent.as_ref().is_some_and(|(_, keys)| keys.contains(key));
        sent || self.queued.contains(key)
    }
}

#[derive(Debug)]
pub(crate) struct Leases {
    words: HashMap<u32, Vec<Holder>, FixedState>,
    acknowledged: HashMap<LeaseKey, Vec<ClientId>, FixedState>,
    recalls: BTreeMap<ClientId, Recalls>,
    next_stamp: u64,
    /// [`crate::Plant::ReuseStamp`].
    reuse_stamps: bool,
}

/// Objects with acknowledged leases: about 40 MiB of a cell's memory. Beyond, caches ask each time.
const ACKNOWLEDGED_MAX: usize = 1 << 18;

fn word_of(key: &LeaseKey) -> u32 {
    let hash = FixedState.hash_one(key);
    (hash % LEASE_WORDS as u64) as u32
}

impl Leases {
    pub(crate) fn new(epoch: Epoch, reuse_stamps: bool) -> Self {
        Self {
            words: HashMap::default(),
            acknowledged: HashMap::default(),
            recalls: BTreeMap::new(),
            next_stamp: (u64::from(epoch.0) << 40) + 1,
            reuse_stamps,
        }
    }

    /// Grants a word lease. A client that holds it already gets the same word and stamp again.
    pub(crate) fn grant(
        &mut self,
        key: LeaseKey,
        client: ClientId,
        memory: &mut impl Memory,
    ) -> Lease {
        let word = word_of(&key);
        let holders = self.words.entry(word).or_default();
        if let Some(held) = holders.iter().find(|h| h.client == client && h.key == key) {
            return Lease { word, stamp: held.stamp };
        }
        holders.retain(|holder| holder.client != client);
        let stamp = self.next_stamp;
        self.next_stamp += u64::from(!self.reuse_stamps);
        holders.push(Holder { client, key, stamp });
        memory.store_word(client, word, stamp);
        Lease { word, stamp }
    }

    /// Revokes all word leases on `key`.
    pub(crate) fn revoke(&mut self, key: &LeaseKey, memory: &mut impl Memory) {
        if self.words.is_empty() {
            return;
        }
        let word = word_of(key);
        let Some(holders) = self.words.get_mut(&word) else { return };
        holders.retain(|holder| {
            let revoked = holder.key == *key;
            if revoked {
                memory.store_word(holder.client, word, 0);
            }
            !revoked
        });
        if holders.is_empty() {
            self.words.remove(&word);
        }
    }

    /// Revokes the word leases on all names of a directory: who may search it has changed, and a copy of
    /// a name says that its holder may. (A front's kernel checks that itself, each time.) Rare enough to
    /// look at every word.
    pub(crate) fn revoke_names(&mut self, dir: Ino, memory: &mut impl Memory) {
        self.words.retain(|word, holders| {
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

    /// Grants an acknowledged lease, unless the key is being recalled from somebody or there are too
    /// many.
    pub(crate) fn hold(&mut self, key: LeaseKey, client: ClientId) -> bool {
        if self.is_recalling(&key) {
            return false;
        }
        if self.acknowledged.len() >= ACKNOWLEDGED_MAX && !self.acknowledged.contains_key(&key) {
            return false;
        }
        let holders = self.acknowledged.entry(key).or_default();
        if !holders.contains(&client) {
            holders.push(client);
        }
        true
    }

    /// Notes that a client's cache holds the object whether or not a recall is under way: after that
    /// recall there has to be another.
    pub(crate) fn hold_again(&mut self, key: LeaseKey, client: ClientId) {
        if let Some(recalls) = self.recalls.get_mut(&client)
            && recalls.sent.as_ref().is_some_and(|(_, keys)| keys.contains(&key))
        {
            recalls.queued.insert(key.clone());
        }
        let holders = self.acknowledged.entry(key).or_default();
        if !holders.contains(&client) {
            holders.push(client);
        }
    }

    /// Whether `client` is being told to drop what `key` guards. Of pages it may be unable to until its
    /// own writes of them are answered.
    pub(crate) fn is_recalled_from(&self, key: &LeaseKey, client: ClientId) -> bool {
        self.recalls.get(&client).is_some_and(|recalls| recalls.names(key))
    }

    fn is_recalling(&self, key: &LeaseKey) -> bool {
        self.recalls.values().any(|recalls| recalls.names(key))
    }

    /// Whether nobody but `except` holds an acknowledged lease on `key`; if somebody does, the recall
    /// is under way when this returns (or queued: see [`Self::take_recall`]).
    pub(crate) fn recall(&mut self, key: &LeaseKey, except: Option<ClientId>) -> bool {
        if self.acknowledged.is_empty() {
            return true;
        }
        let Some(holders) = self.acknowledged.get(key) else { return true };
        let mut free = true;
        for holder in holders.iter().filter(|holder| Some(**holder) != except) {
            free = false;
            let recalls = self.recalls.entry(*holder).or_default();
            let sent = recalls.sent.as_ref().is_some_and(|(_, keys)| keys.contains(key));
            if !sent {
                recalls.queued.insert(key.clone());
            }
        }
        free
    }

    /// The next recall to send to `client`, which is listening.
    pub(crate) fn take_recall(&mut self, client: ClientId) -> Option<(u64, Vec<LeaseKey>)> {
        /// Keys of one recall: their encoding fits a reply's body.
        const BATCH: usize = 24;
        let recalls = self.recalls.get_mut(&client)?;
        if recalls.sent.is_some() || recalls.queued.is_empty() {
            return None;
        }
        let keys: BTreeSet<_> = recalls.queued.iter().take(BATCH).cloned().collect();
        recalls.queued.retain(|key| !keys.contains(key));
        recalls.next += 1;
        recalls.sent = Some((recalls.next, keys.clone()));
        Some((recalls.next, keys.into_iter().collect()))
    }

    /// The client dropped what recall `number` named. Returns whether that was under way.
    pub(crate) fn acknowledge(&mut self, client: ClientId, number: u64) -> bool {
        let Some(recalls) = self.recalls.get_mut(&client) else { return false };
        if recalls.sent.as_ref().is_none_or(|(sent, _)| *sent != number) {
            return false;
        }
        let (_, keys) = recalls.sent.take().expect("just seen");
        let again = recalls.queued.clone();
        for key in keys.iter().filter(|key| !again.contains(key)) {
            self.drop_holder(key, client);
        }
        true
    }

    pub(crate) fn drop_holder(&mut self, key: &LeaseKey, client: ClientId) {
        if let Some(holders) = self.acknowledged.get_mut(key) {
            holders.retain(|holder| *holder != client);
            if holders.is_empty() {
                self.acknowledged.remove(key);
            }
        }
    }

    /// The client is gone with all its caches.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.recalls.remove(&client);
        self.words.retain(|_, holders| {
            holders.retain(|holder| holder.client != client);
            !holders.is_empty()
        });
        self.acknowledged.retain(|_, holders| {
            holders.retain(|holder| *holder != client);
            !holders.is_empty()
        });
    }

    /// The inode is gone for good: nothing about it can change any more.
    pub(crate) fn forget_inode(&mut self, ino: Ino) {
        if !self.acknowledged.is_empty() {
            for key in [LeaseKey::Attr(ino), LeaseKey::Pages(ino)] {
                if !self.is_recalling(&key) {
                    self.acknowledged.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LeaseKey = LeaseKey::Attr(Ino::ROOT);
    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    #[test]
    fn a_recall_is_over_when_it_was_acknowledged() {
        let mut leases = Leases::new(Epoch(1), false);
        assert!(leases.hold(KEY, A));
        assert!(leases.recall(&KEY, Some(A)));
        assert!(!leases.recall(&KEY, Some(B)));
        let (number, keys) = leases.take_recall(A).unwrap();
        assert_eq!(keys, [KEY]);
        assert!(!leases.hold(KEY, B), "no grant while it is recalled");
        assert!(!leases.acknowledge(A, number + 1));
        assert!(leases.acknowledge(A, number));
        assert!(leases.recall(&KEY, None));
    }

    #[test]
    fn who_is_being_recalled_is_known() {
        let mut leases = Leases::new(Epoch(1), false);
        assert!(leases.hold(KEY, A) && leases.hold(KEY, B));
        assert!(!leases.recall(&KEY, Some(A)));
        assert!(leases.is_recalled_from(&KEY, B) && !leases.is_recalled_from(&KEY, A));
        leases.take_recall(B).unwrap();
        assert!(leases.is_recalled_from(&KEY, B), "until it has acknowledged");
    }

    #[test]
    fn what_was_read_during_a_recall_is_recalled_again() {
        let mut leases = Leases::new(Epoch(1), false);
        assert!(leases.hold(KEY, A));
        assert!(!leases.recall(&KEY, None));
        let (number, _) = leases.take_recall(A).unwrap();
        leases.hold_again(KEY, A);
        assert!(leases.acknowledge(A, number));
        assert!(!leases.recall(&KEY, None));
        let (number, _) = leases.take_recall(A).unwrap();
        assert!(leases.acknowledge(A, number));
        assert!(leases.recall(&KEY, None));
    }
}
