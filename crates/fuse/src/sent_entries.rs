//! Replies with a name or an inode that the kernel may not have processed yet.
//!
//! The kernel caches what such a reply leases from the moment at which it processes the reply. A
//! recall that comes before must not be lost. While a new name is looked up, the kernel has its
//! directory locked, and notices of names wait for that. Two cases are left:
//!
//! * **The attributes of an inode that the kernel does not know**, so that no notice can name it.
//!   When the reply was sent, the notice is repeated after the directory was unlocked.
//! * **A name that the kernel knows**, and looks up again without a lock. When the reply was sent,
//!   the name is dropped, instead of only looked up again.
//!
//! In both cases a reply that was not sent yet comes without the lease.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use warren_base::Ino;
use warren_proto::FileName;

use crate::by_thread::{AGE_MAX, ByThread};
use crate::message::Header;

/// So many of the objects that were recalled last are known.
const RECALLED_MAX: usize = 1024;
/// Bits of the names that the kernel may know.
const KNOWN_BITS: usize = 1 << 20;

/// The hash of a name in its directory, or of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hash(u64);

/// A reply to a request in directory `dir`, which led to `ino`.
#[derive(Clone, Copy, Debug)]
struct SentEntry {
    ino: Ino,
    dir: Ino,
    /// A name that the kernel may have looked up without a lock, and that was leased.
    name: Option<Hash>,
}

#[derive(Debug)]
struct Sent {
    /// The last such reply to each thread.
    by_thread: ByThread<SentEntry>,
    /// The objects that were recalled last.
    recalled: VecDeque<Hash>,
    /// Until then there may be replies of a predecessor.
    predecessor: Option<Instant>,
}

/// The leases that a reply may grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leasable {
    pub name: bool,
    pub attributes: bool,
}

#[derive(Debug)]
pub(crate) struct SentEntries {
    sent: Mutex<Sent>,
    /// The number of objects that were recalled.
    recalls: AtomicU64,
    /// The names that the kernel may know, by their hashes.
    known: Box<[AtomicU64]>,
    hashes: RandomState,
}

impl SentEntries {
    /// The kernel may know any name from a predecessor.
    pub(crate) fn new(has_predecessor: bool) -> Self {
        let sent = Sent {
            by_thread: ByThread::new(),
            recalled: VecDeque::new(),
            predecessor: has_predecessor.then(|| Instant::now() + AGE_MAX),
        };
        let word = || AtomicU64::new(if has_predecessor { u64::MAX } else { 0 });
        let known = (0..KNOWN_BITS / 64).map(|_| word()).collect();
        let hashes = RandomState::new();
        Self { sent: Mutex::new(sent), recalls: AtomicU64::new(0), known, hashes }
    }

    /// For [`Self::add`], before the request is served.
    pub(crate) fn recalls(&self) -> u64 {
        self.recalls.load(Ordering::Acquire)
    }

    /// The kernel will know the name. Returns its hash if it may know it already, so that a look-up
    /// of it may take no lock.
    pub(crate) fn will_know(&self, dir: Ino, name: &FileName) -> Option<Hash> {
        let hash = self.hash_of_name(dir, name);
        let bit = hash.0 as usize % KNOWN_BITS;
        let (word, bit) = (&self.known[bit / 64], 1 << (bit % 64));
        let is_known = word.load(Ordering::Relaxed) & bit != 0
            || word.fetch_or(bit, Ordering::Relaxed) & bit != 0;
        is_known.then_some(hash)
    }

    /// The reply to a request in the directory of its header is about to be sent. `name`: it may be
    /// to a look-up without a lock, and will lease the name. What may have been recalled since the
    /// request came is not leased any more.
    pub(crate) fn add(
        &self,
        header: &Header,
        ino: Ino,
        name: Option<Hash>,
        recalls_before: u64,
    ) -> Leasable {
        let mut sent = self.lock();
        let since = self.recalls().saturating_sub(recalls_before) as usize;
        let is_recalled = |hash: Hash| {
            since > RECALLED_MAX || sent.recalled.iter().rev().take(since).any(|it| *it == hash)
        };
        let leasable = Leasable {
            name: since == 0 || !name.is_some_and(is_recalled),
            attributes: since == 0 || !is_recalled(self.hash_of_inode(ino)),
        };
        let name = name.filter(|_| leasable.name);
        sent.by_thread.insert(header, SentEntry { ino, dir: header.ino, name });
        leasable
    }

    /// The attributes of the inode are recalled, and the kernel does not know it. Returns the
    /// directories that the kernel has locked while it processes a reply with it.
    pub(crate) fn recall_unknown(&self, ino: Ino) -> Vec<Ino> {
        let sent = self.recall(self.hash_of_inode(ino));
        sent.by_thread.all().filter(|entry| entry.ino == ino).map(|entry| entry.dir).collect()
    }

