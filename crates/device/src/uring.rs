//! The device queue over io_uring.
//!
//! ```text
//! submit -> backlog -> (poll, park) submission queue -> kernel -> completion queue -> Done
//!                                        ^------ short, EINTR, EAGAIN ------'
//! ```
//!
//! At most [`DEPTH`] requests are with the kernel, so neither queue overflows; the rest waits in the
//! backlog, which is as long as the submitter lets it be (a cell bounds its tasks). A multishot poll
//! of the wake descriptor sits in the same ring, so parking is one wait for both.
//!
//! Completions are delivered when we enter the kernel or look (`COOP_TASKRUN`), not by interrupting
//! us; the `TASKRUN` flag says when looking needs a call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use warren_base::{BlockNo, Errno};

use crate::blocking::drain;
use crate::device::{Device, Done};
use crate::transfer::{Action, Step, Transfer};
use crate::{DeviceError, PoolFile};

/// Requests that the kernel has at once: more than any one disk's queue is worth.
const DEPTH: usize = 255;
/// The submission queue holds all of them and the poll of the wake descriptor.
const ENTRIES: u32 = 256;
const _: () = assert!(DEPTH < ENTRIES as usize);

/// Names the poll of the wake descriptor among the completions. The others are indices.
const WAKE: u64 = u64::MAX;

pub struct Uring {
    ring: IoUring,
    pool: PoolFile,
    /// Requests by index; `None` is free, and listed in `free`.
    transfers: Vec<Option<Transfer>>,
    free: Vec<usize>,
    backlog: VecDeque<usize>,
    /// Requests that the kernel has, or will have with the next call.
    flying: usize,
    refused: Vec<Done>,
    finished: Vec<Done>,
    wake: Option<OwnedFd>,
    wake_armed: bool,
    /// A wake-up was taken off the ring since the last park ended: the next one must not sleep, or
    /// a wake-up that came between the caller's last look and its park would be lost.
    woken: bool,
}

impl Uring {
    /// [`DeviceError::NoUring`] if the machine or container does not allow it.
    pub fn new(pool: PoolFile) -> Result<Self, DeviceError> {
        let ring = build().map_err(refused)?;
        Ok(Self {
            ring,
            pool,
            transfers: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            flying: 0,
            refused: Vec::new(),
            finished: Vec::new(),
            wake: None,
            wake_armed: false,
            woken: false,
        })
    }

    fn submit(&mut self, token: u64, transfer: Option<Transfer>) {
        let Some(transfer) = transfer else {
            self.refused.push(Done { token, result: Err(Errno::EIO) });
            return;
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.transfers.push(None);
            self.transfers.len() - 1
        });
        self.transfers[index] = Some(transfer);
        self.backlog.push_back(index);
    }

    /// Moves the backlog to the submission queue as far as the depth allows.
    fn feed(&mut self) {
        while self.flying < DEPTH
            && let Some(index) = self.backlog.pop_front()
        {
            let Some(transfer) = &self.transfers[index] else { continue };
            let entry = entry(&self.pool, transfer).user_data(index as u64);
            self.push(&entry);
            self.flying += 1;
        }
        if let Some(wake) = &self.wake
            && !self.wake_armed
        {
            let fd = Fd(wake.as_raw_fd());
            let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
            self.push(&poll.user_data(WAKE));
            self.wake_armed = true;
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry's descriptor is ours and outlives the ring's use of it, its iovecs lie
        // in `transfers` until the completion, and its frames are what the submitter promised.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the submission queue holds DEPTH requests and a poll");
    }

    /// Hands the queue to the kernel without waiting, and lets it deliver what it holds back.
    fn enter(&mut self) -> Result<(), DeviceError> {
        let queue = self.ring.submission();
        let (empty, must_look) = (queue.is_empty(), queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if empty && !must_look {
            return Ok(());
        }
        let mut result = self.ring.submit().map(drop);
        if must_look && result.is_ok() {
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: submits nothing and waits for nothing; there is no signal mask.
            let looked =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, flags, None) };
            result = looked.map(drop);
        }
        result.or_else(passing)
    }

    /// Takes the completions; requests that need another trip go to the head of the backlog.
    fn reap(&mut self) -> Result<(), DeviceError> {
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else { return Ok(()) };
            if entry.user_data() == WAKE {
                self.wake_armed = cqueue::more(entry.flags());
                self.woken = true;
                if let Some(wake) = &self.wake {
                    drain(wake)?;
                }
                continue;
            }
            self.flying -= 1;
            self.complete(entry.user_data() as usize, entry.result());
        }
    }

    fn complete(&mut self, index: usize, result: i32) {
        let Some(transfer) = &mut self.transfers[index] else {
            unreachable!("a completion of a request that is not there");
        };
        match transfer.advance(result) {
            Step::Again => self.backlog.push_front(index),
            Step::Done(result) => {
                self.finished.push(Done { token: transfer.token, result });
                self.transfers[index] = None;
                self.free.push(index);
            }
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let waited = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        waited.map(drop).or_else(passing)
    }
}

