//! Who is at the door: connections to the fleet's socket, from their first word to their hang-up.
//!
//! A visitor is anybody. It gets one answer to one request; if that was to enter, its connection
//! stays open for as long as it is a client. What it sends beyond is read and dropped with it.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use warren_base::limits::SLOTS_MAX;
use warren_base::{ClientId, Errno};
use warren_proto::{Credentials, Wire};
use warren_supervisor::{Applicant, ConnectionNo};

use crate::error::{FleetError, system};
use crate::identity::{self, Identity};
use crate::link::{Link, Outbox, Received, Trust, Wait};
use crate::message::{DOOR_VERSION, DoorReply, DoorRequest};
use crate::place::{self, PoolId};

/// Connections at a time, clients included. A flood beyond it waits in the socket's queue.
const VISITORS_MAX: usize = 4096;

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
    /// Has not spoken, or was answered.
    Passing,
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
    Stop,
    /// The client's connection is closed.
    Hangup(ClientId),
}

pub struct Visitors {
    listener: OwnedFd,
    path: PathBuf,
    next: u64,
    visitors: BTreeMap<ConnectionNo, Visitor>,
}

impl Visitors {
    /// Opens the door. The pool is locked, so a socket that is there is a dead fleet's.
    pub fn open(pool: PoolId) -> Result<Self, FleetError> {
        let doing = "open the fleet's socket";
        let path = pool.make_place()?;
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
        let door = Self { listener, path, next: 0, visitors: BTreeMap::new() };
        let everyone = fs::Permissions::from_mode(0o666);
        fs::set_permissions(&door.path, everyone).map_err(system(doing))?;
        Ok(door)
    }

    /// From now on visitors are heard.
    pub fn listen(&self) -> Result<(), FleetError> {
        listen(&self.listener, BACKLOG).map_err(system("listen at the fleet's socket"))
    }

    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Every connection, and whether it has something to be sent.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionNo, BorrowedFd<'_>, bool)> {
        self.visitors.iter().map(|(&number, visitor)| {
            (number, visitor.link.link.as_fd(), visitor.link.is_backed_up())
        })
    }

    /// Lets in who waits.
    pub fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else { return };
            // Who cannot be identified, or is one too many, is hung up on.
            let Ok(identity) = identity::of_peer(&socket) else { continue };
            if !self.has_room_for(identity.uid) {
                continue;
            }
            let link = Outbox::new(Link::new(socket, Trust::Stranger));
            let visitor = Visitor { link, identity, standing: Standing::Passing };
            self.visitors.insert(ConnectionNo(self.next), visitor);
            self.next += 1;
        }
    }

    fn has_room_for(&self, uid: u32) -> bool {
        let of_same = self.visitors.values().filter(|visitor| visitor.identity.uid == uid);
        self.visitors.len() < VISITORS_MAX
            && (is_privileged(uid) || of_same.count() < VISITORS_OF_ONE_MAX)
    }

    /// Hears one connection; says what the fleet must do.
    pub fn hear(&mut self, number: ConnectionNo) -> Option<Asked> {
        let visitor = self.visitors.get_mut(&number)?;
        let flushed = visitor.link.flush();
        let received = visitor.link.link.receive(Wait::No);
        let request = match (flushed, received) {
            (Ok(()), Ok(Received::Nothing)) => return None,
            (Ok(()), Ok(Received::Packet(packet))) => DoorRequest::from_bytes(&packet.bytes).ok(),
            _ => None,
        };
        match (request, visitor.standing) {
            (Some(request), Standing::Passing) => self.answer(number, request),
            // Hung up, or spoke out of turn.
            (_, Standing::Client(client)) => {
                self.visitors.remove(&number);
                Some(Asked::Hangup(client))
            }
            // The supervisor answers later; the answer goes nowhere.
            _ => {
                self.visitors.remove(&number);
                None
            }
        }
    }

    fn answer(&mut self, number: ConnectionNo, request: DoorRequest) -> Option<Asked> {
        let visitor = self.visitors.get_mut(&number)?;
        let privileged = is_privileged(visitor.identity.uid);
        let (DoorRequest::Enter { version, .. }
        | DoorRequest::Status { version }
        | DoorRequest::Stop { version }) = request;
        if version != DOOR_VERSION {
            return self.refuse(number, Errno::EPROTO);
        }
        match request {
            DoorRequest::Status { .. } => Some(Asked::Status),
            DoorRequest::Stop { .. } if privileged => {
                visitor.standing = Standing::Stopping;
                Some(Asked::Stop)
            }
            DoorRequest::Enter { front, slots, .. } if privileged || !front => {
                if !(1..=SLOTS_MAX).contains(&usize::from(slots)) {
                    return self.refuse(number, Errno::EINVAL);
                }
                visitor.standing = Standing::Applying;
                Some(Asked::Enter(applicant(&visitor.identity, front, slots)))
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
            visitor.standing = Standing::Passing;
        }
        None
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

    pub fn forget(&mut self, client: ClientId) {
        self.visitors.retain(|_, visitor| visitor.standing != Standing::Client(client));
    }

    /// Tells everyone who asked for the end how it went, and closes the door.
    pub fn close(mut self, outcome: Option<&DoorReply>) {
        // Nobody can find the door any more; a fleet that takes over makes its own.
        let _ = fs::remove_file(&self.path);
        let stopping: Vec<ConnectionNo> = self
            .visitors
            .iter()
            .filter(|(_, visitor)| visitor.standing == Standing::Stopping)
            .map(|(&number, _)| number)
            .collect();
        if let Some(outcome) = outcome {
            stopping.into_iter().for_each(|number| self.tell(number, outcome, Vec::new()));
        }
    }
}

/// Root and the fleet's own user may stop it and put up a front.
fn is_privileged(uid: u32) -> bool {
    uid == 0 || uid == place::uid()
}

fn applicant(identity: &Identity, front: bool, slots: u16) -> Applicant {
    let credentials = Credentials {
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups.clone(),
        checked_by_kernel: front,
    };
    Applicant { credentials, pid: identity.pid.unsigned_abs(), front, slots }
}
