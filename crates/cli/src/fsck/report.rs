//! The report of a check and a repair: lines of text, or one of JSON.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Ino, InodeNumbers, ShardId};
use warren_disk::Superblock;
use warren_fsck::{Finding, Footing, Mend, Repair, Report, Severity};
use warren_runtime::CutLogs;

use crate::failure::{Failure, print_json};
use crate::output::say;
use crate::size;

/// The treatment of the logs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Logs {
    /// The pool was left in order.
    None,
    Replayed,
    /// Nothing was written; the next start will replay them.
    ReplayedInMemory,
    /// All but the records that depend on damaged structures.
    ReplayedInPart {
        given_up: Vec<GivenUp>,
    },
    /// A fleet is using them.
    OfTheFleet,
    /// No fleet is using them, and they were not read.
    NotRead,
    /// Too much is damaged to know whether they are valid.
    Unknown,
    Failed(String),
}

/// A part of a log that was not replayed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct GivenUp {
    /// The cell of the log.
    pub cell: u16,
    /// The steps of this shard. If none: everything behind some place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<u16>,
    /// There the log depends on what is lost of another.
    pub depends: bool,
}

impl Logs {
    /// The outcome of a replay on `footing`, in which these logs were cut.
    pub(super) fn replayed_on(footing: &Footing, cut: &CutLogs) -> Self {
        let of_shard = |shard: &ShardId| {
            let (cell, shard) = (shard.0 % footing.logs, Some(shard.0));
            GivenUp { cell, shard, depends: false }
        };
        let of_cell = |depends| move |it: &CellId| GivenUp { cell: it.0, shard: None, depends };
        let damaged = cut.damaged.iter().map(of_cell(false));
        let depending = cut.depending.iter().map(of_cell(true));
        let given_up: Vec<GivenUp> =
            footing.lost.iter().map(of_shard).chain(damaged).chain(depending).collect();
        match given_up.is_empty() {
            true => Self::Replayed,
            false => Self::ReplayedInPart { given_up },
        }
    }
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cell, shard, depends } = self;
        match shard {
            Some(shard) => write!(
                f,
                "shard {shard}: its tree is older than the last checkpoint; its steps in the log of cell {cell} are discarded"
            ),
            None if *depends => write!(
                f,
                "cell {cell}: its log depends on what is lost of another; the rest of it is discarded"
            ),
            None => write!(
                f,
                "cell {cell}: its log is damaged or cannot be read at one place; the rest of the log is discarded"
            ),
        }
    }
}

/// The changes of a repair.
#[derive(Default)]
pub(super) struct Mends {
    pub list: Vec<Mend>,
    pub further: u64,
}

impl Mends {
    /// Adds the changes of another repair.
    pub(super) fn add(&mut self, repair: &mut Repair) {
        self.list.append(&mut repair.mends);
        self.further += repair.further_mends;
    }
}

/// The result of a check, and of a repair.
pub(super) struct Outcome {
    /// The state now.
    pub report: Report,
    /// The state before the repair.
    pub before: Option<Report>,
    pub logs: Logs,
    pub repair: Option<Mends>,
    /// Why it was not repaired, if that must be printed.
    pub refused: Option<String>,
}

#[derive(Serialize)]
struct Summary<'a> {
    pool: &'a Path,
    sound: bool,
    /// False if part of the pool could not be read.
    complete: bool,
    /// False if file data was not read.
    contents: bool,
    generation: u64,
    logs: &'a Logs,
    inodes: u64,
    directories: u64,
    tree_nodes: u64,
    used_blocks: u64,
    /// Bytes of the device behind the pool.
    bytes_behind: u64,
    findings: Vec<Line>,
    further_findings: u64,
    repaired: bool,
    /// The findings before the repair.
    repaired_findings: Vec<Line>,
    mends: Vec<Mended>,
    further_mends: u64,
}

#[derive(Serialize)]
struct Line {
    damage: bool,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

#[derive(Serialize)]
struct Mended {
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

impl Outcome {
    pub(super) fn new(report: Report, logs: Logs) -> Self {
        Self { report, before: None, logs, repair: None, refused: None }
    }

    pub(super) fn is_sound(&self) -> bool {
        let logs_remain =
            matches!(self.logs, Logs::Failed(_) | Logs::Unknown) && self.repair.is_none();
        self.report.is_sound() && !self.report.incomplete && !logs_remain
    }

    /// Whether only file data is damaged, which no repair can restore.
    pub(super) fn is_past_repair(&self) -> bool {
        self.report.is_past_repair() && !matches!(self.logs, Logs::Failed(_) | Logs::Unknown)
    }

    /// Whether a repair loses nothing.
    pub(super) fn is_harmless(&self) -> bool {
        let logs_lost = matches!(self.logs, Logs::Failed(_) | Logs::Unknown);
        !self.report.harmful && !self.report.incomplete && !logs_lost
    }

