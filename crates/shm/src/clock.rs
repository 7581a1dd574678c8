//! The clocks of waits and of changes.

use rustix::time::{ClockId, clock_gettime};
use warren_base::{Instant, Timestamp};

const NANOS: u64 = 1_000_000_000;

/// `CLOCK_MONOTONIC`.
pub fn now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    // Both are never negative.
    Instant(now.tv_sec.cast_unsigned() * NANOS + now.tv_nsec.cast_unsigned())
}

/// `CLOCK_REALTIME`.
pub fn wall() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    Timestamp::from_parts(now.tv_sec, now.tv_nsec as u32)
}
