//! The rate at which connections are accepted, so that a flood of them takes a bounded part of a
//! core.
//!
//! A connection takes a token, of which there are up to [`BURST`]; [`A_TICK`] new ones are added
//! every [`TICK`], on a larger machine more. Connections without a token wait in the listener's
//! queue, in order, and when that is full, clients wait in `connect`. The supervisor refuses none:
//! under a flood a client waits for the connections before it, some tenths of a second at most.

use std::time::Duration;

use warren_base::Instant;

/// Programs that start at once and connect together do not wait.
pub(super) const BURST: u64 = 256;

/// Accepting a connection, receiving and answering its request, and closing it takes some 30 us,
/// and polling all connections takes as long. With two thousand a second, sixteen at a time, a
/// flood takes less than a tenth of a core. So many are accepted for each [`CORES`] of the machine,
/// because a larger machine starts more programs.
pub(super) const A_TICK: u64 = 16;
pub(super) const CORES: usize = 2;
pub(super) const TICK: Duration = Duration::from_millis(8);

const TICK_NS: u64 = TICK.as_nanos() as u64;

#[derive(Debug)]
pub(super) struct Pace {
    tokens: u64,
    /// Tokens that a tick adds.
    a_tick: u64,
    /// The time up to which tokens were added.
    since: Instant,
}

impl Pace {
    /// On a machine of so many cores.
    pub(super) fn new(cores: usize) -> Self {
        let a_tick = A_TICK * cores.div_ceil(CORES) as u64;
        Self { tokens: BURST.max(a_tick), a_tick, since: Instant(0) }
    }

    /// Whether a connection may be accepted.
    pub(super) fn permits(&mut self, now: Instant) -> bool {
        let ticks = (now - self.since).as_nanos() as u64 / TICK_NS;
        let full = BURST.max(self.a_tick);
        self.tokens = ticks.saturating_mul(self.a_tick).saturating_add(self.tokens).min(full);
        let is_full = self.tokens == full;
        self.since = if is_full { now } else { Instant(self.since.0 + ticks * TICK_NS) };
        self.tokens > 0
    }

    /// Takes the token of a connection that was accepted.
    pub(super) fn count(&mut self) {
        self.tokens -= 1;
    }

    /// The time for which no connection is permitted.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let due = self.since + TICK;
        (self.tokens == 0 && now < due).then(|| due - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    fn taken(pace: &mut Pace, now: Instant) -> u64 {
        let permitted = |pace: &mut Pace| pace.permits(now).then(|| pace.count());
        (0..10 * BURST).map_while(|_| permitted(pace)).count() as u64
    }

    #[test]
    fn a_burst_does_not_wait_and_a_flood_does() {
        let mut pace = Pace::new(CORES);
        let mut now = Instant(HOUR);
        assert_eq!(pace.wait(now), None);
        assert_eq!(taken(&mut pace, now), BURST);
        assert_eq!(pace.wait(now), Some(TICK));
        now = now + TICK / 2;
        assert_eq!((taken(&mut pace, now), pace.wait(now)), (0, Some(TICK / 2)));
        // The rest of a tick is not lost.
        now = now + TICK * 2;
        assert_eq!((pace.wait(now), taken(&mut pace, now)), (None, 2 * A_TICK));
        assert_eq!(pace.wait(now), Some(TICK / 2));
        let (begun, second) = (now, Duration::from_secs(1));
        let of_second = (second.as_nanos() / TICK.as_nanos()) as u64 * A_TICK;
        let mut flood = 0;
        while now - begun < second {
            now = now + Duration::from_micros(7);
            flood += taken(&mut pace, now);
        }
        assert!((of_second - A_TICK..=of_second + A_TICK).contains(&flood), "{flood}");
        assert_eq!(taken(&mut pace, now + Duration::from_secs(9)), BURST, "no more than a burst");
    }

    #[test]
    fn a_larger_machine_accepts_more() {
        let now = Instant(HOUR);
        for (cores, more) in [(1, 1), (16, 8), (64, 32)] {
            let mut pace = Pace::new(cores);
            taken(&mut pace, now);
            assert_eq!(taken(&mut pace, now + TICK), more * A_TICK, "{cores} cores");
        }
    }
}
