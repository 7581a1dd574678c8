//! Dropping the kernel's pages of a file, in a thread that can outlive the front.
//!
//! The kernel handles this notice only after the requests that have the pages locked are answered,
//! and no signal interrupts the wait: a thread in it outlives the death of its process. The next
//! front answers those requests, so it must be able to start before the thread has ended. Therefore
//! the notice has a thread of its own. The thread has its own descriptor table, in which there is
//! only the device, and it touches no shared memory. When all other threads of a killed front are
//! gone, the front's end of the link to the mount keeper is closed, and the keeper starts the next
//! front. The old thread then does nothing but finish its notice. A superfluous notice is harmless.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use warren_base::Ino;

use crate::abi;
use crate::channel::{self, Channel};
use crate::invalidate::{Cached, invalidate, notice_body};

/// The thread makes one system call at a time and needs little stack.
const STACK: usize = 64 * 1024;

/// The pages of an inode, to be dropped.
struct PageDrop {
    ino: Ino,
    done: Sender<()>,
}

/// Drops pages, of one file after another.
pub(crate) struct PageDropper {
    channel: Arc<dyn Channel>,
    /// To the thread, which starts with the first notice.
    drops: Option<Sender<PageDrop>>,
}

impl PageDropper {
    pub(crate) fn new(channel: Arc<dyn Channel>) -> Self {
        Self { channel, drops: None }
    }

    pub(crate) fn channel(&self) -> &Arc<dyn Channel> {
        &self.channel
    }

    /// Drops the pages of an inode, and waits until that is done. A worker thread must not call it,
    /// because it waits for reads and writes of these pages.
    pub(crate) fn drop_pages(&mut self, ino: Ino) {
        if self.drops.is_none() {
            self.drops = self.start();
        }
        let (done, is_done) = channel();
        let drop = PageDrop { ino, done };
        if self.drops.as_ref().is_some_and(|drops| drops.send(drop).is_ok())
            && is_done.recv().is_ok()
        {
            return;
        }
        // No thread could be started. The result does not matter: an unknown inode has no pages,
        // and after any other error the connection is being closed.
        let _ = invalidate(&*self.channel, ino, Cached::Pages);
    }

    fn start(&self) -> Option<Sender<PageDrop>> {
        let device = self.channel.device()?.as_raw_fd();
        let (drops, received) = channel();
        let (started, has_started) = channel();
        let run = move || {
            let Ok(device) = keep_only(device) else { return };
            // `start` waits for this.
            let _ = started.send(());
            serve(&device, &received);
        };
        let builder = thread::Builder::new().name("drop pages".into()).stack_size(STACK);
        builder.spawn(run).ok()?;
        // The channel keeps the device open until the thread has it in its own table.
        has_started.recv().ok()?;
        Some(drops)
    }
}

fn serve(device: &OwnedFd, drops: &Receiver<PageDrop>) {
    while let Ok(PageDrop { ino, done }) = drops.recv() {
        let body = notice_body(ino, Cached::Pages);
        // The result does not matter, as in `drop_pages`.
        let _ = channel::notify(device.as_fd(), abi::NOTIFY_INVAL_INODE, &body);
        let _ = done.send(());
    }
}

/// Gives the calling thread its own descriptor table with only standard error and `device`. Returns
/// the device in that table.
#[expect(unsafe_code, reason = "no safe binding of close_range")]
fn keep_only(device: RawFd) -> io::Result<OwnedFd> {
    let number = device.cast_unsigned();
    let stderr = libc::STDERR_FILENO.cast_unsigned();
    let close = |first: u32, last: u32, flags: u32| {
        if first > last {
            return Ok(());
        }
        // SAFETY: the first call gives this thread its own table, so that descriptors which it
        // closes stay open for the other threads. From then on this thread uses none of theirs.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    close(number + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    close(stderr + 1, number.saturating_sub(1), 0)?;
    close(0, stderr - 1, 0)?;
    // SAFETY: it is open in this thread's table, and nothing else in this thread owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(device) })
}
