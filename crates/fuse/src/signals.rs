//! The signals that end a mount, as a descriptor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Blocks SIGTERM, SIGINT and SIGHUP and returns a descriptor that becomes readable by them. To be
/// called while the process has one thread only, so that all inherit the mask.
#[expect(unsafe_code, reason = "no safe binding of signalfd and the signal mask")]
pub fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and all pointers are to it.
    let fd = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd.as_raw_fd() < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
