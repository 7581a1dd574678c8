//! Having the kernel drop the pages of a file.
//!
//! That notice waits until the requests that have the pages locked are answered, and no signal ends the wait: a
//! thread that is in it outlives the death of its process. The next front is to answer those requests, so it must not have to
//! wait for the thread. Hence a thread of its own gives the notice, which has a descriptor table of its own with nothing in it
//! but the device, and touches no memory that others share. When every other thread is gone, the front's end of the
//! custodian's link is closed, and the custodian starts the next front. All that the thread does after that is
//! to end its notice, late: a notice too many does no harm.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use warren_base::Ino;

use crate::abi;
use crate::channel::{self, Channel};
use crate::recall::{Range, invalidation};

/// It makes one system call at a time.
const STACK: usize = 64 * 1024;

/// What the thread is to do.
struct Job {
    ino: Ino,
    done: Sender<()>,
}

/// Drops pages, one file's after another's.
pub struct PageDropper {
    channel: Arc<dyn Channel>,
    /// The thread, once there was something to drop.
    jobs: Option<Sender<Job>>,
}

impl PageDropper {
    pub fn new(channel: Arc<dyn Channel>) -> Self {
        Self { channel, jobs: None }
    }

    pub fn channel(&self) -> &Arc<dyn Channel> {
        &self.channel
    }

    /// Drops the pages of an inode. Not from a thread that serves: it waits for reads and writes of them.
    pub fn drop_pages(&mut self, ino: Ino) {
        if self.jobs.is_none() {
            self.jobs = self.start();
        }
        let (done, is_done) = channel();
        let job = Job { ino, done };
        if self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok()) && is_done.recv().is_ok() {
            return;
        }
        // There is no thread to be had. An unknown inode has no pages, and after other errors the kernel is
        // going away.
        let body = invalidation(ino, Range::Pages);
        let _ = self.channel.notify(abi::NOTIFY_INVAL_INODE, &body);
    }

    fn start(&self) -> Option<Sender<Job>> {
        let device = self.channel.device()?.as_raw_fd();
        let (jobs, arrivals) = channel();
        let (started, has_started) = channel();
        let life = move || {
            let Ok(device) = keep_only(device) else { return };
            // Whoever started it waits for this.
            let _ = started.send(());
            serve(&device, &arrivals);
        };
        let builder = thread::Builder::new().name("drop pages".into()).stack_size(STACK);
        builder.spawn(life).ok()?;
        // The channel keeps the device open until the thread has it in its own table.
        has_started.recv().ok()?;
        Some(jobs)
    }
}

fn serve(device: &OwnedFd, arrivals: &Receiver<Job>) {
    while let Ok(Job { ino, done }) = arrivals.recv() {
        let body = invalidation(ino, Range::Pages);
        // As in `drop_pages`.
        let _ = channel::notify(device.as_fd(), abi::NOTIFY_INVAL_INODE, &body);
        let _ = done.send(());
    }
}

/// Gives the calling thread a descriptor table of its own, which has standard error and `device` only, and returns the
/// device as this thread has it.
#[expect(unsafe_code, reason = "no safe binding of close_range")]
fn keep_only(device: RawFd) -> io::Result<OwnedFd> {
    let number = device.cast_unsigned();
    let stderr = libc::STDERR_FILENO.cast_unsigned();
    let close = |first: u32, last: u32, flags: u32| {
        if first > last {
            return Ok(());
        }
        // SAFETY: the first call gives this thread a table of its own, so that what is closed stays open for all others,
        // and this thread uses no descriptor of theirs from then on.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    close(number + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    close(stderr + 1, number.saturating_sub(1), 0)?;
    close(0, stderr - 1, 0)?;
    // SAFETY: in this thread's table it is open, and nothing else in this thread owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(device) })
}
