//! Call sites become jumps.
//!
//! Dispatch finds a site when its first call is made. The site is patched with the third call. Its
//! bytes are written
//!
//! * in any way, while the program has one thread: the processor serialises before it returns to
//!   the program;
//! * by one aligned store of eight bytes, once it has more: another thread fetches the old
//!   instruction or the new one. A site that crosses such a word is left to dispatch.
//!
//! A page of text is writable while it is patched, and executable all the time. Afterwards it has
//! its former protection. `fork` may copy the memory of the process at any moment of a patch. So
//! the page is noted first, and the child restores its protection.
//!
//! There is one lock, which no thread waits for: a thread that finds it taken does not patch. All
//! signals are blocked while it is held.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::abi::{PAGE, PROT_WRITE, nr};
use crate::counts::Counts;
use crate::image;
use crate::maps::BUFFER;
use crate::object::{Object, Objects};
use crate::site::{self, SYSCALL, Site};
use crate::state::{has_threads, is_filtered};
use crate::stub;
use crate::trampoline::{self, Trampolines};

/// The working memory of patching. There is one, behind the lock.
pub(crate) struct Workshop {
    pub buffer: [u8; BUFFER],
    pub objects: Objects,
    pub trampolines: Trampolines,
}

/// The lock of the workshop, and the pages that are writable now.
pub(crate) struct Patching {
    is_taken: AtomicBool,
    /// 0 for none.
    open_start: AtomicUsize,
    open_length: AtomicUsize,
    /// The protection to be restored.
    open_protection: AtomicUsize,
}

/// The call sites that are known, and the workshop that patches them.
pub(crate) struct Sites {
    /// For a `syscall` that was found by dispatch: its address, times four, and how often it was
    /// found, or [`REFUSED`]. In a slot by its address. Another address takes the slot over.
    found: [AtomicUsize; FOUND_SLOTS],
    workshop: UnsafeCell<Workshop>,
}

// SAFETY: `is_taken` lets one thread at a time have the workshop.
unsafe impl Sync for Sites {}

const FOUND_SLOTS: usize = 2048;
/// The site cannot be patched.
const REFUSED: usize = 3;
/// A patch costs as much as a few calls by dispatch, and many sites of a short program are used
/// once or twice.
const CALLS_BEFORE: usize = 2;

/// Runs `work` if no other thread patches.
pub(crate) fn with_workshop<R>(work: impl FnOnce(&mut Workshop) -> R) -> Option<R> {
    Patching::here().is_taken.compare_exchange(false, true, Acquire, Relaxed).ok()?;
    // SAFETY: the lock was free and is taken now. `work` cannot keep the reference.
    let result = work(unsafe { &mut *Sites::here().workshop.get() });
    trampoline::close();
    Patching::here().is_taken.store(false, Release);
    Some(result)
}

/// Waits until no other thread patches.
pub(crate) fn settle() {
    while with_workshop(|_| ()).is_none() {
        stub::yield_now();
    }
}

/// Patches the site of the call that goes on at `behind`, if that is possible and safe.
pub(crate) fn on_dispatch(behind: usize, number: usize) {
    // A filter of all threads may forbid the calls below.
    if is_filtered() {
        return;
    }
    let call = behind - SYSCALL.len();
    if image::contains(call) {
        with_workshop(|_| image::on_dispatch(number));
        if image::contains(call) {
            return;
        }
    }
    let found = &Sites::here().found[call % FOUND_SLOTS];
    let known = found.load(Relaxed);
    let calls = if known >> 2 == call { known & 3 } else { 0 };
    if calls < CALLS_BEFORE {
        found.store(call << 2 | (calls + 1), Relaxed);
    }
    if calls != CALLS_BEFORE {
        return;
    }
    let done = with_workshop(|workshop| {
        let object = workshop.objects.find(call, &mut workshop.buffer)?;
        let (function, inside) = object.function(call)?;
        // SAFETY: the text of a call that is under way is mapped. Only the holder of the lock
        // changes it.
        let code = unsafe { object.text(function, behind) };
        let safe = |start, length| !has_threads() || in_one_word(function + start, length);
        let site = site::find(code, call - function, safe)?;
        if !inside && !site.loads(number) {
            return None;
        }
        let open = Open::new(&object, function + site.start, site.length())?;
        let done = write(&mut workshop.trampolines, &site, function);
        drop(open);
        done
    });
    if done == Some(None) {
        found.store(call << 2 | REFUSED, Relaxed);
        Counts::here().left.fetch_add(1, Relaxed);
    }
}

/// Whether an instruction lies in one aligned word, which can be stored at once.
fn in_one_word(start: usize, length: usize) -> bool {
    start % size_of::<u64>() + length <= size_of::<u64>()
}

/// Writes the trampoline of a site and the jump to it. The text is writable.
pub(crate) fn write(trampolines: &mut Trampolines, site: &Site, function: usize) -> Option<()> {
    let start = function + site.start;
    let place = trampolines.place(start)?;
    let trampoline = site::trampoline(site, function, place.address, place.entry)?;
    let jump = site::jump(start, place.address)?;
    if !trampolines.write(&place, &trampoline.bytes[..trampoline.length]) {
        return None;
    }
    let jump = &jump[..site.length()];
    if in_one_word(start, jump.len()) {
        store_word(start, jump);
    } else {
        assert!(!has_threads());
        // SAFETY: the text is writable, and no other thread runs.
        unsafe { core::ptr::copy_nonoverlapping(jump.as_ptr(), start as *mut u8, jump.len()) };
    }
    Counts::here().patched.fetch_add(1, Relaxed);
    Some(())
}

fn store_word(start: usize, jump: &[u8]) {
    let offset = start % size_of::<u64>();
    // SAFETY: the word is text, which is writable, and it is aligned.
    let word = unsafe { AtomicU64::from_ptr((start - offset) as *mut u64) };
    let mut bytes = word.load(Relaxed).to_ne_bytes();
    bytes[offset..offset + jump.len()].copy_from_slice(jump);
    word.store(u64::from_ne_bytes(bytes), Release);
}

/// Text that is writable until this is dropped.
pub(crate) struct Open;

impl Open {
    /// `length` bytes from `start` on, which lie in the object.
    pub(crate) fn new(object: &Object, start: usize, length: usize) -> Option<Self> {
        let first = start & !(PAGE - 1);
        let length = (start + length).next_multiple_of(PAGE) - first;
        Patching::here().open_length.store(length, Relaxed);
        Patching::here().open_protection.store(object.protection, Relaxed);
        Patching::here().open_start.store(first, Release);
        let open = Self;
        let args = [first, length, object.protection | PROT_WRITE];
        // SAFETY: the text stays readable and executable.
        (unsafe { stub::call(nr::MPROTECT, args) } == 0).then_some(open)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        Patching::here().close_text();
    }
}

impl Patching {
    fn close_text(&self) {
        let start = self.open_start.load(Acquire);
        let args = [start, self.open_length.load(Relaxed), self.open_protection.load(Relaxed)];
        // SAFETY: it restores the protection of this text.
        unsafe { stub::call(nr::MPROTECT, args) };
        self.open_start.store(0, Release);
    }

    /// Closes what another thread of the parent of a child of `fork` may have been patching.
    pub(crate) fn stop(&self) {
        if self.open_start.load(Relaxed) != 0 {
            self.close_text();
        }
        trampoline::close();
        self.is_taken.store(false, Relaxed);
    }
}
