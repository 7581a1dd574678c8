//! The locks and waiting requests of one inode, counted.

use std::collections::BTreeSet;

use warren_base::ClientId;
use warren_base::budget::may_take;
use warren_base::limits::LOCKS_OF_INODE_MAX;
use warren_proto::{LockFlavour, LockOwner, LockSpec};

use super::counts::{Change, Counts};
use super::place::Owner;
use super::queue::{Class, Waiter};
use super::side::Side;

#[derive(Debug)]
pub(super) struct File<T> {
    record: Side<T>,
    flock: Side<T>,
    counts: Counts,
}

impl<T> Default for File<T> {
    fn default() -> Self {
        Self { record: Side::default(), flock: Side::default(), counts: Counts::default() }
    }
}

impl<T: Copy> File<T> {
    pub(super) const fn side(&self, flavour: LockFlavour) -> &Side<T> {
        match flavour {
            LockFlavour::Record => &self.record,
            LockFlavour::Flock => &self.flock,
        }
    }

    pub(super) const fn side_mut(&mut self, flavour: LockFlavour) -> &mut Side<T> {
        match flavour {
            LockFlavour::Record => &mut self.record,
            LockFlavour::Flock => &mut self.flock,
        }
    }

    pub(super) fn set(
        &mut self,
        owner: Owner,
        uid: u32,
        spec: &LockSpec,
    ) -> (Change, BTreeSet<Class>) {
        let (change, parted) = self.side_mut(spec.flavour).set(owner, uid, spec);
        self.counts.note_change(&change);
        (change, parted)
    }

    pub(super) fn wait(&mut self, arrival: u64, waiter: Waiter<T>) {
        self.counts.begin_wait(waiter.uid);
        self.side_mut(waiter.spec.flavour).wait(arrival, waiter);
    }

    pub(super) fn leave(&mut self, flavour: LockFlavour, arrival: u64) -> Option<Waiter<T>> {
        let waiter = self.side_mut(flavour).leave(arrival)?;
        self.counts.end_wait(waiter.uid);
        Some(waiter)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Whether the user may have another lock here, or request for one.
    pub(super) fn has_room(&self, uid: u32) -> bool {
        may_take(uid, self.counts.count_of_user(uid), self.counts.total(), LOCKS_OF_INODE_MAX)
    }

    /// The client's owners that hold locks of this flavour.
    pub(super) fn owners(&self, flavour: LockFlavour, client: ClientId) -> Vec<Owner> {
        self.side(flavour).held().owners((client, LockOwner(0))..=(client, LockOwner(u64::MAX)))
    }

    /// Every lock that is held, with its owner and the user for whom it counts.
    pub(super) fn all(&self) -> impl Iterator<Item = (Owner, LockSpec, u32)> + '_ {
        let of = |flavour| self.side(flavour).held().all(flavour);
        of(LockFlavour::Record).chain(of(LockFlavour::Flock))
    }

    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        self.record.visits() + self.flock.visits()
    }
}
