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
    pub const NONE: Self = Self(!FLAGS);

    /// That of the calling thread.
    #[must_use]
    #[inline]
    pub fn current() -> Self {
        Self(sched_getcpu() as u32 & !FLAGS)
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
    /// Processors are idle: who waits for the thread may spin.
    pub is_roomy: bool,
}

/// Set in the word of a thread that sleeps. Fresh memory shows one that is awake.
const ASLEEP: u32 = 1 << 31;
const ROOMY: u32 = 1 << 30;
const FLAGS: u32 = ASLEEP | ROOMY;

impl Presence {
    /// Returns the presence of the calling thread.
    pub(crate) fn of_this(sleeps: bool) -> Self {
        Self { at: Processor::current(), sleeps, is_roomy: false }
    }

    /// A word for shared memory.
    pub(crate) fn pack(self) -> u32 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        self.at.0 | flag(self.sleeps, ASLEEP) | flag(self.is_roomy, ROOMY)
    }

    pub(crate) fn unpack(word: u32) -> Self {
        let has = |flag| word & flag != 0;
        Self { at: Processor(word & !FLAGS), sleeps: has(ASLEEP), is_roomy: has(ROOMY) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_shows_where_a_thread_is_and_whether_it_sleeps() {
        for at in [Processor(0), Processor(7), Processor::current()] {
            for (sleeps, is_roomy) in [(false, false), (true, false), (false, true)] {
                let presence = Presence { at, sleeps, is_roomy };
                assert_eq!(Presence::unpack(presence.pack()), presence);
            }
        }
        assert!(!Presence::unpack(0).sleeps);
    }
}
