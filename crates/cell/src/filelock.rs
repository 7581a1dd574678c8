//! Advisory file locks: `fcntl` record locks and `flock`, held, waited for, and released.
//!
//! Waiting requests are served in the order in which they came, as far as they can be; a later one may
//! pass an earlier one that is still blocked, as on Linux. Deadlock among record locks is found by
//! following who waits for whom.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{ByteRange, LockFlavour, LockOwner, LockSpec, LockType};

/// An owner, fleet-wide: owners are numbered by each client.
type Owner = (ClientId, LockOwner);

#[derive(Clone, Copy, Debug)]
struct Held {
    client: ClientId,
    spec: LockSpec,
}

impl Held {
    fn owner(&self) -> Owner {
        (self.client, self.spec.owner)
    }

    fn is_in_the_way_of(&self, client: ClientId, spec: &LockSpec) -> bool {
        self.spec.flavour == spec.flavour
            && self.owner() != (client, spec.owner)
            && self.spec.range.overlaps(spec.range)
            && (self.spec.lock == LockType::Exclusive || spec.lock == LockType::Exclusive)
    }
}

/// Locks of all inodes of the cell. `T` names a waiting request.
#[derive(Debug)]
pub(crate) struct FileLocks<T> {
    held: BTreeMap<Ino, Vec<Held>>,
    waiting: BTreeMap<Ino, Vec<(T, ClientId, LockSpec)>>,
    /// How many are held, by whom.
    counts: BTreeMap<ClientId, usize>,
}

/// What became of a wanted lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockOutcome {
    Granted,
    Waits,
}

impl<T: Copy + Eq> FileLocks<T> {
    pub(crate) fn new() -> Self {
        Self { held: BTreeMap::new(), waiting: BTreeMap::new(), counts: BTreeMap::new() }
    }

    /// The first lock in the way of `spec`.
    pub(crate) fn test(&self, ino: Ino, client: ClientId, spec: &LockSpec) -> Option<LockSpec> {
        let held = self.held.get(&ino)?;
        let in_the_way = held.iter().filter(|lock| lock.is_in_the_way_of(client, spec));
        in_the_way.map(|lock| lock.spec).min_by_key(|spec| spec.range)
    }

    /// Takes, changes or releases a lock. EAGAIN if it cannot be had and `wait` is `None`; EDEADLK if
    /// waiting would never end.
    pub(crate) fn lock(
        &mut self,
        ino: Ino,
        client: ClientId,
        spec: LockSpec,
        wait: Option<T>,
    ) -> Result<LockOutcome, Errno> {
        if spec.range.start > spec.range.end {
            return Err(Errno::EINVAL);
        }
        if spec.flavour == LockFlavour::Flock {
            // Changing a flock gives the old one up first, as on Linux, so that two who share it and
            // both want it alone do not wait for each other.
            self.set(ino, client, LockSpec { lock: LockType::Unlock, ..spec });
        }
        if spec.lock == LockType::Unlock || self.test(ino, client, &spec).is_none() {
            self.set(ino, client, spec);
            return Ok(LockOutcome::Granted);
        }
        let task = wait.ok_or(Errno::EAGAIN)?;
        if spec.flavour == LockFlavour::Record && self.would_deadlock(ino, client, &spec) {
            return Err(Errno::EDEADLK);
        }
        self.waiting.entry(ino).or_default().push((task, client, spec));
        Ok(LockOutcome::Waits)
    }

