//! Lines on this process's own standard error, for a terminal or a service manager.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

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

/// A person wonders after this time what a command waits for.
const SLOW: Duration = Duration::from_secs(3);

/// Waits, and says what for if it takes long.
pub fn say_if_slow<T>(line: &str, wait: impl FnOnce() -> T) -> T {
    act_if_late(SLOW, || say(line), wait)
}

/// Waits. What takes longer than `time` leads to `act`, once.
fn act_if_late<T>(time: Duration, act: impl FnOnce() + Send, wait: impl FnOnce() -> T) -> T {
    let (over, is_over) = channel::<()>();
    thread::scope(|scope| {
        let watch = move || {
            if is_over.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                act();
            }
        };
        // Without a thread there is no message.
        let _watched = thread::Builder::new().spawn_scoped(scope, watch);
        let waited = wait();
        drop(over);
        waited
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_said_and_nothing_else() {
        let (said, is_said) = channel();
        let act = move || said.send(()).expect("it is awaited");
        act_if_late(Duration::ZERO, act, || is_said.recv().expect("it is said while it waits"));
        act_if_late(Duration::MAX, || unreachable!("it does not take long"), || ());
    }
}
