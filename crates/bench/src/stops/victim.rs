//! The process that is stopped.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{BenchError, system};

/// The interval between two looks at the programs while the end of the process is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// It is resumed when the value is dropped, so that nothing that waits for its end does so in vain.
pub(super) struct Victim {
    process: OwnedFd,
}

impl Victim {
    pub(super) fn new(process: u32) -> Result<Self, BenchError> {
        let missing = || BenchError::Failed("the process to be stopped is missing".to_owned());
        let pid = Pid::from_raw(process as i32).ok_or_else(missing)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(system("watch a process"))?;
        Ok(Self { process })
    }

    pub(super) fn stop(&self) -> Result<(), BenchError> {
        pidfd_send_signal(&self.process, Signal::STOP).map_err(system("stop a process"))
    }

    /// Waits until the process has ended, or until all programs work again and so much time has
    /// passed. Returns when it had ended.
    pub(super) fn await_end(&self, are_back: &AtomicBool, then: Duration) -> Option<Instant> {
        let mut until = None;
        loop {
            if are_back.load(Ordering::Relaxed) {
                until.get_or_insert_with(|| Instant::now() + then);
            }
            let timeout = Timespec::try_from(LOOK_EVERY).ok();
            let mut end = [PollFd::new(&self.process, PollFlags::IN)];
            if matches!(poll(&mut end, timeout.as_ref()), Ok(ready) if ready > 0) {
                return Some(Instant::now());
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It fails if the process has ended.
        let _resumed = pidfd_send_signal(&self.process, Signal::CONT);
    }
}
