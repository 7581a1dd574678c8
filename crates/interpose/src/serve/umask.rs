//! The process's umask, which the kernel applies to the modes of new files, and so must we.
//!
//! The kernel shows it in `/proc` only. It is read when it is first needed, and known after each
//! `umask` of the program. A version shows whether another thread has changed it meanwhile.
//!
//! ```text
//! bits 0..9 the mask    bit 9 it is known    bits 10.. version
//! ```

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};

use crate::call::SystemCall;

use super::lock::Room;
use super::proc;

const MASK: u64 = 0o777;
const KNOWN: u64 = 1 << 9;
const VERSION: u64 = 1 << 10;

/// The umask, whether it is known, and a version.
pub(crate) struct Umask(AtomicU64);

/// `umask`.
pub(super) fn change(call: &SystemCall) -> isize {
    let begun = next_version();
    let result = call.make();
    let now = (begun + VERSION) | KNOWN | call.args[0] as u64 & MASK;
    if Umask::here().0.compare_exchange(begun, now, AcqRel, Acquire).is_err() {
        next_version();
    }
    result
}

/// Forgets the mask. Returns the word, which no other thread has seen.
fn next_version() -> u64 {
    let next = |word: u64| (word & !(VERSION - 1)).wrapping_add(VERSION);
    let before = Umask::here().0.fetch_update(AcqRel, Acquire, |word| Some(next(word)));
    next(before.unwrap_or_else(|word| word))
}

/// The mask. Called under the lock.
pub(super) fn get(room: &mut Room) -> Option<u16> {
    let word = Umask::here().0.load(Acquire);
    if word & KNOWN != 0 {
        return Some((word & MASK) as u16);
    }
    let status = proc::whole(c"/proc/thread-self/status", &mut room.text)?;
    let mask = parse(status)?;
    // If it fails, the mask is that of a moment of this call, as in the kernel.
    let _kept = Umask::here().0.compare_exchange(word, word | KNOWN | mask, AcqRel, Acquire);
    Some(mask as u16)
}

/// Decodes the text of a `status`.
fn parse(status: &[u8]) -> Option<u64> {
    proc::number_in(proc::field(status, b"Umask:")?, 8).filter(|mask| *mask <= MASK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::nr;

    #[test]
    fn a_status_tells_the_mask() {
        assert_eq!(parse(b"Name:\tx\nUmask:\t0022\nState:\tR\n"), Some(0o22));
        assert_eq!(parse(b"Name:\tx\nUmask:\t0999\n"), None);
        assert_eq!(parse(b"Name:\tx\n"), None);
    }

    #[test]
    fn a_change_is_known_and_forgets_what_was_read_before() {
        let set = |mask| SystemCall { number: nr::UMASK, args: [mask; 6], return_address: 0 };
        let before = change(&set(0o27));
        assert_eq!(Umask::here().0.load(Acquire) & (KNOWN | MASK), KNOWN | 0o27);
        let read = Umask::here().0.load(Acquire);
        assert_eq!(change(&set(0o1022)), 0o27);
        assert_eq!(
            Umask::here().0.load(Acquire) & (KNOWN | MASK),
            KNOWN | 0o22,
            "bits above are no mask"
        );
        assert!(Umask::here().0.compare_exchange(read, read, AcqRel, Acquire).is_err());
        assert_eq!(change(&set(before as usize)), 0o22);
    }
}
