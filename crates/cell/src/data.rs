//! File data: reading, writing, truncating, allocating, and its covers in the log.

pub(crate) mod copy;
pub(crate) mod cover;
pub(crate) mod fallocate;
pub(crate) mod find;
pub(crate) mod read;
pub(crate) mod truncate;
pub(crate) mod write;
pub(crate) mod writeback;
