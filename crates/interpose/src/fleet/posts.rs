//! Changes through handles that the program makes without waiting for a cell, because it alone uses
//! the file (decision 84).

use warren_proto::{AccessMode, Answer, Capabilities, Request};

use super::client::Slow;

/// Posts a change through a handle of this access, with `length` bytes that `fill` writes. Returns
/// the reply, which is that of the cell if the lease ended meanwhile. `None` if the change must be
/// requested: nothing was done.
pub(super) fn post(
    slow: &mut Slow,
    request: &Request,
    access: AccessMode,
    length: usize,
    fill: impl Fn(&mut [u8]),
) -> Option<Answer> {
    let Slow { slot, cache, posts, caller, .. } = slow;
    let by = (&*caller.credentials, access);
    slot.post(cache, posts, (request, Capabilities::default()), by, (length, fill))
}
