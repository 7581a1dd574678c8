//! The FUSE front: Warren as a mounted file system, one client among others.
//!
//! ```text
//! kernel --/dev/fuse--> Channel --> Crew (threads) --> Front (translation) --> Courier --> cells
//!        <---notices--- recall  <------------------- AwaitRecall <--------------------------
//! ```
//!
//! The loop is our own, over the kernel's ABI (design 13.1). [`serve_mount`] is the whole of it.

#![deny(unsafe_code)]

mod abi;
mod channel;
mod courier;
mod crew;
mod front;
mod held;
mod interrupt;
mod message;
mod mount;
mod recall;
mod reply;
mod runtime;
mod serve;
#[cfg(test)]
mod testing;
mod watchdog;

pub use channel::{Channel, DevFuse, Received};
pub use courier::{Courier, Post};
pub use crew::Crew;
pub use front::{FrontOptions, PageCaching};
pub use message::{HEAD, Head};
pub use mount::{Mount, MountError, MountOptions};
pub use serve::{MountedFront, ServeOptions, mount, serve_mount};
pub use watchdog::Watchdog;
