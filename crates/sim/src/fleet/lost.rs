//! Cells lose messages to each other and wake-ups of their tasks, and accuse others at random
//! (decision 83). From then on all cells review what waits, as drivers make them do about once a
//! second.

use std::collections::BTreeSet;

use warren_base::{CellId, Epoch, Rng};
use warren_cell::{PeerBody, PeerMessage};
use warren_proto::{PeerReply, PeerRequest};

/// The most of each kind in a run, each of which takes seconds of virtual time.
const LOST_MAX: u64 = 3;

/// A run may lose these.
#[derive(Debug)]
pub(crate) struct Lost {
    /// Separate from the other generators, so that the mixes of the seeds stay what they are.
    pub(super) rng: Rng,
    /// In 10,000: a message between cells is lost; a cell loses a wake-up with an event, or begins
    /// to lie.
    pub(super) messages: u64,
    pub(super) wakeups: u64,
    pub(super) lies: u64,
    pub(super) left: u64,
    /// The processes that have lost a wake-up. One that dies before its review may have executed
    /// the request, and lost the record of that with a checkpoint.
    pub(super) wakeups_of: BTreeSet<(CellId, Epoch)>,
    /// In 10,000: a message of a recovery is lost. These are few, so each counts for itself.
    recovery: u64,
    recovery_left: u64,
    /// The same for messages about free chunks.
    chunks: u64,
    chunks_left: u64,
    /// Looks at the turns of the processes on trial are planned.
    pub(super) looks: bool,
    /// A review of each cell is planned, always.
    pub(super) reviews: bool,
}

impl Lost {
    pub(crate) fn none() -> Self {
        Self {
            rng: Rng::new(0),
            messages: 0,
            wakeups: 0,
            lies: 0,
            left: 0,
            wakeups_of: BTreeSet::new(),
            recovery: 0,
            recovery_left: 0,
            chunks: 0,
            chunks_left: 0,
            looks: false,
            reviews: false,
        }
    }

    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1057);
        let messages = *rng.pick(&[0, 0, 5, 50]);
        let wakeups = *rng.pick(&[0, 0, 20, 200]);
        let lies = *rng.pick(&[0, 0, 0, 2]);
        let left = 1 + rng.below(LOST_MAX);
        let recovery = *rng.pick(&[0, 0, 500, 5000]);
        let recovery_left = 1 + rng.below(LOST_MAX);
        let chunks = *rng.pick(&[0, 0, 100, 1000]);
        let chunks_left = 1 + rng.below(LOST_MAX);
        Self {
            rng,
            messages,
            wakeups,
            lies,
            left,
            wakeups_of: BTreeSet::new(),
            recovery,
            recovery_left,
            chunks,
            chunks_left,
            looks: false,
            reviews: false,
        }
    }

    /// Nothing more is lost.
    pub(crate) const fn heal(&mut self) {
        (self.left, self.recovery_left, self.chunks_left) = (0, 0, 0);
    }

    /// Whether the process may end now, by another fault.
    pub(crate) fn lets_die(&self, process: (CellId, Epoch)) -> bool {
        !self.wakeups_of.contains(&process)
    }

    /// All that was planned is gone.
    pub(super) const fn vanish(&mut self) {
        (self.looks, self.reviews) = (false, false);
    }

    /// Whether something is lost now, of which this is the chance in 10,000.
    pub(super) fn is_drawn(&mut self, chance: u64) -> bool {
        let is_drawn = self.left > 0 && chance > 0 && self.rng.chance(chance, 10_000);
        self.left -= u64::from(is_drawn);
        is_drawn
    }

    /// Whether this message about free chunks is lost now.
    pub(super) fn is_chunk_drawn(&mut self) -> bool {
        let is_drawn =
            self.chunks_left > 0 && self.chunks > 0 && self.rng.chance(self.chunks, 10_000);
        self.chunks_left -= u64::from(is_drawn);
        is_drawn
    }

    /// Whether this message of a recovery is lost now. Decisions are rare, and half of them are.
    pub(super) fn is_recovery_drawn(&mut self, message: &PeerMessage) -> bool {
        let is_decision = matches!(message.body, PeerBody::Request(PeerRequest::Again { .. }));
        let chance = if is_decision { 5000 } else { self.recovery };
        let is_drawn =
            self.recovery_left > 0 && self.recovery > 0 && self.rng.chance(chance, 10_000);
        self.recovery_left -= u64::from(is_drawn);
        is_drawn
    }
}

/// Whether the message is sent in a recovery, by the cell that recovers or to it.
pub(super) const fn is_of_recovery(message: &PeerMessage) -> bool {
    matches!(
        &message.body,
        PeerBody::Request(
            PeerRequest::Again { .. } | PeerRequest::AllSaid { .. } | PeerRequest::Inquire { .. }
        ) | PeerBody::Reply(PeerReply::Committed { .. } | PeerReply::Unknown { .. })
    )
}

/// Whether the loss of the message is found: not of a trial, which has its own rule.
pub(super) const fn may_be_missed(message: &PeerMessage) -> bool {
    match &message.body {
        PeerBody::Request(request) => matches!(
            request,
            PeerRequest::Prepare { .. }
                | PeerRequest::Peek { .. }
                | PeerRequest::Commit { .. }
                | PeerRequest::Abort { .. }
                | PeerRequest::Count { .. }
                | PeerRequest::Clean { .. }
                | PeerRequest::Harden { .. }
                | PeerRequest::Again { .. }
                | PeerRequest::AllSaid { .. }
                | PeerRequest::Inquire { .. }
        ),
        PeerBody::Reply(reply) => !matches!(reply, PeerReply::Probed { .. }),
        PeerBody::Pool(_) => true,
    }
}
