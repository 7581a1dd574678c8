//! A number that the program has closed, whose placeholder is still there for its next open.
//!
//! A program that opens one file after the other needs no call of the kernel that way. Before any
//! call that could notice, the placeholder is closed: calls that give out numbers, that name this
//! one, or that are not known to do neither.
//!
//! The next open must get the lowest number that is free. A number was the lowest when it was given
//! out. It is parked only if no lower one can have become free since, which the epoch counts. A
//! process with threads parks no number, because another thread may be in a call.
//!
//! ```text
//! word    bit 0 parked    bit 1 closes on exec    bits 2..24 the number    bits 24.. the epoch
//! ```
//!
//! Number and epoch are in one word, because a handler may free a lower number while one is parked.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::abi::{F_DUPFD, F_DUPFD_CLOEXEC, nr};
use crate::call::SystemCall;
use crate::state::has_threads;
use crate::stub;
use crate::syscalls::Numbers;

use super::places::DESCRIPTORS;
use super::shared_word::SharedWord;
use super::{arguments, placeholder};

const PARKED: u64 = 1;
const CLOSES_ON_EXEC: u64 = 2;
const NUMBER_SHIFT: u32 = 2;
const EPOCH_SHIFT: u32 = 24;
const EPOCH: u64 = 1 << EPOCH_SHIFT;

const _: () = assert!(DESCRIPTORS << NUMBER_SHIFT <= EPOCH as usize, "a number fits");

/// The parked number, if there is one, and the number of calls that may have made numbers free.
pub(crate) struct Parked<W = AtomicU64>(W);

fn number_of(word: u64) -> Option<usize> {
    (word & PARKED != 0).then_some(((word & (EPOCH - 1)) >> NUMBER_SHIFT) as usize)
}

/// The bits of a number that is parked.
fn pack(number: usize, closes_on_exec: bool) -> u64 {
    let flag = if closes_on_exec { CLOSES_ON_EXEC } else { 0 };
    (number as u64) << NUMBER_SHIFT | flag | PARKED
}

impl<W: SharedWord> Parked<W> {
    fn number(&self) -> Option<usize> {
        number_of(self.0.load(Relaxed))
    }

    fn epoch(&self) -> u64 {
        self.0.load(Acquire) >> EPOCH_SHIFT
    }

    /// Parks a number that was given out in this epoch, and returns the one that was parked before.
    /// `None` if a lower one is parked or may have become free.
    fn park(&self, number: usize, epoch: u64, closes_on_exec: bool) -> Option<Option<usize>> {
        let word = self.0.load(Acquire);
        let old = number_of(word);
        if word >> EPOCH_SHIFT != epoch || old.is_some_and(|old| old < number) {
            return None;
        }
        let parked = epoch << EPOCH_SHIFT | pack(number, closes_on_exec);
        self.0.exchange(word, parked, AcqRel).then_some(old)
    }

    /// Takes the parked number, if it has this flag.
    fn take(&self, closes_on_exec: bool) -> Option<usize> {
        self.change(|word| {
            let number = number_of(word)?;
            (word & (EPOCH - 1) == pack(number, closes_on_exec)).then_some(word & !(EPOCH - 1))
        })
    }

    /// Takes the parked number, which becomes free.
    fn flush(&self) -> Option<usize> {
        self.change(|word| number_of(word).map(|_| (word & !(EPOCH - 1)).wrapping_add(EPOCH)))
    }

    /// Other numbers become free, and so does the parked one.
    fn free_all(&self) -> Option<usize> {
        self.change(|word| Some((word & !(EPOCH - 1)).wrapping_add(EPOCH)))
    }

    /// Changes the word unless `to` returns `None`. Returns the number that was parked.
    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> Option<usize> {
        loop {
            let word = self.0.load(Relaxed);
            if self.0.exchange(word, to(word)?, AcqRel) {
                return number_of(word);
            }
        }
    }
}

#[inline]
pub(super) fn is_any() -> bool {
    Parked::here().number().is_some()
}

pub(super) fn epoch() -> u64 {
    Parked::here().epoch()
}

/// A number for a new file, if one is parked.
fn take(closes_on_exec: bool) -> Option<usize> {
    let taken = Parked::here().take(closes_on_exec);
    if taken.is_none() {
        flush();
    }
    taken
}

/// A new descriptor for a file. The kernel chooses its number, or says why there is none.
pub(super) fn reserve(closes_on_exec: bool) -> Option<isize> {
    if let Some(number) = take(closes_on_exec) {
        return Some(number as isize);
    }
    placeholder::duplicate(|template| {
        match closes_on_exec {
            // SAFETY: it duplicates a descriptor of ours.
            false => unsafe { stub::call(nr::DUP, [template]) },
            true => stub::control(template, F_DUPFD_CLOEXEC, 0),
        }
    })
}

/// Like [`reserve`], with a number from `lowest` on.
pub(super) fn reserve_from(lowest: usize, closes_on_exec: bool) -> Option<isize> {
    flush();
    let command = if closes_on_exec { F_DUPFD_CLOEXEC } else { F_DUPFD };
    placeholder::duplicate(|template| stub::control(template, command, lowest))
}

