//! The way from a directory up to the root, one parent after the other.
//!
//! The disk and peers supply the parent of a directory. So the way may be a circle, which Brent's
//! method finds (the place reached at a power of two is kept and compared), or longer than a limit.
//! Both are errors of the request.
//!
//! Each step is taken once. A transaction that holds the shape of the tree keeps its position,
//! because nothing that it has seen can change. An operation without locks takes few steps, or
//! becomes such a transaction.

use warren_base::limits::DEPTH_MAX;
use warren_base::{Errno, Ino};

/// Steps of an operation without locks, which begins again each time that it runs.
pub(crate) const STEPS_LOCAL: u32 = 64;

/// Steps of one run of a transaction, before other tasks have their turn.
pub(crate) const STEPS_A_RUN: u32 = 1024;

/// The position of an operation on its way up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ascent {
    at: Ino,
    steps: u32,
    /// The place after the last number of steps that is a power of two.
    mark: Ino,
    /// There is no parent above.
    has_ended: bool,
}

impl Ascent {
    pub(crate) const fn new(from: Ino) -> Self {
        Self { at: from, steps: 0, mark: from, has_ended: false }
    }

    pub(crate) const fn at(&self) -> Ino {
        self.at
    }

    pub(crate) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// There is no parent above, and none is looked up again.
    pub(crate) const fn end(&mut self) {
        self.has_ended = true;
    }

    /// EIO for a circle, ELOOP beyond the limit.
    pub(crate) fn step_to(&mut self, parent: Ino) -> Result<(), Errno> {
        if parent == self.mark {
            return Err(Errno::EIO);
        }
        if self.steps == DEPTH_MAX {
            return Err(Errno::ELOOP);
        }
        self.steps += 1;
        self.at = parent;
        if self.steps.is_power_of_two() {
            self.mark = parent;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn climb(up: impl Fn(u64) -> u64) -> (u32, Errno) {
        let mut ascent = Ascent::new(Ino(0));
        loop {
            if let Err(errno) = ascent.step_to(Ino(up(ascent.at().0))) {
                return (ascent.steps, errno);
            }
        }
    }

    #[test]
    fn circles_are_found_soon_and_long_ways_in_the_end() {
        for (tail, circle) in [(0, 1), (0, 2), (0, 1000), (500, 1), (500, 3), (3, 700)] {
            let up = |at| if at + 1 == tail + circle { tail } else { at + 1 };
            let (steps, errno) = climb(up);
            assert_eq!(errno, Errno::EIO);
            assert!(u64::from(steps) <= 3 * (tail + circle), "{steps} for {tail} and {circle}");
        }
        assert_eq!(climb(|at| at + 1), (DEPTH_MAX, Errno::ELOOP));
    }
}
