//! The supply of chunks: to shards that need blocks, from and to the other cells and the host.

pub(crate) mod claim;
pub(crate) mod host;
pub(crate) mod pool;
