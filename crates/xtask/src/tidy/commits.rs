//! A commit says what and why in a body of a few lines.
//!
//! The rule checks the commits after the one that added this file. In a clone that does not go back
//! so far, it checks those that the clone has. A merge needs no body, because its commits have
//! theirs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::finding::Finding;

const THIS_FILE: &str = "crates/xtask/src/tidy/commits.rs";

/// The format of `git log`, with a character that ends each commit and one between its parts.
const FORMAT: &str = "--format=%h%x1f%s%x1f%b%x1e";

pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let added = git(root, &["log", "--diff-filter=A", "--format=%H", "--", THIS_FILE])?;
    // The first of several, if the file was moved.
    let Some(first) = added.lines().last() else { return Ok(Vec::new()) };
    let log = git(root, &["log", "--no-merges", FORMAT, &format!("{first}..HEAD")])?;
    Ok(without_body(&log))
}

fn without_body(log: &str) -> Vec<Finding> {
    let commits = log.split('\x1e').filter_map(|commit| {
        let mut parts = commit.trim_start().splitn(3, '\x1f');
        Some((parts.next()?, parts.next()?, parts.next()?))
    });
    let bare = commits.filter(|(_, _, body)| body.trim().is_empty());
    let finding = |(hash, subject, _): (&str, &str, &str)| {
        let what = format!("commit {hash} ({subject}) has no body: what and why");
        Finding::fault(Path::new("."), 0, what)
    };
    bare.map(finding).collect()
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output();
    let output = output.context("cannot run git")?;
    if !output.status.success() {
        bail!("git log: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_a_body_is_found() {
        let log = "a1\x1fGood\x1fBecause.\nAnd so.\n\x1e\nb2\x1fBad: no why\x1f\n\x1e\n";
        let found = without_body(log);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("b2 (Bad: no why)"));
        assert!(without_body("").is_empty());
    }
}
