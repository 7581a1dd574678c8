//! A cell's process in a world that kills it: when it dies, and its knowledge of clients' slots.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{ClientId, Rng};
use warren_cell::SlotRef;
use warren_proto::{Answer, Request, RequestHeader};

/// Stores of one event up to which a cell is killed at one: most events have fewer.
const STORES_MAX: u64 = 12;

/// The moment at which a process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Death {
    Before,
    /// After so many stores.
    AtStore(u64),
    /// After it has carried out some of the effects.
    After,
}

impl Death {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        match rng.below(3) {
            0 => Self::Before,
            1 => {
                let most = *rng.pick(&[2, 6, STORES_MAX]);
                Self::AtStore(rng.below(most))
            }
            _ => Self::After,
        }
    }
}

/// The payload of the panic that unwinds a killed cell.
pub(super) struct Killed;

/// The slots that a cell's process reads, and its knowledge of them.
#[derive(Default)]
pub(crate) struct Slots {
    /// The process reads them.
    pub is_ready: bool,
    /// The last request of each.
    pub posted: BTreeMap<SlotRef, (RequestHeader, Request)>,
    /// The number of the last reply in each.
    pub answered: BTreeMap<SlotRef, u32>,
    /// Requests that are executed and not answered, because they wait for other cells or a lost
    /// process had executed them: the place in the order of events where they took effect, and the
    /// answer.
    pub executed: BTreeMap<(SlotRef, u32), (u64, Answer)>,
    /// When the last process was lost. The places after it are for what it had executed and not
    /// answered.
    pub lost_at: u64,
    /// The clients whose slots this process knows.
    pub admitted: BTreeSet<ClientId>,
    /// The last request of each that this process has taken.
    pub taken: BTreeMap<SlotRef, u32>,
}

impl Slots {
    /// Whether the request is not answered, and this process has not taken it but could.
    pub(crate) fn may_take(&self, from: SlotRef, seq: u32) -> bool {
        let before = |numbers: &BTreeMap<SlotRef, u32>| numbers.get(&from).is_none_or(|n| *n < seq);
        self.admitted.contains(&from.client) && before(&self.answered) && before(&self.taken)
    }

    /// Whether the slot has an answer to this or a later request.
    pub(crate) fn is_answered(&self, slot: SlotRef, seq: u32) -> bool {
        self.answered.get(&slot).is_some_and(|answered| *answered >= seq)
    }

    /// A request is in its slot. Returns whether the process takes it now.
    pub(crate) fn submit(
        &mut self,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
    ) -> bool {
        // A request that was offered twice may arrive after a newer one.
        let newest = self.posted.get(&from).map_or(0, |(newest, _)| newest.seq);
        if header.seq >= newest {
            self.posted.insert(from, (header, request));
        }
        let takes = self.is_ready && self.may_take(from, header.seq);
        if takes {
            self.taken.insert(from, header.seq);
        }
        takes
    }

    /// The requests that wait in the slots, for a process that begins to look.
    pub(crate) fn waiting(&self) -> Vec<(SlotRef, RequestHeader, Request)> {
        let waiting = self.posted.iter();
        let waiting = waiting.filter(|(from, (header, _))| self.may_take(**from, header.seq));
        waiting.map(|(from, (header, request))| (*from, *header, request.clone())).collect()
    }

    /// The process is gone, with its knowledge.
    pub(crate) fn forget(&mut self) {
        (self.taken, self.admitted, self.is_ready) = Default::default();
    }
}
