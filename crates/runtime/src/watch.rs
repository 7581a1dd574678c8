//! A process watches another: what the kernel shows of it, and when to look.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, kill_process};
use warren_base::Instant;
use warren_supervisor::{Condition, Hint, LOOK_EVERY, Process, Seen, Watch, Work};

use crate::clock;

/// Clock ticks a second, in which the kernel counts times in `/proc` (`USER_HZ`, the same on all
/// architectures that we support).
const TICKS: u64 = 100;

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

    /// Looks at a process that shows no beats, if it is time. Whether it has been stopped for a
    /// while, and is needed.
    pub fn is_stopped(&mut self, pid: u32, is_needed: bool) -> bool {
        let work = if is_needed { Work::Start } else { Work::None };
        self.look(pid, |_| 0, work).is_some()
    }

    /// Looks at the supervisor, if it is time. Its beats are the times that it went to sleep: it
    /// looks at its cells many times a second, and sleeps in between. Beside that it only waits for
    /// the device. Returns why it must be killed, if it hangs. `is_ready`: it has taken over.
    pub(crate) fn look_at_supervisor(&mut self, pid: u32, is_ready: bool) -> Option<Hint> {
        let work = if is_ready { Work::Waits } else { Work::Start };
        self.look(pid, |pid| sleeps(pid).unwrap_or_default(), work)
    }

    fn look(&mut self, pid: u32, beats: fn(u32) -> u64, work: Work) -> Option<Hint> {
        let now = clock::monotonic();
        if now < self.next {
            return None;
        }
        self.next = now + LOOK_EVERY;
        match self.watch.look(now, beats(pid), work, || process(pid)) {
            Seen::Hangs(why) => Some(why),
            Seen::Nothing | Seen::Moves => None,
        }
    }
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

/// A process, from `/proc/PID/stat`. `None` if it is gone or cannot be seen.
pub(crate) fn process(pid: u32) -> Option<Process> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// State and time. The name before them may contain anything.
fn parse(stat: &str) -> Option<Process> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let condition = match fields.next()? {
        "T" => Condition::Stopped,
        "S" | "t" => Condition::Sleeps,
        "D" => Condition::Blocked,
        _ => Condition::Runs,
    };
    // `utime` is the 14th field of the line, and the state its third.
    let ticks: u64 = fields.nth(10)?.parse().ok()?;
    Some(Process { condition, ran: Duration::from_millis(ticks * 1000 / TICKS) })
}

/// How often the process has gone to sleep by itself: one that works with an event loop does so
/// again and again. `None` if it is gone or cannot be seen.
fn sleeps(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_whatever_the_name_is() {
        let line = "7 (a) S 9) T 4 7 7 0 -1 4194560 1 2 3 4 250 6 7 8 20 0 1 0 1234 5 6";
        let ran = Duration::from_millis(2500);
        assert_eq!(parse(line), Some(Process { condition: Condition::Stopped, ran }));
        assert_eq!(parse("7 (warren) T 4"), None);
        assert_eq!(parse("7 (warren)"), None);
    }

    #[test]
    fn a_process_sees_itself() {
        let own = std::process::id();
        // The state is that of the first thread, which may wait for this one.
        assert!(process(own).is_some_and(|it| it.condition != Condition::Stopped));
        assert!(sleeps(own).is_some());
        assert_eq!((process(0), sleeps(0)), (None, None));
    }
}
