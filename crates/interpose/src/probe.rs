//! Whether memory that the program has named can be read.
//!
//! The kernel answers EFAULT for a bad pointer, and so must we. `signalfd4` with invalid flags reads
//! eight bytes first and then fails with EINVAL, and it has no effect.

use crate::abi::{EFAULT, SET_SIZE, nr};
use crate::state::FILTERED;
use crate::stub;

const WORD: usize = size_of::<u64>();

/// Whether `length` bytes from `address` on can be read: at least a word and at most a page.
pub(crate) fn readable(address: usize, length: usize) -> bool {
    if address == 0 {
        return false;
    }
    // Two pages at most: the first word and the last lie on all of them.
    FILTERED.get() || (word_readable(address) && word_readable(address + length - WORD))
}

fn word_readable(address: usize) -> bool {
    let no_descriptor = usize::MAX;
    let invalid_flags = 0xffff_ffff;
    let args = [no_descriptor, address, SET_SIZE, invalid_flags];
    // SAFETY: the kernel checks the address, and the flags make the call fail.
    unsafe { stub::call(nr::SIGNALFD4, args) != -EFAULT }
}

/// The word at `address`, if it can be read.
pub(crate) fn word(address: usize) -> Option<u64> {
    // SAFETY: it was readable just now. A program that unmaps it meanwhile races with itself.
    readable(address, WORD).then(|| unsafe { (address as *const u64).read_unaligned() })
}
