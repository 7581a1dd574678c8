//! The last request of each thread, as far as it is known.
//!
//! A thread that sends another request has processed the reply to the one before. The kernel does
//! not name the threads of some containers, and threads end: entries of such threads are here until
//! they are old.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::message::Header;

/// A thread whose request is answered is on a processor, or waits for one. After this time it has
/// processed the reply.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(10);
/// From so many entries on, the old ones are removed first.
const PRUNED_FROM: usize = 1024;

#[derive(Debug)]
pub(crate) struct ByThread<T> {
    entries: HashMap<u64, (Instant, T)>,
    pruned_from: usize,
    /// When the newest entry was made.
    newest: Instant,
}

impl<T> ByThread<T> {
    pub(crate) fn new() -> Self {
        Self { entries: HashMap::new(), pruned_from: PRUNED_FROM, newest: Instant::now() }
    }

    /// Replaces what is known of the thread.
    pub(crate) fn insert(&mut self, header: &Header, what: T) {
        self.newest = Instant::now();
        self.entries.insert(key_of(header), (self.newest, what));
        if self.entries.len() > self.pruned_from {
            self.entries.retain(|_, (since, _)| self.newest.duration_since(*since) < AGE_MAX);
            self.pruned_from = PRUNED_FROM.max(2 * self.entries.len());
        }
    }

    pub(crate) fn remove(&mut self, header: &Header) {
        self.entries.remove(&key_of(header));
        if self.newest.elapsed() >= AGE_MAX {
            self.entries.clear();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, also old ones.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.entries.values().map(|(_, what)| what)
    }

    /// The entries of threads that may not have processed the reply.
    pub(crate) fn young(&self) -> impl Iterator<Item = &T> {
        let now = Instant::now();
        let is_young = move |since: &Instant| now.duration_since(*since) < AGE_MAX;
        self.entries.values().filter(move |(since, _)| is_young(since)).map(|(_, what)| what)
    }
}

/// The thread, or the request itself if the kernel does not name the thread.
fn key_of(header: &Header) -> u64 {
    if header.thread == 0 { header.unique | 1 << 63 } else { u64::from(header.thread) }
}
