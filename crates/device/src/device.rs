//! A cell's queue to the pool device.

use std::os::fd::OwnedFd;
use std::time::Duration;

use warren_base::{BlockNo, Errno};

use crate::DeviceError;

/// A request that is done: all of it (`Ok`), or not reliably any of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// What the submitter named it.
    pub token: u64,
    pub result: Result<(), Errno>,
    /// It was a flush that ended it, by itself or behind a write, or a write has failed that may have been. If that
    /// has failed, what anybody has written to the device may be lost.
    pub flush: bool,
}

/// Reads, writes and flushes blocks, in no order but the submitter's waiting for [`Done`]. Short
/// transfers and EINTR are gone on with inside; blocks beyond the end are EIO. Nothing is handed to
/// the kernel before the next [`Self::poll`] or [`Self::park`], so requests of one turn of the
/// caller's loop go down together.
///
/// A device that is dropped first waits for what the kernel has of it.
pub trait Device: Send {
    /// Blocks of the pool.
    fn len_blocks(&self) -> u64;

    /// Reads `frames.len()` blocks from `block` on into the frames, at most [`crate::FRAMES_MAX`].
    ///
    /// # Safety
    /// Each frame is valid for writing 4096 bytes, and nobody reads, writes or refers to them,
    /// until the request is [`Done`] or the device dropped. Frames aligned to 4096 are assumed.
    unsafe fn submit_read(&mut self, token: u64, block: BlockNo, frames: &[*mut u8]);

    /// Writes the frames to blocks `block..`, at most [`crate::FRAMES_MAX`].
    ///
    /// # Safety
    /// Each frame is valid for reading 4096 bytes, and nobody changes them, until the request is
    /// [`Done`] or the device dropped. Frames aligned to 4096 are assumed.
    unsafe fn submit_write(&mut self, token: u64, block: BlockNo, frames: &[*const u8]);

    /// Writes the frames to blocks `block..`, at most [`crate::FRAMES_MAX`], and makes that durable; nothing is
    /// said of other writes. After an error it is not known how far it came, and what was `Done` before and not
    /// made durable cannot be relied on, as after a failed flush.
    ///
    /// # Safety
    /// As of [`Self::submit_write`].
    unsafe fn submit_write_through(&mut self, token: u64, block: BlockNo, frames: &[*const u8]);

    /// Makes durable every write that was `Done` before this call. After a failed flush none of
    /// them can be relied on (the kernel may have dropped the dirty pages), nor what others have written: of
    /// their own flushes none says so.
    fn submit_flush(&mut self, token: u64);

    /// Has the host allocate `count` blocks, so that no later write to them fails for lack of space. What they hold
    /// may be lost where the host can allocate by writing alone: they are blocks that no file uses.
    fn submit_reserve(&mut self, token: u64, block: BlockNo, count: u64);

    /// Gives `count` unused blocks back to the host. EOPNOTSUPP where it takes none.
    fn submit_discard(&mut self, token: u64, block: BlockNo, count: u64);

    /// Requests submitted and not yet reported done.
    fn in_flight(&self) -> usize;

    /// Hands the kernel what was submitted and appends what is done. Does not wait.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), DeviceError>;

    /// Sleeps until something is done, the wake descriptor is written, or `timeout` has passed
    /// (`None`: no limit). May return early. [`Self::poll`] comes next.
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError>;

    /// What ends a [`Self::park`] when it can be read: a pipe, or an eventfd. The device takes what is in
    /// it, up to a page.
    fn set_wake(&mut self, wake: OwnedFd);
}
