//! Locks that are held and requests that wait, counted by user: for one inode, or for the whole
//! cell.

use std::collections::BTreeMap;

/// The number of a user's locks, held and waited for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Count {
    held: usize,
    waiting: usize,
}

impl Count {
    const NONE: Self = Self { held: 0, waiting: 0 };

    const fn total(self) -> usize {
        self.held + self.waiting
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    all: Count,
    by_user: BTreeMap<u32, Count>,
}

/// The users of the locks that a change removed and added. A part that remained of a lock and was
/// then joined with the new lock is in both lists.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) taken: Vec<u32>,
    pub(super) put: Vec<u32>,
}

impl Counts {
    pub(super) const fn total(&self) -> usize {
        self.all.total()
    }

    pub(super) fn count_of_user(&self, uid: u32) -> usize {
        self.by_user.get(&uid).map_or(0, |count| count.total())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all == Count::NONE
    }

    pub(super) fn note_change(&mut self, change: &Change) {
        // Added locks are counted first, because some of them were removed again.
        change.put.iter().for_each(|uid| self.update(*uid, |count| count.held += 1));
        change.taken.iter().for_each(|uid| self.update(*uid, |count| count.held -= 1));
    }

    pub(super) fn begin_wait(&mut self, uid: u32) {
        self.update(uid, |count| count.waiting += 1);
    }

    pub(super) fn end_wait(&mut self, uid: u32) {
        self.update(uid, |count| count.waiting -= 1);
    }

    fn update(&mut self, uid: u32, change: impl Fn(&mut Count)) {
        change(&mut self.all);
        let own = self.by_user.entry(uid).or_default();
        change(own);
        if *own == Count::NONE {
            self.by_user.remove(&uid);
        }
    }

    #[cfg(test)]
    pub(super) fn has_users(&self) -> bool {
        !self.by_user.is_empty()
    }
}
