//! One request in flight: the rest after a short transfer, and when to give up.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno};

/// Frames of one request, as Linux's `IOV_MAX`: 4 MiB.
pub const FRAMES_MAX: usize = 1024;

/// Attempts without progress (EINTR, EAGAIN, nothing transferred) before a request is EIO. Each is
/// a system call, so by then the kernel is not just busy.
const RETRIES_MAX: u32 = 1000;

/// A finished request: all of it was done (`Ok`), or any part of it may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The submitter's name of it.
    pub token: u64,
    pub result: Result<(), Errno>,
    /// Whether a flush ended it: a flush alone, a flush behind a write, or a failed write that may
    /// have included one. If that failed, writes of all processes to the device may be lost.
    pub flush: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Read,
    Write,
    /// A write, followed by a flush.
    WriteThrough,
    /// A write that is durable when it is done.
    WriteDurable,
    Flush,
    /// Has the host allocate blocks, or returns them. Neither has frames.
    Reserve,
    Discard,
}

/// The next step after a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Done(Result<(), Errno>),
    Again,
}

/// A request. `iovecs` are its frames, neighbours merged, that are still to be transferred.
#[derive(Debug)]
pub struct Transfer {
    pub(crate) token: u64,
    pub(crate) action: Action,
    /// Bytes from the start of the device.
    pub(crate) offset: u64,
    iovecs: Vec<libc::iovec>,
    /// The number of whole iovecs transferred.
    finished: usize,
    retries: u32,
    /// Bytes to reserve or to discard.
    pub(crate) span: u64,
}

// SAFETY: the pointers are only passed to the kernel, under the contract of `Device::submit_read`,
// which binds them to no thread.
unsafe impl Send for Transfer {}

impl Transfer {
    /// A transfer of `frames`, or `None` if it does not lie within `len_blocks`.
    pub(crate) fn new(
        token: u64,
        action: Action,
        block: BlockNo,
        frames: impl ExactSizeIterator<Item = *mut u8>,
        len_blocks: u64,
    ) -> Option<Self> {
        let count = frames.len();
        assert!((1..=FRAMES_MAX).contains(&count), "{count} frames");
        let end = block.0.checked_add(count as u64)?;
        if end > len_blocks {
            return None;
        }
        let offset = block.0 * BLOCK_SIZE as u64;
        let iovecs = merged(frames);
        Some(Self { token, action, offset, iovecs, finished: 0, retries: 0, span: 0 })
    }

    /// A request for `count` blocks that moves no data, or `None` if they do not lie within
    /// `len_blocks`.
    pub(crate) fn of_range(
        token: u64,
        action: Action,
        block: BlockNo,
        count: u64,
        len_blocks: u64,
    ) -> Option<Self> {
        let end = block.0.checked_add(count)?;
        let (offset, span) = (block.0 * BLOCK_SIZE as u64, count * BLOCK_SIZE as u64);
        let range = Self { offset, span, action, ..Self::flush(token) };
        (count > 0 && end <= len_blocks).then_some(range)
    }

    pub(crate) fn flush(token: u64) -> Self {
        let (action, iovecs) = (Action::Flush, Vec::new());
        Self { token, action, offset: 0, iovecs, finished: 0, retries: 0, span: 0 }
    }

    /// The frames that are still to be transferred. The kernel may read the list until the call is
    /// over.
    pub(crate) fn iovecs(&self) -> &[libc::iovec] {
        &self.iovecs[self.finished..]
    }

    /// Handles the kernel's result of a call: bytes, or a negative errno.
    pub(crate) fn advance(&mut self, result: i32) -> Step {
        let Ok(bytes) = usize::try_from(result) else {
            return match -result {
                libc::EINTR | libc::EAGAIN => self.retry(),
                errno => Step::Done(Err(Errno::from_raw(errno).unwrap_or(Errno::EIO))),
            };
        };
        if matches!(self.action, Action::Flush | Action::Reserve | Action::Discard) {
            return Step::Done(Ok(()));
        }
        if bytes == 0 && self.action == Action::Read {
            // The device ends here, whatever its length was at opening.
            return Step::Done(Err(Errno::EIO));
        }
        // Direct I/O can continue only at a whole block.
        let whole = bytes / BLOCK_SIZE * BLOCK_SIZE;
        self.skip(whole);
        match self.iovecs().is_empty() {
            true if self.action == Action::WriteThrough => {
                self.action = Action::Flush;
                Step::Again
            }
            true => Step::Done(Ok(())),
            false if whole > 0 => Step::Again,
            false => self.retry(),
        }
    }

    /// Handles the kernel's result of the flush behind a write in one chain: all was written.
    pub(crate) fn advance_flush(&mut self, result: i32) -> Step {
        self.finished = self.iovecs.len();
        self.action = Action::Flush;
        self.advance(result)
    }

    /// The completion for the submitter. A failed durable write may have failed in its flush.
    pub(crate) fn done(&self, result: Result<(), Errno>) -> Done {
        let flush = match self.action {
            Action::Flush => true,
            Action::WriteDurable => result.is_err(),
            Action::Read
            | Action::Write
            | Action::WriteThrough
            | Action::Reserve
            | Action::Discard => false,
        };
        Done { token: self.token, result, flush }
    }

