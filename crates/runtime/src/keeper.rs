//! The keeper: parent of every process of a fleet and holder of its descriptors. No logic.
//!
//! It starts the processes that the supervisor requests, reports exits to the supervisor, keeps
//! descriptors by name, and turns a termination signal into a request to stop. It restarts a
//! supervisor that ends without a final message, killed or failed, and sends it all kept
//! descriptors. When a supervisor ends with a final message the keeper ends everything: no process
//! is left behind.

mod segments;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno as Os;
use rustix::process::{Pid, Signal, pidfd_send_signal};
use rustix::time::Timespec;
use segments::Segments;
use tracing::{error, info, warn};
use warren_base::Instant;
use warren_log::{LIFE, Recorder, Target, record_here};
use warren_proto::Wire;
use warren_supervisor::{SUCCESSORS_MAX, pause_before};
use warren_transport::control::OsBytes;

use crate::clock;
use crate::error::{FleetError, errno_of, system};
use crate::limit;
use crate::link::{Link, Outbox, Packet, Received, SHORTAGE_PAUSE};
use crate::message::{FleetPlan, FromKeeper, Handover, Kept, ToKeeper};
use crate::poll::poll_each;
use crate::process::{ROLE_SUPERVISOR, Tie, open_pidfd, pool_name, role_args, spawn};
use crate::watch::ProcessWatch;

/// The time that a supervisor must have served before it fails, to count as one that took over.
const SOUND_AFTER: Duration = Duration::from_secs(10);

/// The pause before another attempt to start a supervisor after a shortage of processes,
/// descriptors or memory, and how long the shortage may last before it counts as a failure.
const START_RETRY: Duration = Duration::from_millis(200);
const SHORTAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// A process that the keeper started.
struct ChildProcess {
    /// The name of the process in the log.
    name: String,
    child: Child,
    pidfd: OwnedFd,
}

/// The final message of a supervisor.
enum FinalMessage {
    Stopped,
    Failed(FleetError),
}

struct Keeper<'a> {
    plan: FleetPlan,
    recorder: &'a Recorder,
    /// `None` while its successor waits for its start.
    supervisor: Option<ChildProcess>,
    watch: ProcessWatch,
    next_start: Option<Instant>,
    link: Outbox,
    /// Since when too few descriptors are left for those of the next packet, which stays in the
    /// socket.
    no_room_since: Option<Instant>,
    children: BTreeMap<u32, ChildProcess>,
    kept: BTreeMap<Kept, Vec<Arc<OwnedFd>>>,
    segments: Segments,
    /// The fleet was asked to stop.
    stop: bool,
    /// The fleet has served.
    served: bool,
    /// The number of supervisors that died, when the last one did, and how many in a row failed
    /// before they took over.
    died: u32,
    died_at: Instant,
    failed_in_row: u32,
    /// Since when none could be started because of a shortage.
    short_since: Option<Instant>,
    /// Since when the present one is ready, and its error if it cannot continue.
    ready_since: Option<Instant>,
    failure: Option<FleetError>,
    final_message: Option<FinalMessage>,
    on_ready: &'a mut dyn FnMut(u16),
}

/// Runs a fleet to its end. `on_ready` is called with the number of cells when clients can connect.
/// The fleet stops on SIGTERM, SIGINT and SIGHUP, and when `starter` hangs up.
pub(crate) fn keep(
    plan: FleetPlan,
    starter: Option<&Link>,
    on_ready: &mut dyn FnMut(u16),
) -> Result<(), FleetError> {
    limit::raise();
    let stop = stop_signals()?;
    let (target, doing) = (Target::from_bytes(&plan.log)?, "start to record");
    let pool = String::from_utf8_lossy(&plan.pool);
    let recorder = Recorder::start(&target, &pool).map_err(system(doing))?;
    let _recording = record_here(recorder.pipe("keeper").map_err(system(doing))?);
    let (cells, cache) = (plan.cells, plan.cache_bytes);
    let version = env!("CARGO_PKG_VERSION");
    info!(target: LIFE, cells, cache, version, pid = std::process::id(), "the fleet starts");
    let ended = keep_recorded(plan, &recorder, &stop, starter, on_ready);
    match &ended {
        Ok(()) => info!(target: LIFE, "the fleet has ended"),
        // The process that waits for the fleet prints it as its last line on standard error.
        Err(_) if target == Target::Stderr => {}
        Err(error) => error!(target: LIFE, "the fleet ended: {error}"),
    }
    ended
}

