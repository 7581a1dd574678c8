//! The phase of the cell in a checkpoint of the fleet, as other machines need to know it.

use std::collections::BTreeSet;

use warren_base::TxnId;

/// ```text
/// idle ──Drain──▶ draining ──Write──▶ fixing ──▶ writing ──all is written──▶ reported ──┐
///  ▲                                    └──it cannot be fixed──▶ reported                │
///  └──────────────── Switched, Failed or Abandoned ─────────────────────────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Phase {
    #[default]
    Idle,
    /// No transaction starts. `reported`: none is left.
    Draining {
        reported: bool,
    },
    /// The state is being fixed (this may wait for nodes to be read).
    Fixing,
    Writing,
    Reported,
}

#[derive(Debug)]
pub(crate) struct Checkpoints {
    phase: Phase,
    /// The number of the last checkpoint that was begun, or that the superblock names.
    number: u64,
    /// The last one that is done has the state of all cells.
    pub(crate) is_whole: bool,
    /// A checkpoint was requested that has not begun.
    is_asked: bool,
    /// This cell's transactions that have taken locks and are not finished. A checkpoint begins
    /// only when none is left.
    live: BTreeSet<TxnId>,
}

impl Checkpoints {
    pub(crate) fn new(generation: u64) -> Self {
        let (phase, live) = (Phase::Idle, BTreeSet::new());
        Self { phase, number: generation, is_whole: true, is_asked: false, live }
    }

    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Whether transactions must wait.
    pub(crate) fn is_drained(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Whether a checkpoint has begun that will write, or fail to write, everything that is dirty
    /// now.
    pub(crate) const fn will_write(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. } | Phase::Fixing | Phase::Writing)
    }

    /// Requests a checkpoint. Returns whether the caller reports the request.
    pub(crate) const fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asked, true)
    }

    pub(crate) const fn begin(&mut self, number: u64) {
        (self.phase, self.number) = (Phase::Draining { reported: false }, number);
        self.is_asked = false;
    }

    pub(crate) const fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Whether transactions have just become drained, which the caller reports.
    pub(crate) fn drained(&mut self) -> bool {
        let is_drained =
            self.phase == (Phase::Draining { reported: false }) && self.live.is_empty();
        if is_drained {
            self.phase = Phase::Draining { reported: true };
        }
        is_drained
    }

    /// Whether the transaction is new.
    pub(crate) fn begin_txn(&mut self, txn: TxnId) -> bool {
        self.live.insert(txn)
    }

    /// Whether the transaction was under way.
    pub(crate) fn end_txn(&mut self, txn: TxnId) -> bool {
        self.live.remove(&txn)
    }
}
