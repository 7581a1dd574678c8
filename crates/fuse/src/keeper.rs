//! The mount keeper: the process that a mount belongs to.
//!
//! It holds the device, the admission and the [`FrontState`]. It starts a front to serve the mount,
//! and the next one when that dies ([`fronts`]). It serves nothing itself, so that little can fail
//! in it.
//!
//! It mounts, starts a front, and reports to its starter when the front serves. Then it replaces
//! fronts until the mount ends ([`teardown`]).
//!
//! A mount ends when it is unmounted, by a signal, or when the fleet requests it before a stop. If
//! the fleet ends without a request, the mount stays as a **dead mount**: the kernel replies
//! ENOTCONN to every call. If it were unmounted, programs would continue in the directory below,
//! which is on another file system.

mod blame;
mod front_process;
mod fronts;
mod options_watch;
mod poll;
mod teardown;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use tracing::{error, info, warn};
use warren_log::{LIFE, Recorder, Target, record_here};
use warren_runtime::{Admission, Leave};

use crate::front::FrontOptions;
use crate::front_state::FrontState;
use crate::mount::{Mount, MountError};
use crate::serve::MountConfig;
use crate::signals::{STARTER_DIED, signal_descriptor, take_signal};
use crate::users::Uses;
use front_process::{FrontMessage, FrontProcess, MountResources};
use fronts::Fronts;
use options_watch::OptionsWatch;
use poll::poll_for;
use teardown::{End, Progress, Reason, Subject, Teardown};

/// Mounts on `dir`, writes a byte to `ready` when the mount is served, and keeps it served. Returns
/// when the mount has ended: it was unmounted, a signal (SIGTERM, SIGINT, SIGHUP) or the fleet
/// ended it, or the fleet is gone. Must be called while the process has one thread, in a program
/// that calls [`crate::dispatch`] first.
pub fn keep_mount(
    admission: Admission,
    dir: &Path,
    config: &MountConfig,
    ready: Option<OwnedFd>,
) -> Result<(), MountError> {
    let failed = |error| MountError::Serve(dir.into(), error);
    let signals = signal_descriptor().map_err(failed)?;
    // After the signals are blocked, because the recorder's thread inherits the mask.
    let recorder = Recorder::start(&config.log, &config.mount.source).map_err(failed)?;
    let log = recorder.pipe(&format!("mount of {}", dir.display())).map_err(failed)?;
    let _recording = record_here(log);
    let kept = keep_recorded(admission, dir, config, ready, signals, &recorder);
    match &kept {
        Ok(()) => info!(target: LIFE, "the mount has ended"),
        // The command prints the error as its last line on standard error.
        Err(_) if config.log == Target::Stderr => {}
        Err(error) => error!(target: LIFE, "the mount ended: {error}"),
    }
    kept
}

fn keep_recorded(
    admission: Admission,
    dir: &Path,
    config: &MountConfig,
    ready: Option<OwnedFd>,
    signals: OwnedFd,
    recorder: &Recorder,
) -> Result<(), MountError> {
    let failed = |error| MountError::Serve(dir.into(), error);
    let state = FrontState::create().map_err(|error| failed(io::Error::other(error)))?;
    let (mount, device) = Mount::new(dir, &config.mount)?;
    let mount = Arc::new(mount);
    info!(target: LIFE, dir = %mount.dir().display(), pid = std::process::id(), "mounted");
    let options = FrontOptions { effects: mount.effects(), ..config.front };
    let resources = MountResources { device, state, admission, options, recorder };
    let watch = OptionsWatch::open();
    let kept = match FrontProcess::start(&resources, mount.dir()) {
        Ok(front) => {
            let fronts = Fronts::new(front);
            let (teardown, fleet_is_gone, unready) = (None, false, None);
            let mut keeper = MountKeeper {
                resources,
                fronts,
                signals,
                watch,
                ready,
                ready_max: config.ready_max,
                unready,
                mount,
                teardown,
                fleet_is_gone,
            };
            // Before the mount was made, the fleet was told what was wanted.
            keeper.look_at_options();
            keeper.run()
        }
        Err(error) => {
            drop(resources);
            // The first error is the cause.
            let _ = mount.unmount();
            Err(error)
        }
    };
    kept.map_err(failed)
}

struct MountKeeper<'a> {
    resources: MountResources<'a>,
    mount: Arc<Mount>,
    fronts: Fronts,
    teardown: Option<Teardown>,
    signals: OwnedFd,
    watch: OptionsWatch,
    /// The pipe to the starter. `None` after the report that the mount is served.
    ready: Option<OwnedFd>,
    ready_max: Duration,
    /// The process of a first front that did not serve in time and was killed.
    unready: Option<u32>,
    fleet_is_gone: bool,
}