/// The program closes the number, which was given out in this epoch. Returns whether it is parked.
/// Otherwise the kernel must close it.
pub(super) fn park(number: usize, epoch: u64, closes_on_exec: bool) -> bool {
    if has_threads() {
        return false;
    }
    let Some(old) = Parked::here().park(number, epoch, closes_on_exec) else { return false };
    if let Some(old) = old {
        note_free();
        stub::close(old);
    }
    true
}

/// The kernel closes a number.
pub(super) fn note_free() {
    Parked::here().0.add(EPOCH, AcqRel);
}

/// The kernel is about to make this call. Returns whether it may wait for long, or show numbers.
pub(super) fn flush_before(call: &SystemCall) -> bool {
    if call.row().numbers != Numbers::Keeps {
        close(Parked::here().free_all());
        return true;
    }
    if let Some(parked) = Parked::here().number()
        && (call.descriptors().any(|number| number == parked)
            || arguments::leads_to_descriptors(call))
    {
        flush();
    }
    false
}

/// Closes the placeholder, if there is one.
pub(in super::super) fn flush() {
    close(Parked::here().flush());
}

fn close(number: Option<usize>) {
    if let Some(number) = number {
        stub::close(number);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::super::shared_word::explored::{Stepped, with_event};
    use super::*;

    #[test]
    fn a_number_is_packed_with_its_flag_and_its_epoch() {
        let parked = Parked(AtomicU64::new(0));
        for (epoch, number) in [0, 3, DESCRIPTORS - 1].into_iter().enumerate() {
            let epoch = epoch as u64;
            assert_eq!((parked.epoch(), parked.number()), (epoch, None));
            assert_eq!(parked.park(number, epoch, true), Some(None));
            assert_eq!((parked.epoch(), parked.number()), (epoch, Some(number)));
            assert_eq!((parked.take(false), parked.take(true)), (None, Some(number)));
            assert_eq!((parked.flush(), parked.free_all()), (None, None));
        }
        assert_eq!(parked.park(3, u64::MAX, true), None, "its epoch is not known");
        parked.0.store(u64::MAX << EPOCH_SHIFT, Relaxed);
        assert_eq!((parked.free_all(), parked.epoch()), (None, 0), "the epochs begin again");
    }

    /// Before each step of `park`, in turn, a handler frees a lower number.
    fn free_beside_park(park: fn(&Parked<Stepped>, &Cell<u64>) -> bool) {
        for step in 0.. {
            let process = Rc::new((Parked(Stepped::new(0)), Cell::new(0)));
            let handled = process.clone();
            let handler = move || {
                handled.1.set(1);
                handled.0.free_all();
            };
            let (parked, epoch) = &*process;
            let is_reached = with_event(step, handler, || _ = park(parked, epoch));
            if !is_reached {
                assert_eq!((step > 1, parked.number()), (true, Some(7)));
                return;
            }
            assert_eq!(parked.number(), None, "it is not the lowest");
        }
    }

    #[test]
    fn a_handler_frees_a_lower_number() {
        free_beside_park(|parked, _| parked.park(7, 0, false).is_some());
    }

    /// The number and the epoch were two words before.
    #[test]
    #[should_panic(expected = "it is not the lowest")]
    fn control_the_epoch_is_another_word() {
        free_beside_park(|parked, epoch| {
            let is_same = epoch.get() == 0;
            let word = parked.0.load(Relaxed);
            is_same && parked.0.exchange(word, pack(7, false), AcqRel)
        });
    }

    /// A number that the test process has not.
    const FREE: usize = 4000;

    fn call(number: usize, first: usize) -> SystemCall {
        SystemCall { number, args: [first; 6], return_address: 0 }
    }

    /// One test, because there is one parked number.
    #[test]
    fn the_lowest_number_is_parked_until_a_call_could_notice() {
        let park_now = |number| park(number, epoch(), false);
        assert!(park_now(FREE) && is_any());
        assert_eq!((take(false), take(false)), (Some(FREE), None));

        assert!(park_now(FREE) && !park_now(FREE + 1), "a lower one is parked");
        let before_it = epoch();
        assert!(park(FREE - 1, before_it, false), "it is the lowest now");
        assert!(!park(FREE - 2, before_it, false), "the other number is free since");
        assert_eq!(take(false), Some(FREE - 1));

        assert!(park_now(FREE));
        assert_eq!(take(true), None, "its placeholder does not close on exec");
        assert!(!is_any());

        let noticed = |call: &SystemCall| {
            assert!(park_now(FREE));
            let may_wait = flush_before(call);
            let is_parked = is_any();
            flush();
            (may_wait, is_parked)
        };
        assert_eq!(noticed(&call(nr::GETPID, 0)), (false, true));
        assert_eq!(noticed(&call(nr::FSTAT, FREE + 1)), (false, true));
        assert_eq!(noticed(&call(nr::FSTAT, FREE)), (false, false), "the call names it");
        assert_eq!(noticed(&call(nr::OPENAT, 0)), (true, false));
        assert_eq!(noticed(&call(nr::CLOSE, FREE + 1)), (true, false));
        assert_eq!(noticed(&call(usize::MAX, 0)), (true, false), "an unknown call");
        let path = c"/proc/self/fd".as_ptr() as usize;
        assert_eq!(noticed(&call(nr::STAT, path)), (false, false), "the number is listed there");
    }
}
