//! The clock of the time of day, which steps forwards and backwards in some runs.
//!
//! Times of inodes come from it and may go back with it. Nothing else may depend on it.

use warren_base::{Instant, Rng, Timestamp};

use crate::history::Window;

/// One run in so many has steps, and up to so many.
const STEPS_IN: u64 = 4;
const STEPS_MAX: u64 = 4;

/// The first step may be so early, and each later one comes up to eight times later, in
/// nanoseconds.
const FIRST: u64 = 1 << 20;
const LATER: u64 = 8;

/// The longest steps, in nanoseconds: less than a message takes, and more than a run does.
const LENGTHS: [u64; 3] = [10_000, 1_000_000_000, 3_600_000_000_000];

/// Apart from the generator of the run, whose draws stay as they are.
const STREAM: u64 = 0x5741_4c4c;

/// The time at which virtual time begins.
pub(crate) const EPOCH: Timestamp = Timestamp(1_700_000_000_000_000_000);

#[derive(Default)]
pub(crate) struct WallClock {
    /// From these instants on the clock is off by so many nanoseconds.
    steps: Vec<(Instant, i64)>,
}

impl WallClock {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ STREAM);
        if !rng.chance(1, STEPS_IN) {
            return Self::default();
        }
        let mut at = 0;
        let steps = (0..1 + rng.below(STEPS_MAX)).map(|_| {
            at += 1 + rng.below(FIRST.max(at * LATER));
            let length = *rng.pick(&LENGTHS);
            (Instant(at), rng.below(2 * length) as i64 - length as i64)
        });
        Self { steps: steps.collect() }
    }

    pub(crate) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    pub(crate) fn at(&self, now: Instant) -> Timestamp {
        let last = self.steps.iter().rfind(|(at, _)| *at <= now);
        Timestamp(EPOCH.0 + now.0 as i64 + last.map_or(0, |(_, off)| *off))
    }

    /// The times that inodes may get in a window of a clock without steps: all that the clock has
    /// shown by its end, because a directory on several cells keeps the latest of its times.
    pub(crate) fn window(&self, window: Window) -> Window {
        let to = Instant((window.to.0 - EPOCH.0) as u64);
        let steps = self.steps.iter().map(|(at, _)| *at).filter(|at| *at <= to);
        let around = steps.flat_map(|at| [self.at(Instant(at.0 - 1)), self.at(at)]);
        let shown = || around.clone().chain([EPOCH, self.at(to)]);
        let (first, last) = (shown().min(), shown().max());
        let (from, to) = (first.unwrap_or(window.from), last.unwrap_or(window.to));
        Window { from, to, steps: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_all_times_that_the_clock_has_shown() {
        let clock = WallClock { steps: vec![(Instant(100), 1000), (Instant(200), -90)] };
        let time = |nanos: i64| Timestamp(EPOCH.0 + nanos);
        let window = |to| {
            let found = clock.window(Window { from: time(to - 9), to: time(to), steps: false });
            (found.from.0 - EPOCH.0, found.to.0 - EPOCH.0)
        };
        assert_eq!(window(99), (0, 99));
        assert_eq!(window(150), (0, 1150));
        assert_eq!(window(250), (0, 1199));
        assert_eq!(clock.at(Instant(100)), time(1100));
    }

    #[test]
    fn some_runs_have_steps() {
        let with = (0..400).filter(|seed| WallClock::draw(*seed).has_steps()).count();
        assert!((50..150).contains(&with), "{with} of 400");
    }
}
