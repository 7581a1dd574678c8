//! What a check is asked for, and what it reports.

use crate::finding::{Finding, Severity};
use std::collections::{BTreeMap, BTreeSet};
use warren_base::Ino;
use warren_disk::Superblock;

/// Findings that a report keeps; the others are counted. A damaged index can cause one for every
/// file.
pub(crate) const FINDINGS_MAX: usize = 1000;

/// What to check beyond the structure.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// Read all file data and compare its checksums.
    pub contents: bool,
    /// Tell the paths of these inodes too.
    pub paths_of: BTreeSet<Ino>,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// `None` if the device is no pool that can be read.
    pub superblock: Option<Superblock>,
    /// In the order of discovery, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub further_findings: u64,
    /// Some of it damage, also among the further ones.
    pub damaged: bool,
    /// Some of it damage whose repair may take something away.
    pub harmful: bool,
    /// Where the inodes that findings name or that were asked for are found, as far as that is
    /// known.
    pub paths: BTreeMap<Ino, Box<[u8]>>,
    /// Part of a tree, or what leads to all of them, could not be read, so not everything was
    /// checked.
    pub incomplete: bool,
    /// File data was read too, and compared with its checksums.
    pub contents: bool,
    pub inodes: u64,
    pub directories: u64,
    pub nodes: u64,
    pub used_blocks: u64,
    pub blocks_read: u64,
}

impl Report {
    /// Whether nothing is wrong; notes do not count.
    pub fn is_sound(&self) -> bool {
        !self.damaged
    }

    /// Whether no repair would change anything: what is wrong, if anything is, is file data alone.
    pub fn is_past_repair(&self) -> bool {
        let lost = |it: &Finding| it.severity() == Severity::Note || it.is_lost_data();
        !self.incomplete && self.further_findings == 0 && self.findings.iter().all(lost)
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.damaged |= finding.severity() == Severity::Damage;
        self.harmful |= !finding.is_harmless();
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.further_findings += 1;
        }
    }
}
