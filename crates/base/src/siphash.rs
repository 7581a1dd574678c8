//! SipHash (Aumasson and Bernstein, 2012): a short keyed hash that cannot be predicted without its
//! key.
//!
//! It is for keys that clients choose or whose hashes they see. 1-3 is the variant for hash tables,
//! 2-4 the conservative one of the paper; the numbers are rounds per word and rounds at the end.

/// SipHash-1-3 of `bytes`.
#[inline]
pub fn siphash_1_3(key: [u64; 2], bytes: &[u8]) -> u64 {
    siphash::<1, 3>(key, bytes)
}

/// SipHash-2-4 of `bytes`.
#[inline]
pub fn siphash_2_4(key: [u64; 2], bytes: &[u8]) -> u64 {
    siphash::<2, 4>(key, bytes)
}

#[inline]
fn siphash<const PER_WORD: usize, const AT_END: usize>(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        absorb::<PER_WORD>(&mut v, u64::from_le_bytes(word.try_into().expect("chunks of eight")));
    }
    // The last word is the rest of the bytes, with the length in its top byte.
    let mut last = (bytes.len() as u64) << 56;
    for (at, byte) in words.remainder().iter().enumerate() {
        last |= u64::from(*byte) << (8 * at);
    }
    absorb::<PER_WORD>(&mut v, last);
    v[2] ^= 0xff;
    (0..AT_END).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
fn absorb<const ROUNDS: usize>(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    (0..ROUNDS).for_each(|_| round(v));
    v[0] ^= word;
}

#[inline]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    /// The key of the paper's vectors, bytes 0 to 15.
    const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

    #[test]
    fn the_vector_of_the_paper() {
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash_2_4(KEY, &message), 0xa129_ca61_49be_45e5);
    }

    /// The standard library uses SipHash-1-3 with a key of zeros.
    #[test]
    fn the_short_one_is_that_of_the_standard_library() {
        let message: Vec<u8> = (0..64).collect();
        for len in 0..=message.len() {
            let mut oracle = std::hash::DefaultHasher::new();
            oracle.write(&message[..len]);
            assert_eq!(siphash_1_3([0, 0], &message[..len]), oracle.finish(), "{len} bytes");
        }
    }

    #[test]
    #[allow(deprecated, reason = "for its name only")]
    fn the_long_one_is_that_of_the_standard_library() {
        let mut rng = crate::Rng::new(11);
        let message: Vec<u8> = (0..64).map(|_| rng.next_u64() as u8).collect();
        for len in 0..=message.len() {
            let key = [rng.next_u64(), rng.next_u64()];
            let mut oracle = std::hash::SipHasher::new_with_keys(key[0], key[1]);
            oracle.write(&message[..len]);
            assert_eq!(siphash_2_4(key, &message[..len]), oracle.finish(), "{len} bytes");
        }
    }

    #[test]
    fn the_key_counts() {
        assert_ne!(siphash_1_3([1, 0], b"name"), siphash_1_3([2, 0], b"name"));
        assert_ne!(siphash_1_3([0, 1], b"name"), siphash_1_3([0, 2], b"name"));
    }
}
