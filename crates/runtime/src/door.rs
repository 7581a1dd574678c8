//! Asking at a fleet's door: find the socket, make sure who answers, exchange one request.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as OsError;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use warren_base::Errno;
use warren_proto::Wire;
use warren_supervisor::{STOP_MAX, STOP_WAIT};

use crate::error::{FleetError, system};
use crate::identity;
use crate::link::{Link, Packet, Received, Trust, Wait, retry};
use crate::message::{DOOR_VERSION, DoorReply, DoorRequest};
use crate::offline::{OfflinePool, Purpose};
use crate::place::{self, PoolId};
use crate::status::FleetStatus;

/// How long a fleet may take to answer at its door.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a fleet may take for its last checkpoint: longer than it gives its cells.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

const _: () = assert!(STOP_TIMEOUT.as_secs() > STOP_MAX.as_secs() + STOP_WAIT.as_secs());

/// How often somebody who is hung up on begins anew. After `SUCCESSORS_MAX` supervisors that came to nothing in a
/// row there is none.
const CONVERSATIONS_MAX: usize = 100;

/// Bytes of a status at most: more than a fleet with all cells and clients it can have.
const STATUS_MAX: usize = 4 << 20;

/// A connected socket to the fleet that serves the pool.
pub(crate) fn knock(pool: &Path) -> Result<Link, FleetError> {
    let id = PoolId::of(pool)?;
    for door in id.doors() {
        if let Some(link) = open(&door, Some(id.owner()))? {
            return Ok(link);
        }
    }
    Err(FleetError::NoFleet(pool.to_path_buf()))
}

/// Talks to the fleet that serves the pool; again if it hangs up: who had heard may have died, and the next
/// supervisor knows nothing of whom it had not answered.
pub(crate) fn converse<T>(
    pool: &Path,
    mut talk: impl FnMut(&mut Link) -> Result<T, FleetError>,
) -> Result<T, FleetError> {
    let mut outcome = talk(&mut knock(pool)?);
    for _ in 1..CONVERSATIONS_MAX {
        if !outcome.as_ref().is_err_and(is_hangup) {
            return outcome;
        }
        // If nobody listens any more the fleet has died, and not only its supervisor.
        let Ok(mut link) = knock(pool) else { return outcome };
        outcome = talk(&mut link);
    }
    outcome
}

fn is_hangup(error: &FleetError) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    match error {
        FleetError::Died(_) => true,
        FleetError::System { source, .. } => {
            matches!(source.kind(), BrokenPipe | ConnectionReset | NotConnected)
        }
        _ => false,
    }
}

/// Connects to a door; `None` if there is none or nobody behind it. A socket in a place where anyone
/// may make one is only believed if root, we, or the pool's owner listen there.
fn open(door: &Path, owner: Option<u32>) -> Result<Option<Link>, FleetError> {
    let doing = "connect to the fleet";
    let address = SocketAddrUnix::new(door).map_err(system(doing))?;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(system(doing))?;
    // Whoever listens may not accept.
    set_socket_timeout(&socket, Timeout::Send, Some(ANSWER_TIMEOUT)).map_err(system(doing))?;
    match retry(|| connect(&socket, &address)) {
        Ok(()) => {}
        Err(OsError::AGAIN) => return Err(FleetError::NotReady(ANSWER_TIMEOUT.as_secs())),
        Err(_) => return Ok(None),
    }
    let listener = identity::of_peer(&socket).map_err(system(doing))?.uid;
    let believed = listener == 0 || listener == place::uid() || Some(listener) == owner;
    let trust = if listener == 0 || listener == place::uid() { Trust::Fleet } else { Trust::Host };
    Ok(believed.then(|| Link::new(socket, trust)))
}

/// One request, one reply.
pub(crate) fn ask(
    link: &mut Link,
    request: &DoorRequest,
) -> Result<(DoorReply, Vec<OwnedFd>), FleetError> {
    let doing = "talk to the fleet";
    link.send(&request.to_bytes(), &[], Wait::Yes).map_err(system(doing))?;
    let packet = await_packet(link, ANSWER_TIMEOUT)?;
    let reply =
        DoorReply::from_bytes(&packet.bytes).map_err(|_| FleetError::Refused(Errno::EPROTO))?;
    match reply {
        DoorReply::Refused { version, .. } if version != DOOR_VERSION => {
            Err(FleetError::Version { ours: DOOR_VERSION, theirs: version })
        }
        DoorReply::Refused { errno, .. } => {
            Err(FleetError::Refused(Errno::from_raw(errno).unwrap_or(Errno::EIO)))
        }
        reply => Ok((reply, packet.fds)),
    }
}

pub(crate) fn await_packet(link: &mut Link, timeout: Duration) -> Result<Packet, FleetError> {
    let doing = "hear from the fleet";
    if !is_readable(link, timeout)? {
        return Err(FleetError::NotReady(timeout.as_secs()));
    }
    match link.receive(Wait::No).map_err(system(doing))? {
        Received::Packet(packet) => Ok(packet),
        Received::Nothing | Received::Closed => Err(FleetError::Died("the fleet".into())),
    }
}

/// Waits until the descriptor is readable or hung up; false if it took too long.
pub(crate) fn is_readable(fd: &impl AsFd, timeout: Duration) -> Result<bool, FleetError> {
    let timeout = timeout.try_into().map_err(|_| FleetError::NotReady(timeout.as_secs()))?;
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let ready = retry(|| poll(&mut fds, Some(&timeout))).map_err(system("wait for the fleet"))?;
    Ok(ready > 0)
}

/// What the fleet of this pool says about itself.
pub fn status(pool: &Path) -> Result<FleetStatus, FleetError> {
    converse(pool, ask_status)
}

