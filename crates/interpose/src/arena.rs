//! The memory of the client inside a program: an allocator that never meets the program's own.
//!
//! Only the holder of the slow path's lock allocates or frees, with all signals blocked. The region
//! is reserved when the process is admitted, and is not copied to a child of `fork`, which begins
//! with an empty arena.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;

use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

use crate::abi::{MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE, is_error, nr};
use crate::stub;

/// Bytes that are reserved: many times what the bounded copies of a client take. Pages that are
/// never touched cost nothing.
const LENGTH: usize = 64 << 20;

const MADV_DONTFORK: usize = 10;

struct Arena(UnsafeCell<Talc<Manual, DefaultBinning>>);

// SAFETY: see the head of this file: one thread at a time uses it.
unsafe impl Sync for Arena {}

#[cfg_attr(all(panic = "abort", not(test)), global_allocator)]
static ARENA: Arena = Arena(UnsafeCell::new(Talc::new(Manual)));

/// Gives the arena its memory. None if there is none.
pub(crate) fn begin() -> Option<()> {
    let memory = reserve(LENGTH)?;
    // SAFETY: the caller holds the lock, and the region is new and used by nothing else.
    unsafe { (*ARENA.0.get()).claim(memory as *mut u8, LENGTH) }.map(drop)
}

/// In a child of `fork`, whose arena is not there.
pub(crate) fn forget() {
    // SAFETY: the child has one thread, and what its parent had allocated is never touched again.
    unsafe { ARENA.0.get().write(Talc::new(Manual)) };
}

/// Zeroed memory that children do not get.
pub(crate) fn reserve(length: usize) -> Option<usize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    let args = [0, length, PROT_READ | PROT_WRITE, flags, usize::MAX, 0];
    // SAFETY: it replaces no mapping.
    let mapped = unsafe { stub::call(nr::MMAP, args) };
    if is_error(mapped) {
        return None;
    }
    // SAFETY: the mapping is ours. If it fails, children have a copy that they do not use.
    unsafe { stub::call(nr::MADVISE, [mapped as usize, length, MADV_DONTFORK]) };
    Some(mapped as usize)
}

// SAFETY: the allocator below keeps the contract. One thread at a time is in it.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above; a layout without bytes is never asked for.
        unsafe { (*self.0.get()).allocate(layout) }.map_or(null_mut(), |memory| memory.as_ptr())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory is from `alloc`, with this layout.
        unsafe { (*self.0.get()).deallocate(memory, layout) };
    }
}
