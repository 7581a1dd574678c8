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
    /// Messages of a recovery, and messages about free chunks, count for themselves: they are few.
    recovery: Chance,
    chunks: Chance,
    /// Looks at the turns of the processes on trial are planned.
    pub(super) looks: bool,
    /// A review of each cell is planned, always.
    pub(super) reviews: bool,
}

/// The chance that one of some messages is lost, and how many more may be.
#[derive(Default, Debug)]
struct Chance {
    of_10000: u64,
    left: u64,
}

impl Chance {
    fn draw(rng: &mut Rng, chances: [u64; 4]) -> Self {
        Self { of_10000: *rng.pick(&chances), left: 1 + rng.below(LOST_MAX) }
    }

    fn is_drawn(&mut self, rng: &mut Rng, chance: u64) -> bool {
        let is_drawn = self.left > 0 && self.of_10000 > 0 && rng.chance(chance, 10_000);
        self.left -= u64::from(is_drawn);
        is_drawn
    }
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
            recovery: Chance::default(),
            chunks: Chance::default(),
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
        let recovery = Chance::draw(&mut rng, [0, 0, 500, 5000]);
        let chunks = Chance::draw(&mut rng, [0, 0, 100, 1000]);
        Self { rng, messages, wakeups, lies, left, recovery, chunks, ..Self::none() }
    }

    /// Nothing more is lost.
    pub(crate) const fn heal(&mut self) {
        (self.left, self.recovery.left, self.chunks.left) = (0, 0, 0);
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

    /// Draws whether this message about free chunks is lost.
    pub(super) fn is_chunk_drawn(&mut self) -> bool {
        self.chunks.is_drawn(&mut self.rng, self.chunks.of_10000)
    }

    /// Draws whether this message of a recovery is lost. Decisions are rare, and half of them are.
    pub(super) fn is_recovery_drawn(&mut self, message: &PeerMessage) -> bool {
        let is_decision = matches!(message.body, PeerBody::Request(PeerRequest::Again { .. }));
        let chance = if is_decision { 5000 } else { self.recovery.of_10000 };
        self.recovery.is_drawn(&mut self.rng, chance)
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
