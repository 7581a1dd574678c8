//! What a cell does with the log and the frames that it finds.

pub(crate) mod replay;
