//! Which pages of the program can be read and written.
//!
//! The kernel answers EFAULT for a bad pointer, and so must we. A page is probed by a call that the
//! kernel makes for nothing, and is then remembered in a small table, so that a repeated call by
//! path makes no system call. A remembered page is valid until a call of this process takes pages
//! away. Such calls are made here, and counted before and after. A page is remembered only if no
//! such call was under way while it was probed. If a handler jumps out of one, the counts differ
//! from then on, and nothing is remembered any more.
//!
//! This does not cover a file that another process, or an `open` with `O_TRUNC`, truncates while
//! the program has mapped it. The kernel answers EFAULT for a path there, and reading it here
//! raises SIGBUS.

use core::ops::Range;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::abi::{EFAULT, MAP_FIXED, PAGE, nr};
use crate::call::SystemCall;
use crate::syscalls::Care;
use crate::{probe, stub};

/// Pages that are remembered, in a place by their number.
const PAGES: usize = 256;
/// User memory ends here, also with page tables of five levels.
const USER_END: usize = 1 << 56;
/// The kernel refuses longer addresses of buffers, but for programs that have asked for them.
const PROGRAM_END: usize = (1 << 47) - PAGE;
/// An entry has the page's number and the low bits of the count of changes.
const COUNT_BITS: u32 = 19;
/// The tables are emptied so often that an entry never outlives its bits.
const EMPTY_AFTER: u64 = 1 << (COUNT_BITS - 1);
const _: () = assert!(USER_END / PAGE <= 1 << (u64::BITS - COUNT_BITS - 1));

const SHM_REMAP: usize = 0o40000;
/// Advices that change no page's rights: NORMAL to DONTNEED, and FREE to COLLAPSE. Guards do.
const HARMLESS_ADVICES: u64 = 0x1f | 0x3_ffff << 8;

/// At most this much of a string is looked at.
const STRING_MAX: usize = 4096;

struct Table([AtomicU64; PAGES]);

/// The pages that are remembered.
pub(crate) struct KnownPages {
    readable: Table,
    writable: Table,
}

/// Calls that may take pages away.
pub(crate) struct Removals {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Table {
    fn has(&self, page: usize) -> bool {
        self.0[page % PAGES].load(Acquire) == entry(page, Removals::here().begun.load(Acquire))
    }

    /// Probes the page, and remembers it if it is good.
    fn probe(&self, page: usize, is_good: impl FnOnce() -> bool) -> bool {
        if self.has(page) {
            return true;
        }
        let begun = Removals::here().begun.load(Acquire);
        let quiet = Removals::here().ended.load(Acquire) == begun;
        let good = is_good();
        if good && quiet && Removals::here().begun.load(Acquire) == begun {
            self.0[page % PAGES].store(entry(page, begun), Release);
        }
        good
    }

