//! The one function that is handed every system call. It counts them for a report, and
//! `serve` answers some.
//!
//! It runs on the stack of the program, in the middle of anything: between two instructions of the
//! C library, in a signal handler, in a child that shares its parent's memory. So it must not
//! allocate, wait for what a handler may have interrupted, or use thread-local storage, and it may
//! be left at any point (a handler that interrupts it may never return). The one lock, under which
//! the client allocates, is held with all signals blocked.

use core::sync::atomic::Ordering::Relaxed;

use crate::call::{SystemCall, Verdict};
use crate::counts::{CallCounts, Counts, count};
use crate::serve;

/// Decides a call. Each call of the program comes here once.
pub(crate) fn hook(call: &SystemCall) -> Verdict {
    let verdict = serve::on_call(call);
    if let Verdict::Served(_) = verdict {
        Counts::here().served.fetch_add(1, Relaxed);
    } else {
        count(&CallCounts::here().passed, call.number);
    }
    verdict
}
