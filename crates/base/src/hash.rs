//! A hasher without a random seed, for the hash maps of pure crates: the same run makes the same
//! maps.
//!
//! Fast rather than strong: it multiplies and folds one word at a time. Without a seed it is for
//! keys that no client chooses (allocated numbers). A map whose keys come from clients needs a seed
//! that they do not know and hashes that they do not see; otherwise a client could choose names
//! that all collide.

use core::fmt;
use core::hash::{BuildHasher, Hasher};

/// Builds [`FixedHasher`]s.
#[derive(Clone, Copy, Default)]
pub struct FixedState {
    seed: u64,
}

impl FixedState {
    /// A state with a seed of its own.
    pub const fn seeded(seed: u64) -> Self {
        Self { seed }
    }
}

impl fmt::Debug for FixedState {
    /// The seed may be a secret and must not appear in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FixedState")
    }
}

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;

    fn build_hasher(&self) -> FixedHasher {
        FixedHasher(self.seed ^ 0x243f_6a88_85a3_08d3)
    }
}

/// The state after what was written so far.
#[derive(Clone, Copy, Debug)]
pub struct FixedHasher(u64);

impl FixedHasher {
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.mix(u64::from_le_bytes(word.try_into().expect("chunks of eight")));
        }
        let mut last = [0; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        self.mix(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_numbers_fall_into_different_buckets() {
        let buckets: std::collections::BTreeSet<u64> =
            (0..4096_u64).map(|n| FixedState::default().hash_one(n) % 4096).collect();
        assert!(buckets.len() > 2300, "only {} of 4096 buckets are used", buckets.len());
    }

    #[test]
    fn bytes_and_their_length_count() {
        let hash = |bytes: &[u8]| FixedState::default().hash_one(bytes);
        assert_ne!(hash(b"abcdefgh"), hash(b"abcdefgi"));
        assert_ne!(hash(b"a"), hash(b"a\0"));
        assert_eq!(hash(b"abc"), hash(b"abc"));
    }

    /// A word that equals the state cancels it: sixteen bytes whose second eight are such a word
    /// have the same hash whatever came before. Without the seed the word is unknown.
    #[test]
    fn names_made_to_collide_without_the_seed_do_not_collide() {
        let known = FixedState::default();
        let absorbed = |first: u64| {
            let mut hasher = known.build_hasher();
            hasher.mix(first);
            [first.to_le_bytes(), hasher.0.to_le_bytes()].concat()
        };
        let hash = |state: FixedState, n| {
            let mut hasher = state.build_hasher();
            hasher.write(&absorbed(n));
            hasher.finish()
        };
        assert!((1..1000).all(|n| hash(known, n) == hash(known, 0)), "the attack works");
        let seeded = FixedState::seeded(0x5eed);
        let hashes = (0..1000).map(|n| hash(seeded, n));
        assert_eq!(hashes.collect::<std::collections::BTreeSet<_>>().len(), 1000);
    }
}
