//! The front's way to the cells, as it needs it: the client's connection, seen from here.

use warren_base::{CellId, Errno, SlotNo};
use warren_proto::{Answer, Request};

/// One slot of a connection: one request in flight.
pub trait Courier: Send {
    /// Sends and waits. `identity` is (uid, gid) of the caller. A `Write` takes the first
    /// `payload_len` bytes of [`Self::payload_out`] along.
    fn call(&mut self, identity: (u32, u32), request: &Request, payload_len: usize) -> Answer;

    /// Sends to this cell, whatever the request is about, and waits.
    fn call_cell(&mut self, cell: CellId, request: &Request) -> Answer;

    /// Where file data to be written is put: `PAYLOAD_MAX` bytes.
    fn payload_out(&mut self) -> &mut [u8];

    /// The lane that the data of the last `Read` came in.
    fn payload_in(&self) -> &[u8];

    fn number(&self) -> SlotNo;

    /// The number of the last request that was sent from this slot.
    fn last_seq(&self) -> u32;

    /// The answer to that request, also if a dead predecessor sent it, waited for if need be. `None`
    /// if there was none or it did not get out. If all went to one `cell`, an earlier one counts.
    fn last_answer(&mut self, cell: Option<CellId>) -> Option<Answer>;
}

/// A connection to the fleet: the office that couriers come from.
pub trait Post: Send + Sync {
    /// A courier on a slot of its own. EAGAIN when all slots are taken.
    fn courier(&self) -> Result<Box<dyn Courier>, Errno>;

    /// A courier on this slot. EAGAIN when it is taken.
    fn courier_at(&self, slot: SlotNo) -> Result<Box<dyn Courier>, Errno>;

    /// How many couriers there can be at a time.
    fn slots(&self) -> usize;

    fn cells(&self) -> Vec<CellId>;

    /// The sequence number of the request that is in flight in `slot`, for a `Cancel`.
    fn in_flight(&self, slot: SlotNo) -> Option<u32>;
}
