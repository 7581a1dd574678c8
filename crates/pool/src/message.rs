//! What shards say to each other, and what a shard asks of its driver.

use warren_base::CellId;
use warren_proto::Wire;

use crate::Ticket;

/// Which search of the asking shard a question belongs to, so that a late answer is known as such.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct SearchNo(pub u64);

impl SearchNo {
    /// Of a transfer that nobody asked for.
    pub const NONE: Self = Self(0);
    /// Of a background pull, whose answer nobody waits for.
    pub const BACKGROUND: Self = Self(1);
    /// Searches count on from here.
    pub(crate) const LAST_RESERVED: Self = Self(1);
}

/// From shard to shard.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum PoolMessage<T> {
    /// I join, and know you as a member.
    Hello,
    /// Now I know you. These are the others that I know.
    Welcome { members: Vec<CellId>, center: CellId, ready: bool },
    /// Everybody I know knows me: elements may be sent to me. A newcomer that I welcomed before I
    /// was ready hears here of all the others.
    Ready { members: Vec<CellId> },
    /// I leave: send me no more elements.
    Leaving,
    /// I shall send none.
    Noted,
    /// I have nothing and get nothing: forget me.
    Goodbye,
    /// I have.
    Farewell,
    /// Give me up to `want` elements. Answered by `Transfer` or `Empty`.
    Pull { search: SearchNo, want: u32 },
    /// Have you any? Answered by `Empty` or `NotEmpty`.
    Check { search: SearchNo },
    /// I have none, and what I ever sent has arrived. `arrivals` have come to me so far.
    Empty { search: SearchNo, arrivals: u64 },
    /// I have some.
    NotEmpty { search: SearchNo },
    /// These are yours now. `left` is how many I still have. Answered by `Taken`.
    Transfer { search: SearchNo, elements: Vec<T>, left: u64 },
    /// Your oldest unanswered transfer has arrived; I have `size` elements now.
    Taken { size: u64 },
    /// I have `size` elements now.
    Estimate { size: u64 },
}

/// What the driver shall do, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect<T> {
    Send {
        to: CellId,
        message: PoolMessage<T>,
    },
    /// The answer to a `get` that was pending; `None` if the pool was empty.
    Resolved {
        ticket: Ticket,
        element: Option<T>,
    },
    /// The join has succeeded: elements can be added.
    Ready,
    /// Nobody answered the join and nobody will. This shard is of no more use, and these gets have
    /// no answer.
    JoinFailed {
        waiting: Vec<Ticket>,
    },
    /// The shard has left; its elements are with the others.
    Left,
    /// The shard was the last of the pool; these were all its elements.
    LastLeft {
        elements: Vec<T>,
    },
    /// The cell died with about so many elements. Every survivor says so; one adds again what is
    /// free.
    Lost {
        cell: CellId,
        estimate: u64,
    },
}
