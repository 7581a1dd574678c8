//! The supervisor as cells see it: it receives reports, sends orders, and keeps the state that the
//! superblock names.
//!
//! ```text
//! checkpoint   WantCheckpoint -> Drain to all -> all Drained -> Write to all -> all Written
//!              -> flush, superblock -> Switched to all (or Failed)
//! recovery     all LogEnd -> Cut, until no end moves -> Replay -> all Replayed -> Claimed
//! ```
//!
//! The real supervisor, `crates/supervisor`, does the same, and starts and ends processes.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, Epoch, Errno, Lsn, ShardId};
use warren_disk::{BlockPtr, RootSlot};
use warren_proto::control::{Order, Report, ShardRoot, Written};

/// The state that the last checkpoint made durable, from which a fleet starts.
#[derive(Clone)]
pub(crate) struct DurableState {
    pub generation: u64,
    pub roots: BTreeMap<ShardId, RootSlot>,
    pub owned: BTreeMap<ShardId, Vec<u64>>,
    /// From where each cell's log is to be replayed.
    pub log_starts: Vec<Lsn>,
    pub incarnation: u64,
}

impl DurableState {
    pub(crate) fn is_free(&self, chunk: u64) -> bool {
        !self.owned.values().any(|owned| owned.contains(&chunk))
    }

    fn record(&mut self, number: u64, cell: CellId, written: &Written) {
        self.generation = number;
        self.log_starts[usize::from(cell.0)] = written.log_start;
        for ShardRoot { shard, root, height, next_sequence, inodes, blocks } in &written.roots {
            let slot = self.roots.get_mut(shard).expect("every shard has a root");
            slot.root = root.map(|(block, checksum)| BlockPtr { block, checksum });
            (slot.height, slot.next_sequence, slot.generation) = (*height, *next_sequence, number);
            (slot.inodes, slot.used_blocks) = (*inodes, *blocks);
        }
        for shard in &written.given_up {
            self.roots.get_mut(shard).expect("every shard has a root").given_up = true;
        }
        for (chunk, shard) in &written.claimed {
            assert!(self.is_free(*chunk), "chunk {chunk} is claimed twice");
            self.owned.entry(*shard).or_default().push(*chunk);
        }
        for owned in self.owned.values_mut() {
            owned.retain(|chunk| !written.released.contains(chunk));
            owned.sort_unstable();
        }
    }
}

/// Where the checkpoint under way is.
enum Barrier {
    Idle,
    Draining(BTreeSet<CellId>),
    Writing(BTreeMap<CellId, Result<Written, Errno>>),
}

pub(crate) struct Supervisor {
    pub durable: DurableState,
    cells: BTreeSet<CellId>,
    barrier: Barrier,
    number: u64,
    /// Whether a checkpoint begins when a cell wants it, and whether a cell wants it.
    pub grants: bool,
    pub is_wanted: bool,
    /// Where each log ends, as reported, and as of the last cut.
    ends: BTreeMap<CellId, Lsn>,
    agreed: Option<Vec<Lsn>>,
    replayed: BTreeMap<CellId, Vec<u64>>,
    pub ready: BTreeSet<CellId>,
    pub loss_handled: BTreeSet<CellId>,
    /// A cell was lost, and no checkpoint has counted free chunks since.
    is_uncounted: bool,
    /// So many checkpoints cannot count, because messages with chunks are pending.
    pub uncountable: u32,
    /// A flush has failed: no superblock is written any more.
    is_lost: bool,
    /// The chunks that a shard may own.
    chunks: std::ops::Range<u64>,
    /// Reports of broken shards and logs.
    pub broken: Vec<Report>,
}

impl Supervisor {
    pub(crate) fn new(durable: DurableState, cells: u16, chunks: std::ops::Range<u64>) -> Self {
        Self {
            number: durable.generation,
            durable,
            cells: (0..cells).map(CellId).collect(),
            barrier: Barrier::Idle,
            grants: true,
            is_wanted: false,
            ends: BTreeMap::new(),
            agreed: None,
            replayed: BTreeMap::new(),
            ready: BTreeSet::new(),
            loss_handled: BTreeSet::new(),
            is_uncounted: false,
            uncountable: 0,
            is_lost: false,
            chunks,
            broken: Vec::new(),
        }
    }

    fn all(&self, order: &Order) -> Vec<(CellId, Order)> {
        self.cells.iter().map(|cell| (*cell, order.clone())).collect()
    }

    /// Begins a checkpoint if one is wanted and may begin.
    pub(crate) fn advance(&mut self) -> Vec<(CellId, Order)> {
        let may_begin = matches!(self.barrier, Barrier::Idle) && self.ready == self.cells;
        if !(may_begin && self.grants && std::mem::take(&mut self.is_wanted)) {
            return Vec::new();
        }
        self.number += 1;
        self.barrier = Barrier::Draining(self.cells.clone());
        self.all(&Order::Drain { number: self.number })
    }

