use std::convert::Infallible;

use warren_base::budget::ROOT;
use warren_base::limits::LOCKS_OF_INODE_MAX;
use warren_base::{Rng, ShardId};

use super::deadlock::would_deadlock;
use super::place::Owner;
use super::*;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const USER: u32 = 1000;

fn spec(owner: u64, lock: LockType, start: u64, end: u64) -> LockSpec {
    LockSpec {
        flavour: LockFlavour::Record,
        owner: LockOwner(owner),
        lock,
        range: ByteRange { start, end },
        pid: owner as u32,
    }
}

fn flock(owner: u64, lock: LockType) -> LockSpec {
    LockSpec { flavour: LockFlavour::Flock, ..spec(owner, lock, 0, u64::MAX) }
}

/// The locks of the shards of a cell, taken as requests take them.
#[derive(Default)]
struct Locks {
    shards: BTreeMap<ShardId, FileLocks<u32>>,
    index: LockIndex<u32>,
}

impl Locks {
    fn of(&mut self, ino: Ino) -> &mut FileLocks<u32> {
        self.shards.entry(ino.shard()).or_default()
    }

    fn lock(
        &mut self,
        ino: Ino,
        who: (ClientId, u32),
        spec: LockSpec,
        wait: Option<u32>,
    ) -> Outcome {
        let Self { shards, index } = self;
        let outcome = shards.entry(ino.shard()).or_default().lock(ino, who, spec, index)?;
        if outcome == LockOutcome::Granted {
            return Ok(outcome);
        }
        let task = wait.ok_or(Errno::EAGAIN)?;
        let locks_of = |ino: Ino| Ok::<_, Infallible>(shards.get(&ino.shard()));
        if spec.flavour == LockFlavour::Record {
            let Ok(would_deadlock) = would_deadlock((ino, who.0, spec), index, locks_of);
            if would_deadlock {
                return Err(Errno::EDEADLK);
            }
        }
        shards.entry(ino.shard()).or_default().wait(ino, task, who, spec, index);
        Ok(outcome)
    }

    fn test(&self, ino: Ino, client: ClientId, spec: &LockSpec) -> Option<LockSpec> {
        self.shards.get(&ino.shard())?.test(ino, client, spec)
    }

    fn has_room(&self, ino: Ino, uid: u32) -> bool {
        self.shards.get(&ino.shard()).is_none_or(|locks| locks.has_room(ino, uid))
    }

    fn all(&self) -> impl Iterator<Item = (Ino, ClientId, LockSpec, u32)> + '_ {
        self.shards.values().flat_map(FileLocks::all)
    }

    fn release(&mut self, ino: Ino, client: ClientId, flavour: LockFlavour, owner: u64) -> bool {
        let Self { shards, index } = self;
        let locks = shards.entry(ino.shard()).or_default();
        locks.release(ino, client, flavour, LockOwner(owner), index)
    }

    fn grant(&mut self, max: usize) -> Vec<u32> {
        let Self { shards, index } = self;
        let mut granted = Vec::new();
        for locks in shards.values_mut() {
            granted.extend(locks.grant(max - granted.len(), index));
        }
        granted
    }

    fn cancel(&mut self, task: u32) {
        if let Some(ino) = self.index.file_of(task) {
            let Self { shards, index } = self;
            shards.entry(ino.shard()).or_default().cancel(task, index);
        }
    }

    fn forget_client(&mut self, client: ClientId) {
        let Self { shards, index } = self;
        for ino in index.files_of(client) {
            shards.entry(ino.shard()).or_default().forget_client(ino, client, index);
        }
    }

    fn is_empty(&self) -> bool {
        self.index.is_empty() && self.shards.values().all(|locks| locks.files.is_empty())
    }

    fn visits(&self) -> u64 {
        self.shards.values().flat_map(|locks| locks.files.values()).map(File::visits).sum()
    }
}

fn lock(locks: &mut Locks, ino: Ino, spec: LockSpec, wait: Option<u32>) -> Outcome {
    locks.lock(ino, (A, USER), spec, wait)
}

type Outcome = Result<LockOutcome, Errno>;

