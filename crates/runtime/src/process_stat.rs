//! The kernel's line about a process or a thread, `/proc/PID/stat`.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Clock ticks a second, in which the kernel counts times in `/proc` (`USER_HZ`, the same on all
/// architectures that we support).
const TICKS: u64 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessStat {
    /// The state letter of `ps`: R, S, D, T, t, Z, ...
    pub state: char,
    pub parent: u32,
    /// Its process group. 0 if a process outside this process namespace leads it.
    pub group: u32,
    /// The processor time that it has had in user mode.
    pub ran: Duration,
}

impl ProcessStat {
    /// `None` if the process is gone or cannot be seen.
    pub fn of(pid: u32) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{pid}/stat")))
    }

    /// The name in the line need not be UTF-8.
    fn read(path: &Path) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&fs::read(path).ok()?))
    }

    /// Returns the number and the state of each thread of the process. `None` if the process is
    /// gone or cannot be seen.
    pub(crate) fn of_threads(pid: u32) -> Option<Vec<(u32, Self)>> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        // A thread that has ended meanwhile is none.
        let stat = |thread: fs::DirEntry| {
            let number = thread.file_name().to_str()?.parse().ok()?;
            Some((number, Self::read(&thread.path().join("stat"))?))
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
        let group = fields.next()?.parse().ok()?;
        // `utime` is the 14th field of the line, and the group its fifth.
        let ticks: u64 = fields.nth(8)?.parse().ok()?;
        Some(Self { state, parent, group, ran: Duration::from_millis(ticks * 1000 / TICKS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_name_is() {
        let line = "7 (a) S 9) T 4 6 7 0 -1 4194560 1 2 3 4 250 6 7 8 20 0 1 0 1234 5 6";
        let ran = Duration::from_millis(2500);
        let stat = ProcessStat { state: 'T', parent: 4, group: 6, ran };
        assert_eq!(ProcessStat::parse(line), Some(stat));
        assert_eq!(ProcessStat::parse("7 (warren) T 4"), None);
        assert_eq!(ProcessStat::parse("7 (warren)"), None);
        let own = ProcessStat::of(std::process::id()).expect("this process");
        assert!(!own.is_stopped() && own.parent > 0);
    }
}
