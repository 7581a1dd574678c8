//! Advisory file locks: `fcntl` record locks and `flock`, held, waited for, and released.
//!
//! Waiting requests are served in the order in which they came, as far as they can be; a later one may
//! pass an earlier one that is still blocked, as on Linux. Deadlock among record locks is found by
//! following who waits for whom.
//!
//! Each lock is in the index of its owner, whose locks of one flavour on an inode never overlap, and in an
//! [`Intervals`] with all others of its kind, which finds what stands in the way of an owner. Nothing looks at all
//! locks, or at all requests that wait.
//!
//! **Classes.** Requests that wait for the same kind of lock on the same range are blocked by the same locks, except by
//! their owners' own. So they are a [`Class`]; a request whose owner has a lock in the range is in a class of that
//! owner's. If the first request of a class is blocked all are, and the others are not looked at. A release costs a look
//! at each class that it may concern, and at each request that it lets go on, however many wait.
//!
//! How many requests wait is bounded where they come from: each waits in a slot of its own, and counts with what is held
//! for the room of the inode ([`FileLocks::has_room`]) and of the log's snapshot.
//!
//! Invariants:
//! * No request waits that could be granted, once [`FileLocks::grant`] was called after a change and has returned
//!   less than it was allowed to.
//! * All requests of a class can be granted now, or none.

mod interval;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use warren_base::budget::may_take;
use warren_base::limits::LOCKS_OF_INODE_MAX;
use warren_base::{ClientId, Errno, Ino};
use warren_proto::{ByteRange, LockFlavour, LockOwner, LockSpec, LockType};

use interval::Intervals;

/// An owner, fleet-wide: owners are numbered by each client.
type Owner = (ClientId, LockOwner);

/// Where a request waits: on which inode, for which flavour, and which it was in the order of arrival.
type Place = (Ino, LockFlavour, u64);

/// Who waits for whom is followed over so many locks; a circle that is longer, or among so many, is not found, as
/// Linux finds none of more than ten.
const DEADLOCK_STEPS_MAX: usize = 4096;

/// The rest of a lock, beside whose it is and where it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    end: u64,
    lock: LockType,
    pid: u32,
    /// The user whom it counts for.
    uid: u32,
}

/// What requests have in common that are blocked, all of them, or none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Class {
    range: ByteRange,
    is_exclusive: bool,
    /// All are of this owner. If `None`, none of their owners has a lock in the range.
    owner: Option<Owner>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter<T> {
    task: T,
    client: ClientId,
    spec: LockSpec,
    uid: u32,
    class: Class,
}

impl<T> Waiter<T> {
    const fn owner(&self) -> Owner {
        (self.client, self.spec.owner)
    }
}

/// Locks of one flavour on one inode, which do not see those of the other.
#[derive(Debug)]
struct Side<T> {
    own: BTreeMap<(Owner, u64), Held>,
    shared: Intervals<Owner>,
    exclusive: Intervals<Owner>,
    /// By arrival.
    waiters: BTreeMap<u64, Waiter<T>>,
    /// The arrivals of each class, none of which is empty, and where they want something.
    classes: BTreeMap<Class, BTreeSet<u64>>,
    waiting: Intervals<Class>,
    /// The arrivals of each owner whose requests are not in classes of its own.
    strangers: BTreeMap<Owner, BTreeSet<u64>>,
    /// Where locks were given up or made weaker since requests were granted.
    eased: Option<ByteRange>,
}

impl<T> Default for Side<T> {
    fn default() -> Self {
        Self {
            own: BTreeMap::new(),
            shared: Intervals::default(),
            exclusive: Intervals::default(),
            waiters: BTreeMap::new(),
            classes: BTreeMap::new(),
            waiting: Intervals::default(),
            strangers: BTreeMap::new(),
            eased: None,
        }
    }
}

/// What a user has, held and waited for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Count {
    held: usize,
    waiting: usize,
}

impl Count {
    const NONE: Self = Self { held: 0, waiting: 0 };

    const fn all(self) -> usize {
        self.held + self.waiting
    }
}

/// What is counted for one inode, and for all.
#[derive(Debug, Default)]
struct Counts {
    all: Count,
    by_user: BTreeMap<u32, Count>,
}

impl Counts {
    fn change(&mut self, uid: u32, change: impl Fn(&mut Count)) {
        change(&mut self.all);
        let own = self.by_user.entry(uid).or_default();
        change(own);
        if *own == Count::NONE {
            self.by_user.remove(&uid);
        }
    }

