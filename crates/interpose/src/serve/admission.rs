//! When a process becomes a client of the fleet, and when it stops being one.
//!
//! ```text
//!        a path on no disk           calls in a mount have cost enough
//!  Young ────────────────────▶ Looking ──────────────────────▶ admitted (facts are current)
//!    ▲ │ no mount of ours         │ no plain rights               │ mount changed, fleet gone,
//!    │ └────────▶ Never ◀─────────┘                               │ credentials changed
//!    └────────────────────────────────────────────────────────────┘
//! ```
//!
//! Most processes are short or use no mount of ours, and pay for counting only. Of the others,
//! every sixteenth path is examined, by a call that takes a microsecond. A slow call counts for
//! several, so that a process whose calls all go through a front is noticed soon. If such a path
//! lies on a file system without a disk, as ours does, the kernel is asked for the mount. Mountinfo
//! takes a hundred microseconds, and is read if that is not known, or if the process has used some
//! such file systems and none of them was ours. A failed admission is tried again a few times,
//! after many more calls.
//!
//! An admission ends in two steps. Its facts are withdrawn at once, by any thread, so that no call
//! is answered any more. The client ends under the lock: at once, or when the thread that has the
//! lock releases it.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};
use core::time::Duration;

use crate::fleet::{self, Admitted, Client, Found, Mounted};
use crate::state::FILTERED;
use crate::stub;

use super::facts::{self, Admission, MountFacts};
use super::files::{passing, pending, placeholder, takeover};
use super::kernel::{BASIC_STATS, BTIME, MNT_ID, MNT_ID_UNIQUE, Statx};
use super::lock::{self, Room};
use super::look::{self, Looked};
use super::mountinfo::Options;
use super::name::{Name, PREFIX, Prefix};
use super::request::Named;
use super::statmount::{self, Seen};
use super::why::{self, Refusal, Why};
use super::{clock, cwd, descriptors, proc};

/// Calls by path before paths are examined, and the part of them that is.
const SURVEY_AFTER: u32 = 32;
const EXAMINED: u32 = 16;
/// A call counts for one more for each so many cycles that it took, up to half a part. Local file
/// systems take less, and a front more.
const SLOW: u64 = 40_000;
const SLOW_MAX: u64 = EXAMINED as u64 / 2;
/// What calls by path in a mount may cost before the fleet is asked: about as much as an
/// admission, which takes a millisecond on an idle machine and seven on a busy one, where the calls
/// take longer as well. So a process pays at most about twice what it would have paid at best,
/// whether its calls are cheap (the kernel has the names) or dear. In cycles: half a millisecond to
/// three.
const ADMIT_AFTER: u64 = 3_000_000;
/// What a single call counts for at most. One that took longer has waited for something else.
const CALL_MAX: u64 = ADMIT_AFTER / 10;
/// After each failure this many times as many.
const PATIENCE: u32 = 8;
const FAILURES_MAX: u32 = 4;
/// Comparisons of the root, as the kernel has it, with what the fleet has, until they agree.
const COMPARISONS: usize = 4;
/// Mounts that are looked after, until one is used.
const CANDIDATES: usize = 8;
/// Paths on other file systems without disks, after which all mounts are looked at.
const OTHERS_MAX: u32 = 4;
/// How long a call by path waits for the lock at most, in parts. A file that is left to the kernel
/// costs several calls.
const WAIT_OF_PATHS: Duration = Duration::from_micros(250);
const WAITS_OF_PATHS: usize = 4;
/// A call that only the fleet can make waits as long as it takes, in parts.
const WAIT_OF_FILES: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Young = 0,
    Looking = 1,
    Never = 2,
}

struct Candidate {
    prefix: Prefix,
    /// What its calls have cost.
    cycles: AtomicU64,
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Young as u8);
/// Never, and children neither.
static FOREVER: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU32 = AtomicU32::new(0);
/// What calls by relative paths, and on files that may be ours, have cost.
static RELATIVE_CYCLES: AtomicU64 = AtomicU64::new(0);
static FAILURES: AtomicU32 = AtomicU32::new(0);
static OTHERS: AtomicU32 = AtomicU32::new(0);
/// `FOUND` has all mounts that there were.
static HAS_ALL: AtomicBool = AtomicBool::new(false);
static FOUND: [Candidate; CANDIDATES] =
    [const { Candidate { prefix: Prefix::new(), cycles: AtomicU64::new(0) } }; CANDIDATES];
/// The program's `XDG_RUNTIME_DIR`.
static RUNTIME_DIR: Prefix = Prefix::new();

