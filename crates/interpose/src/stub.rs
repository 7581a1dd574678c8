//! Our own system calls. Each is made in the stub page, which `entry.rs`
//! defines.
//!
//! Dispatch lets calls of this page through and no others. The assembly is in `entry.rs`.

use crate::abi::{PAGE, nr};

// SAFETY: `entry.rs` defines these.
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
    /// # Safety
    /// As the call itself, which has the kernel's 32-bit numbers.
    fn warren_call_32(number: usize, args: *const [usize; 6]) -> isize;
    fn warren_entry();
    fn warren_restorer();
    static warren_stub_start: u8;
    static warren_stub_end: u8;
}

/// Makes a call and returns what the kernel returns.
///
/// # Safety
/// The call must be sound with these arguments.
pub(crate) unsafe fn call<const N: usize>(number: usize, args: [usize; N]) -> isize {
    let arg = |at: usize| args.get(at).copied().unwrap_or(0);
    // SAFETY: the caller's.
    unsafe { warren_call(number, arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)) }
}

/// Makes a call by `int $0x80`, which a 64-bit program can use as well.
///
/// # Safety
/// The call must be sound with these arguments.
pub(crate) unsafe fn call_32(number: usize, args: &[usize; 6]) -> isize {
    // SAFETY: the caller's.
    unsafe { warren_call_32(number, args) }
}

/// The page, as dispatch wants it: its start and its length.
pub(crate) fn page() -> (usize, usize) {
    let start = &raw const warren_stub_start as usize;
    let end = &raw const warren_stub_end as usize;
    debug_assert!(start.is_multiple_of(PAGE));
    (start, end - start)
}

/// Where a call enters: rax is its number, and rcx the address behind it.
pub(crate) fn entry() -> usize {
    warren_entry as *const () as usize
}

/// Ends a signal handler, with rsp at its `ucontext`. Removes SIGSYS from the mask there.
pub(crate) fn restorer() -> usize {
    warren_restorer as *const () as usize
}

pub(crate) fn process() -> usize {
    // SAFETY: it has no arguments and changes nothing.
    unsafe { call(nr::GETPID, []) as usize }
}

pub(crate) fn thread() -> usize {
    // SAFETY: as above.
    unsafe { call(nr::GETTID, []) as usize }
}

pub(crate) fn close(descriptor: usize) {
    // SAFETY: callers close only what they have opened.
    unsafe { call(nr::CLOSE, [descriptor]) };
}

/// Ends the process at once.
#[cfg(all(panic = "abort", not(test)))]
pub(crate) fn abort() -> ! {
    loop {
        // SAFETY: an invalid instruction ends the process with SIGILL.
        unsafe { core::arch::asm!("ud2") };
    }
}
