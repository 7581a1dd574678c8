//! The functions of the C library that are measured. They are called directly: the standard library
//! would copy each path first.

#![expect(unsafe_code, reason = "functions of the C library")]

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

const MODE: libc::mode_t = 0o644;
const DIRECTORY_MODE: libc::mode_t = 0o755;
const OWNER_MODE: libc::mode_t = 0o600;

fn check(returned: c_int) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The whole length must have been moved.
fn check_len(returned: isize, len: usize) -> io::Result<()> {
    match usize::try_from(returned) {
        Ok(moved) if moved == len => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

pub(super) fn open(path: &CStr, flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the path ends with a zero, and open keeps no pointer to it.
    let fd = unsafe { libc::open(path.as_ptr(), flags, MODE) };
    check(fd)?;
    // SAFETY: open has just returned the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn close(fd: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor was owned, and is not any more.
    check(unsafe { libc::close(fd.into_raw_fd()) })
}

pub(super) fn stat(path: &CStr) -> io::Result<()> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends with a zero, and stat writes to a value of its type.
    check(unsafe { libc::stat(path.as_ptr(), found.as_mut_ptr()) })
}

pub(super) fn fstat(fd: &OwnedFd) -> io::Result<()> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat writes to a value of its type.
    check(unsafe { libc::fstat(fd.as_raw_fd(), found.as_mut_ptr()) })
}

pub(super) fn read(fd: &OwnedFd, into: &mut [u8]) -> io::Result<()> {
    // SAFETY: read writes to the slice, and no further.
    let read = unsafe { libc::read(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
    check_len(read, into.len())
}

/// From the start of the file.
pub(super) fn pread(fd: &OwnedFd, into: &mut [u8]) -> io::Result<()> {
    // SAFETY: pread writes to the slice, and no further.
    let read = unsafe { libc::pread(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), 0) };
    check_len(read, into.len())
}

pub(super) fn write(fd: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: write reads the slice, and no further.
    let written = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    check_len(written, bytes.len())
}

pub(super) fn pwrite(fd: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<()> {
    let at = libc::off_t::try_from(at).map_err(io::Error::other)?;
    // SAFETY: pwrite reads the slice, and no further.
    let written = unsafe { libc::pwrite(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at) };
    check_len(written, bytes.len())
}

pub(super) fn fsync(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    check(unsafe { libc::fsync(fd.as_raw_fd()) })
}

/// Makes the file empty.
pub(super) fn empty(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) })
}

pub(super) fn unlink(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a zero, and unlink keeps no pointer to it.
    check(unsafe { libc::unlink(path.as_ptr()) })
}

pub(super) fn rename(from: &CStr, to: &CStr) -> io::Result<()> {
    // SAFETY: the paths end with a zero, and rename keeps no pointer to them.
    check(unsafe { libc::rename(from.as_ptr(), to.as_ptr()) })
}

pub(super) fn chmod(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a zero, and chmod keeps no pointer to it.
    check(unsafe { libc::chmod(path.as_ptr(), OWNER_MODE) })
}

/// Sets both times of a file to now.
pub(super) fn utimens(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a zero, and a null pointer stands for the time of the call.
    check(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), core::ptr::null(), 0) })
}

pub(super) fn mkdir(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a zero, and mkdir keeps no pointer to it.
    check(unsafe { libc::mkdir(path.as_ptr(), DIRECTORY_MODE) })
}

pub(super) fn rmdir(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a zero, and rmdir keeps no pointer to it.
    check(unsafe { libc::rmdir(path.as_ptr()) })
}

/// Reads the whole directory, and returns the number of its names.
pub(super) fn list(path: &CStr) -> io::Result<u32> {
    // SAFETY: the path ends with a zero, and opendir keeps no pointer to it.
    let directory = unsafe { libc::opendir(path.as_ptr()) };
    if directory.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = 0;
    // SAFETY: the stream is open, and only this thread uses it. What readdir returns is not read.
    while !unsafe { libc::readdir(directory) }.is_null() {
        names += 1;
    }
    // SAFETY: the stream is open, and is not used any more.
    check(unsafe { libc::closedir(directory) })?;
    Ok(names)
}
