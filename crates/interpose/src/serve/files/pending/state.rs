//! The states of a number whose file the kernel has opened for writing.
//!
//! ```text
//!              note              freeze
//!  Not pending ────▶ Pending ──────────────▶ Frozen ─────────▶ Not pending    served from now on,
//!   ▲                │     ▲  begin, end       │  ▲     thaw                  or the kernel's for
//!   └────────────────┘     └───────────────────┘  └ end                       good
//!        forget                  release
//!
//! word    bit 0 pending    bit 1 frozen    bit 2 was read
//!         bits 3..40 what its writes have cost, in cycles    bits 40.. calls under way
//! ```
//!
//! Every call on a pending number is counted while it is under way: it must find the kernel's file
//! under the number. A number is frozen first, so that no more calls begin, and is used when those
//! under way have ended. `note`, `forget` and `begin` wait while it is frozen. A handler that jumps
//! out of a call leaves the count up, and then the number is never used. The count stays when a
//! number is forgotten, because the call is still to end.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, SeqCst},
};

use super::super::shared_word::SharedWord;

const PENDING: u64 = 1;
/// Calls wait until it is decided who has the file.
const FROZEN: u64 = 2;
const WAS_READ: u64 = 4;
const COST_SHIFT: u32 = 3;
const CALL: u64 = 1 << 40;
const CALLS: u64 = !(CALL - 1);
const COST: u64 = !CALLS & !7;
const COST_MAX: u64 = COST >> COST_SHIFT;

/// The kind of a call on a file, and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Made {
    /// A write that took so many cycles.
    Write(u64),
    /// A read, which would have cost so many more as a request.
    Read(u64),
    Other,
}

#[derive(Debug)]
pub(super) struct State<W = AtomicU64>(W);

/// The cost in a word, in cycles.
const fn cost(word: u64) -> u64 {
    (word & COST) >> COST_SHIFT
}

/// The word after a call.
fn ended(word: u64, made: Made) -> u64 {
    let (cost, read) = match made {
        Made::Write(cycles) => ((cost(word) + cycles).min(COST_MAX), 0),
        Made::Read(cycles) => (cost(word).saturating_sub(cycles), WAS_READ),
        Made::Other => (cost(word), 0),
    };
    (word & !COST | cost << COST_SHIFT | read).wrapping_sub(CALL)
}

impl<W: SharedWord> State<W> {
    #[cfg(test)]
    pub(super) fn new(word: W) -> Self {
        Self(word)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.0.load(Acquire) & PENDING != 0
    }

    pub(super) fn was_read(&self) -> bool {
        self.0.load(SeqCst) & WAS_READ != 0
    }

    /// The cost of the file's writes, in cycles.
    pub(super) fn cost(&self) -> u64 {
        cost(self.0.load(Acquire))
    }

    /// Whether no call on the number, which is frozen, is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.load(SeqCst) & CALLS == 0
    }

    /// The number is pending now. Returns whether it was.
    pub(super) fn note(&self) -> bool {
        self.change(|word| word & CALLS | PENDING)
    }

    /// The kernel has the file for good. Returns whether the number was pending.
    pub(super) fn forget(&self) -> bool {
        self.change(|word| word & CALLS)
    }

    /// The kernel is about to make a call on the file. False if the number is not pending any more.
    pub(super) fn begin(&self) -> bool {
        self.change(|word| if word & PENDING != 0 { word + CALL } else { word })
    }

    /// The call is made. Returns what the writes of the file have cost. This does not wait, because
    /// who has frozen the number may wait for it.
    pub(super) fn end(&self, made: Made) -> u64 {
        loop {
            let word = self.0.load(Relaxed);
            if self.0.exchange(word, ended(word, made), SeqCst) {
                return cost(ended(word, made));
            }
        }
    }

    /// Changes a word that is not frozen. Returns whether the number was pending.
    fn change(&self, to: impl Fn(u64) -> u64) -> bool {
        let mut turn = 0;
        loop {
            let word = self.0.load(SeqCst);
            if word & FROZEN != 0 {
                W::relax(turn);
                turn += 1;
            } else if self.0.exchange(word, to(word), SeqCst) {
                return word & PENDING != 0;
            }
        }
    }

    /// Makes calls that begin wait until [`Self::thaw`] or [`Self::release`], under the lock. False
    /// if the number is not pending.
    pub(super) fn freeze(&self) -> bool {
        let is_pending = self.0.set(FROZEN, SeqCst) & PENDING != 0;
        if !is_pending {
            self.0.keep(!FROZEN, SeqCst);
        }
        is_pending
    }

    /// Ends the wait of other calls. The number is not pending any more. Returns whether it was.
    pub(super) fn thaw(&self) -> bool {
        self.0.keep(CALLS, SeqCst) & PENDING != 0
    }

    /// Ends the wait of other calls. The file must cost as much again before the next try.
    pub(super) fn release(&self) {
        self.0.keep(!(FROZEN | COST), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_frozen_while_no_call_is_under_way() {
        let file = State(AtomicU64::new(0));
        assert!(!file.note() && file.note() && file.is_pending());
        assert!(file.begin() && file.freeze() && !file.is_quiet());
        assert_eq!((file.end(Made::Write(700)), file.cost()), (700, 700));
        assert!(file.is_quiet() && file.is_pending());
        file.release();
        assert_eq!((file.begin(), file.cost()), (true, 0));
        assert_eq!(file.end(Made::Write(300)), 300);
        assert!(file.freeze() && file.is_quiet() && !file.was_read());
        assert!(file.thaw() && !file.is_pending());
        assert!(!file.begin() && !file.freeze());
        assert!(!file.begin() && !file.forget(), "it is not left frozen");
    }

    #[test]
    fn reads_take_back_what_writes_have_put_in() {
        let file = State(AtomicU64::new(0));
        file.note();
        for (made, left) in [
            (Made::Write(100), 100),
            (Made::Read(60), 40),
            (Made::Read(60), 0),
            (Made::Write(u64::from(u32::MAX) << 4), u64::from(u32::MAX) << 4),
            (Made::Write(COST_MAX), COST_MAX),
        ] {
            assert!(file.begin());
            assert_eq!(file.end(made), left);
        }
        assert!(file.was_read());
    }

    #[test]
    fn calls_that_are_under_way_outlive_what_they_were_made_for() {
        let file = State(AtomicU64::new(0));
        file.note();
        assert!(file.begin() && file.forget() && !file.is_pending());
        file.note();
        assert!(file.freeze() && !file.is_quiet(), "the call on the other file is under way");
        file.end(Made::Write(5));
        assert!(file.is_quiet());
    }
}
