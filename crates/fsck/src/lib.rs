//! `fsck`: checks a pool that no fleet uses, computes its repair, and shows its content.
//!
//! * `check.rs` finds faults and changes nothing.
//! * `repair.rs` computes a further checkpoint without these faults; `repair/footing.rs` one on
//!   which logs can be replayed. `repair/kept.rs` finds log records that were kept.
//! * `dump.rs` shows structures and judges nothing.
//!
//! This crate is pure: its input and output are blocks. `disk` decodes them.

#![forbid(unsafe_code)]

mod bit;
mod check;
pub mod dump;
mod finding;
mod lists;
mod metadata;
mod pieces;
mod read;
mod repair;
mod report;
mod rules;
mod slots;
#[cfg(test)]
mod tests;

pub use check::check;
pub use finding::{Finding, Severity};
pub use read::{Progress, ReadError};
pub use repair::{
    Footing, KeptLog, Mend, NoFooting, Repair, RepairError, footing, kept_logs, repair,
};
pub use report::{Options, Report};
