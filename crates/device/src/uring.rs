//! The device queue over io_uring.
//!
//! ```text
//! submit -> backlog -> (poll, park) submission queue -> kernel -> completion queue -> Done
//!                                        ^------ short, EINTR, EAGAIN ------'
//! ```
//!
//! At most [`DEPTH`] requests are in the kernel, so neither queue overflows. The others wait in the
//! backlog, whose length the submitter limits (a cell limits its tasks). A multishot poll of the
//! wake descriptor is in the same ring, so parking is one wait for both.
//!
//! A write-through to a block device is one request with `RWF_DSYNC`: the kernel passes that on to
//! the device, or has it flush, without a thread that waits. To a file it is two linked requests, a
//! write and a flush, submitted together. The write has a completion only if it did not write all;
//! then the flush behind it is not started and has none. So there is one completion in any case.
//!
//! Completions are delivered when this process enters the kernel or polls (`COOP_TASKRUN`), not by
//! an interrupt. The `TASKRUN` flag shows when polling needs a system call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use warren_base::Errno;

use crate::blocking::{DISCARD, drain};
use crate::device::Device;
use crate::transfer::{Action, Done, Step, Transfer};
use crate::{DeviceError, PoolFile};

/// Requests in the kernel at a time: more than any one disk's queue can use.
const DEPTH: usize = 255;
/// The submission queue has room for all of them, each with two entries, and for the poll of the
/// wake descriptor.
const ENTRIES: u32 = 512;
const _: () = assert!(2 * DEPTH < ENTRIES as usize);

/// Marks the completions of the poll of the wake descriptor. The others are indices.
const WAKE: u64 = u64::MAX;

/// Marks the index of a write that a flush follows.
const LINKED: u64 = 1 << 63;

pub struct Uring {
    ring: IoUring,
    pool: PoolFile,
    /// Whether the kernel supports a successful write without a completion (since 5.17).
    links: bool,
    /// Requests by index. `None` is free, and listed in `free`.
    transfers: Vec<Option<Transfer>>,
    free: Vec<usize>,
    backlog: VecDeque<usize>,
    /// Requests that the kernel has, or will have after the next call.
    flying: usize,
    refused: Vec<Done>,
    finished: Vec<Done>,
    wake: Option<OwnedFd>,
    rung: Vec<u8>,
    wake_armed: bool,
    /// A wake-up was taken off the ring since the last park ended. The next park must not sleep;
    /// otherwise a wake-up between the caller's last look and its park would be lost.
    woken: bool,
}

impl Uring {
    /// [`DeviceError::NoUring`] if the machine or container does not allow it.
    pub fn new(pool: PoolFile) -> Result<Self, DeviceError> {
        let ring = build().map_err(refused)?;
        Ok(Self {
            links: ring.params().is_feature_skip_cqe_on_success(),
            ring,
            pool,
            transfers: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            flying: 0,
            refused: Vec::new(),
            finished: Vec::new(),
            wake: None,
            rung: Vec::new(),
            wake_armed: false,
            woken: false,
        })
    }

    /// Moves requests from the backlog to the submission queue, up to the depth.
    fn feed(&mut self) {
        while self.flying < DEPTH
            && let Some(index) = self.backlog.pop_front()
        {
            let Some(transfer) = &self.transfers[index] else { continue };
            let first = entry(&self.pool, transfer).user_data(index as u64);
            if self.links && transfer.action == Action::WriteThrough {
                let linked = squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS;
                self.push(&first.user_data(LINKED | index as u64).flags(linked));
                self.push(&flush(&self.pool).user_data(index as u64));
            } else {
                self.push(&first);
            }
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
        // SAFETY: this process owns the entry's descriptor, which outlives the ring's use of it;
        // its iovecs are in `transfers` until the completion; and the submitter vouches for its
        // frames.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the submission queue holds all that may be in flight");
    }

    /// Submits the queue without waiting, and lets the kernel deliver completions that it holds
    /// back.
    fn enter(&mut self) -> Result<(), DeviceError> {
        let queue = self.ring.submission();
        let (empty, must_look) = (queue.is_empty(), queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if empty && !must_look {
            return Ok(());
        }
        let waiting = self.ring.submission().len();
        let mut result = self.ring.submit().and_then(|taken| ensure_all_taken(taken, waiting));
        if must_look && result.is_ok() {
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: the call submits nothing and waits for nothing; there is no signal mask.
            let looked =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, flags, None) };
            result = looked.map(drop);
        }
        result.or_else(passing)
    }

