//! Our own system calls that no handler of the program interrupts, so that they may be made while
//! handlers are deferred. All others are in `stub`.

use crate::abi::{SET_SIZE, SIG_SETMASK, nr};

// SAFETY: `entry.rs` defines it.
unsafe extern "C" {
    /// # Safety
    /// As the call itself.
    fn warren_call(
        number: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> isize;
}

/// Makes a call and returns what the kernel returns.
///
/// # Safety
/// The call must be sound with these arguments, and must not be one that a handler interrupts,
/// unless all signals are blocked.
#[inline]
pub(crate) unsafe fn call<const N: usize>(number: usize, args: [usize; N]) -> isize {
    let arg = |at: usize| args.get(at).copied().unwrap_or(0);
    // SAFETY: the caller's.
    unsafe { warren_call(number, arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)) }
}

/// Sets the signals that are blocked. Returns those that were.
pub(crate) fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let args = [SIG_SETMASK, &raw const mask as usize, &raw mut before as usize, SET_SIZE];
    // SAFETY: the kernel reads one mask and writes the other.
    unsafe { call(nr::RT_SIGPROCMASK, args) };
    before
}

pub(crate) fn process() -> usize {
    // SAFETY: it has no arguments and changes nothing.
    unsafe { call(nr::GETPID, []) as usize }
}

pub(crate) fn thread() -> usize {
    // SAFETY: as above.
    unsafe { call(nr::GETTID, []) as usize }
}
