//! Whether memory that the program has named can be read.
//!
//! The kernel answers EFAULT for a bad pointer, and so must we. `signalfd4` with invalid flags
//! reads eight bytes first and then fails with EINVAL, and it has no effect.

use crate::abi::{EFAULT, PAGE, SET_SIZE, nr};
use crate::state::is_filtered;
use crate::stub;

const WORD: usize = size_of::<u64>();

/// Whether `length` bytes from `address` on can be read: at least a word and at most a page.
pub(crate) fn readable(address: usize, length: usize) -> bool {
    // They lie in two pages at most, and the first word and the last lie in both.
    let last = address.wrapping_add(length - WORD);
    word_readable(address) && (last / PAGE == address / PAGE || word_readable(last))
}

fn word_readable(address: usize) -> bool {
    // A filter may forbid the probe. Then a bad pointer ends the program.
    if address == 0 || is_filtered() {
        return address != 0;
    }
    let no_descriptor = usize::MAX;
    let invalid_flags = 0xffff_ffff;
    let args = [no_descriptor, address, SET_SIZE, invalid_flags];
    // SAFETY: the kernel checks the address, and the flags make the call fail.
    unsafe { stub::call(nr::SIGNALFD4, args) != -EFAULT }
}

/// The word at `address`, if it can be read.
pub(crate) fn word(address: usize) -> Option<u64> {
    // SAFETY: it was readable just now. A program that unmaps it meanwhile races with itself.
    word_readable(address).then(|| unsafe { (address as *const u64).read_unaligned() })
}

/// Reads bytes and aligned words, and probes each page once.
pub(crate) struct Reader {
    page: usize,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { page: usize::MAX }
    }

    /// The aligned word at `address`.
    pub(crate) fn word(&mut self, address: usize) -> Option<usize> {
        assert!(address.is_multiple_of(WORD));
        if address / PAGE != self.page {
            word(address)?;
            self.page = address / PAGE;
        }
        // SAFETY: its page is readable.
        Some(unsafe { *(address as *const usize) })
    }

    pub(crate) fn byte(&mut self, address: usize) -> Option<u8> {
        let word = self.word(address & !(WORD - 1))?;
        Some(word.to_ne_bytes()[address % WORD])
    }
}
