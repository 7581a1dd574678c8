//! The process that a mount belongs to. It holds the device, the admission and the ledger, starts a
//! front to serve, and the next one when that dies. It serves nothing itself, so there is little that
//! could go wrong in it.
//!
//! Order: mount, start a front, say that the mount is there. Then, until the mount ends ([`ending`]): a front
//! that dies is followed by another. If one cannot be started for want of processes, descriptors or memory, that
//! is tried again. While no front is there, callers wait; their requests stay in the kernel.
//!
//! **A front that serves no more.** The kernel may hold threads of a killed process until the next front has
//! answered requests (`pages.rs`), and the process ends only then. All other threads are gone when its end
//! of the link is closed, and so the next front starts then.
//!
//! A mount ends when it is unmounted, by a signal, and when the fleet asks for it before it stops. If the fleet
//! is gone without that, the mount stays as a **dead mount**: the kernel answers every call with ENOTCONN. Were it
//! unmounted, programs would go on in the directory below, on another file system.

mod ending;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as Os;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tracing::{error, info, warn};
use warren_log::{LIFE, Recorder, Target, record_here};
use warren_proto::Wire;
use warren_runtime::link::{Link, Received, Wait};
use warren_runtime::process::{Tie, role_args, spawn};
use warren_runtime::{Admission, Leave};

use crate::front::FrontOptions;
use crate::ledger::Ledger;
use crate::mount::{Mount, MountError};
use crate::process::{Bequest, ROLE_FRONT, WRITTEN_BACK, WriteBack};
use crate::serve::ServeOptions;
use crate::signals::{STARTER_DIED, signal_descriptor, take_signal};
use crate::users::Uses;
use ending::{Ending, Why};

/// Before a front is started again that died by its own fault soon after its start, or that could not be
/// started: doubled each time, up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A front that lived for so long has not died of its start.
const LIVED: Duration = Duration::from_secs(10);

/// A process whose link is closed and that has not ended after that has a thread that the kernel holds.
const HELD_AFTER: Duration = Duration::from_millis(10);

/// Mounts on `dir`, writes a byte to `ready`, and sees to it that the mount is served until it is
/// unmounted, a signal (SIGTERM, SIGINT, SIGHUP) or the fleet asks for the end, or the fleet is gone. To be
/// called while the process has one thread only, in a program that calls [`crate::dispatch`] first.
pub fn keep_mount(
    admission: Admission,
    dir: &Path,
    options: &ServeOptions,
    ready: Option<OwnedFd>,
) -> Result<(), MountError> {
    let failed = |error| MountError::Serve(dir.into(), error);
    let signals = signal_descriptor().map_err(failed)?;
    // Its thread inherits the mask.
    let recorder = Recorder::start(&options.log, &options.mount.source).map_err(failed)?;
    let log = recorder.pipe(&format!("mount of {}", dir.display())).map_err(failed)?;
    let _recording = record_here(log);
    let kept = keep_recorded(admission, dir, options, ready, signals, &recorder);
    match &kept {
        Ok(()) => info!(target: LIFE, "the mount has ended"),
        // On standard error it is the last line of the command.
        Err(_) if options.log == Target::Stderr => {}
        Err(error) => error!(target: LIFE, "the mount ended: {error}"),
    }
    kept
}

