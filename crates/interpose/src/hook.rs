//! The one function that is handed every system call. Today it counts them and answers none.
//!
//! It runs on the stack of the program, in the middle of anything: between two instructions of the
//! C library, in a signal handler, in a child that shares its parent's memory. So it must not
//! allocate, wait for a lock, or use thread-local storage, and it may be left at any point (a
//! handler that interrupts it may never return).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers below are counted one by one, the others together.
pub(crate) const NUMBERS: usize = 512;

/// A call that the program is about to make.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SystemCall {
    pub number: usize,
    pub args: [usize; 6],
    /// Where the program goes on.
    pub return_address: usize,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "no call is served yet")]
pub(crate) enum Verdict {
    /// The call was served, with this result (negative errno values are errors).
    Done(isize),
    /// The kernel makes the call.
    Pass,
}

static PASSED: [AtomicU64; NUMBERS + 1] = [const { AtomicU64::new(0) }; NUMBERS + 1];
static SERVED: AtomicU64 = AtomicU64::new(0);

/// Handed every call of the program once.
pub(crate) fn hook(call: &mut SystemCall) -> Verdict {
    PASSED[call.number.min(NUMBERS)].fetch_add(1, Relaxed);
    Verdict::Pass
}

/// How many calls with this number were passed on.
pub(crate) fn passed(number: usize) -> u64 {
    PASSED[number.min(NUMBERS)].load(Relaxed)
}

/// How many calls were served.
pub(crate) fn served() -> u64 {
    SERVED.load(Relaxed)
}

/// A child of `fork` counts its own calls.
pub(crate) fn reset() {
    SERVED.store(0, Relaxed);
    for count in &PASSED {
        count.store(0, Relaxed);
    }
}
