//! The memory of the client inside a program: an allocator that never meets the program's own.
//!
//! Only the holder of the slow path's lock allocates or frees, with all signals blocked; each call
//! checks that the lock is taken. The region
//! is reserved when the process is admitted. A child of `fork` begins with another one. It may also
//! go on in the middle of a call, if a signal handler has forked it: then it finds the client's
//! structures as they were, and zeros instead of answers, copies and lease words.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::AtomicU64;

use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

use crate::abi::{
    MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE,
    nr,
};
use crate::slow_lock::{self, Holder};
use crate::stub;

/// Bytes that are reserved: many times what the bounded copies of a client take. Pages that are
/// never touched cost nothing.
const LENGTH: usize = 64 << 20;

struct Arena(UnsafeCell<Talc<Manual, DefaultBinning>>);

// SAFETY: see the head of this file: one thread at a time uses it.
unsafe impl Sync for Arena {}

/// This is no part of `process`, because an allocator must be a static of its own.
#[cfg_attr(all(panic = "abort", not(test)), global_allocator)]
static ARENA: Arena = Arena(UnsafeCell::new(Talc::new(Manual)));

/// Gives the arena its memory. `None` if there is none.
pub(crate) fn begin(_: &mut Holder) -> Option<()> {
    let memory = stub::map(LENGTH, MAP_NORESERVE)?;
    // SAFETY: the holder of the lock lends its token, and the region is new and used by nothing
    // else.
    unsafe { (*ARENA.0.get()).claim(memory as *mut u8, LENGTH) }.map(drop)
}

/// Makes the arena of a child of `fork` an empty one.
pub(crate) fn forget() {
    // SAFETY: the child has one thread, and what its parent had allocated is never touched again.
    unsafe { ARENA.0.get().write(Talc::new(Manual)) };
}

/// Reserves zeroed memory, which is zeroed again in children.
pub(crate) fn reserve(length: usize) -> Option<usize> {
    let mapped = stub::map(length, MAP_NORESERVE)?;
    // SAFETY: the mapping is ours. If it fails, children have a copy that they do not use.
    unsafe { stub::call(nr::MADVISE, [mapped, length, MADV_WIPEONFORK]) };
    Some(mapped)
}

/// Reserves such memory as words.
pub(crate) fn words(count: usize) -> Option<&'static [AtomicU64]> {
    let memory = reserve(count * size_of::<u64>())?;
    // SAFETY: the memory is zeroed, aligned to a page, and never unmapped.
    Some(unsafe { core::slice::from_raw_parts(memory as *const AtomicU64, count) })
}

/// Maps zeros in place of a segment of the client, which is here, or was in the parent.
pub(crate) fn put_zeros((start, length): (usize, usize)) {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    let args = [start, length, PROT_READ | PROT_WRITE, flags, usize::MAX, 0];
    // SAFETY: the range is the client's, which is never unmapped. All accesses are atomic or
    // copies, and no reference to the bytes exists.
    unsafe { stub::call(nr::MMAP, args) };
}

// SAFETY: the allocator below keeps the contract. One thread at a time is in it.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        assert!(slow_lock::is_taken());
        // SAFETY: as above; a layout without bytes is never asked for.
        unsafe { (*self.0.get()).allocate(layout) }.map_or(null_mut(), |memory| memory.as_ptr())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        assert!(slow_lock::is_taken());
        // SAFETY: the memory is from `alloc`, with this layout.
        unsafe { (*self.0.get()).deallocate(memory, layout) };
    }
}
