//! Forms the answer to a request on one inode, by its number.

use std::ops::ControlFlow;

use warren_base::limits::BODY_MAX;
use warren_proto::{Answer, Reply, Wire};

use crate::run::wait::Stop;

/// The answer, and the bytes of its payload. `None` if the request is answered later.
pub(crate) type Finished = Option<(Answer, u32)>;

pub(crate) fn done(reply: Reply) -> Result<Finished, Stop> {
    Ok(Some((Ok(reply), 0)))
}

pub(crate) fn fits_answer(reply: &Reply) -> bool {
    reply.to_bytes().len() <= BODY_MAX
}

pub(crate) const fn go_on_if(more: bool) -> ControlFlow<()> {
    if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}