#[test]
fn unlocking_the_middle_leaves_both_ends() {
    let mut locks = Locks::default();
    let ino = Ino::ROOT;
    assert!(lock(&mut locks, ino, spec(1, LockType::Exclusive, 0, 99), None).is_ok());
    assert!(locks.of(ino).splits(ino, A, spec(1, LockType::Unlock, 40, 59)));
    assert!(!locks.of(ino).splits(ino, A, spec(1, LockType::Unlock, 0, 59)));
    assert!(!locks.of(ino).splits(ino, A, spec(1, LockType::Unlock, 40, 99)));
    assert!(lock(&mut locks, ino, spec(1, LockType::Unlock, 40, 59), None).is_ok());
    assert_eq!((locks.index.count(), locks.index.count_of_user(USER)), (2, 2));
    assert!(lock(&mut locks, ino, spec(2, LockType::Exclusive, 40, 59), None).is_ok());
    let in_the_way = locks.test(ino, A, &spec(2, LockType::Shared, 0, 99)).unwrap();
    assert_eq!(in_the_way.range, ByteRange { start: 0, end: 39 });
    let refused = lock(&mut locks, ino, spec(2, LockType::Shared, 60, 60), None);
    assert_eq!(refused, Err(Errno::EAGAIN));
}

#[test]
fn what_touches_is_one_lock() {
    let mut locks = Locks::default();
    let ino = Ino::ROOT;
    for n in [5, 3, 4, 0, 1, 2] {
        let one = spec(1, LockType::Shared, 10 * n, 10 * n + 9);
        assert_eq!(lock(&mut locks, ino, one, None), Ok(LockOutcome::Granted));
    }
    let all = ByteRange { start: 0, end: 59 };
    let held: Vec<_> = locks.all().map(|(.., spec, uid)| (spec.range, uid)).collect();
    assert_eq!(held, [(all, USER)]);
    // Another kind, another user and another process each have their own lock.
    assert!(lock(&mut locks, ino, spec(1, LockType::Exclusive, 60, 69), None).is_ok());
    assert!(locks.lock(ino, (A, ROOT), spec(1, LockType::Exclusive, 70, 79), None).is_ok());
    let other = LockSpec { pid: 7, ..spec(1, LockType::Exclusive, 80, u64::MAX) };
    assert!(lock(&mut locks, ino, other, None).is_ok());
    assert_eq!((locks.index.count(), locks.index.count_of_user(ROOT)), (4, 1));
    locks.forget_client(A);
    assert_eq!((locks.index.count(), locks.index.has_any(A)), (0, false));
}

#[test]
fn a_circle_of_waiters_is_refused() {
    let mut locks = Locks::default();
    let (x, y) = (Ino(2), Ino(3));
    for (ino, owner) in [(x, 1), (y, 2)] {
        assert!(lock(&mut locks, ino, spec(owner, LockType::Exclusive, 0, 9), None).is_ok());
    }
    let waits = lock(&mut locks, y, spec(1, LockType::Exclusive, 0, 9), Some(7));
    assert_eq!(waits, Ok(LockOutcome::Blocked));
    let circle = lock(&mut locks, x, spec(2, LockType::Shared, 0, 9), Some(8));
    assert_eq!(circle, Err(Errno::EDEADLK));
    assert!(locks.release(y, A, LockFlavour::Record, 2));
    assert!(!locks.release(y, A, LockFlavour::Record, 2));
    assert_eq!(locks.grant(usize::MAX), vec![7]);
}

/// Returns whether the search looked at the other shard.
fn search_from_one_shard(locks: &Locks, ino: Ino, spec: LockSpec) -> Result<bool, ShardId> {
    let own = ino.shard();
    let locks_of = |ino: Ino| match ino.shard() {
        shard if shard == own => Ok(locks.shards.get(&shard)),
        shard => Err(shard),
    };
    would_deadlock((ino, A, spec), &locks.index, locks_of)
}

