//! On which processor a thread is that another one waits for. Two threads that wait for each other
//! on one processor must not spin: the other one cannot run meanwhile.
//!
//! A hint: a thread may be moved at any time.

use rustix::thread::sched_getcpu;

/// A processor, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor(u32);

impl Processor {
    /// No thread runs there.
    pub const NONE: Self = Self(!ASLEEP);

    /// That of the calling thread.
    #[must_use]
    #[inline]
    pub fn current() -> Self {
        Self(sched_getcpu() as u32 & !ASLEEP)
    }

    #[must_use]
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// Where a thread is, and whether it sleeps or is about to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Presence {
    pub at: Processor,
    pub sleeps: bool,
}

/// Set in the word of a thread that sleeps. Fresh memory shows one that is awake.
const ASLEEP: u32 = 1 << 31;

impl Presence {
    /// Of the calling thread.
    pub(crate) fn of_this(sleeps: bool) -> Self {
        Self { at: Processor::current(), sleeps }
    }

    /// A word for shared memory.
    pub(crate) fn pack(self) -> u32 {
        self.at.0 | if self.sleeps { ASLEEP } else { 0 }
    }

    pub(crate) fn unpack(word: u32) -> Self {
        Self { at: Processor(word & !ASLEEP), sleeps: word & ASLEEP != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_shows_where_a_thread_is_and_whether_it_sleeps() {
        for at in [Processor(0), Processor(7), Processor::current()] {
            for sleeps in [false, true] {
                let presence = Presence { at, sleeps };
                assert_eq!(Presence::unpack(presence.pack()), presence);
            }
        }
        assert!(!Presence::unpack(0).sleeps);
    }
}
