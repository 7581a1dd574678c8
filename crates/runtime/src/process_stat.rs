//! The kernel's line about a process or a thread, `/proc/PID/stat`.

use std::fs;
use std::time::Duration;

/// Clock ticks a second, in which the kernel counts times in `/proc` (`USER_HZ`, the same on all
/// architectures that we support).
const TICKS: u64 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProcessStat {
    /// The state letter of `ps`: R, S, D, T, t, Z, ...
    pub state: char,
    pub parent: u32,
    /// The processor time that it has had in user mode.
    pub ran: Duration,
}

impl ProcessStat {
    /// `None` if the process is gone or cannot be seen.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Returns the number and the state of each thread of the process. `None` if the process is
    /// gone or cannot be seen.
    pub(crate) fn of_threads(pid: u32) -> Option<Vec<(u32, Self)>> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        // A thread that has ended meanwhile is none.
        let stat = |thread: fs::DirEntry| {
            let line = fs::read_to_string(thread.path().join("stat")).ok()?;
            Some((thread.file_name().to_str()?.parse().ok()?, Self::parse(&line)?))
        };
        Some(threads.flatten().filter_map(stat).collect())
    }

    /// Whether a signal or a debugger has stopped it.
    pub(crate) fn is_stopped(self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Whether it has ended, and its parent has not noticed.
    pub(crate) fn is_gone(self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// The name before the state may contain anything.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // `utime` is the 14th field of the line, and the parent its fourth.
        let ticks: u64 = fields.nth(9)?.parse().ok()?;
        Some(Self { state, parent, ran: Duration::from_millis(ticks * 1000 / TICKS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_name_is() {
        let line = "7 (a) S 9) T 4 7 7 0 -1 4194560 1 2 3 4 250 6 7 8 20 0 1 0 1234 5 6";
        let stat = ProcessStat { state: 'T', parent: 4, ran: Duration::from_millis(2500) };
        assert_eq!(ProcessStat::parse(line), Some(stat));
        assert_eq!(ProcessStat::parse("7 (warren) T 4"), None);
        assert_eq!(ProcessStat::parse("7 (warren)"), None);
        let own = ProcessStat::of(std::process::id()).expect("this process");
        assert!(!own.is_stopped() && own.parent > 0);
    }
}
