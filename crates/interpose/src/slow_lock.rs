//! The word of the lock of everything that is slow (`serve::lock`). It lies below the allocator,
//! which works for the lock's holder alone.

use core::hint;
use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use core::time::Duration;

use crate::abi::{FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, nr};
use crate::stub;

/// About two microseconds.
const TRIES: usize = 60;

const FREE: u32 = 0;
pub(crate) const TAKEN: u32 = 1;
/// Taken, and threads may sleep until it is free.
pub(crate) const AWAITED: u32 = 2;

pub(crate) struct SlowLock(AtomicU32);

/// The proof that the caller holds the lock. This module alone could make one, and never does: the
/// only one lies in the room that the lock lends to its holder, and has no size.
pub(crate) struct Holder(());

impl SlowLock {
    /// Takes the lock, whose word becomes `state`: [`TAKEN`] or [`AWAITED`]. False if another
    /// thread still has it after [`TRIES`] looks.
    pub(crate) fn take(&self, state: u32) -> bool {
        for _ in 0..TRIES {
            if self.0.load(Relaxed) == FREE
                && self.0.compare_exchange(FREE, state, Acquire, Relaxed).is_ok()
            {
                return true;
            }
            hint::spin_loop();
        }
        false
    }

    pub(crate) fn release(&self) {
        if self.0.swap(FREE, Release) == AWAITED {
            // SAFETY: it wakes threads that sleep at this word.
            unsafe { stub::call(nr::FUTEX, [self.0.as_ptr() as usize, FUTEX_WAKE_PRIVATE, 1]) };
        }
    }

    /// Sleeps until the lock may be free, for `at_most`. Signals are handled meanwhile.
    pub(crate) fn await_free(&self, at_most: Duration) {
        if self.0.compare_exchange(TAKEN, AWAITED, Relaxed, Relaxed) == Err(FREE) {
            return;
        }
        // `struct timespec`
        let limit = [at_most.as_secs(), u64::from(at_most.subsec_nanos())];
        let word = self.0.as_ptr() as usize;
        let args = [word, FUTEX_WAIT_PRIVATE, AWAITED as usize, limit.as_ptr() as usize];
        // SAFETY: the kernel compares the word, and reads `limit`.
        unsafe { stub::call(nr::FUTEX, args) };
    }

    /// Frees the lock in a child of `fork`: another thread of the parent may have held it.
    pub(crate) fn free(&self) {
        self.0.store(FREE, Relaxed);
    }
}

pub(crate) fn is_taken() -> bool {
    SlowLock::here().0.load(Relaxed) != FREE
}