#[test]
fn a_circle_over_two_shards_is_refused() {
    let mut locks = Locks::default();
    let (x, y) = (Ino::new(ShardId(3), 2), Ino::new(ShardId(5), 2));
    let exclusive = |owner| spec(owner, LockType::Exclusive, 0, 9);
    for (ino, owner) in [(x, 1), (y, 2)] {
        assert_eq!(lock(&mut locks, ino, exclusive(owner), None), Ok(LockOutcome::Granted));
    }
    assert_eq!(search_from_one_shard(&locks, y, exclusive(1)), Ok(false), "2 does not wait");
    assert_eq!(lock(&mut locks, y, exclusive(1), Some(7)), Ok(LockOutcome::Blocked));
    assert_eq!(search_from_one_shard(&locks, x, exclusive(2)), Err(y.shard()));
    assert_eq!(lock(&mut locks, x, exclusive(2), Some(8)), Err(Errno::EDEADLK));
    assert_eq!(lock(&mut locks, x, exclusive(3), Some(9)), Ok(LockOutcome::Blocked));
    locks.forget_client(A);
    assert!(locks.is_empty());
}

#[test]
fn what_is_over_the_limit_is_granted_later() {
    let mut locks = Locks::default();
    let files = [Ino::new(ShardId(3), 2), Ino::new(ShardId(5), 2)];
    let mut tasks = 0..;
    for ino in files {
        assert!(lock(&mut locks, ino, flock(1, LockType::Exclusive), None).is_ok());
        for owner in [2, 3] {
            let waits = lock(&mut locks, ino, flock(owner, LockType::Shared), tasks.next());
            assert_eq!(waits, Ok(LockOutcome::Blocked));
        }
    }
    assert!(!locks.index.is_to_grant());
    for ino in files {
        assert!(locks.release(ino, A, LockFlavour::Flock, 1));
    }
    for expected in [vec![0], vec![1, 2], vec![3]] {
        assert!(locks.index.is_to_grant());
        assert_eq!(locks.grant(expected.len()), expected);
    }
    assert_eq!((locks.grant(1), locks.index.is_to_grant()), (vec![], false));
}

#[test]
fn flock_and_record_locks_do_not_see_each_other() {
    let mut locks = Locks::default();
    assert!(lock(&mut locks, Ino::ROOT, flock(1, LockType::Exclusive), None).is_ok());
    let record = spec(2, LockType::Exclusive, 0, 9);
    assert!(lock(&mut locks, Ino::ROOT, record, None).is_ok());
    assert!(locks.of(Ino::ROOT).gives_up(Ino::ROOT, A, flock(1, LockType::Shared)));
    assert!(!locks.of(Ino::ROOT).gives_up(Ino::ROOT, A, flock(2, LockType::Shared)));
}

#[test]
fn waiters_are_served_as_they_came() {
    let mut locks = Locks::default();
    let ino = Ino::ROOT;
    assert!(lock(&mut locks, ino, flock(1, LockType::Exclusive), None).is_ok());
    for (task, owner, kind) in
        [(2, 2, LockType::Shared), (3, 3, LockType::Exclusive), (4, 4, LockType::Shared)]
    {
        let waits = lock(&mut locks, ino, flock(owner, kind), Some(task));
        assert_eq!(waits, Ok(LockOutcome::Blocked));
    }
    assert_eq!(locks.grant(usize::MAX), vec![]);
    locks.release(ino, A, LockFlavour::Flock, 1);
    assert_eq!(locks.grant(usize::MAX), vec![2, 4]);
    locks.cancel(3);
    assert_eq!((locks.index.count(), locks.index.is_to_grant()), (2, false));
    locks.forget_client(A);
    assert!(locks.is_empty());
}

/// The rules as documented, without any index.
#[derive(Clone, Default)]
struct Naive {
    held: Vec<(Owner, u32, LockSpec)>,
    waiting: Vec<(u32, Owner, u32, LockSpec)>,
}

impl Naive {
    fn blockers(&self, owner: Owner, spec: &LockSpec) -> Vec<(Owner, LockSpec)> {
        let in_the_way = |(other, _, held): &&(Owner, u32, LockSpec)| {
            held.flavour == spec.flavour
                && *other != owner
                && held.range.overlaps(spec.range)
                && (held.lock == LockType::Exclusive || spec.lock == LockType::Exclusive)
        };
        self.held.iter().filter(in_the_way).map(|(owner, _, held)| (*owner, *held)).collect()
    }

