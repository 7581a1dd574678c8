//! The state of clients at the cell.

pub(crate) mod answers;
pub(crate) mod capabilities;
pub(crate) mod clients;
