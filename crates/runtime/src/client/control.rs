//! The client's side of the fleet's control socket: finds it, verifies the listener, and sends one
//! request.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as OsError;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use warren_base::Errno;
use warren_device::PoolFile;
use warren_proto::Wire;
use warren_transport::control::{CONTROL_VERSION, ControlReply, ControlRequest};

use crate::error::{FleetError, system};
use crate::identity;
use crate::link::{Link, Packet, Received, Trust, Wait, retry};
use crate::message::{STOP_TIMEOUT, path_of};
use crate::pool::offline::{OfflinePool, Purpose};
use crate::silence::{self, Silence};
use crate::socket_path::{self, PoolId, SocketPath};
use crate::status::{FleetStatus, SILENT};

/// The time in which a fleet must reply.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time in which all fleets together must send their status.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// The limit of repetitions of a request whose connection was closed. After `SUCCESSORS_MAX` failed
/// supervisors in a row there is no other.
const EXCHANGES_MAX: usize = 100;

/// After this time without an answer the user learns which process does not run.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of stack of a thread that queries one fleet: for a packet and slightly nested JSON.
const ASKING_STACK: usize = 256 << 10;

/// The limit of a status in bytes: more than a fleet with the maximum of cells and clients needs.
const STATUS_MAX: usize = 1 << 20;

/// The result of connecting to one socket.
enum Attempt {
    Connected(Link),
    /// No process listens there, or a process that cannot be the fleet.
    NoFleet,
    /// This process may not connect.
    Denied,
}

/// A connection to the fleet that serves a pool.
pub(crate) struct Call {
    pub link: Link,
    /// The pool as it was when the socket was searched. `None` if its file was deleted.
    pub pool: Option<PoolId>,
    /// The deadline for the fleet's answer.
    pub until: Instant,
}

pub(crate) fn connect_to(pool: &Path, until: Instant) -> Result<Call, FleetError> {
    let mut is_denied = false;
    let id = PoolId::of(pool)?;
    for socket in id.sockets() {
        match open(&socket, until)? {
            Attempt::Connected(link) => return Ok(Call { link, pool: Some(id), until }),
            Attempt::NoFleet => {}
            Attempt::Denied => is_denied = true,
        }
    }
    Err(match is_denied && may_be_served(pool) {
        true => FleetError::NotAdmitted(pool.to_path_buf()),
        false => FleetError::NoFleet(pool.to_path_buf()),
    })
}

/// Whether a fleet may serve the pool, although its socket cannot be seen. A directory of sockets
/// is closed to other users also while no fleet serves this pool.
fn may_be_served(pool: &Path) -> bool {
    // A pool that this process may not read cannot be examined.
    PoolFile::has_writers(pool).unwrap_or(true)
}

/// The same as [`connect_to`], also if the pool's file was deleted or replaced while it was served:
/// then the fleet of this user is found by the path that it was started with. A fleet of another
/// user may show any path.
fn connect_by_name(pool: &Path, until: Instant) -> Result<Call, FleetError> {
    let missing = match connect_to(pool, until) {
        Err(error @ (FleetError::NoSuchPool(_) | FleetError::NoFleet(_))) => error,
        connected => return connected,
    };
    let Some(name) = name_of_deleted(pool) else { return Err(missing) };
    let is_it = |status: &FleetStatus| status.pool_harm.is_some() && status.pool == name;
    let own = socket_path::uid();
    for socket in socket_path::all_sockets().into_iter().filter(|socket| socket.uid == own) {
        let status = status_at(&socket, until.min(Instant::now() + STATUS_TIMEOUT));
        if status.as_ref().is_some_and(is_it)
            && let Ok(Attempt::Connected(link)) = open(&socket, until)
        {
            return Ok(Call { link, pool: None, until });
        }
    }
    Err(missing)
}

/// The path of a file that may not exist, as a fleet shows it.
fn name_of_deleted(pool: &Path) -> Option<String> {
    let pool = std::path::absolute(pool).ok()?;
    let parent = pool.parent()?;
    let parent = parent.canonicalize().unwrap_or_else(|_| parent.to_path_buf());
    let name = parent.join(pool.file_name()?);
    Some(name.to_string_lossy().into_owned())
}

