//! A number that the program has closed, whose placeholder is still there for its next open.
//!
//! A program that opens one file after the other needs no call of the kernel that way. Before any
//! call that could notice, the placeholder is closed: calls that give out numbers, that name this
//! one, or that are not known to do neither.
//!
//! The next open must get the lowest number that is free. A number was the lowest when it was given
//! out. It is parked only if no lower one can have become free since, which [`Parked::epoch`]
//! counts. A process with threads parks no number, because another thread may be in a call.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::abi::{F_DUPFD, F_DUPFD_CLOEXEC, nr};
use crate::call::SystemCall;
use crate::state::has_threads;
use crate::stub;
use crate::syscalls::Numbers;

use super::{arguments, placeholder};

/// The parked number, and its epoch.
pub(crate) struct Parked {
    /// The number, whether it closes on exec, and a bit that is always set. 0: none.
    number: AtomicUsize,
    /// The number of calls that may have made numbers free.
    epoch: AtomicU64,
}

fn pack(number: usize, closes_on_exec: bool) -> usize {
    number << 1 | usize::from(closes_on_exec) | 1 << 32
}

fn number_of(packed: usize) -> usize {
    (packed & 0xffff_ffff) >> 1
}

#[inline]
pub(super) fn is_any() -> bool {
    Parked::here().number.load(Relaxed) != 0
}

pub(super) fn epoch() -> u64 {
    Parked::here().epoch.load(Acquire)
}

/// A number for a new file, if one is parked.
fn take(closes_on_exec: bool) -> Option<usize> {
    let packed = Parked::here().number.load(Relaxed);
    if packed == 0 {
        return None;
    }
    if packed != pack(number_of(packed), closes_on_exec) {
        flush();
        return None;
    }
    Parked::here().number.compare_exchange(packed, 0, AcqRel, Relaxed).ok()?;
    Some(number_of(packed))
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
    if has_threads() || Parked::here().epoch.load(Acquire) != epoch {
        return false;
    }
    let old = Parked::here().number.load(Relaxed);
    if old != 0 && number_of(old) < number {
        return false;
    }
    if Parked::here()
        .number
        .compare_exchange(old, pack(number, closes_on_exec), AcqRel, Relaxed)
        .is_err()
    {
        return false;
    }
    if old != 0 {
        close(old);
    }
    true
}

/// The kernel closes a number.
pub(super) fn note_free() {
    Parked::here().epoch.fetch_add(1, AcqRel);
}

/// The kernel is about to make this call. Returns whether it may wait for long, or show numbers.
pub(super) fn flush_before(call: &SystemCall) -> bool {
    if call.row().numbers != Numbers::Keeps {
        note_free();
        flush();
        return true;
    }
    let packed = Parked::here().number.load(Relaxed);
    let is_parked = |number| number == number_of(packed);
    if packed != 0 && (call.descriptors().any(is_parked) || arguments::leads_to_descriptors(call)) {
        flush();
    }
    false
}

/// Closes the placeholder, if there is one.
pub(in super::super) fn flush() {
    let packed = Parked::here().number.swap(0, AcqRel);
    if packed != 0 {
        close(packed);
    }
}

fn close(packed: usize) {
    note_free();
    stub::close(number_of(packed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_packed_with_its_flag() {
        for number in [0, 3, 4095] {
            assert_eq!(number_of(pack(number, true)), number);
            assert_ne!(pack(number, true), pack(number, false));
            assert_ne!(pack(number, false), 0);
        }
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
