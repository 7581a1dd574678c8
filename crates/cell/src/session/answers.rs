//! Answers of requests that a predecessor has executed: each request is executed only once.
//!
//! The log has the answer of each request that changed something. A client whose request was
//! executed and whose answer was lost with the process sends the request again, and receives the
//! answer from here.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use warren_base::Lsn;
use warren_proto::{Answer, Executed, Wire};

use crate::budget::ANSWER_OVERHEAD;
use crate::event::SlotRef;
use crate::session::clients::Clients;

/// The last executed request of a slot, according to the log.
#[derive(Debug)]
struct Known {
    seq: u32,
    answer: Answer,
    /// Up to where in the log the client may have waited for the answer.
    at: Lsn,
}

#[derive(Debug, Default)]
pub(crate) struct Answers {
    by_slot: BTreeMap<SlotRef, Known>,
}

impl Answers {
    /// The log names the request as executed, at `at`.
    pub(crate) fn insert(&mut self, executed: Executed, at: Lsn) -> SlotRef {
        let from = SlotRef { client: executed.client, slot: executed.slot };
        self.by_slot.insert(from, Known { seq: executed.seq, answer: executed.answer, at });
        from
    }

    /// The last executed request of the slot may not have been answered before `at`.
    pub(crate) fn note_wait(&mut self, from: SlotRef, at: Lsn) {
        if let Some(known) = self.by_slot.get_mut(&from) {
            known.at = at;
        }
    }

    /// The answer of a request that a predecessor has executed. A newer request of the slot shows
    /// that its client has the answer.
    #[inline]
    pub(crate) fn take(&mut self, from: SlotRef, seq: u32) -> Option<Answer> {
        if self.by_slot.is_empty() { None } else { self.take_known(from, seq) }
    }

    #[cold]
    fn take_known(&mut self, from: SlotRef, seq: u32) -> Option<Answer> {
        self.by_slot.remove(&from).filter(|known| known.seq == seq).map(|known| known.answer)
    }

    /// The last request of the slot that a predecessor has executed, with its answer.
    pub(crate) fn take_last(&mut self, from: SlotRef) -> Option<(u32, Answer)> {
        self.by_slot.remove(&from).map(|known| (known.seq, known.answer))
    }

    /// Drops the answers of clients that are gone.
    pub(crate) fn forget_gone(&mut self, clients: &Clients) {
        self.by_slot.retain(|from, _| clients.is_known(from.client));
    }

    /// Answers that no client has requested again, in the order in which they were logged.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        let mut known: Vec<_> = self.by_slot.iter().collect();
        known.sort_unstable_by_key(|(_, known)| known.at);
        known.into_iter().map(|(slot, known)| (*slot, known.seq, &known.answer))
    }

    /// The same, to be logged again in so many bytes, including the overhead of each record. An
    /// answer that was not sent is of the last turn of the dead process. If there is no room for
    /// all answers, the latest are kept, in order.
    pub(crate) fn latest_within(&self, bytes: u64) -> Vec<Executed> {
        let mut left = bytes;
        let mut latest: Vec<_> = self.by_slot.iter().collect();
        latest.sort_unstable_by_key(|(_, known)| Reverse(known.at));
        let executed = latest.into_iter().map(|(from, known)| Executed {
            client: from.client,
            slot: from.slot,
            seq: known.seq,
            answer: known.answer.clone(),
        });
        let fits = |request: &Executed| {
            let size = request.to_bytes().len() as u64 + ANSWER_OVERHEAD;
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        };
        let mut kept: Vec<Executed> = executed.take_while(fits).collect();
        kept.reverse();
        kept
    }
}