    /// Answers a report. `flush` makes durable what the cells have written for a checkpoint.
    pub(crate) fn report(
        &mut self,
        from: CellId,
        report: Report,
        flush: impl FnOnce() -> Result<(), Errno>,
    ) -> Vec<(CellId, Order)> {
        match report {
            Report::Ready { .. } => drop(self.ready.insert(from)),
            Report::WantCheckpoint { .. } => self.is_wanted = true,
            Report::Drained { number, .. } if number == self.number => return self.drained(from),
            Report::Written { number, result, .. } if number == self.number => {
                let mut orders = self.written(from, result, flush);
                // A cell may have asked meanwhile.
                orders.extend(self.advance());
                return orders;
            }
            Report::LogEnd { lsn, .. } => return self.log_ends(from, lsn),
            Report::Replayed { chunks, .. } => return self.has_replayed(from, chunks),
            Report::LossHandled { .. } => drop(self.loss_handled.insert(from)),
            Report::Stuck { errno, .. } => return self.all(&Order::ReadOnly { errno }),
            Report::GivenUp { .. }
            | Report::BrokenLog { .. }
            | Report::Unreadable { .. }
            | Report::Discarded { .. }
            | Report::PostFailed { .. } => {
                self.broken.push(report);
            }
            _ => {}
        }
        self.advance()
    }

    fn drained(&mut self, from: CellId) -> Vec<(CellId, Order)> {
        let Barrier::Draining(waiting) = &mut self.barrier else { return Vec::new() };
        waiting.remove(&from);
        if !waiting.is_empty() {
            return Vec::new();
        }
        if self.is_lost {
            self.barrier = Barrier::Idle;
            let (number, errno) = (self.number, Errno::EIO);
            return self.all(&Order::Failed { number, errno, broken: true });
        }
        self.barrier = Barrier::Writing(BTreeMap::new());
        self.all(&Order::Write { number: self.number, count: self.is_uncounted })
    }

    fn written(
        &mut self,
        from: CellId,
        result: Result<Written, Errno>,
        flush: impl FnOnce() -> Result<(), Errno>,
    ) -> Vec<(CellId, Order)> {
        let Barrier::Writing(parts) = &mut self.barrier else { return Vec::new() };
        parts.insert(from, result);
        if parts.len() < self.cells.len() {
            return Vec::new();
        }
        let (parts, number) = (std::mem::take(parts), self.number);
        self.barrier = Barrier::Idle;
        let is_written =
            parts.values().try_for_each(|part| part.as_ref().map(drop).map_err(|e| *e));
        if let Err(errno) = is_written {
            return self.all(&Order::Failed { number, errno, broken: false });
        }
        if let Err(errno) = flush() {
            self.is_lost = true;
            return self.all(&Order::Failed { number, errno, broken: true });
        }
        let written = parts.iter().filter_map(|(cell, part)| Some((cell, part.as_ref().ok()?)));
        written.clone().for_each(|(cell, written)| self.durable.record(number, *cell, written));
        let mut orders = self.all(&Order::Switched { number, is_whole: true });
        if self.is_uncounted && self.uncountable > 0 {
            self.uncountable -= 1;
        } else if std::mem::take(&mut self.is_uncounted) {
            let runs = self.missing(written.map(|(_, written)| written));
            orders.push((CellId(0), Order::Found { runs }));
        }
        orders
    }

    /// The free chunks that no cell has: they were lost with a cell. No message with chunks is
    /// pending.
    fn missing<'a>(&self, written: impl Iterator<Item = &'a Written>) -> Vec<(u64, u64)> {
        let free = written.filter_map(|written| written.free.as_ref());
        let runs = free.filter_map(|free| free.runs.as_ref()).flatten();
        let known: BTreeSet<u64> = runs.flat_map(|(first, len)| *first..first + len).collect();
        let is_missing = |chunk: &u64| self.durable.is_free(*chunk) && !known.contains(chunk);
        self.chunks.clone().filter(is_missing).map(|chunk| (chunk, 1)).collect()
    }

    fn log_ends(&mut self, from: CellId, lsn: Lsn) -> Vec<(CellId, Order)> {
        self.ends.insert(from, lsn);
        if self.ends.len() < self.cells.len() {
            return Vec::new();
        }
        let ends: Vec<Lsn> = std::mem::take(&mut self.ends).into_values().collect();
        if self.agreed.as_ref() == Some(&ends) {
            return self.all(&Order::Replay);
        }
        self.agreed = Some(ends.clone());
        self.all(&Order::Cut { ends })
    }

    fn has_replayed(&mut self, from: CellId, chunks: Vec<u64>) -> Vec<(CellId, Order)> {
        self.replayed.insert(from, chunks);
        if self.replayed.len() < self.cells.len() {
            return Vec::new();
        }
        let chunks = std::mem::take(&mut self.replayed).into_values().flatten().collect();
        self.all(&Order::Claimed { chunks })
    }

    /// The process of the cell is dead. A checkpoint that waits for the cell is abandoned.
    pub(crate) fn lost(&mut self, cell: CellId, epoch: Epoch) -> Vec<(CellId, Order)> {
        self.ready.remove(&cell);
        self.loss_handled.clear();
        self.is_uncounted = true;
        let living = || self.cells.iter().copied().filter(|other| *other != cell);
        let mut orders: Vec<_> = living().map(|to| (to, Order::Lost { cell, epoch })).collect();
        if !matches!(std::mem::replace(&mut self.barrier, Barrier::Idle), Barrier::Idle) {
            orders.extend(living().map(|to| (to, Order::Abandoned { number: self.number })));
            self.is_wanted = true;
        }
        orders
    }
}
