//! The surroundings of a fleet: the part of a world that its events concern.

use std::fmt;

use warren_base::{CellId, ClientId, Errno};
use warren_cell::SlotRef;
use warren_proto::Answered;
use warren_supervisor::{ConnectionNo, Failure};

use super::Fleet;

/// The world around a fleet. [`happen_next`] applies every event with it.
///
/// [`happen_next`]: super::happen_next
pub(crate) trait Surroundings: Sized {
    /// The world's own events, besides those of the fleet.
    type Own: fmt::Debug;

    fn fleet(&self) -> &Fleet<Self::Own>;

    fn fleet_mut(&mut self) -> &mut Fleet<Self::Own>;

    fn happen(&mut self, own: Self::Own);

    /// The kind of an event, and what identifies it within its kind.
    fn words(own: &Self::Own) -> [u64; 4];

    /// An answer is in its slot. Its request took effect at about `hint` in the order of events.
    fn answered(&mut self, from: CellId, to: SlotRef, seq: u32, hint: u64, answer: Answered);

    /// Clients can connect.
    fn fleet_is_ready(&mut self);

    /// The connection's client has this number from now on.
    fn numbered(&mut self, connection: ConnectionNo, client: ClientId);

    /// The client may send requests.
    fn admit(&mut self, client: ClientId);

    fn refuse(&mut self, connection: ConnectionNo, errno: Errno);

    fn fleet_ended(&mut self, result: Result<(), Failure>);

    /// The pool has grown, or it has not.
    fn grown(&mut self, _result: Result<(), Errno>) {}

    /// The cell has released everything of the client.
    fn let_go(&mut self, _cell: CellId, _client: ClientId) {}

    /// The cell serves, for the first time or as a successor.
    fn serves(&mut self, _cell: CellId) {}

    /// A cell stores into a lease word.
    fn store_word(&mut self, cell: CellId, client: ClientId, word: u32, stamp: u64) {
        self.fleet_mut().lanes.store(cell, client, word, stamp);
    }
}
