//! The state of a search, and questions that wait for their reply.

use std::collections::BTreeMap;

use warren_base::CellId;

use crate::{SearchNo, Ticket};

#[derive(Clone, Debug)]
pub(crate) struct Search {
    pub number: SearchNo,
    /// The peers, in the order of asking.
    pub order: Vec<CellId>,
    /// The arrivals that each peer reported in the first round.
    pub arrivals: BTreeMap<CellId, u64>,
    pub round: Round,
}

impl Search {
    pub(crate) fn has_asked_all(&self) -> bool {
        matches!(self.round, Round::Pull { at } if at == self.order.len())
    }
}

/// A question of a peer that came while elements from here were on the way.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub from: CellId,
    pub search: SearchNo,
    /// The number of elements that it pulls; `None` if it checks.
    pub want: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Round {
    /// The peer at this place of the order was asked; at the end, all were.
    Pull { at: usize },
    /// So many replies are missing. Gets up to this ticket waited when the round began.
    Check { missing: usize, up_to: Ticket },
}
