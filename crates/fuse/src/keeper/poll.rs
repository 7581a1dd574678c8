//! `poll(2)` on a list of descriptors.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use warren_runtime::poll_each;

/// Waits until one of the descriptors has one of its flags. Returns the flags found, in the order
/// of `fds`, or nothing if the wait failed.
pub(super) fn poll_for(
    fds: &[(BorrowedFd<'_>, PollFlags)],
    timeout: Option<Duration>,
) -> Vec<PollFlags> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll_each(&mut polled, timeout.as_ref()) {
        Ok(_) => polled.iter().map(PollFd::revents).collect(),
        // The caller polls again.
        Err(_) => Vec::new(),
    }
}
