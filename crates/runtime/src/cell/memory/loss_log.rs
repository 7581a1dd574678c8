//! When the losses of a client are logged.
//!
//! A client may cause a loss at each review: it need only not ring, or count wake-ups that it did
//! not lose. The first loss is logged at once. What is lost afterwards is added up, and logged
//! after a pause that doubles with each line. A client without losses for the longest pause begins
//! anew.

use std::time::Duration;

use warren_base::Instant;

/// Between the first two lines of a client.
const PAUSE_MIN: Duration = Duration::from_secs(8);

/// A client that loses something all the time has 24 lines a day, and some ten before.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The losses of a client that were not logged yet.
#[derive(Default)]
pub(super) struct LossLog {
    rings: u64,
    wakeups: u64,
    /// When the last loss was noted, and the last line logged.
    noted: Instant,
    logged: Instant,
    /// The pause after the last line. Zero: there was none.
    pause: Duration,
}

impl LossLog {
    /// Adds losses. Returns all that are to be logged now, if it is time.
    pub(super) fn add(&mut self, rings: u32, wakeups: u64, now: Instant) -> Option<(u64, u64)> {
        if self.noted + PAUSE_MAX <= now {
            self.pause = Duration::ZERO;
        }
        self.noted = now;
        self.rings = self.rings.saturating_add(rings.into());
        self.wakeups = self.wakeups.saturating_add(wakeups);
        if self.pause > Duration::ZERO && now < self.logged + self.pause {
            return None;
        }
        self.logged = now;
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        Some((std::mem::take(&mut self.rings), std::mem::take(&mut self.wakeups)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_loses_something_each_second_is_logged_seldom_and_nothing_is_left_out() {
        const DAY: u64 = 24 * 3600;
        let mut log = LossLog::default();
        let at = |second| Instant(1) + Duration::from_secs(second);
        assert_eq!(log.add(3, 1, at(0)), Some((3, 1)), "the first at once");
        let logged: Vec<_> = (1..=DAY).filter_map(|now| log.add(1, 2, at(now))).collect();
        assert_eq!(logged[..3], [(8, 16), (16, 32), (32, 64)]);
        assert!(logged.len() <= 34, "{} lines", logged.len());
        let (rings, wakeups) = (log.rings, log.wakeups);
        let sum = logged.iter().fold((rings, wakeups), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        assert_eq!(sum, (DAY, 2 * DAY));
        // What is left comes with the next loss, which is logged at once after a long time.
        let later = at(DAY) + PAUSE_MAX;
        assert_eq!(log.add(1, 0, later), Some((rings + 1, wakeups)));
        assert_eq!(log.add(1, 0, later + PAUSE_MIN), Some((1, 0)));
    }
}