fn keep_recorded(
    admission: Admission,
    dir: &Path,
    options: &ServeOptions,
    ready: Option<OwnedFd>,
    signals: OwnedFd,
    recorder: &Recorder,
) -> Result<(), MountError> {
    let failed = |error| MountError::Serve(dir.into(), error);
    let ledger = Ledger::create().map_err(|error| failed(io::Error::other(error)))?;
    let (mount, device) = Mount::new(dir, &options.mount)?;
    let mount = Arc::new(mount);
    info!(target: LIFE, dir = %mount.dir().display(), pid = std::process::id(), "mounted");
    let estate = Estate { device, ledger, admission, options: options.front, recorder };
    let served = match Front::start(&estate, mount.dir()) {
        Ok(front) => {
            let custodian = Custodian {
                estate,
                front: Some(front),
                next_start: None,
                pause: PAUSE_MIN,
                signals,
                ready,
                mount: Arc::clone(&mount),
                ending: None,
                fleet_is_gone: false,
                lost: None,
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
struct Estate<'a> {
    device: OwnedFd,
    ledger: Ledger,
    admission: Admission,
    options: FrontOptions,
    recorder: &'a Recorder,
}

/// A process that serves.
struct Front {
    child: Child,
    pidfd: OwnedFd,
    link: Link,
    since: Instant,
}

impl Front {
    /// `dir` is for `ps`.
    fn start(estate: &Estate<'_>, dir: &Path) -> io::Result<Self> {
        let (ours, theirs) = Link::pair()?;
        let args = role_args([ROLE_FRONT.as_bytes(), dir.as_os_str().as_bytes()]);
        let log = estate.recorder.pipe(&format!("front of {}", dir.display()))?;
        let mut child = spawn(&args, theirs.into_fd(), Tie::Child(log))?;
        info!(target: LIFE, pid = child.id(), "a front starts");
        let bequeathed = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .and_then(|pidfd| Self::bequeath(estate, &ours).map(|()| pidfd));
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

    fn bequeath(estate: &Estate<'_>, link: &Link) -> rustix::io::Result<()> {
        let (admission, segments) = estate.admission.parts();
        let mut fds = vec![estate.device.as_fd(), estate.ledger.fd()];
        fds.extend(segments);
        match link.send(&Bequest::new(estate.options, admission).to_bytes(), &fds, Wait::No) {
            // It is dead already, which its pidfd will say.
            Err(Os::PIPE | Os::CONNRESET) => Ok(()),
            sent => sent,
        }
    }

    /// How the process ended, after its pidfd was readable or its link closed. If it cannot end, as if it had been
    /// killed, for it was, or is now; then it is returned, too.
    fn end(mut self) -> io::Result<(ExitStatus, Option<Child>)> {
        let ends = |pidfd: &OwnedFd| {
            let found = poll_for(&[(pidfd.as_fd(), PollFlags::IN)], Some(HELD_AFTER));
            found.first().is_some_and(|it| !it.is_empty())
        };
        if !ends(&self.pidfd) {
            // It can only fail because the process is gone already.
            let _ = self.child.kill();
            if !ends(&self.pidfd) {
                return Ok((ExitStatus::from_raw(libc::SIGKILL), Some(self.child)));
            }
        }
        Ok((self.child.wait()?, None))
    }

    fn write_back(&self, inodes: &[u64]) {
        // One that is gone shows by its pidfd, and its successor gets the same.
        let _ = self.link.send(&WriteBack { inodes: inodes.into() }.to_bytes(), &[], Wait::No);
    }
}

struct Custodian<'a> {
    estate: Estate<'a>,
    /// None while the next one waits for its start.
    front: Option<Front>,
    next_start: Option<Instant>,
    /// Before the start after that, if this one comes to nothing.
    pause: Duration,
    signals: OwnedFd,
    /// Who waits for the mount; none once told.
    ready: Option<OwnedFd>,
    mount: Arc<Mount>,
    ending: Option<Ending>,
    fleet_is_gone: bool,
    /// Since when none serves, because the last front died.
    lost: Option<Instant>,
    /// Fronts that serve no more, of which the kernel holds a thread.
    held: Vec<Child>,
}

/// How it went on with the mount.
enum End {
    /// It is unmounted, or its users were cut off when that was asked for.
    Ended,
    /// Nothing can serve it any more, for this reason. It stays, and every call fails.
    Dead(String),
}

/// What there is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Awake {
    front_spoke: bool,
    front_ended: bool,
    signal: bool,
    fleet_spoke: bool,
    fleet_hung_up: bool,
}

impl Custodian<'_> {
    fn run(mut self) -> io::Result<()> {
        loop {
            let awake = self.wait();
            self.held.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            let hung_up = awake.front_spoke && self.receive_from_front();
            if awake.signal {
                match take_signal(&self.signals) {
                    Some(STARTER_DIED) => self.begin_to_end(Why::Abandoned),
                    Some(_) => self.begin_to_end(Why::Forced(None)),
                    None => {}
                }
            }
            if awake.fleet_spoke {
                self.receive_from_fleet();
            }
            if awake.fleet_hung_up && !std::mem::replace(&mut self.fleet_is_gone, true) {
                info!("the fleet is gone");
            }
            if (awake.front_ended || hung_up)
                && let Some(end) = self.front_ended()?
            {
                return self.finish(end);
            }
            if self.next_start.is_some_and(|at| at <= Instant::now()) {
                self.start_front();
            }
            if let Some(end) = self.advance() {
                return self.finish(end);
            }
        }
    }

    fn wait(&self) -> Awake {
        let deadlines =
            self.next_start.into_iter().chain(self.ending.as_ref().and_then(Ending::until));
        let timeout = deadlines.min().map(|at| at.saturating_duration_since(Instant::now()));
        let signals = self.signals.as_fd();
        // What is there to be read of them, and whether they are there, is asked no more once it is known.
        let fleet =
            if self.fleet_is_gone { PollFlags::empty() } else { PollFlags::IN | PollFlags::RDHUP };
        let mut fds = vec![
            (signals, PollFlags::IN),
            (if self.fleet_is_gone { signals } else { self.estate.admission.socket() }, fleet),
            (self.ending.as_ref().and_then(Ending::attempt).unwrap_or(signals), PollFlags::empty()),
        ];
        if let Some(front) = &self.front {
            fds.extend([(front.link.as_fd(), PollFlags::IN), (front.pidfd.as_fd(), PollFlags::IN)]);
        }
        let found = poll_for(&fds, timeout);
        let any =
            |at: usize, flags: PollFlags| found.get(at).is_some_and(|it| it.intersects(flags));
        Awake {
            signal: any(0, PollFlags::IN),
            fleet_spoke: any(1, PollFlags::IN),
            fleet_hung_up: any(1, PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
            front_spoke: any(3, PollFlags::all()),
            front_ended: any(4, PollFlags::all()),
        }
    }

    /// That it serves, or has written back. Returns whether it has hung up: then it serves no more.
    fn receive_from_front(&mut self) -> bool {
        let Some(front) = &mut self.front else { return false };
        let packet = match front.link.receive(Wait::No) {
            Ok(Received::Packet(packet)) => packet,
            Ok(Received::Nothing) => return false,
            Ok(Received::Closed) | Err(_) => return true,
        };
        if packet.bytes == WRITTEN_BACK {
            self.written_back();
        } else if let Some(ready) = self.ready.take() {
            // Whoever waited may be gone by now, which is no reason to fail.
            let _ = rustix::io::write(&ready, b"\n");
            info!(target: LIFE, "the mount is served");
        } else if let Some(since) = self.lost.take() {
            let (dir, ms) = (self.mount.dir().display(), since.elapsed().as_millis());
            warn!(target: LIFE, "{dir}: served again after {ms} ms");
        }
        false
    }

    fn receive_from_fleet(&mut self) {
        match self.estate.admission.receive_leave() {
            Some((number, Leave::Ask)) => {
                let uses = Uses::of(self.mount.device());
                let by = if uses.is_empty() { String::new() } else { uses.to_string() };
                self.estate.admission.send_in_use(number, &by);
            }
            Some((number, Leave::IfIdle)) => self.begin_to_end(Why::Asked(number)),
            Some((number, Leave::Force)) => self.begin_to_end(Why::Forced(Some(number))),
            None => {}
        }
    }

    /// The end of the mount if there will be no other front.
    fn front_ended(&mut self) -> io::Result<Option<End>> {
        let Some(front) = self.front.take() else { return Ok(None) };
        let since = front.since;
        let (status, held) = front.end()?;
        self.held.extend(held);
        let is_closing = self.ending.as_ref().is_some_and(Ending::is_closing);
        if status.success() || is_closing {
            info!(target: LIFE, "the front ended: {status}");
            return Ok(Some(End::Ended));
        }
        warn!(target: LIFE, "the front of {} ended ({status})", self.mount.dir().display());
        if !self.may_go_on() {
            return self.never_served(status).map(Some);
        }
        let now = Instant::now();
        self.lost.get_or_insert(now);
        if since.elapsed() > LIVED || status.signal() == Some(libc::SIGKILL) {
            self.pause = PAUSE_MIN;
            self.next_start = Some(now);
        } else {
            self.put_off_start(now);
        }
        Ok(None)
    }

    fn put_off_start(&mut self, now: Instant) {
        self.next_start = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn start_front(&mut self) {
        self.next_start = None;
        match Front::start(&self.estate, self.mount.dir()) {
            Ok(front) => {
                if let Some(inodes) = self.ending.as_ref().and_then(Ending::writing_back) {
                    front.write_back(inodes);
                }
                self.front = Some(front);
            }
            Err(error) => {
                if self.pause == PAUSE_MIN {
                    let dir = self.mount.dir().display();
                    warn!("{dir}: cannot start its front, tries again: {error}");
                }
                self.put_off_start(Instant::now());
            }
        }
    }

    /// Whether another front can serve what the last one left: the kernel knows how to send again, and
    /// somebody was told that the mount is there.
    fn may_go_on(&self) -> bool {
        self.ready.is_none() && self.estate.ledger.agreed().is_none_or(|agreed| agreed.resends)
    }

    /// A mount that nobody was told of is taken away again; another one stays, dead.
    fn never_served(&self, status: ExitStatus) -> io::Result<End> {
        if self.ready.is_none() {
            return Ok(End::Dead(format!("its process ended ({status})")));
        }
        // The error that matters is the front's.
        let _ = self.mount.unmount();
        Err(io::Error::other(format!("its process ended as soon as it started ({status})")))
    }

    fn finish(mut self, end: End) -> io::Result<()> {
        if !self.held.is_empty() {
            // They keep the connection open, as below.
            self.mount.abort();
        }
        let End::Dead(why) = end else { return Ok(()) };
        // The kernel closes the connection when its last descriptor is closed. A front may have a thread in the
        // kernel that waits for an answer, and so keeps one open: where it can be, the connection is aborted.
        self.mount.abort();
        if let Some(front) = &mut self.front {
            // It can only fail because the front is gone already.
            let _ = front.child.kill();
        }
        let dir = self.mount.dir().display();
        Err(io::Error::other(format!("{why}; it is a dead mount until `warren umount {dir}`")))
    }
}

/// What there is of the descriptors.
fn poll_for(fds: &[(BorrowedFd<'_>, PollFlags)], timeout: Option<Duration>) -> Vec<PollFlags> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => polled.iter().map(PollFd::revents).collect(),
        // What is interrupted is tried again by who called.
        Err(_) => Vec::new(),
    }
}