/// The client exists. Changed under the lock.
static IS_CLIENT: AtomicBool = AtomicBool::new(false);
/// What the thread that has the lock, or is the next to have it, is to do: these two.
static WANTED: AtomicU8 = AtomicU8::new(0);
const END: u8 = 1;
const UNPIN: u8 = 2;
/// The open mountinfo of a client.
static MOUNTS: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Keeps the value of `XDG_RUNTIME_DIR`, before the program starts.
pub(crate) fn set_runtime_dir(mut path: &[u8]) {
    while let [before @ .., b'/'] = path {
        path = before;
    }
    RUNTIME_DIR.set(path.iter().copied());
}

pub(crate) fn phase() -> Phase {
    match PHASE.load(Relaxed) {
        0 => Phase::Young,
        1 => Phase::Looking,
        _ => Phase::Never,
    }
}

/// A call by path of a young process, which took so many cycles. Returns whether its path is to be
/// examined.
pub(crate) fn count_young(cycles: u64) -> bool {
    let weight = 1 + (cycles / SLOW).min(SLOW_MAX) as u32;
    let before = CALLS.fetch_add(weight, Relaxed);
    let calls = before.wrapping_add(weight);
    calls >= patience(SURVEY_AFTER) && before / EXAMINED != calls / EXAMINED
}

/// Looks for a mount of ours if the path at this address may lie in one: the kernel gives numbers
/// without a major part to devices that are no disks. The path is the program's.
#[cold]
#[inline(never)]
pub(crate) fn examine(Named { path, descriptor }: Named) {
    // It asks the file system for nothing. What is to be made is not there, but its directory is.
    let found = Statx::of_path(descriptor, path, MNT_ID_UNIQUE)
        .or_else(|| look::directory_of(path, descriptor));
    if let Some(found) = found.filter(|found| found.device().0 == 0) {
        exclusive(|room| meet(&found, room));
    }
}

/// The process uses this file.
fn meet(found: &Statx, room: &mut Room) {
    match statmount::of(found, &mut room.text) {
        Seen::Ours(at) => {
            if phase() != Phase::Never && add(at) {
                advance(Phase::Looking);
            }
        }
        Seen::Other if OTHERS.fetch_add(1, Relaxed) + 1 < OTHERS_MAX => {}
        Seen::Other | Seen::Unknown => survey(room),
    }
}

/// Looks after the mount at this path. Returns whether there was room.
fn add(at: &[u8]) -> bool {
    let is_there = |candidate: &Candidate| candidate.prefix.rest(at).is_some_and(|it| it == b"/");
    if FOUND.iter().any(is_there) {
        return true;
    }
    let mut free = FOUND.iter().filter(|candidate| candidate.prefix.is_empty());
    free.next().is_some_and(|candidate| {
        candidate.cycles.store(0, Relaxed);
        candidate.prefix.set(at.iter().copied())
    })
}

/// Where the cost of calls by this path is counted, while mounts are looked after. `None` for a
/// path outside of all.
pub(crate) fn purse_of(path: &[u8]) -> Option<&'static AtomicU64> {
    if path.starts_with(b"/") {
        candidate_of(path).map(|candidate| &candidate.cycles)
    } else {
        Some(&RELATIVE_CYCLES)
    }
}

/// A call by this path, which may begin at a descriptor, has cost so many cycles.
#[cold]
pub(crate) fn pay((path, descriptor): (&[u8], Option<usize>), purse: &AtomicU64, cycles: u64) {
    let cycles = cycles.min(CALL_MAX);
    if purse.fetch_add(cycles, Relaxed) + cycles < price() {
        return;
    }
    purse.store(0, Relaxed);
    exclusive(|room| attempt_at((path, descriptor), room));
}

/// The process needs the fleet for this path now, whatever its calls have cost.
#[cold]
#[inline(never)]
pub(crate) fn hurry(Named { path, descriptor }: Named) {
    let mut name = Name::new();
    if name.copy(path).is_err() {
        return;
    }
    waiting(|room| {
        survey_if_young(room);
        attempt_at((name.bytes(), descriptor), room);
    });
}

fn attempt_at(place: (&[u8], Option<usize>), room: &mut Room) {
    let mut candidate = candidate_at(place, room);
    if candidate.is_none() && phase() == Phase::Looking && !HAS_ALL.load(Relaxed) {
        survey(room);
        candidate = candidate_at(place, room);
    }
    if let Some(candidate) = candidate {
        attempt(room, candidate);
    }
}

