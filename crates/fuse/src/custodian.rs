//! The process that a mount belongs to. It holds the device, the admission and the ledger, starts a
//! front to serve, and the next one when that dies. It serves nothing itself, so there is little that
//! could go wrong in it.
//!
//! Order: mount, start a front, say that the mount is there. Then, until the front ends well (somebody
//! unmounted): a front that dies is followed by another; a signal, or the end of the fleet, unmounts,
//! and the front stops when nobody uses the mount any more or a short grace is over. While no front
//! is there, callers wait; their requests stay in the kernel.
//!
//! **A front that serves no more.** The kernel may hold threads of a killed process until the next front has
//! answered requests (`pages.rs`), and the process ends only then. All other threads are gone when its end
//! of the link is closed, and so the next front starts then.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as Os;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use warren_proto::Wire;
use warren_runtime::Admission;
use warren_runtime::link::{Link, Received, Wait};
use warren_runtime::process::{Tie, role_args, spawn};

use crate::front::FrontOptions;
use crate::ledger::Ledger;
use crate::mount::{Mount, MountError};
use crate::process::{Bequest, ROLE_FRONT};
use crate::serve::{DETACH_GRACE, ServeOptions};
use crate::signals::signal_descriptor;

/// Before a front is started again that died by its own fault soon after its start: doubled each
/// time, up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A front that lived for so long has not died of its start.
const LIVED: Duration = Duration::from_secs(10);

/// A process whose link is closed and that has not ended after that has a thread that the kernel holds.
const HELD_AFTER: Duration = Duration::from_millis(10);

/// How long a front may take to end when it is told to.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Mounts on `dir`, writes a byte to `ready`, and sees to it that the mount is served until it is
/// unmounted, a signal (SIGTERM, SIGINT, SIGHUP) asks for the end, or the fleet is gone. To be called
/// while the process has one thread only, in a program that calls [`crate::dispatch`] first.
pub fn keep_mount(
    admission: Admission,
    dir: &Path,
    options: &ServeOptions,
    ready: Option<OwnedFd>,
) -> Result<(), MountError> {
    let failed = |error| MountError::Serve(dir.into(), error);
    let signals = signal_descriptor().map_err(failed)?;
    let ledger = Ledger::create().map_err(|error| failed(io::Error::other(error)))?;
    let (mount, device) = Mount::new(dir, &options.mount)?;
    let mount = Arc::new(mount);
    let estate = Estate { device, ledger, admission, options: options.front };
    let served = match Front::start(&estate, &mount) {
        Ok(front) => {
            let custodian = Custodian {
                estate,
                front,
                signals,
                ready,
                mount: Arc::clone(&mount),
                ending: None,
                held: Vec::new(),
            };
            custodian.run()
        }
        Err(error) => {
            drop(estate);
            // The error that matters is the first.
            let _ = mount.unmount();
            Err(error)
        }
    };
    served.map_err(failed)
}

/// What a front works with, and its successor after it.
struct Estate {
    device: OwnedFd,
    ledger: Ledger,
    admission: Admission,
    options: FrontOptions,
}

/// A process that serves.
struct Front {
    child: Child,
    pidfd: OwnedFd,
    link: Link,
    since: Instant,
}

