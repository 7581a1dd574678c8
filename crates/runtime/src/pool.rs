//! A pool without a fleet: its blocks and metadata, replay of its logs, check and repair, and the
//! distribution of its shards and free chunks to the cells of a fleet.

pub(crate) mod blocks;
pub(crate) mod grow;
pub(crate) mod offline;
pub(crate) mod recovery;
pub(crate) mod shares;