    fn of(&self, uid: u32) -> Count {
        self.by_user.get(&uid).copied().unwrap_or_default()
    }
}

#[derive(Debug)]
struct File<T> {
    record: Side<T>,
    flock: Side<T>,
    counts: Counts,
}

impl<T> File<T> {
    fn new() -> Self {
        Self { record: Side::default(), flock: Side::default(), counts: Counts::default() }
    }

    const fn side(&self, flavour: LockFlavour) -> &Side<T> {
        match flavour {
            LockFlavour::Record => &self.record,
            LockFlavour::Flock => &self.flock,
        }
    }

    const fn side_mut(&mut self, flavour: LockFlavour) -> &mut Side<T> {
        match flavour {
            LockFlavour::Record => &mut self.record,
            LockFlavour::Flock => &mut self.flock,
        }
    }
}

/// Locks of all inodes of the cell. `T` names a waiting request.
#[derive(Debug)]
pub(crate) struct FileLocks<T> {
    /// None is empty.
    files: BTreeMap<Ino, File<T>>,
    counts: Counts,
    /// On which inodes a client has how many locks.
    by_client: BTreeMap<ClientId, BTreeMap<Ino, usize>>,
    /// Where an owner waits, and where a request does.
    waiting: BTreeMap<Owner, BTreeSet<Place>>,
    places: BTreeMap<T, Place>,
    arrivals: u64,
    /// Where something may be granted.
    eased: BTreeSet<(Ino, LockFlavour)>,
}

/// What became of a wanted lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockOutcome {
    Granted,
    Waits,
}

impl<T: Copy> Side<T> {
    const fn kind(&mut self, lock: LockType) -> &mut Intervals<Owner> {
        match lock {
            LockType::Exclusive => &mut self.exclusive,
            LockType::Shared | LockType::Unlock => &mut self.shared,
        }
    }

    /// The first of others' locks that stands in the way of `spec`.
    fn blocker(&self, client: ClientId, spec: &LockSpec) -> Option<(ByteRange, Owner)> {
        let except = Some((client, spec.owner));
        let exclusive = self.exclusive.first(spec.range, except);
        if spec.lock != LockType::Exclusive {
            return exclusive;
        }
        let both = exclusive.into_iter().chain(self.shared.first(spec.range, except));
        both.min_by_key(|(range, owner)| (range.start, *owner))
    }

    fn put(&mut self, owner: Owner, start: u64, held: Held) {
        self.own.insert((owner, start), held);
        self.kind(held.lock).insert(ByteRange { start, end: held.end }, owner);
    }

    fn take(&mut self, owner: Owner, start: u64) -> Option<Held> {
        let held = self.own.remove(&(owner, start))?;
        self.kind(held.lock).remove(start, owner);
        Some(held)
    }

    /// The owner's last lock that begins at `start` or before.
    fn own_before(&self, owner: Owner, start: u64) -> Option<(u64, Held)> {
        let ((_, start), held) = self.own.range((owner, 0)..=(owner, start)).next_back()?;
        Some((*start, *held))
    }

    /// Takes out what the owner has in the range, and puts back what reaches beyond it: what was taken out, and how
    /// many were put back.
    fn cut(&mut self, owner: Owner, range: ByteRange) -> (Vec<(u64, Held)>, Vec<Held>) {
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        while let Some((start, held)) = self.own_before(owner, range.end)
            && held.end >= range.start
        {
            self.take(owner, start);
            taken.push((start, held));
            // What reaches behind first: what reaches before it begins where this did.
            if held.end > range.end {
                self.put(owner, range.end + 1, held);
                left.push(held);
            }
            if start < range.start {
                let before = Held { end: range.start - 1, ..held };
                self.put(owner, start, before);
                left.push(before);
                break;
            }
        }
        (taken, left)
    }

    /// Puts a lock in, joined with the owner's like ones that it touches: how many these were.
    fn put_joined(&mut self, owner: Owner, mut start: u64, mut held: Held) -> usize {
        let like = |other: &Held| Held { end: held.end, ..*other } == held;
        let before = start.checked_sub(1).and_then(|end| {
            self.own_before(owner, end).filter(|(_, other)| other.end == end && like(other))
        });
        let behind = held.end.checked_add(1).and_then(|next| {
            self.own.get(&(owner, next)).filter(|other| like(other)).map(|other| (next, *other))
        });
        for (at, _) in before.into_iter().chain(behind) {
            self.take(owner, at);
        }
        start = before.map_or(start, |(start, _)| start);
        held.end = behind.map_or(held.end, |(_, other)| other.end);
        self.put(owner, start, held);
        usize::from(before.is_some()) + usize::from(behind.is_some())
    }

