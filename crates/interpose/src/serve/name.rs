//! A path of the program, copied, and the prefix that leads to the mount.

use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::abi::PAGE;

use super::memory;
use super::why::Why;

const WORD: usize = size_of::<u64>();
/// Longer paths go to the kernel, because the program's stack may be small.
const WORDS: usize = 48;
/// The longest path of a mount, with a final zero.
pub(crate) const PREFIX: usize = 256;

/// A copy of a path, because another thread may change the program's. It begins anywhere in its
/// first word: whole words are copied, as they lie in memory.
pub(crate) struct Name {
    words: [MaybeUninit<u64>; WORDS],
    start: usize,
    length: usize,
}

impl Name {
    /// An empty path. It is filled where it lies, because it is large.
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { words: [MaybeUninit::uninit(); WORDS], start: 0, length: 0 }
    }

    /// Copies the string at `address`.
    pub(crate) fn copy(&mut self, address: usize) -> Result<(), Why> {
        self.length = 0;
        self.start = address % WORD;
        let mut at = address - self.start;
        for (count, word) in self.words.iter_mut().enumerate() {
            if (count == 0 || at.is_multiple_of(PAGE)) && !memory::is_readable(at) {
                return Err(Why::Pointer);
            }
            // SAFETY: an aligned word in a page that can be read.
            let loaded = unsafe { (at as *const u64).read_volatile() };
            word.write(loaded);
            // Bytes before the string are no end of it.
            let before = if count == 0 { !(u64::MAX << (8 * self.start)) } else { 0 };
            if let Some(zero) = first_zero(loaded | before) {
                self.length = count * WORD + zero - self.start;
                return Ok(());
            }
            at += WORD;
        }
        Err(Why::Long)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let start = self.words.as_ptr().cast::<u8>();
        // SAFETY: the words up to the one with the final zero were written.
        unsafe { core::slice::from_raw_parts(start.add(self.start), self.length) }
    }
}

/// Whether the last component of the path is a name, with no slash behind it.
pub(crate) fn ends_plainly(path: &[u8]) -> bool {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    !matches!(last, b"" | b"." | b"..")
}

/// The first byte that is zero, of a word in memory order.
fn first_zero(word: u64) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
    (zeros != 0).then(|| zeros.trailing_zeros() as usize / 8)
}

/// The path of a mount. It may be read while another thread sets it; then the result is wrong, and
/// the reader must not use it.
pub(crate) struct Prefix {
    words: [AtomicU64; PREFIX / WORD],
    length: AtomicUsize,
}

