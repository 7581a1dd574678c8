//! The guard of a copy: the lease word that shows whether it is valid.
//!
//! A stamp is granted once and never again, so a word that has it at two times had it all the time
//! between.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warren_base::CellId;
use warren_proto::Lease;

/// The lease words of all cells, as the client reads them.
pub trait Words {
    /// The value of the word, loaded with acquire order; 0 if there is no such word.
    fn load(&self, cell: CellId, word: u32) -> u64;
}

/// The condition under which a copy is valid: that word of that cell's segment holds that stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard {
    pub(crate) cell: CellId,
    pub(crate) word: u32,
    pub(crate) stamp: u64,
}

impl Guard {
    /// `None` for a lease of the acknowledged kind (stamp 0), which guards no copy in this cache.
    pub const fn new(cell: CellId, lease: Lease) -> Option<Self> {
        match lease.stamp {
            0 => None,
            stamp => Some(Self { cell, word: lease.word, stamp }),
        }
    }

    /// One that never holds: there is no such word.
    pub const NEVER: Self = Self { cell: CellId(0), word: u32::MAX, stamp: u64::MAX };

    /// Loads the guard from the two words into which [`Self::store`] has put it.
    pub fn load(words: &[AtomicU64]) -> Self {
        let place = words[0].load(Relaxed);
        let (cell, word) = (CellId((place >> 32) as u16), place as u32);
        Self { cell, word, stamp: words[1].load(Relaxed) }
    }

    /// Puts it into the first two words.
    pub fn store(self, words: &[AtomicU64]) {
        words[0].store(u64::from(self.cell.0) << 32 | u64::from(self.word), Relaxed);
        words[1].store(self.stamp, Relaxed);
    }

    /// Whether the copy is valid now. Loads the word once.
    pub fn holds(&self, words: &impl Words) -> bool {
        words.load(self.cell, self.word) == self.stamp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: CellId = CellId(1);

    /// Words that are all the same; there are 100.
    struct Same(u64);

    impl Words for Same {
        fn load(&self, _: CellId, word: u32) -> u64 {
            if word < 100 { self.0 } else { 0 }
        }
    }

    #[test]
    fn a_guard_is_stored_in_two_words() {
        let words = [const { AtomicU64::new(0) }; 2];
        let guard = Guard::new(CELL, Lease { word: 7, stamp: 9 }).expect("a word lease");
        guard.store(&words);
        assert_eq!(Guard::load(&words), guard);
        assert!(guard.holds(&Same(9)) && !guard.holds(&Same(8)));
        Guard::NEVER.store(&words);
        assert!(!Guard::load(&words).holds(&Same(u64::MAX)));
    }
}
