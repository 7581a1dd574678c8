//! Copies between private memory and memory that another process may be writing.
//!
//! A plain `memcpy` would be a data race. Two ways are sound, and both read or write every byte
//! once: relaxed atomic words for a few bytes, and for many bytes a string instruction in inline
//! assembly, which is opaque to the compiler; at worst its result is torn. The x86 manual orders
//! the stores of a string instruction before a later plain store, so a release store publishes
//! them.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

#[cfg(all(target_arch = "x86_64", not(miri)))]
use warren_proto::slot::LINE;

/// Up to this length the start-up of a string instruction costs more than it saves.
const WORDS_MAX: usize = 256;

/// Copies `into.len()` bytes from shared memory.
///
/// # Safety
/// `from` is valid for reading that many bytes.
pub(crate) unsafe fn from_shared(from: *const u8, into: &mut [u8]) {
    if into.len() <= WORDS_MAX || cfg!(any(miri, not(target_arch = "x86_64"))) {
        // SAFETY: the caller promises the same.
        unsafe { words_from_shared(from, into) }
    } else {
        // SAFETY: the caller promises the same for `from`; `into` is private.
        unsafe { string_copy(from, into.as_mut_ptr(), into.len()) }
    }
}

/// Copies `from` to shared memory.
///
/// # Safety
/// `into` is valid for writing that many bytes.
pub(crate) unsafe fn to_shared(from: &[u8], into: *mut u8) {
    if from.len() <= WORDS_MAX || cfg!(any(miri, not(target_arch = "x86_64"))) {
        // SAFETY: the caller promises the same.
        unsafe { words_to_shared(from, into) }
    } else {
        // SAFETY: the caller promises the same for `into`; `from` is private, so the two do not
        // overlap.
        unsafe { string_copy(from.as_ptr(), into, from.len()) }
    }
}

/// Zeroes shared memory.
///
/// # Safety
/// `into` is valid for writing `len` bytes.
pub(crate) unsafe fn zero_shared(into: *mut u8, len: usize) {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(ZEROS.len());
        // SAFETY: `done + n <= len`, so the range lies in the one that the caller vouches for.
        unsafe { to_shared(&ZEROS[..n], into.add(done)) };
        done += n;
    }
}

/// Prefetches `len` bytes at `from` into this core's cache.
#[inline]
pub(crate) fn prefetch(from: *const u8, len: usize) {
    let _hint = (from, len);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..len).step_by(LINE) {
        // SAFETY: a prefetch changes nothing and never faults, at any address.
        unsafe {
            core::arch::asm!(
                "prefetcht0 [{}]",
                in(reg) from.wrapping_add(line),
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}

/// Prefetches the line at `at` into this core's cache, exclusively.
#[inline]
pub(crate) fn prefetch_own(at: *mut u8) {
    let _hint = at;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) at,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// SAFETY: callers vouch for `into.len()` readable bytes at `from`.
unsafe fn words_from_shared(from: *const u8, into: &mut [u8]) {
    let mut done = 0;
    while done < into.len() {
        // SAFETY: `done < len`, within the caller's range.
        let at = unsafe { from.add(done) };
        if into.len() - done >= size_of::<u64>() && at.addr().is_multiple_of(8) {
            // SAFETY: aligned, and 8 bytes are left of the caller's range.
            let word = unsafe { &*at.cast::<AtomicU64>() }.load(Ordering::Relaxed);
            into[done..done + 8].copy_from_slice(&word.to_ne_bytes());
            done += 8;
        } else {
            // SAFETY: within the caller's range; bytes need no alignment.
            into[done] = unsafe { &*at.cast::<AtomicU8>() }.load(Ordering::Relaxed);
            done += 1;
        }
    }
}

/// SAFETY: callers vouch for `from.len()` writable bytes at `into`.
unsafe fn words_to_shared(from: &[u8], into: *mut u8) {
    let mut rest = from;
    let mut at = into;
    while !rest.is_empty() {
        let n = match rest.first_chunk::<8>() {
            Some(word) if at.addr().is_multiple_of(8) => {
                // SAFETY: aligned, and 8 bytes are left of the caller's range.
                let target = unsafe { &*at.cast::<AtomicU64>() };
                target.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                8
            }
            _ => {
                // SAFETY: within the caller's range; bytes need no alignment.
                unsafe { &*at.cast::<AtomicU8>() }.store(rest[0], Ordering::Relaxed);
                1
            }
        };
        rest = &rest[n..];
        // SAFETY: at most one past the caller's range.
        at = unsafe { at.add(n) };
    }
}

/// SAFETY: callers vouch for `len` readable bytes at `from` and as many writable ones at `into`.
#[cfg(target_arch = "x86_64")]
unsafe fn string_copy(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: reads and writes exactly the ranges that the caller vouches for; the direction flag
    // is clear at every boundary of the ABI. Without `nomem` the compiler keeps its order around
    // it.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") into => _,
            options(nostack, preserves_flags)
        );
    }
}

/// SAFETY: never called on this processor.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn string_copy(_: *const u8, _: *mut u8, _: usize) {
    unreachable!("words are used on this processor")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every alignment of the shared side, and every length around the change of methods.
    #[test]
    fn copies_are_exact_and_touch_nothing_else() {
        let lens = (0..40).chain(WORDS_MAX - 2..WORDS_MAX + 3).chain([4096]);
        for (len, shift) in lens.flat_map(|len| (0..9).map(move |shift| (len, shift))) {
            let source: Vec<u8> = (0..len).map(|i| (i * 7 + shift) as u8 | 1).collect();
            let mut shared = vec![0u8; len + 32];
            // SAFETY: `shift + len` bytes fit the vector.
            unsafe { to_shared(&source, shared.as_mut_ptr().add(shift)) };
            assert_eq!(shared[shift..shift + len], source);
            assert!(shared[..shift].iter().chain(&shared[shift + len..]).all(|&b| b == 0));
            let mut back = vec![0u8; len];
            // SAFETY: as above.
            unsafe { from_shared(shared.as_ptr().add(shift), &mut back) };
            assert_eq!(back, source);
            // SAFETY: as above.
            unsafe { zero_shared(shared.as_mut_ptr().add(shift), len) };
            assert!(shared.iter().all(|&b| b == 0));
        }
    }
}
