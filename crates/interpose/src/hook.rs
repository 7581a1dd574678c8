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
use crate::state::{Counts, is_counted};

/// Numbers below are counted one by one, the others together.
pub(crate) const NUMBERS: usize = 512;

/// The calls that were passed on, by number.
pub(crate) struct Passed([AtomicU64; NUMBERS + 1]);

/// Handed every call of the program once.
pub(crate) fn hook(call: &SystemCall) -> Verdict {
    let verdict = serve::on_call(call);
    if let Verdict::Served(_) = verdict {
        Counts::here().served.fetch_add(1, Relaxed);
    } else if is_counted() {
        Passed::here().0[call.number.min(NUMBERS)].fetch_add(1, Relaxed);
    }
    verdict
}

/// How many calls with this number were passed on.
pub(crate) fn passed(number: usize) -> u64 {
    Passed::here().0[number.min(NUMBERS)].load(Relaxed)
}

impl Passed {
    /// A child of `fork` counts its own calls.
    pub(crate) fn begin_again(&self) {
        if is_counted() {
            self.0.iter().for_each(|count| count.store(0, Relaxed));
        }
    }
}
