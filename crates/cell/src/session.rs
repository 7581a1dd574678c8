//! What clients have at the cell.

pub(crate) mod clients;