fn ask_status(link: &mut Link) -> Result<FleetStatus, FleetError> {
    let nonsense = || FleetError::Refused(Errno::EPROTO);
    let mut reply = ask(link, &DoorRequest::Status { version: DOOR_VERSION })?.0;
    let mut whole = Vec::new();
    while let DoorReply::Status { json, more } = reply {
        whole.extend_from_slice(&json);
        if !more {
            return serde_json::from_slice(&whole).map_err(|_| nonsense());
        }
        if whole.len() > STATUS_MAX {
            break;
        }
        let packet = await_packet(link, ANSWER_TIMEOUT)?;
        reply = DoorReply::from_bytes(&packet.bytes).map_err(|_| nonsense())?;
    }
    Err(nonsense())
}

/// What every fleet that this process can reach says about itself.
pub fn status_of_all() -> Vec<FleetStatus> {
    let ask_at = |door: PathBuf| {
        let mut link = open(&door, None).ok().flatten()?;
        ask_status(&mut link).ok()
    };
    place::all_doors().into_iter().filter_map(ask_at).collect()
}

/// Whether a fleet serves the pool.
pub fn is_served(pool: &Path) -> bool {
    knock(pool).is_ok()
}

/// Stops the pool's fleet after a last checkpoint, and waits until it is gone. If that checkpoint fails the fleet
/// serves on ([`FleetError::StopRefused`]), unless what it lacks is to be discarded.
pub fn stop(pool: &Path, discard: bool) -> Result<(), FleetError> {
    let (mut link, keeper) = converse(pool, |link| {
        match ask(link, &DoorRequest::Stop { version: DOOR_VERSION, discard })?.0 {
            DoorReply::Stopping { keeper } => {
                Ok((link.share().map_err(system("talk to the fleet"))?, keeper))
            }
            _ => Err(FleetError::Refused(Errno::EPROTO)),
        }
    })?;
    // The keeper is still there: its supervisor has just answered. It may be invisible from another
    // process namespace; then the hang-up must do.
    let keeper = i32::try_from(keeper).ok().and_then(Pid::from_raw);
    let pidfd = keeper.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let outcome = last_word(&mut link);
    if let Err(FleetError::StopRefused(_)) = outcome {
        return outcome;
    }
    if let Some(pidfd) = pidfd {
        is_readable(&pidfd, STOP_TIMEOUT)?;
    }
    match outcome {
        // Its last supervisor may have died between the end and the last word.
        Err(FleetError::Died(_)) if is_in_order(pool) => Ok(()),
        outcome => outcome,
    }
}

/// Whether the pool says that a last checkpoint was made, and nothing since.
fn is_in_order(pool: &Path) -> bool {
    let superblock = OfflinePool::open(pool, Purpose::Beside).and_then(|pool| pool.superblock());
    superblock.is_ok_and(|superblock| superblock.clean)
}

/// What the fleet says of its end. One that hangs up without a word did not get there.
fn last_word(link: &mut Link) -> Result<(), FleetError> {
    loop {
        if !is_readable(link, STOP_TIMEOUT)? {
            return Err(FleetError::NotReady(STOP_TIMEOUT.as_secs()));
        }
        let received = link.receive(Wait::No).map_err(system("hear from the fleet"))?;
        let Received::Packet(packet) = received else {
            return Err(FleetError::Died("the fleet".into()));
        };
        return match DoorReply::from_bytes(&packet.bytes) {
            // Another supervisor goes on with it.
            Ok(DoorReply::Stopping { .. }) => continue,
            Ok(DoorReply::Stopped) => Ok(()),
            Ok(DoorReply::StopRefused { errno }) => {
                Err(FleetError::StopRefused(Errno::from_raw(errno).unwrap_or(Errno::EIO)))
            }
            Ok(DoorReply::Failed { kind, line }) => Err(FleetError::reported(kind, &line)),
            _ => Err(FleetError::Refused(Errno::EPROTO)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::message::STATUS_PART_MAX;

    /// What a command hears of a fleet that says this and hangs up.
    fn heard(said: Option<DoorReply>) -> Result<(), FleetError> {
        let (mut ours, theirs) = Link::pair().expect("pair");
        if let Some(said) = said {
            theirs.send(&said.to_bytes(), &[], Wait::Yes).expect("send");
        }
        drop(theirs);
        last_word(&mut ours)
    }

    #[test]
    fn a_fleet_that_ends_without_a_word_has_not_stopped() {
        assert!(heard(Some(DoorReply::Stopped)).is_ok());
        let failed = DoorReply::Failed { kind: ErrorKind::Other, line: (*b"no space").into() };
        let failed = heard(Some(failed));
        assert!(matches!(failed, Err(FleetError::Reported { line, .. }) if line == "no space"));
        assert!(matches!(heard(None), Err(FleetError::Died(_))));
    }

    #[test]
    fn a_long_status_comes_in_parts() {
        let status = FleetStatus { pool: "/pool".repeat(9000), ..FleetStatus::default() };
        let json = serde_json::to_vec(&status).expect("json");
        let (ours, theirs) = Link::pair().expect("pair");
        // A host's bodies are not read from memfds.
        let mut ours = Link::new(ours.into_fd(), Trust::Host);
        let parts: Vec<&[u8]> = json.chunks(STATUS_PART_MAX).collect();
        for (n, part) in parts.iter().enumerate() {
            let reply = DoorReply::Status { json: (*part).into(), more: n + 1 < parts.len() };
            theirs.send(&reply.to_bytes(), &[], Wait::Yes).expect("send");
        }
        assert!(parts.len() > 2);
        assert_eq!(ask_status(&mut ours).ok(), Some(status));
    }
}
