//! Answers by whole path, for paths that are asked for again.
//!
//! A program that walks a tree asks for each path once, or twice if it opens the file. An answer
//! takes 320 bytes in a table of five megabytes, where most pages would be written to for one path.
//! So an answer is kept when it is asked for a third time.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warren_base::{Errno, Ino};
use warren_client::{ENTRY_WORDS, Guard, PathCache, PathKey, Words};
use warren_proto::Attr;

use crate::arena;

use super::place::Place;

/// Answers that are kept: 5 MB, of which only what is used is allocated.
const ANSWERS: usize = 1 << 14;

/// Counts of paths, by a part of their hashes. Two that have it in common are taken for one.
const COUNTS: u64 = 1 << 15;
const BITS: u64 = 2;
/// The answer is kept. No count becomes less, so that in the end all answers are kept at once.
const KEPT: u64 = (1 << BITS) - 1;
const WORD: u64 = u64::BITS as u64;

pub(super) struct Answers {
    cache: PathCache<&'static [AtomicU64]>,
    /// The number of lookups of each path, up to [`KEPT`].
    counts: &'static [AtomicU64],
}

impl Answers {
    pub(super) fn new() -> Option<Self> {
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).ok()?;
        let cache = PathCache::new(arena::words(ANSWERS * ENTRY_WORDS)?, u64::from_ne_bytes(seed));
        Some(Self { cache, counts: arena::words((COUNTS * BITS / WORD) as usize)? })
    }

    /// The key of a place. `root` is what `/` names.
    pub(super) fn key(&self, place: &Place<'_>, root: Ino) -> PathKey {
        self.cache.key(place.path, root, place.start.ino, place.follow_last)
    }

    /// The answer for a path, if it is kept and valid. Memory that was never written to is not
    /// read, because that would allocate it, too.
    pub(super) fn get(&self, key: PathKey, words: &impl Words) -> Option<Result<Attr, Errno>> {
        let (word, shift) = self.count(key);
        if word.load(Relaxed) >> shift & KEPT != KEPT {
            return None;
        }
        self.cache.answer(key, words)
    }

    /// A path was asked for, and copies under these guards have answered it. Changed under the lock
    /// alone.
    pub(super) fn note(
        &self,
        key: PathKey,
        guards: impl ExactSizeIterator<Item = Guard>,
        answer: Result<&Attr, Errno>,
    ) {
        let (word, shift) = self.count(key);
        let counts = word.load(Relaxed);
        let before = counts >> shift & KEPT;
        if before < KEPT {
            word.store(counts + (1 << shift), Relaxed);
        }
        if before + 1 >= KEPT {
            self.cache.put(key, guards, answer);
        }
    }

    /// The word of a path's count, and where it is there.
    fn count(&self, key: PathKey) -> (&AtomicU64, u64) {
        let bit = key.part() % COUNTS * BITS;
        (&self.counts[(bit / WORD) as usize], bit % WORD)
    }
}

#[cfg(test)]
mod tests {
    use warren_proto::InodeRef;

    use super::*;

    struct NoWords;

    impl Words for NoWords {
        fn load(&self, _: warren_base::CellId, _: u32) -> u64 {
            0
        }
    }

    #[test]
    fn an_answer_is_kept_when_it_is_asked_for_a_third_time() {
        let answers = Answers::new().expect("memory");
        let key = |at: u32| {
            let place = Place { path: &at.to_le_bytes(), start: InodeRef::ROOT, follow_last: true };
            answers.key(&place, Ino(1))
        };
        let keys = || (0..2000).map(key);
        let is_kept = |key| answers.get(key, &NoWords) == Some(Err(Errno::ENOENT));
        let ask = |key| answers.note(key, core::iter::empty(), Err(Errno::ENOENT));
        keys().chain(keys()).for_each(ask);
        assert!(keys().filter(|key| is_kept(*key)).count() < 200, "a few are taken for others");
        keys().for_each(ask);
        assert!(keys().filter(|key| is_kept(*key)).count() > 1900, "a few give way");
    }
}
