//! Hashing with a fixed function, so that two runs of one seed are equal.

use std::hash::{BuildHasher, Hasher};

/// A small, fast hasher (one wide multiplication per word, as in wyhash).
#[derive(Default)]
pub(crate) struct Mix(u64);

impl Mix {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word ^ Self::K) * u128::from(Self::K | 1 << 63);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64).rotate_left(23);
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Makes [`Mix`] the hasher of a map.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fixed;

impl BuildHasher for Fixed {
    type Hasher = Mix;

    fn build_hasher(&self) -> Mix {
        Mix::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hasher_distinguishes_neighbours() {
        let hash = |x: u64| {
            let mut mix = Mix::default();
            mix.write_u64(x);
            mix.finish()
        };
        assert_ne!(hash(0), hash(1));
        assert_ne!(hash(0), 0);
    }
}
