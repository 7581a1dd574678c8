//! The one function that is handed every system call. It counts them for a report, and
//! `serve` answers some.
//!
//! It runs on the stack of the program, in the middle of anything: between two instructions of the
//! C library, in a signal handler, in a child that shares its parent's memory. So it must not
//! allocate, wait for what a handler may have interrupted, or use thread-local storage, and it may
//! be left at any point (a handler that interrupts it may never return). The one lock, under which
//! the client allocates, is held with all signals blocked.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::call::{SystemCall, Verdict};
use crate::serve;
use crate::state::{COUNTED, SERVED};

/// Numbers below are counted one by one, the others together.
pub(crate) const NUMBERS: usize = 512;

static PASSED: [AtomicU64; NUMBERS + 1] = [const { AtomicU64::new(0) }; NUMBERS + 1];

/// Handed every call of the program once.
pub(crate) fn hook(call: &SystemCall) -> Verdict {
    let verdict = serve::on_call(call);
    if let Verdict::Served(_) = verdict {
        SERVED.fetch_add(1, Relaxed);
    } else if COUNTED.get() {
        PASSED[call.number.min(NUMBERS)].fetch_add(1, Relaxed);
    }
    verdict
}

/// How many calls with this number were passed on.
pub(crate) fn passed(number: usize) -> u64 {
    PASSED[number.min(NUMBERS)].load(Relaxed)
}

/// A child of `fork` counts its own calls.
pub(crate) fn reset() {
    SERVED.store(0, Relaxed);
    if COUNTED.get() {
        for count in &PASSED {
            count.store(0, Relaxed);
        }
    }
}
