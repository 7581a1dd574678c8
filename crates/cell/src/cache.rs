//! The buffer cache at work: pages of files are brought into frames, changed there, and written.

pub(crate) mod pages;
pub(crate) mod range;
pub(crate) mod transfer;
