use std::ops::Range;

use warren_base::ShardId;
use warren_base::limits::LEASE_WORDS;
use warren_proto::FileName;

use super::*;
use crate::event::{FrameNo, Memory, SlotRef};
use crate::lease::objects::OBJECTS_MAX;
use crate::lease::recalls::{RecallClass, RecallEffect};
use crate::plant::Planted;

const KEY: LeaseKey = LeaseKey::Attr(Ino::ROOT);
const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);

/// The leases of one shard, with what it shares with others.
struct Leases {
    shard: ShardLeases,
    clients: ClientLeases,
}

impl Leases {
    fn new(epoch: u32) -> Self {
        let shard = ShardLeases::new(Epoch(epoch), 7);
        let mut clients = ClientLeases::new(Epoch(epoch), Planted::NONE);
        for client in [A, B] {
            clients.stamps.admit(client, LEASE_WORDS);
        }
        Self { shard, clients }
    }

    fn hold(&mut self, key: LeaseKey, client: ClientId) -> bool {
        self.shard.hold(key.into(), client, &mut self.clients)
    }

    fn hold_again(&mut self, key: LeaseKey, client: ClientId) {
        self.shard.hold_again(key.into(), client, &mut self.clients);
    }

    fn recall(&mut self, key: &LeaseKey, except: Option<ClientId>) -> bool {
        self.shard.recall(key, (except, true), RecallEffect::None, &mut self.clients)
    }

    fn recall_rights(&mut self) -> bool {
        self.shard.recall(&KEY, (None, true), RecallEffect::Rights, &mut self.clients)
    }

    /// The next recall of names and attributes to the client: its number and objects.
    fn take(&mut self, client: ClientId) -> Option<(u64, Vec<LeaseKey>)> {
        self.take_of(client, RecallClass::Other)
    }

    fn take_pages(&mut self, client: ClientId) -> Option<(u64, Vec<LeaseKey>)> {
        self.take_of(client, RecallClass::Pages)
    }

    fn take_of(&mut self, client: ClientId, class: RecallClass) -> Option<(u64, Vec<LeaseKey>)> {
        let sent = self.clients.recalls.take(client, class)?;
        Some((sent.number, sent.keys.into_iter().collect()))
    }

    fn overtakes(&mut self, ino: Ino, client: ClientId) -> bool {
        self.shard.overtakes(ino, client, &self.clients)
    }

    /// The client acknowledges a recall, and the shard is told what it has dropped.
    fn listens(&mut self, client: ClientId, class: RecallClass, number: u64) -> bool {
        let Some(dropped) = self.clients.listens(client, class, number) else { return false };
        for key in dropped {
            self.shard.dropped(&key, client, &mut self.clients);
        }
        true
    }

    fn forget_client(&mut self, client: ClientId) {
        self.shard.forget_client(client, &mut self.clients);
        self.clients.forget_client(client);
    }
}

/// The stores into lease words.
#[derive(Default)]
struct Stores(Vec<(ClientId, u32, u64)>);

impl Stores {
    fn take(&mut self) -> Vec<(ClientId, u32, u64)> {
        std::mem::take(&mut self.0)
    }
}

impl Memory for Stores {
    fn frame(&self, _: FrameNo) -> &[u8; warren_base::limits::BLOCK_SIZE] {
        panic!("leases have no frames")
    }

    fn frame_mut(&mut self, _: FrameNo) -> &mut [u8; warren_base::limits::BLOCK_SIZE] {
        panic!("leases have no frames")
    }

    fn payload_to_frame(&mut self, _: SlotRef, _: usize, _: FrameNo, _: Range<usize>) {}
    fn frame_to_payload(&mut self, _: FrameNo, _: Range<usize>, _: SlotRef, _: usize) {}
    fn read_payload(&mut self, _: SlotRef, _: &mut [u8]) {}
    fn write_payload(&mut self, _: SlotRef, _: &[u8]) {}
    fn zero_payload(&mut self, _: SlotRef, _: usize, _: usize) {}

    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64) {
        self.0.push((client, word, stamp));
    }
}

