//! The signals that end a mount, as a descriptor.
//!
//! SIGTERM, SIGINT and SIGHUP ask for it. SIGUSR1 comes when the process dies that a mount is tied to: programs in
//! the mount may go on, and nobody has asked that they be cut off.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What the process that mounted sets as its parent's death signal.
pub const STARTER_DIED: i32 = libc::SIGUSR1;

/// Blocks these signals and returns a descriptor that becomes readable by them. To be
/// called while the process has one thread only, so that all inherit the mask.
#[expect(unsafe_code, reason = "no safe binding of signalfd and the signal mask")]
pub fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and all pointers are to it.
    let fd = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, STARTER_DIED] {
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

/// The number of a signal that has come; `None` if none has.
pub fn take_signal(descriptor: &OwnedFd) -> Option<i32> {
    // `signalfd_siginfo` begins with the number.
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(descriptor, &mut info).ok()?;
    let number = info[..read].first_chunk::<4>()?;
    Some(i32::from_ne_bytes(*number))
}
