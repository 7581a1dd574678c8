//! The fronts of one mount, one after another.
//!
//! ```text
//!               start_if_due(), at its time
//!          ┌────────────────────────────────────┐
//!          ▼                                    │
//!       Serving                             Restarting ◀──┐ it cannot
//!          │                                 ▲  │  └──────┘ be started
//!          │ end_current()   restart_after() │  │ terminate()
//!          └──────────────▶ Stopped ─────────┘  │
//!                              ▲                │
//!                              └────────────────┘
//! ```
//!
//! `Stopped` is final if the keeper does not call `restart_after`. `terminate()` of a front that
//! serves sends it a signal; it then ends.
//!
//! A front that was killed, or that has lived for [`LIVED`], is replaced at once. A front that
//! ended by its own fault soon after its start, or that could not be started for want of processes,
//! descriptors or memory, is replaced after a delay that doubles each time. While there is no
//! front, requests stay in the kernel and their callers wait.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use tracing::warn;
use warren_runtime::watch::ProcessWatch;

use super::front_process::{FrontMessage, FrontProcess, MountResources};
use crate::mount::Mount;

const DELAY_MIN: Duration = Duration::from_millis(10);
const DELAY_MAX: Duration = Duration::from_secs(1);

/// A front that lived for so long has not ended because of its start.
const LIVED: Duration = Duration::from_secs(10);

enum Current {
    Serving(FrontProcess),
    Restarting { at: Instant },
    Stopped,
}

pub(super) struct Fronts {
    current: Current,
    /// The delay before the next start, if this front or start fails.
    delay: Duration,
    /// Since when no front has served, because the last one died.
    lost_since: Option<Instant>,
    /// Fronts that do not serve any more, and of which the kernel holds a thread.
    unreaped: Vec<Child>,
    watch: ProcessWatch,
}

/// A front that has ended.
pub(super) struct EndedFront {
    pub status: ExitStatus,
    started: Instant,
}

impl Fronts {
    pub(super) fn new(first: FrontProcess) -> Self {
        Self {
            current: Current::Serving(first),
            delay: DELAY_MIN,
            lost_since: None,
            unreaped: Vec::new(),
            watch: ProcessWatch::default(),
        }
    }

    pub(super) fn serving(&self) -> Option<&FrontProcess> {
        match &self.current {
            Current::Serving(front) => Some(front),
            Current::Restarting { .. } | Current::Stopped => None,
        }
    }

    fn serving_mut(&mut self) -> Option<&mut FrontProcess> {
        match &mut self.current {
            Current::Serving(front) => Some(front),
            Current::Restarting { .. } | Current::Stopped => None,
        }
    }

    pub(super) fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.serving().map(FrontProcess::fds)
    }

    /// The time until [`Self::look`] must be called, if a front serves.
    pub(super) fn next_look(&self) -> Option<Duration> {
        self.serving().map(|_| self.watch.pause())
    }

    /// Kills a front that is stopped: its requests wait, and those of other mounts that recall what
    /// its kernel has. Returns whether it was.
    pub(super) fn look(&mut self) -> bool {
        let Some(pid) = self.serving().map(FrontProcess::pid) else { return false };
        let is_stopped = self.watch.is_stopped(pid, true);
        if is_stopped {
            self.kill_current();
        }
        is_stopped
    }

    /// When the front must serve, which has not served yet. It counts for the first front alone: a
    /// later one may wait for cells that its predecessor has asked.
    pub(super) fn ready_until(&self, ready_max: Duration) -> Option<Instant> {
        self.serving().filter(|front| !front.is_ready).map(|front| front.started + ready_max)
    }

    /// Kills a front that does not serve within `ready_max`. Returns its process, if it is one.
    pub(super) fn kill_unready(&mut self, ready_max: Duration) -> Option<u32> {
        let is_late = self.ready_until(ready_max).is_some_and(|until| until <= Instant::now());
        let pid = self.serving().filter(|_| is_late).map(FrontProcess::pid);
        if is_late {
            self.kill_current();
        }
        pid
    }

    /// When [`Self::start_if_due`] must be called.
    pub(super) fn next_start(&self) -> Option<Instant> {
        match self.current {
            Current::Restarting { at } => Some(at),
            Current::Serving(_) | Current::Stopped => None,
        }
    }

    pub(super) fn receive(&mut self) -> Option<FrontMessage> {
        self.serving_mut().and_then(FrontProcess::receive)
    }

    /// For how long no front served, once after each loss.
    pub(super) fn take_lost_time(&mut self) -> Option<Duration> {
        self.lost_since.take().map(|since| since.elapsed())
    }

    /// The front's process has ended or its link is closed. `None` if there was no front.
    pub(super) fn end_current(&mut self) -> io::Result<Option<EndedFront>> {
        let front = match std::mem::replace(&mut self.current, Current::Stopped) {
            Current::Serving(front) => front,
            other => {
                self.current = other;
                return Ok(None);
            }
        };
        let started = front.started;
        let (status, unreaped) = front.end()?;
        self.unreaped.extend(unreaped);
        Ok(Some(EndedFront { status, started }))
    }

    /// Plans the start of the front after `ended`.
    pub(super) fn restart_after(&mut self, ended: &EndedFront) {
        let now = Instant::now();
        self.lost_since.get_or_insert(now);
        let was_killed = ended.status.signal() == Some(libc::SIGKILL);
        if was_killed || ended.started.elapsed() > LIVED {
            self.delay = DELAY_MIN;
            self.current = Current::Restarting { at: now };
        } else {
            self.restart_later(now);
        }
    }

    fn restart_later(&mut self, now: Instant) {
        self.current = Current::Restarting { at: now + self.delay };
        self.delay = (self.delay * 2).min(DELAY_MAX);
    }

    /// Starts the next front if its time has come. Returns it if it was started.
    pub(super) fn start_if_due(
        &mut self,
        resources: &MountResources<'_>,
        mount: &Mount,
    ) -> Option<&FrontProcess> {
        if self.next_start().is_none_or(|at| at > Instant::now()) {
            return None;
        }
        match FrontProcess::start(resources, mount.dir()) {
            Ok(front) => {
                self.watch = self.watch.of_successor();
                self.current = Current::Serving(front);
            }
            Err(error) => {
                if self.delay == DELAY_MIN {
                    let dir = mount.dir().display();
                    warn!("{dir}: cannot start its front, tries again: {error}");
                }
                self.restart_later(Instant::now());
            }
        }
        self.serving()
    }

    /// Ends the current front by a signal, and starts no other one.
    pub(super) fn terminate(&mut self) {
        match &self.current {
            Current::Serving(front) => front.terminate(),
            Current::Restarting { .. } | Current::Stopped => self.current = Current::Stopped,
        }
    }

    pub(super) fn kill_current(&mut self) {
        if let Some(front) = self.serving_mut() {
            front.kill();
        }
    }

    pub(super) fn reap(&mut self) {
        self.unreaped.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    pub(super) fn has_unreaped(&self) -> bool {
        !self.unreaped.is_empty()
    }
}
