//! Lines on this process's own standard error, for a terminal or a service manager.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stderr;

use crate::escape::escaped;
use crate::line::FRAME_MAX;

/// Writes `warren: LINE` if standard error takes it right now. If its reader is gone or does not
/// read, the line is lost, because the service must not wait for it.
pub fn say(line: &str) {
    let mut line = format!("warren: {}", escaped(line));
    line.truncate(line.floor_char_boundary(FRAME_MAX - 1));
    line.push('\n');
    let mut ready = [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)];
    let polled = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    if polled.is_ok() && ready[0].revents().contains(PollFlags::OUT) {
        let _lost = rustix::io::write(stderr(), line.as_bytes());
    }
}
