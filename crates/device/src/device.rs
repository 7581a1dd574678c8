//! A cell's queue to the pool device.

use std::os::fd::OwnedFd;
use std::time::Duration;

use warren_base::BlockNo;

use crate::DeviceError;
use crate::transfer::{Action, Done, Transfer};

/// Reads, writes and flushes blocks. The only order is that of a submitter that waits for [`Done`].
/// Short transfers and EINTR are continued inside; blocks beyond the end are EIO. Requests are
/// handed to the kernel at the next [`Self::poll`] or [`Self::park`], so those of one turn of the
/// caller's loop go together.
///
/// A dropped device first waits for the requests that the kernel has.
pub trait Device: Send {
    /// Blocks of the pool.
    fn len_blocks(&self) -> u64;

    /// The pool has grown, and its file is that long already.
    fn grow(&mut self, len_blocks: u64);

    /// Queues a request, or refuses one that is `None` because it is not within the pool: EIO. Only
    /// the other functions make requests, and their callers vouch for the frames.
    fn submit(&mut self, token: u64, transfer: Option<Transfer>);

    /// Reads `frames.len()` blocks, starting at `block`, into the frames, at most
    /// [`crate::FRAMES_MAX`].
    ///
    /// # Safety
    /// Each frame is valid for writing 4096 bytes, and is not read, written or referred to until
    /// the request is [`Done`] or the device dropped. Frames aligned to 4096 are assumed.
    unsafe fn submit_read(&mut self, token: u64, block: BlockNo, frames: &[*mut u8]) {
        let (frames, end) = (frames.iter().copied(), self.len_blocks());
        self.submit(token, Transfer::new(token, Action::Read, block, frames, end));
    }

    /// Writes the frames to blocks `block..`, at most [`crate::FRAMES_MAX`].
    ///
    /// # Safety
    /// Each frame is valid for reading 4096 bytes, and does not change until the request is
    /// [`Done`] or the device dropped. Frames aligned to 4096 are assumed.
    unsafe fn submit_write(&mut self, token: u64, block: BlockNo, frames: &[*const u8]) {
        let (frames, end) = (frames.iter().map(|frame| frame.cast_mut()), self.len_blocks());
        self.submit(token, Transfer::new(token, Action::Write, block, frames, end));
    }

    /// Writes the frames to blocks `block..`, at most [`crate::FRAMES_MAX`], and makes that
    /// durable, but not necessarily other writes. After an error it is unknown how much was
    /// written, and writes that were `Done` before and not durable cannot be relied on, as after a
    /// failed flush.
    ///
    /// # Safety
    /// Those of [`Self::submit_write`].
    unsafe fn submit_write_through(&mut self, token: u64, block: BlockNo, frames: &[*const u8]) {
        let (frames, end) = (frames.iter().map(|frame| frame.cast_mut()), self.len_blocks());
        self.submit(token, Transfer::new(token, Action::WriteThrough, block, frames, end));
    }

    /// Makes durable every write that was `Done` before this call. After a failed flush none of
    /// them can be relied on (the kernel may have dropped the dirty pages), nor can the writes of
    /// other processes, whose own later flushes do not report it.
    fn submit_flush(&mut self, token: u64) {
        self.submit(token, Some(Transfer::flush(token)));
    }

    /// Has the host allocate `count` blocks, so that no later write to them fails for lack of
    /// space. Their contents may be lost where the host can allocate only by writing, so no file
    /// may use them.
    fn submit_reserve(&mut self, token: u64, block: BlockNo, count: u64) {
        let end = self.len_blocks();
        self.submit(token, Transfer::of_range(token, Action::Reserve, block, count, end));
    }

    /// Returns `count` unused blocks to the host. EOPNOTSUPP if the host does not take them.
    fn submit_discard(&mut self, token: u64, block: BlockNo, count: u64) {
        let end = self.len_blocks();
        self.submit(token, Transfer::of_range(token, Action::Discard, block, count, end));
    }

    /// Requests that were submitted and are not reported done.
    fn in_flight(&self) -> usize;

    /// Hands submitted requests to the kernel and appends the finished ones. Does not wait.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), DeviceError>;

    /// Sleeps until a request finishes, the wake descriptor is written, or `timeout` has passed
    /// (`None`: no limit). May return early. [`Self::poll`] must follow.
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError>;

    /// The descriptor that ends a [`Self::park`] when it is readable: a pipe, or an eventfd. The
    /// device reads up to a page from it.
    fn set_wake(&mut self, wake: OwnedFd);

    /// The bytes that were read from the wake descriptor since the last call, as far as two pages
    /// hold them. Their meaning is the caller's.
    fn take_rung(&mut self) -> Vec<u8>;
}
