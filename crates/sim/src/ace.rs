//! The systematic crash campaign: every sequence of one operation, and many of two, each with every
//! call that makes something durable, on two directories of different cells; and files that replace
//! others.
//!
//! ```text
//! base image -> a fleet executes the sequence, and all its writes and flushes are recorded
//! -> at each flush, and at the end: without the unflushed writes, with all, with some, with torn
//! blocks
//! -> recovery -> fsck -> a fleet reads everything back -> is it one of the promised states?
//! ```
//!
//! The cells, their logs, their recovery and the supervisor are those of the runtime. `crash` is
//! the counterpart: long random histories with delays and failing devices.

mod client;
mod fleet;
mod operation;
mod promise;
mod state;
mod tree;

use std::fmt;
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;

use hashbrown::HashMap;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, FixedState, Rng};
use warren_cell::Plant;
use warren_disk::format::{LOG_MIN, SIZE_MIN};
use warren_proto::{FileKind, NewInode};

use crate::fixed::Fixed;
use crate::fleet::disk::{Blocks, Disk};
pub use crate::fleet::disk::{Covered, Recorded};
pub use client::Client;
use client::Mark;
use fleet::Fleet;
pub use operation::{PAIRS, Sequence, pairs, replacements, singles};
use operation::{Step, base};
use promise::Promises;
use state::{Boundary, Kind, STATES, boundaries};
use tree::{ROOT, View};

/// Cells of the fleet that executes, and of the one that reads back.
pub const CELLS: u16 = 2;
const SHARDS: u16 = 4;
/// Bytes of the pool.
pub const POOL_BYTES: u64 = SIZE_MIN;
/// Seeds of the name hashes that are tried until `A` and `B` are on different cells.
const SECRETS: u64 = 1000;
/// Violations that are described.
const SHOWN: usize = 5;

/// Faults to plant, to show that the campaign finds them.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// The device ignores flushes.
    pub no_flush: bool,
    pub plant: Option<Plant>,
}

/// The results of some sequences.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    pub sequences: u64,
    /// Moments at which the power was cut, states of the device, and the distinct states of each
    /// sequence.
    pub boundaries: u64,
    pub states: u64,
    pub recovered: u64,
    /// States in which the logs had something to replay, and states with torn blocks.
    pub replayed: u64,
    pub torn: u64,
    /// States that were not promised, pools that did not start, and faults that fsck found.
    pub violations: u64,
    pub lost_pools: u64,
    pub faults: u64,
    /// Descriptions of the first of these.
    pub shown: Vec<String>,
}

/// The outcome of one state of the device.
#[derive(Clone)]
enum Outcome {
    Seen(Rc<View>),
    LostPool(String),
    Faulty(String),
}

/// The pool that every sequence starts from.
pub struct Campaign {
    image: Rc<Blocks>,
    options: Options,
}

impl Campaign {
    /// # Panics
    /// If the base cannot be made.
    pub fn new(options: Options) -> Self {
        let made = (0..SECRETS).find_map(|secret| make_base(secret).expect("a base is made"));
        Self { image: made.expect("some secret puts A and B on different cells"), options }
    }

    /// Executes these sequences and tries the states after a power cut of each.
    pub fn run(&self, sequences: &[Sequence]) -> Summary {
        let mut summary = Summary::default();
        for sequence in sequences {
            self.run_one(sequence, &mut summary);
        }
        summary
    }

    /// The pool that every sequence starts from, its blocks in order.
    pub fn base(&self) -> Vec<(BlockNo, &[u8])> {
        let mut blocks: Vec<(BlockNo, &[u8])> =
            self.image.iter().map(|(block, bytes)| (*block, &bytes[..])).collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        blocks
    }

    /// Executes a sequence through another client. `mark` is called with `2 n` before step `n`, and
    /// with `2 n + 1` after it.
    pub fn perform_by(
        &self,
        client: &mut impl Client,
        sequence: &Sequence,
        mut mark: impl FnMut(u64),
    ) -> Result<(), String> {
        for (number, step) in sequence.steps.iter().enumerate() {
            client.perform(number, step, |_, of_step| {
                mark(2 * number as u64 + u64::from(of_step == Mark::Answered));
            })?;
        }
        let (seen, end) = (client.look()?, Promises::new(&sequence.steps).end.view());
        match seen == end {
            true => Ok(()),
            false => Err(format!("without a power cut there is{}", difference(&seen, &end))),
        }
    }

    /// Tries the states after a power cut of a sequence that was executed elsewhere, on
    /// [`Self::base`].
    pub fn run_recorded(&self, sequence: &Sequence, record: Vec<Recorded>) -> Summary {
        let mut summary = Summary { sequences: 1, ..Summary::default() };
        self.judge(sequence, &Promises::new(&sequence.steps), &record, &mut summary);
        summary
    }

