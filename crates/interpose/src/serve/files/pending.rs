//! Descriptors of files that the kernel has opened for writing and that may be served later
//! ([`super::adoption`]). Until then the kernel makes every call on them.
//!
//! A number is in this table while its open file description belongs to this process alone, and
//! has no other number. Before a call that could change that, it is forgotten, for good.
//!
//! ```text
//! word    bit 0 pending    bit 1 frozen    bit 2 was read
//!         bits 3..40 what its writes have cost, in cycles    bits 40.. calls under way
//! ```
//!
//! Every call on such a descriptor is counted while it is under way: it must find the kernel's file
//! under the number. A number is frozen first, so that no more calls begin, and is used when those
//! under way have ended. A handler that jumps out of one leaves the count up, and then that is
//! never so. The count stays when a number is forgotten, because the call is still to end.

use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, SeqCst},
};

use crate::abi::{F_GETFD, FD_CLOEXEC};
use crate::state::has_threads;
use crate::stub;

use super::super::lock::relax;
use super::places::DESCRIPTORS;

const PENDING: u64 = 1;
/// Calls wait until it is decided who has the file.
const FROZEN: u64 = 2;
const WAS_READ: u64 = 4;
const COST_SHIFT: u32 = 3;
const CALLS_SHIFT: u32 = 40;
const CALL: u64 = 1 << CALLS_SHIFT;
const CALLS: u64 = !(CALL - 1);
const COST: u64 = !CALLS & !7;
const COST_MAX: u64 = COST >> COST_SHIFT;

/// The words of all numbers.
pub(crate) struct Words([AtomicU64; DESCRIPTORS]);

/// The state of all pending files.
pub(crate) struct Pending {
    /// The number of files that are pending, or about to be.
    count: AtomicUsize,
    /// No higher number was ever pending.
    highest: AtomicUsize,
    /// No more files come in.
    is_stopped: AtomicBool,
    /// The number of children that were made with copies of the descriptors.
    forks: AtomicU64,
}

/// The kind of a call on a file, and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// A write that took so many cycles.
    Write(u64),
    /// A read, which would have cost so many more as a request.
    Read(u64),
    Other,
}

#[inline]
pub(in super::super) fn has_files() -> bool {
    Pending::here().count.load(Relaxed) != 0
}

#[inline]
pub(super) fn is_pending(number: usize) -> bool {
    Words::here().0.get(number).is_some_and(|file| file.load(Acquire) & PENDING != 0)
}

pub(super) fn is_stopped() -> bool {
    Pending::here().is_stopped.load(SeqCst)
}

/// The number of children so far, which [`note`] compares.
pub(super) fn forks() -> u64 {
    Pending::here().forks.load(SeqCst)
}

/// Adds a number that the kernel has given out since `forks` was asked for.
pub(super) fn note(number: usize, forks: u64) {
    let Some(file) = Words::here().0.get(number) else { return };
    Pending::here().highest.fetch_max(number, SeqCst);
    Pending::here().count.fetch_add(1, SeqCst);
    if change(file, |word| word & CALLS | PENDING) & PENDING != 0 {
        Pending::here().count.fetch_sub(1, SeqCst);
    }
    // A child may have been made in between, which has the file as well.
    if is_stopped() || self::forks() != forks {
        forget(number);
    }
}

/// Changes a word that is not frozen, and returns what it was.
fn change(file: &AtomicU64, to: impl Fn(u64) -> u64) -> u64 {
    for turn in 0.. {
        let word = file.load(SeqCst);
        if word & FROZEN != 0 {
            relax(turn);
        } else if file.compare_exchange_weak(word, to(word), SeqCst, Relaxed).is_ok() {
            return word;
        }
    }
    0
}

/// The kernel has the file for good.
pub(super) fn forget(number: usize) {
    if let Some(file) = Words::here().0.get(number)
        && change(file, |word| word & CALLS) & PENDING != 0
    {
        Pending::here().count.fetch_sub(1, SeqCst);
    }
}

/// All that are wanted. Waits for those that are frozen.
pub(super) fn forget_wanted(is_wanted: impl Fn(usize) -> bool) {
    if has_files() {
        (0..=Pending::here().highest.load(SeqCst))
            .filter(|number| is_pending(*number) && is_wanted(*number))
            .for_each(forget);
    }
}

pub(in super::super) fn forget_all() {
    forget_wanted(|_| true);
}

/// Stops the adoption of files.
pub(crate) fn stop() {
    Pending::here().is_stopped.store(true, SeqCst);
    forget_all();
}

/// The process is about to make a child that has a copy of its descriptors. In a process with
/// threads it is not known when that is over. `shares_memory`: it is a child of `vfork`, which has
/// left what closes on exec before this process goes on.
pub(in super::super) fn before_child(shares_memory: bool) {
    Pending::here().forks.fetch_add(1, SeqCst);
    match (has_threads(), shares_memory) {
        (true, _) => stop(),
        (false, true) => forget_wanted(|number| !closes_on_exec(number)),
        (false, false) => forget_all(),
    }
}

fn closes_on_exec(number: usize) -> bool {
    let flags = stub::control(number, F_GETFD, 0);
    usize::try_from(flags).is_ok_and(|flags| flags & FD_CLOEXEC != 0)
}

