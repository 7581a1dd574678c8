//! What a process that serves has to say to whoever runs it.

use std::fmt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stderr;

/// A pipe that can be written to takes this much at once (pipe(7), PIPE_BUF).
const LINE_MAX: usize = 4096;

/// Writes a line to standard error, if it can be taken right now. Whoever read it may be gone, or may
/// have stopped reading: nothing is served worse for that, so the line is lost then.
pub fn note(line: fmt::Arguments<'_>) {
    let line = line.to_string();
    // Names of pools and what other users' processes say come in here, and a terminal may be listening.
    let shown = line.chars().map(|c| if c.is_control() { '?' } else { c });
    let mut line = format!("warren: {}", shown.collect::<String>());
    line.truncate(line.floor_char_boundary(LINE_MAX - 1));
    line.push('\n');
    let mut ready = [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)];
    let polled = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    if polled.is_ok() && ready[0].revents().contains(PollFlags::OUT) {
        let _lost = rustix::io::write(stderr(), line.as_bytes());
    }
}
