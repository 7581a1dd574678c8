//! `fsck`: checks a pool that no fleet is using, works out its repair, and shows what lies on it.
//!
//! * `check.rs` finds what is wrong and changes nothing.
//! * `repair.rs` works out one checkpoint more that puts it right; `repair/footing.rs` one on which
//!   logs can be replayed.
//! * `dump.rs` shows structures and judges nothing.
//!
//! This crate is pure: it is handed blocks and hands blocks back. `disk` decodes them.

#![forbid(unsafe_code)]

mod check;
pub mod dump;
mod finding;
mod metadata;
mod read;
mod repair;
mod report;
mod rules;
#[cfg(test)]
mod tests;

pub use check::check;
pub use finding::{Finding, Severity};
pub use read::{Progress, ReadError};
pub use repair::{Footing, Mend, NoFooting, Repair, RepairError, footing, repair};
pub use report::{Options, Report};