impl Pending {
    /// In a child of `fork`. Its handler may return into a call that is under way.
    pub(crate) fn begin_again(&self) {
        for file in &Words::here().0[..=self.highest.load(Relaxed)] {
            file.fetch_and(CALLS, Relaxed);
        }
        self.count.store(0, Relaxed);
        self.is_stopped.store(false, Relaxed);
    }
}

/// The kernel is about to make a call on the file. False if it is not pending any more.
pub(super) fn begin(number: usize) -> bool {
    let file = &Words::here().0[number];
    let begun = |word| if word & PENDING != 0 { word + CALL } else { word };
    change(file, begun) & PENDING != 0
}

/// The call is made. Returns what the writes of the file have cost.
pub(super) fn end(number: usize, made: Made) -> u64 {
    let ended = |word: u64| {
        let cost = (word & COST) >> COST_SHIFT;
        let (cost, read) = match made {
            Made::Write(cycles) => ((cost + cycles).min(COST_MAX), 0),
            Made::Read(cycles) => (cost.saturating_sub(cycles), WAS_READ),
            Made::Other => (cost, 0),
        };
        (word & !COST | cost << COST_SHIFT | read).wrapping_sub(CALL)
    };
    // Also while it is frozen: who has frozen it may wait for this.
    let update = Words::here().0[number].fetch_update(SeqCst, Relaxed, |word| Some(ended(word)));
    (update.map_or_else(|word| word, ended) & COST) >> COST_SHIFT
}

/// The cost of the file's writes, in cycles.
pub(super) fn cost(number: usize) -> u64 {
    (Words::here().0[number].load(Acquire) & COST) >> COST_SHIFT
}

/// The other numbers that are pending.
pub(super) fn other_numbers(number: usize) -> impl Iterator<Item = usize> {
    (0..=Pending::here().highest.load(SeqCst))
        .filter(move |other| *other != number && is_pending(*other))
}

/// Makes calls that begin wait until [`thaw`] or [`release`], under the lock. False if it is not
/// pending.
pub(super) fn freeze(number: usize) -> bool {
    let word = Words::here().0[number].fetch_or(FROZEN, SeqCst);
    if word & PENDING == 0 {
        Words::here().0[number].fetch_and(!FROZEN, SeqCst);
    }
    word & PENDING != 0
}

/// Whether no call on the number, which is frozen, is under way.
pub(super) fn is_quiet(number: usize) -> bool {
    Words::here().0[number].load(SeqCst) & CALLS == 0
}

pub(super) fn was_read(number: usize) -> bool {
    Words::here().0[number].load(SeqCst) & WAS_READ != 0
}

/// Ends the wait of other calls. The number is not pending any more.
pub(super) fn thaw(number: usize) {
    Words::here().0[number].fetch_and(CALLS, SeqCst);
    Pending::here().count.fetch_sub(1, SeqCst);
}

/// Ends the wait of other calls. The file must cost as much again before the next try.
pub(super) fn release(number: usize) {
    Words::here().0[number].fetch_and(!(FROZEN | COST), SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the tests, which run at the same time.
    const FIRST: usize = 4000;

    #[test]
    fn a_file_is_frozen_while_no_call_is_under_way() {
        let number = FIRST;
        note(number, forks());
        assert!(has_files() && is_pending(number));
        assert!(begin(number) && freeze(number) && !is_quiet(number));
        assert_eq!((end(number, Made::Write(700)), cost(number)), (700, 700));
        assert!(is_quiet(number) && is_pending(number));
        release(number);
        assert_eq!((begin(number), cost(number)), (true, 0));
        assert_eq!(end(number, Made::Write(300)), 300);
        assert!(freeze(number) && is_quiet(number) && !was_read(number));
        thaw(number);
        assert!(!is_pending(number) && !begin(number) && !freeze(number));
        assert!(!begin(number), "it is not left frozen");
    }

    #[test]
    fn reads_take_back_what_writes_have_put_in() {
        let number = FIRST + 1;
        note(number, forks());
        for (made, left) in [
            (Made::Write(100), 100),
            (Made::Read(60), 40),
            (Made::Read(60), 0),
            (Made::Write(u64::from(u32::MAX) << 4), u64::from(u32::MAX) << 4),
            (Made::Write(COST_MAX), COST_MAX),
        ] {
            assert!(begin(number));
            assert_eq!(end(number, made), left);
        }
        assert!(freeze(number) && was_read(number));
        thaw(number);
    }

    #[test]
    fn calls_that_are_under_way_outlive_what_they_were_made_for() {
        let number = FIRST + 2;
        note(number, forks());
        assert!(begin(number));
        forget(number);
        assert!(!is_pending(number));
        note(number, forks());
        assert!(freeze(number) && !is_quiet(number), "the call on the other file is under way");
        end(number, Made::Write(5));
        assert!(is_quiet(number));
        thaw(number);
    }

    #[test]
    fn what_is_opened_beside_a_fork_is_not_noted() {
        let number = FIRST + 3;
        note(number, forks().wrapping_sub(1));
        assert!(!is_pending(number));
        note(DESCRIPTORS, forks());
        assert!(!is_pending(DESCRIPTORS));
    }
}
