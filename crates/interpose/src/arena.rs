//! The memory of the client. This one has none: the stand-in of `fleet` allocates nothing.

use core::alloc::{GlobalAlloc, Layout};

struct Arena;

#[global_allocator]
static ARENA: Arena = Arena;

// SAFETY: an allocator may have no memory.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