    fn clear(&self) {
        self.0.iter().for_each(|entry| entry.store(0, Relaxed));
    }
}

fn entry(page: usize, begun: u64) -> u64 {
    (page as u64) << COUNT_BITS | begun & ((1 << COUNT_BITS) - 1)
}

/// Makes the call if it may take a page away. `None` if it does not: the kernel makes it.
pub(crate) fn change(call: &SystemCall) -> Option<isize> {
    if !takes_away(call) {
        return None;
    }
    begin();
    let result = call.make();
    Removals::here().ended.fetch_add(1, AcqRel);
    Some(result)
}

fn takes_away(call: &SystemCall) -> bool {
    let [_, _, third, fourth, ..] = call.args;
    let is_known = |advice: usize| advice < u64::BITS as usize;
    let advises_harm = |advice| !is_known(advice) || HARMLESS_ADVICES >> advice & 1 == 0;
    match call.row().care {
        Care::Map => fourth & MAP_FIXED != 0,
        Care::Advise => advises_harm(third),
        Care::AdviseOf => advises_harm(fourth),
        Care::Attach => third & SHM_REMAP != 0,
        Care::Unmap | Care::Remap | Care::Pages => true,
        _ => false,
    }
}

/// Whether the page of `address` can be read.
pub(crate) fn is_readable(address: usize) -> bool {
    let word = address & !(size_of::<u64>() - 1);
    is_user(address)
        && KnownPages::here().readable.probe(address / PAGE, || probe::word(word).is_some())
}

/// Whether a range can be the program's at all.
pub(crate) fn is_range(address: usize, length: usize) -> bool {
    address.checked_add(length).is_some_and(|end| end <= PROGRAM_END)
}

/// The byte at `address`, if it can be read.
pub(crate) fn byte(address: usize) -> Option<u8> {
    // SAFETY: the byte can be read.
    is_readable(address).then(|| unsafe { (address as *const u8).read_volatile() })
}

/// Whether the string at `address` starts so. False if it cannot be read.
pub(crate) fn starts_with(address: usize, start: &[u8]) -> bool {
    start.iter().zip(address..).all(|(wanted, at)| byte(at) == Some(*wanted))
}

/// Whether the string at `address` contains `part`.
pub(crate) fn contains(address: usize, part: &[u8]) -> bool {
    let starts = (address..).take_while(|at| byte(*at).is_some_and(|byte| byte != 0));
    starts.take(STRING_MAX).any(|at| starts_with(at, part))
}

/// The first component of an absolute path that is not `.`. `None` if it is too far behind.
pub(crate) fn first_component(path: usize) -> Option<usize> {
    let mut at = path;
    while at - path < STRING_MAX {
        at += match [b"/", &b"./"[..]].into_iter().find(|skipped| starts_with(at, skipped)) {
            Some(skipped) => skipped.len(),
            None => return Some(at),
        };
    }
    None
}

/// Words from the program's memory.
pub(crate) fn words<const N: usize>(address: usize) -> Option<[i64; N]> {
    // SAFETY: the words lie in pages that can be read.
    are_readable(address, size_of::<[i64; N]>())
        .then(|| unsafe { (address as *const [i64; N]).read_unaligned() })
}

/// The pages of `length` bytes from `address` on. `None` if they cannot be the program's.
fn pages(address: usize, length: usize) -> Option<Range<usize>> {
    let Some(more) = length.checked_sub(1) else { return Some(0..0) };
    let last = address.checked_add(more).filter(|last| is_user(*last))?;
    Some(address / PAGE..last / PAGE + 1)
}

/// Whether `length` bytes from `address` on can be read.
pub(crate) fn are_readable(address: usize, length: usize) -> bool {
    pages(address, length).is_some_and(|mut pages| pages.all(|page| is_readable(page * PAGE)))
}

/// Notes that pages behind the end of a mapped file have been taken away.
pub(crate) fn note_truncated() {
    begin();
    Removals::here().ended.fetch_add(1, AcqRel);
}

fn begin() {
    let begun = Removals::here().begun.fetch_add(1, AcqRel) + 1;
    if begun.is_multiple_of(EMPTY_AFTER) {
        KnownPages::here().readable.clear();
        KnownPages::here().writable.clear();
    }
}

/// Whether `length` bytes from `address` on can be written. One byte of them in each page may be
/// overwritten.
pub(crate) fn is_writable(address: usize, length: usize) -> bool {
    let is_good = |page: usize| {
        let byte = address.max(page * PAGE);
        KnownPages::here().writable.probe(page, || byte_writable(byte))
    };
    pages(address, length).is_some_and(|mut pages| pages.all(is_good))
}

/// Copies bytes to where the program wants them. `None` if it cannot be written there.
pub(crate) fn give(bytes: &[u8], to: usize) -> Option<()> {
    is_writable(to, bytes.len()).then(|| {
        // SAFETY: it can be written, and the program has named it for this.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    })
}

fn is_user(address: usize) -> bool {
    (PAGE..USER_END).contains(&address)
}

/// Tests a byte by `rt_sigpending`, which writes as many bytes as it is told.
fn byte_writable(address: usize) -> bool {
    // SAFETY: the kernel checks the address. The caller is about to overwrite the byte.
    unsafe { stub::call(nr::RT_SIGPENDING, [address, 1]) != -EFAULT }
}

impl Removals {
    /// In a child of `fork`: a thread of the parent may have been in such a call.
    ///
    /// The remembered pages count no more, as after such a call. The tables stay as they are,
    /// because a store there would copy a page.
    pub(crate) fn begin_again(&self) {
        begin();
        self.ended.store(self.begun.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: usize, args: [usize; 6]) -> SystemCall {
        SystemCall { number, args, return_address: 0 }
    }

    #[test]
    fn calls_that_take_pages_away_are_known() {
        assert!(takes_away(&call(nr::MUNMAP, [0; 6])));
        assert!(takes_away(&call(nr::MMAP, [0, 0, 0, MAP_FIXED, 0, 0])));
        assert!(!takes_away(&call(nr::MMAP, [0, 0, 0, 0x22, 0, 0])));
        const MADV_DONTNEED: usize = 4;
        const MADV_FREE: usize = 8;
        const MADV_GUARD_INSTALL: usize = 102;
        for (advice, harms) in [(MADV_DONTNEED, false), (MADV_FREE, false), (100, true), (5, true)]
        {
            assert_eq!(takes_away(&call(nr::MADVISE, [0, 0, advice, 0, 0, 0])), harms, "{advice}");
        }
        assert!(takes_away(&call(nr::MADVISE, [0, 0, MADV_GUARD_INSTALL, 0, 0, 0])));
        assert!(takes_away(&call(nr::PROCESS_MADVISE, [0, 0, 0, MADV_GUARD_INSTALL, 0, 0])));
        assert!(takes_away(&call(nr::MADVISE, [0, 0, usize::MAX, 0, 0, 0])));
        assert!(takes_away(&call(nr::FTRUNCATE, [0; 6])));
        assert!(takes_away(&call(nr::FALLOCATE, [0; 6])), "it may collapse a range");
        assert!(!takes_away(&call(nr::READ, [0; 6])));
    }

    #[test]
    fn a_page_is_remembered_until_a_change() {
        let table = Table([const { AtomicU64::new(0) }; PAGES]);
        assert!(!table.probe(7, || false) && !table.has(7));
        assert!(table.probe(7, || true) && table.has(7));
        assert!(table.probe(7, || panic!("it is remembered")));
        assert!(!table.has(7 + PAGES));
        Removals::here().begun.fetch_add(1, Relaxed);
        assert!(!table.has(7));
        assert!(table.probe(7, || true) && !table.has(7), "a change is under way");
        Removals::here().ended.fetch_add(1, Relaxed);
        let changed = || Removals::here().begun.fetch_add(1, Relaxed) > 0;
        assert!(table.probe(7, changed) && !table.has(7), "changed while it was probed");
        Removals::here().ended.fetch_add(1, Relaxed);
        assert!(table.probe(7, || true) && table.has(7));
    }
}