    fn would_deadlock(&self, owner: Owner, spec: &LockSpec) -> bool {
        let (mut seen, mut open) = (BTreeSet::new(), self.blockers(owner, spec));
        while let Some((next, _)) = open.pop() {
            if next == owner {
                return true;
            }
            if seen.insert(next) {
                let waits = self.waiting.iter().filter(|(_, who, _, wanted)| {
                    *who == next && wanted.flavour == LockFlavour::Record
                });
                open.extend(waits.flat_map(|(_, who, _, wanted)| self.blockers(*who, wanted)));
            }
        }
        false
    }

    /// Sets each byte's lock, in a world of few bytes; `u64::MAX` is the last one.
    fn set(&mut self, owner: Owner, uid: u32, spec: LockSpec) {
        let is_own = |(other, _, held): &(Owner, u32, LockSpec)| {
            *other == owner && held.flavour == spec.flavour
        };
        let (own, mut rest): (Vec<_>, Vec<_>) = self.held.drain(..).partition(is_own);
        let at = |byte: u64| {
            let range = ByteRange { start: byte, end: byte };
            if spec.range.overlaps(range) {
                return (spec.lock != LockType::Unlock).then_some((uid, spec.lock, spec.pid));
            }
            let held = own.iter().find(|(.., held)| held.range.overlaps(range));
            held.map(|(_, uid, held)| (*uid, held.lock, held.pid))
        };
        let mut begun: Option<(u64, (u32, LockType, u32))> = None;
        for byte in 0..=BYTES {
            let now = if byte < BYTES { at(byte) } else { at(u64::MAX) };
            if let Some((start, (uid, lock, pid))) = begun.filter(|(_, was)| Some(*was) != now) {
                let range = ByteRange { start, end: byte - 1 };
                rest.push((owner, uid, LockSpec { lock, range, pid, ..spec }));
                begun = None;
            }
            begun = begun.or(now.map(|now| (byte, now)));
        }
        if let Some((start, (uid, lock, pid))) = begun {
            let range = ByteRange { start, end: u64::MAX };
            rest.push((owner, uid, LockSpec { lock, range, pid, ..spec }));
        }
        self.held = rest;
    }

    fn lock(&mut self, owner: Owner, uid: u32, spec: LockSpec, wait: Option<u32>) -> Outcome {
        if spec.flavour == LockFlavour::Flock {
            self.set(owner, uid, LockSpec { lock: LockType::Unlock, ..spec });
        }
        if spec.lock == LockType::Unlock || self.blockers(owner, &spec).is_empty() {
            self.set(owner, uid, spec);
            return Ok(LockOutcome::Granted);
        }
        let task = wait.ok_or(Errno::EAGAIN)?;
        if spec.flavour == LockFlavour::Record && self.would_deadlock(owner, &spec) {
            return Err(Errno::EDEADLK);
        }
        self.waiting.push((task, owner, uid, spec));
        Ok(LockOutcome::Blocked)
    }

    /// Asserts, for each flavour, that `granted` are the requests that can be granted, in the order
    /// of arrival.
    fn expect_in_order(&self, granted: &[u32]) {
        for flavour in [LockFlavour::Record, LockFlavour::Flock] {
            let is_of = |task: &&u32| {
                self.waiting.iter().any(|(of, .., spec)| of == *task && spec.flavour == flavour)
            };
            let granted: Vec<u32> = granted.iter().filter(is_of).copied().collect();
            let (mut world, mut expected) = (self.clone(), Vec::new());
            loop {
                let before = expected.len();
                for (task, owner, uid, spec) in self.waiting.clone() {
                    if spec.flavour == flavour
                        && !expected.contains(&task)
                        && world.blockers(owner, &spec).is_empty()
                    {
                        world.set(owner, uid, spec);
                        expected.push(task);
                    }
                }
                if expected.len() == before {
                    break;
                }
            }
            assert_eq!(granted, expected, "{flavour:?}");
        }
    }

