//! Messages between shards, and the effects that a shard's driver carries out.

use warren_base::CellId;
use warren_proto::Wire;

/// A `get` that waits for its result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// The search that a question belongs to, so that its shard recognises late replies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct SearchNo(pub u64);

impl SearchNo {
    /// The search of a transfer that no shard has requested.
    pub const NONE: Self = Self(0);
    /// The search of a background pull, which no `get` waits for.
    pub const BACKGROUND: Self = Self(1);
    /// Searches are numbered from the next one on.
    pub(crate) const LAST_RESERVED: Self = Self(1);
}

/// A shard waits for this at another one. The driver sends it behind all earlier messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct Inquiry {
    /// The oldest transfer that is not acknowledged, or 0.
    pub oldest: u64,
    /// The search whose question is not answered, or `NONE`.
    pub search: SearchNo,
}

/// From shard to shard.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum PoolMessage<T> {
    /// The sender joins, and knows the receiver as a member.
    Hello,
    /// The sender knows the receiver now, and these other members.
    Welcome { members: Vec<CellId>, center: CellId, ready: bool },
    /// All members that the sender knows, know it: elements may be sent to it. A newcomer that it
    /// welcomed before it was ready receives all other members here.
    Ready { members: Vec<CellId> },
    /// The sender leaves: send it no more elements.
    Leaving,
    /// Acknowledges `Leaving`: the sender sends no more elements.
    Noted,
    /// The sender has no elements and receives none: remove it from the members.
    Goodbye,
    /// Acknowledges `Goodbye`.
    Farewell,
    /// Send up to `want` elements. The reply is `Transfer` or `Empty`.
    Pull { search: SearchNo, want: u32 },
    /// Report whether there are elements. The reply is `Empty` or `NotEmpty`.
    Check { search: SearchNo },
    /// The sender has no elements, and all elements that it sent have arrived. It has received
    /// `arrivals` so far.
    Empty { search: SearchNo, arrivals: u64 },
    /// The sender has elements.
    NotEmpty { search: SearchNo },
    /// The elements belong to the receiver now. This is the transfer with this number of the sender
    /// to the receiver, from 1. The sender has `left` more. The reply is `Taken`.
    Transfer { search: SearchNo, number: u64, elements: Vec<T>, left: u64 },
    /// All transfers up to this number have arrived; the sender has `size` elements now.
    Taken { number: u64, size: u64 },
    /// The sender has `size` elements now.
    Estimate { size: u64 },
    /// The reply to [`inquired`](crate::inquired): all transfers up to `taken` have
    /// arrived, and the sender knows nothing of the search `missing`, unless that is `NONE`.
    Known { inquiry: Inquiry, taken: u64, missing: SearchNo },
}

/// An action of the driver. Actions are taken in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect<T> {
    Send {
        to: CellId,
        message: PoolMessage<T>,
    },
    /// The result of a `get` that was pending; `None` if the pool was empty.
    Resolved {
        ticket: Ticket,
        element: Option<T>,
    },
    /// The join has succeeded: elements can be added.
    Ready,
    /// No member has answered the join, and none will. This shard can no longer be used, and these
    /// gets have no result.
    JoinFailed {
        waiting: Vec<Ticket>,
    },
    /// The shard has left, and other shards have its elements.
    Left,
    /// The shard was the last of the pool; these were all its elements.
    LastLeft {
        elements: Vec<T>,
    },
    /// A message to the cell or from it was lost, and is repeated.
    LostMessage {
        cell: CellId,
    },
    /// The cell died with about so many elements. Each survivor has this effect; the caller adds
    /// the free elements again at one of them.
    Lost {
        cell: CellId,
        estimate: u64,
    },
}
