//! A pool that grows while its fleet serves.
//!
//! ```text
//! none -> wanted -> announced, with a checkpoint -> sharing -> none
//!           ^           |    |
//!           +-----------+    +-> none: the checkpoint has failed
//!          a cell was lost
//! ```
//!
//! The driver has made the file long enough before. All cells are informed of the new size before a
//! checkpoint drains them, so none takes a peer's chunk from beyond the old end for damage. The
//! checkpoint commits the new size. Then every cell gets its part of the new chunks and of what
//! root keeps. The growth is over when all of them have acknowledged that.
//!
//! A cell that is lost meanwhile takes its part along. A later count finds these chunks (`count`).

use warren_base::{CellId, Errno};
use warren_disk::{Layout, Owner};
use warren_proto::Wire;
use warren_proto::control::Order;

use crate::event::Effect;
use crate::ledger::Ledger;
use crate::set::CellSet;

/// Runs of chunks in one order.
const RUNS_MAX: usize = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
enum Phase {
    #[default]
    None,
    /// The pool is to have so many blocks. `number`: the checkpoint before which all cells were
    /// informed.
    Wanted { blocks: u64, chunks_before: u64, number: Option<u64> },
    /// These cells have not acknowledged their new chunks.
    Sharing { waiting: CellSet },
}

#[derive(Default, Wire)]
pub(crate) struct Growth {
    phase: Phase,
}

impl Growth {
    /// Whether the pool may grow to so many blocks, or does. A pool that has this size already has
    /// grown to it: a client whose supervisor has died asks again. EBUSY: it grows to another size.
    pub(crate) fn admits(&self, blocks: u64, layout: &Layout) -> Result<(), Errno> {
        let has_size = blocks == layout.total_blocks();
        match self.phase {
            Phase::Wanted { blocks: wanted, .. } if wanted == blocks => Ok(()),
            Phase::Sharing { .. } if has_size => Ok(()),
            Phase::Wanted { .. } | Phase::Sharing { .. } => Err(Errno::EBUSY),
            Phase::None if has_size => Ok(()),
            Phase::None => layout.grown(blocks).map(drop).ok_or(Errno::EINVAL),
        }
    }

    /// The driver gets [`Effect::Grown`] when the pool has this size, which may be at once.
    pub(crate) fn request(&mut self, blocks: u64, layout: &Layout, effects: &mut Vec<Effect>) {
        if self.phase != Phase::None {
            return;
        }
        if blocks == layout.total_blocks() {
            return effects.push(Effect::Grown { result: Ok(()) });
        }
        let chunks_before = layout.chunks();
        self.phase = Phase::Wanted { blocks, chunks_before, number: None };
    }

    /// Whether a checkpoint must start for it.
    pub(crate) const fn wants_checkpoint(&self) -> bool {
        matches!(self.phase, Phase::Wanted { number: None, .. })
    }

    /// This checkpoint begins with these cells.
    pub(crate) fn announce(&mut self, checkpoint: u64, cells: CellSet, effects: &mut Vec<Effect>) {
        if let Phase::Wanted { blocks, number, .. } = &mut self.phase {
            *number = Some(checkpoint);
            let order = Order::Grow { blocks: *blocks };
            crate::event::send(cells, &order, effects);
        }
    }

    /// The size that this checkpoint commits.
    pub(crate) fn committed_by(&self, checkpoint: u64, before: &Layout) -> Option<Layout> {
        match self.phase {
            Phase::Wanted { blocks, number, .. } if number == Some(checkpoint) => {
                before.grown(blocks)
            }
            _ => None,
        }
    }

    /// The checkpoint was abandoned, because a cell is lost.
    pub(crate) const fn abandoned(&mut self) {
        if let Phase::Wanted { number, .. } = &mut self.phase {
            *number = None;
        }
    }

    /// This checkpoint is over. If it has committed the new size, the new chunks are handed out to
    /// these cells, of `all` of the fleet.
    pub(crate) fn checkpoint_ended(
        &mut self,
        checkpoint: u64,
        result: Result<(), Errno>,
        (cells, all): (CellSet, usize),
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        let Phase::Wanted { chunks_before, number, .. } = self.phase else { return };
        if number != Some(checkpoint) {
            return;
        }
        if result.is_err() || cells.is_empty() {
            return self.end(result, effects);
        }
        hand_out(chunks_before, (cells, all), ledger, effects);
        self.phase = Phase::Sharing { waiting: cells };
    }

    /// The cell has taken in its part of the new chunks, or is lost.
    pub(crate) fn shared(&mut self, cell: CellId, effects: &mut Vec<Effect>) {
        if let Phase::Sharing { waiting } = &mut self.phase
            && waiting.remove(cell)
            && waiting.is_empty()
        {
            self.end(Ok(()), effects);
        }
    }

    fn end(&mut self, result: Result<(), Errno>, effects: &mut Vec<Effect>) {
        self.phase = Phase::None;
        effects.push(Effect::Grown { result });
    }
}

/// Each of the cells gets a contiguous part of the chunks from `first` on, and its part of what is
/// kept for root.
fn hand_out(
    first: u64,
    (cells, all): (CellSet, usize),
    ledger: &Ledger,
    effects: &mut Vec<Effect>,
) {
    let superblock = ledger.superblock();
    let reserve = superblock.kept_chunks() / all as u64;
    let regions = ledger.regions();
    let is_free = |chunk: &u64| regions.owner(*chunk) == Some(Owner::Free);
    let chunks: Vec<u64> = (first..superblock.layout.chunks()).filter(is_free).collect();
    let count = cells.iter().count();
    let mut rest = chunks.as_slice();
    for (at, to) in cells.iter().enumerate() {
        let (own, others) = rest.split_at(rest.len() / (count - at));
        rest = others;
        let runs: Vec<(u64, u64)> =
            own.chunk_by(|a, b| a + 1 == *b).map(|run| (run[0], run.len() as u64)).collect();
        let mut parts = runs.chunks(RUNS_MAX).map(<[_]>::to_vec).peekable();
        if parts.peek().is_none() {
            let order = Order::Grown { reserve, runs: Vec::new(), last: true };
            effects.push(Effect::Send { to, order });
        }
        while let Some(runs) = parts.next() {
            let order = Order::Grown { reserve, runs, last: parts.peek().is_none() };
            effects.push(Effect::Send { to, order });
        }
    }
}
