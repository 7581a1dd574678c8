//! A process watches another: what the kernel shows of it, and when to look.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, kill_process};
use warren_base::Instant;
pub use warren_supervisor::{Activity, Hint, Said, ThreadWatch};
use warren_supervisor::{Condition, LOOK_EVERY, ProcessState, Seen, Watch, Work};

use crate::clock;
use crate::process_stat::ProcessStat;

/// The watch over a process of the same fleet or mount.
#[derive(Default)]
pub struct ProcessWatch {
    watch: Watch,
    next: Instant,
}

impl ProcessWatch {
    /// The watch over the successor of the process.
    #[must_use]
    pub fn of_successor(&self) -> Self {
        Self { watch: self.watch.of_successor(), next: Instant::default() }
    }

    /// The time until the next look.
    pub fn pause(&self) -> Duration {
        self.next - clock::monotonic()
    }

    /// Looks at a process, if it is time. Whether it has been stopped for a while, and is needed.
    /// One that is stopped and resumed again and again is only slow.
    pub fn is_stopped(&mut self, pid: u32, is_needed: bool) -> bool {
        let work = if is_needed { Work::Start } else { Work::None };
        self.look(pid, work).is_some()
    }

    /// Looks at the supervisor, if it is time. Its beats are the times that it went to sleep: it
    /// looks at its cells many times a second, and sleeps in between. Beside that it only waits for
    /// the device. Returns why it must be killed, if it hangs. `is_ready`: it has taken over.
    pub(crate) fn look_at_supervisor(&mut self, pid: u32, is_ready: bool) -> Option<Hint> {
        let work = if is_ready { Work::Waits } else { Work::Start };
        self.look(pid, work)
    }

    /// Beats are the times that the process went to sleep, or was stopped.
    fn look(&mut self, pid: u32, work: Work) -> Option<Hint> {
        let now = clock::monotonic();
        if now < self.next {
            return None;
        }
        self.next = now + LOOK_EVERY;
        let beats = sleeps(pid).unwrap_or_default();
        match self.watch.look(now, beats, work, || process(pid)) {
            Seen::Hangs(why) => Some(why),
            Seen::Nothing | Seen::Moves => None,
        }
    }
}

/// Looks at the threads of a process, and what they say. Returns why it must be killed, if it
/// hangs. `has_unread`: there is work that no thread has taken.
pub fn look_at_threads(
    watch: &mut ThreadWatch,
    pid: u32,
    said: &[Said],
    has_unread: bool,
) -> Option<Hint> {
    watch.look(clock::monotonic(), said, has_unread, || threads(pid))
}

/// The watch over this process's parent, which cannot be replaced: its children end with it.
pub struct ParentWatch {
    parent: Option<Pid>,
    watch: ProcessWatch,
}

impl ParentWatch {
    /// For the present parent.
    pub fn begin() -> Self {
        Self::over(getppid())
    }

    pub(crate) fn over(parent: Option<Pid>) -> Self {
        Self { parent, watch: ProcessWatch::default() }
    }

    /// The time until the next look.
    pub fn pause(&self) -> Duration {
        self.watch.pause()
    }

    /// Looks at the parent, if it is time, and resumes it if it has been stopped for a while and is
    /// needed. Returns whether it was.
    pub fn resume(&mut self, is_needed: bool) -> bool {
        let Some(parent) = self.parent else { return false };
        let is_stopped = self.watch.is_stopped(parent.as_raw_pid().unsigned_abs(), is_needed);
        if is_stopped {
            // It may have been resumed meanwhile.
            let _ = kill_process(parent, Signal::CONT);
        }
        is_stopped
    }
}

/// The state of a process, as the kernel shows it. `None` if it is gone or cannot be seen.
pub(crate) fn process(pid: u32) -> Option<ProcessState> {
    ProcessStat::of(pid).map(state)
}

/// The states of a process's threads, as the kernel shows them. `None` if it is gone or cannot be
/// seen.
fn threads(pid: u32) -> Option<BTreeMap<u32, ProcessState>> {
    let threads = ProcessStat::of_threads(pid)?;
    Some(threads.into_iter().map(|(thread, stat)| (thread, state(stat))).collect())
}

fn state(stat: ProcessStat) -> ProcessState {
    let condition = match stat.state {
        'T' => Condition::Stopped,
        'S' | 't' => Condition::Sleeps,
        'D' => Condition::Blocked,
        _ => Condition::Runs,
    };
    ProcessState { condition, ran: stat.ran }
}

/// The number of times that the process has gone to sleep by itself, or was stopped: one that works
/// with an event loop does so again and again. `None` if it is gone or cannot be seen.
fn sleeps(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_itself() {
        let own = std::process::id();
        // The state is that of the first thread, which may wait for this one.
        assert!(process(own).is_some_and(|it| it.condition != Condition::Stopped));
        assert!(sleeps(own).is_some());
        assert_eq!((process(0), sleeps(0), threads(0)), (None, None, None));
        let own_thread = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        assert!(threads(own).is_some_and(|it| it.len() > 1 && it.contains_key(&own_thread)));
    }
}
