//! Requests that were looked at and left in their slots: a queue for each client, so that finding
//! one that may go on costs a look at each client, however many slots it has.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use warren_base::{ClientId, SlotNo};
use warren_cell::SlotRef;

/// Invariant: no queue is empty.
pub struct Held {
    queues: BTreeMap<ClientId, VecDeque<SlotNo>>,
    len: usize,
    /// Whose turn was last.
    last: ClientId,
}

impl Held {
    pub fn new() -> Self {
        Self { queues: BTreeMap::new(), len: 0, last: ClientId(0) }
    }

    pub fn push(&mut self, SlotRef { client, slot }: SlotRef) {
        self.queues.entry(client).or_default().push_back(slot);
        self.len += 1;
    }

    /// The oldest request of the next client that may pass; clients take turns.
    pub fn pop(&mut self, may_pass: impl Fn(ClientId) -> bool) -> Option<SlotRef> {
        let behind = self.queues.range((Excluded(self.last), Unbounded));
        let mut in_turn = behind.chain(self.queues.range(..=self.last)).map(|(&client, _)| client);
        let client = in_turn.find(|&client| may_pass(client))?;
        let queue = self.queues.get_mut(&client)?;
        let slot = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&client);
        }
        self.len -= 1;
        self.last = client;
        Some(SlotRef { client, slot })
    }

    pub fn len(&self) -> usize {
        self.len
    }
}
