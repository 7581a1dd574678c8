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
//! If a path that is examined ([`super::survey`]) lies on a file system without a disk, as ours
//! does, the kernel is asked for the mount. Mountinfo takes a hundred microseconds, and is read if
//! that is not known, or if the process has used some such file systems and none of them was ours.
//! A failed admission is tried again a few times, after many more calls.
//!
//! An admission ends in two steps. Its facts are withdrawn at once, by any thread, so that no call
//! is answered any more. The client ends under the lock: at once, or when the thread that has the
//! lock releases it.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use core::time::Duration;

use crate::fleet::{self, Admitted, Client, Found, Mounted, Place};
use crate::number::Number;
use crate::slow_lock::{self, AWAITED, SlowLock, TAKEN};
use crate::state::is_filtered;
use crate::stub;

use super::cwd::{self, Cwd};
use super::facts::{self, Admission, MountFacts};
use super::kernel::{BASIC_STATS, BTIME, MNT_ID, MNT_ID_UNIQUE, Statx};
use super::lock::{self, Room};
use super::look::{self, Looked};
use super::mountinfo::Options;
use super::name::{Name, PREFIX, Prefix};
use super::request::Named;
use super::statmount::{self, Seen};
use super::survey::{self, Candidate, Candidates, Phase, Survey, phase};
use super::why::{self, Refusal, Why};
use super::{clock, descriptors, proc};

/// Comparisons of the root, as the kernel has it, with what the fleet has, until they agree.
const COMPARISONS: usize = 4;
/// A call by path waits for the lock this long, and this often at most. A file that is left to the
/// kernel costs several calls.
const WAIT_OF_PATHS: Duration = Duration::from_micros(250);
const WAITS_OF_PATHS: usize = 4;
/// A call that only the fleet can make waits as long as it takes, in parts.
const WAIT_OF_FILES: Duration = Duration::from_millis(10);

/// The state of the admission.
pub(crate) struct Admitting {
    /// The client exists. Changed under the lock.
    is_client: AtomicBool,
    /// Tasks of the thread that has the lock, or is the next to have it: these two bits.
    wanted: AtomicU8,
}

/// The open mountinfo of a client.
pub(crate) struct Mounts(Number);

/// An admission calls these functions, whose code lies above this file.
pub(crate) trait Parts {
    /// The admission ends.
    fn end(room: &mut Room);
    /// No admission follows.
    fn stop_adoption();
    /// The mount may be unmounted unless files are open.
    fn unpin();
}

const END: u8 = 1;
const UNPIN: u8 = 2;

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
            if phase() != Phase::Never && Candidates::here().add(at) {
                Survey::here().advance(Phase::Looking);
            }
        }
        Seen::Other if !Survey::here().note_other() => {}
        Seen::Other | Seen::Unknown => look_for_mounts(room),
    }
}