/// Exchanges messages with the fleet that serves the pool. If the fleet closes the connection, the
/// exchange is repeated: the supervisor may have died, and its successor does not know the requests
/// that it had not answered.
pub(crate) fn exchange<T>(
    pool: &Path,
    until: Instant,
    talk: impl FnMut(&mut Call) -> Result<T, FleetError>,
) -> Result<T, FleetError> {
    exchange_over(connect_to, pool, until, talk)
}

fn exchange_over<T>(
    connect: fn(&Path, Instant) -> Result<Call, FleetError>,
    pool: &Path,
    until: Instant,
    mut talk: impl FnMut(&mut Call) -> Result<T, FleetError>,
) -> Result<T, FleetError> {
    let mut silence = None;
    let started = Instant::now();
    let mut talk = |call: &mut Call| {
        let outcome = talk(call);
        if let Err(FleetError::NotReady(_)) = outcome {
            silence = Some(Silence::of(&call.link));
            // A part of the wait may have been for a reply before.
            return Err(FleetError::NotReady(started.elapsed().as_secs()));
        }
        outcome
    };
    let mut outcome = talk(&mut connect(pool, until)?);
    for _ in 1..EXCHANGES_MAX {
        if !outcome.as_ref().is_err_and(is_closed) {
            break;
        }
        // If no process listens any more, the whole fleet has died, not only its supervisor.
        let Ok(mut call) = connect(pool, until) else { break };
        outcome = talk(&mut call);
    }
    match outcome {
        Err(FleetError::Refused(Errno::EACCES)) => Err(FleetError::NotAdmitted(pool.to_path_buf())),
        Err(FleetError::NotReady(seconds)) => {
            let what = silence.unwrap_or_default().to_string();
            Err(FleetError::Silent { pool: pool.to_path_buf(), seconds, what })
        }
        // It was ending already, and has ended in order.
        Err(error) if is_closed(&error) && is_in_order(pool) => {
            Err(FleetError::NoFleet(pool.to_path_buf()))
        }
        outcome => outcome,
    }
}

/// The deadline for a fleet that is queried now.
pub(crate) fn reply_deadline() -> Instant {
    Instant::now() + ANSWER_TIMEOUT
}

fn is_closed(error: &FleetError) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    match error {
        FleetError::Died(_) => true,
        FleetError::System { source, .. } => {
            matches!(source.kind(), BrokenPipe | ConnectionReset | NotConnected)
        }
        _ => false,
    }
}

/// Connects to a socket. A listener of another user receives no request.
fn open(place: &SocketPath, until: Instant) -> Result<Attempt, FleetError> {
    let doing = "connect to the fleet";
    let left = until.saturating_duration_since(Instant::now());
    let mut connected = place.connect(left.min(PATIENCE));
    if left > PATIENCE && matches!(connected, Err(OsError::AGAIN)) {
        let seconds = PATIENCE.as_secs();
        warren_log::say(&format!(
            "the fleet has taken no connection for {seconds} s: its supervisor does not run, or \
             has no free descriptors; see `warren status`"
        ));
        connected = place.connect(until.saturating_duration_since(Instant::now()));
    }
    let socket = match connected {
        Ok(socket) => socket,
        Err(OsError::AGAIN) => return Err(FleetError::NotReady(left.as_secs())),
        Err(OsError::ACCESS | OsError::PERM) => return Ok(Attempt::Denied),
        Err(_) => return Ok(Attempt::NoFleet),
    };
    let listener = identity::of_peer(&socket).map_err(system(doing))?.uid;
    if listener != place.uid {
        return Ok(Attempt::NoFleet);
    }
    let trust =
        if listener == 0 || listener == socket_path::uid() { Trust::Fleet } else { Trust::Host };
    Ok(Attempt::Connected(Link::new(socket, trust)))
}

/// Sends one request and receives one reply.
pub(crate) fn ask(
    link: &mut Link,
    request: &ControlRequest,
    until: Instant,
) -> Result<(ControlReply, Vec<OwnedFd>), FleetError> {
    let doing = "talk to the fleet";
    link.send(&request.to_bytes(), &[], Wait::Yes).map_err(system(doing))?;
    say_who_is_silent(link, until)?;
    let packet = await_packet(link, until)?;
    let reply =
        ControlReply::from_bytes(&packet.bytes).map_err(|_| FleetError::Refused(Errno::EPROTO))?;
    match reply {
        ControlReply::Refused { version, .. } if version != CONTROL_VERSION => {
            Err(FleetError::Version { ours: CONTROL_VERSION, theirs: version })
        }
        ControlReply::Refused { errno, .. } => {
            Err(FleetError::Refused(Errno::from_raw(errno).unwrap_or(Errno::EIO)))
        }
        reply => Ok((reply, packet.fds)),
    }
}