    /// Takes over the grants, checks that each was possible, and that no other request can be
    /// granted.
    fn follow(&mut self, granted: &[u32]) {
        for task in granted {
            let at = self.waiting.iter().position(|(waiter, ..)| waiter == task).expect("waits");
            let (_, owner, uid, spec) = self.waiting.remove(at);
            assert!(self.blockers(owner, &spec).is_empty(), "{spec:?} is blocked");
            self.set(owner, uid, spec);
        }
        for (task, owner, _, spec) in &self.waiting {
            assert!(!self.blockers(*owner, spec).is_empty(), "{task} waits for nothing");
        }
    }
}

/// Bytes of the world of [`Naive`].
const BYTES: u64 = 24;

fn any_range(rng: &mut Rng) -> ByteRange {
    // Often the same range: requests for the same range wait together.
    if rng.chance(1, 2) {
        let ends = *rng.pick(&[(0, u64::MAX), (4, 9), (8, 8)]);
        return ByteRange { start: ends.0, end: ends.1 };
    }
    let start = rng.below(BYTES);
    let end = start + rng.below(BYTES - start);
    ByteRange { start, end: if rng.chance(1, 4) { u64::MAX } else { end } }
}

fn compare(locks: &Locks, naive: &Naive, ino: Ino, rng: &mut Rng) {
    let order = |(owner, uid, spec): &(Owner, u32, LockSpec)| {
        (spec.flavour, *owner, spec.range, spec.lock == LockType::Exclusive, spec.pid, *uid)
    };
    let all = locks.all().map(|(_, client, spec, uid)| ((client, spec.owner), uid, spec));
    let (mut all, mut expected): (Vec<_>, Vec<_>) = (all.collect(), naive.held.clone());
    all.sort_by_key(order);
    expected.sort_by_key(order);
    assert_eq!(all, expected);
    let waiting = naive.waiting.len();
    assert_eq!(locks.index.count(), expected.len() + waiting);
    for uid in 0..3 {
        let held = expected.iter().filter(|(_, of, _)| *of == uid).count();
        let waiting = naive.waiting.iter().filter(|(_, _, of, _)| *of == uid).count();
        assert_eq!(locks.index.count_of_user(uid), held + waiting);
    }
    for client in [A, B] {
        assert_eq!(locks.index.has_any(client), expected.iter().any(|((of, _), ..)| *of == client));
    }
    let range = any_range(rng);
    for lock in [LockType::Shared, LockType::Exclusive] {
        let wanted = LockSpec { range, ..spec(rng.below(4), lock, 0, 0) };
        let blockers = naive.blockers((A, wanted.owner), &wanted);
        let found = locks.test(ino, A, &wanted);
        let first = blockers.iter().map(|(_, held)| held.range.start).min();
        assert_eq!(found.map(|found| found.range.start), first);
        assert!(found.is_none_or(|found| blockers.iter().any(|(_, held)| *held == found)));
    }
}

fn random_history(seed: u64) {
    let mut rng = Rng::new(seed);
    let (mut locks, mut naive, ino) = (Locks::default(), Naive::default(), Ino::ROOT);
    for task in 0..200 {
        let client = *rng.pick(&[A, B]);
        let (owner, uid) = (LockOwner(rng.below(4)), rng.below(3) as u32);
        let is_waiting = |(_, who, ..): &(u32, Owner, u32, LockSpec)| *who == (client, owner);
        match rng.below(20) {
            0 => {
                locks.forget_client(client);
                naive.held.retain(|((of, _), ..)| *of != client);
                naive.waiting.retain(|(_, (of, _), ..)| *of != client);
            }
            1 => {
                let released = locks.release(ino, client, LockFlavour::Record, owner.0);
                let before = naive.held.len();
                naive.held.retain(|(of, _, held)| {
                    *of != (client, owner) || held.flavour != LockFlavour::Record
                });
                assert_eq!(released, naive.held.len() < before);
            }
            2 | 3 if !naive.waiting.is_empty() => {
                let (task, ..) = *rng.pick(&naive.waiting);
                locks.cancel(task);
                naive.waiting.retain(|(waiter, ..)| *waiter != task);
            }
            // A waiting process sends no other request, except from another thread.
            _ if naive.waiting.iter().any(is_waiting) && rng.chance(9, 10) => continue,
            deed => {
                let kinds = [LockType::Shared, LockType::Exclusive, LockType::Unlock];
                let lock = *rng.pick(&kinds);
                let spec = match deed < 7 {
                    true => flock(owner.0, lock),
                    false => LockSpec { range: any_range(&mut rng), ..spec(owner.0, lock, 0, 0) },
                };
                let wait = rng.chance(1, 2).then_some(task);
                let outcome = locks.lock(ino, (client, uid), spec, wait);
                assert_eq!(outcome, naive.lock((client, owner), uid, spec, wait), "{spec:?}");
            }
        }
        let granted = locks.grant(usize::MAX);
        naive.expect_in_order(&granted);
        naive.follow(&granted);
        compare(&locks, &naive, ino, &mut rng);
    }
    locks.forget_client(A);
    locks.forget_client(B);
    locks.grant(usize::MAX);
    assert!(locks.is_empty());
}

