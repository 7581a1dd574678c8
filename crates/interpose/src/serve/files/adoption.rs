//! Files that the kernel has opened for writing and that are served later (decision 47): those
//! that the program opened before it was admitted, and those that were left to the kernel.
//!
//! ```text
//!  open   the kernel ─▶ a regular file without a disk ─▶ pending::note
//!  call   pending::begin ─▶ the kernel ─▶ pending::end, with what it has cost
//!                                          └─ a write ─▶ admission::pay_for_file
//!  call, later, if it pays: the lock ─▶ all pending numbers of the inode are frozen and quiet
//!           ─▶ the same inode by its path ─▶ a handle for writing, without a lease
//!           ─▶ the offset ─▶ a placeholder in place of the kernel's file
//!           ─▶ a handle with a lease, once the mount's front has closed its own ─▶ table::add
//! ```
//!
//! Each step is made for all numbers of the inode before the next, because the front has the file
//! open until the last of them is closed. Up to the placeholder nothing has changed if a step
//! fails, and the file stays the kernel's. Behind it the file is served. If the front keeps it
//! open, because another process has it, it is handed over at once: with its numbers, flags and
//! offsets.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warren_proto::{AccessMode, InodeRef};

use crate::abi::{
    F_GETFD, F_GETFL, F_SET_RW_HINT, F_SETFD, F_SETFL, FD_CLOEXEC, O_CLOEXEC, SEEK_CUR, TCGETS, nr,
};
use crate::call::{SystemCall, Verdict};
use crate::counts::Counts;
use crate::fleet::written::{self as fleet, WrittenFile};
use crate::fleet::{self as client, Client, Found, Place, watches};
use crate::state::{has_threads, is_filtered};
use crate::stub;
use crate::syscalls::{Names, Numbers, OnFile};

use super::super::admission;
use super::super::facts::{self, Admission};
use super::super::kernel::{BASIC_STATS, MNT_ID, Statx};
use super::super::lock::{self, Room};
use super::super::request::{Request, Want};
use super::super::survey::{self, Phase};
use super::super::why::Why;
use super::super::{clock, memory, proc};
use super::descriptor::OFFSET_END;
use super::pending::{self, Made};
use super::table::{self, Object};
use super::takeover::hand_over;
use super::{arguments, create, placeholder, record_locks, score};

/// A file may be adopted once its writes have cost this many cycles: about as many as that does.
const ADOPT_AFTER: u64 = 500_000;
/// A write counts for this many cycles at most. A longer one has waited for something else.
const WRITE_MAX: u64 = 300_000;
/// A read as a request costs this many cycles more than one from the kernel's cache.
const READ_COST: u64 = 5_000;
/// Larger writes take as long here as through the kernel.
const LENGTH_MAX: isize = 64 << 10;
/// The most requests for the lease, and the most checks whether calls have ended. They take a
/// millisecond on an idle machine, and four at most.
const TURNS: usize = 100;
/// A file that has more numbers stays the kernel's.
const NUMBERS_MAX: usize = 16;
/// After so many files for which it was not granted, none is tried any more.
const FAILURES_MAX: u64 = 4;
const SET_IDS: u16 = 0o6000;

/// The failures of adoption.
pub(crate) struct Adoption {
    /// Files for which no lease was granted.
    failed: AtomicU64,
}

/// Makes an open that was not served. The file that the kernel opens may be served later.
pub(in super::super) fn open(call: &SystemCall, verdict: Verdict) -> Verdict {
    if !is_wanted(call) {
        return verdict;
    }
    let forks = pending::forks();
    let result = match verdict {
        Verdict::Pass => make(call, false).0,
        Verdict::Wait => make(call, true).0,
        Verdict::Made(result) => result,
        Verdict::Served(_) | Verdict::Change => return verdict,
    };
    if let Ok(number) = usize::try_from(result)
        && let Some(found) = Statx::of_descriptor(number, MNT_ID)
        && may_be_ours(&found)
    {
        pending::note(number, forks);
    }
    Verdict::Made(result)
}

fn is_wanted(call: &SystemCall) -> bool {
    let is_late = || is_filtered() || pending::is_stopped() || score::is_stopped();
    let is_refused = || !facts::is_any_current() && survey::phase() == Phase::Never;
    match Request::decode(call).map(|request| request.want) {
        Ok(Want::Open { flags, .. }) => {
            create::access(flags).is_some() && !is_late() && !is_refused()
        }
        _ => false,
    }
}

