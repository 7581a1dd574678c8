//! Changes that the program makes without waiting for a cell, because it alone uses the file
//! (decision 84).

use warren_base::Errno;
use warren_proto::{AccessMode, Answer, Capabilities, Request};
use warren_shm::wall;

use super::client::{Slow, hot};

/// Posts a change through a handle of this access, with `length` bytes that `fill` writes. Returns
/// the reply, which is that of the cell if the lease ended meanwhile. `None` if the change must be
/// requested: nothing was done.
pub(super) fn post(
    slow: &mut Slow,
    request: &Request,
    access: AccessMode,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Option<Answer> {
    let hot = hot()?;
    if !request.inode().is_some_and(|ino| slow.cache.is_delegated(ino)) {
        return None;
    }
    let who = (&*slow.caller.credentials, wall());
    let post = slow.cache.plan_post(request, length, access, who, &hot.connection)?;
    let record = (request, Capabilities::default());
    if !slow.posts.publish((post.cell, post.time), record, length, fill) {
        return None;
    }
    slow.cache.note_published(&post);
    if post.guard.holds(&hot.connection) {
        return Some(Ok(post.reply));
    }
    slow.cache.end_delegation(post.ino());
    let waited = slow.slot.call_cell(post.cell, Capabilities::default(), &Request::Null, 0);
    let outcome = slow.posts.outcome(post.cell)?;
    match (waited, outcome.errno) {
        // The fleet is lost.
        (Err(errno), _) => Some(Err(errno)),
        (Ok(_), Some(Errno::EAGAIN)) => None,
        (Ok(_), Some(errno)) => Some(Err(errno)),
        (Ok(_), None) => Some(Ok(post.late_reply(outcome.value))),
    }
}
