//! Leases: who may keep a copy of what this cell would answer (design 6; Hare 3.6, uFS).
//!
//! A word lease is revoked by storing 0 into the holder's word: the store is the delivery, nobody is
//! waited for. An acknowledged lease is held for a cache that cannot read words (the kernel's, behind
//! a FUSE front): it is *recalled*, and whoever wants to change the object waits until the holder has
//! acknowledged.
//!
//! Recalls go to their holder on two lanes. Dropping pages waits until the holder's own reads and writes
//! of them are answered, and these may wait for what is recalled on the other lane: names and
//! attributes are never behind pages. A write does not wait for others' pages while its own client's
//! are being recalled.
//!
//! A successor does not know who holds acknowledged leases. It takes every acknowledging client to hold
//! everything, and recalls that from the start on.
//!
//! Invariants: a stamp is never used twice, by no epoch of the cell; a key that is being recalled is
//! granted to nobody; a recall has a number that no predecessor gave to one.

use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use warren_base::limits::LEASE_WORDS;
use warren_base::{ClientId, Epoch, FixedState, Ino, siphash_2_4};
use warren_proto::{Lease, LeaseKey};

use crate::{Memory, Plant, Recovery};

#[derive(Debug)]
struct Holder {
    client: ClientId,
    key: LeaseKey,
    stamp: u64,
}

/// On which way a recall goes to its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Of names and attributes.
    Other,
    Pages,
}

impl Lane {
    pub(crate) const ALL: [Self; 2] = [Self::Other, Self::Pages];
}

/// What is on its way to one acknowledging holder, on one lane.
#[derive(Debug, Default)]
struct Recalls {
    /// Not yet sent.
    queued: BTreeSet<LeaseKey>,
    /// Sent with this number, not yet acknowledged.
    sent: Option<(u64, BTreeSet<LeaseKey>)>,
}

impl Recalls {
    fn is_sent(&self, key: &LeaseKey) -> bool {
        self.sent.as_ref().is_some_and(|(_, keys)| keys.contains(key))
    }

    fn names(&self, key: &LeaseKey) -> bool {
        self.is_sent(key) || self.queued.contains(key)
    }

    /// The same for a key or everything of its kind.
    fn covers(&self, key: &LeaseKey) -> bool {
        self.names(key) || self.names(&LeaseKey::Everything { pages: key.is_of_pages() })
    }
}

/// The lanes to one holder.
#[derive(Debug, Default)]
struct Lanes {
    lanes: [Recalls; 2],
    /// It has listened for pages; one that never does is told of them on the other lane.
    has_pages: bool,
}

impl Lanes {
    fn of_key(&mut self, key: &LeaseKey) -> &mut Recalls {
        // Everything waits until the client listens there: its reads and writes may be what it waits for.
        let is_all = matches!(key, LeaseKey::Everything { .. });
        let of_pages = key.is_of_pages() && (self.has_pages || is_all);
        self.get(if of_pages { Lane::Pages } else { Lane::Other })
    }

    fn get(&mut self, lane: Lane) -> &mut Recalls {
        &mut self.lanes[lane as usize]
    }

    fn covers(&self, key: &LeaseKey) -> bool {
        self.lanes.iter().any(|recalls| recalls.covers(key))
    }
}

#[derive(Debug)]
pub(crate) struct Leases {
    words: HashMap<u32, Vec<Holder>, FixedState>,
    acknowledged: HashMap<LeaseKey, Vec<ClientId>, FixedState>,
    recalls: BTreeMap<ClientId, Lanes>,
    /// Those of a predecessor's clients that may hold anything, by kind: names and attributes, pages.
    unknown: [BTreeSet<ClientId>; 2],
    is_successor: bool,
    next_recall: u64,
    /// Pages are being recalled that were not when this was last asked.
    new_pages: bool,
    next_stamp: u64,
    plant: Option<Plant>,
}

/// Objects with acknowledged leases: about 40 MiB of a cell's memory. Beyond, caches ask each time.
const ACKNOWLEDGED_MAX: usize = 1 << 18;
/// Half of the key under which the seed of that map is made; the other is the pool's secret. Its keys are
/// names that strangers choose.
const HOLDERS_KEY: u64 = u64::from_le_bytes(*b"WarrHold");

/// Holders see this one, so it has no seed that it could give away. Names that were chosen to meet in a
/// word cost who chose them their own leases: a client has one on a word.
fn word_of(key: &LeaseKey) -> u32 {
    let hash = FixedState::default().hash_one(key);
    (hash % LEASE_WORDS as u64) as u32
}

