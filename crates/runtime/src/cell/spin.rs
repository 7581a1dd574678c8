//! How long a cell spins without work before it sleeps.
//!
//! Longer spins halved the throughput of a busy machine (measured), because they took cores from
//! who had work. So a spin is [`SHORT`] unless there is a core for everybody who may be spinning:
//! the cells that are awake, as their vitals say, and one thread of each client. And it is longer
//! only where that is worth it: after a sleep so short that a long spin would have seen its end;
//! each sleep that was longer halves it (Karlin et al., SODA'90: spin about as long as a sleep
//! costs).

use std::time::Duration;

/// In any case.
pub const SHORT: Duration = Duration::from_micros(5);

/// About what waking a sleeper costs on a virtual machine.
const LONG: Duration = Duration::from_micros(50);

/// A sleep that a long spin would have replaced, what waking costs included.
const REGRETTED: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub struct Spin {
    cores: usize,
    long: Duration,
}

impl Spin {
    pub fn new(cores: usize) -> Self {
        Self { cores, long: SHORT }
    }

    /// How long to spin in all, while `spinners` threads may be spinning, this one included.
    pub fn limit(&self, spinners: usize) -> Duration {
        if spinners <= self.cores { self.long } else { SHORT }
    }

    /// A spin found nothing, and the sleep after it took so long.
    pub fn slept(&mut self, time: Duration) {
        self.long = if time < REGRETTED { LONG } else { (self.long / 2).max(SHORT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_are_short_unless_there_is_a_core_for_everybody_and_it_pays() {
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
