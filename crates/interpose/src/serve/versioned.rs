//! Words that belong together, which any thread reads, also in a signal handler, while the holder
//! of the lock may be writing them.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

pub(super) struct Versioned<const N: usize> {
    /// Odd while the words are written.
    version: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Versioned<N> {
    /// The words. `None` if they are being written.
    pub(super) fn get(&self) -> Option<[u64; N]> {
        let version = self.version.load(Acquire);
        let words = self.words.each_ref().map(|word| word.load(Acquire));
        let is_whole = version.is_multiple_of(2) && self.version.load(Acquire) == version;
        is_whole.then_some(words)
    }

    /// Called under the lock, or in a child of `fork`, where a thread of the parent may have left
    /// the version odd.
    pub(super) fn set(&self, words: [u64; N]) {
        let writing = self.version.load(Relaxed) | 1;
        self.version.store(writing, Release);
        for (word, new) in self.words.iter().zip(words) {
            word.store(new, Release);
        }
        self.version.store(writing.wrapping_add(1), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_whole_or_not_given_out() {
        let words =
            Versioned { version: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 2] };
        words.set([7, 8]);
        assert_eq!(words.get(), Some([7, 8]));
        words.version.fetch_add(1, Relaxed);
        assert_eq!(words.get(), None, "a writer is at work");
        words.set([9, 10]);
        assert_eq!(words.get(), Some([9, 10]), "and is gone, in a child of fork");
    }
}
