//! A check while a fleet serves the pool.
//!
//! It checks the last checkpoint and does not delay the fleet. A tree is never changed in place, so
//! a pool in which nothing is wrong was sound as of that checkpoint, whatever was written
//! meanwhile. The reverse does not hold: blocks that a newer checkpoint no longer uses are reused,
//! and then look damaged. So damage counts only if the superblock did not change during the check,
//! or if every try found it.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use warren_fsck::{Finding, Options, Report, Severity};
use warren_runtime::{OfflinePool, Purpose};

use super::bar::Bar;
use super::check::check_pool;
use super::report::{Logs, Outcome};
use crate::failure::{CODE_FSCK_OPERATIONAL, Failure};

/// A fleet makes a checkpoint every few seconds if anything changed.
const TRIES: usize = 5;
/// The pause between two tries, so that they are not at the same moment.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) fn check(path: &Path, contents: bool) -> Result<Outcome, Failure> {
    let pool = OfflinePool::open(path, Purpose::Beside)?;
    let options = Options { contents, ..Options::default() };
    let mut seen: Option<BTreeSet<String>> = None;
    for tried in 0..TRIES {
        if tried > 0 {
            sleep(PAUSE);
        }
        let mut report = check_pool(path, &pool, options.clone(), &mut Bar::new())?;
        let still = generation(&report) == generation_now(&pool);
        if still || (report.is_sound() && !report.incomplete) {
            return Ok(Outcome::new(report, logs(path, &pool)));
        }
        let lines: BTreeSet<String> = damage(&report).map(Finding::to_string).collect();
        let always = match seen {
            Some(seen) => seen.intersection(&lines).cloned().collect(),
            None => lines,
        };
        if tried + 1 == TRIES && !always.is_empty() {
            report.findings.retain(|finding| always.contains(&finding.to_string()));
            return Ok(Outcome::new(report, logs(path, &pool)));
        }
        seen = Some(always);
    }
    let line =
        format!("{}: the pool changed too much during the check; try again later", path.display());
    Err(Failure::new(CODE_FSCK_OPERATIONAL, line))
}

/// The state of the logs, which are not read.
fn logs(path: &Path, pool: &OfflinePool) -> Logs {
    let is_served = !matches!(warren_runtime::control::is_served(path), Ok(false));
    if is_served || !matches!(pool.has_logs(), Ok(true)) { Logs::OfTheFleet } else { Logs::NotRead }
}

fn damage(report: &Report) -> impl Iterator<Item = &Finding> {
    report.findings.iter().filter(|finding| finding.severity() == Severity::Damage)
}

fn generation(report: &Report) -> Option<u64> {
    report.superblock.as_ref().map(|superblock| superblock.generation)
}

fn generation_now(pool: &OfflinePool) -> Option<u64> {
    pool.superblock().ok().map(|superblock| superblock.generation)
}
