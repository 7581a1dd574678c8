//! The number of runs of each kind of affinity, and the time that they took. The share of time in
//! coarse ones limits the number of cores that a cell can use.

use std::time::Duration;

use crate::Kind;

/// The counters of one kind of affinity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KindCounters {
    /// The number of times an affinity of this kind started to run.
    pub starts: u64,
    /// The number of messages handed out.
    pub messages: u64,
    /// Time charged by the driver.
    pub busy: Duration,
}

/// The counters of all kinds of affinity.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    kinds: [KindCounters; Kind::ALL.len()],
    /// The number of times the scheduler held other affinities back for a coarse one.
    pub drains: u64,
}

impl Counters {
    pub fn of(&self, kind: Kind) -> &KindCounters {
        &self.kinds[kind as usize]
    }

    pub(crate) fn of_mut(&mut self, kind: Kind) -> &mut KindCounters {
        &mut self.kinds[kind as usize]
    }

    /// The time of all kinds together.
    pub fn busy(&self) -> Duration {
        self.kinds.iter().map(|kind| kind.busy).sum()
    }

    /// The fraction of all time that this kind took, 0 to 1.
    pub fn share(&self, kind: Kind) -> f64 {
        let all = self.busy().as_secs_f64();
        if all == 0.0 { 0.0 } else { self.of(kind).busy.as_secs_f64() / all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        let mut counters = Counters::default();
        assert_eq!(counters.share(Kind::Serial), 0.0);
        counters.of_mut(Kind::Serial).busy = Duration::from_secs(1);
        counters.of_mut(Kind::Stripe).busy = Duration::from_secs(3);
        assert_eq!(counters.share(Kind::Serial), 0.25);
        assert_eq!(Kind::ALL.iter().map(|&kind| counters.share(kind)).sum::<f64>(), 1.0);
    }
}