fn keep_recorded(
    plan: FleetPlan,
    recorder: &Recorder,
    stop: &UnixStream,
    starter: Option<&Link>,
    on_ready: &mut dyn FnMut(u16),
) -> Result<(), FleetError> {
    let mut keeper = Keeper::start(plan, recorder, on_ready)?;
    let ended = keeper.run(stop, starter);
    keeper.end_all();
    ended?;
    match (keeper.final_message, keeper.failure) {
        (Some(FinalMessage::Stopped), _) => Ok(()),
        (Some(FinalMessage::Failed(error)), _) | (None, Some(error)) => Err(error),
        (None, None) => Err(supervisor_died()),
    }
}

fn supervisor_died() -> FleetError {
    FleetError::Died("the supervisor".into())
}

/// A stream that becomes readable on a signal to stop.
fn stop_signals() -> Result<UnixStream, FleetError> {
    let doing = "listen for signals";
    let (reader, writer) = UnixStream::pair().map_err(system(doing))?;
    reader.set_nonblocking(true).map_err(system(doing))?;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let end = writer.try_clone().map_err(system(doing))?;
        signal_hook::low_level::pipe::register(signal, end).map_err(system(doing))?;
    }
    Ok(reader)
}

impl ChildProcess {
    fn start(
        recorder: &Recorder,
        name: String,
        args: &[OsBytes],
        link: OwnedFd,
    ) -> std::io::Result<Self> {
        let mut child = spawn(args, link, Tie::Child(recorder.pipe(&name)?))?;
        match open_pidfd(Pid::from_child(&child)) {
            Ok(pidfd) => {
                info!(target: LIFE, pid = child.id(), "{name} starts");
                Ok(Self { name, child, pidfd })
            }
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// Reaps a child that has ended.
    fn reap(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait()?;
        info!(target: LIFE, pid = self.child.id(), "{} ended: {status}", self.name);
        Ok(status)
    }
}

/// Kills a child and waits until it is gone.
fn end(child: &mut Child) {
    // This can only fail because the child is gone already.
    let _ = child.kill();
    let _ = child.wait();
}

/// Starts a supervisor's process and sends the first message over the keeper's end of its link.
fn start_supervisor(
    recorder: &Recorder,
    plan: &FleetPlan,
    first: FromKeeper,
) -> Result<(ChildProcess, Outbox), FleetError> {
    let doing = "start the supervisor";
    let (ours, theirs) = Link::pair().map_err(system(doing))?;
    let name = pool_name(&plan.pool).to_vec();
    let args = role_args([ROLE_SUPERVISOR.as_bytes(), &name]);
    let supervisor = ChildProcess::start(recorder, "supervisor".into(), &args, theirs.into_fd());
    let supervisor = supervisor.map_err(system(doing))?;
    let mut link = Outbox::new(ours);
    // If the supervisor is gone already its pidfd shows it.
    let _ = link.send(first.to_bytes(), Vec::new());
    Ok((supervisor, link))
}

impl<'a> Keeper<'a> {
    fn start(
        plan: FleetPlan,
        recorder: &'a Recorder,
        on_ready: &'a mut dyn FnMut(u16),
    ) -> Result<Self, FleetError> {
        let segments = Segments::new();
        let first = FromKeeper::Begin { plan: plan.clone(), in_tables: segments.are_in_tables() };
        let (supervisor, link) = start_supervisor(recorder, &plan, first)?;
        Ok(Self {
            plan,
            recorder,
            supervisor: Some(supervisor),
            watch: ProcessWatch::default(),
            next_start: None,
            link,
            no_room_since: None,
            children: BTreeMap::new(),
            kept: BTreeMap::new(),
            segments,
            stop: false,
            served: false,
            died: 0,
            died_at: Instant(0),
            failed_in_row: 0,
            short_since: None,
            ready_since: None,
            failure: None,
            final_message: None,
            on_ready,
        })
    }

    /// Runs until the supervisor has ended for good.
    fn run(&mut self, stop: &UnixStream, starter: Option<&Link>) -> Result<(), FleetError> {
        // Every poll reports a hung-up starter, so it is handled once.
        let mut starter = starter;
        loop {
            let ready = self.wait(stop, starter)?;
            if ready.stop || ready.starter {
                drain(stop);
                if ready.starter {
                    starter = None;
                }
                let by = if ready.stop { "a signal" } else { "the end of its starter" };
                info!("the fleet is to stop, by {by}");
                self.stop = true;
                self.send(&FromKeeper::Stop);
            }
            if ready.log {
                self.send_log_trouble();
            }
            for token in ready.ended {
                self.reap(token)?;
            }
            self.receive()?;
            if ready.supervisor
                && !self.awaits_room()
                && let Some(mut child) = self.supervisor.take()
            {
                // All that it sent before its end has been received, unless the shortage lasts.
                if self.no_room_since.take().is_some() {
                    let doing = "receive from the supervisor";
                    self.failure.get_or_insert_with(|| system(doing)(Os::MFILE));
                }
                let status = child.reap().map_err(system("wait for the supervisor"))?;
                if status.signal() != Some(libc::SIGKILL) {
                    // A supervisor that ended otherwise has failed, also without a message: by an
                    // abort or a bus error.
                    self.failure.get_or_insert_with(supervisor_died);
                }
                let goes_on = self.may_go_on();
                self.record_end(status, goes_on);
                if !goes_on {
                    return Ok(());
                }
            }
            self.look_at_supervisor();
            if self.next_start.take_if(|at| *at <= clock::monotonic()).is_some()
                && let Err(error) = self.hand_over()
            {
                warn!("no supervisor can be started: {error}");
                if error.is_shortage() && self.may_wait_for_more() {
                    // The fleet serves meanwhile; a supervisor that did not start has not failed.
                    continue;
                }
                self.failure = Some(error);
                if !self.may_go_on() {
                    return Ok(());
                }
            }
        }
    }

    /// Whether another supervisor can take over from the one that has just ended, and if so, when.
    /// A supervisor that was killed while it served does not count as a failure; each failure in a
    /// row makes the next wait longer.
    fn may_go_on(&mut self) -> bool {
        let now = clock::monotonic();
        let failed = self.failure.is_some();
        let took_over = |since: Instant| !failed || now - since >= SOUND_AFTER;
        let has_failed = !self.ready_since.take().is_some_and(took_over);
        self.failed_in_row = if has_failed { self.failed_in_row + 1 } else { 0 };
        let pause = if has_failed { pause_before(self.failed_in_row) } else { Duration::ZERO };
        self.died += 1;
        self.died_at = now;
        self.next_start = Some(now + pause);
        let left_a_record = self.kept.contains_key(&Kept::Record);
        let may_retry = self.failed_in_row < SUCCESSORS_MAX;
        self.final_message.is_none() && self.served && left_a_record && may_retry
    }

    /// Logs the end of a supervisor that did not end in order.
    fn record_end(&self, status: ExitStatus, goes_on: bool) {
        if self.final_message.is_some() || !self.served {
            return;
        }
        let why = match &self.failure {
            Some(error) => format!("{status}, {error}"),
            None => status.to_string(),
        };
        match goes_on {
            true => warn!(target: LIFE, "the supervisor ended ({why}); another takes over"),
            false => error!(target: LIFE, "the supervisor ended ({why}), and none takes over"),
        }
    }

    /// Kills a supervisor that hangs; its end is handled as any other.
    fn look_at_supervisor(&mut self) {
        let Some(supervisor) = self.supervisor.as_ref().filter(|_| self.served) else { return };
        let is_ready = self.ready_since.is_some();
        if let Some(why) = self.watch.look_at_supervisor(supervisor.child.id(), is_ready) {
            let why = why.text();
            warn!(target: LIFE, "the supervisor {why} and hangs; it is killed");
            // This can only fail because the process is gone already; then it is reaped.
            let _ = pidfd_send_signal(&supervisor.pidfd, Signal::KILL);
        }
    }

    fn send_log_trouble(&mut self) {
        let line = self.recorder.trouble().unwrap_or_default().into_bytes().into();
        self.send(&FromKeeper::LogTrouble { line });
    }

    /// Whether a shortage, which began now or earlier, may still end. If so, the next start is
    /// postponed.
    fn may_wait_for_more(&mut self) -> bool {
        let now = clock::monotonic();
        self.next_start = Some(now + START_RETRY);
        now - *self.short_since.get_or_insert(now) < SHORTAGE_TIMEOUT
    }

    fn hand_over(&mut self) -> Result<(), FleetError> {
        self.failure = None;
        let handover = FromKeeper::Adopt(Handover {
            plan: self.plan.clone(),
            children: self
                .children
                .iter()
                .map(|(&token, child)| (token, child.child.id()))
                .collect(),
            stop: self.stop,
            predecessors: self.died,
            died: self.died_at,
            kept: self.kept.len() as u32,
            in_tables: self.segments.are_in_tables(),
        });
        let (supervisor, link) = start_supervisor(self.recorder, &self.plan, handover)?;
        (self.supervisor, self.link) = (Some(supervisor), link);
        self.watch = self.watch.of_successor();
        self.short_since = None;
        for (&name, fds) in &self.kept {
            // If the supervisor is gone its pidfd shows it.
            let _ = self.link.send_shared(FromKeeper::Kept { name }.to_bytes(), fds.clone());
        }
        self.send_log_trouble();
        Ok(())
    }

    fn wait(&mut self, stop: &UnixStream, starter: Option<&Link>) -> Result<Awake, FleetError> {
        let log = self.recorder.changed();
        let mut fds =
            vec![PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(log, PollFlags::IN)];
        let tokens: Vec<u32> = self.children.keys().copied().collect();
        fds.extend(self.children.values().map(|child| PollFd::new(&child.pidfd, PollFlags::IN)));
        let own = fds.len();
        // Its end is handled when its packets have been received.
        if let Some(supervisor) = self.supervisor.as_ref().filter(|_| !self.awaits_room()) {
            fds.push(PollFd::new(&supervisor.pidfd, PollFlags::IN));
        }
        let has_own = fds.len() > own;
        // A link whose supervisor is gone would be ready all the time.
        if self.supervisor.is_some() && self.no_room_since.is_none() {
            fds.push(PollFd::from_borrowed_fd(self.link.link.as_fd(), self.link.poll_flags()));
        }
        fds.extend(starter.map(|link| PollFd::from_borrowed_fd(link.as_fd(), PollFlags::empty())));
        let is_short = self.link.is_short() || self.no_room_since.is_some();
        let short = (self.supervisor.is_some() && is_short).then_some(SHORTAGE_PAUSE);
        let start = self.next_start.map(|at| at - clock::monotonic());
        // A fleet that never served ends with its supervisor.
        let look = self.supervisor.as_ref().filter(|_| self.served).map(|_| self.watch.pause());
        let limit = short.into_iter().chain(start).chain(look).min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        poll_each(&mut fds, limit.as_ref()).map_err(system("wait for processes"))?;
        let woke = |at: usize| !fds[at].revents().is_empty();
        Ok(Awake {
            stop: woke(0),
            log: woke(1),
            supervisor: has_own && woke(own),
            ended: (2..)
                .zip(&tokens)
                .filter(|&(at, _)| woke(at))
                .map(|(_, &token)| token)
                .collect(),
            starter: starter.is_some() && woke(fds.len() - 1),
        })
    }

    fn reap(&mut self, token: u32) -> Result<(), FleetError> {
        if let Some(mut child) = self.children.remove(&token) {
            let status = child.reap().map_err(system("wait for a process"))?;
            self.send(&FromKeeper::Exited { token, status: status.into_raw() });
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), FleetError> {
        let doing = "receive from the supervisor";
        // If the supervisor is gone its pidfd shows it.
        let _ = self.link.flush();
        loop {
            // With too few descriptors a packet that is not only looked at would lose some.
            match self.link.link.peek() {
                Ok(Received::Packet(packet)) => {
                    self.no_room_since = None;
                    self.link.link.skip().map_err(system(doing))?;
                    self.execute(packet)?;
                }
                Ok(Received::Nothing | Received::Closed) => return Ok(()),
                Err(Os::MSGSIZE) => {
                    if self.no_room_since.is_none() {
                        self.no_room_since = Some(clock::monotonic());
                        warn!("the keeper has no free descriptors; the supervisor waits for it");
                    }
                    return Ok(());
                }
                Err(error) => return Err(system(doing)(error)),
            }
        }
    }

    /// Whether a packet waits for descriptors, and a shortage of such a duration is no failure.
    fn awaits_room(&self) -> bool {
        self.no_room_since.is_some_and(|since| clock::monotonic() - since < SHORTAGE_TIMEOUT)
    }

    fn execute(&mut self, packet: Packet) -> Result<(), FleetError> {
        let message = ToKeeper::from_bytes(&packet.bytes)
            .map_err(|_| FleetError::Died("a supervisor that sent a malformed message".into()))?;
        match message {
            ToKeeper::Spawn { token, name, args } => {
                let name = String::from_utf8_lossy(&name).into_owned();
                self.spawn(token, name, &args, packet.fds.into_iter().next());
            }
            ToKeeper::Keep { name: Kept::Segments(connection) } => {
                self.segments.keep(connection, packet.fds);
            }
            ToKeeper::Forget { name: Kept::Segments(connection) } => {
                self.segments.forget(connection);
            }
            ToKeeper::Lend { connection, which } => {
                let lent = self.segments.lend(connection, &which).unwrap_or_default();
                // If the supervisor is gone its pidfd shows it.
                let _ = self.link.send(FromKeeper::Lent.to_bytes(), lent);
            }
            ToKeeper::Keep { name } => {
                self.kept.insert(name, packet.fds.into_iter().map(Arc::new).collect());
            }
            ToKeeper::Forget { name } => drop(self.kept.remove(&name)),
            ToKeeper::Kill { token } => self.signal(token, Signal::KILL),
            ToKeeper::Resume { token } => self.signal(token, Signal::CONT),
            ToKeeper::Ready { cells } => {
                self.ready_since = Some(clock::monotonic());
                if !std::mem::replace(&mut self.served, true) {
                    info!(target: LIFE, cells, "the fleet serves");
                    (self.on_ready)(cells);
                }
            }
            ToKeeper::SupervisorFailed { kind, line } => {
                self.failure = Some(FleetError::reported(kind, &line))
            }
            ToKeeper::Failed { kind, line } => {
                self.release(FinalMessage::Failed(FleetError::reported(kind, &line)));
            }
            ToKeeper::Stopped => self.release(FinalMessage::Stopped),
        }
        Ok(())
    }

    /// Releases all descriptors, because no supervisor takes over. The first final message counts.
    fn release(&mut self, final_message: FinalMessage) {
        self.final_message.get_or_insert(final_message);
        self.kept.clear();
        self.segments.clear();
        self.send(&FromKeeper::Released);
    }

    fn spawn(&mut self, token: u32, name: String, args: &[OsBytes], link: Option<OwnedFd>) {
        let started = link
            .ok_or_else(|| std::io::ErrorKind::InvalidInput.into())
            .and_then(|link| ChildProcess::start(self.recorder, name, args, link));
        let answer = match started {
            Ok(child) => {
                let pid = child.child.id();
                self.children.insert(token, child);
                FromKeeper::Spawned { token, pid }
            }
            // The supervisor logs the failure.
            Err(error) => FromKeeper::NotSpawned { token, errno: errno_of(&error).raw() },
        };
        self.send(&answer);
    }

    fn signal(&self, token: u32, signal: Signal) {
        if let Some(child) = self.children.get(&token) {
            // This can only fail because the process is gone already; then it is reaped.
            let _ = pidfd_send_signal(&child.pidfd, signal);
        }
    }

    fn send(&mut self, message: &FromKeeper) {
        // If the supervisor is gone its pidfd shows it.
        let _ = self.link.send(message.to_bytes(), Vec::new());
    }

    fn end_all(&mut self) {
        if let Some(supervisor) = &mut self.supervisor {
            end(&mut supervisor.child);
        }
        for child in self.children.values_mut() {
            end(&mut child.child);
        }
        self.children.clear();
    }
}

/// The sources that woke the keeper.
struct Awake {
    stop: bool,
    /// Whether the log can be written has changed.
    log: bool,
    supervisor: bool,
    ended: Vec<u32>,
    starter: bool,
}

fn drain(stream: &UnixStream) {
    use std::io::Read;
    let mut stream: &UnixStream = stream;
    let mut bytes = [0; 64];
    while matches!(stream.read(&mut bytes), Ok(n) if n > 0) {}
}
