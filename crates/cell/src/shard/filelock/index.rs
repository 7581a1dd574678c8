//! The state of advisory locks that all shards of a cell share.
//!
//! A shard owns the locks of its files ([`super::FileLocks`]) and notes every change here. The
//! index has the number of locks and requests of each user, because all of them together must fit a
//! snapshot in the log. It has the files on which a client has locks, and the places where an owner
//! waits, so that deadlocks over several shards are found.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{ClientId, Ino};
use warren_proto::LockOwner;

use super::counts::{Change, Counts};
use super::place::{Owner, Place};
use super::queue::Waiter;

/// `T` names a waiting request.
#[derive(Debug)]
pub(crate) struct LockIndex<T> {
    counts: Counts,
    /// The number of locks that a client holds on each inode.
    by_client: BTreeMap<ClientId, BTreeMap<Ino, usize>>,
    waiting: BTreeMap<Owner, BTreeSet<Place>>,
    places: BTreeMap<T, Place>,
    arrivals: u64,
    /// The number of sides of inodes that may have requests that can be granted.
    eased: usize,
}

impl<T> Default for LockIndex<T> {
    fn default() -> Self {
        Self {
            counts: Counts::default(),
            by_client: BTreeMap::new(),
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            arrivals: 0,
            eased: 0,
        }
    }
}

impl<T: Copy + Ord> LockIndex<T> {
    /// The number of locks that are held or waited for.
    pub(crate) const fn count(&self) -> usize {
        self.counts.total()
    }

    /// The number of these that are the user's.
    pub(crate) fn count_of_user(&self, uid: u32) -> usize {
        self.counts.count_of_user(uid)
    }

    /// Whether the client holds any.
    pub(crate) fn has_any(&self, client: ClientId) -> bool {
        self.by_client.contains_key(&client)
    }

    /// Whether there may be a waiting request that can be granted.
    pub(crate) const fn is_to_grant(&self) -> bool {
        self.eased > 0
    }

    /// The inode on which the request waits.
    pub(crate) fn file_of(&self, task: T) -> Option<Ino> {
        self.place_of(task).map(|place| place.ino)
    }

    /// The inodes on which the client holds locks or waits for them.
    pub(crate) fn files_of(&self, client: ClientId) -> BTreeSet<Ino> {
        let held = self.by_client.get(&client).into_iter().flatten().map(|(ino, _)| *ino);
        held.chain(self.waits_of_client(client).map(|place| place.ino)).collect()
    }

    /// The requests that wait on such inodes.
    pub(super) fn tasks_on(&self, is_wanted: impl Fn(Ino) -> bool) -> Vec<T> {
        let on = |(task, place): (&T, &Place)| is_wanted(place.ino).then_some(*task);
        self.places.iter().filter_map(on).collect()
    }

    pub(super) fn place_of(&self, task: T) -> Option<Place> {
        self.places.get(&task).copied()
    }

    /// The places at which the owner waits.
    pub(super) fn waits_of(&self, owner: Owner) -> impl Iterator<Item = Place> {
        self.waiting.get(&owner).into_iter().flatten().copied()
    }

    /// The places at which the client's owners wait.
    pub(super) fn waits_of_client(&self, client: ClientId) -> impl Iterator<Item = Place> {
        let owners = (client, LockOwner(0))..=(client, LockOwner(u64::MAX));
        self.waiting.range(owners).flat_map(|(_, places)| places).copied()
    }

    /// The number of the next request that waits.
    pub(super) const fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    pub(super) fn begin_wait(&mut self, waiter: &Waiter<T>, place: Place) {
        self.counts.begin_wait(waiter.uid);
        self.waiting.entry(waiter.owner()).or_default().insert(place);
        self.places.insert(waiter.task, place);
    }

    pub(super) fn end_wait(&mut self, waiter: &Waiter<T>, place: Place) {
        self.counts.end_wait(waiter.uid);
        self.places.remove(&waiter.task);
        if let Some(places) = self.waiting.get_mut(&waiter.owner()) {
            places.remove(&place);
            if places.is_empty() {
                self.waiting.remove(&waiter.owner());
            }
        }
    }

    /// The client's locks on the inode have changed.
    pub(super) fn note_change(&mut self, ino: Ino, client: ClientId, change: &Change) {
        self.counts.note_change(change);
        let files = self.by_client.entry(client).or_default();
        let count = files.entry(ino).or_default();
        *count = *count + change.put.len() - change.taken.len();
        if *count == 0 {
            files.remove(&ino);
        }
        if files.is_empty() {
            self.by_client.remove(&client);
        }
    }

    pub(super) const fn side_eased(&mut self) {
        self.eased += 1;
    }

    pub(super) const fn side_served(&mut self) {
        self.eased -= 1;
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_counted = !self.counts.is_empty() || self.counts.has_users();
        !is_counted
            && self.by_client.is_empty()
            && self.waiting.is_empty()
            && self.places.is_empty()
            && self.eased == 0
    }
}
