//! The clock of waits.

use rustix::time::{ClockId, clock_gettime};
use warren_base::Instant;

const NANOS: u64 = 1_000_000_000;

/// `CLOCK_MONOTONIC`.
pub fn now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    // Both are never negative.
    Instant(now.tv_sec.cast_unsigned() * NANOS + now.tv_nsec.cast_unsigned())
}
