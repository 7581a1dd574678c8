//! Free chunks: the pool that the cells share, and the host's space behind it.

pub(crate) mod claim;
pub(crate) mod free;
pub(crate) mod host;
pub(crate) mod supply;
