//! Free chunks: the pool that the cells share, and the host's space behind it.

mod batch;
pub(crate) mod free;
pub(crate) mod host;
