//! Recovery: how a cell processes the log and the frames that it finds.

mod discard;
pub(crate) mod early;
pub(crate) mod frames;
mod kept;
pub(crate) mod replay;
pub(crate) mod scan;
