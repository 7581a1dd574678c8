//! The state that a dead predecessor left: kernel requests without a reply, and calls in flight.
//!
//! Each slot that the predecessor used gets a thread of its own at once. The thread waits for the
//! answer that is in flight, completes the slot's record, and serves the kernel request of the
//! record, if that has no reply yet. Then it works as any other worker. None of this delays recalls
//! or other requests, on which the answer may depend.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::SlotNo;

use crate::abi::UNIQUE_RESEND;
use crate::channel::Channel;
use crate::connection::FleetConnection;
use crate::front_state::FrontState;
use crate::resend::{BufferedMessage, read_resent};

#[derive(Default)]
pub(super) struct Inherited {
    /// Kernel requests, by the slot on which they have taken or begun a step.
    requests: BTreeMap<SlotNo, BufferedMessage>,
    /// Slots whose last call may be unanswered, and its sequence number.
    in_flight: BTreeMap<SlotNo, u32>,
}

/// The state of one slot.
pub(super) struct InheritedSlot {
    pub number: SlotNo,
    pub request: Option<BufferedMessage>,
    /// The sequence number of the call that may be in flight.
    pub in_flight: Option<u32>,
}

impl Inherited {
    /// Also returns the messages that were read and have changed nothing yet.
    pub(super) fn collect(
        fleet: &dyn FleetConnection,
        channel: &dyn Channel,
        state: &FrontState,
    ) -> (Self, Vec<BufferedMessage>) {
        let mut inherited = Self::default();
        let mut unchanged = Vec::new();
        for message in read_resent(channel) {
            let unique = message.header().map_or(0, |header| header.unique);
            let slot = if unique & UNIQUE_RESEND == 0 { None } else { state.slot_of(unique) };
            match slot {
                Some(slot) => drop(inherited.requests.insert(slot, message)),
                None => unchanged.push(message),
            }
        }
        let slots = (0..fleet.slots() as u16).map(SlotNo);
        inherited.in_flight =
            slots.filter_map(|slot| fleet.in_flight(slot).map(|seq| (slot, seq))).collect();
        (inherited, unchanged)
    }

    /// Takes the kernel request of a slot.
    pub(super) fn take_request(&mut self, slot: SlotNo) -> Option<BufferedMessage> {
        self.requests.remove(&slot)
    }

    /// The state of the slots from `first` on. Threads with fixed slots below handle theirs.
    pub(super) fn into_slots(self, first: usize) -> impl Iterator<Item = InheritedSlot> {
        let Self { mut requests, mut in_flight } = self;
        in_flight.retain(|slot, _| usize::from(slot.0) >= first);
        let slots: BTreeSet<SlotNo> = requests.keys().chain(in_flight.keys()).copied().collect();
        slots.into_iter().map(move |number| InheritedSlot {
            number,
            request: requests.remove(&number),
            in_flight: in_flight.get(&number).copied(),
        })
    }
}
