//! Who is at the door: connections to the fleet's socket, from their first word to their hang-up.
//!
//! A visitor is anybody. It gets one answer to one request, so what waits for it is bounded; if it
//! asked to enter, its connection stays open for as long as it is a client. Whoever says more is hung
//! up on. Connections are accepted at a [`pace`].

mod pace;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno as OsError;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use tracing::{info, warn};
use warren_base::Instant;
use warren_base::limits::SLOTS_MAX;
use warren_base::{ClientId, Errno};
use warren_proto::{Credentials, Wire};
use warren_supervisor::{Applicant, ConnectionNo};

use super::descriptors::Reserve;
use super::record::program;
use crate::clients::Clients;
use crate::error::{FleetError, system};
use crate::identity::{self, Identity};
use crate::link::{Link, Outbox, Received, Trust, Wait};
use crate::message::{DOOR_VERSION, DoorReply, DoorRequest, MOUNTED_MAX, OsBytes};
use crate::place::{self, PoolId};
use pace::Pace;

/// Connections at a time, clients included. Who is one too many is hung up on.
const VISITORS_MAX: usize = 4096;

/// Of these, what only root and we may take: somebody must be able to look and to stop the fleet.
const VISITORS_OF_PRIVILEGED: usize = 64;

/// Connections at a time of one user who is neither root nor ours, so that none shuts others out.
const VISITORS_OF_ONE_MAX: usize = 512;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Connections accepted in one go, so that a flood does not hold up the fleet.
const ACCEPTS_A_TURN: usize = 16;

/// One connection.
struct Visitor {
    link: Outbox,
    identity: Identity,
    standing: Standing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Has not spoken.
    Passing,
    /// Has its answer, or as much of it as it has taken; now it is to hang up.
    Answered,
    /// Asked to enter and waits.
    Applying,
    Client(ClientId),
    /// Waits for the end of the fleet.
    Stopping,
}

/// What a visitor wants that the fleet must do.
pub enum Asked {
    Enter(Applicant),
    Status,
    Stop {
        force: bool,
        discard: bool,
    },
    /// A client's word of what uses its mount.
    InUse {
        client: ClientId,
        number: u32,
        by: Box<[u8]>,
    },
    /// The client's connection is closed.
    Hangup(ClientId),
}

pub struct Visitors {
    listener: OwnedFd,
    path: PathBuf,
    /// Who may ask for anything, beside root and us.
    clients: Clients,
    next: u64,
    visitors: BTreeMap<ConnectionNo, Visitor>,
    /// Clients that have hung up and that some cell still knows, with their users, who have them still.
    leaving: BTreeMap<ClientId, u32>,
    reserve: Reserve,
    /// The last one who knocked could not be let in for want of descriptors or memory.
    is_deaf: bool,
    pace: Pace,
}

