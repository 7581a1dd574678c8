//! `poll(2)` of more descriptors than the process may have open.
//!
//! The limit of open files may be lowered from outside (prlimit(1)) below what a process has open
//! already. `poll` then refuses the whole list with EINVAL. A loop that takes that for an early end
//! of its wait computes without end, and one that takes it for an error ends its process.

use rustix::event::{PollFd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::link::{SHORTAGE_PAUSE, retry};

/// Waits until one of the descriptors has one of its flags, for so long at most. Returns how many
/// have some. A list that the limit of open files does not let `poll` take is looked at one by one,
/// and after a pause if none is ready: then the wait may end early, without a ready descriptor.
pub fn poll_each(fds: &mut [PollFd<'_>], limit: Option<&Timespec>) -> Result<usize, Errno> {
    match retry(|| poll(fds, limit)) {
        Err(Errno::INVAL) => {}
        result => return result,
    }
    for fd in fds.chunks_mut(1) {
        // With a limit of 0 none is ready until the limit is raised again.
        let _refused = poll(fd, Some(&Timespec::default()));
    }
    let ready = fds.iter().filter(|fd| !fd.revents().is_empty()).count();
    if ready == 0 {
        let longest = Timespec::try_from(SHORTAGE_PAUSE).ok();
        let pause = longest.as_ref().map(|longest| limit.map_or(longest, |it| it.min(longest)));
        retry(|| poll(&mut [], pause))?;
    }
    Ok(ready)
}