    fn run_one(&self, sequence: &Sequence, summary: &mut Summary) {
        summary.sequences += 1;
        let promises = Promises::new(&sequence.steps);
        let record = match self.perform(sequence, &promises) {
            Ok(record) => record,
            Err(why) => {
                summary.violations += 1;
                return summary.show(format!("{sequence}: {why}"));
            }
        };
        self.judge(sequence, &promises, &record, summary);
    }

    /// Cuts the power at every boundary of the recorded sequence, on this campaign's image.
    fn judge(
        &self,
        sequence: &Sequence,
        promises: &Promises<'_>,
        record: &[Recorded],
        summary: &mut Summary,
    ) {
        let mut rng = Rng::new(hash_of(sequence));
        let mut known = HashMap::with_hasher(Fixed);
        for (number, boundary) in boundaries(record, self.options.no_flush).iter().enumerate() {
            summary.boundaries += 1;
            let allowed = promises.allowed(boundary.progress);
            for state in 0..STATES {
                let (kind, over) = boundary.state(state, &self.image, &mut rng);
                let outcome = known
                    .entry(hash_of_blocks(&over))
                    .or_insert_with(|| self.outcome(over, summary))
                    .clone();
                summary.states += 1;
                summary.torn += u64::from(kind == Kind::Torn && !boundary.unflushed.is_empty());
                summary.judge(outcome, &allowed, || {
                    format!("{sequence}, boundary {number} ({}), {kind:?}", progress(boundary))
                });
            }
        }
    }

    /// Executes a sequence and returns the record. Also checks the result without a power cut.
    fn perform(
        &self,
        sequence: &Sequence,
        promises: &Promises<'_>,
    ) -> Result<Vec<Recorded>, String> {
        let mut disk = Disk::over(Rc::clone(&self.image), Blocks::default());
        disk.record = Some(Vec::new());
        let mut fleet = Fleet::serve(disk, CELLS, self.options.plant)?;
        for (number, step) in sequence.steps.iter().enumerate() {
            fleet.perform(number, step, |fleet, mark| {
                fleet.disk().note(|| match mark {
                    Mark::Begun => Recorded::Begun(number),
                    Mark::Answered => Recorded::Answered(number),
                });
            })?;
        }
        if sequence.checkpoint {
            fleet.checkpoint()?;
        }
        let record = fleet.disk().record.take().expect("a recorded device");
        let (seen, end) = (fleet.look()?, promises.end.view());
        match seen == end {
            true => Ok(record),
            false => Err(format!("without a power cut there is{}", difference(&seen, &end))),
        }
    }

    fn outcome(&self, over: Blocks, summary: &mut Summary) -> Outcome {
        summary.recovered += 1;
        let disk = Disk::over(Rc::clone(&self.image), over);
        let disk = match Fleet::recover(disk, None) {
            Ok((disk, replayed)) => {
                summary.replayed += u64::from(replayed);
                disk
            }
            Err(why) => return Outcome::LostPool(why),
        };
        if let Some(findings) = disk.damage(POOL_BYTES / BLOCK_SIZE as u64, |_, _| true) {
            return Outcome::Faulty(findings);
        }
        let looked = Fleet::serve(disk, CELLS, None).and_then(|mut fleet| fleet.look());
        looked.map_or_else(Outcome::LostPool, |view| Outcome::Seen(Rc::new(view)))
    }
}

impl Summary {
    pub fn add(&mut self, other: Self) {
        self.sequences += other.sequences;
        self.boundaries += other.boundaries;
        self.states += other.states;
        self.recovered += other.recovered;
        self.replayed += other.replayed;
        self.torn += other.torn;
        self.violations += other.violations;
        self.lost_pools += other.lost_pools;
        self.faults += other.faults;
        other.shown.into_iter().for_each(|text| self.show(text));
    }

    /// Whether every state was as promised.
    pub fn is_sound(&self) -> bool {
        (self.violations, self.lost_pools, self.faults) == (0, 0, 0)
    }

    fn show(&mut self, text: String) {
        if self.shown.len() < SHOWN {
            self.shown.push(text);
        }
    }

