//! A hasher without a random seed, for the hash maps of pure crates: the same run makes the same maps.
//!
//! Fast rather than strong: multiply and fold, a word at a time. Whoever hashes what strangers choose
//! bounds its map, so that the worst collisions cost the stranger's own share only.

use std::hash::{BuildHasher, Hasher};

/// Builds [`FixedHasher`]s.
#[derive(Clone, Copy, Default, Debug)]
pub struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;

    fn build_hasher(&self) -> FixedHasher {
        FixedHasher(0x243f_6a88_85a3_08d3)
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
            (0..4096_u64).map(|n| FixedState.hash_one(n) % 4096).collect();
        assert!(buckets.len() > 2300, "only {} of 4096 buckets are used", buckets.len());
    }

    #[test]
    fn bytes_and_their_length_count() {
        let hash = |bytes: &[u8]| FixedState.hash_one(bytes);
        assert_ne!(hash(b"abcdefgh"), hash(b"abcdefgi"));
        assert_ne!(hash(b"a"), hash(b"a\0"));
        assert_eq!(hash(b"abc"), hash(b"abc"));
    }
}