/// The attributes of an inode of another shard than [`KEY`].
fn other(sequence: u64) -> LeaseKey {
    LeaseKey::Attr(Ino::new(ShardId(1), sequence))
}

/// Another shard, which grants client A leases on all of its words but so many.
fn fill_words(clients: &mut ClientLeases, stores: &mut Stores, but: usize) -> ShardLeases {
    let mut shard = ShardLeases::new(Epoch(1), 7);
    for sequence in 1..=(LEASE_WORDS - but) as u64 {
        shard.words.grant(other(sequence), A, &mut clients.stamps, stores);
    }
    stores.take();
    shard
}

#[test]
fn a_recall_is_over_when_it_was_acknowledged() {
    let mut leases = Leases::new(1);
    assert!(leases.hold(KEY, A));
    assert!(leases.recall(&KEY, Some(A)));
    assert!(!leases.recall(&KEY, Some(B)));
    let (number, keys) = leases.take(A).unwrap();
    assert_eq!(keys, [KEY]);
    assert!(!leases.hold(KEY, B), "no grant while it is recalled");
    assert!(!leases.listens(A, RecallClass::Other, number + 1));
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(leases.recall(&KEY, None));
}

#[test]
fn the_client_of_a_recall_is_known() {
    let mut leases = Leases::new(1);
    assert!(leases.hold(KEY, A) && leases.hold(KEY, B));
    assert!(!leases.recall(&KEY, Some(A)));
    assert!(leases.clients.recalls.is_from(&KEY, B) && !leases.clients.recalls.is_from(&KEY, A));
    leases.take(B).unwrap();
    assert!(leases.clients.recalls.is_from(&KEY, B), "until it has acknowledged");
}

#[test]
fn what_was_read_during_a_recall_is_recalled_again() {
    let mut leases = Leases::new(1);
    assert!(leases.hold(KEY, A));
    assert!(!leases.recall(&KEY, None));
    let (number, _) = leases.take(A).unwrap();
    leases.hold_again(KEY, A);
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(!leases.recall(&KEY, None));
    let (number, _) = leases.take(A).unwrap();
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(leases.recall(&KEY, None));
}

#[test]
fn what_a_predecessor_may_have_granted_is_recalled_once() {
    let mut leases = Leases::new(2);
    leases.clients.inherited.insert(A);
    assert!(leases.clients.has_acknowledged());
    assert!(leases.recall(&KEY, Some(A)), "what a client itself changes is not recalled from it");
    assert!(!leases.recall(&KEY, Some(B)));
    let (number, keys) = leases.take(A).unwrap();
    assert_eq!(keys, [KEY]);
    assert!(!leases.listens(A, RecallClass::Other, 1), "a predecessor's number");
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(leases.recall(&KEY, Some(B)));
    assert!(!leases.recall(&LeaseKey::Attr(Ino(9)), Some(B)), "of another object");
    assert!(leases.hold(KEY, A) && !leases.recall(&KEY, Some(B)), "granted anew");
}

#[test]
fn pages_of_a_predecessor_do_not_hold_up_attributes() {
    let mut leases = Leases::new(2);
    leases.clients.inherited.insert(A);
    assert!(!leases.recall(&LeaseKey::Pages(Ino::ROOT), None) && !leases.recall(&KEY, None));
    assert!(!leases.listens(A, RecallClass::Other, 0));
    assert_eq!(leases.take(A).unwrap().1, [KEY]);
    assert!(leases.take(A).is_none(), "not before it listens for pages");
}

#[test]
fn names_of_a_predecessor_are_dropped_one_by_one() {
    let name = |name: &[u8]| LeaseKey::Name(Ino::ROOT, FileName::new(name).unwrap());
    let mut leases = Leases::new(2);
    leases.clients.inherited.insert(A);
    assert!(!leases.recall(&name(b"a"), None));
    let (number, _) = leases.take(A).unwrap();
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(leases.recall(&name(b"a"), None) && !leases.recall(&name(b"b"), None));
    leases.forget_client(A);
    assert!(leases.recall(&name(b"b"), None));
}

