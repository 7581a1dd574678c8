//! A file that is mapped, to cause page faults one by one.

use std::ffi::c_void;
use std::fs::File;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::error::{BenchError, system};

/// A mapping of the whole file that is read only. The kernel reads no pages ahead for it.
pub(super) struct Mapping {
    start: *mut c_void,
    len: usize,
}

impl Mapping {
    #[expect(unsafe_code, reason = "the mapping is the experiment")]
    pub(super) fn new(file: &File, len: usize) -> Result<Self, BenchError> {
        let flags = MapFlags::SHARED;
        // SAFETY: the kernel chooses the address, so no memory of this process is replaced.
        let mapped = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) };
        let mapping = Self { start: mapped.map_err(system("map a file"))?, len };
        // SAFETY: the advice changes no contents.
        let advised = unsafe { madvise(mapping.start, len, Advice::Random) };
        advised.map_err(system("advise on a mapping"))?;
        Ok(mapping)
    }

    /// Reads a byte, and so causes a fault if its page is not mapped yet.
    #[expect(unsafe_code, reason = "the mapping is the experiment")]
    pub(super) fn touch(&self, at: usize) -> u8 {
        assert!(at < self.len, "within the mapping");
        // SAFETY: the byte is in the mapping, which is readable; the benchmark's own file keeps its
        // length while it is mapped.
        unsafe { self.start.cast::<u8>().add(at).read_volatile() }
    }
}

impl Drop for Mapping {
    #[expect(unsafe_code, reason = "the mapping is the experiment")]
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping exists: `touch` returns a copy.
        let _gone = unsafe { munmap(self.start, self.len) };
    }
}
