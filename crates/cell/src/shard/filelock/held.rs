//! The locks of one flavour that are held on one inode.
//!
//! Each lock is in the index of its owner, and in an [`Intervals`] with all others of its kind. The
//! latter finds the locks that block an owner. No operation examines all locks.
//!
//! Invariant: the locks of one owner do not overlap.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use warren_proto::{ByteRange, LockFlavour, LockSpec, LockType};

use super::counts::Change;
use super::interval::Intervals;
use super::place::Owner;

/// The fields of a lock without its owner and its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rest {
    end: u64,
    lock: LockType,
    pid: u32,
    /// The user for whom it counts.
    uid: u32,
}

#[derive(Debug, Default)]
pub(super) struct Held {
    own: BTreeMap<(Owner, u64), Rest>,
    shared: Intervals<Owner>,
    exclusive: Intervals<Owner>,
}

impl Held {
    const fn kind(&mut self, lock: LockType) -> &mut Intervals<Owner> {
        match lock {
            LockType::Exclusive => &mut self.exclusive,
            LockType::Shared | LockType::Unlock => &mut self.shared,
        }
    }

    /// The first lock of another owner that blocks `spec`.
    pub(super) fn blocker(&self, owner: Owner, spec: &LockSpec) -> Option<(ByteRange, Owner)> {
        let exclusive = self.exclusive.first(spec.range, Some(owner));
        if spec.lock != LockType::Exclusive {
            return exclusive;
        }
        let both = exclusive.into_iter().chain(self.shared.first(spec.range, Some(owner)));
        both.min_by_key(|(range, owner)| (range.start, *owner))
    }

    /// Calls `see` with the owner of each lock that blocks `spec`, until it breaks.
    pub(super) fn visit_blockers(
        &self,
        owner: Owner,
        spec: &LockSpec,
        mut see: impl FnMut(Owner) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let see = &mut |_: ByteRange, owner: Owner| see(owner);
        self.exclusive.visit(spec.range, Some(owner), see)?;
        if spec.lock == LockType::Exclusive {
            self.shared.visit(spec.range, Some(owner), see)?;
        }
        ControlFlow::Continue(())
    }

    /// The owner's lock that starts at `start`, which it holds.
    pub(super) fn lock(&self, flavour: LockFlavour, owner: Owner, start: u64) -> LockSpec {
        spec(flavour, owner, start, &self.own[&(owner, start)])
    }

    /// Every lock with its owner and the user for whom it counts, in the order of owners.
    pub(super) fn all(
        &self,
        flavour: LockFlavour,
    ) -> impl Iterator<Item = (Owner, LockSpec, u32)> + '_ {
        let all = self.own.iter();
        all.map(move |((owner, start), it)| (*owner, spec(flavour, *owner, *start, it), it.uid))
    }

    /// The owners within `owners` that hold any lock.
    pub(super) fn owners(&self, owners: std::ops::RangeInclusive<Owner>) -> Vec<Owner> {
        let places = (*owners.start(), 0)..=(*owners.end(), u64::MAX);
        let mut found: Vec<_> = self.own.range(places).map(|((owner, _), _)| *owner).collect();
        found.dedup();
        found
    }

    /// Whether the owner holds any lock in the range.
    pub(super) fn has_any(&self, owner: Owner, range: ByteRange) -> bool {
        self.own_before(owner, range.end).is_some_and(|(_, held)| held.end >= range.start)
    }

    /// Whether the owner holds the lock.
    pub(super) fn has(&self, owner: Owner, spec: &LockSpec) -> bool {
        let own = self.own_before(owner, spec.range.start);
        own.is_some_and(|(_, held)| held.end >= spec.range.end && held.lock == spec.lock)
    }

    /// Whether the owner holds a lock that reaches beyond both ends of the range.
    pub(super) fn has_around(&self, owner: Owner, range: ByteRange) -> bool {
        let Some(before) = range.start.checked_sub(1) else { return false };
        self.own_before(owner, before).is_some_and(|(_, held)| held.end > range.end)
    }

    /// Replaces the owner's locks in the range by `spec`. Returns the range from the first to the
    /// last removed lock, if there was any.
    pub(super) fn set(
        &mut self,
        owner: Owner,
        uid: u32,
        spec: &LockSpec,
    ) -> (Change, Option<ByteRange>) {
        let mut change = Change::default();
        let taken = self.cut(owner, spec.range, &mut change);
        if spec.lock != LockType::Unlock {
            let held = Rest { end: spec.range.end, lock: spec.lock, pid: spec.pid, uid };
            self.add_joined(owner, spec.range.start, held, &mut change);
        }
        (change, taken)
    }

    /// Removes the owner's locks in the range, and adds the parts again that lie outside it.
    fn cut(&mut self, owner: Owner, range: ByteRange, change: &mut Change) -> Option<ByteRange> {
        let mut taken: Option<ByteRange> = None;
        while let Some((start, held)) = self.own_before(owner, range.end)
            && held.end >= range.start
        {
            self.remove_own(owner, start);
            change.taken.push(held.uid);
            // From the last to the first.
            taken = Some(ByteRange { start, end: taken.map_or(held.end, |taken| taken.end) });
            // The part behind the range comes first: the part before it starts where this lock did.
            if held.end > range.end {
                self.add_own(owner, range.end + 1, held);
                change.put.push(held.uid);
            }
            if start < range.start {
                self.add_own(owner, start, Rest { end: range.start - 1, ..held });
                change.put.push(held.uid);
                break;
            }
        }
        taken
    }

    /// Adds a lock, joined with the owner's equal locks that it touches.
    fn add_joined(&mut self, owner: Owner, mut start: u64, mut held: Rest, change: &mut Change) {
        let like = |other: &Rest| Rest { end: held.end, ..*other } == held;
        let before = start.checked_sub(1).and_then(|end| {
            self.own_before(owner, end).filter(|(_, other)| other.end == end && like(other))
        });
        let behind = held.end.checked_add(1).and_then(|next| {
            self.own.get(&(owner, next)).filter(|other| like(other)).map(|other| (next, *other))
        });
        for (at, _) in before.into_iter().chain(behind) {
            self.remove_own(owner, at);
            change.taken.push(held.uid);
        }
        start = before.map_or(start, |(start, _)| start);
        held.end = behind.map_or(held.end, |(_, other)| other.end);
        self.add_own(owner, start, held);
        change.put.push(held.uid);
    }

    fn add_own(&mut self, owner: Owner, start: u64, held: Rest) {
        self.own.insert((owner, start), held);
        self.kind(held.lock).insert(ByteRange { start, end: held.end }, owner);
    }

    fn remove_own(&mut self, owner: Owner, start: u64) {
        if let Some(held) = self.own.remove(&(owner, start)) {
            self.kind(held.lock).remove(start, owner);
        }
    }

    /// The owner's last lock that starts at `start` or before.
    fn own_before(&self, owner: Owner, start: u64) -> Option<(u64, Rest)> {
        let ((_, start), held) = self.own.range((owner, 0)..=(owner, start)).next_back()?;
        Some((*start, *held))
    }

    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        self.shared.visits.get() + self.exclusive.visits.get()
    }
}

const fn spec(flavour: LockFlavour, owner: Owner, start: u64, held: &Rest) -> LockSpec {
    let Rest { end, lock, pid, .. } = *held;
    LockSpec { flavour, owner: owner.1, lock, range: ByteRange { start, end }, pid }
}