fn candidate_at(
    (path, descriptor): (&[u8], Option<usize>),
    room: &mut Room,
) -> Option<&'static Candidate> {
    match (path, descriptor) {
        ([b'/', ..], _) => candidate_of(path),
        (_, Some(descriptor)) => proc::target_of(descriptor, &mut room.path).and_then(candidate_of),
        _ => cwd::path(&mut room.path).and_then(candidate_of),
    }
}

/// What calls must cost before the fleet is asked, in cycles.
fn price() -> u64 {
    ADMIT_AFTER * u64::from(patience(1))
}

/// A call on a file that the kernel has open has cost so many cycles.
#[cold]
#[inline(never)]
pub(crate) fn pay_for_file(descriptor: usize, cycles: u64) {
    let cycles = cycles.min(CALL_MAX);
    if RELATIVE_CYCLES.fetch_add(cycles, Relaxed) + cycles < price() {
        return;
    }
    RELATIVE_CYCLES.store(0, Relaxed);
    exclusive(|room| {
        survey_if_young(room);
        attempt_at((&[], Some(descriptor)), room);
    });
}

fn candidate_of(path: &[u8]) -> Option<&'static Candidate> {
    FOUND.iter().find(|candidate| candidate.prefix.rest(path).is_some())
}

fn patience(calls: u32) -> u32 {
    calls * PATIENCE.pow(FAILURES.load(Relaxed).min(FAILURES_MAX))
}

/// Runs `work` under the lock, if it is free. Afterwards the client ends, if that was wanted.
pub(crate) fn exclusive<R>(work: impl FnOnce(&mut Room) -> R) -> Option<R> {
    exclusive_after(false, work)
}

/// `waited`: the thread has slept until the lock was free.
fn exclusive_after<R>(waited: bool, work: impl FnOnce(&mut Room) -> R) -> Option<R> {
    let work = |room: &mut Room| {
        let result = work(room);
        do_wanted(room);
        result
    };
    let result = if waited { lock::with_after_wait(work) } else { lock::with(work) };
    while WANTED.load(SeqCst) != 0 && lock::with(do_wanted).is_some() {
        core::hint::spin_loop();
    }
    result
}

fn do_wanted(room: &mut Room) {
    let wanted = WANTED.swap(0, SeqCst);
    if wanted & END != 0 {
        end_under_lock(room);
    }
    if wanted & UNPIN != 0 {
        placeholder::unpin();
    }
}

/// The mount may be unmounted unless files are open, once the lock is free.
pub(crate) fn unpin() {
    WANTED.fetch_or(UNPIN, SeqCst);
    exclusive(|_| ());
}

/// Runs `work` under the lock, and waits for it. None under a filter that forbids that.
pub(crate) fn waiting<R>(mut work: impl FnMut(&mut Room) -> R) -> Option<R> {
    let mut waited = false;
    loop {
        let done = exclusive_after(waited, &mut work);
        if done.is_some() || FILTERED.get() {
            return done;
        }
        lock::await_free(WAIT_OF_FILES);
        waited = true;
    }
}

/// Runs `work` under the lock, with a mount that is as the facts say. The call is left to the
/// kernel if the lock is not free after a while.
pub(crate) fn under_lock<R>(
    admission: &Admission,
    work: impl FnOnce(&mut Room) -> Result<R, Why>,
) -> Result<R, Why> {
    let mut work = Some(work);
    for turn in 0..=WAITS_OF_PATHS {
        let done = exclusive_after(turn > 0, |room| match work.take() {
            Some(work) if renew(room, admission) => work(room),
            _ => Err(Why::Lost),
        });
        if let Some(done) = done {
            return done;
        }
        if FILTERED.get() {
            break;
        }
        if turn < WAITS_OF_PATHS {
            lock::await_free(WAIT_OF_PATHS);
        }
    }
    Err(Why::Busy)
}

/// Whether changes are still the fleet's: the mount is as the facts say. If another process has
/// made it read-only, for example, the admission ends.
pub(crate) fn lets_change() -> bool {
    let Some(admission) = facts::current() else { return true };
    let is_same = if clock::is_fresh() {
        admission.is_current()
    } else {
        waiting(|room| renew(room, &admission)).unwrap_or(false)
    };
    is_same && admission.facts.mount.options.lets_change()
}

/// The admission, if its fleet lives. Otherwise another fleet may serve the pool, and change files.
pub(crate) fn current() -> Option<Admission> {
    let admission = facts::current()?;
    let is_alive = || waiting(|_| fleet::is_alive()).unwrap_or(false);
    clock::is_fleet_alive(clock::now(), is_alive).then_some(admission)
}