    /// The name is recalled. Returns whether the kernel may still have to process a reply that
    /// leases it and for which it has nothing locked.
    pub(crate) fn recall_name(&self, dir: Ino, name: &FileName) -> bool {
        let hash = self.hash_of_name(dir, name);
        let sent = self.recall(hash);
        sent.by_thread.young().any(|it| it.name == Some(hash))
    }

    fn recall(&self, hash: Hash) -> MutexGuard<'_, Sent> {
        let mut sent = self.lock();
        sent.recalled.push_back(hash);
        if sent.recalled.len() > RECALLED_MAX {
            sent.recalled.pop_front();
        }
        self.recalls.fetch_add(1, Ordering::Release);
        sent
    }

    /// Whether there may be replies of a predecessor, which are not known here. False from the
    /// second call on: the caller drops all names.
    pub(crate) fn take_predecessor(&self) -> bool {
        self.lock().predecessor.take().is_some_and(|until| Instant::now() < until)
    }

    fn hash_of_name(&self, dir: Ino, name: &FileName) -> Hash {
        Hash(self.hashes.hash_one((dir, name)))
    }

    fn hash_of_inode(&self, ino: Ino) -> Hash {
        Hash(self.hashes.hash_one(ino))
    }

    fn lock(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Leasable = Leasable { name: true, attributes: true };

    fn header(thread: u32, unique: u64, dir: u64) -> Header {
        Header { len: 0, opcode: 1, unique, ino: Ino(dir), uid: 0, gid: 0, thread }
    }

    fn name() -> FileName {
        FileName::new(b"name").unwrap()
    }

    #[test]
    fn a_thread_has_processed_the_reply_before_its_last() {
        let sent = SentEntries::new(false);
        assert_eq!(sent.add(&header(7, 1, 1), Ino(20), None, 0), ALL);
        assert_eq!(sent.add(&header(8, 2, 2), Ino(20), None, 0), ALL);
        assert_eq!(sent.recall_unknown(Ino(20)).len(), 2);
        sent.add(&header(7, 3, 1), Ino(21), None, sent.recalls());
        assert_eq!(sent.recall_unknown(Ino(20)), [Ino(2)]);
    }

    #[test]
    fn replies_to_threads_without_a_number_are_all_kept() {
        let sent = SentEntries::new(false);
        sent.add(&header(0, 1, 1), Ino(20), None, 0);
        sent.add(&header(0, 2, 2), Ino(21), None, 0);
        assert_eq!(sent.recall_unknown(Ino(20)), [Ino(1)]);
    }

    #[test]
    fn what_is_recalled_while_a_request_is_served_is_not_leased() {
        let sent = SentEntries::new(false);
        let before = sent.recalls();
        assert!(sent.recall_unknown(Ino(20)).is_empty());
        assert!(!sent.add(&header(7, 1, 1), Ino(20), None, before).attributes);
        assert_eq!(sent.add(&header(7, 2, 1), Ino(21), None, before), ALL, "another inode");
        assert_eq!(sent.add(&header(7, 3, 1), Ino(20), None, sent.recalls()), ALL, "later");
        (0..=RECALLED_MAX as u64).for_each(|ino| drop(sent.recall_unknown(Ino(100 + ino))));
        let many = sent.add(&header(7, 4, 1), Ino(21), None, before);
        assert!(!many.attributes, "too many to know");
    }

    #[test]
    fn a_name_that_is_looked_up_again_may_be_looked_up_without_a_lock() {
        let sent = SentEntries::new(false);
        assert_eq!(sent.will_know(Ino(1), &name()), None);
        let again = sent.will_know(Ino(1), &name());
        assert!(again.is_some() && sent.will_know(Ino(2), &name()).is_none());
        let before = sent.recalls();
        assert_eq!(sent.add(&header(7, 1, 1), Ino(20), again, before), ALL);
        assert!(sent.recall_name(Ino(1), &name()), "the reply may not have been processed");
        assert!(!sent.add(&header(8, 2, 1), Ino(20), again, before).name, "it was recalled since");
        sent.add(&header(7, 3, 1), Ino(21), None, sent.recalls());
        assert!(!sent.recall_name(Ino(1), &name()), "the thread has processed it");
        assert!(SentEntries::new(true).will_know(Ino(1), &name()).is_some(), "a predecessor's");
    }

    #[test]
    fn a_predecessors_replies_are_named_once() {
        let sent = SentEntries::new(true);
        assert!(sent.take_predecessor() && !sent.take_predecessor());
    }
}