/// Whether it is a regular file of the mount, or of what may be a mount of ours.
fn may_be_ours(found: &Statx) -> bool {
    let is_ours = match facts::current() {
        Some(Admission { facts, .. }) => found.mount_id() == facts.mount.id,
        None => found.device().0 == 0,
    };
    is_ours && found.is_regular()
}

/// Makes a call, as the entry does if it may wait. Returns the cycles that it has taken as well.
fn make(call: &SystemCall, may_wait: bool) -> (isize, u64) {
    let made = clock::timed(|| memory::change(call).unwrap_or_else(|| call.make()));
    if may_wait && made.1 >= clock::LONG_CYCLES {
        clock::note_wait();
    }
    made
}

/// Decides a call while files are pending. `None` if it is not made here. `may_wait`: it is of a
/// class of calls that may wait for another process.
#[inline(never)]
pub(in super::super) fn on_call(call: &SystemCall, may_wait: bool) -> Option<Verdict> {
    let number = call.args[0] as u32 as usize;
    if call.row().names == Names::A && pending::is_pending(number) && keeps(call) {
        return on_file(call, may_wait, number);
    }
    forget_reached(call);
    None
}

/// A call of a child of `vfork`, which has the files as well until it starts a program. Whatever it
/// does with one but closing it may make another number that stays.
pub(in super::super) fn in_child(call: &SystemCall) {
    if call.row().numbers != Numbers::Closes {
        forget_reached(call);
    }
}

/// The kernel has the files for good that the call may reach.
fn forget_reached(call: &SystemCall) {
    match arguments::listed(call) {
        Some(numbers) => {
            numbers.filter(|number| pending::is_pending(*number)).for_each(pending::forget);
        }
        None => pending::forget_wanted(|number| arguments::may_reach(call, number)),
    }
}

/// Whether the file can still be adopted after the call: it is the same file then, with one number
/// in one process, and the call would be served.
fn keeps(call: &SystemCall) -> bool {
    let command = call.args[1] as u32 as usize;
    match call.row().file {
        OnFile::Control => [F_GETFL, F_SETFL, F_GETFD, F_SETFD, F_SET_RW_HINT].contains(&command),
        OnFile::Ioctl => command == TCGETS,
        other => other.keeps_identity(),
    }
}

/// A call on one of the files.
fn on_file(call: &SystemCall, may_wait: bool, number: usize) -> Option<Verdict> {
    if pending::cost(number) >= ADOPT_AFTER
        && (has_threads() || pending::is_quiet(number))
        && let Some(admission) = facts::current()
        && adopt(number, &admission)
    {
        return None;
    }
    if !pending::begin(number) {
        return None;
    }
    // From here on nothing puts it into the table, where this would find it.
    if let Some(failed) = super::before_kernel(call) {
        pending::end(number, Made::Other);
        return Some(failed);
    }
    let (result, cycles) = make(call, may_wait);
    let made = made(call, result, cycles);
    pending::end(number, made);
    if !facts::is_any_current()
        && let Made::Write(cycles) = made
    {
        admission::pay_for_file(number, cycles);
    }
    Some(Verdict::Made(result))
}

fn made(call: &SystemCall, result: isize, cycles: u64) -> Made {
    match call.row().file {
        OnFile::Write if (0..=LENGTH_MAX).contains(&result) => Made::Write(cycles.min(WRITE_MAX)),
        OnFile::Read => Made::Read(READ_COST),
        _ => Made::Other,
    }
}

/// Serves the file from now on. If that is not possible, it stays the kernel's for good, unless the
/// lock is taken or calls on it do not end.
#[cold]
#[inline(never)]
fn adopt(number: usize, admission: &Admission) -> bool {
    let adopted = admission::under_lock(admission, |room| {
        let numbers = freeze(number).ok_or(Why::Busy)?;
        exchange(&numbers, admission, room);
        numbers.into_iter().for_each(pending::thaw);
        Ok(table::find(number).is_some())
    });
    if Adoption::here().failed.load(Relaxed) >= FAILURES_MAX {
        pending::stop();
    }
    adopted.unwrap_or(false)
}

