//! File data: reading, writing, cutting, and what the log says of it.

pub(crate) mod cover;
pub(crate) mod read;
pub(crate) mod truncate;
pub(crate) mod write;
pub(crate) mod writeback;
