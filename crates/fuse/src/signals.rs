//! The signals that end a mount, as a descriptor.
//!
//! SIGTERM, SIGINT and SIGHUP request the end by force. SIGUSR1 is sent when the process dies to
//! which the mount is tied. Programs that use the mount may still run then, and must not lose it.
//!
//! These signals are for the mount keeper. A front blocks them and never takes them: if it ended
//! before the mount, requests in progress would be cut off. The keeper orders its end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The parent death signal of a mount's process that is tied to its starter.
pub const STARTER_DIED: i32 = libc::SIGUSR1;

/// Blocks these signals. Must be called while the process has one thread, so that all threads
/// inherit the mask.
#[expect(unsafe_code, reason = "no safe binding of the signal mask")]
pub(crate) fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and all pointers are to it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, STARTER_DIED] {
            libc::sigaddset(&raw mut set, signal);
        }
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(set)
    }
}

/// Blocks these signals and returns a descriptor that becomes readable when one is pending. Must be
/// called while the process has one thread.
#[expect(unsafe_code, reason = "no safe binding of signalfd")]
pub(crate) fn signal_descriptor() -> io::Result<OwnedFd> {
    let set = block_signals()?;
    // SAFETY: the set is initialised, and the pointer is to it.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd.as_raw_fd() < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has just returned the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes a pending signal and returns its number. `None` if no signal is pending.
pub(crate) fn take_signal(descriptor: &OwnedFd) -> Option<i32> {
    // `signalfd_siginfo` begins with the number.
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(descriptor, &mut info).ok()?;
    let number = info[..read].first_chunk::<4>()?;
    Some(i32::from_ne_bytes(*number))
}