/// Of the errors of entering the kernel, those that pass: the queues keep what is in them.
fn passing(error: io::Error) -> Result<(), DeviceError> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::ETIME) => Ok(()),
        _ => Err(DeviceError::Queue(error)),
    }
}

/// Whether io_uring is forbidden here, or only failed.
fn refused(error: io::Error) -> DeviceError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => DeviceError::NoUring(error),
        _ => DeviceError::Queue(error),
    }
}

fn build() -> io::Result<IoUring> {
    let cooperative = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES);
    match cooperative {
        // Kernels before 5.19 do not know the flags.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(ENTRIES),
        other => other,
    }
}

fn entry(pool: &PoolFile, transfer: &Transfer) -> squeue::Entry {
    let fd = Fd(pool.as_fd().as_raw_fd());
    let iovecs = transfer.iovecs();
    let (ptr, len, at) = (iovecs.as_ptr(), iovecs.len() as u32, transfer.offset);
    match transfer.action {
        Action::Read => opcode::Readv::new(fd, ptr, len).offset(at).build(),
        Action::Write => opcode::Writev::new(fd, ptr, len).offset(at).build(),
        Action::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

impl Device for Uring {
    fn len_blocks(&self) -> u64 {
        self.pool.len_blocks()
    }

    unsafe fn submit_read(&mut self, token: u64, block: BlockNo, frames: &[*mut u8]) {
        let frames = frames.iter().copied();
        let end = self.len_blocks();
        self.submit(token, Transfer::new(token, Action::Read, block, frames, end));
    }

    unsafe fn submit_write(&mut self, token: u64, block: BlockNo, frames: &[*const u8]) {
        let frames = frames.iter().map(|frame| frame.cast_mut());
        let end = self.len_blocks();
        self.submit(token, Transfer::new(token, Action::Write, block, frames, end));
    }

    fn submit_flush(&mut self, token: u64) {
        self.submit(token, Some(Transfer::flush(token)));
    }

    fn in_flight(&self) -> usize {
        self.flying + self.backlog.len() + self.refused.len() + self.finished.len()
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), DeviceError> {
        self.feed();
        self.enter()?;
        self.reap()?;
        done.append(&mut self.refused);
        done.append(&mut self.finished);
        Ok(())
    }

    fn park(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.feed();
        self.reap()?;
        let nothing_done = self.refused.is_empty() && self.finished.is_empty();
        // A request that needs another trip must be fed first.
        let backlog_waits = self.flying < DEPTH && !self.backlog.is_empty();
        if nothing_done && !backlog_waits && !self.woken {
            self.wait(timeout)?;
            self.reap()?;
        }
        self.woken = false;
        Ok(())
    }

    fn set_wake(&mut self, wake: OwnedFd) {
        assert!(self.wake.is_none(), "a ring has one wake descriptor for life");
        self.wake = Some(wake);
    }
}

impl Drop for Uring {
    /// The kernel may still write to frames: they must not go first.
    fn drop(&mut self) {
        self.backlog.clear();
        while self.flying > 0 {
            // Another trip of a short transfer is not begun. If our own ring fails us, nothing but
            // the end of the process keeps the kernel out of memory that is about to be reused.
            if self.wait(None).is_err() || self.reap().is_err() {
                std::process::abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use warren_base::limits::BLOCK_SIZE;

    #[test]
    fn only_a_ring_that_is_forbidden_is_done_without() {
        let of = |errno| refused(io::Error::from_raw_os_error(errno));
        for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
            assert!(matches!(of(errno), DeviceError::NoUring(_)));
        }
        for errno in [libc::EMFILE, libc::ENOMEM, libc::EINVAL] {
            assert!(matches!(of(errno), DeviceError::Queue(_)));
        }
    }

    /// The device is a pipe, so that its one read is with the kernel until we write.
    #[test]
    fn a_dropped_ring_waits_for_who_is_writing_to_frames() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut device = Uring::new(PoolFile::of_descriptor(read, 1)).unwrap();
        let mut frame = vec![0; BLOCK_SIZE];
        // SAFETY: the frame lives and is left alone until the device is dropped.
        unsafe { device.submit_read(1, BlockNo(0), &[frame.as_mut_ptr()]) };
        device.poll(&mut Vec::new()).unwrap();
        assert_eq!(device.flying, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                assert_eq!(rustix::io::write(&write, &[7; BLOCK_SIZE]), Ok(BLOCK_SIZE));
            });
            drop(device);
            assert!(frame.iter().all(|byte| *byte == 7), "dropped before the read was done");
        });
    }
}
