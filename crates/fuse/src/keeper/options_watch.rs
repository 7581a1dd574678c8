//! Whether mounts have changed: a descriptor of `mountinfo`, which `poll(2)` watches.
//!
//! A change of any mount of the namespace counts. Without the file, or where it cannot be watched,
//! the options of the mount stay as they were when it was made.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use warren_proto::Rules;

pub(super) struct OptionsWatch {
    mounts: Option<File>,
    /// The rules that the fleet was sent last. `None` before the first were sent.
    pub sent: Option<Rules>,
}

impl OptionsWatch {
    pub(super) fn open() -> Self {
        Self { mounts: File::open("/proc/thread-self/mountinfo").ok(), sent: None }
    }

    /// The descriptor to poll, and the flags to poll for. A poll that finds them takes the event.
    pub(super) fn polled(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.mounts.as_ref().map(|mounts| (mounts.as_fd(), PollFlags::PRI | PollFlags::ERR))
    }
}
