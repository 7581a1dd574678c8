//! Connections to the fleet's control socket, from their first request to their end.
//!
//! Any process may connect. A connection gets one reply to one request, so the replies that wait
//! for it are bounded. After an application it stays open for as long as the process is a client. A
//! connection that sends anything else is closed. Connections are accepted at a [`pace`].

mod pace;
mod ready;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pace::Pace;
use ready::Ready;
use rustix::io::Errno as OsError;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use tracing::{info, warn};
use warren_base::Instant;
use warren_base::{CellId, ClientId, Errno};
use warren_proto::slot::{LaneSize, Shape};
use warren_proto::{Credentials, Rules, Wire};
use warren_supervisor::{Applicant, ConnectionNo};
use warren_transport::control::{
    CONTROL_VERSION, ControlReply, ControlRequest, MOUNTED_MAX, OsBytes,
};

use super::logged::program;
use crate::clients::Clients;
use crate::error::{FleetError, system};
use crate::identity::{self, Identity};
use crate::link::{Link, Outbox, Received, Trust, Wait};
use crate::privilege::Privilege;
use crate::reserve::Reserve;
use crate::socket_path::PoolId;

/// Connections at a time, clients included. Connections over the limit are closed.
const CONNECTIONS_MAX: usize = 4096;

/// The part of these that only root and the fleet's user may use, so that an administrator can
/// always query and stop the fleet.
const CONNECTIONS_OF_PRIVILEGED: usize = 64;

/// Connections at a time of any other user, so that no user shuts another out.
const CONNECTIONS_OF_ONE_MAX: usize = 512;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Connections accepted in one turn, so that a flood does not delay the fleet's other work.
const ACCEPTS_A_TURN: usize = 16;

/// One connection.
struct Accepted {
    link: Outbox,
    identity: Identity,
    /// It has the rights of the fleet's owner.
    privileged: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Has sent no request yet.
    New,
    /// The reply is sent, or waits to be; the peer must close the connection now.
    Answered,
    /// Has applied for admission and waits.
    Applying,
    Client(ClientId),
    /// Waits for the end of the fleet.
    Stopping,
    /// Waits until the pool has grown.
    Growing,
}

/// A request that the supervisor must handle.
pub(super) enum ConnectionEvent {
    Enter(Applicant),
    Status {
        /// `None` for a peer that may see the clients of all users.
        viewer: Option<u32>,
    },
    Stop {
        force: bool,
        discard: bool,
        if_unused: bool,
    },
    /// The pool is to have so many blocks.
    Grow {
        blocks: u64,
    },
    /// A cell that was taken out is to be taken in again.
    Rejoin {
        cell: CellId,
    },
    /// A client's answer what uses its mount.
    InUse {
        client: ClientId,
        number: u32,
        by: Box<[u8]>,
    },
    /// The options of a front's mount have changed.
    Rule {
        client: ClientId,
        rules: Rules,
    },
    /// The client's connection is closed.
    Hangup(ClientId),
}

pub(super) struct Connections {
    listener: OwnedFd,
    path: PathBuf,
    /// The users whose requests are answered, besides root and the fleet's user.
    clients: Clients,
    privilege: Privilege,
    next: u64,
    accepted: BTreeMap<ConnectionNo, Accepted>,
    ready: Ready,
    /// The users of clients whose connections are closed and that some cell still knows. These
    /// clients still count for their users.
    leaving: BTreeMap<ClientId, u32>,
    /// Clients that may not have read their welcomes.
    unread: BTreeSet<ConnectionNo>,
    reserve: Reserve,
    /// The last connection could not be accepted for want of descriptors or memory.
    is_short: bool,
    pace: Pace,
}

