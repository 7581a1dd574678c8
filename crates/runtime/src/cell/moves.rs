//! The processor of a cell that a client shares.
//!
//! A client and its cell wake each other, and Linux wakes a thread on the processor of the waker if
//! it does not look for an idle one, which it leaves out where few processors share a cache and
//! these were busy (`SIS_UTIL` in Linux's `kernel/sched/fair.c`). Because both sleep after each
//! call, its load balancer does not part them either. On one processor a spin only keeps the other
//! from running, and a call takes two context switches, ten times as long as between two
//! processors. So the cell moves to another one, if no more threads can run than there are
//! processors: otherwise the scheduler has its reasons.
//!
//! The same look at the machine's threads tells whether processors are idle. Then clients may spin
//! longer for an answer.

use std::time::Duration;

use rustix::io::Errno as OsError;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use warren_base::Instant;
use warren_shm::Processor;

use crate::loads::Loads;

/// The time for which it is believed that processors are idle, or not.
const ROOM_LASTS: Duration = Duration::from_millis(1);

/// Processors that must be idle for that: a part of them, and at least so many.
const SPARE_PART: usize = 4;
const SPARE_MIN: usize = 2;

/// After a move, which takes some 30 µs, and after a look that led to none.
const PAUSE: Duration = Duration::from_millis(1);
const LOOK_AGAIN: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(super) struct Moves {
    stays_until: Instant,
    is_roomy: bool,
    /// When to look again whether it is.
    next_look: Instant,
    cores: usize,
    /// If it says nothing, the cell does not move.
    loads: Loads,
}

impl Moves {
    /// Must precede the confinement, in which nothing can be opened.
    pub(super) fn new(cores: usize) -> Self {
        let (stays_until, next_look) = (Instant(0), Instant(0));
        Self { stays_until, is_roomy: false, next_look, cores, loads: Loads::open() }
    }

    /// Whether the thread has not moved lately, and there is an idle processor.
    pub(super) fn are_due(&mut self, now: Instant) -> bool {
        if now < self.stays_until {
            return false;
        }
        self.stays_until = now + LOOK_AGAIN;
        self.loads.runnable().is_some_and(|threads| threads <= self.cores)
    }

    /// Whether processors were idle lately, enough for threads that spin.
    pub(super) fn is_roomy(&self) -> bool {
        self.is_roomy
    }

    /// Looks now and then whether there are.
    pub(super) fn look_for_room(&mut self, now: Instant) {
        if now >= self.next_look {
            self.next_look = now + ROOM_LASTS;
            // Who waits for an answer may wait for other threads, which need a processor as well:
            // a front's for the one that recalls, for example.
            let spare = (self.cores / SPARE_PART).max(SPARE_MIN);
            self.is_roomy =
                self.loads.runnable().is_some_and(|threads| threads + spare <= self.cores);
        }
    }

    /// Moves the thread to another processor, if it may use one.
    pub(super) fn leave(&mut self, now: Instant) -> bool {
        self.stays_until = now + PAUSE;
        move_away().is_ok_and(|moved| moved)
    }
}

/// Forbids this processor for a moment. A change of the allowed ones by another process in that
/// moment is lost.
fn move_away() -> Result<bool, OsError> {
    let allowed = sched_getaffinity(None)?;
    let mut others = allowed;
    let here = Processor::current().number();
    if here >= CpuSet::MAX_CPU {
        return Ok(false);
    }
    others.unset(here);
    if others.count() == 0 {
        return Ok(false);
    }
    sched_setaffinity(None, &others)?;
    sched_setaffinity(None, &allowed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_does_not_move_twice_in_a_moment() {
        let mut moves = Moves::new(usize::MAX);
        let now = Instant(0) + PAUSE;
        assert!(moves.are_due(now));
        assert!(!moves.are_due(now + LOOK_AGAIN / 2), "it has looked");
        assert!(moves.are_due(now + LOOK_AGAIN));
        moves.leave(now);
        assert!(!moves.are_due(now + PAUSE / 2) && moves.are_due(now + PAUSE));
    }

    #[test]
    fn a_cell_stays_while_more_threads_can_run_than_there_are_processors() {
        assert!(!Moves::new(0).are_due(Instant(0) + PAUSE), "this thread runs");
    }

    #[test]
    fn a_thread_leaves_its_processor_and_may_come_back() {
        let allowed = sched_getaffinity(None).expect("processors");
        let before = Processor::current();
        let moved = move_away().expect("a move");
        assert_eq!(moved, allowed.count() > 1);
        assert!(!moved || Processor::current() != before);
        assert_eq!(sched_getaffinity(None).expect("processors"), allowed);
    }

    #[test]
    fn a_thread_with_one_processor_stays() {
        let mut one = CpuSet::new();
        one.set(Processor::current().number());
        std::thread::spawn(move || {
            sched_setaffinity(None, &one).expect("one processor");
            assert_eq!(move_away(), Ok(false));
        })
        .join()
        .expect("a thread");
    }
}