/// The events that a wait has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Events {
    front_message: bool,
    front_ended: bool,
    signal: bool,
    fleet_message: bool,
    fleet_hung_up: bool,
    mounts_changed: bool,
}

impl MountKeeper<'_> {
    fn run(mut self) -> io::Result<()> {
        loop {
            let events = self.wait();
            self.fronts.reap();
            let closed = events.front_message && self.receive_from_front();
            if events.signal {
                match take_signal(&self.signals) {
                    Some(STARTER_DIED) => self.tear_down(Reason::Abandoned),
                    Some(_) => self.tear_down(Reason::Forced(None)),
                    None => {}
                }
            }
            if events.mounts_changed {
                self.look_at_options();
            }
            if events.fleet_message {
                self.receive_from_fleet();
            }
            if events.fleet_hung_up && !std::mem::replace(&mut self.fleet_is_gone, true) {
                info!("the fleet is gone");
            }
            if (events.front_ended || closed)
                && let Some(end) = self.front_ended()?
            {
                return self.finish(end);
            }
            if self.can_restart()
                && let Some(hint) = self.fronts.look(&self.resources, self.ready_max)
            {
                let (dir, why) = (self.mount.dir().display(), hint.text());
                warn!(target: LIFE, "the front of {dir} {why}; it is killed");
            }
            if self.ready.is_some() && self.unready.is_none() {
                self.unready = self.fronts.kill_unready(self.ready_max);
            }
            self.start_front();
            if let Some(end) = self.advance() {
                return self.finish(end);
            }
        }
    }

    fn wait(&self) -> Events {
        let deadline = self.teardown.as_ref().and_then(Teardown::deadline);
        let is_first = self.ready.is_some() && self.unready.is_none();
        let ready = self.fronts.ready_until(self.ready_max).filter(|_| is_first);
        let deadline = self.fronts.next_start().into_iter().chain(ready).chain(deadline).min();
        let timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let look = self.fronts.next_look().filter(|_| self.can_restart());
        let timeout = timeout.into_iter().chain(look).min();
        let signals = self.signals.as_fd();
        // After the fleet is gone its socket stays readable, so it is no longer polled.
        let fleet =
            if self.fleet_is_gone { PollFlags::empty() } else { PollFlags::IN | PollFlags::RDHUP };
        let socket = if self.fleet_is_gone { signals } else { self.resources.admission.socket() };
        let attempt = self.teardown.as_ref().and_then(Teardown::attempt_fd).unwrap_or(signals);
        let (mounts, of_mounts) = self.watch.polled().unwrap_or((signals, PollFlags::empty()));
        let mut fds = vec![
            (signals, PollFlags::IN),
            (socket, fleet),
            (attempt, PollFlags::empty()),
            (mounts, of_mounts),
        ];
        if let Some(of_front) = self.fronts.fds() {
            fds.extend(of_front.map(|fd| (fd, PollFlags::IN)));
        }
        let found = poll_for(&fds, timeout);
        let any =
            |at: usize, flags: PollFlags| found.get(at).is_some_and(|it| it.intersects(flags));
        Events {
            signal: any(0, PollFlags::IN),
            fleet_message: any(1, PollFlags::IN),
            fleet_hung_up: any(1, PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
            mounts_changed: any(3, of_mounts),
            front_message: any(4, PollFlags::all()),
            front_ended: any(5, PollFlags::all()),
        }
    }

    /// Returns whether the front has closed its link: then it does not serve any more.
    fn receive_from_front(&mut self) -> bool {
        match self.fronts.receive() {
            Some(FrontMessage::Ready) => self.front_is_ready(),
            Some(FrontMessage::WrittenBack) => {
                if let Some(teardown) = &mut self.teardown {
                    teardown.written_back(&mut self.fronts);
                }
            }
            Some(FrontMessage::Closed) => return true,
            None => {}
        }
        false
    }

    fn front_is_ready(&mut self) {
        if let Some(ready) = self.ready.take() {
            // The starter may have ended, which is no reason to fail.
            let _ = rustix::io::write(&ready, b"\n");
            info!(target: LIFE, "the mount is served");
        } else if let Some(lost) = self.fronts.take_lost_time() {
            let (dir, ms) = (self.mount.dir().display(), lost.as_millis());
            warn!(target: LIFE, "the front of {dir} serves again after {ms} ms");
        }
    }

    fn receive_from_fleet(&mut self) {
        match self.resources.admission.receive_leave() {
            Some((number, Leave::Ask)) => {
                let uses = Uses::of(self.mount.device());
                let by = if uses.is_empty() { String::new() } else { uses.to_string() };
                self.resources.admission.send_in_use(number, &by);
            }
            Some((number, Leave::IfIdle)) => self.tear_down(Reason::Requested(number)),
            Some((number, Leave::Force)) => self.tear_down(Reason::Forced(Some(number))),
            None => {}
        }
    }

    /// Another process may have mounted this mount again with other options.
    fn look_at_options(&mut self) {
        let Some(effects) = self.mount.effects_now() else { return };
        let rules = effects.rules();
        if self.watch.sent != Some(rules) && self.resources.admission.send_rules(rules) {
            self.watch.sent = Some(rules);
        }
        if self.resources.options.effects != effects {
            self.resources.options.effects = effects;
            if let Some(front) = self.fronts.serving() {
                front.set_effects(effects);
            }
        }
    }

    fn tear_down(&mut self, reason: Reason) {
        match &mut self.teardown {
            Some(teardown) => teardown.add_reason(reason),
            None => self.teardown = Some(Teardown::start(reason, &self.mount)),
        }
    }

    /// Continues the teardown. Returns the end of the mount when it has come.
    fn advance(&mut self) -> Option<End> {
        if let Some(teardown) = self.teardown.take() {
            let progress = teardown.advance(&mut Subject {
                mount: &self.mount,
                fronts: &mut self.fronts,
                admission: &self.resources.admission,
                fleet_is_gone: self.fleet_is_gone,
            });
            match progress {
                Progress::Waits(teardown) => {
                    self.teardown = Some(teardown);
                    return None;
                }
                Progress::GivenUp => {}
                Progress::Ends(end) => return Some(end),
            }
        }
        self.fleet_is_gone.then(End::without_fleet)
    }

    /// The current front has ended. Plans the start of the next one, or returns the end of the
    /// mount.
    fn front_ended(&mut self) -> io::Result<Option<End>> {
        let Some(ended) = self.fronts.end_current()? else { return Ok(None) };
        let status = ended.status;
        // A front ends with success by an order, or because the kernel has closed the connection.
        if status.success() || self.teardown.as_ref().is_some_and(Teardown::is_closing) {
            info!(target: LIFE, "the front ended: {status}");
            return Ok(Some(End::Ended));
        }
        warn!(target: LIFE, "the front of {} ended ({status})", self.mount.dir().display());
        if !self.can_restart() {
            return self.end_without_front(status).map(Some);
        }
        self.fronts.restart_after(&ended, &self.resources.state);
        Ok(None)
    }

    fn start_front(&mut self) {
        let front = self.fronts.start_if_due(&self.resources, &self.mount);
        let inodes = self.teardown.as_ref().and_then(Teardown::writing_back);
        if let (Some(front), Some(inodes)) = (front, inodes) {
            front.write_back(inodes);
        }
    }

    /// Whether another front can replace the last one. The kernel must be able to send requests
    /// again, and the starter must know that the mount is served.
    fn can_restart(&self) -> bool {
        let resends = self.resources.state.negotiated().is_none_or(|it| it.resends);
        self.ready.is_none() && resends
    }

    /// Unmounts a mount that was never served. A mount that was served stays, dead.
    fn end_without_front(&self, status: ExitStatus) -> io::Result<End> {
        if self.ready.is_none() {
            return Ok(End::Dead(format!("its process ended ({status})")));
        }
        // The error of the front is the cause.
        let _ = self.mount.unmount();
        Err(io::Error::other(match self.unready {
            Some(pid) => {
                let seconds = self.ready_max.as_secs();
                format!(
                    "its front (process {pid}) did not serve within {seconds} s and was killed; mount it again"
                )
            }
            None => format!("its process ended as soon as it started ({status})"),
        }))
    }

    fn finish(mut self, end: End) -> io::Result<()> {
        if self.fronts.has_unreaped() {
            // They keep the connection open, as below.
            self.mount.abort();
        }
        let End::Dead(why) = end else { return Ok(()) };
        // The kernel closes a connection with its last descriptor. A front may have a thread in the
        // kernel that waits for a reply and so keeps a descriptor open. Therefore the connection is
        // aborted, where that is possible.
        self.mount.abort();
        self.fronts.kill_current();
        if self.ready.is_some() {
            // No program was told of it, so none can continue in the directory below. `why` is the
            // cause of the failure.
            let _ = self.mount.unmount();
            return Err(io::Error::other(format!(
                "{why}, and it was not served yet; mount it again"
            )));
        }
        let dir = self.mount.dir().display();
        Err(io::Error::other(format!("{why}; it is a dead mount until `warren umount {dir}`")))
    }
}
