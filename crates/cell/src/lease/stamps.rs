//! Which lease each word of each client has, whatever shard has granted it.
//!
//! A client's words are used from the first on, so that few leases lie in few cache lines and
//! pages. When all words are in use, a new lease displaces another of the same client: the first
//! one, in the order of the words, that was not granted again for a round (the clock algorithm; a
//! cell does not see when a client uses a copy). The shard that had granted the displaced lease
//! notices it when it asks here for that lease, and is asked to forget such leases when there are
//! many.
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

/// A word that was granted, and the number of the grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WordLease {
    word: u32,
    grant: Grant,
}

#[derive(Clone, Copy, Debug)]
struct Word {
    /// `None` if the last lease was revoked. Then the word is free.
    grant: Option<Grant>,
    /// The lease was granted again since the clock's hand passed.
    used: bool,
}

/// The words of one client.
#[derive(Debug)]
struct ClientWords {
    /// The size of its table.
    max: usize,
    /// The words that were ever used.
    words: Vec<Word>,
    free: Vec<u32>,
    hand: usize,
}

impl ClientWords {
    fn new(max: usize) -> Self {
        Self { max, words: Vec::new(), free: Vec::new(), hand: 0 }
    }

    /// A word without a lease, or the one whose lease is displaced.
    fn take(&mut self) -> u32 {
        if let Some(word) = self.free.pop() {
            return word;
        }
        if self.words.len() < self.max {
            self.words.push(Word { grant: None, used: false });
            return self.words.len() as u32 - 1;
        }
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.words.len();
            if !std::mem::take(&mut self.words[at].used) {
                return at as u32;
            }
        }
    }

    fn find(&self, WordLease { word, grant }: WordLease) -> Option<&Word> {
        self.words.get(word as usize).filter(|it| it.grant == Some(grant))
    }
}

#[derive(Debug)]
pub(crate) struct Stamps {
    clients: HashMap<ClientId, ClientWords, FixedState>,
    next: u64,
    /// An upper bound of the displaced leases that their shards have not forgotten.
    displaced: usize,
    plant: Planted,
}

impl Stamps {
    pub(crate) fn new(epoch: Epoch, plant: Planted) -> Self {
        let next = (u64::from(epoch.0) << EPOCH_SHIFT) + 1;
        Self { clients: HashMap::default(), next, displaced: 0, plant }
    }

    /// The client has a table of so many words, and no lease of this process.
    pub(crate) fn admit(&mut self, client: ClientId, words: usize) {
        assert!((1..=LEASE_WORDS).contains(&words), "{words} lease words");
        self.clients.insert(client, ClientWords::new(words));
    }

    /// The number of words that the client has.
    pub(crate) fn words_of(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |words| words.max)
    }

    /// Whether the client still has this lease.
    pub(crate) fn has(&self, client: ClientId, lease: WordLease) -> bool {
        self.clients.get(&client).is_some_and(|words| words.find(lease).is_some())
    }

    /// As [`Self::has`], for a lease that is granted again.
    pub(crate) fn grants_again(&mut self, client: ClientId, lease: WordLease) -> bool {
        let Some(words) = self.clients.get_mut(&client) else { return false };
        let has = words.find(lease).is_some();
        if has {
            words.words[lease.word as usize].used = true;
        }
        has
    }

    /// Gives a word a new lease.
    pub(crate) fn grant(&mut self, client: ClientId, memory: &mut dyn Memory) -> WordLease {
        let grant = Grant(self.next);
        self.next += 1;
        let Some(words) = self.clients.get_mut(&client) else {
            // The client is gone, and a request of it ends now.
            self.displaced += 1;
            return WordLease { word: 0, grant };
        };
        let word = words.take();
        let old = words.words[word as usize].grant.replace(grant);
        self.displaced += usize::from(old.is_some());
        let lease = WordLease { word, grant };
        memory.store_word(client, word, self.lease(lease).stamp);
        lease
    }

    /// The lease as the client sees it.
    pub(crate) fn lease(&self, WordLease { word, grant: Grant(number) }: WordLease) -> Lease {
        let first = (number >> EPOCH_SHIFT << EPOCH_SHIFT) + 1;
        let stamp = if self.plant == Some(Plant::ReuseStamp) { first } else { number };
        Lease { word, stamp }
    }

    /// Revokes the lease, unless another has displaced it.
    pub(crate) fn revoke(&mut self, client: ClientId, lease: WordLease, memory: &mut dyn Memory) {
        let Some(words) = self.clients.get_mut(&client) else { return };
        if words.find(lease).is_some() {
            words.words[lease.word as usize].grant = None;
            words.free.push(lease.word);
            memory.store_word(client, lease.word, 0);
        }
    }

    /// Whether so many leases were displaced that the shards must forget them. Otherwise each shard
    /// could have as many of a client as there are words.
    pub(crate) fn are_many_displaced(&self) -> bool {
        let words = || self.clients.values().map(|client| client.words.len()).sum();
        self.displaced >= LEASE_WORDS && self.displaced >= words()
    }

    /// Every shard has forgotten the leases that were displaced.
    pub(crate) const fn forget_displaced(&mut self) {
        self.displaced = 0;
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }
}