#[test]
fn attributes_are_not_behind_pages() {
    let mut leases = Leases::new(1);
    let pages = LeaseKey::Pages(Ino::ROOT);
    assert!(leases.hold(KEY, A) && leases.hold(pages.clone(), A));
    assert!(!leases.recall(&pages, None));
    assert!(leases.take(A).is_none(), "not before it listens for pages");
    let (number, keys) = leases.take_pages(A).unwrap();
    assert_eq!(keys, std::slice::from_ref(&pages));
    leases.hold_again(pages.clone(), A);
    assert!(!leases.recall(&KEY, None));
    let (other, keys) = leases.take(A).unwrap();
    assert_eq!(keys, [KEY], "seed 54000007573");
    assert!(leases.listens(A, RecallClass::Other, other) && leases.recall(&KEY, None));
    assert!(!leases.recall(&pages, None), "the pages are not dropped yet");
    assert!(leases.listens(A, RecallClass::Pages, number) && !leases.recall(&pages, None));
    let (number, _) = leases.take_pages(A).unwrap();
    assert!(leases.listens(A, RecallClass::Pages, number) && leases.recall(&pages, None));
}

#[test]
fn what_was_overtaken_is_settled_by_the_last_acknowledgement() {
    let mut leases = Leases::new(1);
    let (ino, pages) = (Ino::ROOT, LeaseKey::Pages(Ino::ROOT));
    assert!(leases.hold(pages.clone(), A) && leases.hold(pages.clone(), B));
    assert!(!leases.overtakes(ino, A), "its own are not recalled");
    assert!(!leases.recall(&pages, Some(B)) && !leases.recall(&pages, Some(A)));
    assert!(!leases.overtakes(ino, A), "no task waits for them");
    assert!(
        leases.clients.recalls.await_pages(ino, Some(B))
            && !leases.clients.recalls.await_pages(ino, Some(B))
    );
    assert!(leases.overtakes(ino, A) && leases.shard.has_overtaken(ino, A));
    leases.listens(B, RecallClass::Pages, 0);
    let (number, _) = leases.take_pages(B).unwrap();
    leases.hold_again(pages.clone(), B);
    leases.listens(B, RecallClass::Pages, number);
    assert!(leases.shard.has_overtaken(ino, A), "it has read during the recall");
    let (number, _) = leases.take_pages(B).unwrap();
    leases.listens(B, RecallClass::Pages, number);
    assert!(!leases.shard.has_overtaken(ino, A));
}

#[test]
fn what_a_predecessor_let_overtake_is_recalled_by_a_lock() {
    let mut leases = Leases::new(2);
    let pages = LeaseKey::Pages(Ino::ROOT);
    leases.clients.inherited.insert(A);
    assert!(leases.clients.recall_inherited(&pages, |client| client == B));
    assert!(!leases.clients.recall_inherited(&pages, |client| client == A));
    let (number, _) = leases.take_pages(A).unwrap();
    leases.listens(A, RecallClass::Pages, number);
    assert!(leases.clients.recall_inherited(&pages, |client| client == A));
}

#[test]
fn a_lease_is_granted_once_and_revoked_by_a_store() {
    let (mut leases, mut stores) = (Leases::new(1), Stores::default());
    let Leases { shard, clients } = &mut leases;
    let first = shard.words.grant(KEY, A, &mut clients.stamps, &mut stores);
    assert_eq!(stores.take(), [(A, first.word, first.stamp)]);
    assert_eq!(shard.words.grant(KEY, A, &mut clients.stamps, &mut stores), first);
    assert_eq!(stores.take(), [], "it has the lease already");
    let other = shard.words.grant(KEY, B, &mut clients.stamps, &mut stores);
    assert!(other.stamp > first.stamp);
    stores.take();
    shard.words.revoke(&KEY, &mut clients.stamps, &mut stores);
    assert_eq!(stores.take(), [(A, first.word, 0), (B, other.word, 0)]);
    shard.words.revoke(&KEY, &mut clients.stamps, &mut stores);
    assert_eq!(stores.take(), []);
    assert!(shard.words.grant(KEY, A, &mut clients.stamps, &mut stores).stamp > other.stamp);
}

