//! The report that the library appends for each process: what it has answered itself, and what the
//! kernel has.

use anyhow::{Result, ensure};

use super::process::tail;

/// The number of calls that a process has served, according to its block.
pub(crate) fn served(block: &str) -> u64 {
    let count = block.lines().find_map(|line| line.strip_prefix("served "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Returns the block of the process that has served the most calls.
pub(crate) fn ensure_served(report: &str, least: u64) -> Result<&str> {
    let most = report.split("warren ").max_by_key(|block| served(block)).unwrap_or_default();
    let count = served(most);
    ensure!(count >= least, "only {count} calls were served:\n{}", tail(report));
    Ok(most)
}

/// The number of calls with these numbers that the kernel has made, according to the block of a
/// process.
pub(crate) fn passed(block: &str, numbers: &[u64]) -> u64 {
    of_calls(block, "call ", numbers)
}

/// The sum of the lines that begin so, for calls with these numbers.
pub(crate) fn of_calls(block: &str, start: &str, numbers: &[u64]) -> u64 {
    let counts = block.lines().filter_map(|line| {
        let (number, count) = line.strip_prefix(start)?.split_once(' ')?;
        numbers.contains(&number.parse().ok()?).then(|| count.parse::<u64>().ok())?
    });
    counts.sum()
}