impl Leases {
    pub(crate) fn new(epoch: Epoch, secret: u64, recovery: Recovery, plant: Option<Plant>) -> Self {
        let seed = siphash_2_4([secret, HOLDERS_KEY], &epoch.0.to_le_bytes());
        Self {
            words: HashMap::default(),
            acknowledged: HashMap::with_hasher(FixedState::seeded(seed)),
            recalls: BTreeMap::new(),
            unknown: Default::default(),
            is_successor: recovery == Recovery::Process,
            next_recall: u64::from(epoch.0) << 40,
            new_pages: false,
            next_stamp: (u64::from(epoch.0) << 40) + 1,
            plant,
        }
    }

    /// A client whose leases are acknowledged is here. If it was a predecessor's it may hold anything.
    pub(crate) fn admit(&mut self, client: ClientId) {
        if !self.is_successor {
            return;
        }
        let lanes = self.recalls.entry(client).or_default();
        for (pages, unknown) in [false, true].into_iter().zip(&mut self.unknown) {
            unknown.insert(client);
            let everything = LeaseKey::Everything { pages };
            lanes.of_key(&everything).queued.insert(everything);
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
        self.next_stamp += u64::from(self.plant != Some(Plant::ReuseStamp));
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
        if self.is_recalling(&key, client) && self.plant != Some(Plant::GrantDuringRecall) {
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
        if let Some(lanes) = self.recalls.get_mut(&client)
            && lanes.lanes.iter().any(|recalls| recalls.is_sent(&key))
        {
            lanes.of_key(&key).queued.insert(key.clone());
        }
        let holders = self.acknowledged.entry(key).or_default();
        if !holders.contains(&client) {
            holders.push(client);
        }
    }

    /// Whether `client` is being told to drop what `key` guards. Of pages it may be unable to until its
    /// own writes of them are answered.
    pub(crate) fn is_recalled_from(&self, key: &LeaseKey, client: ClientId) -> bool {
        if self.plant == Some(Plant::WaitForOwnRecall) {
            return false;
        }
        self.recalls.get(&client).is_some_and(|lanes| lanes.covers(key))
    }

    /// Whether the key is being recalled from anybody, or everything from `client`.
    fn is_recalling(&self, key: &LeaseKey, client: ClientId) -> bool {
        let named = |recalls: &Recalls| recalls.names(key);
        self.recalls.values().any(|lanes| lanes.lanes.iter().any(named))
            || self.recalls.get(&client).is_some_and(|lanes| lanes.covers(key))
    }

    /// Whether anybody holds an acknowledged lease on anything.
    pub(crate) fn has_acknowledged(&self) -> bool {
        !self.acknowledged.is_empty() || self.unknown.iter().any(|unknown| !unknown.is_empty())
    }

    /// Whether nobody but `except` holds an acknowledged lease on `key`; if somebody does, the recall
    /// is under way when this returns (or queued: see [`Self::take_recall`]).
    pub(crate) fn recall(&mut self, key: &LeaseKey, except: Option<ClientId>) -> bool {
        let unknown = &self.unknown[usize::from(key.is_of_pages())];
        let mut free = unknown.iter().all(|client| Some(*client) == except);
        let holders = self.acknowledged.get(key).map_or(&[][..], Vec::as_slice);
        for holder in holders.iter().filter(|holder| Some(**holder) != except) {
            free = false;
            let lanes = self.recalls.entry(*holder).or_default();
            if !lanes.lanes.iter().any(|recalls| recalls.names(key)) {
                lanes.of_key(key).queued.insert(key.clone());
                self.new_pages |= matches!(key, LeaseKey::Pages(_));
            }
        }
        free || self.plant == Some(Plant::SkipRecall)
    }

    /// Whether pages are being recalled that were not when this was last asked: a write of who holds
    /// them waits for others' no longer.
    pub(crate) fn take_new_pages(&mut self) -> bool {
        std::mem::take(&mut self.new_pages)
    }

    /// `client` listens on `lane`, and has dropped what recall `number` on it named. Returns whether that
    /// was under way.
    pub(crate) fn listens(&mut self, client: ClientId, lane: Lane, number: u64) -> bool {
        let lanes = self.recalls.entry(client).or_default();
        if lane == Lane::Pages && !std::mem::replace(&mut lanes.has_pages, true) {
            let of_pages = |key: &LeaseKey| matches!(key, LeaseKey::Pages(_));
            let mut moved: BTreeSet<_> =
                lanes.get(Lane::Other).queued.extract_if(.., of_pages).collect();
            lanes.get(Lane::Pages).queued.append(&mut moved);
        }
        let recalls = lanes.get(lane);
        let Some((_, keys)) = recalls.sent.take_if(|(sent, _)| *sent == number) else {
            return false;
        };
        let left = |key: &LeaseKey| lanes.lanes.iter().any(|recalls| recalls.names(key));
        let dropped: Vec<_> = keys.into_iter().filter(|key| !left(key)).collect();
        for key in dropped {
            match key {
                LeaseKey::Everything { pages } => {
                    self.unknown[usize::from(pages)].remove(&client);
                }
                key => self.drop_holder(&key, client),
            }
        }
        true
    }

    /// The next recall to send to `client`, which is listening on `lane`.
    pub(crate) fn take_recall(
        &mut self,
        client: ClientId,
        lane: Lane,
    ) -> Option<(u64, Vec<LeaseKey>)> {
        /// Keys of one recall: their encoding fits a reply's body.
        const BATCH: usize = 24;
        let recalls = self.recalls.get_mut(&client)?.get(lane);
        if recalls.sent.is_some() || recalls.queued.is_empty() {
            return None;
        }
        let keys: BTreeSet<_> = recalls.queued.iter().take(BATCH).cloned().collect();
        recalls.queued.retain(|key| !keys.contains(key));
        self.next_recall += 1;
        recalls.sent = Some((self.next_recall, keys.clone()));
        Some((self.next_recall, keys.into_iter().collect()))
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
        for unknown in &mut self.unknown {
            unknown.remove(&client);
        }
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
                let named = |recalls: &Recalls| recalls.names(&key);
                if !self.recalls.values().any(|lanes| lanes.lanes.iter().any(named)) {
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
        let mut leases = Leases::new(Epoch(1), 7, Recovery::None, None);
        assert!(leases.hold(KEY, A));
        assert!(leases.recall(&KEY, Some(A)));
        assert!(!leases.recall(&KEY, Some(B)));
        let (number, keys) = leases.take_recall(A, Lane::Other).unwrap();
        assert_eq!(keys, [KEY]);
        assert!(!leases.hold(KEY, B), "no grant while it is recalled");
        assert!(!leases.listens(A, Lane::Other, number + 1));
        assert!(leases.listens(A, Lane::Other, number));
        assert!(leases.recall(&KEY, None));
    }

    #[test]
    fn who_is_being_recalled_is_known() {
        let mut leases = Leases::new(Epoch(1), 7, Recovery::None, None);
        assert!(leases.hold(KEY, A) && leases.hold(KEY, B));
        assert!(!leases.recall(&KEY, Some(A)));
        assert!(leases.is_recalled_from(&KEY, B) && !leases.is_recalled_from(&KEY, A));
        leases.take_recall(B, Lane::Other).unwrap();
        assert!(leases.is_recalled_from(&KEY, B), "until it has acknowledged");
    }

    #[test]
    fn what_was_read_during_a_recall_is_recalled_again() {
        let mut leases = Leases::new(Epoch(1), 7, Recovery::None, None);
        assert!(leases.hold(KEY, A));
        assert!(!leases.recall(&KEY, None));
        let (number, _) = leases.take_recall(A, Lane::Other).unwrap();
        leases.hold_again(KEY, A);
        assert!(leases.listens(A, Lane::Other, number));
        assert!(!leases.recall(&KEY, None));
        let (number, _) = leases.take_recall(A, Lane::Other).unwrap();
        assert!(leases.listens(A, Lane::Other, number));
        assert!(leases.recall(&KEY, None));
    }

    #[test]
    fn attributes_are_not_behind_pages() {
        let mut leases = Leases::new(Epoch(1), 7, Recovery::None, None);
        let pages = LeaseKey::Pages(Ino::ROOT);
        assert!(leases.hold(KEY, A) && leases.hold(pages.clone(), A));
        assert!(!leases.recall(&pages, None) && leases.take_new_pages());
        assert!(!leases.listens(A, Lane::Pages, 0), "it had listened on the other lane only");
        let (number, keys) = leases.take_recall(A, Lane::Pages).unwrap();
        assert_eq!(keys, std::slice::from_ref(&pages));
        assert!(!leases.recall(&KEY, None) && !leases.take_new_pages());
        let (other, keys) = leases.take_recall(A, Lane::Other).unwrap();
        assert_eq!(keys, [KEY]);
        assert!(leases.listens(A, Lane::Other, other) && leases.recall(&KEY, None));
        assert!(!leases.recall(&pages, None), "the pages are not dropped yet");
        assert!(leases.listens(A, Lane::Pages, number) && leases.recall(&pages, None));
    }
}
