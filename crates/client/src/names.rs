//! Which names directories have, as far as a client knows: it answers that a name is absent without
//! a request, also if it was never looked up before.
//!
//! ```text
//!            a second miss                 the last page
//! (unknown) ---------------> Partial ---------------------> Whole
//!                            + one page with each miss
//! ```
//!
//! The names come from listings under a lease ([`LeaseKey::Names`]). Changes by other clients
//! revoke the lease, changes by this one do not. Instead the client adds a name here before it
//! sends the request that creates it, and removes a name after the answer to the request that
//! removes it. It does not remove a name if a request to create it was under way meanwhile, or
//! during another removal of it that is not answered. So the copy contains every name that the
//! directory has, and possibly others: only its answer "absent" is used.
//!
//! A request to create a name may be under way when the first page is requested. If a cell executes
//! it after that, it does not revoke the lease. So all names under way are added to a directory
//! that becomes known ([`KnownNames::begin`]). A client that continues for a dead predecessor does
//! not know which names are under way. It learns nothing until these requests have ended
//! ([`KnownNames::wait_for`]).
//!
//! Names are kept as their hashes under a secret seed, so that a user cannot choose names that
//! collide with those of others.
//!
//! [`LeaseKey::Names`]: warren_proto::LeaseKey::Names

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::{HashMap, HashTable};
use warren_base::{FixedState, Ino};
use warren_proto::{Answer, DirEntries, FileName, Reply, Request};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::guard::{Guard, Words};

/// A directory is listed after so many names were looked up that it does not have. A single one
/// does not pay for a listing.
const MISSES_MIN: u32 = 2;

/// Names of one directory, and of all. A name takes some 16 bytes.
const NAMES_OF_ONE_MAX: usize = 1 << 16;
const NAMES_MAX: usize = 1 << 19;
const DIRS_MAX: usize = 1 << 12;

const _: () = assert!(NAMES_OF_ONE_MAX < NAMES_MAX);

/// A page that the client should request for [`KnownNames::listed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    pub dir: Ino,
    pub cookie: u64,
    /// A page of an earlier listing of the directory must not be taken for one of this.
    listing: u64,
}

#[derive(Debug)]
enum Extent {
    /// So many names were found absent by its cell.
    Missed(u32),
    /// The pages before the cookie are known, under this lease if there is one.
    Partial {
        listing: u64,
        guard: Option<Guard>,
        cookie: u64,
        is_requested: bool,
    },
    Whole(Guard),
}

#[derive(Debug)]
struct Dir {
    extent: Extent,
    names: HashTable<u64>,
}

/// A name that a request under way may create or remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct UnderWay {
    dir: Ino,
    hash: u64,
    effect: Effect,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    Creates,
    /// A request to create the name was under way at the same time.
    Removes {
        is_created: bool,
    },
}

/// The names of the directories in which the client misses names.
#[derive(Debug)]
pub struct KnownNames {
    seed: u64,
    dirs: HashMap<Ino, Dir, FixedState>,
    /// The directories, those first that became known first.
    order: VecDeque<Ino>,
    /// The number of names of all directories.
    names: usize,
    /// The number of listings that were begun.
    listings: u64,
    under_way: Vec<UnderWay>,
    /// Requests under way of a predecessor.
    unknown: usize,
}