/// All pending numbers of the inode to which this one leads, frozen and without a call under way.
fn freeze(number: usize) -> Option<Vec<usize>> {
    let inode = |number| {
        let found = Statx::of_descriptor(number, BASIC_STATS)?;
        Some((found.device(), found.ino()))
    };
    let wanted = inode(number)?;
    let others = pending::other_numbers(number).filter(|other| inode(*other) == Some(wanted));
    let mut numbers: Vec<usize> = core::iter::once(number).chain(others).collect();
    if numbers.len() > NUMBERS_MAX {
        numbers.into_iter().for_each(pending::forget);
        return None;
    }
    numbers.retain(|number| pending::freeze(*number));
    let is_quiet = |turn| {
        let is_quiet = numbers.iter().all(|number| pending::is_quiet(*number));
        if !is_quiet {
            lock::relax(turn);
        }
        is_quiet
    };
    if (0..TURNS).any(is_quiet) {
        return Some(numbers);
    }
    numbers.into_iter().for_each(pending::release);
    None
}

/// A number whose file can be served in place of the kernel's.
struct Candidate {
    number: usize,
    node: InodeRef,
    access: AccessMode,
    flags: u32,
    closes_on_exec: bool,
}

/// Puts the files into the table that can be served from now on.
fn exchange(numbers: &[usize], admission: &Admission, room: &mut Room) -> Option<()> {
    // The mount stays while the file is open here. Whatever ends the serving of files from now on
    // finds this, and waits for the lock.
    let _held = placeholder::ready(admission.facts)?;
    let (candidates, path) = candidates(numbers, admission, room)?;
    let mut replaced = Vec::new();
    for (candidate, first) in opened(&mut room.client, candidates)? {
        match place(candidate.number, candidate.closes_on_exec) {
            Some(offset) => replaced.push((candidate, first, offset)),
            None => fleet::close(&mut room.client, first.handle),
        }
    }
    let mut lent = Vec::new();
    let mut turns = TURNS;
    for (candidate, first, offset) in replaced {
        let Candidate { number, node, access, flags, closes_on_exec } = candidate;
        let file = alone(&mut room.client, node, access, first, turns);
        if fleet::is_ours(file.guard) {
            Counts::here().adopted.fetch_add(1, Relaxed);
        } else {
            // Nor will the others be.
            turns = 1;
            lent.push(number);
        }
        // Whether the number was the lowest is not known.
        let (base, start, epoch) = (&[][..], None, u64::MAX);
        let path = &path;
        let opening = table::Opening { base, path, start, flags, closes_on_exec, epoch, offset };
        table::add(number, &Object::Written(file), &opening);
    }
    Adoption::here().failed.fetch_add(lent.len().min(1) as u64, Relaxed);
    for file in lent.into_iter().filter_map(table::find) {
        // A file for which this fails is tried again by its next call.
        let _handed_over = hand_over(&file, room);
    }
    Some(())
}

/// The files behind the numbers, and the path that all of them have.
fn candidates(
    numbers: &[usize],
    admission: &Admission,
    room: &mut Room,
) -> Option<(Vec<Candidate>, Vec<u8>)> {
    let mut path = Vec::new();
    let mut candidates = Vec::new();
    for number in numbers {
        let (candidate, length) = examine(*number, pending::was_read(*number), admission, room)?;
        let found = &room.path[..length];
        if candidates.is_empty() {
            path = found.to_vec();
        } else if path != found {
            return None;
        }
        candidates.push(candidate);
    }
    Some((candidates, path))
}

/// Opens them at the cell, too. Such a handle keeps the inode alive. The kernel's file, which is
/// the front's, does so only until it is closed. The lease is not granted yet, but that of the
/// front ends, so that it will not keep its handle.
fn opened(
    client: &mut Client,
    candidates: Vec<Candidate>,
) -> Option<Vec<(Candidate, WrittenFile)>> {
    let mut opened: Vec<(Candidate, WrittenFile)> = Vec::new();
    for candidate in candidates {
        let Found::Is(first) = fleet::open(client, candidate.node, candidate.access) else {
            opened.into_iter().for_each(|(_, first)| fleet::close(client, first.handle));
            return None;
        };
        opened.push((candidate, first));
    }
    Some(opened)
}

