//! File data: reading, writing, truncating, and its covers in the log.

pub(crate) mod cover;
pub(crate) mod read;
pub(crate) mod truncate;
pub(crate) mod write;
pub(crate) mod writeback;
