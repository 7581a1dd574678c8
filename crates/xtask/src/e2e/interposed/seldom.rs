//! Calls that few programs make (`seldom.c`), as the library may serve them, beside the same calls
//! by the kernel.

use anyhow::{Context, Result, ensure};

use super::run::{OPENAT, Run, USERS};
use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::report::{ensure_served, passed};

const CASES: &[(&str, Case)] = &[("seldom_calls", seldom_calls)];

/// The fewest served calls of `seldom.c`: more than make it known to the fleet.
const SELDOM_SERVED_MIN: u64 = 30_000;
/// The most calls of [`SELDOM`] that the kernel makes. Of 3,200 of each kind, half are made by a
/// path that is the kernel's, and some have an unusual path or argument.
const SELDOM_PASSED_MAX: u64 = 4_400;
/// `utime`, `statfs`, `utimes`, `futimesat`.
const SELDOM: [u64; 4] = [132, 137, 235, 261];
/// The most opens that the kernel makes, of 300 of files to be written, and of 40 of directories of
/// which half cannot be reached by a path.
const SELDOM_OPENS_MAX: u64 = 80;

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
}

/// Calls that few programs make, without the kernel, beside the same calls by the kernel; and those
/// after which the kernel must make all.
fn seldom_calls(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let report =
            Run { program: "seldom", user, options: &[], cells, words: "" }.compare(ground)?;
        let block = ensure_served(&report, SELDOM_SERVED_MIN);
        let block = block.with_context(|| format!("{user:?}"))?;
        for (numbers, most) in [(&SELDOM[..], SELDOM_PASSED_MAX), (&[OPENAT], SELDOM_OPENS_MAX)] {
            let passed = passed(block, numbers);
            ensure!(passed <= most, "{user:?}: the kernel has made {passed} {numbers:?}:\n{block}");
        }
    }
    Ok(())
}
