//! Names that a directory does not have, as far as the front knows without a cell.
//!
//! Before the kernel creates a name or renames to it, it looks the name up. [`KnownNames`] answers
//! this from listings of directories in which names were missed. The kernel caches no such answer,
//! because it comes with no acknowledged lease. So a name that is looked up twice, and not created
//! in between, is looked up at its cell: then the kernel caches that it is absent.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_base::{CellId, Ino};
use warren_client::{Guard, KnownNames, Page, Words};
use warren_proto::typed::Listing;
use warren_proto::{Answer, FileName, Request};

use crate::connection::FleetConnection;

/// The last names that were answered as absent, by their hashes.
const ANSWERED: usize = 1024;

struct FleetWords<'a>(&'a dyn FleetConnection);

impl Words for FleetWords<'_> {
    fn load(&self, cell: CellId, word: u32) -> u64 {
        self.0.load_word(cell, word)
    }
}

pub(crate) struct AbsentNames {
    known: Mutex<KnownNames>,
    /// The hash of a name that was answered as absent and not created since. 0: none.
    answered: Box<[AtomicU64]>,
    hashes: RandomState,
}

impl AbsentNames {
    pub(crate) fn new() -> Self {
        let hashes = RandomState::new();
        let answered = (0..ANSWERED).map(|_| AtomicU64::new(0)).collect();
        Self { known: Mutex::new(KnownNames::new(hashes.hash_one(()))), answered, hashes }
    }

    /// Whether the kernel gets the answer that the directory has no such name.
    pub(crate) fn is_absent(&self, dir: Ino, name: &FileName, fleet: &dyn FleetConnection) -> bool {
        if !self.lock().is_absent(dir, name, &FleetWords(fleet)) {
            return false;
        }
        let (hash, answered) = self.answered(dir, name);
        let is_repeated = answered.load(Ordering::Relaxed) == hash;
        answered.store(if is_repeated { 0 } else { hash }, Ordering::Relaxed);
        !is_repeated
    }

    /// See [`KnownNames::missed`].
    pub(crate) fn missed(&self, dir: Ino) -> Option<Page> {
        self.lock().missed(dir)
    }

    /// The page was received from `cell`.
    pub(crate) fn listed(&self, page: Page, listing: &Listing, cell: Option<CellId>) {
        let lease = listing.lease.zip(cell).and_then(|(lease, cell)| Guard::new(cell, lease));
        self.lock().listed(page, &listing.entries, listing.end, lease);
    }

    pub(crate) fn not_listed(&self, page: Page) {
        self.lock().not_listed(page);
    }

    /// A request is about to be sent.
    pub(crate) fn begin(&self, request: &Request) {
        if let Some((dir, name)) = request.created_name() {
            let (hash, answered) = self.answered(dir, name);
            if answered.load(Ordering::Relaxed) == hash {
                answered.store(0, Ordering::Relaxed);
            }
        }
        self.lock().begin(request);
    }

    /// It was answered.
    pub(crate) fn end(&self, request: &Request, answer: &Answer) {
        self.lock().end(request, answer);
    }

    /// So many requests of a predecessor may be under way.
    pub(crate) fn wait_for(&self, requests: usize) {
        self.lock().wait_for(requests);
    }

    /// One of them has ended.
    pub(crate) fn waited(&self) {
        self.lock().waited();
    }

    fn answered(&self, dir: Ino, name: &FileName) -> (u64, &AtomicU64) {
        let hash = self.hashes.hash_one((dir, name)).max(1);
        (hash, &self.answered[hash as usize % ANSWERED])
    }

    fn lock(&self) -> MutexGuard<'_, KnownNames> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
