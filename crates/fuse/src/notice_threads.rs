//! Notices for which the kernel waits, in threads that can outlive the front.
//!
//! The kernel handles these notices only after the requests that have the pages or the directory
//! locked are answered, and no signal interrupts the wait: a thread in it outlives the death of its
//! process. The next front answers those requests, so it must be able to start before the thread
//! has ended. Therefore such notices have threads of their own. Each has its own descriptor table,
//! in which there is only the device, and touches no shared memory. When all other threads of a
//! killed front are gone, the front's end of the link to the mount keeper is closed, and the keeper
//! starts the next front. The old thread then does nothing but finish its notices. A superfluous
//! notice is harmless.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use warren_base::Ino;

use crate::channel::{self, Channel};
use crate::notice::Notice;

/// The thread makes one system call at a time and needs little stack.
const STACK: usize = 64 * 1024;
/// So many threads of one sender can wait in the kernel. With none left, notices count as late at
/// once.
const THREADS_MAX: usize = 8;

/// Sends notices, and waits for the kernel.
pub(crate) struct NoticeSender {
    channel: Arc<dyn Channel>,
    threads: Vec<NoticeThread>,
}

struct NoticeThread {
    work: Sender<Vec<Notice>>,
    done: Receiver<()>,
    /// It has notices that its sender does not wait for any more.
    is_late: bool,
}

impl NoticeSender {
    pub(crate) fn new(channel: Arc<dyn Channel>) -> Self {
        Self { channel, threads: Vec::new() }
    }

    pub(crate) fn channel(&self) -> &dyn Channel {
        &*self.channel
    }

    /// Drops the pages of an inode, and waits until that is done. A worker thread must not call it,
    /// because it waits for reads and writes of these pages.
    pub(crate) fn drop_pages(&mut self, ino: Ino) {
        let notice = Notice::pages(ino);
        if let Some(thread) = self.idle_thread()
            && thread.work.send(vec![notice.clone()]).is_ok()
            && thread.done.recv().is_ok()
        {
            return;
        }
        // No thread could be started. The result does not matter: an unknown inode has no pages,
        // and after any other error the connection is being closed.
        let _ = notice.send(&*self.channel);
    }

    /// Sends the notices in their order. False if the kernel has not handled all of them after
    /// `limit`. It will handle the rest later.
    pub(crate) fn send_within(&mut self, notices: Vec<Notice>, limit: Duration) -> bool {
        let Some(thread) = self.idle_thread() else { return false };
        if thread.work.send(notices).is_err() {
            return false;
        }
        thread.is_late = thread.done.recv_timeout(limit).is_err();
        !thread.is_late
    }

    /// A thread that has no notices.
    fn idle_thread(&mut self) -> Option<&mut NoticeThread> {
        for thread in &mut self.threads {
            thread.is_late &= thread.done.try_recv().is_err();
        }
        let idle = self.threads.iter().position(|thread| !thread.is_late);
        if idle.is_none() && self.threads.len() < THREADS_MAX {
            let thread = self.start()?;
            self.threads.push(thread);
        }
        let last = self.threads.len().checked_sub(1)?;
        let thread = &mut self.threads[idle.unwrap_or(last)];
        (!thread.is_late).then_some(thread)
    }

    fn start(&self) -> Option<NoticeThread> {
        let device = self.channel.device()?.as_raw_fd();
        let (work, received) = channel();
        let (finished, done) = channel();
        let run = move || {
            let Ok(device) = keep_only(device) else { return };
            // `start` waits for this.
            let _ = finished.send(());
            serve(&device, &received, &finished);
        };
        let builder = thread::Builder::new().name("notices".into()).stack_size(STACK);
        builder.spawn(run).ok()?;
        // The channel keeps the device open until the thread has it in its own table.
        done.recv().ok()?;
        Some(NoticeThread { work, done, is_late: false })
    }
}

fn serve(device: &OwnedFd, work: &Receiver<Vec<Notice>>, finished: &Sender<()>) {
    while let Ok(notices) = work.recv() {
        for Notice { code, body } in notices {
            // The result does not matter, as in `drop_pages`: an unknown name is not cached.
            let _ = channel::notify(device.as_fd(), code, &body);
        }
        // The sender may be gone.
        let _ = finished.send(());
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
