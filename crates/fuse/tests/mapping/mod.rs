//! A shared mapping of a file.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// The first pages of a file, mapped shared.
pub(crate) struct Mapping {
    start: *mut std::ffi::c_void,
    len: usize,
}

// SAFETY: only volatile loads and stores access it, as for memory that another process shares.
unsafe impl Send for Mapping {}
// SAFETY: likewise.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &File, len: usize) -> Self {
        // A kernel faults in no page behind the end of the file as it knows it.
        assert!(file.metadata().expect("fstat").len() >= len as u64);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses a free place.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, file.as_fd(), 0) };
        Self { start: start.expect("mmap"), len }
    }

    pub(crate) fn load(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: it is in the mapping, and no test truncates the file below the mapping.
        unsafe { self.start.cast::<u64>().byte_add(at).read_volatile() }
    }

    pub(crate) fn store(&self, at: usize, number: u64) {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: as in `load`.
        unsafe { self.start.cast::<u64>().byte_add(at).write_volatile(number) }
    }

    pub(crate) fn sync(&self) {
        // SAFETY: the range is mapped.
        unsafe { msync(self.start, self.len, MsyncFlags::SYNC) }.expect("msync");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: its only owner is being dropped.
        unsafe { munmap(self.start, self.len) }.expect("munmap");
    }
}
