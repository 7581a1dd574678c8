//! `warren fsck`: checks a pool that no fleet serves. Exit codes are the bits of fsck(8).

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno};
use warren_device::{DeviceError, PoolFile};
use warren_disk::fsck::{self, Options, ReadError, Report, Severity};
use warren_runtime::FleetError;

use crate::arguments::Fsck;
use crate::failure::{CODE_FSCK_ERRORS_LEFT, CODE_FSCK_OPERATIONAL, Failure, print_json};
use crate::size;

#[derive(Serialize)]
struct Summary<'a> {
    pool: &'a Path,
    sound: bool,
    /// False if part of the pool could not be read.
    complete: bool,
    inodes: u64,
    directories: u64,
    tree_nodes: u64,
    used_blocks: u64,
    findings: Vec<Line>,
    further_findings: u64,
}

#[derive(Serialize)]
struct Line {
    damage: bool,
    text: String,
}

pub fn perform(arguments: &Fsck) -> Result<ExitCode, Failure> {
    let report = check(&arguments.pool, arguments.contents)
        .map_err(|failure| failure.with_code(CODE_FSCK_OPERATIONAL))?;
    let summary = summarize(&arguments.pool, &report);
    if arguments.json {
        print_json(&summary)?;
    } else {
        print(&summary);
    }
    Ok(if summary.sound { ExitCode::SUCCESS } else { ExitCode::from(CODE_FSCK_ERRORS_LEFT) })
}

fn check(pool: &Path, contents: bool) -> Result<Report, Failure> {
    let file = PoolFile::open_to_check(pool).map_err(|error| match error {
        DeviceError::Busy(_) => Failure::pool_in_use(pool),
        error => FleetError::from(error).into(),
    })?;
    let mut read = |block: BlockNo, bytes: &mut [u8]| {
        file.read_blocks(block, bytes).map_err(|error| ReadError(errno_of(&error)))
    };
    let report = fsck::check(Options { contents }, file.len_blocks(), &mut read, &mut |_| {});
    if report.superblock.is_none() {
        let why = report.findings.first().map_or_else(String::new, |found| format!(" ({found})"));
        let pool = pool.display();
        let line =
            format!("{pool}: not a pool that can be read{why}; name one made by `warren mkfs`");
        return Err(Failure::new(CODE_FSCK_OPERATIONAL, line));
    }
    Ok(report)
}

fn errno_of(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Io { source, .. } => source.raw_os_error().and_then(Errno::from_raw),
        _ => None,
    }
    .unwrap_or(Errno::EIO)
}

fn summarize<'a>(pool: &'a Path, report: &Report) -> Summary<'a> {
    let findings = report.findings.iter().map(|finding| Line {
        damage: finding.severity() == Severity::Damage,
        text: finding.to_string(),
    });
    Summary {
        pool,
        sound: report.is_sound() && !report.incomplete,
        complete: !report.incomplete,
        inodes: report.inodes,
        directories: report.directories,
        tree_nodes: report.nodes,
        used_blocks: report.used_blocks,
        findings: findings.collect(),
        further_findings: report.further_findings,
    }
}

fn print(summary: &Summary<'_>) {
    for finding in &summary.findings {
        let kind = if finding.damage { "damage" } else { "note" };
        println!("{kind}: {}", finding.text);
    }
    if summary.further_findings > 0 {
        println!("and {} further findings", summary.further_findings);
    }
    let verdict = match (summary.sound, summary.complete) {
        (true, _) => "sound",
        (false, true) => "damaged",
        (false, false) => "damaged, and not all of it could be checked",
    };
    println!(
        "{}: {verdict}; {} inodes, {} of them directories, {} in use",
        summary.pool.display(),
        summary.inodes,
        summary.directories,
        size::display(summary.used_blocks * BLOCK_SIZE as u64),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::CODE_POOL_IN_USE;
    use crate::mkfs::{Wish, make};

    #[test]
    fn a_pool_in_use_is_left_alone_and_a_truncated_one_is_not_sound() {
        let pool = std::env::temp_dir().join(format!("warren-fsck-cut-{}", std::process::id()));
        let wish = Wish { size: Some(64 << 20), shards: None, log: None, label: "", force: false };
        make(&pool, &wish).expect("mkfs");
        let holder = PoolFile::open_exclusive(&pool).expect("a fleet");
        let refused = check(&pool, false).expect_err("in use");
        drop(holder);
        let file = std::fs::OpenOptions::new().write(true).open(&pool).expect("open");
        file.set_len(63 << 20).expect("cut");
        let cut = check(&pool, false);
        std::fs::remove_file(&pool).expect("cleanup");
        assert_eq!(refused.code(), CODE_POOL_IN_USE);
        assert!(!summarize(&pool, &cut.expect("check")).sound);
    }

    #[test]
    fn a_new_pool_is_sound_and_a_damaged_one_not() {
        let pool = std::env::temp_dir().join(format!("warren-fsck-{}", std::process::id()));
        let wish = Wish { size: Some(64 << 20), shards: None, log: None, label: "", force: false };
        make(&pool, &wish).expect("mkfs");
        let sound = check(&pool, true).expect("check");
        let mut bytes = std::fs::read(&pool).expect("read");
        bytes[4096..8192].fill(0);
        std::fs::write(&pool, &bytes).expect("write");
        let one_copy = check(&pool, false).expect("check");
        bytes[..4096].fill(0);
        std::fs::write(&pool, &bytes).expect("write");
        let none = check(&pool, false).expect_err("no superblock");
        std::fs::remove_file(&pool).expect("cleanup");
        assert!(summarize(&pool, &sound).sound && sound.findings.is_empty());
        assert!(!summarize(&pool, &one_copy).sound);
        assert_eq!(none.code(), CODE_FSCK_OPERATIONAL);
    }
}