    /// Whether somebody whom `spec` would wait for waits (directly or not) for its owner.
    fn would_deadlock(&self, ino: Ino, client: ClientId, spec: &LockSpec) -> bool {
        let me = (client, spec.owner);
        let mut seen = BTreeSet::new();
        let mut open = self.blockers(ino, client, spec);
        while let Some(owner) = open.pop() {
            if owner == me {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for (ino, waiting) in &self.waiting {
                for (_, client, spec) in waiting {
                    if (*client, spec.owner) == owner && spec.flavour == LockFlavour::Record {
                        open.extend(self.blockers(*ino, *client, spec));
                    }
                }
            }
        }
        false
    }

    /// The locks that `spec`'s owner has there, of its flavour.
    fn own(&self, ino: Ino, client: ClientId, spec: LockSpec) -> impl Iterator<Item = &Held> {
        let held = self.held.get(&ino).map_or(&[][..], Vec::as_slice);
        let owner = (client, spec.owner);
        held.iter().filter(move |l| l.owner() == owner && l.spec.flavour == spec.flavour)
    }

    /// Whether the owner gives up a lock when it asks for `spec`, whatever becomes of that.
    pub(crate) fn gives_up(&self, ino: Ino, client: ClientId, spec: LockSpec) -> bool {
        spec.flavour == LockFlavour::Flock && self.own(ino, client, spec).next().is_some()
    }

    /// Whether `spec` makes two locks of one.
    pub(crate) fn splits(&self, ino: Ino, client: ClientId, spec: LockSpec) -> bool {
        let ByteRange { start, end } = spec.range;
        let mut ranges = self.own(ino, client, spec).map(|lock| lock.spec.range);
        ranges.any(|range| range.start < start && end < range.end)
    }

    fn blockers(&self, ino: Ino, client: ClientId, spec: &LockSpec) -> Vec<Owner> {
        let held = self.held.get(&ino).map_or(&[][..], Vec::as_slice);
        held.iter().filter(|lock| lock.is_in_the_way_of(client, spec)).map(Held::owner).collect()
    }

    /// Replaces what the owner holds in the range by `spec`.
    fn set(&mut self, ino: Ino, client: ClientId, spec: LockSpec) {
        let held = self.held.entry(ino).or_default();
        let before = held.len();
        let mut rest = Vec::with_capacity(before + 2);
        for lock in held.drain(..) {
            let own = lock.owner() == (client, spec.owner) && lock.spec.flavour == spec.flavour;
            if own && lock.spec.range.overlaps(spec.range) {
                rest.extend(outside(lock, spec.range));
            } else {
                rest.push(lock);
            }
        }
        if spec.lock != LockType::Unlock {
            rest.push(Held { client, spec });
        }
        // Nobody else's were changed.
        let count = self.counts.entry(client).or_default();
        *count = *count + rest.len() - before;
        if *count == 0 {
            self.counts.remove(&client);
        }
        if rest.is_empty() {
            self.held.remove(&ino);
        } else {
            *held = rest;
        }
    }

    /// Releases all of the owner's locks of one flavour on the inode.
    pub(crate) fn release(
        &mut self,
        ino: Ino,
        client: ClientId,
        flavour: LockFlavour,
        owner: LockOwner,
    ) {
        let spec =
            LockSpec { flavour, owner, lock: LockType::Unlock, range: ByteRange::ALL, pid: 0 };
        self.set(ino, client, spec);
    }

    /// Grants what can be granted now on the inode and returns the requests that no longer wait.
    pub(crate) fn grant_waiting(&mut self, ino: Ino) -> Vec<T> {
        let Some(mut waiting) = self.waiting.remove(&ino) else { return Vec::new() };
        let mut granted = Vec::new();
        waiting.retain(|(task, client, spec)| {
            let free = self.test(ino, *client, spec).is_none();
            if free {
                self.set(ino, *client, *spec);
                granted.push(*task);
            }
            !free
        });
        if !waiting.is_empty() {
            self.waiting.insert(ino, waiting);
        }
        granted
    }

    /// How many locks are held.
    pub(crate) fn count(&self) -> usize {
        self.counts.values().sum()
    }

    /// How many of them are the client's.
    pub(crate) fn count_of(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// Every lock that is held.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Ino, ClientId, LockSpec)> + '_ {
        let one = |ino: Ino| move |held: &Held| (ino, held.client, held.spec);
        self.held.iter().flat_map(move |(ino, held)| held.iter().map(one(*ino)))
    }

    /// A request gives up waiting.
    pub(crate) fn cancel(&mut self, task: T) {
        self.waiting.retain(|_, waiting| {
            waiting.retain(|(waiter, ..)| *waiter != task);
            !waiting.is_empty()
        });
    }

    /// Drops everything of a client. Returns the inodes on which others may go on.
    pub(crate) fn forget_client(&mut self, client: ClientId) -> Vec<Ino> {
        let mut freed = Vec::new();
        self.counts.remove(&client);
        self.held.retain(|ino, held| {
            let before = held.len();
            held.retain(|lock| lock.client != client);
            if held.len() != before {
                freed.push(*ino);
            }
            !held.is_empty()
        });
        self.waiting.retain(|_, waiting| {
            waiting.retain(|(_, waiter, _)| *waiter != client);
            !waiting.is_empty()
        });
        freed
    }
}

/// What is left of a lock outside `cut`.
fn outside(lock: Held, cut: ByteRange) -> impl Iterator<Item = Held> {
    let ByteRange { start, end } = lock.spec.range;
    let before = (start < cut.start).then(|| ByteRange { start, end: cut.start - 1 });
    let after = (end > cut.end).then(|| ByteRange { start: cut.end + 1, end });
    let piece = move |range| Held { spec: LockSpec { range, ..lock.spec }, ..lock };
    before.into_iter().chain(after).map(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);

    fn spec(owner: u64, lock: LockType, start: u64, end: u64) -> LockSpec {
        LockSpec {
            flavour: LockFlavour::Record,
            owner: LockOwner(owner),
            lock,
            range: ByteRange { start, end },
            pid: owner as u32,
        }
    }

    #[test]
    fn unlocking_the_middle_leaves_both_ends() {
        let mut locks = FileLocks::<u32>::new();
        let ino = Ino::ROOT;
        assert!(locks.lock(ino, A, spec(1, LockType::Exclusive, 0, 99), None).is_ok());
        assert!(locks.lock(ino, A, spec(1, LockType::Unlock, 40, 59), None).is_ok());
        assert!(locks.lock(ino, A, spec(2, LockType::Exclusive, 40, 59), None).is_ok());
        let in_the_way = locks.test(ino, A, &spec(2, LockType::Shared, 0, 99)).unwrap();
        assert_eq!(in_the_way.range, ByteRange { start: 0, end: 39 });
        let refused = locks.lock(ino, A, spec(2, LockType::Shared, 60, 60), None);
        assert_eq!(refused, Err(Errno::EAGAIN));
    }

    #[test]
    fn a_circle_of_waiters_is_refused() {
        let mut locks = FileLocks::<u32>::new();
        let (x, y) = (Ino(2), Ino(3));
        for (ino, owner) in [(x, 1), (y, 2)] {
            assert!(locks.lock(ino, A, spec(owner, LockType::Exclusive, 0, 9), None).is_ok());
        }
        let waits = locks.lock(y, A, spec(1, LockType::Exclusive, 0, 9), Some(7));
        assert_eq!(waits, Ok(LockOutcome::Waits));
        let circle = locks.lock(x, A, spec(2, LockType::Shared, 0, 9), Some(8));
        assert_eq!(circle, Err(Errno::EDEADLK));
        locks.release(y, A, LockFlavour::Record, LockOwner(2));
        assert_eq!(locks.grant_waiting(y), vec![7]);
    }

    #[test]
    fn flock_and_record_locks_do_not_see_each_other() {
        let mut locks = FileLocks::<u32>::new();
        let flock =
            LockSpec { flavour: LockFlavour::Flock, ..spec(1, LockType::Exclusive, 0, u64::MAX) };
        assert!(locks.lock(Ino::ROOT, A, flock, None).is_ok());
        assert!(locks.lock(Ino::ROOT, A, spec(2, LockType::Exclusive, 0, 9), None).is_ok());
    }
}
