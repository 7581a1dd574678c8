//! The number of the descriptor that pins the mount, and its users: files that are open here, and
//! the holder of the lock while it opens one.
//!
//! ```text
//! word    bits 0..31 files    bit 31 the holder of the lock    bits 32.. the number, plus one
//! ```
//!
//! Invariant: while there is a user, the descriptor is open, and it is the same one. So a file can
//! be handed over at every moment of its life. Number and users are in one word for this reason:
//!
//! | step | by | only if |
//! | --- | --- | --- |
//! | the descriptor is opened, and held | the holder of the lock | there is none |
//! | it is held, and released | the holder of the lock | it is there |
//! | a file joins | any thread, without a lock | it is there |
//! | a file leaves | any thread | |
//! | it is taken, to be closed | the holder of the lock | it has no user |

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::shared_word::SharedWord;

const HELD: u64 = 1 << 31;
const FILES: u64 = HELD - 1;
const NUMBER_SHIFT: u32 = 32;

pub(crate) struct Pin<W>(W);

/// The pin of this process.
#[inline]
pub(super) fn pin() -> &'static Pin<AtomicU64> {
    Pin::here()
}

impl<W: SharedWord> Pin<W> {
    #[cfg(test)]
    pub(super) fn new(word: W) -> Self {
        Self(word)
    }

    /// Whether there is a descriptor, and so whether there may be users.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.0.load(SeqCst) != 0
    }

    pub(super) fn number(&self) -> Option<usize> {
        (self.0.load(SeqCst) >> NUMBER_SHIFT).checked_sub(1).map(|number| number as usize)
    }

    /// Whether there is one that nothing uses.
    pub(super) fn is_unused(&self) -> bool {
        let word = self.0.load(SeqCst);
        word != 0 && word & (FILES | HELD) == 0
    }

    /// A file is open from now on. False if there is no descriptor: then nothing has changed.
    pub(super) fn join(&self) -> bool {
        self.change(|word| (word != 0).then(|| word + 1)).is_some()
    }

    /// A file that has joined is not open any more.
    pub(super) fn leave(&self) {
        self.change(|word| {
            assert!(word & FILES != 0, "a file leaves that has not joined");
            Some(word - 1)
        });
    }

    /// Under the lock: the descriptor stays open until [`Self::release`]. Returns its number.
    pub(super) fn hold(&self) -> Option<usize> {
        let held = |word| {
            assert!(word & HELD == 0, "it is held already");
            (word != 0).then_some(word | HELD)
        };
        self.change(held)?;
        self.number()
    }

    /// Under the lock: this is the descriptor, and it is held. There was none.
    pub(super) fn set(&self, number: usize) {
        self.change(|word| {
            assert!(word == 0, "there is one");
            Some((number as u64 + 1) << NUMBER_SHIFT | HELD)
        });
    }

    /// The lock's holder does not use it any more. In a child of `fork`: of whichever thread of the
    /// parent held it.
    pub(crate) fn release(&self) {
        self.change(|word| Some(word & !HELD));
    }

    /// Under the lock: takes the descriptor, which the caller closes. `None` if it has users.
    pub(super) fn take_unused(&self) -> Option<usize> {
        let taken = |word| (word & (FILES | HELD) == 0).then_some(0);
        self.change(taken)?.checked_sub(1).map(|number| number as usize)
    }

    /// Changes the word, and returns the number that was in it, plus one. `None` if `to` says that
    /// nothing is to be changed.
    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        loop {
            let word = self.0.load(SeqCst);
            let changed = to(word)?;
            if self.0.exchange(word, changed, SeqCst) {
                return Some(word >> NUMBER_SHIFT);
            }
        }
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_with_users_is_not_taken() {
        let pin = Pin::new(AtomicU64::new(0));
        assert!(!pin.join() && !pin.is_set() && pin.hold().is_none());
        assert_eq!((pin.take_unused(), pin.number()), (None, None));
        pin.set(0);
        assert_eq!((pin.take_unused(), pin.number()), (None, Some(0)));
        assert!(pin.join() && !pin.is_unused());
        pin.release();
        assert_eq!((pin.take_unused(), pin.hold()), (None, Some(0)));
        pin.leave();
        assert_eq!(pin.take_unused(), None);
        pin.release();
        assert!(pin.is_unused());
        assert_eq!((pin.take_unused(), pin.is_set()), (Some(0), false));
    }
}