    /// Handles the completions. Requests that need another call go to the head of the backlog.
    fn reap(&mut self) -> Result<(), DeviceError> {
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else { return Ok(()) };
            if entry.user_data() == WAKE {
                self.wake_armed = cqueue::more(entry.flags());
                self.woken = true;
                if let Some(wake) = &self.wake {
                    drain(wake, &mut self.rung)?;
                }
                continue;
            }
            self.flying -= 1;
            self.complete(entry.user_data(), entry.result());
        }
    }

    fn complete(&mut self, name: u64, result: i32) {
        let index = (name & !LINKED) as usize;
        let Some(transfer) = &mut self.transfers[index] else {
            unreachable!("a completion of a request that is not there");
        };
        let is_flush_behind =
            self.links && transfer.action == Action::WriteThrough && name & LINKED == 0;
        let step = match is_flush_behind {
            true => transfer.advance_flush(result),
            false => transfer.advance(result),
        };
        match step {
            Step::Again => self.backlog.push_front(index),
            Step::Done(result) => {
                let result = self.pool.reserved_whole(transfer, result);
                self.finished.push(transfer.done(result));
                self.transfers[index] = None;
                self.free.push(index);
            }
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let waiting = self.ring.submission().len();
        let waited = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        waited.and_then(|taken| ensure_all_taken(taken, waiting)).or_else(passing)
    }
}

/// The kernel takes all entries or none, unless it runs out of memory in between. That may separate
/// a write from the flush behind it, which would then not wait for it, so the ring can no longer be
/// relied on.
fn ensure_all_taken(taken: usize, waiting: usize) -> io::Result<()> {
    match taken {
        0 => Ok(()),
        _ if taken >= waiting => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
    }
}

/// Ignores transient errors of entering the kernel: the queues keep their contents.
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
    let mut builder = IoUring::builder();
    builder.setup_r_disabled();
    let cooperative = builder.setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES);
    let unknown = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let ring = match cooperative {
        // Kernels before 5.19 do not support all flags.
        Err(error) if unknown(&error) => IoUring::builder().setup_r_disabled().build(ENTRIES),
        other => other,
    };
    match ring {
        Ok(ring) => restrict(ring),
        // Before 5.10 a ring cannot be restricted.
        Err(error) if unknown(&error) => IoUring::new(ENTRIES),
        Err(error) => Err(error),
    }
}

/// Restricts the ring to the operations of a device queue. A filter of system calls does not see a
/// ring's operations: without this, a process that may not open a file could have its ring open it.
fn restrict(ring: IoUring) -> io::Result<IoUring> {
    let calls = [
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::PollAdd::CODE,
    ];
    let flags = squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS;
    let mut allowed: Vec<Restriction> = calls.into_iter().map(Restriction::sqe_op).collect();
    allowed.push(Restriction::sqe_flags_allowed(flags.bits()));
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

fn entry(pool: &PoolFile, transfer: &Transfer) -> squeue::Entry {
    let fd = Fd(pool.as_fd().as_raw_fd());
    let iovecs = transfer.iovecs();
    let (ptr, len, at) = (iovecs.as_ptr(), iovecs.len() as u32, transfer.offset);
    match transfer.action {
        Action::Read => opcode::Readv::new(fd, ptr, len).offset(at).build(),
        Action::Write | Action::WriteThrough => {
            opcode::Writev::new(fd, ptr, len).offset(at).build()
        }
        Action::WriteDurable => {
            opcode::Writev::new(fd, ptr, len).offset(at).rw_flags(libc::RWF_DSYNC).build()
        }
        Action::Flush => flush(pool),
        Action::Reserve => opcode::Fallocate::new(fd, transfer.span).offset(at).build(),
        Action::Discard => {
            opcode::Fallocate::new(fd, transfer.span).offset(at).mode(DISCARD).build()
        }
    }
}

fn flush(pool: &PoolFile) -> squeue::Entry {
    let fd = Fd(pool.as_fd().as_raw_fd());
    opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()
}

impl Device for Uring {
    fn len_blocks(&self) -> u64 {
        self.pool.len_blocks()
    }

    fn grow(&mut self, len_blocks: u64) {
        self.pool.grow(len_blocks);
    }

    fn submit(&mut self, token: u64, transfer: Option<Transfer>) {
        let Some(mut transfer) = transfer else {
            self.refused.push(Done { token, result: Err(Errno::EIO), flush: false });
            return;
        };
        if transfer.action == Action::WriteThrough && self.pool.is_block_device() {
            transfer.action = Action::WriteDurable;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.transfers.push(None);
            self.transfers.len() - 1
        });
        self.transfers[index] = Some(transfer);
        self.backlog.push_back(index);
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
        // A request that needs another call must be fed first.
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

    fn take_rung(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rung)
    }
}