impl Connections {
    /// Makes the socket. The pool is locked, so an existing socket belongs to a dead fleet.
    pub(super) fn open(
        pool: PoolId,
        (clients, privilege): (Clients, Privilege),
        reserve: Reserve,
    ) -> Result<Self, FleetError> {
        let doing = "open the fleet's socket";
        let path = pool.make_socket_path(clients)?;
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
        // The kernel closes descriptors in packets that were not received in this process, and that
        // may block. A kernel that is too old for the option also closes them, but does not flush
        // them.
        let _ = identity::refuse_descriptors(&listener);
        clients.guard(&path).map_err(system(doing))?;
        Self::adopt(listener, path, (clients, privilege), 0, reserve)
    }

    /// Takes over the socket of an earlier supervisor. Connections that the keeper did not hold are
    /// closed.
    pub(super) fn adopt(
        listener: OwnedFd,
        path: PathBuf,
        (clients, privilege): (Clients, Privilege),
        next: u64,
        reserve: Reserve,
    ) -> Result<Self, FleetError> {
        let ready = Ready::new()?;
        let (accepted, leaving) = (BTreeMap::new(), BTreeMap::new());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (is_short, pace) = (false, Pace::new(cores));
        let unread = BTreeSet::new();
        Ok(Self {
            listener,
            path,
            clients,
            privilege,
            next,
            accepted,
            ready,
            leaving,
            unread,
            reserve,
            is_short,
            pace,
        })
    }

