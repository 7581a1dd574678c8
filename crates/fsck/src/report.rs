//! The options of a check, and its report.

use crate::finding::{Finding, Severity};
use std::collections::{BTreeMap, BTreeSet};
use warren_base::Ino;
use warren_disk::Superblock;

/// Findings that a report keeps; the others are counted. A damaged index can cause one for every
/// file.
pub(crate) const FINDINGS_MAX: usize = 1000;

/// The checks beyond the structure.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// Read all file data and compare its checksums.
    pub contents: bool,
    /// Report the paths of these inodes too.
    pub paths_of: BTreeSet<Ino>,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// `None` if the device has no readable superblock.
    pub superblock: Option<Superblock>,
    /// In the order of discovery, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub further_findings: u64,
    /// Some finding is damage, perhaps a further one.
    pub damaged: bool,
    /// Some finding is damage whose repair may remove something.
    pub harmful: bool,
    /// The paths, as far as known, of the inodes that findings name or that were asked for.
    pub paths: BTreeMap<Ino, Box<[u8]>>,
    /// Part of a tree, or a structure above all trees, could not be read, so the check is
    /// incomplete.
    pub incomplete: bool,
    /// File data was read too, and compared with its checksums.
    pub contents: bool,
    pub inodes: u64,
    pub directories: u64,
    pub nodes: u64,
    pub used_blocks: u64,
    /// Bytes of the device behind the pool that it could grow into.
    pub bytes_behind: u64,
    pub blocks_read: u64,
}

impl Report {
    /// Whether there is no damage; notes do not count.
    pub fn is_sound(&self) -> bool {
        !self.damaged
    }

    /// Whether a repair would change nothing: the pool is sound, or only file data is damaged.
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