/// A call by this path, which may begin at a descriptor, has cost so many cycles.
#[cold]
pub(crate) fn pay((path, descriptor): (&[u8], Option<usize>), purse: &AtomicU64, cycles: u64) {
    if survey::pay(purse, cycles) {
        exclusive(|room| attempt_at((path, descriptor), room));
    }
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
    if candidate.is_none() && phase() == Phase::Looking && !Survey::here().has_all.get() {
        look_for_mounts(room);
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
    let path = match (path, descriptor) {
        ([b'/', ..], _) => Some(path),
        (_, Some(descriptor)) => proc::target_of(descriptor, &mut room.path),
        _ => cwd::path(&mut room.path),
    };
    path.and_then(|path| Candidates::here().of(path))
}

/// A call on a file that the kernel has open has cost so many cycles.
#[cold]
#[inline(never)]
pub(crate) fn pay_for_file(descriptor: usize, cycles: u64) {
    if survey::pay(survey::relative_purse(), cycles) {
        exclusive(|room| {
            survey_if_young(room);
            attempt_at((&[], Some(descriptor)), room);
        });
    }
}

/// Runs `work` under the lock, if it is free. Afterwards the client ends, if that was wanted.
pub(crate) fn exclusive<R>(work: impl FnOnce(&mut Room) -> R) -> Option<R> {
    exclusive_after(false, work)
}

/// Like [`exclusive`]. `waited`: the thread has slept until the lock was free.
fn exclusive_after<R>(waited: bool, work: impl FnOnce(&mut Room) -> R) -> Option<R> {
    let work = |room: &mut Room| {
        let result = work(room);
        do_wanted(room);
        result
    };
    // Others may wait, too.
    let result = lock::with_as(if waited { AWAITED } else { TAKEN }, work);
    while Admitting::here().wanted.load(SeqCst) != 0 && lock::with(do_wanted).is_some() {
        core::hint::spin_loop();
    }
    result
}

fn do_wanted(room: &mut Room) {
    let wanted = Admitting::here().wanted.swap(0, SeqCst);
    if wanted & END != 0 {
        end_under_lock(room);
    }
    if wanted & UNPIN != 0 {
        Admitting::unpin();
    }
}

/// Lets the mount be unmounted unless files are open, once the lock is free.
pub(crate) fn unpin() {
    Admitting::here().wanted.fetch_or(UNPIN, SeqCst);
    exclusive(|_| ());
}

/// Runs `work` under the lock, for which it waits as long as need be. `None` if the process has a
/// filter: then the lock is never taken.
pub(crate) fn waiting<R>(mut work: impl FnMut(&mut Room) -> R) -> Option<R> {
    let mut waited = false;
    loop {
        let done = exclusive_after(waited, &mut work);
        if done.is_some() || is_filtered() {
            return done;
        }
        SlowLock::here().await_free(WAIT_OF_FILES);
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
        if is_filtered() {
            break;
        }
        if turn < WAITS_OF_PATHS {
            SlowLock::here().await_free(WAIT_OF_PATHS);
        }
    }
    Err(Why::Busy)
}

/// Whether the library may still make changes: the mount is as it was at the admission. If another
/// process has made it read-only, for example, this ends the admission, and the answer is false.
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
        look_for_mounts(room);
    }
}

/// Looks for all mounts of ours.
fn look_for_mounts(room: &mut Room) {
    let survey = Survey::here();
    if phase() == Phase::Never || phase() == Phase::Looking && survey.has_all.get() {
        return;
    }
    survey.has_all.set(true);
    let candidates = Candidates::here();
    let mut count = 0;
    let read = look::at_mounts(room, |mount| {
        count += usize::from(candidates.set(count, super::mountinfo::unescaped(mount.at)));
    });
    candidates.clear_from(count);
    match (read, count) {
        (None, _) => give_up(Refusal::NoProc, false),
        (_, 0) => give_up(Refusal::NoMount, false),
        _ => survey.advance(Phase::Looking),
    }
}

fn give_up(refusal: Refusal, forever: bool) {
    why::set_refusal(refusal);
    Survey::here().give_up(forever);
    Admitting::stop_adoption();
}

fn attempt(room: &mut Room, candidate: &Candidate) {
    if phase() != Phase::Looking || Admitting::here().is_client.load(Acquire) {
        return;
    }
    if let Err(refusal) = admit(room, &candidate.prefix) {
        if Admitting::here().is_client.load(Acquire) {
            Admitting::here().wanted.fetch_or(END, SeqCst);
        }
        Mounts::here().close();
        failed(refusal);
    }
}

/// Notes a refusal. It may pass if the reason is the fleet, or other processes' use of the mount.
fn failed(refusal: Refusal) {
    why::set_refusal(refusal);
    let passing = [Refusal::Fleet, Refusal::Root, Refusal::Mount, Refusal::MountInside];
    Survey::here().fail(passing.contains(&refusal));
}