/// Waits for an answer for some time, and says why there is none if it may take longer.
fn say_who_is_silent(link: &Link, until: Instant) -> Result<(), FleetError> {
    let left = until.saturating_duration_since(Instant::now());
    if left > PATIENCE && !is_readable(link, PATIENCE)? {
        let (seconds, silence) = (PATIENCE.as_secs(), Silence::of(link));
        warren_log::say(&format!("the fleet has not answered for {seconds} s: {silence}"));
    }
    Ok(())
}

pub(crate) fn await_packet(link: &mut Link, until: Instant) -> Result<Packet, FleetError> {
    let doing = "receive from the fleet";
    let timeout = until.saturating_duration_since(Instant::now());
    if !is_readable(link, timeout)? {
        return Err(FleetError::NotReady(timeout.as_secs()));
    }
    match link.receive(Wait::No).map_err(system(doing))? {
        Received::Packet(packet) => Ok(packet),
        Received::Nothing | Received::Closed => Err(FleetError::Died("the fleet".into())),
    }
}

/// Waits until the descriptor is readable or closed by its peer. False after the timeout.
pub(crate) fn is_readable(fd: &impl AsFd, timeout: Duration) -> Result<bool, FleetError> {
    let timeout = timeout.try_into().map_err(|_| FleetError::NotReady(timeout.as_secs()))?;
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let ready = retry(|| poll(&mut fds, Some(&timeout))).map_err(system("wait for the fleet"))?;
    Ok(ready > 0)
}

/// The status of the fleet of this pool.
pub fn status(pool: &Path) -> Result<FleetStatus, FleetError> {
    exchange_over(connect_by_name, pool, reply_deadline(), |call| {
        ask_status(&mut call.link, call.until)
    })
}

/// The same within [`STATUS_TIMEOUT`]. The error names the process that does not answer.
pub fn status_soon(pool: &Path) -> Result<FleetStatus, FleetError> {
    let until = Instant::now() + STATUS_TIMEOUT;
    exchange_over(connect_by_name, pool, until, |call| ask_status(&mut call.link, call.until))
}

fn ask_status(link: &mut Link, until: Instant) -> Result<FleetStatus, FleetError> {
    let malformed = || FleetError::Refused(Errno::EPROTO);
    let mut reply = ask(link, &ControlRequest::Status { version: CONTROL_VERSION }, until)?.0;
    let mut whole = Vec::new();
    while let ControlReply::Status { json, more } = reply {
        whole.extend_from_slice(&json);
        if !more {
            let status: FleetStatus = serde_json::from_slice(&whole).map_err(|_| malformed())?;
            // The uid comes from the kernel, not from the fleet.
            let uid = identity::of_peer(&link).map_err(system("talk to the fleet"))?.uid;
            return Ok(FleetStatus { uid, ..status });
        }
        if whole.len() > STATUS_MAX {
            break;
        }
        let packet = await_packet(link, until)?;
        reply = ControlReply::from_bytes(&packet.bytes).map_err(|_| malformed())?;
    }
    Err(malformed())
}

/// The status of this user's fleets; for root, of all users' fleets. They are queried in parallel.
/// A fleet that does not answer within [`STATUS_TIMEOUT`] is shown as [`SILENT`].
pub fn status_of_all() -> Vec<FleetStatus> {
    let until = Instant::now() + STATUS_TIMEOUT;
    let sockets = socket_path::all_sockets();
    std::thread::scope(|scope| {
        let asking: Vec<_> = sockets
            .iter()
            .map(|socket| {
                let asking = std::thread::Builder::new().stack_size(ASKING_STACK);
                asking.spawn_scoped(scope, || status_at(socket, until))
            })
            .collect();
        // If a thread could not be started its fleet is left out.
        let answered = asking.into_iter().filter_map(|asking| asking.ok()?.join().ok()?);
        answered.collect()
    })
}