    fn class_of(&self, client: ClientId, spec: &LockSpec) -> Class {
        let owner = (client, spec.owner);
        let has_some = self
            .own_before(owner, spec.range.end)
            .is_some_and(|(_, held)| held.end >= spec.range.start);
        let is_exclusive = spec.lock == LockType::Exclusive;
        Class { range: spec.range, is_exclusive, owner: has_some.then_some(owner) }
    }

    fn enter(&mut self, arrival: u64, waiter: Waiter<T>) {
        let class = waiter.class;
        match self.classes.entry(class) {
            Entry::Occupied(mut entry) => drop(entry.get_mut().insert(arrival)),
            Entry::Vacant(entry) => {
                entry.insert(BTreeSet::from([arrival]));
                self.waiting.insert(class.range, class);
            }
        }
        if class.owner.is_none() {
            self.strangers.entry(waiter.owner()).or_default().insert(arrival);
        }
        self.waiters.insert(arrival, waiter);
    }

    fn leave(&mut self, arrival: u64) -> Option<Waiter<T>> {
        let waiter = self.waiters.remove(&arrival)?;
        let class = waiter.class;
        if remove_from(&mut self.classes, &class, arrival) {
            self.waiting.remove(class.range.start, class);
        }
        if class.owner.is_none() {
            remove_from(&mut self.strangers, &waiter.owner(), arrival);
        }
        Some(waiter)
    }

    /// The owner has got a lock: its requests that wait are in classes of its own from now on, wherever the lock is,
    /// so that each changes its class once.
    fn part_from_strangers(&mut self, owner: Owner) {
        for arrival in self.strangers.remove(&owner).into_iter().flatten() {
            let mut waiter = self.waiters.remove(&arrival).expect("a stranger waits");
            if remove_from(&mut self.classes, &waiter.class, arrival) {
                self.waiting.remove(waiter.class.range.start, waiter.class);
            }
            waiter.class.owner = Some(owner);
            self.enter(arrival, waiter);
        }
    }

    /// The first request of the class to come.
    fn first_of(&self, class: &Class) -> Option<u64> {
        self.classes.get(class)?.first().copied()
    }

    fn ease(&mut self, range: ByteRange) {
        let all = self.eased.get_or_insert(range);
        *all = ByteRange { start: all.start.min(range.start), end: all.end.max(range.end) };
    }
}

/// Takes `arrival` out of the set of `key`. Whether it was the last of it.
fn remove_from<K: Ord>(sets: &mut BTreeMap<K, BTreeSet<u64>>, key: &K, arrival: u64) -> bool {
    let Some(set) = sets.get_mut(key) else { return false };
    set.remove(&arrival);
    let is_last = set.is_empty();
    if is_last {
        sets.remove(key);
    }
    is_last
}