fn survey_if_young(room: &mut Room) {
    if phase() == Phase::Young {
        survey(room);
    }
}

/// Looks for all mounts of ours.
fn survey(room: &mut Room) {
    if phase() == Phase::Never || phase() == Phase::Looking && HAS_ALL.load(Relaxed) {
        return;
    }
    HAS_ALL.store(true, Relaxed);
    let mut count = 0;
    let read = look::at_mounts(room, |mount| {
        if let Some(candidate) = FOUND.get(count)
            && candidate.prefix.set(super::mountinfo::unescaped(mount.at))
        {
            candidate.cycles.store(0, Relaxed);
            count += 1;
        }
    });
    FOUND[count..].iter().for_each(|rest| rest.prefix.clear());
    match (read, count) {
        (None, _) => set_never(Refusal::NoProc),
        (_, 0) => set_never(Refusal::NoMount),
        _ => advance(Phase::Looking),
    }
}

fn set_never(refusal: Refusal) {
    why::set_refusal(refusal);
    PHASE.store(Phase::Never as u8, Release);
    pending::stop();
}

/// Another phase, unless another thread has found out meanwhile that there is to be none.
fn advance(to: Phase) {
    let next = |phase| (phase != Phase::Never as u8).then_some(to as u8);
    // If it fails, it is never.
    let _phase = PHASE.fetch_update(SeqCst, SeqCst, next);
}

/// Mounts are looked for from the beginning.
fn be_young() {
    forget_candidates();
    PHASE.store(Phase::Young as u8, Release);
}

fn forget_candidates() {
    CALLS.store(0, Relaxed);
    OTHERS.store(0, Relaxed);
    HAS_ALL.store(false, Relaxed);
    FOUND.iter().for_each(|candidate| candidate.prefix.clear());
}

fn attempt(room: &mut Room, candidate: &Candidate) {
    if phase() != Phase::Looking || IS_CLIENT.load(Acquire) {
        return;
    }
    if let Err(refusal) = admit(room, &candidate.prefix) {
        if IS_CLIENT.load(Acquire) {
            WANTED.fetch_or(END, SeqCst);
        }
        close_mounts();
        failed(refusal);
    }
}

/// What may pass: the fleet, and what others do with the mount.
fn failed(refusal: Refusal) {
    why::set_refusal(refusal);
    let passing =
        matches!(refusal, Refusal::Fleet | Refusal::Root | Refusal::Mount | Refusal::MountInside);
    let failures = FAILURES.fetch_add(1, Relaxed) + 1;
    if passing && failures < FAILURES_MAX {
        forget_candidates();
        advance(Phase::Young);
    } else {
        PHASE.store(Phase::Never as u8, Release);
    }
}

fn admit(room: &mut Room, prefix: &Prefix) -> Result<(), Refusal> {
    if facts::admissions() >= facts::ADMISSIONS_MAX {
        return Err(Refusal::Often);
    }
    let (identity, table) = look::at_process(room)?;
    let first = descriptors::first(table).ok_or(Refusal::Descriptors)?;
    let opened = proc::open(c"/proc/self/mountinfo").ok_or(Refusal::NoProc)?;
    let mounts = descriptors::move_up(opened, first).ok_or(Refusal::Descriptors)?;
    MOUNTS.store(mounts, Release);
    let moment = clock::now();
    let looked = look::at_mount(mounts, room, prefix, &identity)?;
    let mut directory = [0; PREFIX];
    let directory = RUNTIME_DIR.read(&mut directory);
    let directory = (!directory.is_empty()).then_some(directory);
    let (source, rest) = room.path.split_at(looked.source_length);
    let root = &rest[..looked.root_length];
    let mounted = Mounted { source, root, mounter: looked.mounter, rules: looked.options.rules };
    let admitted = fleet::admit(&mut room.client, &mounted, directory, mounts + 1);
    let admitted = admitted.map_err(|text| {
        why::set_fleet_text(text);
        Refusal::Fleet
    })?;
    IS_CLIENT.store(true, Release);
    clock::forget_fleet();
    descriptors::hide(mounts, &admitted.descriptors);
    cwd::forget();
    let mount = same_root(&mut room.client, prefix, &looked, &admitted)?;
    clock::renew(moment);
    why::set_refusal(Refusal::None);
    facts::publish(prefix, identity, mount);
    Ok(())
}

