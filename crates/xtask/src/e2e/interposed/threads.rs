//! Files that threads open, use and close while other threads make other calls, and threads and
//! other processes remove and replace the files (`threads_open.c`). No call on an open file may
//! fail, and no child may lose its output, through the kernel and with the library. Threads that
//! change their own ids beside others (`ids.c`). And programs with small limits (`limits.c`), which
//! the kernel must not end for a call of the library's.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::run::{Run, USERS};
use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process::tail;
use crate::e2e::harness::report::served;

const CASES: &[(&str, Case)] =
    &[("threads_open", threads_open), ("ids_beside", ids_beside), ("limits_small", limits_small)];

const SCENES: usize = 12;
/// Files of each scene. While the pin of the mount could be lost, calls of most scenes failed with
/// so few.
const FILES: u32 = 2_000;
const FILES_FULL: u32 = 50_000;
/// The fewest served calls for each file of a scene, beyond [`WARM_SERVED`]. The kernel makes the
/// others, because it had to have some files.
const SERVED_OF_A_FILE: u64 = 2;
/// The number of served calls that make a process known to the fleet.
const WARM_SERVED: u64 = 20_000;
/// Processes of `ids.c` for each call that changes ids.
const IDS: u32 = 4;
const IDS_FULL: u32 = 100;
/// The fewest programs of `limits.c` that are served. Those that may open too few files, or make
/// too short ones, are left to the kernel from the start.
const LIMITED_MIN: usize = 30;
/// A program that is known to the fleet has at least so many of its calls served.
const LIMITED_SERVED: u64 = 5_000;
const LIMIT: Duration = Duration::from_secs(120);
/// Each file takes less on a busy machine.
const LIMIT_OF_A_FILE: Duration = Duration::from_millis(10);

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
}

fn threads_open(ground: &Ground, cells: u16) -> Result<()> {
    let usual = if ground.options.full { FILES_FULL } else { FILES };
    let files = ground.options.files.unwrap_or(usual);
    let words = format!("{} {files}", ground.seed);
    let limit = LIMIT + LIMIT_OF_A_FILE * files * SCENES as u32;
    let runs = [(USERS[0], &[][..]), (USERS[0], &["--no-interpose"]), (USERS[1], &[])];
    let wanted = if ground.options.full { runs.len() } else { runs.len() - 1 };
    for (user, options) in runs.into_iter().take(wanted) {
        let run = Run { program: "threads_open", user, options, cells, words: &words };
        let report = run.compare_within(ground, limit)?;
        if options.is_empty() {
            ensure_served(&report, files).with_context(|| format!("{user:?}"))?;
        }
    }
    Ok(())
}

/// Threads that change their ids while another thread uses files.
fn ids_beside(ground: &Ground, cells: u16) -> Result<()> {
    let processes = if ground.options.full { IDS_FULL } else { IDS };
    let words = format!("{} {processes}", ground.seed);
    for options in [&[][..], &["--no-interpose"]] {
        let run = Run { program: "ids", user: &[], options, cells, words: &words };
        let report = run.compare(ground)?;
        let are_served = report.split("warren ").any(|block| served(block) > 0);
        ensure!(are_served != options.contains(&"--no-interpose"), "{}", tail(&report));
    }
    Ok(())
}

/// Limits that are set before a program is known to the fleet, or afterwards.
fn limits_small(ground: &Ground, cells: u16) -> Result<()> {
    for (user, options) in [(USERS[0], &[][..]), (USERS[1], &[]), (USERS[1], &["--no-interpose"])] {
        let report = Run { program: "limits", user, options, cells, words: "" }.compare(ground)?;
        let blocks = report.split("warren ");
        let limited = blocks.filter(|block| served(block) >= LIMITED_SERVED).count();
        let enough = !options.is_empty() || limited >= LIMITED_MIN;
        ensure!(enough, "{user:?}: {limited} programs were served: {}", tail(&report));
    }
    Ok(())
}

/// The process of each scene has served calls on files.
fn ensure_served(report: &str, files: u32) -> Result<()> {
    let least = WARM_SERVED + SERVED_OF_A_FILE * u64::from(files);
    let scenes = report.split("warren ").filter(|block| served(block) >= least).count();
    ensure!(scenes >= SCENES, "only {scenes} scenes were served:\n{}", tail(report));
    Ok(())
}