fn status_at(socket: &SocketPath, until: Instant) -> Option<FleetStatus> {
    let mut link = match open(socket, until) {
        Ok(Attempt::Connected(link)) => link,
        Ok(Attempt::NoFleet | Attempt::Denied) => return None,
        Err(_) => return Some(FleetStatus { uid: socket.uid, ..silent(socket) }),
    };
    match ask_status(&mut link, until) {
        Ok(status) => Some(status),
        Err(FleetError::NotReady(_)) => Some(Silence::of(&link).status(silent(socket))),
        Err(_) => None,
    }
}

fn silent(socket: &SocketPath) -> FleetStatus {
    let pool = format!("(unknown, at {})", path_of(&socket.path).display());
    FleetStatus { pool, state: SILENT.into(), uid: socket.uid, ..FleetStatus::default() }
}

/// For a mount that takes long: which process of the fleet, or of the mount with this keeper, does
/// not run, and what to do.
pub fn describe_wait(pool: &Path, mount_keeper: u32) -> String {
    // Also a supervisor that is stopped has connections in its queue.
    let call = connect_to(pool, Instant::now() + PATIENCE);
    let fleet = call.map(|call| Silence::of(&call.link)).unwrap_or_default();
    fleet.with_mount(mount_keeper).to_string()
}