#[test]
fn words_are_used_from_the_first_on_and_again() {
    let (mut leases, mut stores) = (Leases::new(1), Stores::default());
    let Leases { shard, clients } = &mut leases;
    let words: Vec<u32> = (1..=3)
        .map(|n| shard.words.grant(other(n), A, &mut clients.stamps, &mut stores).word)
        .collect();
    assert_eq!(words, [0, 1, 2]);
    shard.words.revoke(&other(2), &mut clients.stamps, &mut stores);
    assert_eq!(shard.words.grant(other(4), A, &mut clients.stamps, &mut stores).word, 1);
    assert_eq!(shard.words.grant(other(5), A, &mut clients.stamps, &mut stores).word, 3);
    assert_eq!(
        shard.words.grant(other(5), B, &mut clients.stamps, &mut stores).word,
        0,
        "each client has its own"
    );
}

#[test]
fn a_client_with_a_small_table_has_no_other_words() {
    let (mut leases, mut stores) = (Leases::new(1), Stores::default());
    let Leases { shard, clients } = &mut leases;
    clients.stamps.admit(A, 2);
    let words =
        [1, 2, 3].map(|n| shard.words.grant(other(n), A, &mut clients.stamps, &mut stores).word);
    assert_eq!(words, [0, 1, 0]);
    stores.take();
    shard.words.revoke(&other(1), &mut clients.stamps, &mut stores);
    assert_eq!(stores.take(), [], "the third has its word");
    leases.forget_client(A);
    leases.shard.words.grant(other(4), A, &mut leases.clients.stamps, &mut stores);
    assert_eq!(stores.take(), [], "it is gone");
}

#[test]
fn a_shard_clears_no_word_that_another_has_granted_since() {
    let (mut leases, mut stores) = (Leases::new(1), Stores::default());
    let Leases { shard, clients } = &mut leases;
    let lost = shard.words.grant(KEY, A, &mut clients.stamps, &mut stores);
    let of_b = shard.words.grant(KEY, B, &mut clients.stamps, &mut stores);
    let mut full = fill_words(clients, &mut stores, 1);
    let kept = full.words.grant(LeaseKey::Attr(Ino(2)), A, &mut clients.stamps, &mut stores);
    assert_eq!(lost.word, kept.word);
    stores.take();
    shard.words.revoke(&KEY, &mut clients.stamps, &mut stores);
    assert_eq!(stores.take(), [(B, of_b.word, 0)], "the word of A has the other lease");
    let again = shard.words.grant(KEY, A, &mut clients.stamps, &mut stores);
    assert_eq!(stores.take(), [(A, again.word, again.stamp)]);
    assert_eq!(shard.words.grant(KEY, A, &mut clients.stamps, &mut stores), again);
}

#[test]
fn a_lease_that_is_granted_again_is_displaced_last() {
    let (mut leases, mut stores) = (Leases::new(1), Stores::default());
    let Leases { shard, clients } = &mut leases;
    let first = shard.words.grant(KEY, A, &mut clients.stamps, &mut stores);
    let mut full = fill_words(clients, &mut stores, 1);
    assert_eq!(shard.words.grant(KEY, A, &mut clients.stamps, &mut stores), first);
    let new = full.words.grant(LeaseKey::Attr(Ino(2)), A, &mut clients.stamps, &mut stores);
    assert_ne!(new.word, first.word);
    assert_eq!(shard.words.grant(KEY, A, &mut clients.stamps, &mut stores), first);
}

#[test]
fn shards_forget_leases_when_many_were_displaced() {
    let (mut leases, mut stores) = (Leases::new(1), Stores::default());
    let Leases { shard, clients } = &mut leases;
    let mut full = fill_words(clients, &mut stores, 0);
    for sequence in 1..=LEASE_WORDS as u64 {
        assert!(!clients.stamps.are_many_displaced());
        let key = LeaseKey::Attr(Ino::new(ShardId(0), sequence));
        shard.words.grant(key, A, &mut clients.stamps, &mut stores);
    }
    assert!(clients.stamps.are_many_displaced());
    shard.words.forget_displaced(&clients.stamps);
    full.words.forget_displaced(&clients.stamps);
    clients.stamps.forget_displaced();
    assert_eq!((shard.words.len(), full.words.len()), (LEASE_WORDS, 0), "as many as are valid");
    assert!(!clients.stamps.are_many_displaced());
}