    fn judge(&mut self, outcome: Outcome, allowed: &[View], place: impl Fn() -> String) {
        match outcome {
            Outcome::Seen(view) if allowed.contains(&view) => {}
            Outcome::Seen(view) => {
                self.violations += 1;
                let mut text = format!("{}: there is", place());
                for allowed in allowed {
                    text.push_str(&difference(&view, allowed));
                }
                self.show(text);
            }
            Outcome::LostPool(why) => {
                self.lost_pools += 1;
                self.show(format!("{}: {why}", place()));
            }
            Outcome::Faulty(findings) => {
                self.faults += 1;
                self.show(format!("{}: fsck:{findings}", place()));
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for text in &self.shown {
            writeln!(f, "{text}\n")?;
        }
        writeln!(
            f,
            "{} sequences, {} boundaries, {} states ({} torn), {} not alike, {} of them replayed",
            self.sequences, self.boundaries, self.states, self.torn, self.recovered, self.replayed
        )?;
        writeln!(
            f,
            "{} violations, {} pools that did not come up, {} with faults for fsck",
            self.violations, self.lost_pools, self.faults
        )
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match step {
                Step::Do(operation) => write!(f, "{comma}{operation:?}")?,
                other => write!(f, "{comma}{other:?}")?,
            }
        }
        if self.checkpoint { write!(f, ", checkpoint") } else { Ok(()) }
    }
}

fn progress(boundary: &Boundary) -> String {
    let progress = boundary.progress;
    format!("{} steps begun, {} answered", progress.begun, progress.answered)
}

fn hash_of(sequence: &Sequence) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(sequence.to_string().as_bytes());
    hasher.finish()
}

fn hash_of_blocks(blocks: &Blocks) -> u64 {
    let mut numbers: Vec<&BlockNo> = blocks.keys().collect();
    numbers.sort_unstable();
    let mut hasher = FixedState::default().build_hasher();
    for number in numbers {
        hasher.write_u64(number.0);
        hasher.write(&blocks[number][..]);
    }
    hasher.finish()
}

/// The differences from the expected view.
fn difference(seen: &View, expected: &View) -> String {
    let mut text = String::new();
    let paths = seen.keys().chain(expected.keys().filter(|path| !seen.contains_key(*path)));
    for path in paths {
        let (is, should) = (seen.get(path), expected.get(path));
        if is != should {
            let _ = write!(text, "\n    {path}: {} instead of {}", brief(is), brief(should));
        }
    }
    text.push_str("\n  or");
    text
}

fn brief(seen: Option<&tree::Seen>) -> String {
    let Some(seen) = seen else { return "nothing".into() };
    let (len, sum) = (seen.content.len(), crc32c_of(&seen.content));
    let xattrs = seen.xattrs.len();
    format!(
        "{:?} {:o} {len} bytes ({sum:08x}) {xattrs} xattrs = {}",
        seen.kind, seen.mode, seen.same_as
    )
}

fn crc32c_of(bytes: &[u8]) -> u32 {
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(bytes);
    hasher.finish() as u32
}

/// The base as a pool that was left in order; `None` if its directories are on the wrong cells.
fn make_base(secret: u64) -> Result<Option<Rc<Blocks>>, String> {
    let log_bytes = LOG_MIN + u64::from(CELLS - 1) * (LOG_MIN - 2 * BLOCK_SIZE as u64);
    let disk = Disk::format(SIZE_MIN, SHARDS, log_bytes, secret);
    let mut fleet = Fleet::serve(disk, CELLS, None)?;
    let tree = base();
    for dir in ["A", "B"] {
        fleet.make(("", dir), NewInode::directory(operation::DIR_MODE))?;
    }
    for (dir, cell) in [("A", 0), ("B", 1)] {
        let shard = fleet.resolve(dir)?.shard();
        if fleet.owner(shard) != CellId(cell) {
            return Ok(None);
        }
    }
    fill(&mut fleet, &tree)?;
    let (seen, expected) = (fleet.look()?, tree.view());
    if seen != expected {
        return Err(format!("the base is{}", difference(&seen, &expected)));
    }
    fleet.stop().map(|disk| Some(disk.into_image()))
}

/// Fills the two directories.
fn fill(fleet: &mut Fleet, tree: &tree::Tree) -> Result<(), String> {
    let mut made = std::collections::BTreeMap::new();
    for dir in ["A", "B"] {
        let node = tree.at(dir).expect("a directory of the base");
        for (name, node) in &tree.nodes[&node].entries {
            assert_ne!(*node, ROOT);
            let path = format!("{dir}/{name}");
            if let Some(first) = made.insert(*node, path.clone()) {
                fleet.link(&first, &path)?;
            } else if tree.nodes[node].kind == FileKind::Directory {
                fleet.create(&path, NewInode::directory(operation::DIR_MODE), &[])?;
            } else {
                let content = &tree.nodes[node].content;
                fleet.create(&path, NewInode::regular(operation::FILE_MODE), content)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "ace/tests.rs"]
mod tests;