#[test]
fn every_history_is_as_the_rules_say() {
    (0..400).for_each(random_history);
}

const MANY: u64 = 16_000;

/// The most visits of one request: the depth of such a tree, for splits, merges and searches.
const PER_REQUEST: u64 = 400;

/// All of one owner; each of another; shared ones that all meet.
#[test]
fn sixteen_thousand_locks_cost_each_request_little() {
    let ino = Ino::ROOT;
    let one = |n: u64| spec(1, LockType::Exclusive, 2 * n, 2 * n);
    let each = |n: u64| spec(n, LockType::Exclusive, 2 * n, 2 * n);
    let shared = |n: u64| spec(n, LockType::Shared, n, u64::MAX - n);
    let ways: [&dyn Fn(u64) -> LockSpec; 3] = [&one, &each, &shared];
    for way in ways {
        let mut locks = Locks::default();
        let mut before = 0;
        let mut step = |locks: &Locks, request: u64| {
            let now = locks.visits();
            let cost = now.saturating_sub(before);
            assert!(cost < PER_REQUEST, "{cost} at {request}");
            before = now;
        };
        for n in 0..MANY {
            assert_eq!(lock(&mut locks, ino, way(n), None), Ok(LockOutcome::Granted));
            step(&locks, n);
            // A lock that nothing blocks, and a lock that is blocked.
            let free = spec(1 << 40, LockType::Shared, 2 * n + 1, 2 * n + 1);
            locks.test(ino, B, &free);
            locks.test(ino, B, &spec(1 << 40, LockType::Exclusive, 0, u64::MAX));
            step(&locks, n);
        }
        for n in 0..MANY / 2 {
            lock(&mut locks, ino, LockSpec { lock: LockType::Unlock, ..way(n) }, None).unwrap();
            step(&locks, n);
        }
        locks.forget_client(A);
        assert_eq!(locks.index.count(), 0);
    }
}

/// Each waits for one lock of its own, and all for one lock.
#[test]
fn requests_that_wait_cost_only_when_it_is_their_turn() {
    let ino = Ino::ROOT;
    let waiters = MANY / 2;
    for all_for_one in [false, true] {
        let mut locks = Locks::default();
        let range = |n| if all_for_one { (0, u64::MAX) } else { (2 * n, 2 * n) };
        for n in 0..waiters {
            let (start, end) = range(n);
            let held = spec(0, LockType::Exclusive, start, end);
            assert_eq!(lock(&mut locks, ino, held, None), Ok(LockOutcome::Granted));
        }
        for n in 0..waiters {
            let (start, end) = range(n);
            let wanted = spec(n + 1, LockType::Exclusive, start, end);
            let outcome = lock(&mut locks, ino, wanted, Some(n as u32));
            assert_eq!(outcome, Ok(LockOutcome::Blocked));
        }
        let before = locks.visits();
        for n in 0..waiters - 1 {
            let (start, end) = range(n);
            let owner = if all_for_one { n } else { 0 };
            let unlock = spec(owner, LockType::Unlock, start, end);
            assert_eq!(lock(&mut locks, ino, unlock, None), Ok(LockOutcome::Granted));
            assert_eq!(locks.grant(usize::MAX), vec![n as u32]);
        }
        let cost = (locks.visits() - before) / waiters;
        assert!(cost < PER_REQUEST, "{cost} for each");
    }
}

