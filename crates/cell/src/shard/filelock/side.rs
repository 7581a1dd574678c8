//! The locks and waiting requests of one flavour on one inode. Locks of one flavour do not block
//! those of the other.

use std::collections::BTreeSet;

use warren_proto::{ByteRange, LockSpec, LockType};

use super::counts::Change;
use super::held::Held;
use super::place::Owner;
use super::queue::{Class, Queue, Waiter};

#[derive(Debug)]
pub(super) struct Side<T> {
    held: Held,
    queue: Queue<T>,
    /// Where locks were released or made weaker since requests were granted.
    eased: Option<ByteRange>,
}

impl<T> Default for Side<T> {
    fn default() -> Self {
        Self { held: Held::default(), queue: Queue::default(), eased: None }
    }
}

impl<T: Copy> Side<T> {
    pub(super) const fn held(&self) -> &Held {
        &self.held
    }

    pub(super) const fn queue(&self) -> &Queue<T> {
        &self.queue
    }

    /// Replaces what the owner holds in the range by `spec`. Returns the classes that its waiting
    /// requests enter by this.
    pub(super) fn set(
        &mut self,
        owner: Owner,
        uid: u32,
        spec: &LockSpec,
    ) -> (Change, BTreeSet<Class>) {
        let (change, taken) = self.held.set(owner, uid, spec);
        let parted = match spec.lock {
            LockType::Unlock => BTreeSet::new(),
            _ => self.queue.part_from_strangers(owner),
        };
        if let Some(range) = taken
            && !self.queue.is_empty()
        {
            self.ease(range);
        }
        (change, parted)
    }

    pub(super) fn wait(&mut self, arrival: u64, waiter: Waiter<T>) {
        let (owner, spec) = (waiter.owner(), &waiter.spec);
        let has_some = self.held.has_any(owner, spec.range);
        let is_exclusive = spec.lock == LockType::Exclusive;
        let class = Class { range: spec.range, is_exclusive, owner: has_some.then_some(owner) };
        self.queue.enter(arrival, waiter, class);
    }

    pub(super) fn leave(&mut self, arrival: u64) -> Option<Waiter<T>> {
        self.queue.leave(arrival)
    }

    /// Whether the request of this arrival waits and nothing blocks it.
    pub(super) fn may_grant(&self, arrival: u64) -> bool {
        let waiter = self.queue.get(arrival);
        waiter.is_some_and(|it| self.held.blocker(it.owner(), &it.spec).is_none())
    }

    pub(super) const fn is_eased(&self) -> bool {
        self.eased.is_some()
    }

    pub(super) fn ease(&mut self, range: ByteRange) {
        let all = self.eased.get_or_insert(range);
        *all = ByteRange { start: all.start.min(range.start), end: all.end.max(range.end) };
    }

    pub(super) const fn take_eased(&mut self) -> Option<ByteRange> {
        self.eased.take()
    }

    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        self.held.visits() + self.queue.visits()
    }
}
