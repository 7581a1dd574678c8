//! The time for which a slot spins for an answer before it sleeps.
//!
//! A spin takes the core from other threads, so it is long only while that pays: one that saw no
//! answer halves the next, and the longest is tried again now and then. Where a client sleeps while
//! the cell wakes up, the cell is asleep again when the client has been woken, and each request
//! pays for two wake-ups. So a client spins through the wake-up of a cell. On one processor with
//! the cell it sleeps at once, because the cell cannot run before.
//!
//! A cell that answers many clients takes longer, and each that sleeps meanwhile costs it a system
//! call, which costs as much as a request. So a client spins longer while processors are idle.

use core::time::Duration;

use warren_shm::{Presence, Processor};

/// Calls between two attempts to spin for the longest time again.
const TRY_LONGEST_EVERY: u32 = 32;

/// The spins of a slot.
#[derive(Debug)]
pub(crate) struct Spins {
    /// For an answer of a cell that is awake.
    awake: Spin,
    /// The same while processors are idle.
    roomy: Spin,
    /// For one of a cell that was asleep, or has just gone to another processor.
    woken: Spin,
    /// The cell was on the slot's processor.
    was_beside: bool,
    is_single_core: bool,
}

impl Spins {
    pub(crate) fn new(is_single_core: bool) -> Self {
        let (awake, roomy, woken) = (Spin::AWAKE, Spin::ROOMY, Spin::WOKEN);
        Self { awake, roomy, woken, was_beside: false, is_single_core }
    }

    /// The spin of a thread that is `here` and has rung a cell; `None` if it must not spin.
    pub(crate) fn of(&mut self, cell: Presence, here: Processor) -> Option<&mut Spin> {
        let was_beside = core::mem::replace(&mut self.was_beside, cell.at == here);
        if self.is_single_core || self.was_beside {
            return None;
        }
        if was_beside {
            // A sleep now would bring both together again: see the cell's `Moves`.
            self.woken = Spin::WOKEN;
            self.awake = Spin::AWAKE;
        }
        Some(match cell.is_roomy {
            _ if cell.sleeps || was_beside => &mut self.woken,
            true => &mut self.roomy,
            false => &mut self.awake,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Spin {
    shortest: Duration,
    longest: Duration,
    now: Duration,
    /// Calls since the longest spin was last tried.
    calls: u32,
}

impl Spin {
    /// For a cell that is awake: a little more than a round trip to a cell that spins on another
    /// core, up to what a loaded cell needs for a few requests.
    const AWAKE: Self = Self::between(Duration::from_micros(1), Duration::from_micros(20));

    /// The same while processors are idle: up to what it needs for the requests of some tens of
    /// clients.
    const ROOMY: Self = Self::between(Duration::from_micros(1), Duration::from_micros(200));

    /// For a cell that was asleep: nothing, up to about the cost of waking a sleeper on a virtual
    /// machine, and the request.
    const WOKEN: Self = Self::between(Duration::ZERO, Duration::from_micros(80));

    const fn between(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, now: longest, calls: 0 }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.now
    }

    /// After a call, whose spin saw the answer or did not.
    pub(crate) fn adapt(&mut self, saw_answer: bool) {
        self.calls = self.calls.wrapping_add(1);
        let longer = saw_answer || self.calls.is_multiple_of(TRY_LONGEST_EVERY);
        self.now = if longer { self.longest } else { (self.now / 2).max(self.shortest) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_that_see_no_answer_become_short_and_are_tried_again() {
        for mut spin in [Spin::AWAKE, Spin::ROOMY, Spin::WOKEN] {
            for _ in 1..TRY_LONGEST_EVERY {
                assert!(spin.limit() >= spin.shortest);
                spin.adapt(false);
            }
            assert_eq!(spin.limit(), spin.shortest);
            spin.adapt(false);
            assert_eq!(spin.limit(), spin.longest);
        }
    }

    #[test]
    fn a_slot_spins_unless_its_cell_is_on_the_same_processor() {
        let here = Processor::current();
        let beside = |sleeps| Presence { at: here, sleeps, is_roomy: false };
        let apart = |sleeps| Presence { at: Processor::NONE, sleeps, is_roomy: false };
        let roomy = Presence { is_roomy: true, ..apart(false) };
        let mut spins = Spins::new(false);
        let mut longest = |cell| spins.of(cell, here).map(|spin| spin.longest);
        assert_eq!(longest(apart(false)), Some(Spin::AWAKE.longest));
        assert_eq!(longest(apart(true)), Some(Spin::WOKEN.longest));
        assert_eq!(longest(roomy), Some(Spin::ROOMY.longest));
        assert_eq!([false, true].map(|sleeps| longest(beside(sleeps))), [None; 2]);
        assert_eq!(longest(apart(false)), Some(Spin::WOKEN.longest), "it has just gone");
        assert_eq!(longest(apart(false)), Some(Spin::AWAKE.longest));
        let mut alone = Spins::new(true);
        assert!(alone.of(apart(false), here).is_none(), "there is one processor");
    }

    #[test]
    fn one_answer_that_was_seen_makes_the_next_spin_the_longest() {
        let mut spin = Spin::WOKEN;
        spin.adapt(false);
        spin.adapt(true);
        assert_eq!(spin.limit(), spin.longest);
    }
}
