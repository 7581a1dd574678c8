//! A process whose limit of open files is below what it polls. The only test of its program,
//! because the limit holds for all of it.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use warren_runtime::poll_each;

#[test]
fn a_wait_for_more_than_may_be_open_ends_for_a_ready_one_and_else_after_a_pause() {
    let (read, write) = rustix::pipe::pipe().expect("pipe");
    let (empty, _open) = rustix::pipe::pipe().expect("pipe");
    let usual = getrlimit(Resource::Nofile);
    let poll_with = |open: u64, limit: Option<Duration>| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(open), ..usual }).expect("a limit");
        let mut fds = [&empty, &read].map(|fd| PollFd::new(fd, PollFlags::IN));
        let refused = poll(&mut fds, Some(&Timespec::default()));
        let begun = Instant::now();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let ready = poll_each(&mut fds, limit.as_ref());
        let flags = fds.map(|fd| fd.revents());
        setrlimit(Resource::Nofile, usual).expect("the usual limit");
        (refused, ready, flags[1], begun.elapsed())
    };
    let (refused, ready, _, took) = poll_with(1, None);
    assert_eq!((refused, ready), (Err(Errno::INVAL), Ok(0)));
    assert!(took >= Duration::from_millis(20), "it does not compute: {took:?}");
    let (_, ready, _, took) = poll_with(1, Some(Duration::ZERO));
    assert!(ready == Ok(0) && took < Duration::from_millis(20), "it does not wait: {took:?}");
    rustix::io::write(&write, b"x").expect("write");
    assert_eq!(poll_with(1, None).1, Ok(1));
    assert_eq!(poll_with(1, None).2, PollFlags::IN);
    // Nothing can be polled, so nothing is ready.
    assert_eq!(poll_with(0, None).1, Ok(0));
    assert_eq!(poll_with(256, None).1, Ok(1));
}