    pub(super) fn print(&self, pool: &Path, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(&self.summary(pool));
        }
        if let Some(before) = &self.before {
            print_lines(before);
        }
        if let Some(repair) = &self.repair {
            for Mended { text, path } in self.mends() {
                say!("repaired: {text}{}", bracketed(path));
            }
            if repair.further > 0 {
                say!("and {} further repairs", repair.further);
            }
        }
        self.print_findings();
        if self.report.bytes_behind > 0 {
            say!("note: {}", warren_runtime::behind_line(pool, self.report.bytes_behind));
        }
        say!("{}", self.verdict(pool));
        if let Some(refused) = &self.refused {
            let pool = pool.display();
            warren_log::say(&format!("{pool}: not repaired: {refused}"));
        }
        Ok(())
    }

    /// Prints the present findings.
    pub(super) fn print_findings(&self) {
        print_lines(&self.report);
        match &self.logs {
            Logs::Failed(why) if self.repair.is_some() => {
                say!("repaired: the logs, which could not be replayed, are discarded: {why}");
            }
            Logs::Failed(why) => say!("damage: the logs cannot be replayed: {why}"),
            Logs::Replayed => say!("note: the logs were replayed"),
            Logs::ReplayedInPart { given_up } => {
                given_up.iter().for_each(|given_up| say!("repaired: {given_up}"));
                say!("note: all else of the logs was replayed");
            }
            Logs::ReplayedInMemory => {
                say!(
                    "note: the logs were replayed in memory only; the next start replays them on the device"
                );
            }
            Logs::Unknown if self.repair.is_none() => {
                say!("damage: too much is damaged to know whether the logs are valid");
            }
            Logs::NotRead => say!(
                "note: no fleet serves the pool, and its logs were not read; check it without --online"
            ),
            Logs::None | Logs::OfTheFleet | Logs::Unknown => {}
        }
    }

    /// Whether there are logs that could not be replayed, perhaps because of the damage.
    pub(super) fn has_logs_left(&self) -> bool {
        let is_clean = self.report.superblock.as_ref().is_none_or(|superblock| superblock.clean);
        matches!(self.logs, Logs::Failed(_) | Logs::Unknown) && !is_clean
    }

    /// One line: the state of the pool, and which part was not read.
    pub(super) fn verdict(&self, pool: &Path) -> String {
        let verdict = match (self.is_sound(), self.report.incomplete, self.repair.is_some()) {
            (true, _, false) => "sound",
            (true, _, true) => "repaired",
            (false, _, true) => "repaired, but some damage remains",
            (false, false, _) => "damaged",
            (false, true, _) => "damaged, and not fully checked",
        };
        let Report { inodes, directories, used_blocks, .. } = &self.report;
        let used = size::display(used_blocks * BLOCK_SIZE as u64);
        let unread =
            if self.report.contents { "" } else { "; file data not read (see --contents)" };
        let pool = pool.display();
        format!(
            "{pool}: {verdict}{unread}; {inodes} inodes, {directories} of them directories, {used} in use"
        )
    }

    /// The repairs, with paths as they are afterwards.
    fn mends(&self) -> Vec<Mended> {
        let list = self.repair.as_ref().map(|repair| &repair.list[..]).unwrap_or_default();
        let numbers = numbers_of(&self.report);
        let mended = |mend: &Mend| Mended {
            text: mend.text(numbers),
            path: mend.ino().and_then(|ino| path_of(&self.report, ino)),
        };
        list.iter().map(mended).collect()
    }

    fn summary<'a>(&'a self, pool: &'a Path) -> Summary<'a> {
        let Report { inodes, directories, nodes, used_blocks, further_findings, .. } = self.report;
        Summary {
            pool,
            sound: self.is_sound(),
            complete: !self.report.incomplete,
            contents: self.report.contents,
            generation: self
                .report
                .superblock
                .as_ref()
                .map_or(0, |superblock| superblock.generation),
            logs: &self.logs,
            inodes,
            directories,
            tree_nodes: nodes,
            used_blocks,
            bytes_behind: self.report.bytes_behind,
            findings: lines(&self.report),
            further_findings,
            repaired: self.repair.is_some(),
            repaired_findings: self.before.as_ref().map(lines).unwrap_or_default(),
            mends: self.mends(),
            further_mends: self.repair.as_ref().map_or(0, |repair| repair.further),
        }
    }
}

fn lines(report: &Report) -> Vec<Line> {
    let numbers = numbers_of(report);
    let line = |finding: &Finding| Line {
        damage: finding.severity() == Severity::Damage,
        text: finding.text(numbers),
        path: finding.ino().and_then(|ino| path_of(report, ino)),
    };
    report.findings.iter().map(line).collect()
}

/// The inode numbers that programs see in the pool.
fn numbers_of(report: &Report) -> InodeNumbers {
    report.superblock.as_ref().map(Superblock::inode_numbers).unwrap_or_default()
}

fn path_of(report: &Report, ino: Ino) -> Option<String> {
    Some(report.paths.get(&ino)?.escape_ascii().to_string())
}

fn bracketed(path: Option<String>) -> String {
    path.map_or_else(String::new, |path| format!(" ({path})"))
}

fn print_lines(report: &Report) {
    for Line { damage, text, path } in lines(report) {
        let kind = if damage { "damage" } else { "note" };
        say!("{kind}: {text}{}", bracketed(path));
    }
    if report.further_findings > 0 {
        say!("and {} further findings", report.further_findings);
    }
}