fn admit(room: &mut Room, prefix: &Prefix) -> Result<(), Refusal> {
    if facts::admissions() >= facts::ADMISSIONS_MAX {
        return Err(Refusal::Often);
    }
    let (identity, table) = look::at_process(room)?;
    let first = descriptors::first(table).ok_or(Refusal::Descriptors)?;
    let opened = stub::open(c"/proc/self/mountinfo", 0).ok_or(Refusal::NoProc)?;
    let mounts = descriptors::move_up(opened, first).ok_or(Refusal::Descriptors)?;
    Mounts::here().0.set(mounts);
    let moment = clock::now();
    let looked = look::at_mount(mounts, room, prefix, &identity)?;
    let mut directory = [0; PREFIX];
    let directory = Candidates::here().runtime_dir.read(&mut directory);
    let directory = (!directory.is_empty()).then_some(directory);
    let (source, rest) = room.path.split_at(looked.source_length);
    let root = &rest[..looked.root_length];
    let mounted = Mounted { source, root, mounter: looked.mounter, rules: looked.options.rules };
    let admitted = fleet::admit(&mut room.client, &mounted, directory, mounts + 1);
    let admitted = admitted.map_err(|text| {
        why::set_fleet_text(text);
        Refusal::Fleet
    })?;
    Admitting::here().is_client.store(true, Release);
    clock::forget_fleet();
    descriptors::hide(mounts, &admitted.descriptors);
    Cwd::here().forget();
    let mount = same_root(&mut room.client, prefix, &looked, &admitted)?;
    clock::renew(moment);
    why::set_refusal(Refusal::None);
    facts::publish(&mut room.client, prefix, identity, mount);
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
        let root = Statx::of_path(None, prefix.address(), mask).ok_or(Refusal::Mount)?;
        if (root.mount_id(), root.device()) != (looked.id, looked.device) {
            return Err(Refusal::Mount);
        }
        let mount = MountFacts::learn(prefix.address(), &root, options).ok_or(Refusal::Mount)?;
        if mount.agrees(&root, &attr) {
            let asked = looked.options;
            return Ok(MountFacts { root: admitted.root, asked, ..mount });
        }
        let root = Place { path: b"/", start: admitted.root, follow_last: true };
        match fleet::stat(client, root).0 {
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
        Admitting::here().wanted.fetch_or(END, SeqCst);
        failed(Refusal::Mount);
    }
    is_valid
}

fn is_unchanged(room: &mut Room, admission: &Admission) -> bool {
    let facts = admission.facts;
    let Some(mounts) = Mounts::here().0.get() else { return false };
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
    Statx::of_path(None, facts.prefix.address(), MNT_ID).is_some_and(|root| {
        root.mount_id() == facts.mount.id
            && root.device() == facts.mount.device
            && root.ino() == facts.mount.root.ino
    })
}

/// Ends the admission: no call is answered any more. Returns whether the client has ended, too.
/// Waits for an admission by another thread, which may rest on what the caller is about to change.
pub(crate) fn end() -> bool {
    facts::withdraw();
    Admitting::here().wanted.fetch_or(END, SeqCst);
    waiting(|_| ()).is_some() || !Admitting::here().is_client.load(Acquire)
}

fn end_under_lock(room: &mut Room) {
    facts::withdraw();
    if Admitting::here().is_client.load(Acquire) {
        Admitting::end(room);
        Admitting::here().is_client.store(false, Release);
    }
}

/// The process serves nothing any more. `forever`: nor do children that it forks.
pub(crate) fn never(refusal: Refusal, forever: bool) {
    give_up(refusal, forever);
    end();
}

/// Forgets the client in a child of `fork`. Another thread may have been making or ending it.
pub(crate) fn forget_client() {
    if Admitting::here().is_client.load(Acquire) || slow_lock::is_taken() {
        fleet::forget();
    }
}

impl Admitting {
    /// In a child of `fork`, which is no client.
    pub(crate) fn begin_again(&self) {
        self.is_client.store(false, Release);
        self.wanted.store(0, Relaxed);
    }
}

impl Mounts {
    pub(crate) fn close(&self) {
        if let Some(mounts) = self.0.take() {
            stub::close(mounts);
        }
    }
}
