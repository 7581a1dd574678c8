//! The counters for the report.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::state::is_counted;

/// Numbers of calls below are counted one by one, the others together.
pub(crate) const NUMBERS: usize = 512;

/// The counters of the whole process.
pub(crate) struct Counts {
    /// Calls that the process has answered itself.
    pub served: AtomicU64,
    /// Calls that came by dispatch.
    pub dispatched: AtomicU64,
    /// Sites that are patched, and sites that are left to dispatch.
    pub patched: AtomicU64,
    pub left: AtomicU64,
    /// Files that the kernel had opened and that are served now.
    pub adopted: AtomicU64,
}

/// The counters by the number of a call.
pub(crate) struct CallCounts {
    /// Calls that were passed on.
    pub passed: [AtomicU64; NUMBERS + 1],
    /// Files that the kernel took over because of the call.
    pub handovers: [AtomicU64; NUMBERS + 1],
}

impl Counts {
    /// A child of `fork` counts its own calls.
    pub(crate) fn begin_again(&self) {
        self.served.store(0, Relaxed);
        self.dispatched.store(0, Relaxed);
    }
}

impl CallCounts {
    /// A child of `fork` counts its own calls.
    pub(crate) fn begin_again(&self) {
        if is_counted() {
            let all = self.passed.iter().chain(&self.handovers);
            all.for_each(|count| count.store(0, Relaxed));
        }
    }
}

/// Adds one for the call with this number.
pub(crate) fn count(counts: &[AtomicU64; NUMBERS + 1], number: usize) {
    if is_counted() {
        counts[number.min(NUMBERS)].fetch_add(1, Relaxed);
    }
}
