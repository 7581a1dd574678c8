//! The only place where clocks are read for the pure core.

use rustix::time::{ClockId, clock_gettime};
use warren_base::{Instant, Timestamp};
use warren_cell::Clock;

/// Monotonic time, the same in every process of the machine.
pub fn monotonic() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Wall-clock time.
pub fn wall() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    Timestamp::from_parts(now.tv_sec, now.tv_nsec as u32)
}

/// Both.
pub fn both() -> Clock {
    Clock { monotonic: monotonic(), wall: wall() }
}
