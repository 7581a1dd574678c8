//! Advisory file locks: `fcntl` record locks and `flock`, held, waited for, and released.
//!
//! A shard owns the locks of its files. State that spans shards is in a [`LockIndex`], which they
//! share.
//!
//! Waiting requests are granted in the order in which they arrived, as far as possible. A later
//! request may pass an earlier one that is still blocked, as on Linux. A request that would close a
//! circle of waits is refused ([`deadlock`]).
//!
//! The senders bound the number of waiting requests: each waits in a slot of its own. It counts
//! with the held locks for the room of the inode ([`FileLocks::has_room`]) and of the log's
//! snapshot.
//!
//! Invariant: no request that could be granted waits, once [`FileLocks::grant`] was called after a
//! change and has returned fewer requests than it was allowed to.

mod counts;
pub(crate) mod deadlock;
mod file;
mod held;
pub(crate) mod index;
mod interval;
mod place;
mod queue;
mod side;

use std::collections::{BTreeMap, BTreeSet};

use counts::Change;
use file::File;
use index::LockIndex;
use place::Place;
use queue::{Class, Waiter};
use side::Side;
use warren_base::{ClientId, Errno, Ino};
use warren_proto::{ByteRange, LockFlavour, LockOwner, LockSpec, LockType};

/// The locks of the files of one shard. `T` names a waiting request.
#[derive(Debug)]
pub(crate) struct FileLocks<T> {
    /// No entry is empty.
    files: BTreeMap<Ino, File<T>>,
    /// Inodes on which requests may be granted.
    eased: BTreeSet<(Ino, LockFlavour)>,
}

impl<T> Default for FileLocks<T> {
    fn default() -> Self {
        Self { files: BTreeMap::new(), eased: BTreeSet::new() }
    }
}

/// The result of a request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockOutcome {
    Granted,
    /// Locks of other owners conflict with it.
    Blocked,
}

impl<T: Copy + Ord> FileLocks<T> {
    fn side(&self, ino: Ino, flavour: LockFlavour) -> Option<&Side<T>> {
        self.files.get(&ino).map(|file| file.side(flavour))
    }

    /// The request that waits at this place.
    fn waiter(&self, place: Place) -> Option<&Waiter<T>> {
        self.side(place.ino, place.flavour)?.queue().get(place.arrival)
    }

    /// The first lock that conflicts with `spec`.
    pub(crate) fn test(&self, ino: Ino, client: ClientId, spec: &LockSpec) -> Option<LockSpec> {
        let held = self.side(ino, spec.flavour)?.held();
        let (range, owner) = held.blocker((client, spec.owner), spec)?;
        Some(held.lock(spec.flavour, owner, range.start))
    }

    /// Takes, changes or releases a lock on behalf of `uid`. If locks of other owners block it, a
    /// record lock does not change. The caller calls [`Self::grant`] next.
    pub(crate) fn lock(
        &mut self,
        ino: Ino,
        (client, uid): (ClientId, u32),
        spec: LockSpec,
        index: &mut LockIndex<T>,
    ) -> Result<LockOutcome, Errno> {
        if spec.range.start > spec.range.end {
            return Err(Errno::EINVAL);
        }
        if spec.flavour == LockFlavour::Flock {
            // Changing a flock releases the old one first, as on Linux, so that two owners that
            // share it and both want it exclusively do not wait for each other.
            self.set(ino, (client, uid), LockSpec { lock: LockType::Unlock, ..spec }, index);
        }
        let is_blocked = || {
            let side = self.side(ino, spec.flavour);
            side.is_some_and(|side| side.held().blocker((client, spec.owner), &spec).is_some())
        };
        if spec.lock != LockType::Unlock && is_blocked() {
            return Ok(LockOutcome::Blocked);
        }
        self.set(ino, (client, uid), spec, index);
        Ok(LockOutcome::Granted)
    }

