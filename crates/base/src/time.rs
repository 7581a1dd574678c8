//! Two kinds of time that must not be mixed: `Instant` orders events, `Timestamp` is stored in
//! inodes. Both come from the driver; pure crates never read a clock.

use core::ops::{Add, Sub};
use core::time::Duration;

/// Monotonic time in nanoseconds since a start that the driver chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Instant(pub u64);

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Time since `earlier`; zero if `earlier` is later.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Wall-clock time in nanoseconds since 1970-01-01 UTC. The range is 1677 to 2262.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp(pub i64);

impl Timestamp {
    const NANOS: i64 = 1_000_000_000;

    /// From seconds and nanoseconds of a `struct timespec`, clamped to the range.
    pub fn from_parts(seconds: i64, nanos: u32) -> Self {
        Self(seconds.saturating_mul(Self::NANOS).saturating_add(i64::from(nanos)))
    }

    /// Whole seconds, rounded down.
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(Self::NANOS)
    }

    /// Nanoseconds past [`Self::seconds`], `0..1_000_000_000`.
    pub fn nanos(self) -> u32 {
        self.0.rem_euclid(Self::NANOS) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds_positive() {
        let t = Timestamp(-1);
        assert_eq!((t.seconds(), t.nanos()), (-1, 999_999_999));
        assert_eq!(Timestamp::from_parts(t.seconds(), t.nanos()), t);
    }
}