impl Prefix {
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        Self { words: [const { AtomicU64::new(0) }; PREFIX / WORD], length: AtomicUsize::new(0) }
    }

    /// Returns whether there is room for the path, which must not end in a slash.
    pub(crate) fn set(&self, path: impl Iterator<Item = u8>) -> bool {
        let mut bytes = [0; PREFIX];
        let mut length = 0;
        for byte in path {
            if length + 1 >= PREFIX {
                return false;
            }
            bytes[length] = byte;
            length += 1;
        }
        self.length.store(0, Relaxed);
        for (word, bytes) in self.words.iter().zip(bytes.as_chunks::<WORD>().0) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        let usable = length > 1 && bytes[0] == b'/' && bytes[length - 1] != b'/';
        self.length.store(if usable { length } else { 0 }, Release);
        usable
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(Relaxed) == 0
    }

    /// Nothing is written where nothing is.
    pub(crate) fn clear(&self) {
        if !self.is_empty() {
            self.length.store(0, Relaxed);
        }
    }

    pub(crate) fn copy(&self, from: &Self) {
        let mut bytes = [0; PREFIX];
        self.set(from.read(&mut bytes).iter().copied());
    }

    pub(crate) fn read<'a>(&self, bytes: &'a mut [u8; PREFIX]) -> &'a [u8] {
        for (bytes, word) in bytes.as_chunks_mut::<WORD>().0.iter_mut().zip(&self.words) {
            *bytes = word.load(Relaxed).to_ne_bytes();
        }
        &bytes[..self.length.load(Acquire).min(PREFIX)]
    }

    /// The address of the path, which ends in a zero.
    pub(crate) fn address(&self) -> usize {
        self.words.as_ptr() as usize
    }

    /// The rest of an absolute path behind the prefix, without slashes before it; `/` if it is
    /// empty, and not `.`, because `.` needs the right to search the directory. `None` if the path
    /// does not lead through the mount.
    #[inline]
    pub(crate) fn rest<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let length = self.length.load(Acquire);
        if length == 0 || length > path.len() || length > PREFIX {
            return None;
        }
        let (front, mut rest) = path.split_at(length);
        let (whole, tail) = front.as_chunks::<WORD>();
        for (bytes, word) in whole.iter().zip(&self.words) {
            if u64::from_ne_bytes(*bytes) != word.load(Relaxed) {
                return None;
            }
        }
        if !tail.is_empty() {
            let last = self.words[whole.len()].load(Relaxed).to_ne_bytes();
            if !tail.iter().zip(last).all(|(byte, wanted)| *byte == wanted) {
                return None;
            }
        }
        if !rest.is_empty() && rest[0] != b'/' {
            return None;
        }
        while let [b'/', behind @ ..] = rest {
            rest = behind;
        }
        Some(if rest.is_empty() { b"/" } else { rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_is_found_in_any_place() {
        assert_eq!(first_zero(u64::MAX), None);
        assert_eq!(first_zero(u64::from_ne_bytes(*b"abcdefgh")), None);
        assert_eq!(first_zero(u64::from_ne_bytes(*b"\x80\x01\xff\x7f\x80\x81\x01\x02")), None);
        for at in 0..WORD {
            let mut bytes = *b"\x80\x01\xff\x7fabcd";
            bytes[at..].fill(0);
            assert_eq!(first_zero(u64::from_ne_bytes(bytes)), Some(at));
            bytes[at..].fill(1);
            bytes[at] = 0;
            assert_eq!(first_zero(u64::from_ne_bytes(bytes)), Some(at));
        }
    }

    #[test]
    fn names_are_copied_wherever_they_begin() {
        let text = *b"\0\0\0a/name/that/ends/somewhere\0and more";
        for start in 0..text.len() - 9 {
            let wanted = text[start..].split(|byte| *byte == 0).next().expect("a part");
            // A copy in whole words, so that no load leaves it.
            let mut words = [0_u64; 8];
            let bytes: &mut [[u8; WORD]; 8] =
                // SAFETY: both are 64 bytes of plain numbers.
                unsafe { &mut *(&raw mut words).cast() };
            bytes.as_flattened_mut()[..text.len()].copy_from_slice(&text);
            let mut name = Name::new();
            name.copy(&raw const words as usize + start).expect("readable");
            assert_eq!(name.bytes(), wanted, "from {start}");
        }
        let long = vec![b'x'; 600];
        let mut name = Name::new();
        assert_eq!(name.copy(long.as_ptr() as usize), Err(Why::Long));
        assert_eq!(name.copy(8), Err(Why::Pointer));
        assert_eq!(name.copy(usize::MAX - 9), Err(Why::Pointer));
        assert_eq!(name.bytes(), b"");
    }

    #[test]
    fn the_rest_of_a_path_follows_the_prefix() {
        for prefix in [&b"/m"[..], b"/mnt/abc", b"/mnt/a b/c", b"/mnt/warren/x/y"] {
            let set = Prefix::new();
            assert!(set.set(prefix.iter().copied()));
            let path = |rest: &[u8]| [prefix, rest].concat();
            for (rest, wanted) in [
                (&b""[..], &b"/"[..]),
                (b"/", b"/"),
                (b"/.", b"."),
                (b"//a", b"a"),
                (b"/a/b/", b"a/b/"),
                (b"/..", b".."),
            ] {
                assert_eq!(set.rest(&path(rest)), Some(wanted));
            }
            assert_eq!(set.rest(&path(b"x/a")), None);
            assert_eq!(set.rest(&prefix[..prefix.len() - 1]), None);
            let mut other = path(b"/a");
            other[prefix.len() - 1] ^= 1;
            assert_eq!(set.rest(&other), None);
            let mut bytes = [0; PREFIX];
            assert_eq!(set.read(&mut bytes), prefix);
            let copy = Prefix::new();
            copy.copy(&set);
            assert_eq!(copy.read(&mut bytes), prefix);
        }
        let set = Prefix::new();
        for unusable in [&b""[..], b"/", b"mnt", b"/mnt/", &[b'/'; PREFIX]] {
            assert!(!set.set(unusable.iter().copied()));
            assert_eq!(set.rest(b"/mnt/x"), None);
        }
    }
}
