//! A word that threads share, and that changes by single atomic steps. The protocols of a
//! descriptor run on it: [`super::pin`], [`super::pending`], [`super::descriptor`] and
//! [`super::parked`].
//!
//! In the process it is an [`AtomicU64`]. In the models it is a word of loom's, or one that calls
//! an event before one of the steps (`explored`).

use core::sync::atomic::{
    AtomicU64,
    Ordering::{self, Relaxed},
};

use super::super::lock;

#[cfg(test)]
pub(super) mod explored;

pub(crate) trait SharedWord {
    fn load(&self, order: Ordering) -> u64;

    fn store(&self, word: u64, order: Ordering);

    /// Returns whether the word was `from`, and is `to` now.
    fn exchange(&self, from: u64, to: u64, order: Ordering) -> bool;

    /// Adds to the word, and returns what it was.
    fn add(&self, amount: u64, order: Ordering) -> u64;

    /// Sets bits of the word, and returns what it was.
    fn set(&self, bits: u64, order: Ordering) -> u64;

    /// Clears all other bits of the word, and returns what it was.
    fn keep(&self, bits: u64, order: Ordering) -> u64;

    /// Lets another thread go on that is about to change the word.
    fn relax(turn: usize);
}

impl SharedWord for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, word: u64, order: Ordering) {
        self.store(word, order);
    }

    #[inline(always)]
    fn exchange(&self, from: u64, to: u64, order: Ordering) -> bool {
        self.compare_exchange(from, to, order, Relaxed).is_ok()
    }

    #[inline(always)]
    fn add(&self, amount: u64, order: Ordering) -> u64 {
        self.fetch_add(amount, order)
    }

    #[inline(always)]
    fn set(&self, bits: u64, order: Ordering) -> u64 {
        self.fetch_or(bits, order)
    }

    #[inline(always)]
    fn keep(&self, bits: u64, order: Ordering) -> u64 {
        self.fetch_and(bits, order)
    }

    fn relax(turn: usize) {
        lock::relax(turn);
    }
}
