//! The time for which a cell spins without work before it sleeps.
//!
//! Long spins halved the throughput of a busy machine (measured), because they took cores from
//! threads with work. So a spin is [`SHORT`] unless every thread that may spin has its own core:
//! the cells that are awake, as their vitals show, and one thread of each client that was active
//! lately (fronts not in addition to the programs that wait for them). And it is [`LONG`] only
//! where that pays: after a sleep so short that a long spin would have seen its end. Each longer
//! sleep halves it (Karlin et al., SODA'90: spin about as long as a sleep costs).

use std::time::Duration;

/// The shortest spin.
pub(super) const SHORT: Duration = Duration::from_micros(5);

/// About the cost of waking a sleeper on a virtual machine.
const LONG: Duration = Duration::from_micros(50);

/// A sleep shorter than this, with the cost of waking, should have been a long spin.
const REGRETTED: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(super) struct Spin {
    cores: usize,
    long: Duration,
}

impl Spin {
    pub(super) fn new(cores: usize) -> Self {
        Self { cores, long: SHORT }
    }

    /// The time to spin, while `spinners` threads may spin, this one included.
    pub(super) fn limit(&self, spinners: usize) -> Duration {
        if spinners <= self.cores { self.long } else { SHORT }
    }

    /// A spin found no work, and the sleep after it took so long.
    pub(super) fn slept(&mut self, time: Duration) {
        self.long = if time < REGRETTED { LONG } else { (self.long / 2).max(SHORT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_are_long_only_with_a_core_for_each_spinner_and_after_short_sleeps() {
        let mut spin = Spin::new(4);
        assert_eq!(spin.limit(1), SHORT);
        spin.slept(Duration::from_micros(60));
        assert_eq!((spin.limit(4), spin.limit(5)), (LONG, SHORT));
        spin.slept(Duration::from_millis(3));
        assert_eq!(spin.limit(4), LONG / 2);
        for _ in 0..9 {
            spin.slept(Duration::from_secs(1));
        }
        assert_eq!(spin.limit(1), SHORT);
    }
}
