//! Replies with an inode that the kernel does not know yet.
//!
//! The kernel caches the attributes of such a reply, and a recall that comes meanwhile cannot name
//! the inode in a notice. The recall is told what to do by [`SentEntries::recalled`]:
//!
//! ```text
//! the request is being served      its reply will come without a lease on the attributes
//! its reply was sent               the kernel has the directory locked until it has processed it:
//!                                  the notice is repeated when the lock is free
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warren_base::Ino;

use crate::message::Header;

/// A thread whose request is answered is on a processor, or waits for one.
const AGE_MAX: Duration = Duration::from_secs(10);
/// With so many replies, the old ones are removed first.
const PRUNED_FROM: usize = 1024;
/// So many of the inodes that were recalled last are known.
const RECALLED_MAX: usize = 64;

/// A reply to a request in directory `dir`, which led to `ino`.
#[derive(Clone, Copy, Debug)]
struct SentEntry {
    at: Instant,
    ino: Ino,
    dir: Ino,
}

#[derive(Debug)]
struct Sent {
    /// The last such reply to each thread: a thread has processed the one before. The kernel does
    /// not name the threads of some containers, and these replies are here until they are old.
    by_thread: HashMap<u64, SentEntry>,
    pruned_from: usize,
    /// The inodes that were recalled last, while the kernel did not know them.
    recalled: VecDeque<Ino>,
    /// There may be replies of a predecessor.
    has_predecessor: bool,
}

#[derive(Debug)]
pub(crate) struct SentEntries {
    sent: Mutex<Sent>,
    /// How many inodes were recalled while the kernel did not know them.
    recalls: AtomicU64,
}

impl SentEntries {
    pub(crate) fn new(has_predecessor: bool) -> Self {
        let sent = Sent {
            by_thread: HashMap::new(),
            pruned_from: PRUNED_FROM,
            recalled: VecDeque::new(),
            has_predecessor,
        };
        Self { sent: Mutex::new(sent), recalls: AtomicU64::new(0) }
    }

    /// For [`Self::add`], before the request is served.
    pub(crate) fn recalls(&self) -> u64 {
        self.recalls.load(Ordering::Acquire)
    }

    /// The reply to a request in the directory of its header is about to be sent. False if the
    /// attributes may have been recalled since the request came: they are not leased any more.
    pub(crate) fn add(&self, header: &Header, ino: Ino, recalls_before: u64) -> bool {
        let thread = u64::from(header.thread);
        let key = if thread == 0 { header.unique | 1 << 63 } else { thread };
        let entry = SentEntry { at: Instant::now(), ino, dir: header.ino };
        let mut sent = self.lock();
        sent.by_thread.insert(key, entry);
        if sent.by_thread.len() > sent.pruned_from {
            sent.by_thread.retain(|_, old| entry.at.duration_since(old.at) < AGE_MAX);
            sent.pruned_from = PRUNED_FROM.max(2 * sent.by_thread.len());
        }
        let since = self.recalls().saturating_sub(recalls_before) as usize;
        since <= RECALLED_MAX && !sent.recalled.iter().rev().take(since).any(|it| *it == ino)
    }

    /// The attributes of the inode are recalled, and the kernel does not know it. Returns the
    /// directories that the kernel has locked while it processes a reply with it.
    pub(crate) fn recalled(&self, ino: Ino) -> Vec<Ino> {
        let mut sent = self.lock();
        sent.recalled.push_back(ino);
        if sent.recalled.len() > RECALLED_MAX {
            sent.recalled.pop_front();
        }
        self.recalls.fetch_add(1, Ordering::Release);
        sent.by_thread.values().filter(|entry| entry.ino == ino).map(|entry| entry.dir).collect()
    }

    /// Whether there may be replies of a predecessor, which are not known here. False from the
    /// second call on: the caller drops all names.
    pub(crate) fn take_predecessor(&self) -> bool {
        std::mem::take(&mut self.lock().has_predecessor)
    }

    fn lock(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(thread: u32, unique: u64, dir: u64) -> Header {
        Header { len: 0, opcode: 1, unique, ino: Ino(dir), uid: 0, gid: 0, thread }
    }

    #[test]
    fn a_thread_has_processed_the_reply_before_its_last() {
        let sent = SentEntries::new(false);
        assert!(sent.add(&header(7, 1, 1), Ino(20), 0) && sent.add(&header(8, 2, 2), Ino(20), 0));
        assert_eq!(sent.recalled(Ino(20)).len(), 2);
        assert!(sent.add(&header(7, 3, 1), Ino(21), 0));
        assert_eq!(sent.recalled(Ino(20)), [Ino(2)]);
    }

    #[test]
    fn replies_to_threads_without_a_number_are_all_kept() {
        let sent = SentEntries::new(false);
        assert!(sent.add(&header(0, 1, 1), Ino(20), 0) && sent.add(&header(0, 2, 2), Ino(21), 0));
        assert_eq!(sent.recalled(Ino(20)), [Ino(1)]);
    }

    #[test]
    fn attributes_that_are_recalled_while_a_request_is_served_are_not_leased() {
        let sent = SentEntries::new(false);
        let before = sent.recalls();
        assert!(sent.recalled(Ino(20)).is_empty());
        assert!(!sent.add(&header(7, 1, 1), Ino(20), before));
        assert!(sent.add(&header(7, 2, 1), Ino(21), before), "another inode");
        assert!(sent.add(&header(7, 3, 1), Ino(20), sent.recalls()), "a later request");
        (0..=RECALLED_MAX as u64).for_each(|ino| drop(sent.recalled(Ino(100 + ino))));
        assert!(!sent.add(&header(7, 4, 1), Ino(21), before), "too many to know");
    }

    #[test]
    fn a_predecessors_replies_are_named_once() {
        let sent = SentEntries::new(true);
        assert!(sent.take_predecessor() && !sent.take_predecessor());
    }
}
