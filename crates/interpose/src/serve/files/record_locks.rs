//! The files on which the program takes record locks. None of them is served: the process loses its
//! locks on a file when it closes any descriptor of it, and the kernel must see that.
//!
//! Inodes are remembered as bits. Two inodes with one bit are both left to the kernel, and so is in
//! the end everything in a program that locks thousands of files.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use warren_base::Ino;

const BITS: usize = 1 << 12;
/// 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bit for each inode, which others may share.
pub(crate) struct RecordLocks([AtomicU64; BITS / 64]);

fn place(Ino(ino): Ino) -> (&'static AtomicU64, u64) {
    let bit = (ino.wrapping_mul(SPREAD) >> (u64::BITS - BITS.ilog2())) as usize;
    (&RecordLocks::here().0[bit / 64], 1 << (bit % 64))
}

/// The program is about to lock the file.
pub(super) fn note(ino: Ino) {
    let (word, bit) = place(ino);
    word.fetch_or(bit, SeqCst);
}

/// Whether the program may have locked the file.
pub(super) fn has(ino: Ino) -> bool {
    let (word, bit) = place(ino);
    word.load(SeqCst) & bit != 0
}

impl RecordLocks {
    /// In a child of `fork`, which has no record locks.
    pub(crate) fn forget(&self) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_files_are_remembered_and_few_others_are_taken_for_them() {
        let inos = || (0..10_000).map(Ino);
        RecordLocks::here().forget();
        assert!(!inos().any(has));
        for ino in inos().take(40) {
            note(ino);
        }
        assert!(inos().take(40).all(has));
        assert!(inos().filter(|ino| has(*ino)).count() < 300);
        RecordLocks::here().forget();
        assert!(!inos().any(has));
    }
}