/// Looks whether the file can be served: as one that is opened for writing, and by a path that
/// leads to it. Returns the length of the path, which is in the room.
fn examine(
    number: usize,
    was_read: bool,
    admission: &Admission,
    room: &mut Room,
) -> Option<(Candidate, usize)> {
    let stat = Statx::of_descriptor(number, BASIC_STATS | MNT_ID)?;
    let Admission { facts, .. } = admission;
    let is_inside = stat.mount_id() == facts.mount.id && stat.device() == facts.mount.device;
    if !is_inside || !stat.is_regular() || !create::may_write(admission) || !score::pays() {
        return None;
    }
    let [flags, of_number] =
        [F_GETFL, F_GETFD].map(|command| usize::try_from(stub::control(number, command, 0)).ok());
    let flags = u32::try_from(flags?).ok()?;
    let access = create::access(flags)?;
    let path = proc::target_of(number, &mut room.path)?;
    let length = path.len();
    let path = facts.prefix.rest(path)?;
    let place = Place { path, start: facts.mount.root, follow_last: false };
    if watches::concern(&mut room.client, place) {
        return None;
    }
    let Found::Is((node, attr)) = client::stat(&mut room.client, place).0 else { return None };
    // A file that was not read so far may be long.
    let used = if was_read { access } else { access - AccessMode::READ };
    create::check(&attr, used).ok()?;
    let is_it = node.ino == stat.ino();
    if !is_it || attr.mode & SET_IDS != 0 || record_locks::has(node.ino) {
        return None;
    }
    let closes_on_exec = of_number? & FD_CLOEXEC != 0;
    Some((Candidate { number, node, access, flags, closes_on_exec }, length))
}

/// Puts a placeholder in place of the kernel's file, which it closes. Returns the file's offset.
/// `None` if the file stays there.
fn place(number: usize, closes_on_exec: bool) -> Option<u64> {
    let template = placeholder::number()?;
    let offset = stub::seek(number, 0, SEEK_CUR);
    let offset = u64::try_from(offset).ok().filter(|offset| *offset < OFFSET_END)?;
    let flags = if closes_on_exec { O_CLOEXEC } else { 0 };
    // SAFETY: it closes the file of a number that no call uses now: calls wait for what becomes of
    // it.
    let placed = unsafe { stub::call(nr::DUP3, [template, number, flags]) };
    (placed >= 0).then_some(offset)
}

/// A handle with a lease, which is granted once no front has the file open for writing. Otherwise
/// the one without.
fn alone(
    client: &mut Client,
    node: InodeRef,
    access: AccessMode,
    first: WrittenFile,
    turns: usize,
) -> WrittenFile {
    for turn in 0..turns {
        if let Found::Is(file) = fleet::open(client, node, access) {
            if fleet::is_ours(file.guard) {
                fleet::close(client, first.handle);
                return file;
            }
            fleet::close(client, file.handle);
        }
        lock::relax(turn);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: usize, second: usize) -> SystemCall {
        SystemCall { number, args: [3, second, 0, 0, 0, 0], return_address: 0 }
    }

    #[test]
    fn a_file_stays_pending_as_long_as_it_is_one_file_with_one_number() {
        for number in [nr::READ, nr::PWRITEV2, nr::LSEEK, nr::FSTAT, nr::FTRUNCATE, nr::FSYNC] {
            assert!(keeps(&call(number, 0)), "{number}");
        }
        for number in [nr::DUP, nr::CLOSE, nr::FLOCK, nr::FCHMOD, nr::SENDFILE, nr::GETDENTS64] {
            assert!(!keeps(&call(number, 0)), "{number}");
        }
        const F_SETLK: usize = 6;
        const FIONREAD: usize = 0x541b;
        for (number, command, wanted) in [
            (nr::FCNTL, F_GETFL, true),
            (nr::FCNTL, F_SETFD, true),
            (nr::FCNTL, F_SETLK, false),
            (nr::FCNTL, super::super::F_DUPFD, false),
            (nr::IOCTL, TCGETS, true),
            (nr::IOCTL, FIONREAD, false),
        ] {
            assert_eq!(keeps(&call(number, command)), wanted, "{number} {command}");
        }
    }

    #[test]
    fn writes_count_by_their_time_and_reads_by_what_requests_cost() {
        let made = |number, result, cycles| made(&call(number, 0), result, cycles);
        assert_eq!(made(nr::WRITE, 100, 7_000), Made::Write(7_000));
        assert_eq!(made(nr::PWRITEV, 0, WRITE_MAX + 1), Made::Write(WRITE_MAX), "it has waited");
        assert_eq!(made(nr::WRITE, LENGTH_MAX + 1, 7_000), Made::Other, "it would take as long");
        assert_eq!(made(nr::WRITE, -28, 7_000), Made::Other, "it has failed");
        assert_eq!(made(nr::PREADV2, 100, 7_000), Made::Read(READ_COST));
        assert_eq!(made(nr::FSYNC, 0, 7_000), Made::Other);
    }
}
