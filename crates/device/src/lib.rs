//! The pool device: 4 KiB blocks of a file or a block device.
//!
//! A [`PoolFile`] is the opened device: its length, its lock, and plain synchronous access for the
//! supervisor, `mkfs` and `fsck`. A [`Device`] is a cell's queue to it: submit, continue, poll for
//! finished requests, and sleep in one place for completions and wake-ups. [`Uring`] is the usual
//! one; [`Blocking`] replaces it where io_uring is forbidden (many containers' seccomp profiles).
//!
//! [`FileTables`] hold open files without descriptors, for the keeper of a fleet.
//!
//! Unsafe code: memory that a device reads and writes while the caller runs (see
//! [`Device::submit_read`]), and the calls of io_uring.

mod blocking;
mod device;
mod error;
mod file_table;
mod pool_file;
mod queue;
mod trace;
mod transfer;
mod uring;

#[cfg(test)]
mod conformance;

pub use blocking::Blocking;
pub use device::Device;
pub use error::DeviceError;
pub use file_table::{FilePlace, FileTables};
pub use pool_file::{PoolFile, await_writers};
pub use queue::open_queue;
pub use trace::{ENVIRONMENT as RECORD_ENVIRONMENT, Entry, TraceWriter, read_trace};
pub use transfer::{Done, FRAMES_MAX};
pub use uring::Uring;
