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
//! serves sends it an order; it then ends.
//!
//! A front that was killed, or that has lived for [`LIVED`], is replaced at once. A front that
//! ended by its own fault soon after its start, or that could not be started for want of processes,
//! descriptors or memory, is replaced after a delay that doubles each time. While there is no
//! front, requests stay in the kernel and their callers wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use tracing::warn;
use warren_log::LIFE;
use warren_runtime::watch::{Activity, Hint, ProcessWatch, ThreadWatch, look_at_threads};

use super::blame::Blame;
use super::front_process::{FrontMessage, FrontProcess, MountResources};
use super::poll::poll_for;
use crate::front_state::FrontState;
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
    threads: ThreadWatch,
    /// The current front was killed because its threads hang.
    has_hung: bool,
    blame: Blame,
}

/// A front that has ended.
pub(super) struct EndedFront {
    pub status: ExitStatus,
    started: Instant,
    /// It has hung, or no other process has killed it.
    by_own_fault: bool,
}

impl Fronts {
    pub(super) fn new(first: FrontProcess) -> Self {
        Self {
            current: Current::Serving(first),
            delay: DELAY_MIN,
            lost_since: None,
            unreaped: Vec::new(),
            watch: ProcessWatch::default(),
            threads: ThreadWatch::default(),
            has_hung: false,
            blame: Blame::default(),
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

    /// Kills a front that hangs: its requests wait, and those of other mounts that recall what its
    /// kernel has. Returns how it hangs.
    pub(super) fn look(
        &mut self,
        resources: &MountResources<'_>,
        ready_max: Duration,
    ) -> Option<Hint> {
        let front = self.serving().filter(|_| self.watch.pause().is_zero())?;
        let (pid, is_late) = (front.pid(), !front.is_ready && front.started.elapsed() > ready_max);
        let mut hint = self.watch.is_stopped(pid, true).then_some(Hint::Stopped);
        if hint.is_none() {
            let said: Vec<_> =
                resources.state.threads().rows().iter().map(|row| row.said).collect();
            let unread =
                poll_for(&[(resources.device.as_fd(), PollFlags::IN)], Some(Duration::ZERO));
            let has_unread = unread.first().is_some_and(|found| found.contains(PollFlags::IN));
            hint = look_at_threads(&mut self.threads, pid, &said, has_unread);
            // Before its threads say anything, it waits for nothing but the start of a program.
            hint = hint.or((is_late && said.is_empty()).then_some(Hint::Sleeps));
            self.has_hung = hint.is_some();
        }
        if hint.is_some() {
            self.kill_current();
        }
        hint
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
        let was_killed = status.signal() == Some(libc::SIGKILL);
        let by_own_fault = std::mem::take(&mut self.has_hung) || !was_killed;
        Ok(Some(EndedFront { status, started, by_own_fault }))
    }

    /// Plans the start of the front after `ended`, which has left `state`.
    pub(super) fn restart_after(&mut self, ended: &EndedFront, state: &FrontState) {
        if ended.by_own_fault {
            self.refuse_guilty(state);
        }
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

    /// The next front refuses a request that has ended several fronts.
    fn refuse_guilty(&mut self, state: &FrontState) {
        // A thread that waits for a cell does nothing that could end the front.
        let rows = state.threads().rows().into_iter();
        let working = rows.filter(|row| row.said.activity == Activity::Works);
        let served = working.map(|row| row.unique).filter(|unique| *unique != 0);
        for unique in self.blame.note(served) {
            state.threads().refuse(unique);
            let why = "it has ended three of the mount's processes";
            warn!(target: LIFE, "request {unique} of the kernel fails with EIO: {why}");
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
                self.threads = self.threads.of_successor();
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

    /// Ends the current front by an order, and starts no other one.
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
