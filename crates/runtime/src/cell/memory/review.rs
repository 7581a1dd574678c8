//! The review of clients' requests: it finds requests whose rings were lost, and counts answers
//! that clients found without a wake-up.
//!
//! ```text
//! slot with a request, not rung ──review──▶ unrung ──review──▶ rung: its ring was lost
//! ```
//!
//! A client writes its request before it rings, so that one review may see a request whose ring is
//! still to come. If it comes after the second review, no harm is done: the slot has then rung once
//! more, for no request.

use warren_base::{CellId, ClientId, Instant, SlotNo};

use super::{ClientMemory, SharedMemory};
use crate::bell::Rings;

/// A review has found these losses, of the clients that it looked at.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::cell) struct Losses {
    /// Requests whose rings were lost.
    pub rings: u32,
    /// Answers that a client found without a wake-up. The client counts them, and may lie.
    pub wakeups: u64,
    /// The clients whose losses are to be logged.
    pub logged: Vec<LoggedLosses>,
}

/// The losses of a client since the last that were logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cell) struct LoggedLosses {
    pub client: ClientId,
    pub rings: u64,
    pub wakeups: u64,
}

impl ClientMemory {
    /// Looks at the doorbell and at the slots. Those with a request that has not rung at two
    /// reviews in a row count as rung. Returns how many there are.
    fn review(&mut self, cell: CellId) -> u32 {
        self.look(cell);
        let known = self.rung | self.queued | self.in_progress;
        let waits = |slot: usize| self.requests.waits(cell, SlotNo(slot as u16), self.taken[slot]);
        let slots = (0..self.taken.len()).filter(|&slot| known >> slot & 1 == 0 && waits(slot));
        let unrung = slots.fold(0, |bits, slot| bits | 1 << slot);
        let lost = unrung & std::mem::replace(&mut self.unrung, unrung);
        self.rung |= lost;
        lost.count_ones()
    }
}

impl SharedMemory {
    /// Looks at some clients, in turn, and has the next looks around examine all doorbells.
    pub(in crate::cell) fn review(&mut self, now: Instant) -> Losses {
        let cell = self.cell;
        let mut losses = Losses::default();
        for place in self.activity.review() {
            let memory = self.at_mut(place);
            if memory.silent {
                continue;
            }
            let rings = memory.review(cell);
            let late = memory.requests.late(cell);
            let wakeups = late.saturating_sub(std::mem::replace(&mut memory.late, late));
            if rings != 0 || wakeups != 0 {
                let client = memory.client;
                let due = memory.losses.add(rings, wakeups, now);
                let due = due.map(|(rings, wakeups)| LoggedLosses { client, rings, wakeups });
                losses.logged.extend(due);
                losses.rings += rings;
                losses.wakeups = losses.wakeups.saturating_add(wakeups);
            }
            if memory.slots_to_offer() != 0 {
                self.activate(place, now);
            }
        }
        self.activity.call(Rings::ALL);
        losses
    }
}