impl KnownNames {
    /// `seed` is a secret.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            dirs: HashMap::default(),
            order: VecDeque::new(),
            names: 0,
            listings: 0,
            under_way: Vec::new(),
            unknown: 0,
        }
    }

    fn hash(&self, dir: Ino, name: &FileName) -> u64 {
        xxh3_64_with_seed(name.as_bytes(), self.seed ^ dir.0)
    }

    /// Whether the directory has no such name.
    pub fn is_absent(&mut self, dir: Ino, name: &FileName, words: &impl Words) -> bool {
        let Some(Dir { extent: Extent::Whole(guard), names }) = self.dirs.get(&dir) else {
            return false;
        };
        let hash = self.hash(dir, name);
        if names.find(hash, |other| *other == hash).is_some() {
            return false;
        }
        let holds = guard.holds(words);
        if !holds {
            self.forget(dir);
        }
        holds
    }

    /// A cell has answered that the directory has no such name. Returns the page to be requested.
    pub fn missed(&mut self, dir: Ino) -> Option<Page> {
        if self.unknown > 0 {
            return None;
        }
        if !self.dirs.contains_key(&dir) {
            self.make_room();
            let extent = Extent::Missed(0);
            self.dirs.insert(dir, Dir { extent, names: HashTable::new() });
            self.order.push_back(dir);
        }
        let known = self.dirs.get_mut(&dir).expect("just there");
        match &mut known.extent {
            Extent::Missed(misses) if *misses + 1 < MISSES_MIN => {
                *misses += 1;
                None
            }
            Extent::Missed(_) => {
                self.listings += 1;
                let (listing, guard, cookie) = (self.listings, None, 0);
                known.extent = Extent::Partial { listing, guard, cookie, is_requested: true };
                for UnderWay { hash, .. } in self.under_way.iter().filter(|it| it.dir == dir) {
                    self.names += insert(&mut known.names, *hash);
                }
                Some(Page { dir, cookie, listing })
            }
            Extent::Partial { listing, cookie, is_requested, .. } => {
                let page = Page { dir, cookie: *cookie, listing: *listing };
                (!core::mem::replace(is_requested, true)).then_some(page)
            }
            // Another client has created and removed it, or its hash is that of another name.
            Extent::Whole(_) => None,
        }
    }

    /// The page was received, under this lease. `end`: the listing ends with it.
    pub fn listed(&mut self, page: Page, entries: &DirEntries, end: bool, lease: Option<Guard>) {
        let Some((guard, cookie)) = self.requested(page) else { return };
        let next = entries.last_cookie().unwrap_or(cookie);
        let is_same = |lease: &Guard| guard.is_none_or(|guard| guard == *lease);
        let Some(lease) = lease.filter(|lease| is_same(lease) && (end || next > cookie)) else {
            return self.forget(page.dir);
        };
        let (listing, guard) = (page.listing, Some(lease));
        let partial = Extent::Partial { listing, guard, cookie: next, is_requested: false };
        let seed = self.seed ^ page.dir.0;
        let known = self.dirs.get_mut(&page.dir).expect("a page of it was requested");
        known.extent = if end { Extent::Whole(lease) } else { partial };
        for entry in entries.iter() {
            let hash = xxh3_64_with_seed(entry.name, seed);
            self.names += insert(&mut known.names, hash);
        }
        if known.names.len() > NAMES_OF_ONE_MAX {
            self.forget(page.dir);
        }
        self.make_room();
    }

    /// The page was not received.
    pub fn not_listed(&mut self, page: Page) {
        if self.requested(page).is_some() {
            self.forget(page.dir);
        }
    }

    /// The lease of the listing so far and its cookie, if this is the page that it waits for.
    fn requested(&self, page: Page) -> Option<(Option<Guard>, u64)> {
        match self.dirs.get(&page.dir)?.extent {
            Extent::Partial { listing, guard, cookie, is_requested: true }
                if (listing, cookie) == (page.listing, page.cookie) =>
            {
                Some((guard, cookie))
            }
            _ => None,
        }
    }

    /// A request is about to be sent. The caller ends it with [`KnownNames::end`].
    pub fn begin(&mut self, request: &Request) {
        if let Some((dir, name)) = request.created_name() {
            let hash = self.hash(dir, name);
            for it in self.under_way.iter_mut().filter(|it| (it.dir, it.hash) == (dir, hash)) {
                if let Effect::Removes { is_created } = &mut it.effect {
                    *is_created = true;
                }
            }
            self.under_way.push(UnderWay { dir, hash, effect: Effect::Creates });
            if let Some(known) = self.dirs.get_mut(&dir) {
                self.names += insert(&mut known.names, hash);
            }
        }
        if let Some((dir, name)) = request.removed_name() {
            let hash = self.hash(dir, name);
            let creates = UnderWay { dir, hash, effect: Effect::Creates };
            let is_created = self.under_way.contains(&creates);
            self.under_way.push(UnderWay { dir, hash, effect: Effect::Removes { is_created } });
        }
    }

    /// The request was answered.
    pub fn end(&mut self, request: &Request, answer: &Answer) {
        if let Some((dir, name)) = request.created_name() {
            self.take_under_way((dir, name), Effect::Creates);
        }
        if let Some((dir, name)) = request.removed_name() {
            let hash = self.hash(dir, name);
            let mut removals = self.under_way.iter().filter(|it| (it.dir, it.hash) == (dir, hash));
            // Of several removals of the name it is not known which has ended. Those during which
            // it was created count as long as one is under way.
            let during = |is_created| Effect::Removes { is_created };
            let may_be_there = removals.any(|it| it.effect == during(true));
            if !self.take_under_way((dir, name), during(false)) {
                self.take_under_way((dir, name), during(true));
            }
            let is_gone = matches!(answer, Ok(Reply::Done)) && !may_be_there;
            if is_gone
                && let Some(known) = self.dirs.get_mut(&dir)
                && let Ok(entry) = known.names.find_entry(hash, |other| *other == hash)
            {
                entry.remove();
                self.names -= 1;
            }
        }
    }

    /// Returns whether there was one.
    fn take_under_way(&mut self, (dir, name): (Ino, &FileName), effect: Effect) -> bool {
        let it = UnderWay { dir, hash: self.hash(dir, name), effect };
        let at = self.under_way.iter().position(|other| *other == it);
        at.map(|at| self.under_way.swap_remove(at)).is_some()
    }

    /// So many requests of a predecessor may be under way.
    pub fn wait_for(&mut self, requests: usize) {
        self.unknown += requests;
    }

    /// One of them has ended.
    pub fn waited(&mut self) {
        self.unknown = self.unknown.saturating_sub(1);
    }

    fn make_room(&mut self) {
        while self.dirs.len() >= DIRS_MAX || self.names > NAMES_MAX {
            match self.order.front().copied() {
                Some(oldest) => self.forget(oldest),
                None => return,
            }
        }
    }

    fn forget(&mut self, dir: Ino) {
        let Some(Dir { names, .. }) = self.dirs.remove(&dir) else { return };
        self.names -= names.len();
        self.order.retain(|other| *other != dir);
    }
}

/// Returns the number of names that were added.
fn insert(names: &mut HashTable<u64>, hash: u64) -> usize {
    if names.find(hash, |other| *other == hash).is_some() {
        return 0;
    }
    names.insert_unique(hash, hash, |other| *other);
    1
}

#[cfg(test)]
mod tests;