impl Drop for Uring {
    /// Waits for the kernel, which may still write to frames: these must not be freed first.
    fn drop(&mut self) {
        self.backlog.clear();
        while self.flying > 0 {
            // The rest of a short transfer is not started. If the ring itself fails, only the end
            // of the process keeps the kernel out of memory that is about to be reused.
            if self.wait(None).is_err() || self.reap().is_err() {
                std::process::abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::ScratchPath;
    use std::fs::File;
    use std::thread;
    use warren_base::BlockNo;
    use warren_base::limits::BLOCK_SIZE;

    #[test]
    fn only_a_forbidden_ring_is_replaced() {
        let of = |errno| refused(io::Error::from_raw_os_error(errno));
        for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
            assert!(matches!(of(errno), DeviceError::NoUring(_)));
        }
        for errno in [libc::EMFILE, libc::ENOMEM, libc::EINVAL] {
            assert!(matches!(of(errno), DeviceError::Queue(_)));
        }
    }

    /// For a pipe, a flush is EINVAL; a write beyond the limit on file sizes would be a short one.
    #[test]
    fn an_error_of_either_part_of_a_write_through_is_reported_once() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        for (fd, errno, flush) in [(write, Errno::EINVAL, true), (read, Errno::EBADF, false)] {
            let mut device = Uring::new(PoolFile::of_descriptor(fd, 1)).unwrap();
            let frame = vec![0; BLOCK_SIZE];
            // SAFETY: the frame lives and is unchanged until the device is dropped.
            unsafe { device.submit_write_through(5, BlockNo(0), &[frame.as_ptr()]) };
            let mut done = Vec::new();
            while device.in_flight() > 0 {
                device.park(Some(Duration::from_secs(20))).unwrap();
                device.poll(&mut done).unwrap();
            }
            assert_eq!(done, [Done { token: 5, result: Err(errno), flush }]);
            assert_eq!(device.flying, 0);
        }
    }

    /// A file stands in for a block device: it supports the same flag.
    #[test]
    fn a_write_through_to_a_block_device_is_one_request() {
        let scratch = ScratchPath::new();
        std::fs::write(scratch.path(), [0; 2 * BLOCK_SIZE]).unwrap();
        for (is_writable, result) in [(true, Ok(())), (false, Err(Errno::EBADF))] {
            let file = File::options().read(true).write(is_writable).open(scratch.path()).unwrap();
            let pool = PoolFile::of_block_device(file.into(), 2);
            let mut device = Uring::new(pool).unwrap();
            let frame = vec![7; BLOCK_SIZE];
            // SAFETY: the frame lives and is unchanged until the device is dropped.
            unsafe { device.submit_write_through(5, BlockNo(1), &[frame.as_ptr()]) };
            device.feed();
            assert_eq!(device.ring.submission().len(), 1);
            let mut done = Vec::new();
            while device.in_flight() > 0 {
                device.park(Some(Duration::from_secs(20))).unwrap();
                device.poll(&mut done).unwrap();
            }
            assert_eq!(done, [Done { token: 5, result, flush: result.is_err() }]);
        }
        let bytes = std::fs::read(scratch.path()).unwrap();
        assert_eq!([bytes[0], bytes[BLOCK_SIZE], bytes[2 * BLOCK_SIZE - 1]], [0, 7, 7]);
    }

    #[test]
    fn a_ring_opens_no_file_and_no_connection() {
        let mut ring = build().unwrap();
        let here = Fd(libc::AT_FDCWD);
        let entries = [
            opcode::OpenAt::new(here, c"/dev/null".as_ptr()).build(),
            opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build(),
            opcode::UnlinkAt::new(here, c"/no/such/file".as_ptr()).build(),
            opcode::Nop::new().build(),
            opcode::PollAdd::new(Fd(0), 0).build().flags(squeue::Flags::ASYNC),
        ];
        for entry in entries {
            // SAFETY: the paths are constants, and nothing else in the entries is borrowed.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            let result = ring.completion().next().unwrap().result();
            assert_eq!(result, -libc::EACCES, "{entry:?}");
        }
        let again = ring.submitter().register_restrictions(&mut [Restriction::sqe_op(0)]);
        assert!(again.is_err(), "the restriction stays");
    }

    #[test]
    fn a_half_submitted_chain_is_an_error() {
        assert!(ensure_all_taken(0, 5).is_ok() && ensure_all_taken(5, 5).is_ok());
        let error = ensure_all_taken(4, 5).unwrap_err();
        assert!(passing(error).is_err());
    }

    /// The device is a pipe, so that its one read stays in the kernel until the test writes.
    #[test]
    fn a_dropped_ring_waits_for_reads_into_frames() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut device = Uring::new(PoolFile::of_descriptor(read, 1)).unwrap();
        let mut frame = vec![0; BLOCK_SIZE];
        // SAFETY: the frame lives and is unchanged until the device is dropped.
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