/// Whether the fleet serves what is mounted: the kernel and the fleet have the same root. Another
/// process may be changing it, so it is compared again.
fn same_root(
    client: &mut Client,
    prefix: &Prefix,
    looked: &Looked,
    admitted: &Admitted,
) -> Result<MountFacts, Refusal> {
    let mut attr = admitted.attr;
    // The fleet may have added some.
    let options = Options { rules: admitted.rules, ..looked.options };
    for _ in 0..COMPARISONS {
        let mask = BASIC_STATS | BTIME | MNT_ID;
        let root = Statx::of(prefix.address(), mask).ok_or(Refusal::Mount)?;
        if (root.mount_id(), root.device()) != (looked.id, looked.device) {
            return Err(Refusal::Mount);
        }
        let mount = MountFacts::learn(prefix.address(), &root, options).ok_or(Refusal::Mount)?;
        if mount.agrees(&root, &attr) {
            let asked = looked.options;
            return Ok(MountFacts { root: admitted.root, asked, ..mount });
        }
        match fleet::stat(client, b"/", admitted.root, true).0 {
            Found::Is((_, now)) => attr = now,
            Found::Fails(_) | Found::Kernel => return Err(Refusal::Root),
        }
    }
    Err(Refusal::Root)
}

/// Whether the mount is still as the facts say, and the fleet there. Called under the lock.
pub(crate) fn renew(room: &mut Room, admission: &Admission) -> bool {
    if clock::is_fresh() {
        return admission.is_current();
    }
    let moment = clock::now();
    let is_valid = admission.is_current()
        && is_unchanged(room, admission)
        && clock::is_fleet_alive(moment, fleet::is_alive);
    if is_valid {
        clock::renew(moment);
    } else if admission.is_current() {
        facts::withdraw();
        WANTED.fetch_or(END, SeqCst);
        failed(Refusal::Mount);
    }
    is_valid
}

fn is_unchanged(room: &mut Room, admission: &Admission) -> bool {
    let facts = admission.facts;
    let mounts = MOUNTS.load(Acquire);
    if look::has_changed(mounts) {
        let looked = look::at_mount(mounts, room, &facts.prefix, &facts.identity);
        let same = looked.is_ok_and(|looked| {
            (looked.id, looked.device) == (facts.mount.id, facts.mount.device)
                && looked.options == facts.mount.asked
        });
        if !same {
            return false;
        }
    }
    // It asks the file system for nothing, so FUSE sends no request.
    Statx::of(facts.prefix.address(), MNT_ID).is_some_and(|root| {
        root.mount_id() == facts.mount.id
            && root.device() == facts.mount.device
            && root.ino() == facts.mount.root.ino
    })
}

/// No call is answered any more. Returns whether the client has ended, too. An admission by another
/// thread is waited for, because it may be of what the caller is about to change.
pub(crate) fn end() -> bool {
    facts::withdraw();
    WANTED.fetch_or(END, SeqCst);
    waiting(|_| ()).is_some() || !IS_CLIENT.load(Acquire)
}

fn end_under_lock(room: &mut Room) {
    facts::withdraw();
    if IS_CLIENT.load(Acquire) {
        takeover::all_under_lock(room);
        passing::forget();
        placeholder::forget();
        fleet::end(&mut room.client);
        close_mounts();
        descriptors::forget();
        cwd::forget();
        IS_CLIENT.store(false, Release);
    }
}

fn close_mounts() {
    let mounts = MOUNTS.swap(usize::MAX, AcqRel);
    if mounts != usize::MAX {
        stub::close(mounts);
    }
}

/// The process serves nothing any more. `forever`: nor do children that it forks.
pub(crate) fn never(refusal: Refusal, forever: bool) {
    if forever {
        FOREVER.store(true, Release);
    }
    set_never(refusal);
    end();
}

/// The process has other rights now, and may be admitted with them.
pub(crate) fn begin_again() {
    be_young();
}

/// In a child of `fork`.
pub(crate) fn after_fork() {
    facts::withdraw();
    // Another thread of the parent may have been making or ending the client.
    let was_taken = lock::after_fork();
    if IS_CLIENT.swap(false, AcqRel) || was_taken {
        fleet::forget();
    }
    close_mounts();
    takeover::in_child();
    descriptors::after_fork();
    WANTED.store(0, Relaxed);
    FAILURES.store(0, Relaxed);
    RELATIVE_CYCLES.store(0, Relaxed);
    if !FOREVER.load(Acquire) {
        begin_again();
    }
}