    /// A request that is blocked waits, until it is granted or cancelled.
    pub(crate) fn wait(
        &mut self,
        ino: Ino,
        task: T,
        (client, uid): (ClientId, u32),
        spec: LockSpec,
        index: &mut LockIndex<T>,
    ) {
        let waiter = Waiter { task, client, spec, uid };
        let place = Place { ino, flavour: spec.flavour, arrival: index.next_arrival() };
        index.begin_wait(&waiter, place);
        self.files.entry(ino).or_default().wait(place.arrival, waiter);
    }

    fn end_wait(&mut self, place: Place, index: &mut LockIndex<T>) -> Option<Waiter<T>> {
        let waiter = self.files.get_mut(&place.ino)?.leave(place.flavour, place.arrival)?;
        index.end_wait(&waiter, place);
        self.drop_if_empty(place.ino);
        Some(waiter)
    }

    fn drop_if_empty(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(File::is_empty) {
            self.files.remove(&ino);
        }
    }

    /// Whether the owner releases a lock with its request for `spec`, even if the request fails.
    pub(crate) fn gives_up(&self, ino: Ino, client: ClientId, spec: LockSpec) -> bool {
        let side = self.side(ino, spec.flavour).filter(|_| spec.flavour == LockFlavour::Flock);
        side.is_some_and(|side| side.held().has_any((client, spec.owner), ByteRange::ALL))
    }

    /// Whether the owner has the lock.
    pub(crate) fn holds(&self, ino: Ino, client: ClientId, spec: LockSpec) -> bool {
        let side = self.side(ino, spec.flavour);
        side.is_some_and(|side| side.held().has((client, spec.owner), &spec))
    }

    /// Whether `spec` splits a lock in two.
    pub(crate) fn splits(&self, ino: Ino, client: ClientId, spec: LockSpec) -> bool {
        let side = self.side(ino, spec.flavour);
        side.is_some_and(|side| side.held().has_around((client, spec.owner), spec.range))
    }

    /// Replaces the owner's locks in the range by `spec`. Returns the classes that its waiting
    /// requests enter by this.
    fn set(
        &mut self,
        ino: Ino,
        (client, uid): (ClientId, u32),
        spec: LockSpec,
        index: &mut LockIndex<T>,
    ) -> (Change, BTreeSet<Class>) {
        if spec.lock == LockType::Unlock && !self.files.contains_key(&ino) {
            return Default::default();
        }
        let file = self.files.entry(ino).or_default();
        let (change, parted) = file.set((client, spec.owner), uid, &spec);
        index.note_change(ino, client, &change);
        if file.side(spec.flavour).is_eased() {
            self.note_eased(ino, spec.flavour, index);
        }
        self.drop_if_empty(ino);
        (change, parted)
    }

    /// Releases all of the owner's locks of one flavour on the inode. Returns whether there were
    /// any.
    pub(crate) fn release(
        &mut self,
        ino: Ino,
        client: ClientId,
        flavour: LockFlavour,
        owner: LockOwner,
        index: &mut LockIndex<T>,
    ) -> bool {
        let spec =
            LockSpec { flavour, owner, lock: LockType::Unlock, range: ByteRange::ALL, pid: 0 };
        let (change, _) = self.set(ino, (client, 0), spec, index);
        !change.taken.is_empty()
    }

    fn note_eased(&mut self, ino: Ino, flavour: LockFlavour, index: &mut LockIndex<T>) {
        if self.eased.insert((ino, flavour)) {
            index.side_eased();
        }
    }

    /// Grants requests that can be granted now, `max` at most, and returns those that no longer
    /// wait.
    pub(crate) fn grant(&mut self, max: usize, index: &mut LockIndex<T>) -> Vec<T> {
        let mut granted = Vec::new();
        while let Some((ino, flavour)) = self.eased.pop_first() {
            index.side_served();
            if !self.grant_side((ino, flavour), max, &mut granted, index) {
                break;
            }
        }
        granted
    }

