//! The front's connection to the cells, as traits.
//!
//! [`FleetConnection`] and [`FleetSlot`] are the part of the client library that a front uses. The
//! real ones are in [`runtime`]; tests put a fleet in memory behind them.

mod runtime;

use warren_base::{CellId, Errno, Ino, InodeNumbers, SlotNo};
use warren_proto::{Answer, Attr, Lease, Request};

/// One slot of a connection: at most one request is in flight in it.
pub trait FleetSlot: Send {
    /// Sends a request and waits for the answer. `identity` is (uid, gid) of the caller. A `Write`
    /// carries the first `payload_len` bytes of [`Self::payload_out`].
    fn call(&mut self, identity: (u32, u32), request: &Request, payload_len: usize) -> Answer;

    /// Sends a request to this cell, whatever its subject, and waits for the answer.
    fn call_cell(&mut self, cell: CellId, request: &Request) -> Answer;

    /// The payload lane to the cells, of `PAYLOAD_MAX` bytes: file data to be written.
    fn payload_out(&mut self) -> &mut [u8];

    /// The payload lane that holds the data of the last `Read`.
    fn payload_in(&self) -> &[u8];

    fn number(&self) -> SlotNo;

    /// The attributes of directories that the last request has changed, from its reply.
    fn changed(&self) -> &[(Attr, Lease)];

    /// The cell that gave the last answer.
    fn last_cell(&self) -> Option<CellId>;

    /// The sequence number of the last request that was sent from this slot.
    fn last_seq(&self) -> u32;

    /// The answer to the last request of this slot, which a dead predecessor may have sent. Waits
    /// for the answer if the request is still in flight. `None` if there was no request or it was
    /// not sent. If all requests of the slot go to one `cell`, the answer to an earlier request
    /// counts too.
    fn last_answer(&mut self, cell: Option<CellId>) -> Option<Answer>;
}

/// A connection to a fleet: its slots.
pub trait FleetConnection: Send + Sync {
    /// Takes a free slot. EAGAIN when all slots are taken.
    fn slot(&self) -> Result<Box<dyn FleetSlot>, Errno>;

    /// Takes this slot. EAGAIN when it is taken.
    fn slot_at(&self, slot: SlotNo) -> Result<Box<dyn FleetSlot>, Errno>;

    /// The number of slots, free and taken.
    fn slots(&self) -> usize;

    fn cells(&self) -> Vec<CellId>;

    /// The inode numbers that programs see.
    fn inode_numbers(&self) -> InodeNumbers;

    /// The current value of a cell's lease word.
    fn load_word(&self, cell: CellId, word: u32) -> u64;

    /// Marks the inode as idle: a cell may close the handles of it that were kept. Returns the
    /// inode that was marked in its place, if there was one. One thread at a time marks inodes.
    fn mark_idle(&self, ino: Ino) -> Option<Ino>;

    /// Removes the mark.
    fn mark_used(&self, ino: Ino);

    /// Whether the cell has closed all handles of the inode that were kept.
    fn is_closed(&self, cell: CellId, ino: Ino) -> bool;

    /// The sequence number of the request that is in flight in `slot`, for a `Cancel`.
    fn in_flight(&self, slot: SlotNo) -> Option<u32>;
}