impl Front {
    fn start(estate: &Estate, mount: &Mount) -> io::Result<Self> {
        let (ours, theirs) = Link::pair()?;
        let args = role_args([ROLE_FRONT.as_bytes(), mount.dir().as_os_str().as_bytes()]);
        let mut child = spawn(&args, theirs.into_fd(), Tie::Child)?;
        let bequeathed = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .and_then(|pidfd| Self::bequeath(estate, mount, &ours).map(|()| pidfd));
        match bequeathed {
            Ok(pidfd) => Ok(Self { child, pidfd, link: ours, since: Instant::now() }),
            Err(error) => {
                // It can only fail because the child is gone already.
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    /// How the process ended, after its pidfd was readable or its link closed. If it cannot end, as if it had been
    /// killed: it was, or is now.
    fn end(&mut self) -> io::Result<ExitStatus> {
        let ends = |pidfd: &OwnedFd| {
            let mut fds = [(pidfd.as_fd(), PollFlags::IN)];
            poll_for(&mut fds, Some(HELD_AFTER))[0]
        };
        if !ends(&self.pidfd) {
            // It can only fail because the process is gone already.
            let _ = self.child.kill();
            if !ends(&self.pidfd) {
                return Ok(ExitStatus::from_raw(libc::SIGKILL));
            }
        }
        self.child.wait()
    }

    fn bequeath(estate: &Estate, mount: &Mount, link: &Link) -> rustix::io::Result<()> {
        let (admission, segments) = estate.admission.parts();
        let mut fds = vec![estate.device.as_fd(), estate.ledger.fd()];
        fds.extend(segments);
        match link.send(&Bequest::new(estate.options, admission, mount).to_bytes(), &fds, Wait::No)
        {
            // It is dead already, which its pidfd will say.
            Err(Os::PIPE | Os::CONNRESET) => Ok(()),
            sent => sent,
        }
    }
}

/// How the mount ends.
struct Ending {
    /// Unmounting can wait for the front, and so cannot be done by who would start it again.
    unmounting: JoinHandle<io::Result<()>>,
    /// After that a front that is still there is killed.
    deadline: Instant,
    fleet_is_gone: bool,
}

struct Custodian {
    estate: Estate,
    front: Front,
    signals: OwnedFd,
    /// Who waits for the mount; none once told.
    ready: Option<OwnedFd>,
    mount: Arc<Mount>,
    ending: Option<Ending>,
    /// Fronts that serve no more, of which the kernel may hold a thread.
    held: Vec<Child>,
}

/// What there is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Awake {
    ready: bool,
    /// The front's link is closed: it serves no more.
    hung_up: bool,
    ended: bool,
    signal: bool,
    fleet_is_gone: bool,
}

impl Custodian {
    fn run(mut self) -> io::Result<()> {
        let mut pause = PAUSE_MIN;
        let last = loop {
            let awake = self.wait();
            if awake.ready {
                self.tell_ready();
            }
            if awake.signal || awake.fleet_is_gone {
                self.begin_to_end(awake.fleet_is_gone)?;
            }
            self.held.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            if awake.ended || awake.hung_up {
                let status = self.front.end()?;
                if status.success() || self.ending.is_some() || !self.may_go_on() {
                    break status;
                }
                if self.front.since.elapsed() > LIVED || status.signal() == Some(libc::SIGKILL) {
                    pause = PAUSE_MIN;
                } else {
                    // A signal ends the pause, and is seen by the next wait.
                    let _ = poll_for(&mut [(self.signals.as_fd(), PollFlags::IN)], Some(pause));
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                let next = Front::start(&self.estate, &self.mount)?;
                self.held.push(std::mem::replace(&mut self.front, next).child);
            } else if self.ending.as_ref().is_some_and(|ending| ending.deadline < Instant::now()) {
                // It can only fail because the front is gone already.
                let _ = self.front.child.kill();
            }
        };
        self.finish(last)
    }

    /// Whether another front can serve what the last one left: the kernel knows how to send again, and
    /// somebody was told that the mount is there.
    fn may_go_on(&self) -> bool {
        self.ready_was_told() && self.estate.ledger.agreed().is_none_or(|agreed| agreed.resends)
    }

    fn ready_was_told(&self) -> bool {
        self.ready.is_none()
    }

    fn wait(&mut self) -> Awake {
        let timeout =
            self.ending.as_ref().map(|end| end.deadline.saturating_duration_since(Instant::now()));
        // Once the end has begun nobody asks why.
        let asked = if self.ending.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let hung_up = if self.ending.is_none() { PollFlags::RDHUP } else { PollFlags::empty() };
        let mut fds = [
            (self.front.link.as_fd(), PollFlags::IN),
            (self.front.pidfd.as_fd(), PollFlags::IN),
            (self.signals.as_fd(), asked),
            (self.estate.admission.socket(), hung_up),
        ];
        let [said, ended, signal, fleet] = poll_for(&mut fds, timeout);
        // It says only that it serves.
        let said = said.then(|| self.front.link.receive(Wait::No));
        let begun = self.ending.is_some();
        Awake {
            ready: matches!(said, Some(Ok(Received::Packet(_)))),
            hung_up: matches!(said, Some(Ok(Received::Closed) | Err(_))),
            ended,
            signal: signal && !begun,
            fleet_is_gone: fleet && !begun,
        }
    }

    fn tell_ready(&mut self) {
        if let Some(ready) = self.ready.take() {
            // Whoever waited may be gone by now, which is no reason to fail.
            let _ = rustix::io::write(&ready, b"\n");
        }
    }

    fn begin_to_end(&mut self, fleet_is_gone: bool) -> io::Result<()> {
        let mount = Arc::clone(&self.mount);
        let front = self.front.pidfd.try_clone()?;
        let unmount = move || {
            let gone = mount.unmount();
            if !matches!(gone, Ok(true)) {
                std::thread::sleep(DETACH_GRACE);
            }
            // It may have ended by itself.
            let _ = pidfd_send_signal(&front, Signal::TERM);
            gone.map(drop)
        };
        let unmounting = std::thread::Builder::new().name("unmount".into()).spawn(unmount)?;
        let deadline = Instant::now() + END_PATIENCE;
        self.ending = Some(Ending { unmounting, deadline, fleet_is_gone });
        Ok(())
    }

    /// There will be no other front.
    fn finish(self, last: ExitStatus) -> io::Result<()> {
        // Closing the device cuts off who still uses the mount, and lets unmounting go on.
        let Self { estate, mount, ending, ready, .. } = self;
        drop(estate);
        match ending {
            None if last.success() => Ok(()),
            None => {
                // The error that matters is the front's.
                let _ = mount.unmount();
                let when = if ready.is_some() { "as soon as it started" } else { "" };
                Err(io::Error::other(format!("its process ended {when} ({last})")))
            }
            Some(Ending { unmounting, fleet_is_gone, .. }) => {
                let unmounted =
                    unmounting.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
                if fleet_is_gone {
                    return Err(io::Error::other("the fleet is gone, so it was unmounted"));
                }
                unmounted
            }
        }
    }
}

/// Which of the descriptors have something (hang-ups and errors too).
fn poll_for<const N: usize>(
    fds: &mut [(BorrowedFd<'_>, PollFlags); N],
    timeout: Option<Duration>,
) -> [bool; N] {
    let mut polled = fds.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    // What is interrupted is tried again by who called.
    let _ = poll(&mut polled, timeout.as_ref());
    polled.map(|fd| !fd.revents().is_empty())
}
