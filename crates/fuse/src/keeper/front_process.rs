//! One front, as the mount keeper sees it: a child process with a link.
//!
//! A killed front may not end at once: the kernel can hold one of its threads until the next front
//! has replied to requests (`pages.rs`). All other threads are gone when the front's end of the
//! link is closed. So the keeper starts the next front when the link is closed, and reaps the old
//! process later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno as Os;
use rustix::process::Pid;
use tracing::info;
use warren_log::{LIFE, Recorder};
use warren_proto::Wire;
use warren_runtime::Admission;
use warren_runtime::link::{Link, Received, Wait};
use warren_runtime::process::{Tie, open_pidfd, role_args, spawn};

use super::poll::poll_for;
use crate::effects::Effects;
use crate::front::FrontOptions;
use crate::front_state::FrontState;
use crate::process::{ENDS, FrontOrder, FrontStart, ROLE_FRONT, WRITTEN_BACK};

/// The time in which a process must end after its link was closed. After that, the kernel holds one
/// of its threads.
const END_WAIT: Duration = Duration::from_millis(10);

/// The resources with which each front of a mount starts.
pub(super) struct MountResources<'a> {
    pub device: OwnedFd,
    pub state: FrontState,
    pub admission: Admission,
    pub options: FrontOptions,
    pub recorder: &'a Recorder,
}

pub(super) struct FrontProcess {
    child: Child,
    pidfd: OwnedFd,
    link: Link,
    pub started: Instant,
    pub is_ready: bool,
    /// It has said that it ends in order.
    ends: bool,
}

/// A message that a front has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrontMessage {
    /// It serves the mount.
    Ready,
    /// The pages of a [`FrontOrder::WriteBack`] are written back.
    WrittenBack,
    /// The link is closed: the front does not serve any more.
    Closed,
}

impl FrontProcess {
    /// `dir` is the mount point, which `ps` shows.
    pub(super) fn start(resources: &MountResources<'_>, dir: &Path) -> io::Result<Self> {
        let (link, of_front) = Link::pair()?;
        let args = role_args([ROLE_FRONT.as_bytes(), dir.as_os_str().as_bytes()]);
        let log = resources.recorder.pipe(&format!("front of {}", dir.display()))?;
        let mut child = spawn(&args, of_front.into_fd(), Tie::Child(log))?;
        info!(target: LIFE, pid = child.id(), "a front starts");
        let sent = open_pidfd(Pid::from_child(&child)).and_then(|pidfd| {
            Self::send_start(resources, &link)?;
            Ok(pidfd)
        });
        match sent {
            Ok(pidfd) => Ok(Self {
                child,
                pidfd,
                link,
                started: Instant::now(),
                is_ready: false,
                ends: false,
            }),
            Err(error) => {
                // Fails only if the child has ended.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn send_start(resources: &MountResources<'_>, link: &Link) -> rustix::io::Result<()> {
        let (admission, segments) = resources.admission.parts();
        let mut fds = vec![resources.device.as_fd(), resources.state.fd()];
        fds.extend(segments);
        let start = FrontStart::new(resources.options, admission);
        match link.send(&start.to_bytes(), &fds, Wait::No) {
            // The front has died already. Its pidfd shows that.
            Err(Os::PIPE | Os::CONNRESET) => Ok(()),
            sent => sent,
        }
    }

    /// The link, readable when a message or its close can be received, and the pidfd, readable when
    /// the process has ended.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.link.as_fd(), self.pidfd.as_fd()]
    }

    pub(super) fn receive(&mut self) -> Option<FrontMessage> {
        match self.link.receive(Wait::No) {
            Ok(Received::Packet(packet)) if packet.bytes == WRITTEN_BACK => {
                Some(FrontMessage::WrittenBack)
            }
            Ok(Received::Packet(packet)) if packet.bytes == ENDS => {
                self.ends = true;
                None
            }
            Ok(Received::Packet(_)) => {
                self.is_ready = true;
                Some(FrontMessage::Ready)
            }
            Ok(Received::Nothing) => None,
            Ok(Received::Closed) | Err(_) => Some(FrontMessage::Closed),
        }
    }

    /// Has the front write back and drop the pages of these inodes.
    pub(super) fn write_back(&self, inodes: &[u64]) {
        // If the front has ended, its pidfd shows that, and the next front gets the same message.
        let order = FrontOrder::WriteBack { inodes: inodes.into() };
        let _ = self.link.send(&order.to_bytes(), &[], Wait::No);
    }

    /// The options of the mount have changed.
    pub(super) fn set_effects(&self, effects: Effects) {
        // The next front starts with them.
        let order = FrontOrder::Effects { effects: effects.bits() };
        let _ = self.link.send(&order.to_bytes(), &[], Wait::No);
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has the front end in order.
    pub(super) fn terminate(&self) {
        // If the front has ended, its pidfd shows that. One that does not read is killed later.
        let _ = self.link.send(&FrontOrder::End.to_bytes(), &[], Wait::No);
    }

    pub(super) fn kill(&mut self) {
        // Fails only if the process has ended.
        let _ = self.child.kill();
    }

    /// The exit status, after the pidfd was readable or the link closed. A process of which the
    /// kernel holds a thread is killed and counts as killed. It is returned, to be reaped later. So
    /// is one that ends in order and has not ended yet, because it waits for a processor; it counts
    /// as ended with success.
    pub(super) fn end(mut self) -> io::Result<(ExitStatus, Option<Child>)> {
        let has_ended = |pidfd: &OwnedFd| {
            let found = poll_for(&[(pidfd.as_fd(), PollFlags::IN)], Some(END_WAIT));
            found.first().is_some_and(|it| !it.is_empty())
        };
        if !has_ended(&self.pidfd) {
            if self.ends {
                return Ok((ExitStatus::default(), Some(self.child)));
            }
            self.kill();
            if !has_ended(&self.pidfd) {
                return Ok((ExitStatus::from_raw(libc::SIGKILL), Some(self.child)));
            }
        }
        Ok((self.child.wait()?, None))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A process that does not end by itself, after it has sent these messages and closed its link.
    fn closed_after(messages: &[&[u8]]) -> FrontProcess {
        let (link, of_front) = Link::pair().unwrap();
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = open_pidfd(Pid::from_child(&child)).unwrap();
        for message in messages {
            of_front.send(message, &[], Wait::No).unwrap();
        }
        drop(of_front);
        let started = Instant::now();
        let mut front = FrontProcess { child, pidfd, link, started, is_ready: false, ends: false };
        while front.receive() != Some(FrontMessage::Closed) {}
        front
    }

    #[test]
    fn a_front_that_ends_in_order_is_not_killed_for_being_slow() {
        let (status, unreaped) = closed_after(&[ENDS]).end().unwrap();
        let mut child = unreaped.expect("still there");
        assert!(status.success() && child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_front_that_does_not_say_that_it_ends_counts_as_killed() {
        let (status, unreaped) = closed_after(&[]).end().unwrap();
        unreaped.into_iter().for_each(|mut child| assert!(!child.wait().unwrap().success()));
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }
}