    /// A copy for the next supervisor.
    pub(super) fn kept(&self) -> Result<OwnedFd, FleetError> {
        self.listener.try_clone().map_err(system("share the fleet's socket"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// A connection for the keeper.
    pub(super) fn socket(&self, number: ConnectionNo) -> Option<OwnedFd> {
        self.accepted.get(&number)?.link.link.as_fd().try_clone_to_owned().ok()
    }

    /// Adopts a connection to an earlier supervisor that applies, is a client or waits for the end.
    /// The kernel still knows its peer.
    pub(super) fn adopt_connection(
        &mut self,
        number: ConnectionNo,
        socket: OwnedFd,
        client: Option<ClientId>,
    ) -> bool {
        let Ok(identity) = identity::of_peer(&socket) else { return false };
        let privileged = self.privilege.covers(identity.uid, &socket);
        let state = client.map_or(State::Stopping, State::Client);
        let link = Outbox::new(Link::new(socket, Trust::Stranger));
        self.next = self.next.max(number.0 + 1);
        // The dead supervisor may have sent it.
        self.unread.extend(client.map(|_| number));
        self.insert(number, Accepted { link, identity, privileged, state })
    }

    /// False if the connection cannot be watched. Then it is closed.
    fn insert(&mut self, number: ConnectionNo, connection: Accepted) -> bool {
        let is_watched = self.ready.add(number, &connection.link);
        if is_watched {
            self.accepted.insert(number, connection);
        }
        is_watched
    }

    fn remove(&mut self, number: ConnectionNo) {
        if let Some(connection) = self.accepted.remove(&number) {
            self.ready.remove(number, &connection.link);
        }
    }

    /// Connections that wait for the end of the fleet.
    pub(super) fn stopping(&self) -> impl Iterator<Item = ConnectionNo> {
        self.in_state(State::Stopping)
    }

    /// Connections that wait until the pool has grown.
    pub(super) fn growing(&self) -> impl Iterator<Item = ConnectionNo> {
        self.in_state(State::Growing)
    }

    fn in_state(&self, state: State) -> impl Iterator<Item = ConnectionNo> {
        let is_in = move |(_, it): &(&ConnectionNo, &Accepted)| it.state == state;
        self.accepted.iter().filter(is_in).map(|(&number, _)| number)
    }

    /// Lets processes connect from now on. The kernel shows them this process as the listener.
    pub(super) fn listen(&self) -> Result<(), FleetError> {
        listen(&self.listener, BACKLOG).map_err(system("listen at the fleet's socket"))
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Readable when a connection is ready.
    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.ready.poll_fd()
    }

    /// Some of the connections that are ready, and those that wait for descriptors or memory, which
    /// a poll does not show.
    pub(super) fn take_ready(&self) -> Vec<ConnectionNo> {
        let mut ready = self.ready.take();
        ready.extend(self.short_links());
        ready
    }

    /// Connections whose replies wait for descriptors or memory.
    pub(super) fn short_links(&self) -> impl Iterator<Item = ConnectionNo> {
        let links = self.ready.backed_up().map(|number| (number, self.accepted.get(&number)));
        let short = |(_, connection): &(ConnectionNo, Option<&Accepted>)| {
            connection.is_some_and(|connection| connection.link.is_short())
        };
        links.filter(short).map(|(number, _)| number)
    }

    /// Whether polling the listener is useless. Then [`Self::accept`] is tried from time to time
    /// instead.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// The time for which no connection is accepted because too many were.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        self.pace.wait(now)
    }

    /// Accepts waiting connections.
    pub(super) fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_A_TURN {
            if !self.pace.permits(now) {
                return;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = accept_with(&self.listener, flags);
            let failed = socket.as_ref().err().filter(|&&error| error != OsError::AGAIN);
            // The error of a socket that does not listen yet.
            let is_news = |error: &&OsError| !self.is_short && **error != OsError::INVAL;
            if let Some(error) = failed.filter(is_news) {
                warn!("no connection can be accepted: {error}");
            }
            self.is_short = failed.is_some();
            let Ok(socket) = socket else { return };
            self.pace.count();
            // A connection that cannot be identified, or is over the limit, is closed.
            let Ok(identity) = identity::of_peer(&socket) else { continue };
            let privileged = self.privilege.covers(identity.uid, &socket);
            let is_scarce = match privileged {
                true => self.reserve.needs(&socket),
                false => self.reserve.has(&socket),
            };
            if is_scarce || !self.has_room_for(identity.uid, privileged) {
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
            let connection = Accepted { link, identity, privileged, state: State::New };
            self.insert(ConnectionNo(self.next), connection);
            self.next += 1;
        }
    }

    fn has_room_for(&self, uid: u32, privileged: bool) -> bool {
        if privileged {
            return self.accepted.len() < CONNECTIONS_MAX;
        }
        let connected = self.accepted.values().map(|connection| connection.identity.uid);
        let of_same = connected.chain(self.leaving.values().copied()).filter(|of| *of == uid);
        self.accepted.len() < CONNECTIONS_MAX - CONNECTIONS_OF_PRIVILEGED
            && of_same.count() < CONNECTIONS_OF_ONE_MAX
    }

    /// Receives from one connection. Returns the request that the supervisor must handle.
    pub(super) fn receive(&mut self, number: ConnectionNo) -> Option<ConnectionEvent> {
        let connection = self.accepted.get_mut(&number)?;
        let flushed = connection.link.flush();
        self.ready.update(number, &connection.link);
        let received = connection.link.link.receive(Wait::No);
        let request = match (flushed, received) {
            (Ok(()), Ok(Received::Nothing)) => return None,
            (Ok(()), Ok(Received::Packet(packet))) => {
                let request = ControlRequest::from_bytes(&packet.bytes).ok();
                let is_new = connection.state == State::New;
                if request.is_none() {
                    let Identity { uid, pid, .. } = connection.identity;
                    warn!(uid, pid, "a client's message is malformed, or of another version");
                }
                if request.is_none() && is_new && is_of_another_version(&packet.bytes) {
                    return self.refuse(number, Errno::EPROTO);
                }
                request
            }
            _ => None,
        };
        match (request, connection.state) {
            (Some(ControlRequest::InUse { number, by, .. }), State::Client(client)) => {
                Some(ConnectionEvent::InUse { client, number, by })
            }
            (Some(ControlRequest::Rule { rules, .. }), State::Client(client)) => {
                Some(ConnectionEvent::Rule { client, rules })
            }
            (Some(request), State::New) => self.answer(number, request),
            // The connection is closed, or the client sent a request out of turn.
            (_, State::Client(_)) => self.close(number),
            // The supervisor's answer, which comes later, is dropped.
            _ => {
                self.remove(number);
                None
            }
        }
    }

    /// Ends a client's connection.
    pub(super) fn close(&mut self, number: ConnectionNo) -> Option<ConnectionEvent> {
        let connection = self.accepted.get(&number)?;
        let State::Client(client) = connection.state else { return None };
        self.leaving.insert(client, connection.identity.uid);
        self.remove(number);
        Some(ConnectionEvent::Hangup(client))
    }

    fn answer(&mut self, number: ConnectionNo, request: ControlRequest) -> Option<ConnectionEvent> {
        let connection = self.accepted.get_mut(&number)?;
        let privileged = connection.privileged;
        let (ControlRequest::Enter { version, .. }
        | ControlRequest::Status { version }
        | ControlRequest::Grow { version, .. }
        | ControlRequest::InUse { version, .. }
        | ControlRequest::Rejoin { version, .. }
        | ControlRequest::Rule { version, .. }
        | ControlRequest::Stop { version, .. }) = request;
        if version != CONTROL_VERSION {
            return self.refuse(number, Errno::EPROTO);
        }
        if !privileged && !self.clients.admits(&connection.identity) {
            return self.refuse(number, Errno::EACCES);
        }
        match request {
            ControlRequest::Status { .. } => {
                connection.state = State::Answered;
                let viewer = (!privileged).then_some(connection.identity.uid);
                Some(ConnectionEvent::Status { viewer })
            }
            ControlRequest::Stop { force, discard, if_unused, .. } if privileged => {
                connection.state = State::Stopping;
                let (uid, pid) = (connection.identity.uid, connection.identity.pid.unsigned_abs());
                let by = program(pid);
                info!(uid, pid, by, force, discard, "the fleet is to stop");
                Some(ConnectionEvent::Stop { force, discard, if_unused })
            }
            ControlRequest::Grow { blocks, .. } if privileged => {
                connection.state = State::Growing;
                let (uid, pid) = (connection.identity.uid, connection.identity.pid.unsigned_abs());
                let by = program(pid);
                info!(uid, pid, by, blocks, "the pool is to grow");
                Some(ConnectionEvent::Grow { blocks })
            }
            ControlRequest::Rejoin { cell, .. } if privileged => {
                connection.state = State::Answered;
                let (uid, pid) = (connection.identity.uid, connection.identity.pid.unsigned_abs());
                let by = program(pid);
                info!(uid, pid, by, "cell {cell} is to be taken in again");
                Some(ConnectionEvent::Rejoin { cell: CellId(cell) })
            }
            ControlRequest::Enter { front, slots, payload, rules, mounted, .. }
                if privileged || !front && connection.identity.uid != 0 =>
            {
                let is_path = mounted.len() <= if front { MOUNTED_MAX } else { 0 };
                // A front holds many leases, and its kernel sends the largest writes.
                let is_fit = |it: &Shape| is_path && (!front || it.lanes() == LaneSize::Large);
                let Some(shape) = Shape::of(slots, payload).filter(is_fit) else {
                    return self.refuse(number, Errno::EINVAL);
                };
                connection.state = State::Applying;
                let terms = (shape, rules, mounted);
                Some(ConnectionEvent::Enter(applicant(connection, front, terms)))
            }
            // Among them a client with user 0 that is not root: cells take it to be root. It can
            // use a mount, whose kernel knows its capabilities.
            _ => self.refuse(number, Errno::EPERM),
        }
    }

    pub(super) fn refuse(&mut self, number: ConnectionNo, errno: Errno) -> Option<ConnectionEvent> {
        if let Some(connection) = self.accepted.get(&number) {
            let (uid, pid) = (connection.identity.uid, connection.identity.pid.unsigned_abs());
            // Before the reply, after which the process may end.
            let by = program(pid);
            warn!(uid, pid, by, %errno, "a client was refused");
        }
        self.send(
            number,
            &ControlReply::Refused { version: CONTROL_VERSION, errno: errno.raw() },
            Vec::new(),
        );
        if let Some(connection) = self.accepted.get_mut(&number) {
            connection.state = State::Answered;
        }
        None
    }

    /// Sends the last reply to a connection that waits for something.
    pub(super) fn send_last(&mut self, number: ConnectionNo, reply: &ControlReply) {
        self.send(number, reply, Vec::new());
        if let Some(connection) = self.accepted.get_mut(&number) {
            connection.state = State::Answered;
        }
    }

    /// Sends a reply. A connection that does not take it is closed after the next poll.
    pub(super) fn send(&mut self, number: ConnectionNo, reply: &ControlReply, fds: Vec<OwnedFd>) {
        if let Some(connection) = self.accepted.get_mut(&number) {
            // A broken connection is readable, and `receive` removes it.
            let _ = connection.link.send(reply.to_bytes(), fds);
            self.ready.update(number, &connection.link);
        }
    }

    /// Sends a client its welcome, with descriptors that are in flight until the client reads it.
    pub(super) fn welcome(
        &mut self,
        number: ConnectionNo,
        reply: &ControlReply,
        fds: Vec<OwnedFd>,
    ) {
        self.send(number, reply, fds);
        self.unread.insert(number);
    }

    /// Clients that have not read their welcomes.
    pub(super) fn unread(&mut self) -> usize {
        let accepted = &self.accepted;
        self.unread.retain(|number| {
            let link = accepted.get(number).map(|connection| &connection.link);
            link.is_some_and(|link| {
                link.is_backed_up() || !identity::has_read_all(link.link.as_fd())
            })
        });
        self.unread.len()
    }

    /// Makes the applicant's connection that of a client, which is expelled when it closes. False
    /// if it is closed already.
    pub(super) fn enter(&mut self, number: ConnectionNo, client: ClientId) -> bool {
        let Some(connection) = self.accepted.get_mut(&number) else { return false };
        connection.state = State::Client(client);
        true
    }

    /// The clients that are connected.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.accepted.values().filter_map(|connection| match connection.state {
            State::Client(client) => Some(client),
            _ => None,
        })
    }

