//! The way to the kernel: requests come in, replies and notices go out.
//!
//! [`DevFuse`] is `/dev/fuse`. It never blocks in `read(2)`: its descriptor is non-blocking, so that
//! a reader can spin on it, and whoever waits does so in `poll(2)`, together with the event that ends
//! the wait. The front lets one thread at a time wait, so a request wakes one thread.
//!
//! **Memory that the kernel copies from and to is resident.** A process that is killed while the kernel
//! copies a message faults no page in any more: the copy fails, and the kernel gives the caller EIO
//! instead of keeping the request for the next front.

use std::hint::black_box;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno as Os;
use warren_base::Errno;

use crate::abi;
use crate::message::Head;

/// What reading came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// A message of this many bytes: head first, then payload.
    Message(usize),
    /// No message waits.
    Nothing,
    /// Unmounted, aborted, or stopped: there will be no more.
    Closed,
}

/// A connection to a kernel that speaks FUSE.
pub trait Channel: Send + Sync {
    /// Takes a message if one waits.
    fn read(&self, head: &mut Head, payload: &mut [u8]) -> Received;

    /// Waits until a message may be there, the channel is closed, or the time is over. At once
    /// with a time-out of zero. Says whether there is something to read.
    fn wait(&self, timeout: Option<Duration>) -> bool;

    /// Answers request `unique`. That the request is gone by now is no error: its process was killed.
    fn reply(&self, unique: u64, answer: Result<&[u8], Errno>);

    /// Tells the kernel something it did not ask for. ENOENT if it does not know the inode.
    fn notify(&self, code: i32, body: &[u8]) -> Result<(), Errno>;

    /// From now on the channel is closed for readers. Replies still get through.
    fn stop(&self);

    /// What it consists of, if it is a device.
    fn device(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What the kernel is sure to map at least that much of at once.
const PAGE: usize = 4096;

/// Makes memory that [`Channel::read`] will be given resident. It changes nothing in it.
pub fn make_resident(memory: &mut [u8]) {
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
pub struct DevFuse {
    device: OwnedFd,
    /// Readable once the channel is stopped, so that waiting ends.
    stop: OwnedFd,
    stopped: AtomicBool,
}

impl DevFuse {
    /// `device` is what was given to `mount`.
    pub fn new(device: OwnedFd) -> io::Result<Self> {
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

/// Tells the kernel that owns a device something it did not ask for. ENOENT if it does not know the inode.
pub fn notify(device: BorrowedFd<'_>, code: i32, body: &[u8]) -> Result<(), Errno> {
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
                // The request was taken back while it was copied, or a signal came.
                Err(Os::NOENT | Os::INTR) => {}
                Err(_) => return Received::Closed,
            }
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
        let mut fds =
            [PollFd::new(&self.device, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => ready > 0,
            // Reading says what is wrong.
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
            // The kernel did not like it and still waits. It must not wait for ever.
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
        // It cannot fail short of 2^64 stops.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }
}
