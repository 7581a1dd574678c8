//! Two kinds of time that must not be mixed: `Instant` orders events, `Timestamp` is stored in
//! inodes. Both come from the driver; pure crates never read a clock.

use core::cmp::Ordering;
use core::fmt::{self, Debug, Formatter};
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

/// Wall-clock time, from 1901-12-13 20:45:52 UTC to 2486, as 64 bits: nanoseconds since 1970-01-01
/// UTC modulo 2^64. A number below that of the first time stands for itself plus 2^64, which is a
/// time after 2262.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    const NANOS: u64 = 1_000_000_000;

    /// The first and the last whole second. The first is that of a signed 32-bit clock, as ext4's.
    pub const SECONDS_MIN: i64 = i32::MIN as i64;
    pub const SECONDS_MAX: i64 = Self::SECONDS_MIN + (u64::MAX / Self::NANOS) as i64 - 1;

    const FIRST: i64 = Self::SECONDS_MIN * Self::NANOS as i64;

    /// From seconds and nanoseconds of a `struct timespec`, clamped to the range. As in Linux
    /// (`timestamp_truncate`), the seconds at its ends are without nanoseconds.
    pub fn from_parts(seconds: i64, nanos: u32) -> Self {
        let seconds = seconds.clamp(Self::SECONDS_MIN, Self::SECONDS_MAX);
        let is_end = seconds == Self::SECONDS_MIN || seconds == Self::SECONDS_MAX;
        let nanos = if is_end { 0 } else { u64::from(nanos) };
        let since = (seconds - Self::SECONDS_MIN) as u64 * Self::NANOS + nanos;
        Self(Self::FIRST.wrapping_add(since as i64))
    }

    /// Whole seconds since 1970, rounded down.
    pub fn seconds(self) -> i64 {
        Self::SECONDS_MIN + (self.since_first() / Self::NANOS) as i64
    }

    /// Nanoseconds past [`Self::seconds`], `0..1_000_000_000`.
    pub fn nanos(self) -> u32 {
        (self.since_first() % Self::NANOS) as u32
    }

    /// Nanoseconds since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.since_first().saturating_sub(earlier.since_first())
    }

    /// Nanoseconds since the first time.
    const fn since_first(self) -> u64 {
        self.0.wrapping_sub(Self::FIRST) as u64
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        self.since_first().cmp(&other.since_first())
    }
}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Seconds and nanoseconds.
impl Debug for Timestamp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({}, {})", self.seconds(), self.nanos())
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds_positive() {
        let t = Timestamp(-1);
        assert_eq!((t.seconds(), t.nanos()), (-1, 999_999_999));
        assert_eq!(Timestamp::from_parts(t.seconds(), t.nanos()), t);
    }

    #[test]
    fn times_are_in_order_from_the_first_to_the_last() {
        let days = [-2_147_483_648, -1, 0, 2_147_483_648, 9_223_372_036, 9_223_372_037];
        let late = [10_413_792_000, 15_024_700_735, Timestamp::SECONDS_MAX];
        let seconds: Vec<i64> = days.into_iter().chain(late).collect();
        let times: Vec<_> = seconds.iter().map(|at| Timestamp::from_parts(*at, 0)).collect();
        assert!(times.is_sorted());
        assert!(times.iter().map(|time| time.seconds()).eq(seconds));
        assert!(times[4].0 > 0 && times[5] > times[4] && times[6].0 < Timestamp::FIRST);
        assert_eq!(times[5].since(times[4]), 1_000_000_000);
        assert_eq!(times[4].since(times[5]), 0);
        let late = Timestamp::from_parts(10_413_792_000, 7);
        assert_eq!((late.seconds(), late.nanos()), (10_413_792_000, 7));
        assert_eq!(format!("{late:?}"), "Timestamp(10413792000, 7)");
    }

    #[test]
    fn times_beyond_the_range_are_its_ends() {
        let ends = [(i64::MIN, Timestamp::SECONDS_MIN), (i64::MAX, Timestamp::SECONDS_MAX)];
        for (beyond, end) in ends {
            for seconds in [beyond, end] {
                let time = Timestamp::from_parts(seconds, 999_999_999);
                assert_eq!((time.seconds(), time.nanos()), (end, 0));
            }
        }
        // 2486-07-02, and every number is some time.
        assert_eq!(Timestamp::SECONDS_MAX, 16_299_260_424);
        for raw in [i64::MIN, -1, 0, i64::MAX, Timestamp::FIRST - 1, Timestamp::FIRST] {
            let time = Timestamp(raw);
            assert!((0..1_000_000_000).contains(&time.nanos()));
            assert!(time.seconds() <= Timestamp::SECONDS_MAX + 1);
        }
    }
}
