//! The FUSE front: Warren as a mounted file system, one client among others.
//!
//! ```text
//! kernel --/dev/fuse--> Channel --> Workers --> Front --> FleetSlot --> cells
//!                                  (threads)  (translation)
//! kernel <--notices-- recall <---------- AwaitRecall <----------------- cells
//! ```
//!
//! The loop over the kernel's ABI is Warren's own. A mount has two processes: the
//! *mount keeper* ([`keep_mount`]) holds everything that a front needs, and the *front* serves.
//! When the front dies, the keeper starts the next one (decision 7).

#![deny(unsafe_code)]

mod abi;
mod absent_names;
mod activity;
mod by_thread;
mod channel;
mod connection;
mod dir_copies;
mod effects;
mod front;
mod front_state;
mod interrupt;
mod keeper;
mod link_counts;
mod lock_owners;
mod message;
mod mount;
pub mod mountinfo;
mod notice;
mod notice_threads;
mod on_removed;
mod open_files;
mod plain_inodes;
mod process;
mod recall;
mod reply;
mod resend;
mod retries;
mod sent_entries;
mod serve;
mod shown_rights;
mod signals;
#[cfg(test)]
mod testing;
mod users;
mod watchdog;
mod workers;

pub use connection::{FleetConnection, FleetSlot};
pub use effects::Effects;
pub use front::{FrontOptions, PageCaching};
pub use keeper::keep_mount;
pub use mount::{MountError, MountOptions, check_mount_point, check_unmounted, fusermount_reason};
pub use process::dispatch;
pub use rustix::mount::MountFlags;
pub use serve::{MountConfig, MountedFront, READY_MAX, mount};
pub use signals::STARTER_DIED;
pub use users::Uses;
pub use watchdog::Watchdog;
