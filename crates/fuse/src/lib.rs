//! The FUSE front: Warren as a mounted file system, one client among others.
//!
//! ```text
//! kernel --/dev/fuse--> Channel --> Crew (threads) --> Front (translation) --> Courier --> cells
//!        <---notices--- recall  <------------------- AwaitRecall <--------------------------
//! ```
//!
//! The loop is our own, over the kernel's ABI (design 13.1). [`keep_mount`] is the whole of it: a
//! custodian that holds everything, and a front that may die under it (decision 0007).

#![deny(unsafe_code)]

mod abi;
mod channel;
mod courier;
mod crew;
mod custodian;
mod front;
mod held;
mod interrupt;
mod ledger;
mod message;
mod mount;
pub mod mountinfo;
mod pages;
mod process;
mod recall;
mod reply;
mod resent;
mod runtime;
mod serve;
mod signals;
#[cfg(test)]
mod testing;
mod users;
mod watchdog;

pub use courier::{Courier, Post};
pub use custodian::keep_mount;
pub use front::{FrontOptions, PageCaching};
pub use mount::{MountError, MountOptions, check_mount_point, check_unmounted};
pub use process::dispatch;
pub use serve::{MountedFront, ServeOptions, mount};
pub use signals::STARTER_DIED;
pub use users::Uses;
pub use watchdog::Watchdog;
