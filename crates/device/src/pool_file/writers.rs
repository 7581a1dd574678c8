//! Locks of the processes that write to the pool.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::io::{Errno, retry_on_intr};

use crate::DeviceError;

/// The offset of the writers' lock bytes: beyond the end of any device, below the limit of a lock.
const WRITERS_AT: i64 = 1 << 62;

/// Waits for the I/O that a dead fleet has submitted. Its processes are gone, because the caller
/// has the lock on the pool.
pub fn await_writers(fd: impl AsFd, path: &Path) -> Result<(), DeviceError> {
    // Any number of readers exclude only a writer.
    writers_lock(fd.as_fd(), libc::F_RDLCK, 0, 0)
        .and_then(|()| writers_lock(fd.as_fd(), libc::F_UNLCK, 0, 0))
        .map_err(|errno| DeviceError::of(path, "wait for its earlier writers", errno))
}

/// Sets a lock of this kind on the bytes of `count` writers (0: all), starting with `first`. It
/// belongs to the open file, like an `flock`.
pub(super) fn writers_lock(
    fd: BorrowedFd<'_>,
    kind: libc::c_int,
    first: i64,
    count: i64,
) -> Result<(), Errno> {
    set_writers_lock(libc::F_OFD_SETLKW, fd, kind, first, count)
}

pub(super) fn set_writers_lock(
    set: libc::c_int,
    fd: BorrowedFd<'_>,
    kind: libc::c_int,
    first: i64,
    count: i64,
) -> Result<(), Errno> {
    let range = writers_range(kind, first, count);
    retry_on_intr(|| {
        // SAFETY: the descriptor is open, and the kernel only reads `range`, which outlives the
        // call.
        let rc = unsafe { libc::fcntl(fd.as_raw_fd(), set, &raw const range) };
        let error = std::io::Error::last_os_error();
        if rc == 0 { Ok(()) } else { Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)) }
    })
}

/// A lock of this kind on the bytes of these writers.
pub(super) fn writers_range(kind: libc::c_int, first: i64, count: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: WRITERS_AT + first,
        l_len: count,
        l_pid: 0,
    }
}