#[test]
fn all_names_of_a_directory_are_revoked() {
    let name = |dir, name: &[u8]| LeaseKey::Name(dir, FileName::new(name).unwrap());
    let (mut leases, mut stores) = (Leases::new(1), Stores::default());
    let Leases { shard, clients } = &mut leases;
    let mut words: Vec<_> = [name(Ino::ROOT, b"a"), name(Ino::ROOT, b"b")]
        .map(|key| (A, shard.words.grant(key, A, &mut clients.stamps, &mut stores).word, 0))
        .into();
    shard.words.grant(name(Ino(9), b"c"), A, &mut clients.stamps, &mut stores);
    shard.words.grant(KEY, A, &mut clients.stamps, &mut stores);
    stores.take();
    shard.words.revoke_names(Ino::ROOT, &mut clients.stamps, &mut stores);
    let mut stored = stores.take();
    words.sort_unstable();
    stored.sort_unstable();
    assert_eq!(stored, words);
}

#[test]
fn a_client_that_is_gone_has_no_words() {
    let (mut leases, mut stores) = (Leases::new(1), Stores::default());
    leases.shard.words.grant(KEY, A, &mut leases.clients.stamps, &mut stores);
    let of_b = leases.shard.words.grant(KEY, B, &mut leases.clients.stamps, &mut stores);
    leases.forget_client(A);
    stores.take();
    leases.shard.words.revoke(&KEY, &mut leases.clients.stamps, &mut stores);
    assert_eq!(stores.take(), [(B, of_b.word, 0)]);
}

#[test]
fn the_objects_of_all_shards_are_limited_together() {
    let mut leases = Leases::new(1);
    let mut another = ShardLeases::new(Epoch(1), 7);
    for sequence in 1..=OBJECTS_MAX as u64 {
        assert!(leases.hold(LeaseKey::Attr(Ino::new(ShardId(0), sequence)), A));
    }
    assert!(leases.hold(KEY, B), "of an object that has a holder");
    assert!(!another.hold(other(1).into(), A, &mut leases.clients));
    let last = LeaseKey::Attr(Ino::new(ShardId(0), OBJECTS_MAX as u64));
    leases.shard.dropped(&last, A, &mut leases.clients);
    assert!(another.hold(other(1).into(), A, &mut leases.clients));
    leases.shard.give_up(&mut leases.clients);
    another.forget_inode(Ino::ROOT, &mut leases.clients);
    assert!(leases.clients.has_acknowledged(), "an object of the other shard");
    another.forget_client(A, &mut leases.clients);
    assert!(!leases.clients.has_acknowledged());
}

#[test]
fn a_recall_that_was_sent_is_repeated_if_rights_change() {
    let mut leases = Leases::new(1);
    assert!(leases.hold(KEY, A) && !leases.recall(&KEY, None));
    let plain = leases.clients.recalls.take(A, RecallClass::Other).unwrap();
    assert_eq!(plain.effect, RecallEffect::None);
    assert!(!leases.recall_rights());
    assert!(leases.listens(A, RecallClass::Other, plain.number) && !leases.recall_rights());
    let rights = leases.clients.recalls.take(A, RecallClass::Other).unwrap();
    assert_eq!(rights.effect, RecallEffect::Rights);
    assert!(!leases.recall_rights(), "that recall is under way");
    assert!(leases.take(A).is_none());
    assert!(leases.listens(A, RecallClass::Other, rights.number) && leases.recall_rights());
    assert!(leases.hold(KEY, A) && !leases.recall(&KEY, None));
    let next = leases.clients.recalls.take(A, RecallClass::Other).unwrap();
    assert_eq!(next.effect, RecallEffect::None, "of another change");
}
