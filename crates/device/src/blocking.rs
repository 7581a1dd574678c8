//! A device queue without io_uring: [`Device::poll`] executes the requests, one after the other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as KernelErrno;
use warren_base::Errno;
use warren_base::limits::BLOCK_SIZE;

use crate::device::Device;
use crate::transfer::{Action, Done, Step, Transfer};
use crate::{DeviceError, PoolFile};

/// Returns blocks of a file to the host without changing its size. A block device may unmap them.
pub(crate) const DISCARD: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// A queue whose requests are executed one by one.
pub struct Blocking {
    pool: PoolFile,
    submitted: VecDeque<Transfer>,
    refused: Vec<Done>,
    wake: Option<OwnedFd>,
    rung: Vec<u8>,
}

impl Blocking {
    pub fn new(pool: PoolFile) -> Self {
        Self { pool, submitted: VecDeque::new(), refused: Vec::new(), wake: None, rung: Vec::new() }
    }

    fn carry_out(&self, transfer: &mut Transfer) -> Result<(), Errno> {
        loop {
            if let Step::Done(result) = transfer.advance(self.trip(transfer)) {
                return self.pool.reserved_whole(transfer, result);
            }
        }
    }

    /// Makes one system call. Its result has the form of io_uring's.
    fn trip(&self, transfer: &Transfer) -> i32 {
        let (fd, iovecs) = (self.pool.as_fd().as_raw_fd(), transfer.iovecs());
        let (ptr, len, at) = (iovecs.as_ptr(), iovecs.len() as i32, transfer.offset as i64);
        // SAFETY: the iovecs point into frames that the submitter promised to keep valid and
        // unchanged until the request is done.
        let result = unsafe {
            match transfer.action {
                Action::Read => libc::preadv(fd, ptr, len, at),
                Action::Write | Action::WriteThrough => libc::pwritev(fd, ptr, len, at),
                Action::WriteDurable => libc::pwritev2(fd, ptr, len, at, libc::RWF_DSYNC),
                Action::Flush => libc::fdatasync(fd) as isize,
                Action::Reserve => libc::fallocate(fd, 0, at, transfer.span as i64) as isize,
                Action::Discard => libc::fallocate(fd, DISCARD, at, transfer.span as i64) as isize,
            }
        };
        match i32::try_from(result) {
            Ok(result) if result >= 0 => result,
            _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl Device for Blocking {
    fn len_blocks(&self) -> u64 {
        self.pool.len_blocks()
    }

    fn grow(&mut self, len_blocks: u64) {
        self.pool.grow(len_blocks);
    }

    fn submit(&mut self, token: u64, transfer: Option<Transfer>) {
        match transfer {
            Some(transfer) => self.submitted.push_back(transfer),
            None => self.refused.push(Done { token, result: Err(Errno::EIO), flush: false }),
        }
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.refused.len()
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), DeviceError> {
        done.append(&mut self.refused);
        while let Some(mut transfer) = self.submitted.pop_front() {
            let result = self.carry_out(&mut transfer);
            done.push(transfer.done(result));
        }
        Ok(())
    }

    fn park(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        if self.in_flight() > 0 {
            return Ok(());
        }
        let limit = timeout.and_then(|t| rustix::time::Timespec::try_from(t).ok());
        let mut fds: Vec<PollFd<'_>> =
            self.wake.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(KernelErrno::INTR) => {}
            Err(errno) => return Err(DeviceError::Queue(errno.into())),
        }
        drop(fds);
        self.wake.as_ref().map_or(Ok(()), |wake| drain(wake, &mut self.rung))
    }

    fn set_wake(&mut self, wake: OwnedFd) {
        self.wake = Some(wake);
    }

    fn take_rung(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rung)
    }
}

/// The bytes of a wake descriptor that are kept for its owner: a full bell, and more.
const RUNG_MAX: usize = 2 * BLOCK_SIZE;

/// Empties the wake descriptor without waiting: an eventfd's count, or a page of a pipe, which is
/// the capacity of a bell. Its bytes are appended to `rung`.
pub(crate) fn drain(wake: &OwnedFd, rung: &mut Vec<u8>) -> Result<(), DeviceError> {
    let mut fds = [PollFd::new(wake, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    // Polled first, because the descriptor need not be non-blocking.
    if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
        let mut bytes = [0u8; BLOCK_SIZE];
        match rustix::io::read(wake, &mut bytes) {
            Ok(count) => {
                let room = RUNG_MAX.saturating_sub(rung.len());
                rung.extend_from_slice(&bytes[..count.min(room)]);
            }
            Err(KernelErrno::AGAIN | KernelErrno::INTR) => {}
            Err(errno) => return Err(DeviceError::Queue(errno.into())),
        }
    }
    Ok(())
}