impl Visitors {
    /// Opens the door. The pool is locked, so a socket that is there is a dead fleet's.
    pub fn open(pool: PoolId, clients: Clients, reserve: Reserve) -> Result<Self, FleetError> {
        let doing = "open the fleet's socket";
        let path = pool.make_place(clients)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(system(doing)(error));
            }
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(system(doing))?;
        let address = SocketAddrUnix::new(&path).map_err(system(doing))?;
        bind(&listener, &address).map_err(system(doing))?;
        // Descriptors in packets that nobody took are closed by us, and closing one may block. A kernel
        // that is too old closes them all the same, but does not flush them.
        let _ = identity::refuse_descriptors(&listener);
        clients.guard(&path).map_err(system(doing))?;
        Ok(Self::adopt(listener, path, clients, 0, reserve))
    }

    /// The door that an earlier supervisor had opened. Who was not kept there has been hung up on.
    pub fn adopt(
        listener: OwnedFd,
        path: PathBuf,
        clients: Clients,
        next: u64,
        reserve: Reserve,
    ) -> Self {
        let (visitors, leaving) = (BTreeMap::new(), BTreeMap::new());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (is_deaf, pace) = (false, Pace::new(cores));
        Self { listener, path, clients, next, visitors, leaving, reserve, is_deaf, pace }
    }

    /// For the next supervisor.
    pub fn kept(&self) -> Result<OwnedFd, FleetError> {
        self.listener.try_clone().map_err(system("share the fleet's socket"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// A connection for the keeper.
    pub fn socket(&self, number: ConnectionNo) -> Option<OwnedFd> {
        self.visitors.get(&number)?.link.link.as_fd().try_clone_to_owned().ok()
    }

    /// One who had come to an earlier supervisor, and applies, is a client or waits for the end. The kernel
    /// still knows who it is.
    pub fn readmit(
        &mut self,
        number: ConnectionNo,
        socket: OwnedFd,
        client: Option<ClientId>,
    ) -> bool {
        let Ok(identity) = identity::of_peer(&socket) else { return false };
        let standing = client.map_or(Standing::Stopping, Standing::Client);
        let link = Outbox::new(Link::new(socket, Trust::Stranger));
        self.visitors.insert(number, Visitor { link, identity, standing });
        self.next = self.next.max(number.0 + 1);
        true
    }

    /// Those who wait for the end.
    pub fn stopping(&self) -> impl Iterator<Item = ConnectionNo> {
        let stopping =
            |(_, visitor): &(&ConnectionNo, &Visitor)| visitor.standing == Standing::Stopping;
        self.visitors.iter().filter(stopping).map(|(&number, _)| number)
    }

    /// From now on visitors are heard. The kernel names this process to them.
    pub fn listen(&self) -> Result<(), FleetError> {
        listen(&self.listener, BACKLOG).map_err(system("listen at the fleet's socket"))
    }

    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Every connection.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionNo, &Outbox)> {
        self.visitors.iter().map(|(&number, visitor)| (number, &visitor.link))
    }

    /// Whether a poll of the listener is of no use: [`Self::accept`] is tried now and then instead.
    pub fn is_deaf(&self) -> bool {
        self.is_deaf
    }

    /// How long no connection is accepted because too many were.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        self.pace.wait(now)
    }

    /// Lets in who waits.
    pub fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_A_TURN {
            if !self.pace.permits(now) {
                return;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let accepted = accept_with(&self.listener, flags);
            let failed = accepted.as_ref().err().filter(|&&error| error != OsError::AGAIN);
            // Before it listens the door is invalid.
            let is_news = |error: &&OsError| !self.is_deaf && **error != OsError::INVAL;
            if let Some(error) = failed.filter(is_news) {
                warn!("no client can be let in: {error}");
            }
            self.is_deaf = failed.is_some();
            let Ok(socket) = accepted else { return };
            self.pace.count();
            // Who cannot be identified, or is one too many, is hung up on.
            let Ok(identity) = identity::of_peer(&socket) else { continue };
            let is_scarce = match is_privileged(identity.uid) {
                true => self.reserve.needs(&socket),
                false => self.reserve.has(&socket),
            };
            if is_scarce || !self.has_room_for(identity.uid) {
                let why =
                    if is_scarce { "few descriptors are left" } else { "too many connections" };
                let Identity { uid, pid, .. } = identity;
                warn!(uid, pid, why, "a connection was closed at once");
                continue;
            }
            if self.reserve.has(&socket) {
                warn!(uid = identity.uid, "few descriptors are left: the reserve is used");
            }
            let link = Outbox::new(Link::new(socket, Trust::Stranger));
            let visitor = Visitor { link, identity, standing: Standing::Passing };
            self.visitors.insert(ConnectionNo(self.next), visitor);
            self.next += 1;
        }
    }

    fn has_room_for(&self, uid: u32) -> bool {
        if is_privileged(uid) {
            return self.visitors.len() < VISITORS_MAX;
        }
        let connected = self.visitors.values().map(|visitor| visitor.identity.uid);
        let of_same = connected.chain(self.leaving.values().copied()).filter(|of| *of == uid);
        self.visitors.len() < VISITORS_MAX - VISITORS_OF_PRIVILEGED
            && of_same.count() < VISITORS_OF_ONE_MAX
    }

    /// Hears one connection; says what the fleet must do.
    pub fn hear(&mut self, number: ConnectionNo) -> Option<Asked> {
        let visitor = self.visitors.get_mut(&number)?;
        let flushed = visitor.link.flush();
        let received = visitor.link.link.receive(Wait::No);
        let request = match (flushed, received) {
            (Ok(()), Ok(Received::Nothing)) => return None,
            (Ok(()), Ok(Received::Packet(packet))) => {
                let request = DoorRequest::from_bytes(&packet.bytes).ok();
                let is_passing = visitor.standing == Standing::Passing;
                if request.is_none() {
                    let Identity { uid, pid, .. } = visitor.identity;
                    warn!(uid, pid, "a client's message makes no sense, or is of another version");
                }
                if request.is_none() && is_passing && is_of_another_version(&packet.bytes) {
                    return self.refuse(number, Errno::EPROTO);
                }
                request
            }
            _ => None,
        };
        match (request, visitor.standing) {
            (Some(DoorRequest::InUse { number, by, .. }), Standing::Client(client)) => {
                Some(Asked::InUse { client, number, by })
            }
            (Some(request), Standing::Passing) => self.answer(number, request),
            // Hung up, or spoke out of turn.
            (_, Standing::Client(_)) => self.hang_up(number),
            // The supervisor answers later; the answer goes nowhere.
            _ => {
                self.visitors.remove(&number);
                None
            }
        }
    }

    /// Ends a client's connection.
    pub fn hang_up(&mut self, number: ConnectionNo) -> Option<Asked> {
        let visitor = self.visitors.get(&number)?;
        let Standing::Client(client) = visitor.standing else { return None };
        self.leaving.insert(client, visitor.identity.uid);
        self.visitors.remove(&number);
        Some(Asked::Hangup(client))
    }

    fn answer(&mut self, number: ConnectionNo, request: DoorRequest) -> Option<Asked> {
        let visitor = self.visitors.get_mut(&number)?;
        let privileged = is_privileged(visitor.identity.uid);
        let (DoorRequest::Enter { version, .. }
        | DoorRequest::Status { version }
        | DoorRequest::InUse { version, .. }
        | DoorRequest::Stop { version, .. }) = request;
        if version != DOOR_VERSION {
            return self.refuse(number, Errno::EPROTO);
        }
        if !privileged && !self.clients.admits(&visitor.identity) {
            return self.refuse(number, Errno::EACCES);
        }
        match request {
            DoorRequest::Status { .. } => {
                visitor.standing = Standing::Answered;
                Some(Asked::Status)
            }
            DoorRequest::Stop { force, discard, .. } if privileged => {
                visitor.standing = Standing::Stopping;
                let (uid, pid) = (visitor.identity.uid, visitor.identity.pid.unsigned_abs());
                let by = program(pid);
                info!(uid, pid, by, force, discard, "the fleet shall stop");
                Some(Asked::Stop { force, discard })
            }
            DoorRequest::Enter { front, slots, mounted, .. } if privileged || !front => {
                let is_legal = (1..=SLOTS_MAX).contains(&usize::from(slots))
                    && mounted.len() <= if front { MOUNTED_MAX } else { 0 };
                if !is_legal {
                    return self.refuse(number, Errno::EINVAL);
                }
                visitor.standing = Standing::Applying;
                Some(Asked::Enter(applicant(&visitor.identity, front, slots, mounted)))
            }
            _ => self.refuse(number, Errno::EPERM),
        }
    }

    pub fn refuse(&mut self, number: ConnectionNo, errno: Errno) -> Option<Asked> {
        self.tell(
            number,
            &DoorReply::Refused { version: DOOR_VERSION, errno: errno.raw() },
            Vec::new(),
        );
        if let Some(visitor) = self.visitors.get_mut(&number) {
            visitor.standing = Standing::Answered;
            let (uid, pid) = (visitor.identity.uid, visitor.identity.pid.unsigned_abs());
            let by = program(pid);
            warn!(uid, pid, by, %errno, "a client was refused");
        }
        None
    }

    /// One that waits for the end of the fleet is told that it goes on.
    pub fn disappoint(&mut self, number: ConnectionNo, reply: &DoorReply) {
        self.tell(number, reply, Vec::new());
        if let Some(visitor) = self.visitors.get_mut(&number) {
            visitor.standing = Standing::Answered;
        }
    }

    /// Sends a reply; a visitor that does not take it is hung up on by the next poll.
    pub fn tell(&mut self, number: ConnectionNo, reply: &DoorReply, fds: Vec<OwnedFd>) {
        if let Some(visitor) = self.visitors.get_mut(&number) {
            // A broken connection is readable, and `hear` removes it.
            let _ = visitor.link.send(reply.to_bytes(), fds);
        }
    }

    /// The applicant is a client from now on: when it hangs up, it is expelled. False if it has
    /// hung up already.
    pub fn enter(&mut self, number: ConnectionNo, client: ClientId) -> bool {
        let Some(visitor) = self.visitors.get_mut(&number) else { return false };
        visitor.standing = Standing::Client(client);
        true
    }

    /// No cell knows the client any more.
    pub fn forget(&mut self, client: ClientId) {
        self.leaving.remove(&client);
        self.visitors.retain(|_, visitor| visitor.standing != Standing::Client(client));
    }

    /// From now on nobody finds the door. To be called while the pool is locked: what lies there afterwards is
    /// another fleet's.
    pub fn remove_door(&self) {
        // One that cannot be removed leads to nobody.
        let _ = fs::remove_file(&self.path);
    }

    /// Tells everyone who asked for the end how it went.
    pub fn close(mut self, outcome: &DoorReply) {
        let stopping: Vec<ConnectionNo> = self.stopping().collect();
        stopping.into_iter().for_each(|number| self.tell(number, outcome, Vec::new()));
    }
}

/// Requests of all versions begin with a tag and the version, whatever follows.
fn is_of_another_version(bytes: &[u8]) -> bool {
    let version = bytes.get(1..5).and_then(|version| version.try_into().ok());
    version.is_some_and(|version| u32::from_le_bytes(version) != DOOR_VERSION)
}

/// Root and the fleet's own user may stop it and put up a front.
fn is_privileged(uid: u32) -> bool {
    uid == 0 || uid == place::uid()
}

fn applicant(identity: &Identity, front: bool, slots: u16, mounted: OsBytes) -> Applicant {
    let credentials = Credentials {
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups.clone(),
        checked_by_kernel: front,
    };
    let (pid, privileged) = (identity.pid.unsigned_abs(), is_privileged(identity.uid));
    Applicant { credentials, pid, front, privileged, slots, mounted }
}

#[cfg(test)]
mod tests;
