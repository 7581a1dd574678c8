//! How many connections are accepted, so that a flood of them takes a bounded part of a core from
//! everything else.
//!
//! A connection takes a token, of which there are up to [`BURST`]; [`A_TICK`] new ones come every
//! [`TICK`], on a larger machine more. Connections for which there is no token wait in the
//! listener's queue, in their order, and when that is full, clients wait in `connect`. The
//! supervisor refuses none: under a flood a client waits for those before it, some tenths of a
//! second at most.

use std::time::Duration;

use warren_base::Instant;

/// Programs that start at once and connect together wait for nothing.
pub const BURST: u64 = 256;

/// To accept a connection, hear and answer it, and close it takes some 30 us, and a look at all
/// connections as much: of two thousand a second, taken sixteen at a time, a flood has less than a
/// tenth of a core. So many are taken for each [`CORES`] of the machine, where as many more
/// programs may start.
pub const A_TICK: u64 = 16;
pub const CORES: usize = 2;
pub const TICK: Duration = Duration::from_millis(8);

const TICK_NS: u64 = TICK.as_nanos() as u64;

#[derive(Debug)]
pub struct Pace {
    tokens: u64,
    /// Tokens that a tick adds.
    a_tick: u64,
    /// Since then no token was added.
    since: Instant,
}

impl Pace {
    /// On a machine of so many cores.
    pub fn new(cores: usize) -> Self {
        let a_tick = A_TICK * cores.div_ceil(CORES) as u64;
        Self { tokens: BURST.max(a_tick), a_tick, since: Instant(0) }
    }

    /// Whether a connection may be accepted.
    pub fn permits(&mut self, now: Instant) -> bool {
        let ticks = (now - self.since).as_nanos() as u64 / TICK_NS;
        let full = BURST.max(self.a_tick);
        self.tokens = ticks.saturating_mul(self.a_tick).saturating_add(self.tokens).min(full);
        let is_full = self.tokens == full;
        self.since = if is_full { now } else { Instant(self.since.0 + ticks * TICK_NS) };
        self.tokens > 0
    }

    /// One was accepted, as was permitted.
    pub fn count(&mut self) {
        self.tokens -= 1;
    }

    /// How long nothing is permitted.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
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
    fn a_burst_waits_for_nothing_and_a_flood_for_its_turn() {
        let mut pace = Pace::new(CORES);
        let mut now = Instant(HOUR);
        assert_eq!(pace.wait(now), None);
        assert_eq!(taken(&mut pace, now), BURST);
        assert_eq!(pace.wait(now), Some(TICK));
        now = now + TICK / 2;
        assert_eq!((taken(&mut pace, now), pace.wait(now)), (0, Some(TICK / 2)));
        // What is over of a tick is not lost.
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
    fn a_larger_machine_lets_in_more() {
        let now = Instant(HOUR);
        for (cores, more) in [(1, 1), (16, 8), (64, 32)] {
            let mut pace = Pace::new(cores);
            taken(&mut pace, now);
            assert_eq!(taken(&mut pace, now + TICK), more * A_TICK, "{cores} cores");
        }
    }
}
