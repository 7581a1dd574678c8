//! Our own system calls. Where a handler of the program may run, each is made in the stub page,
//! which `entry.rs` defines.
//!
//! Dispatch lets calls of this library's text through and no others.

use core::ffi::CStr;

use crate::abi::{
    AT_FDCWD, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, O_CLOEXEC, PAGE, PROT_READ,
    PROT_WRITE, STAT_WORDS, is_error, nr,
};
use crate::deferral::Deferral;
use crate::elf::{self, PF_X, PT_LOAD};
use crate::raw;

// SAFETY: `entry.rs` defines these.
unsafe extern "C" {
    /// # Safety
    /// As the call itself, which has the kernel's 32-bit numbers.
    fn warren_call_32(number: usize, args: *const [usize; 6]) -> isize;
    fn warren_entry();
    fn warren_restorer();
    static warren_stub_start: u8;
    static warren_stub_end: u8;
    static __ehdr_start: u8;
}

/// Makes a call and returns what the kernel returns.
///
/// # Safety
/// The call must be sound with these arguments.
#[inline]
pub(crate) unsafe fn call<const N: usize>(number: usize, args: [usize; N]) -> isize {
    Deferral::here().block();
    // SAFETY: the caller's.
    unsafe { raw::call(number, args) }
}

/// Makes a call by `int $0x80`, which a 64-bit program can use as well.
///
/// # Safety
/// The call must be sound with these arguments.
pub(crate) unsafe fn call_32(number: usize, args: &[usize; 6]) -> isize {
    // SAFETY: the caller's.
    unsafe { warren_call_32(number, args) }
}

/// The address at which this library is loaded.
pub(crate) fn base() -> usize {
    &raw const __ehdr_start as usize
}

/// The text of this library, as dispatch wants it: its start and its length.
pub(crate) fn text() -> (usize, usize) {
    // SAFETY: the linker has put the header of this object there, and its program headers behind.
    let segments = unsafe { elf::segments(base()) }.unwrap_or_default();
    match segments.iter().find(|it| it.p_type == PT_LOAD && it.p_flags & PF_X != 0) {
        Some(text) => (base() + text.p_vaddr as usize, text.p_memsz as usize),
        None => page(),
    }
}

/// The page: its start and its length.
fn page() -> (usize, usize) {
    let start = &raw const warren_stub_start as usize;
    let end = &raw const warren_stub_end as usize;
    debug_assert!(start.is_multiple_of(PAGE));
    (start, end - start)
}

/// The address to which a call site jumps: rax is the number of the call, and rcx the address of
/// the instruction behind the site.
pub(crate) fn entry() -> usize {
    warren_entry as *const () as usize
}

/// Ends a signal handler, with rsp at its `ucontext`. Removes SIGSYS from the mask there.
pub(crate) fn restorer() -> usize {
    warren_restorer as *const () as usize
}

/// Opens the file at a path. One that is made has the mode 0644.
pub(crate) fn open(path: &CStr, flags: usize) -> Option<usize> {
    let args = [AT_FDCWD, path.as_ptr() as usize, flags | O_CLOEXEC, 0o644];
    // SAFETY: the path is a string.
    usize::try_from(unsafe { call(nr::OPENAT, args) }).ok()
}

pub(crate) fn close(descriptor: usize) {
    // SAFETY: callers close only what they have opened.
    unsafe { call(nr::CLOSE, [descriptor]) };
}

/// Maps private memory of zeros. `None` if there is none.
pub(crate) fn map(length: usize, flags: usize) -> Option<usize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | flags;
    let args = [0, length, PROT_READ | PROT_WRITE, flags, usize::MAX, 0];
    // SAFETY: it replaces no mapping.
    let mapped = unsafe { call(nr::MMAP, args) };
    (!is_error(mapped)).then_some(mapped as usize)
}

/// Maps private memory at `place`, if no mapping is there: zeros, or a file by its descriptor and
/// an offset. Returns whether it is mapped.
pub(crate) fn map_at(place: usize, length: usize, file: Option<(usize, usize)>) -> bool {
    let (kind, descriptor, offset) = match file {
        None => (MAP_ANONYMOUS, usize::MAX, 0),
        Some((descriptor, offset)) => (0, descriptor, offset),
    };
    let flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE | kind;
    let args = [place, length, PROT_READ | PROT_WRITE, flags, descriptor, offset];
    // SAFETY: it replaces no mapping.
    let mapped = unsafe { call(nr::MMAP, args) };
    if !is_error(mapped) && mapped as usize != place {
        // An old kernel takes the address as a wish.
        unmap(mapped as usize, length);
    }
    mapped as usize == place
}

pub(crate) fn unmap(start: usize, length: usize) {
    // SAFETY: callers unmap only what they have mapped, and nothing uses it any more.
    unsafe { call(nr::MUNMAP, [start, length]) };
}

/// Sets the signals that are blocked. Returns those that were.
pub(crate) fn set_mask(mask: u64) -> u64 {
    Deferral::here().block();
    raw::set_mask(mask)
}

/// `fcntl` with a command whose argument is a number.
pub(crate) fn control(descriptor: usize, command: usize, argument: usize) -> isize {
    // SAFETY: the kernel uses no memory of the process.
    unsafe { call(nr::FCNTL, [descriptor, command, argument]) }
}

pub(crate) fn seek(descriptor: usize, offset: usize, whence: usize) -> isize {
    // SAFETY: it moves the position in a file.
    unsafe { call(nr::LSEEK, [descriptor, offset, whence]) }
}

pub(crate) fn stat(descriptor: usize) -> Option<[u64; STAT_WORDS]> {
    let mut stat = [0_u64; STAT_WORDS];
    // SAFETY: the kernel writes into `stat`.
    let got = unsafe { call(nr::FSTAT, [descriptor, stat.as_mut_ptr() as usize]) };
    (got == 0).then_some(stat)
}

/// The soft and the hard limit of a resource.
pub(crate) fn limits(of: usize) -> Option<[u64; 2]> {
    let mut limits = [0_u64; 2];
    // SAFETY: the kernel writes into `limits`.
    let got = unsafe { call(nr::PRLIMIT64, [0, of, 0, limits.as_mut_ptr() as usize]) };
    (got == 0).then_some(limits)
}

pub(crate) fn set_limits(of: usize, limits: [u64; 2]) {
    // SAFETY: the kernel reads the limits.
    unsafe { call(nr::PRLIMIT64, [0, of, limits.as_ptr() as usize, 0]) };
}

/// Lets another thread run.
pub(crate) fn yield_now() {
    // SAFETY: it changes nothing.
    unsafe { call(nr::SCHED_YIELD, []) };
}

/// Ends the process at once.
#[cfg(all(panic = "abort", not(test)))]
pub(crate) fn abort() -> ! {
    loop {
        // SAFETY: an invalid instruction ends the process with SIGILL.
        unsafe { core::arch::asm!("ud2") };
    }
}
