//! The number of a descriptor of ours, if it is open.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Release},
};

/// The number plus one. 0 for none.
pub(crate) struct Number(AtomicUsize);

impl Number {
    pub(crate) fn get(&self) -> Option<usize> {
        self.0.load(Acquire).checked_sub(1)
    }

    pub(crate) fn set(&self, number: usize) {
        self.0.store(number + 1, Release);
    }

    /// Returns the number, which is not here any more.
    pub(crate) fn take(&self) -> Option<usize> {
        self.0.swap(0, AcqRel).checked_sub(1)
    }
}