impl<T: Copy + Ord> FileLocks<T> {
    pub(crate) fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            counts: Counts::default(),
            by_client: BTreeMap::new(),
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            arrivals: 0,
            eased: BTreeSet::new(),
        }
    }

    fn side(&self, ino: Ino, flavour: LockFlavour) -> Option<&Side<T>> {
        self.files.get(&ino).map(|file| file.side(flavour))
    }

    /// The first lock in the way of `spec`.
    pub(crate) fn test(&self, ino: Ino, client: ClientId, spec: &LockSpec) -> Option<LockSpec> {
        let side = self.side(ino, spec.flavour)?;
        let (range, owner) = side.blocker(client, spec)?;
        let held = side.own[&(owner, range.start)];
        let (flavour, lock, pid) = (spec.flavour, held.lock, held.pid);
        Some(LockSpec { flavour, owner: owner.1, lock, range, pid })
    }

    /// Takes, changes or releases a lock on behalf of `uid`. EAGAIN if it cannot be had and `wait` is `None`;
    /// EDEADLK if waiting would never end. [`Self::grant`] comes next.
    pub(crate) fn lock(
        &mut self,
        ino: Ino,
        (client, uid): (ClientId, u32),
        spec: LockSpec,
        wait: Option<T>,
    ) -> Result<LockOutcome, Errno> {
        if spec.range.start > spec.range.end {
            return Err(Errno::EINVAL);
        }
        if spec.flavour == LockFlavour::Flock {
            // Changing a flock gives the old one up first, as on Linux, so that two who share it and
            // both want it alone do not wait for each other.
            self.set(ino, (client, uid), LockSpec { lock: LockType::Unlock, ..spec });
        }
        let is_blocked = || {
            let side = self.side(ino, spec.flavour);
            side.is_some_and(|side| side.blocker(client, &spec).is_some())
        };
        if spec.lock == LockType::Unlock || !is_blocked() {
            self.set(ino, (client, uid), spec);
            return Ok(LockOutcome::Granted);
        }
        let task = wait.ok_or(Errno::EAGAIN)?;
        if spec.flavour == LockFlavour::Record && self.would_deadlock(ino, client, &spec) {
            return Err(Errno::EDEADLK);
        }
        self.await_turn(ino, task, (client, uid), spec);
        Ok(LockOutcome::Waits)
    }

    fn await_turn(&mut self, ino: Ino, task: T, (client, uid): (ClientId, u32), spec: LockSpec) {
        let file = self.files.entry(ino).or_insert_with(File::new);
        self.arrivals += 1;
        let place = (ino, spec.flavour, self.arrivals);
        file.counts.change(uid, |count| count.waiting += 1);
        self.counts.change(uid, |count| count.waiting += 1);
        let side = file.side_mut(spec.flavour);
        let class = side.class_of(client, &spec);
        side.enter(self.arrivals, Waiter { task, client, spec, uid, class });
        self.waiting.entry((client, spec.owner)).or_default().insert(place);
        self.places.insert(task, place);
    }

    fn end_wait(&mut self, place: Place) -> Option<Waiter<T>> {
        let (ino, flavour, arrival) = place;
        let file = self.files.get_mut(&ino)?;
        let waiter = file.side_mut(flavour).leave(arrival)?;
        file.counts.change(waiter.uid, |count| count.waiting -= 1);
        self.counts.change(waiter.uid, |count| count.waiting -= 1);
        self.places.remove(&waiter.task);
        if let Some(places) = self.waiting.get_mut(&waiter.owner()) {
            places.remove(&place);
            if places.is_empty() {
                self.waiting.remove(&waiter.owner());
            }
        }
        self.drop_if_empty(ino);
        Some(waiter)
    }

    fn drop_if_empty(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(|file| file.counts.all == Count::NONE) {
            self.files.remove(&ino);
        }
    }

    /// Whether somebody whom `spec` would wait for waits (directly or not) for its owner.
    fn would_deadlock(&self, ino: Ino, client: ClientId, spec: &LockSpec) -> bool {
        let me = (client, spec.owner);
        let (mut seen, mut steps) = (BTreeSet::new(), 0);
        let mut open = vec![(ino, client, *spec)];
        while let Some((ino, client, spec)) = open.pop() {
            let Some(side) = self.side(ino, LockFlavour::Record) else { continue };
            let mut found = false;
            let mut see = |_: ByteRange, owner: Owner| {
                steps += 1;
                found |= owner == me;
                if found || steps > DEADLOCK_STEPS_MAX {
                    return ControlFlow::Break(());
                }
                if let Some(places) = self.waiting.get(&owner).filter(|_| seen.insert(owner)) {
                    let places = places.iter().take(DEADLOCK_STEPS_MAX);
                    open.extend(places.filter_map(|place| self.record_waiter(*place)));
                }
                ControlFlow::Continue(())
            };
            let except = Some((client, spec.owner));
            let _ = side.exclusive.visit(spec.range, except, &mut see);
            if spec.lock == LockType::Exclusive {
                let _ = side.shared.visit(spec.range, except, &mut see);
            }
            if found || steps > DEADLOCK_STEPS_MAX {
                return found;
            }
        }
        false
    }

    fn record_waiter(&self, place: Place) -> Option<(Ino, ClientId, LockSpec)> {
        let (ino, flavour, arrival) = place;
        let side = self.side(ino, flavour).filter(|_| flavour == LockFlavour::Record)?;
        side.waiters.get(&arrival).map(|waiter| (ino, waiter.client, waiter.spec))
    }

    /// Whether the owner gives up a lock when it asks for `spec`, whatever becomes of that.
    pub(crate) fn gives_up(&self, ino: Ino, client: ClientId, spec: LockSpec) -> bool {
        let side = self.side(ino, spec.flavour).filter(|_| spec.flavour == LockFlavour::Flock);
        side.is_some_and(|side| side.own_before((client, spec.owner), u64::MAX).is_some())
    }

    /// Whether the owner has the lock.
    pub(crate) fn holds(&self, ino: Ino, client: ClientId, spec: LockSpec) -> bool {
        let side = self.side(ino, spec.flavour);
        let own = side.and_then(|it| it.own_before((client, spec.owner), spec.range.start));
        own.is_some_and(|(_, held)| held.end >= spec.range.end && held.lock == spec.lock)
    }

    /// Whether `spec` makes two locks of one.
    pub(crate) fn splits(&self, ino: Ino, client: ClientId, spec: LockSpec) -> bool {
        let Some(before) = spec.range.start.checked_sub(1) else { return false };
        let side = self.side(ino, spec.flavour);
        let around = side.and_then(|side| side.own_before((client, spec.owner), before));
        around.is_some_and(|(_, held)| held.end > spec.range.end)
    }

    /// Replaces what the owner holds in the range by `spec`. Whether there is any change.
    fn set(&mut self, ino: Ino, (client, uid): (ClientId, u32), spec: LockSpec) -> bool {
        let owner = (client, spec.owner);
        let takes = spec.lock != LockType::Unlock;
        if !takes && !self.files.contains_key(&ino) {
            return false;
        }
        let file = self.files.entry(ino).or_insert_with(File::new);
        let side = file.side_mut(spec.flavour);
        let (taken, left) = side.cut(owner, spec.range);
        let held = Held { end: spec.range.end, lock: spec.lock, pid: spec.pid, uid };
        let mut joined = 0;
        if takes {
            joined = side.put_joined(owner, spec.range.start, held);
            side.part_from_strangers(owner);
        }
        if let (Some((_, last)), Some((first, _))) = (taken.first(), taken.last())
            && !side.waiters.is_empty()
        {
            side.ease(ByteRange { start: *first, end: last.end });
            self.eased.insert((ino, spec.flavour));
        }
        for counts in [&mut file.counts, &mut self.counts] {
            taken.iter().for_each(|(_, held)| counts.change(held.uid, |count| count.held -= 1));
            left.iter().for_each(|held| counts.change(held.uid, |count| count.held += 1));
            if takes {
                counts.change(uid, |count| count.held = count.held + 1 - joined);
            }
        }
        let now = left.len() + usize::from(takes);
        self.count_client(client, ino, now, taken.len() + joined);
        self.drop_if_empty(ino);
        takes || !taken.is_empty()
    }

    fn count_client(&mut self, client: ClientId, ino: Ino, more: usize, less: usize) {
        let files = self.by_client.entry(client).or_default();
        let count = files.entry(ino).or_default();
        *count = *count + more - less;
        if *count == 0 {
            files.remove(&ino);
        }
        if files.is_empty() {
            self.by_client.remove(&client);
        }
    }

    /// Releases all of the owner's locks of one flavour on the inode. Whether there were any.
    pub(crate) fn release(
        &mut self,
        ino: Ino,
        client: ClientId,
        flavour: LockFlavour,
        owner: LockOwner,
    ) -> bool {
        let spec =
            LockSpec { flavour, owner, lock: LockType::Unlock, range: ByteRange::ALL, pid: 0 };
        self.set(ino, (client, 0), spec)
    }

    /// Whether a request that waits may be one that can be granted.
    pub(crate) fn is_to_grant(&self) -> bool {
        !self.eased.is_empty()
    }

    /// Grants what can be granted now, `max` requests at most, and returns those that no longer wait.
    pub(crate) fn grant(&mut self, max: usize) -> Vec<T> {
        let mut granted = Vec::new();
        while let Some((ino, flavour)) = self.eased.pop_first() {
            let side = self.files.get_mut(&ino).map(|file| file.side_mut(flavour));
            let Some(side) = side else { continue };
            let Some(range) = side.eased.take() else { continue };
            let mut firsts = BTreeSet::new();
            let _ = side.waiting.visit(range, None, &mut |_, class| {
                firsts.extend(side.first_of(&class).map(|arrival| (arrival, class)));
                ControlFlow::Continue(())
            });
            while let Some((arrival, class)) = firsts.pop_first() {
                if granted.len() == max {
                    let file = self.files.get_mut(&ino).expect("a request waits for it");
                    file.side_mut(flavour).ease(range);
                    self.eased.insert((ino, flavour));
                    return granted;
                }
                let mut classes = vec![class];
                if self.first_of(ino, flavour, &class) == Some(arrival) {
                    let Some((task, parted)) = self.grant_one((ino, flavour, arrival)) else {
                        continue;
                    };
                    granted.push(task);
                    classes.extend(parted);
                }
                for class in classes {
                    let first = self.first_of(ino, flavour, &class);
                    firsts.extend(first.map(|arrival| (arrival, class)));
                }
            }
        }
        granted
    }

    fn first_of(&self, ino: Ino, flavour: LockFlavour, class: &Class) -> Option<u64> {
        self.side(ino, flavour)?.first_of(class)
    }

    /// Grants a request if nothing is in its way. Returns it, and the classes into which others of its owner come by
    /// that.
    fn grant_one(&mut self, place: Place) -> Option<(T, BTreeSet<Class>)> {
        let (ino, flavour, arrival) = place;
        let side = self.side(ino, flavour)?;
        let waiter = side.waiters.get(&arrival)?;
        if side.blocker(waiter.client, &waiter.spec).is_some() {
            return None;
        }
        let waiter = self.end_wait(place)?;
        let strangers = self.side(ino, flavour).and_then(|it| it.strangers.get(&waiter.owner()));
        let strangers = strangers.cloned().unwrap_or_default();
        self.set(ino, (waiter.client, waiter.uid), waiter.spec);
        let side = self.side(ino, flavour).expect("it has this lock");
        let parted = strangers.iter().map(|arrival| side.waiters[arrival].class).collect();
        Some((waiter.task, parted))
    }

    /// Whether the inode may have another lock of the user's, or request for one: each of those that wait may get what
    /// it waits for.
    pub(crate) fn has_room(&self, ino: Ino, uid: u32) -> bool {
        let Some(file) = self.files.get(&ino) else { return true };
        let (own, all) = (file.counts.of(uid).all(), file.counts.all.all());
        may_take(uid, own, all, LOCKS_OF_INODE_MAX)
    }

    /// How many locks are held or waited for.
    pub(crate) const fn count(&self) -> usize {
        self.counts.all.all()
    }

    /// How many of them are the user's.
    pub(crate) fn count_of_user(&self, uid: u32) -> usize {
        self.counts.of(uid).all()
    }

    /// Whether the client holds any.
    pub(crate) fn has_any(&self, client: ClientId) -> bool {
        self.by_client.contains_key(&client)
    }

    /// Every lock that is held, by which client and on behalf of which user.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Ino, ClientId, LockSpec, u32)> + '_ {
        self.files.iter().flat_map(|(ino, file)| {
            [LockFlavour::Record, LockFlavour::Flock].into_iter().flat_map(move |flavour| {
                file.side(flavour).own.iter().map(move |(((client, owner), start), held)| {
                    let Held { end, lock, pid, uid } = *held;
                    let range = ByteRange { start: *start, end };
                    (*ino, *client, LockSpec { flavour, owner: *owner, lock, range, pid }, uid)
                })
            })
        })
    }

    /// A request gives up waiting.
    pub(crate) fn cancel(&mut self, task: T) {
        if let Some(place) = self.places.get(&task).copied() {
            self.end_wait(place);
        }
    }

    /// Drops everything of a client. [`Self::grant`] comes next.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        let owners = (client, LockOwner(0))..=(client, LockOwner(u64::MAX));
        let places: Vec<Place> =
            self.waiting.range(owners.clone()).flat_map(|(_, places)| places).copied().collect();
        for place in places {
            self.end_wait(place);
        }
        for ino in self
            .by_client
            .get(&client)
            .into_iter()
            .flatten()
            .map(|(ino, _)| *ino)
            .collect::<Vec<_>>()
        {
            for flavour in [LockFlavour::Record, LockFlavour::Flock] {
                let held = |side: &Side<T>| {
                    let places = (*owners.start(), 0)..=(*owners.end(), u64::MAX);
                    side.own.range(places).map(|((owner, _), _)| owner.1).collect::<BTreeSet<_>>()
                };
                for owner in self.side(ino, flavour).map(held).into_iter().flatten() {
                    self.release(ino, client, flavour, owner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
