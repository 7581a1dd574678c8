//! The channel to the kernel: it carries requests in, and replies and notices out.
//!
//! [`DevFuse`] is `/dev/fuse`. Its descriptor is non-blocking, so that a reader can poll it in a
//! loop. A reader that sleeps does so in `poll(2)`, together with the event that stops the channel.
//! At most one thread waits, so a request wakes one thread.
//!
//! **Memory that the kernel copies from and to must be resident.** While the kernel copies a
//! message of a process that is killed, it cannot fault pages in. The copy fails, and the kernel
//! returns EIO to the caller instead of keeping the request for the next front.

use std::hint::black_box;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno as Os;
use warren_base::Errno;
use warren_runtime::poll_each;

use crate::abi;
use crate::message::Head;

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// A message of this many bytes: head first, then payload.
    Message(usize),
    /// There is no message.
    Nothing,
    /// The channel was unmounted, aborted or stopped: there will be no more messages.
    Closed,
}

/// A connection to a kernel that speaks FUSE.
pub(crate) trait Channel: Send + Sync {
    /// Reads a message if there is one.
    fn read(&self, head: &mut Head, payload: &mut [u8]) -> Received;

    /// Waits until there may be a message, the channel is closed, or the time is over. Does not
    /// wait with a time-out of zero. Returns whether [`Self::read`] should be called.
    fn wait(&self, timeout: Option<Duration>) -> bool;

    /// Replies to request `unique`. It is no error if the request is gone, because its caller was
    /// killed.
    fn reply(&self, unique: u64, answer: Result<&[u8], Errno>);

    /// Sends a notice to the kernel. ENOENT if the kernel does not know the inode.
    fn notify(&self, code: i32, body: &[u8]) -> Result<(), Errno>;

    /// Closes the channel for readers. Replies can still be sent.
    fn stop(&self);

    /// The device, if the channel is one.
    fn device(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// No page of memory is smaller.
const PAGE: usize = 4096;

/// Makes the memory for [`Channel::read`] resident. Its content stays.
pub(crate) fn make_resident(memory: &mut [u8]) {
    for byte in memory.iter_mut().step_by(PAGE) {
        *byte = black_box(*byte);
    }
    if let Some(last) = memory.last_mut() {
        *last = black_box(*last);
    }
}

fn touch(memory: &[u8]) {
    for byte in memory.iter().step_by(PAGE).chain(memory.last()) {
        black_box(*byte);
    }
}

/// An open and mounted `/dev/fuse`.
#[derive(Debug)]
pub(crate) struct DevFuse {
    device: OwnedFd,
    /// Readable after the channel was stopped, which ends the wait.
    stop: OwnedFd,
    stopped: AtomicBool,
}

impl DevFuse {
    /// `device` is the descriptor that was passed to `mount`.
    pub(crate) fn new(device: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&device)?;
        fcntl_setfl(&device, flags | OFlags::NONBLOCK)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { device, stop, stopped: AtomicBool::new(false) })
    }

    fn write(&self, error: i32, unique: u64, body: &[u8]) -> Result<(), Os> {
        write(self.device.as_fd(), error, unique, body)
    }
}

fn write(device: BorrowedFd<'_>, error: i32, unique: u64, body: &[u8]) -> Result<(), Os> {
    let mut header = [0; abi::OUT_HEADER];
    let len = (abi::OUT_HEADER + body.len()) as u32;
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    let parts = [IoSlice::new(&header), IoSlice::new(body)];
    let parts = if body.is_empty() { &parts[..1] } else { &parts[..] };
    rustix::io::retry_on_intr(|| rustix::io::writev(device, parts)).map(|_| ())
}

/// Sends a notice through a device. ENOENT if the kernel does not know the inode.
pub(crate) fn notify(device: BorrowedFd<'_>, code: i32, body: &[u8]) -> Result<(), Errno> {
    write(device, code, 0, body)
        .map_err(|os| Errno::from_raw(os.raw_os_error()).unwrap_or(Errno::EIO))
}

impl Channel for DevFuse {
    fn read(&self, head: &mut Head, payload: &mut [u8]) -> Received {
        loop {
            let mut parts = [IoSliceMut::new(head), IoSliceMut::new(payload)];
            match rustix::io::readv(&self.device, &mut parts) {
                Ok(0) => return Received::Closed,
                Ok(len) => return Received::Message(len),
                Err(Os::AGAIN) if self.stopped.load(Ordering::Acquire) => return Received::Closed,
                Err(Os::AGAIN) => return Received::Nothing,
                // The caller was killed while its request was copied, or a signal arrived.
                Err(Os::NOENT | Os::INTR) => {}
                Err(_) => return Received::Closed,
            }
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
        let mut fds =
            [PollFd::new(&self.device, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        match poll_each(&mut fds, timeout.as_ref()) {
            Ok(ready) => ready > 0,
            // The read returns the error.
            Err(_) => true,
        }
    }

    fn reply(&self, unique: u64, answer: Result<&[u8], Errno>) {
        let (error, body) = match answer {
            Ok(body) => {
                touch(body);
                (0, body)
            }
            Err(errno) => (-errno.raw(), &[][..]),
        };
        if let Err(Os::INVAL) = self.write(error, unique, body)
            && error == 0
        {
            // The kernel rejected the reply, and the caller still waits.
            let _ = self.write(-Errno::EIO.raw(), unique, &[]);
        }
    }

    fn notify(&self, code: i32, body: &[u8]) -> Result<(), Errno> {
        notify(self.device.as_fd(), code, body)
    }

    fn device(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.as_fd())
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // It fails only after 2^64 stops.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }
}
