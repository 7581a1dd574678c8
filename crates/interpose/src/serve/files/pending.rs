//! Descriptors of files that the kernel has opened for writing and that may be served later
//! ([`super::adoption`]). Until then the kernel makes every call on them.
//!
//! A number is in this table while its open file description belongs to this process alone, and
//! has no other number. Before a call that could change that, it is forgotten, for good.
//!
//! A number has one of the states of [`state`]. A thread that notes a number does so first, and
//! looks afterwards whether a child was begun or adoption was stopped. Who begins a child, or stops
//! adoption, does it the other way round. So one of them finds the other.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use crate::abi::{F_GETFD, FD_CLOEXEC};
use crate::state::has_threads;
use crate::stub;

use super::places::DESCRIPTORS;
use super::shared_word::SharedWord;
use state::State;

pub(super) use state::Made;

#[cfg(test)]
mod model;
mod state;

/// The states of all numbers.
pub(crate) struct Words([State; DESCRIPTORS]);

/// The state of all pending files.
pub(crate) struct Pending<W = AtomicU64> {
    /// The number of files that are pending, or about to be, or not any more since a moment.
    count: W,
    /// 1: no more files come in.
    is_stopped: W,
    /// The number of children that were made with copies of the descriptors.
    forks: W,
    /// No higher number was ever pending.
    highest: AtomicUsize,
}

impl<W: SharedWord> Pending<W> {
    #[inline]
    fn has_files(&self) -> bool {
        self.count.load(SeqCst) != 0
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(SeqCst) != 0
    }

    fn forks(&self) -> u64 {
        self.forks.load(SeqCst)
    }

    fn note(&self, file: &State<W>, forks: u64) {
        self.count.add(1, SeqCst);
        if file.note() {
            self.leave();
        }
        // A child may have been made in between, which has the file as well.
        if self.is_stopped() || self.forks() != forks {
            self.forget(file);
        }
    }

    fn forget(&self, file: &State<W>) {
        if file.forget() {
            self.leave();
        }
    }

    fn thaw(&self, file: &State<W>) {
        if file.thaw() {
            self.leave();
        }
    }

    /// A file that was pending is not any more.
    fn leave(&self) {
        self.count.add(1_u64.wrapping_neg(), SeqCst);
    }

    /// In a child of `fork`: no file is pending. The handler that has made the child may return
    /// into a call that is under way, or that adds or forgets a file and has yet to count it. So
    /// the count loses only the files that were found.
    fn begin_again_with<'a>(&self, files: impl Iterator<Item = &'a State<W>>)
    where
        W: 'a,
    {
        files.for_each(|file| self.thaw(file));
        self.is_stopped.store(0, Relaxed);
    }
}

impl Pending {
    pub(crate) fn begin_again(&self) {
        self.begin_again_with(Words::here().0[..=self.highest.load(Relaxed)].iter());
    }
}

#[inline]
pub(in super::super) fn has_files() -> bool {
    Pending::here().has_files()
}

#[inline]
pub(super) fn is_pending(number: usize) -> bool {
    Words::here().0.get(number).is_some_and(State::is_pending)
}

pub(super) fn is_stopped() -> bool {
    Pending::here().is_stopped()
}

/// The number of children so far, which [`note`] compares.
pub(super) fn forks() -> u64 {
    Pending::here().forks()
}

/// Adds a number that the kernel has given out since `forks` was asked for.
pub(super) fn note(number: usize, forks: u64) {
    let Some(file) = Words::here().0.get(number) else { return };
    Pending::here().highest.fetch_max(number, SeqCst);
    Pending::here().note(file, forks);
}

/// The kernel has the file for good.
pub(super) fn forget(number: usize) {
    if let Some(file) = Words::here().0.get(number) {
        Pending::here().forget(file);
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
    Pending::here().is_stopped.store(1, SeqCst);
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

/// The other numbers that are pending.
pub(super) fn other_numbers(number: usize) -> impl Iterator<Item = usize> {
    (0..=Pending::here().highest.load(SeqCst))
        .filter(move |other| *other != number && is_pending(*other))
}

pub(super) fn begin(number: usize) -> bool {
    Words::here().0[number].begin()
}

pub(super) fn end(number: usize, made: Made) -> u64 {
    Words::here().0[number].end(made)
}

pub(super) fn cost(number: usize) -> u64 {
    Words::here().0[number].cost()
}

pub(super) fn freeze(number: usize) -> bool {
    Words::here().0[number].freeze()
}

pub(super) fn is_quiet(number: usize) -> bool {
    Words::here().0[number].is_quiet()
}

pub(super) fn was_read(number: usize) -> bool {
    Words::here().0[number].was_read()
}

pub(super) fn thaw(number: usize) {
    Pending::here().thaw(&Words::here().0[number]);
}

pub(super) fn release(number: usize) {
    Words::here().0[number].release();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the tests, which run at the same time.
    const FIRST: usize = 4000;

    #[test]
    fn what_is_noted_is_pending_until_it_is_thawed_or_forgotten() {
        for (number, end) in [(FIRST, thaw as fn(usize)), (FIRST + 1, forget)] {
            note(number, forks());
            assert!(has_files() && is_pending(number) && other_numbers(0).any(|it| it == number));
            end(number);
            assert!(!is_pending(number) && !begin(number));
        }
    }

    #[test]
    fn what_is_opened_beside_a_fork_is_not_noted() {
        let number = FIRST + 2;
        note(number, forks().wrapping_sub(1));
        assert!(!is_pending(number));
        note(DESCRIPTORS, forks());
        assert!(!is_pending(DESCRIPTORS));
    }
}
