//! The work of Warren's processes for a call: requests that cells received, and sleeps of threads
//! of cells and front, each of which is a wake-up later.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, system};

/// The counts of a call's batch are complete when they have not grown for this time: a program does
/// not wait for the kernel's `RELEASE`, for example.
const QUIET: Duration = Duration::from_millis(20);
const QUIET_MAX: Duration = Duration::from_secs(2);

/// Counts since the processes started; or, as a difference, of some calls.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Traffic {
    pub requests: u64,
    pub sleeps: u64,
}

/// The same of one call.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct TrafficPerCall {
    /// Requests that cells received from clients.
    pub requests: f64,
    /// Voluntary context switches of cells and front.
    pub sleeps: f64,
}

impl Traffic {
    /// Returns the traffic of the fleet that serves the pool, and of its one mount.
    pub(crate) fn of(pool: &Path, mount_keeper: u32) -> Result<Self, BenchError> {
        let status = warren_runtime::status(pool)?;
        let requests = status.cells.iter().map(|cell| cell.requests).sum();
        let mut sleeps = sleeps_of(mount_keeper)?;
        for process in status.cells.iter().map(|cell| cell.pid).chain(children(mount_keeper)?) {
            sleeps += sleeps_of(process)?;
        }
        Ok(Self { requests, sleeps })
    }

    pub(crate) fn per_call(self, before: Self, calls: u32) -> TrafficPerCall {
        let mean = |now: u64, before: u64| now.saturating_sub(before) as f64 / f64::from(calls);
        TrafficPerCall {
            requests: mean(self.requests, before.requests),
            sleeps: mean(self.sleeps, before.sleeps),
        }
    }
}

/// Counts again until the requests do not grow any more. Threads that poll sleep ever again, so
/// that their sleeps do not tell.
pub(crate) fn settled(
    count: impl Fn() -> Result<Traffic, BenchError>,
) -> Result<Traffic, BenchError> {
    let deadline = Instant::now() + QUIET_MAX;
    let mut last = count()?;
    loop {
        std::thread::sleep(QUIET);
        let now = count()?;
        if now.requests == last.requests || Instant::now() >= deadline {
            return Ok(last);
        }
        last = now;
    }
}

/// Voluntary context switches of all threads. Those of threads that have ended are not counted.
fn sleeps_of(process: u32) -> Result<u64, BenchError> {
    let threads = format!("/proc/{process}/task");
    let entries = fs::read_dir(&threads).map_err(system(&format!("list {threads}")))?;
    let statuses =
        entries.flatten().filter_map(|it| fs::read_to_string(it.path().join("status")).ok());
    Ok(statuses.map(|status| switches(&status)).sum())
}

fn switches(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// The child processes of a process's first thread.
fn children(process: u32) -> Result<Vec<u32>, BenchError> {
    let list = format!("/proc/{process}/task/{process}/children");
    let text = fs::read_to_string(&list).map_err(system(&format!("read {list}")))?;
    Ok(text.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_sleep_of_this_process_is_counted() {
        // Of this thread: the sum becomes less when another test's thread ends.
        let own = || switches(&fs::read_to_string("/proc/thread-self/status").expect("a status"));
        let before = own();
        std::thread::sleep(Duration::from_millis(1));
        let after = own();
        assert!(after > before);
        assert!(sleeps_of(std::process::id()).expect("threads") >= after);
        assert_eq!(switches("Name:\tx\nvoluntary_ctxt_switches:\t7\n"), 7);
    }

    #[test]
    fn late_requests_are_waited_for() {
        let counted = Cell::new(0);
        let count = || {
            counted.set(counted.get() + 1);
            Ok(Traffic { requests: counted.get().min(3), sleeps: 0 })
        };
        let before = Traffic { requests: 1, sleeps: 0 };
        let settled = settled(count).expect("a count");
        assert_eq!(settled.per_call(before, 2), TrafficPerCall { requests: 1.0, sleeps: 0.0 });
    }
}
