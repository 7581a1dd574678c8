//! Leases: who may keep a copy of what this cell would answer (design 6; Hare 3.6, uFS).
//!
//! A word lease is revoked by storing 0 into the holder's word: the store is the delivery, nobody is
//! waited for. An acknowledged lease is held for a cache that cannot read words (the kernel's, behind
//! a FUSE front): it is *recalled*, and whoever wants to change the object waits until the holder has
//! acknowledged.
//!
//! A write is answered when no other client has a page of the file any more, and a kernel drops a page only
//! when the request that has it locked is answered. So that no two wait for each other (decision 17):
//!
//! * Reads never wait for a recall.
//! * Where there are two fronts, files that are opened for writing are written past the kernels' caches, which
//!   locks no page. Only files that were opened before the second front came are written through one; that front
//!   waits for pages of others, and theirs wait for no write.
//! * Recalls go to their holder on two lanes: names and attributes are never behind pages. A holder that does not
//!   listen for pages yet is not told of them before it does.
//! * Write-backs of mapped pages, and truncations, which hold up write-backs, do not wait for others' pages while
//!   a task waits for their own client's. What they overtook is waited for by the next `fsync`, and by whoever
//!   gets a lock.
//!
//! A cell's successor does not know what acknowledged leases there are. It takes each client that can
//! have any for a holder of everything, until that has acknowledged a recall of the object, and so needs
//! to recall nothing ahead of time: what no other client changes stays in the holder's cache.
//!
//! Invariants: a stamp is never used twice, by no epoch of the cell, nor is a recall's number; a key that
//! is being recalled is granted to nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use hashbrown::{HashMap, HashSet};
use warren_base::limits::LEASE_WORDS;
use warren_base::{ClientId, Epoch, FixedState, Ino, siphash_2_4};
use warren_proto::{Change, Lease, LeaseKey};

use crate::{Memory, Plant, Planted};

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

    const fn of(key: &LeaseKey) -> Self {
        match key {
            LeaseKey::Pages(_) => Self::Pages,
            LeaseKey::Attr(_) | LeaseKey::Name(..) => Self::Other,
        }
    }
}

/// What is on its way to one acknowledging holder, on one lane.
#[derive(Debug, Default)]
struct Recalls {
    /// Not yet sent.
    queued: BTreeSet<LeaseKey>,
    /// Sent with this number, not yet acknowledged.
    sent: Option<(u64, BTreeSet<LeaseKey>)>,
    /// The files of whose pages a task waits for the recall.
    awaited: BTreeSet<Ino>,
    next: u64,
}

impl Recalls {
    fn is_sent(&self, key: &LeaseKey) -> bool {
        self.sent.as_ref().is_some_and(|(_, keys)| keys.contains(key))
    }

    fn names(&self, key: &LeaseKey) -> bool {
        self.is_sent(key) || self.queued.contains(key)
    }
}

/// The lanes to one holder.
#[derive(Debug, Default)]
struct Lanes {
    lanes: [Recalls; Lane::ALL.len()],
}

impl Lanes {
    fn of_key(&mut self, key: &LeaseKey) -> &mut Recalls {
        self.get(Lane::of(key))
    }

    fn get(&mut self, lane: Lane) -> &mut Recalls {
        &mut self.lanes[lane as usize]
    }

    fn names(&self, key: &LeaseKey) -> bool {
        self.lanes[Lane::of(key) as usize].names(key)
    }
}

/// What a client may hold that a predecessor has granted.
#[derive(Debug)]
struct Inherited {
    /// Holders drop all names at once.
    names: bool,
    /// The rest is everything but these.
    dropped: HashSet<LeaseKey, FixedState>,
}

impl Inherited {
    fn names(&self, key: &LeaseKey) -> bool {
        match key {
            LeaseKey::Name(..) => self.names,
            LeaseKey::Attr(_) | LeaseKey::Pages(_) => !self.dropped.contains(key),
        }
    }

    fn drop_key(&mut self, key: LeaseKey) {
        if matches!(key, LeaseKey::Name(..)) {
            self.names = false;
            return;
        }
        // What is forgotten here is recalled once more, in vain.
        if self.dropped.len() >= ACKNOWLEDGED_MAX {
            self.dropped.clear();
        }
        self.dropped.insert(key);
    }
}

