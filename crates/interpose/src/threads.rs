//! The facts that are remembered of each thread, by its number.
//!
//! A bit for each possible thread, so that nothing depends on the program's thread-local storage:
//! a thread may have none (raw `clone`). The pages of the tables are used only when a bit is set,
//! and not even read before.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::state::Life;

/// Threads are numbered below this (`PID_MAX_LIMIT`).
const THREADS: usize = 1 << 22;
const BITS: usize = u64::BITS as usize;

pub(crate) struct Set([AtomicU64; THREADS / BITS]);

/// The threads of which something is remembered.
pub(crate) struct Threads {
    /// The threads that believe that SIGSYS is blocked.
    pub blocked: Set,
    /// The threads that get a SIGSYS once they unblock it.
    pub pending: Set,
}

impl Set {
    pub(crate) fn has(&self, thread: usize) -> bool {
        let (word, bit) = self.place(thread);
        Life::here().notes_threads.get() && word.load(Relaxed) & bit != 0
    }

    /// Returns whether the thread was in the set.
    pub(crate) fn replace(&self, thread: usize, inside: bool) -> bool {
        if !Life::here().notes_threads.get() {
            if !inside {
                return false;
            }
            Life::here().notes_threads.set(true);
        }
        let (word, bit) = self.place(thread);
        let old = match (inside, word.load(Relaxed) & bit != 0) {
            (true, false) => word.fetch_or(bit, Relaxed),
            (false, true) => word.fetch_and(!bit, Relaxed),
            (_, same) => return same,
        };
        old & bit != 0
    }

    fn place(&self, thread: usize) -> (&AtomicU64, u64) {
        let thread = thread % THREADS;
        (&self.0[thread / BITS], 1 << (thread % BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_put_in_and_taken_out() {
        let set = &Threads::here().blocked;
        assert!(!set.replace(70, true));
        assert!(set.replace(70, true) && set.has(70) && !set.has(71) && !set.has(6));
        assert!(set.replace(70, false) && !set.has(70));
    }
}