    fn retry(&mut self) -> Step {
        self.retries += 1;
        if self.retries > RETRIES_MAX { Step::Done(Err(Errno::EIO)) } else { Step::Again }
    }

    fn skip(&mut self, bytes: usize) {
        self.offset += bytes as u64;
        let mut left = bytes;
        while left > 0 {
            let Some(first) = self.iovecs.get_mut(self.finished) else { return };
            let n = left.min(first.iov_len);
            first.iov_base = first.iov_base.wrapping_byte_add(n);
            first.iov_len -= n;
            left -= n;
            if first.iov_len == 0 {
                self.finished += 1;
            }
        }
    }
}

/// One iovec for each run of adjacent frames.
fn merged(frames: impl Iterator<Item = *mut u8>) -> Vec<libc::iovec> {
    let mut iovecs: Vec<libc::iovec> = Vec::new();
    for frame in frames {
        match iovecs.last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == frame.cast() => {
                last.iov_len += BLOCK_SIZE;
            }
            _ => iovecs.push(libc::iovec { iov_base: frame.cast(), iov_len: BLOCK_SIZE }),
        }
    }
    iovecs
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = BLOCK_SIZE;

    fn read(addresses: &[usize]) -> Transfer {
        let frames: Vec<*mut u8> =
            addresses.iter().map(|a| std::ptr::without_provenance_mut(a * K)).collect();
        Transfer::new(1, Action::Read, BlockNo(10), frames.into_iter(), 100).unwrap()
    }

    fn left(t: &Transfer) -> Vec<(usize, usize)> {
        t.iovecs().iter().map(|v| (v.iov_base.addr() / K, v.iov_len / K)).collect()
    }

    #[test]
    fn neighbours_are_merged() {
        assert_eq!(left(&read(&[5, 6, 7, 9, 3, 4])), [(5, 3), (9, 1), (3, 2)]);
    }

    #[test]
    fn a_short_transfer_goes_on_at_the_next_whole_block() {
        let mut t = read(&[5, 6, 7, 9]);
        assert_eq!(t.advance(K as i32 + 512), Step::Again);
        assert_eq!((left(&t), t.offset), (vec![(6, 2), (9, 1)], 11 * K as u64));
        assert_eq!(t.advance(2 * K as i32), Step::Again);
        assert_eq!((left(&t), t.offset), (vec![(9, 1)], 13 * K as u64));
        assert_eq!(t.advance(K as i32), Step::Done(Ok(())));
    }

    #[test]
    fn interruptions_are_retried_but_not_for_ever() {
        let mut t = read(&[5]);
        for fruitless in [-libc::EINTR, -libc::EAGAIN, 511].into_iter().cycle().take(1000) {
            assert_eq!(t.advance(fruitless), Step::Again);
        }
        assert_eq!(t.advance(-libc::EINTR), Step::Done(Err(Errno::EIO)));
    }

    #[test]
    fn errors_and_the_end_of_the_device_surface() {
        assert_eq!(read(&[5]).advance(-libc::EIO), Step::Done(Err(Errno::EIO)));
        assert_eq!(read(&[5]).advance(-libc::ENOSPC), Step::Done(Err(Errno::ENOSPC)));
        assert_eq!(read(&[5]).advance(0), Step::Done(Err(Errno::EIO)));
        assert_eq!(Transfer::flush(1).advance(0), Step::Done(Ok(())));
        assert_eq!(Transfer::flush(1).advance(-libc::EINTR), Step::Again);
    }

    #[test]
    fn what_is_written_through_is_flushed_when_all_is_written() {
        let through = |addresses: &[usize]| {
            let mut t = read(addresses);
            t.action = Action::WriteThrough;
            t
        };
        let mut t = through(&[5, 7]);
        assert_eq!((t.advance(K as i32), t.action), (Step::Again, Action::WriteThrough));
        assert_eq!((t.advance(K as i32), t.action), (Step::Again, Action::Flush));
        assert_eq!(t.advance(-libc::EINTR), Step::Again);
        assert_eq!(t.advance(0), Step::Done(Ok(())));
        assert_eq!(through(&[5]).advance(-libc::EIO), Step::Done(Err(Errno::EIO)));
        let mut t = through(&[5, 7]);
        assert_eq!((t.advance_flush(-libc::EINTR), t.action), (Step::Again, Action::Flush));
        assert_eq!(t.advance(0), Step::Done(Ok(())));
        assert_eq!(through(&[5]).advance_flush(-libc::EIO), Step::Done(Err(Errno::EIO)));
    }

    #[test]
    fn blocks_beyond_the_end_are_refused() {
        let new = |block| {
            let frames = [std::ptr::null_mut(); 2].into_iter();
            Transfer::new(1, Action::Write, BlockNo(block), frames, 100)
        };
        assert!(new(98).is_some());
        assert!(new(99).is_none());
        assert!(new(u64::MAX).is_none());
    }
}