#[derive(Debug)]
pub(crate) struct Leases {
    words: HashMap<u32, Vec<Holder>, FixedState>,
    acknowledged: HashMap<LeaseKey, Vec<ClientId>, FixedState>,
    inherited: BTreeMap<ClientId, Inherited>,
    recalls: BTreeMap<ClientId, Lanes>,
    /// Who changed a file while others still had pages of it, and which of these have them still.
    overtaken: BTreeMap<(Ino, ClientId), BTreeSet<ClientId>>,
    /// Numbers of recalls are greater.
    number_base: u64,
    next_stamp: u64,
    plant: Planted,
    /// Changes whose leases [`Plant::RevokeAfterCommit`] revokes with the next event, and their client.
    pub(crate) late: Vec<(Vec<Change>, Option<ClientId>)>,
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
    pub(crate) fn new(epoch: Epoch, secret: u64, plant: Planted) -> Self {
        let seed = siphash_2_4([secret, HOLDERS_KEY], &epoch.0.to_le_bytes());
        Self {
            words: HashMap::default(),
            acknowledged: HashMap::with_hasher(FixedState::seeded(seed)),
            inherited: BTreeMap::new(),
            recalls: BTreeMap::new(),
            overtaken: BTreeMap::new(),
            number_base: u64::from(epoch.0) << 32,
            next_stamp: (u64::from(epoch.0) << 40) + 1,
            plant,
            late: Vec::new(),
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
        if self.is_recalling(&key) && self.plant != Some(Plant::GrantDuringRecall) {
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
            && lanes.of_key(&key).is_sent(&key)
        {
            lanes.of_key(&key).queued.insert(key.clone());
        }
        let holders = self.acknowledged.entry(key).or_default();
        if !holders.contains(&client) {
            holders.push(client);
        }
    }

    /// Whether `client` is being told to drop what `key` guards.
    pub(crate) fn is_recalled_from(&self, key: &LeaseKey, client: ClientId) -> bool {
        self.recalls.get(&client).is_some_and(|lanes| lanes.names(key))
    }

    /// Whether a write-back or truncation of `client` goes on though others have pages of the file: its own are
    /// being recalled, a task waits for that or for what comes behind it on the lane, and its kernel cannot drop them
    /// before this is answered.
    pub(crate) fn overtakes(&mut self, ino: Ino, client: ClientId) -> bool {
        let key = LeaseKey::Pages(ino);
        let own = self.recalls.get_mut(&client).map(|lanes| lanes.get(Lane::Pages));
        let is_awaited = own.is_some_and(|own| own.names(&key) && !own.awaited.is_empty());
        if !is_awaited || self.plant == Some(Plant::WaitForOwnRecall) {
            return false;
        }
        let others = self.recalls.iter().filter(|(of, lanes)| **of != client && lanes.names(&key));
        let others: Vec<_> = others.map(|(of, _)| *of).collect();
        self.overtaken.entry((ino, client)).or_default().extend(others);
        true
    }

    /// Whether others may still have pages from before a change of `client`'s that was answered.
    pub(crate) fn has_overtaken(&self, ino: Ino, client: ClientId) -> bool {
        self.overtaken.contains_key(&(ino, client))
    }

    /// `client` has dropped its pages, of `ino` or of all files.
    fn settle(&mut self, ino: Option<Ino>, client: ClientId) {
        if self.overtaken.is_empty() {
            return;
        }
        self.overtaken.retain(|(of, _), others| {
            if ino.is_none_or(|ino| ino == *of) {
                others.remove(&client);
            }
            !others.is_empty()
        });
    }

    /// Whether a client has ever listened for recalls, or has any to hear of.
    pub(crate) fn has_listeners(&self) -> bool {
        !self.recalls.is_empty()
    }

    fn is_recalling(&self, key: &LeaseKey) -> bool {
        self.recalls.values().any(|lanes| lanes.names(key))
    }

    /// Whether anybody may hold an acknowledged lease on anything.
    pub(crate) fn has_acknowledged(&self) -> bool {
        !self.acknowledged.is_empty() || !self.inherited.is_empty()
    }

    /// A predecessor may have granted this client anything.
    pub(crate) fn inherit(&mut self, client: ClientId) {
        let inherited = Inherited { names: true, dropped: HashSet::default() };
        self.inherited.insert(client, inherited);
    }

    /// Whether nobody but `except` holds an acknowledged lease on `key`; if somebody does, the recall
    /// is under way when this returns (or queued: see [`Self::take_recall`]).
    pub(crate) fn recall(&mut self, key: &LeaseKey, except: Option<ClientId>) -> bool {
        if !self.has_acknowledged() {
            return true;
        }
        let known = self.acknowledged.get(key).into_iter().flatten();
        let inherited = self.inherited.iter().filter(|(_, inherited)| inherited.names(key));
        let mut free = true;
        for holder in known.chain(inherited.map(|(client, _)| client)) {
            if Some(*holder) == except {
                continue;
            }
            free = false;
            let lanes = self.recalls.entry(*holder).or_default();
            if !lanes.names(key) {
                lanes.of_key(key).queued.insert(key.clone());
            }
        }
        free || self.plant == Some(Plant::SkipRecall)
    }

    /// Recalls from the fronts that `from` names what a predecessor may have granted them: it may have let a change
    /// overtake the recall, and the recall may not have reached them. Returns whether there is nothing of it.
    pub(crate) fn recall_inherited(
        &mut self,
        key: &LeaseKey,
        from: impl Fn(ClientId) -> bool,
    ) -> bool {
        let mut free = true;
        for (client, inherited) in &self.inherited {
            if !from(*client) || !inherited.names(key) {
                continue;
            }
            free = false;
            let lanes = self.recalls.entry(*client).or_default();
            if !lanes.names(key) {
                lanes.of_key(key).queued.insert(key.clone());
            }
        }
        free
    }

    /// A task waits until all but `except` have dropped the pages of a file that are being recalled. Returns
    /// whether none has waited for some of that yet: then others may overtake.
    pub(crate) fn await_pages(&mut self, ino: Ino, except: Option<ClientId>) -> bool {
        let key = LeaseKey::Pages(ino);
        let mut is_new = false;
        for (_, lanes) in self.recalls.iter_mut().filter(|(client, _)| Some(**client) != except) {
            if lanes.names(&key) {
                is_new |= lanes.get(Lane::Pages).awaited.insert(ino);
            }
        }
        is_new
    }

    /// `client` listens on `lane`, and has dropped what recall `number` on it named. Returns whether that
    /// was under way.
    pub(crate) fn listens(&mut self, client: ClientId, lane: Lane, number: u64) -> bool {
        let lanes = self.recalls.entry(client).or_default();
        let recalls = lanes.get(lane);
        let Some((_, keys)) = recalls.sent.take_if(|(sent, _)| *sent == number) else {
            return false;
        };
        let dropped: Vec<_> = keys.into_iter().filter(|key| !lanes.names(key)).collect();
        for key in dropped {
            self.drop_holder(&key, client);
            if let LeaseKey::Pages(ino) = key {
                self.settle(Some(ino), client);
                self.recalls.entry(client).or_default().get(lane).awaited.remove(&ino);
            }
            if let Some(inherited) = self.inherited.get_mut(&client) {
                inherited.drop_key(key);
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
        recalls.next += 1;
        let number = self.number_base + recalls.next;
        recalls.sent = Some((number, keys.clone()));
        Some((number, keys.into_iter().collect()))
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
        self.inherited.remove(&client);
        self.recalls.remove(&client);
        self.overtaken.retain(|(_, of), _| *of != client);
        self.settle(None, client);
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
    use warren_proto::FileName;

    const KEY: LeaseKey = LeaseKey::Attr(Ino::ROOT);
    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    #[test]
    fn a_recall_is_over_when_it_was_acknowledged() {
        let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
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
        let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
        assert!(leases.hold(KEY, A) && leases.hold(KEY, B));
        assert!(!leases.recall(&KEY, Some(A)));
        assert!(leases.is_recalled_from(&KEY, B) && !leases.is_recalled_from(&KEY, A));
        leases.take_recall(B, Lane::Other).unwrap();
        assert!(leases.is_recalled_from(&KEY, B), "until it has acknowledged");
    }

    #[test]
    fn what_was_read_during_a_recall_is_recalled_again() {
        let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
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
    fn what_a_predecessor_may_have_granted_is_recalled_once() {
        let mut leases = Leases::new(Epoch(2), 7, Planted::NONE);
        leases.inherit(A);
        assert!(leases.has_acknowledged());
        assert!(
            leases.recall(&KEY, Some(A)),
            "what a client itself changes is not recalled from it"
        );
        assert!(!leases.recall(&KEY, Some(B)));
        let (number, keys) = leases.take_recall(A, Lane::Other).unwrap();
        assert_eq!(keys, [KEY]);
        assert!(!leases.listens(A, Lane::Other, 1), "a predecessor's number");
        assert!(leases.listens(A, Lane::Other, number));
        assert!(leases.recall(&KEY, Some(B)));
        assert!(!leases.recall(&LeaseKey::Attr(Ino(9)), Some(B)), "of another object");
        assert!(leases.hold(KEY, A) && !leases.recall(&KEY, Some(B)), "granted anew");
    }

    #[test]
    fn pages_of_a_predecessor_are_in_nobodys_way() {
        let mut leases = Leases::new(Epoch(2), 7, Planted::NONE);
        leases.inherit(A);
        assert!(!leases.recall(&LeaseKey::Pages(Ino::ROOT), None) && !leases.recall(&KEY, None));
        assert!(!leases.listens(A, Lane::Other, 0));
        assert_eq!(leases.take_recall(A, Lane::Other).unwrap().1, [KEY]);
        assert!(leases.take_recall(A, Lane::Other).is_none(), "not before it listens for pages");
    }

    #[test]
    fn names_of_a_predecessor_are_dropped_together() {
        let name = |name: &[u8]| LeaseKey::Name(Ino::ROOT, FileName::new(name).unwrap());
        let mut leases = Leases::new(Epoch(2), 7, Planted::NONE);
        leases.inherit(A);
        assert!(!leases.recall(&name(b"a"), None));
        let (number, _) = leases.take_recall(A, Lane::Other).unwrap();
        assert!(leases.listens(A, Lane::Other, number));
        assert!(leases.recall(&name(b"a"), None) && leases.recall(&name(b"b"), None));
        assert!(!leases.recall(&KEY, None), "attributes are not names");
        leases.forget_client(A);
        assert!(leases.recall(&KEY, None));
    }

    #[test]
    fn attributes_are_not_behind_pages() {
        let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
        let pages = LeaseKey::Pages(Ino::ROOT);
        assert!(leases.hold(KEY, A) && leases.hold(pages.clone(), A));
        assert!(!leases.recall(&pages, None));
        assert!(leases.take_recall(A, Lane::Other).is_none(), "not before it listens for pages");
        let (number, keys) = leases.take_recall(A, Lane::Pages).unwrap();
        assert_eq!(keys, std::slice::from_ref(&pages));
        leases.hold_again(pages.clone(), A);
        assert!(!leases.recall(&KEY, None));
        let (other, keys) = leases.take_recall(A, Lane::Other).unwrap();
        assert_eq!(keys, [KEY], "seed 54000007573");
        assert!(leases.listens(A, Lane::Other, other) && leases.recall(&KEY, None));
        assert!(!leases.recall(&pages, None), "the pages are not dropped yet");
        assert!(leases.listens(A, Lane::Pages, number) && !leases.recall(&pages, None));
        let (number, _) = leases.take_recall(A, Lane::Pages).unwrap();
        assert!(leases.listens(A, Lane::Pages, number) && leases.recall(&pages, None));
    }

    #[test]
    fn what_was_overtaken_is_settled_by_the_last_acknowledgement() {
        let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
        let (ino, pages) = (Ino::ROOT, LeaseKey::Pages(Ino::ROOT));
        assert!(leases.hold(pages.clone(), A) && leases.hold(pages.clone(), B));
        assert!(!leases.overtakes(ino, A), "its own are not recalled");
        assert!(!leases.recall(&pages, Some(B)) && !leases.recall(&pages, Some(A)));
        assert!(!leases.overtakes(ino, A), "nobody waits for them");
        assert!(leases.await_pages(ino, Some(B)) && !leases.await_pages(ino, Some(B)));
        assert!(leases.overtakes(ino, A) && leases.has_overtaken(ino, A));
        leases.listens(B, Lane::Pages, 0);
        let (number, _) = leases.take_recall(B, Lane::Pages).unwrap();
        leases.hold_again(pages.clone(), B);
        leases.listens(B, Lane::Pages, number);
        assert!(leases.has_overtaken(ino, A), "it has read during the recall");
        let (number, _) = leases.take_recall(B, Lane::Pages).unwrap();
        leases.listens(B, Lane::Pages, number);
        assert!(!leases.has_overtaken(ino, A));
    }

    #[test]
    fn what_a_predecessor_let_overtake_is_recalled_by_a_lock() {
        let mut leases = Leases::new(Epoch(2), 7, Planted::NONE);
        let pages = LeaseKey::Pages(Ino::ROOT);
        leases.inherit(A);
        assert!(leases.recall_inherited(&pages, |client| client == B));
        assert!(!leases.recall_inherited(&pages, |client| client == A));
        let (number, _) = leases.take_recall(A, Lane::Pages).unwrap();
        leases.listens(A, Lane::Pages, number);
        assert!(leases.recall_inherited(&pages, |client| client == A));
    }
}
