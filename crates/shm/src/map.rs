//! A segment in the address space of this process, read-only or writable. It is unmapped with its
//! last clone.
//!
//! Every access is an atomic word or one of the copies of `copy.rs`, so concurrent access by other
//! processes and threads is never a data race. No reference to the bytes is handed out.

use alloc::sync::Arc;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use core::time::Duration;

use rustix::fd::BorrowedFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::thread::futex;

use crate::copy::{from_shared, prefetch, prefetch_own, to_shared, zero_shared};
use crate::memory::{Load, Store, Waited};

/// A mapping. Its bytes are shared with other processes.
struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is to a mapping that lives as long as this value and belongs to no thread;
// all accesses are atomic (see the head of this file).
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(fd: BorrowedFd<'_>, len: usize, prot: ProtFlags) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses disturbs no other.
        let base = unsafe { mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        let pages = Self { base, len };
        // A forked child is admitted anew; with the parent's mapping it would be a second writer.
        // SAFETY: the range is the mapping just made.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        Ok(pages)
    }

    #[inline]
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{at}+{len} is outside of the segment");
        // SAFETY: just checked to lie in the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }

    #[inline]
    fn word32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4));
        // SAFETY: in the mapping and aligned, because the base is page-aligned; atomics may be
        // shared.
        unsafe { &*self.at(at, 4).cast() }
    }

    #[inline]
    fn word64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        // SAFETY: as above.
        unsafe { &*self.at(at, 8).cast() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A segment that another process writes.
#[derive(Clone)]
pub struct ReadMap(Arc<Pages>);

/// A segment of which this process is the only writer.
#[derive(Clone)]
pub struct WriteMap(Arc<Pages>);

impl ReadMap {
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> rustix::io::Result<Self> {
        Ok(Self(Arc::new(Pages::map(fd, len, ProtFlags::READ)?)))
    }

    /// The address of `len` bytes at `at`, for a system call to read. Must not become a reference.
    pub fn raw(&self, at: usize, len: usize) -> *const u8 {
        self.0.at(at, len)
    }
}

/// Where a mapping is: its address and its length in bytes.
pub type Region = (usize, usize);

impl ReadMap {
    pub(crate) fn region(&self) -> Region {
        (self.0.base.as_ptr() as usize, self.0.len)
    }
}

impl WriteMap {
    pub fn region(&self) -> Region {
        (self.0.base.as_ptr() as usize, self.0.len)
    }

    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> rustix::io::Result<Self> {
        Ok(Self(Arc::new(Pages::map(fd, len, ProtFlags::READ | ProtFlags::WRITE)?)))
    }

    /// The address of `len` bytes at `at`, for a system call to read or fill. Must not become a
    /// reference while others may write.
    pub fn raw(&self, at: usize, len: usize) -> *mut u8 {
        self.0.at(at, len)
    }
}

fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Waited {
    // A time-out that is too long for the kernel counts as none.
    let limit = timeout.and_then(|t| rustix::time::Timespec::try_from(t).ok());
    match futex::wait(word, futex::Flags::empty(), expected, limit.as_ref()) {
        Err(rustix::io::Errno::TIMEDOUT) => Waited::TimedOut,
        Err(rustix::io::Errno::INTR) => Waited::Interrupted,
        _ => Waited::Woken,
    }
}

macro_rules! load {
    ($map:ty) => {
        impl Load for $map {
            fn size(&self) -> usize {
                self.0.len
            }

            #[inline]
            fn load32(&self, at: usize, order: Ordering) -> u32 {
                self.0.word32(at).load(order)
            }

            #[inline]
            fn load64(&self, at: usize, order: Ordering) -> u64 {
                self.0.word64(at).load(order)
            }

            #[inline]
            fn copy_out(&self, at: usize, into: &mut [u8]) {
                // SAFETY: `at` has checked the range.
                unsafe { from_shared(self.0.at(at, into.len()), into) }
            }

            #[inline]
            fn prefetch(&self, at: usize, len: usize) {
                prefetch(self.0.at(at, len), len);
            }

            fn wait32(&self, at: usize, expected: u32, timeout: Option<Duration>) -> Waited {
                wait(self.0.word32(at), expected, timeout)
            }

            #[inline]
            fn fence() {
                fence(Ordering::SeqCst);
            }

            #[inline]
            fn pause() {
                core::hint::spin_loop();
            }
        }
    };
}
load!(ReadMap);
load!(WriteMap);

impl Store for WriteMap {
    #[inline]
    fn store32(&self, at: usize, value: u32, order: Ordering) {
        self.0.word32(at).store(value, order);
    }

    #[inline]
    fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.0.word64(at).store(value, order);
    }

    #[inline]
    fn prefetch_own(&self, at: usize) {
        prefetch_own(self.0.at(at, 1));
    }

    #[inline]
    fn xor64(&self, at: usize, mask: u64, order: Ordering) {
        self.0.word64(at).fetch_xor(mask, order);
    }

    #[inline]
    fn add64(&self, at: usize, by: u64) {
        self.0.word64(at).fetch_add(by, Ordering::Relaxed);
    }

    #[inline]
    fn copy_in(&self, at: usize, from: &[u8]) {
        // SAFETY: `at` has checked the range, and the mapping is writable.
        unsafe { to_shared(from, self.0.at(at, from.len())) }
    }

    fn zero(&self, at: usize, len: usize) {
        // SAFETY: as above.
        unsafe { zero_shared(self.0.at(at, len), len) }
    }

    fn discard(&self, at: usize, len: usize) {
        // SAFETY: the range lies in the mapping, which is shared and writable. Its pages are
        // replaced by zeros, as if they had been stored; no reference to them exists.
        let removed = unsafe { madvise(self.0.at(at, len).cast(), len, Advice::LinuxRemove) };
        if removed.is_err() {
            self.zero(at, len);
        }
    }

    fn wake32(&self, at: usize) {
        // Only a bad address can fail, and this one is valid.
        let _ = futex::wake(self.0.word32(at), futex::Flags::empty(), i32::MAX as u32);
    }
}