    /// Forgets a client that no cell knows any more, with its connection.
    pub(super) fn forget(&mut self, client: ClientId, number: Option<ConnectionNo>) {
        self.leaving.remove(&client);
        if let Some(number) = number
            && self.accepted.get(&number).is_some_and(|it| it.state == State::Client(client))
        {
            self.remove(number);
        }
    }

    /// Removes the socket, so that no client finds the fleet. The pool must still be locked: later
    /// the path may be another fleet's socket.
    pub(super) fn remove_socket(&self) {
        // No process listens at a socket that cannot be removed.
        let _ = fs::remove_file(&self.path);
    }

    /// Sends the outcome to every connection that waits for the end.
    pub(super) fn close_all(mut self, outcome: &ControlReply) {
        let stopping: Vec<ConnectionNo> = self.stopping().collect();
        stopping.into_iter().for_each(|number| self.send(number, outcome, Vec::new()));
    }
}

/// Requests of all versions begin with a tag and the version.
fn is_of_another_version(bytes: &[u8]) -> bool {
    let version = bytes.get(1..5).and_then(|version| version.try_into().ok());
    version.is_some_and(|version| u32::from_le_bytes(version) != CONTROL_VERSION)
}

fn applicant(
    Accepted { identity, privileged, .. }: &Accepted,
    front: bool,
    (shape, rules, mounted): (Shape, Rules, OsBytes),
) -> Applicant {
    let credentials = Credentials {
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups.clone(),
        checked_by_kernel: front,
    };
    let (pid, privileged) = (identity.pid.unsigned_abs(), *privileged);
    Applicant { credentials, pid, front, privileged, shape, rules, mounted }
}

#[cfg(test)]
mod tests;
