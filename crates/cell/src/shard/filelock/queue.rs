//! The requests that wait for locks of one flavour on one inode.
//!
//! **Classes.** Requests that wait for the same kind of lock on the same range are blocked by the
//! same locks, except by the locks of their own owners. They form a [`Class`]. A request whose
//! owner has a lock in the range is in a class of that owner. If the first request of a class is
//! blocked, all are, and the others are not examined. A release examines each class that it may
//! concern, and each request that is granted, regardless of the number of waiting requests.
//!
//! Invariant: either all requests of a class can be granted now, or none.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use warren_base::ClientId;
use warren_proto::{ByteRange, LockSpec};

use super::interval::Intervals;
use super::place::Owner;

/// The common properties of requests that are either all blocked, or none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Class {
    pub(super) range: ByteRange,
    pub(super) is_exclusive: bool,
    /// All are of this owner. If `None`, none of their owners has a lock in the range.
    pub(super) owner: Option<Owner>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter<T> {
    pub(super) task: T,
    pub(super) client: ClientId,
    pub(super) spec: LockSpec,
    pub(super) uid: u32,
}

impl<T> Waiter<T> {
    pub(super) const fn owner(&self) -> Owner {
        (self.client, self.spec.owner)
    }
}

#[derive(Debug)]
pub(super) struct Queue<T> {
    /// The requests, by arrival.
    waiters: BTreeMap<u64, (Waiter<T>, Class)>,
    /// The arrivals of each class, none of which is empty.
    classes: BTreeMap<Class, BTreeSet<u64>>,
    /// The range of each class.
    ranges: Intervals<Class>,
    /// The arrivals of each owner whose requests are not in classes of its own.
    strangers: BTreeMap<Owner, BTreeSet<u64>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            classes: BTreeMap::new(),
            ranges: Intervals::default(),
            strangers: BTreeMap::new(),
        }
    }
}

impl<T: Copy> Queue<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn get(&self, arrival: u64) -> Option<&Waiter<T>> {
        self.waiters.get(&arrival).map(|(waiter, _)| waiter)
    }

    pub(super) fn enter(&mut self, arrival: u64, waiter: Waiter<T>, class: Class) {
        match self.classes.entry(class) {
            Entry::Occupied(mut entry) => drop(entry.get_mut().insert(arrival)),
            Entry::Vacant(entry) => {
                entry.insert(BTreeSet::from([arrival]));
                self.ranges.insert(class.range, class);
            }
        }
        if class.owner.is_none() {
            self.strangers.entry(waiter.owner()).or_default().insert(arrival);
        }
        self.waiters.insert(arrival, (waiter, class));
    }

    pub(super) fn leave(&mut self, arrival: u64) -> Option<Waiter<T>> {
        let (waiter, class) = self.waiters.remove(&arrival)?;
        self.leave_class(arrival, class);
        if class.owner.is_none() {
            remove_from(&mut self.strangers, &waiter.owner(), arrival);
        }
        Some(waiter)
    }

    fn leave_class(&mut self, arrival: u64, class: Class) {
        if remove_from(&mut self.classes, &class, arrival) {
            self.ranges.remove(class.range.start, class);
        }
    }

    /// The owner has got a lock. From now on its waiting requests are in classes of its own,
    /// wherever the lock is, so each changes its class only once. Returns these classes.
    pub(super) fn part_from_strangers(&mut self, owner: Owner) -> BTreeSet<Class> {
        let mut parted = BTreeSet::new();
        for arrival in self.strangers.remove(&owner).into_iter().flatten() {
            let (waiter, mut class) = self.waiters.remove(&arrival).expect("a stranger waits");
            self.leave_class(arrival, class);
            class.owner = Some(owner);
            self.enter(arrival, waiter, class);
            parted.insert(class);
        }
        parted
    }

    /// The request of the class that arrived first.
    pub(super) fn first_arrival(&self, class: &Class) -> Option<u64> {
        self.classes.get(class)?.first().copied()
    }

    /// The first request of each class that needs a lock in the range.
    pub(super) fn first_arrivals(&self, range: ByteRange) -> BTreeSet<(u64, Class)> {
        let mut firsts = BTreeSet::new();
        let _ = self.ranges.visit(range, None, &mut |_, class| {
            firsts.extend(self.first_arrival(&class).map(|arrival| (arrival, class)));
            ControlFlow::Continue(())
        });
        firsts
    }

    #[cfg(test)]
    pub(super) const fn visits(&self) -> u64 {
        self.ranges.visits.get()
    }
}

/// Removes `arrival` from the set of `key`. Returns whether the set is empty now.
fn remove_from<K: Ord>(sets: &mut BTreeMap<K, BTreeSet<u64>>, key: &K, arrival: u64) -> bool {
    let Some(set) = sets.get_mut(key) else { return false };
    set.remove(&arrival);
    let is_last = set.is_empty();
    if is_last {
        sets.remove(key);
    }
    is_last
}
