//! Free chunks: those of the pool that the cells share, and what the host has behind them.

pub(crate) mod claim;
pub(crate) mod free;
pub(crate) mod host;
pub(crate) mod supply;