/// The readers of a file release it one by one, and as many writers wait for it.
#[test]
fn readers_that_end_one_by_one_cost_writers_that_wait_little() {
    let ino = Ino::ROOT;
    let all = |owner, lock| spec(owner, lock, 0, u64::MAX);
    let mut locks = Locks::default();
    for n in 0..MANY / 2 {
        let read = lock(&mut locks, ino, all(n, LockType::Shared), None);
        assert_eq!(read, Ok(LockOutcome::Granted));
    }
    for n in 0..MANY / 2 {
        let write = lock(&mut locks, ino, all(MANY + n, LockType::Exclusive), Some(n as u32));
        assert_eq!(write, Ok(LockOutcome::Blocked));
    }
    let before = locks.visits();
    for n in 0..MANY / 2 {
        lock(&mut locks, ino, all(n, LockType::Unlock), None).unwrap();
        let first = if n + 1 == MANY / 2 { vec![0] } else { Vec::new() };
        assert_eq!(locks.grant(usize::MAX), first);
    }
    let cost = (locks.visits() - before) / (MANY / 2);
    assert!(cost < PER_REQUEST, "{cost} for each");
}

/// All threads of a process wait for the same, or each for something else, and get it at once.
#[test]
fn many_threads_of_one_owner_wait_and_go_on_together() {
    let ino = Ino::ROOT;
    for apart in [0, 2] {
        let mut locks = Locks::default();
        lock(&mut locks, ino, spec(1, LockType::Exclusive, 0, u64::MAX), None).unwrap();
        for n in 0..MANY / 2 {
            let wanted = spec(2, LockType::Exclusive, apart * n, apart * n);
            assert_eq!(lock(&mut locks, ino, wanted, Some(n as u32)), Ok(LockOutcome::Blocked));
        }
        let before = locks.visits();
        lock(&mut locks, ino, spec(1, LockType::Unlock, 0, u64::MAX), None).unwrap();
        assert!(locks.grant(usize::MAX).into_iter().eq(0..MANY as u32 / 2));
        let cost = (locks.visits() - before) / (MANY / 2);
        assert!(cost < PER_REQUEST, "{cost} for each");
    }
}

#[test]
fn an_inode_has_room_for_every_user_and_root() {
    let mut locks = Locks::default();
    let ino = Ino::ROOT;
    let mut taken = 0;
    while locks.has_room(ino, USER) {
        let one = spec(1, LockType::Exclusive, 2 * taken, 2 * taken);
        assert_eq!(lock(&mut locks, ino, one, None), Ok(LockOutcome::Granted));
        taken += 1;
    }
    assert!((LOCKS_OF_INODE_MAX as u64 * 7 / 16..LOCKS_OF_INODE_MAX as u64 / 2).contains(&taken));
    assert!(locks.has_room(ino, USER + 1) && locks.has_room(ino, ROOT));
    assert!(locks.has_room(Ino(9), USER));
    // Requests that wait count, because each of them may get its lock.
    for locks in [&mut locks, &mut Locks::default()] {
        let mut tasks = 0..;
        let one = spec(1, LockType::Exclusive, 0, 0);
        locks.lock(ino, (A, ROOT), one, None).unwrap();
        let mut wait = |locks: &mut Locks, uid: u32| {
            let wanted = spec(2, LockType::Shared, 0, 0);
            let outcome = locks.lock(ino, (B, uid), wanted, tasks.next());
            assert_eq!(outcome, Ok(LockOutcome::Blocked));
        };
        while locks.has_room(ino, USER) {
            wait(locks, USER);
        }
        let own = locks.index.count_of_user(USER);
        assert!((LOCKS_OF_INODE_MAX * 7 / 16..LOCKS_OF_INODE_MAX / 2).contains(&own), "{own}");
        assert!(locks.has_room(ino, USER + 1) && locks.has_room(ino, ROOT));
        wait(locks, USER + 1);
        wait(locks, ROOT);
    }
}
