//! Reads the clocks for the pure core, which never reads one itself.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use warren_base::{Instant, Timestamp};
use warren_cell::Clock;

/// Monotonic time, the same in every process of the machine.
pub(crate) fn monotonic() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Wall-clock time.
pub(crate) fn wall() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    Timestamp::from_parts(now.tv_sec, now.tv_nsec as u32)
}

/// Both clocks.
pub(crate) fn now() -> Clock {
    Clock { monotonic: monotonic(), wall: wall() }
}

/// The time for which [`Clocks`] uses an offset: well below the tick to which the kernel rounds its
/// own file times.
const OFFSET_FOR: Duration = Duration::from_millis(1);

/// An offset is measured so often at most, until the two reads around it are this close.
const MEASUREMENTS: usize = 4;
const CLOSE: Duration = Duration::from_nanos(200);

/// Both clocks for the price of one: wall-clock time is monotonic time plus an offset, which is
/// measured every [`OFFSET_FOR`]. A step of the wall clock shows up to that late. The sum is never
/// ahead of the clock, and as far behind as the measurement took: cells compare their times.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    offset: i64,
    until: Instant,
}

impl Clocks {
    pub(crate) fn look(&mut self) -> Clock {
        let now = monotonic();
        if now >= self.until {
            self.offset = offset();
            self.until = now + OFFSET_FOR;
        }
        // The numbers of times go round.
        Clock { monotonic: now, wall: Timestamp(self.offset.wrapping_add(now.0 as i64)) }
    }
}

/// The difference of the clocks, by the closest of several measurements: the process may lose its
/// processor in any of them.
fn offset() -> i64 {
    let mut closest = (Duration::MAX, 0);
    for _ in 0..MEASUREMENTS {
        let (before, wall, after) = (monotonic(), wall(), monotonic());
        closest = closest.min((after - before, wall.0.wrapping_sub(after.0 as i64)));
        if closest.0 <= CLOSE {
            break;
        }
    }
    closest.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_look_is_as_good_as_two() {
        let mut clocks = Clocks::default();
        for _ in 0..1000 {
            let (before, seen, after) = (now(), clocks.look(), now());
            assert!((before.monotonic..=after.monotonic).contains(&seen.monotonic));
            let off = seen.wall.since(after.wall).max(after.wall.since(seen.wall));
            assert!(u128::from(off) < Duration::from_secs(1).as_nanos(), "{off} ns off");
        }
    }
}