/// Whether a fleet serves the pool. An error if a fleet may serve it but does not admit this
/// process.
pub fn is_served(pool: &Path) -> Result<bool, FleetError> {
    match connect_to(pool, reply_deadline()) {
        Ok(_) => Ok(true),
        Err(FleetError::NoFleet(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The options of a fleet's stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StopOptions {
    /// Cuts off programs that use the mounts, after the data that they have stored was written
    /// back.
    pub force: bool,
    /// If the last checkpoint fails, discards the changes it lacks.
    pub discard: bool,
    /// The stop is refused if there is any mount, and none is unmounted.
    pub if_unused: bool,
}

/// Stops the pool's fleet after a last checkpoint, and waits until it is gone. First another
/// checkpoint shows that nothing would be lost, then the mounts are unmounted. If a mount is in use
/// the stop is refused, and all mounts stay. If a checkpoint fails the fleet continues to serve
/// ([`FleetError::StopRefused`]), unless `discard` is set.
pub fn stop(pool: &Path, options: StopOptions) -> Result<(), FleetError> {
    let StopOptions { force, discard, if_unused } = options;
    let version = CONTROL_VERSION;
    let request = ControlRequest::Stop { version, force, discard, if_unused };
    let asked = exchange_over(connect_by_name, pool, reply_deadline(), |call| {
        match begin_stop(call, &request)? {
            ControlReply::Stopping { keeper } => {
                Ok((call.link.share().map_err(system("talk to the fleet"))?, keeper))
            }
            ControlReply::StopRefused { errno } => Err(stop_refused(errno)),
            ControlReply::Failed { kind, line } => Err(FleetError::reported(kind, &line)),
            _ => Err(FleetError::Refused(Errno::EPROTO)),
        }
    });
    let (mut link, keeper) = asked?;
    // The keeper still runs, because its supervisor has just answered. If it is invisible from this
    // process namespace, the hang-up of the socket must do.
    let keeper = i32::try_from(keeper).ok().and_then(Pid::from_raw);
    let pidfd = keeper.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let outcome = final_reply(&mut link, keeper);
    if let Err(FleetError::StopRefused(_) | FleetError::CellTakenOut) = outcome {
        return outcome;
    }
    if let Some(pidfd) = pidfd {
        is_readable_at_last(&pidfd, keeper)?;
    }
    match outcome {
        // Its last supervisor may have died between the end and its final reply.
        Err(FleetError::Died(_)) if is_in_order(pool) => Ok(()),
        outcome => outcome,
    }
}

/// Waits as [`is_readable`] does while a fleet ends, which needs its keeper. If that is stopped,
/// the user learns why nothing happens.
fn is_readable_at_last(fd: &impl AsFd, keeper: Option<Pid>) -> Result<bool, FleetError> {
    if is_readable(fd, PATIENCE)? {
        return Ok(true);
    }
    let pid = keeper.map_or(0, |keeper| keeper.as_raw_nonzero().get().unsigned_abs());
    if silence::is_stopped(pid) {
        warren_log::say(&format!(
            "the keeper (pid {pid}) is stopped by a signal; let it go on with `kill -CONT {pid}`"
        ));
    }
    is_readable(fd, STOP_TIMEOUT)
}

/// The fleet's answer to a stop, after its trial if it makes one.
fn begin_stop(call: &mut Call, request: &ControlRequest) -> Result<ControlReply, FleetError> {
    let mut answer = ask(&mut call.link, request, call.until)?.0;
    while answer == ControlReply::Trying {
        let line = "the fleet makes a checkpoint before it stops; `warren status` shows its cells";
        let until = Instant::now() + STOP_TIMEOUT;
        let packet = warren_log::say_if_slow(line, || await_packet(&mut call.link, until))?;
        answer = ControlReply::from_bytes(&packet.bytes)
            .map_err(|_| FleetError::Refused(Errno::EPROTO))?;
    }
    Ok(answer)
}

fn stop_refused(errno: i32) -> FleetError {
    match Errno::from_raw(errno).unwrap_or(Errno::EIO) {
        // No device fails so: the supervisor says that a cell is taken out.
        Errno::EUCLEAN => FleetError::CellTakenOut,
        errno => FleetError::StopRefused(errno),
    }
}

/// Whether the superblock has the clean mark: nothing has changed since a last checkpoint.
fn is_in_order(pool: &Path) -> bool {
    let superblock = OfflinePool::open(pool, Purpose::Beside).and_then(|pool| pool.superblock());
    superblock.is_ok_and(|superblock| superblock.clean)
}

/// The fleet's final reply. A fleet that closes the connection without it has not ended in order.
fn final_reply(link: &mut Link, keeper: Option<Pid>) -> Result<(), FleetError> {
    loop {
        if !is_readable_at_last(link, keeper)? {
            return Err(FleetError::NotReady(STOP_TIMEOUT.as_secs()));
        }
        let received = link.receive(Wait::No).map_err(system("receive from the fleet"))?;
        let Received::Packet(packet) = received else {
            return Err(FleetError::Died("the fleet".into()));
        };
        return match ControlReply::from_bytes(&packet.bytes) {
            // Another supervisor continues the stop.
            Ok(ControlReply::Stopping { .. }) => continue,
            Ok(ControlReply::CutOff { line }) => {
                warren_log::say(&String::from_utf8_lossy(&line));
                continue;
            }
            Ok(ControlReply::Stopped) => Ok(()),
            Ok(ControlReply::StopRefused { errno }) => Err(stop_refused(errno)),
            Ok(ControlReply::Failed { kind, line }) => Err(FleetError::reported(kind, &line)),
            _ => Err(FleetError::Refused(Errno::EPROTO)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use warren_transport::control::STATUS_PART_MAX;

    /// The outcome of a command whose fleet sends this reply and closes the connection.
    fn outcome_of(reply: Option<ControlReply>) -> Result<(), FleetError> {
        let (mut ours, theirs) = Link::pair().expect("pair");
        if let Some(reply) = reply {
            theirs.send(&reply.to_bytes(), &[], Wait::Yes).expect("send");
        }
        drop(theirs);
        final_reply(&mut ours, None)
    }

    #[test]
    fn a_fleet_that_ends_without_a_final_reply_has_not_stopped() {
        assert!(outcome_of(Some(ControlReply::Stopped)).is_ok());
        let failed = ControlReply::Failed { kind: ErrorKind::Other, line: (*b"no space").into() };
        let failed = outcome_of(Some(failed));
        assert!(matches!(failed, Err(FleetError::Reported { line, .. }) if line == "no space"));
        assert!(matches!(outcome_of(None), Err(FleetError::Died(_))));
    }

    #[test]
    fn a_long_status_comes_in_parts() {
        let status = FleetStatus { pool: "/pool".repeat(9000), ..FleetStatus::default() };
        let json = serde_json::to_vec(&status).expect("json");
        let (ours, theirs) = Link::pair().expect("pair");
        // Bodies from a host are not read from memfds.
        let mut ours = Link::new(ours.into_fd(), Trust::Host);
        let parts: Vec<&[u8]> = json.chunks(STATUS_PART_MAX).collect();
        for (n, part) in parts.iter().enumerate() {
            let reply = ControlReply::Status { json: (*part).into(), more: n + 1 < parts.len() };
            theirs.send(&reply.to_bytes(), &[], Wait::Yes).expect("send");
        }
        assert!(parts.len() > 2);
        let uid = socket_path::uid();
        assert_eq!(
            ask_status(&mut ours, reply_deadline()).ok(),
            Some(FleetStatus { uid, ..status })
        );
    }
}