    /// Grants requests on one side of an inode. Returns whether none is left that can be granted:
    /// `granted` may have at most `max` requests.
    fn grant_side(
        &mut self,
        (ino, flavour): (Ino, LockFlavour),
        max: usize,
        granted: &mut Vec<T>,
        index: &mut LockIndex<T>,
    ) -> bool {
        let side = self.files.get_mut(&ino).map(|file| file.side_mut(flavour));
        let Some(side) = side else { return true };
        let Some(range) = side.take_eased() else { return true };
        let mut firsts = side.queue().first_arrivals(range);
        while let Some((arrival, class)) = firsts.pop_first() {
            if granted.len() == max {
                let file = self.files.get_mut(&ino).expect("a request waits for it");
                file.side_mut(flavour).ease(range);
                self.note_eased(ino, flavour, index);
                return false;
            }
            let mut classes = vec![class];
            if self.first_arrival(ino, flavour, &class) == Some(arrival) {
                let Some((task, parted)) = self.grant_one(Place { ino, flavour, arrival }, index)
                else {
                    continue;
                };
                granted.push(task);
                classes.extend(parted);
            }
            for class in classes {
                let first = self.first_arrival(ino, flavour, &class);
                firsts.extend(first.map(|arrival| (arrival, class)));
            }
        }
        true
    }

    fn first_arrival(&self, ino: Ino, flavour: LockFlavour, class: &Class) -> Option<u64> {
        self.side(ino, flavour)?.queue().first_arrival(class)
    }

    /// Grants a request if nothing blocks it. Returns it, and the classes that other requests of
    /// its owner enter by that.
    fn grant_one(
        &mut self,
        place: Place,
        index: &mut LockIndex<T>,
    ) -> Option<(T, BTreeSet<Class>)> {
        if !self.side(place.ino, place.flavour)?.may_grant(place.arrival) {
            return None;
        }
        let waiter = self.end_wait(place, index)?;
        let (_, parted) = self.set(place.ino, (waiter.client, waiter.uid), waiter.spec, index);
        Some((waiter.task, parted))
    }

    /// Whether the inode may have another lock of the user's, or request for one. Each waiting
    /// request counts, because it may be granted.
    pub(crate) fn has_room(&self, ino: Ino, uid: u32) -> bool {
        self.files.get(&ino).is_none_or(|file| file.has_room(uid))
    }

    /// Every lock that is held, with its client and the user on whose behalf it is held.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Ino, ClientId, LockSpec, u32)> + '_ {
        self.files.iter().flat_map(|(ino, file)| {
            file.all().map(|((client, _), spec, uid)| (*ino, client, spec, uid))
        })
    }

    /// A request stops waiting.
    pub(crate) fn cancel(&mut self, task: T, index: &mut LockIndex<T>) {
        if let Some(place) = index.place_of(task) {
            self.end_wait(place, index);
        }
    }

    /// Drops everything. Waiting requests are not granted.
    pub(crate) fn clear(&mut self, index: &mut LockIndex<T>) {
        for task in index.tasks_on(|ino| self.files.contains_key(&ino)) {
            self.cancel(task, index);
        }
        let held: Vec<_> = self.all().map(|(ino, client, ..)| (ino, client)).collect();
        for (ino, client) in held {
            self.forget_client(ino, client, index);
        }
    }

    /// Drops everything of a client on the inode. The caller calls [`Self::grant`] next.
    pub(crate) fn forget_client(&mut self, ino: Ino, client: ClientId, index: &mut LockIndex<T>) {
        let places = index.waits_of_client(client).filter(|place| place.ino == ino);
        for place in places.collect::<Vec<_>>() {
            self.end_wait(place, index);
        }
        for flavour in [LockFlavour::Record, LockFlavour::Flock] {
            let owners = self.files.get(&ino).map(|file| file.owners(flavour, client));
            for (client, owner) in owners.into_iter().flatten() {
                self.release(ino, client, flavour, owner, index);
            }
        }
    }
}

#[cfg(test)]
mod tests;
