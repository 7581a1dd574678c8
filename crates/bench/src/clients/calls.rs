//! Requests of the benchmark's clients.

use warren_base::{CellId, Errno};
use warren_proto::Request;
use warren_runtime::{Connection, Slot};

use crate::error::BenchError;

/// An ordinary client acts for itself, so the identity in its requests is ignored.
const IDENTITY: (u32, u32) = (0, 0);

pub(super) fn failed(call: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::Call { contender: "warren".to_owned(), call, errno }
}

pub(super) fn slot_of(connection: &Connection) -> Result<Slot, BenchError> {
    connection.slot().ok_or(Errno::EAGAIN).map_err(failed("connect"))
}

pub(super) fn null(slot: &mut Slot) -> Result<(), BenchError> {
    slot.call_cell(CellId(0), IDENTITY, &Request::Null, 0).map(drop).map_err(failed("null"))
}
