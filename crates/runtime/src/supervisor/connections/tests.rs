use super::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::connect;

/// A control socket for a scratch file, and its path.
struct Place {
    file: PathBuf,
    socket: Connections,
    /// Long enough after the last connection that none waits.
    now: Instant,
}

impl Place {
    fn new(name: &str) -> Self {
        Self::with_clients(name, Clients::Own)
    }

    fn with_clients(name: &str, clients: Clients) -> Self {
        let file = std::env::temp_dir().join(format!("warren-{name}-{}", std::process::id()));
        fs::write(&file, b"no pool").expect("a file");
        let pool = PoolId::of(&file).expect("id");
        let rule = (clients, Privilege::of_this_process().expect("privilege"));
        let mut socket = Connections::open(pool, rule, Reserve::of(1)).expect("socket");
        socket.listen().expect("listen");
        socket.pace = Pace::new(pace::CORES);
        Self { file, socket, now: Instant(0) }
    }

    fn connect(&self) -> OwnedFd {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("socket");
        connect(&socket, &SocketAddrUnix::new(&self.socket.path).expect("address"))
            .expect("connect");
        socket
    }

    fn enter(&mut self) -> (Link, ConnectionNo) {
        let socket = self.connect();
        let number = ConnectionNo(self.socket.next);
        self.now = self.now + pace::TICK;
        self.socket.accept(self.now);
        assert!(self.socket.accepted.contains_key(&number), "it is accepted");
        (Link::new(socket, Trust::Host), number)
    }

    fn close(self) {
        self.socket.remove_socket();
        self.socket.close_all(&ControlReply::Stopped);
        fs::remove_file(&self.file).expect("cleanup");
    }
}

fn ask(link: &Link, request: &ControlRequest) {
    link.send(&request.to_bytes(), &[], Wait::Yes).expect("send");
}

#[test]
fn a_flood_of_connections_is_accepted_at_a_pace() {
    let mut place = Place::new("flood");
    let now = Instant(1 << 40);
    // More than a burst. The connections without a token fit the listener's queue.
    let flood = pace::BURST + BACKLOG as u64 / 2;
    for _ in 0..flood {
        let client = place.connect();
        place.socket.accept(now);
        drop(client);
        place.socket.accepted.clear();
    }
    assert_eq!((place.socket.next, place.socket.pause(now)), (pace::BURST, Some(pace::TICK)));
    let next = now + pace::TICK;
    assert_eq!(place.socket.pause(next), None);
    place.socket.accept(next);
    assert_eq!(
        (place.socket.next, place.socket.pause(next)),
        (pace::BURST + pace::A_TICK, Some(pace::TICK))
    );
    place.close();
}

#[test]
fn a_connection_gets_one_answer() {
    let mut place = Place::new("client");
    let (mut link, number) = place.enter();
    for _ in 0..3 {
        ask(&link, &ControlRequest::Status { version: CONTROL_VERSION });
    }
    assert!(matches!(place.socket.receive(number), Some(ConnectionEvent::Status { .. })));
    place.socket.send(
        number,
        &ControlReply::Status { json: (*b"{}").into(), more: false },
        Vec::new(),
    );
    assert!(place.socket.receive(number).is_none() && place.socket.accepted.is_empty());
    // The answer to its first request has arrived.
    assert!(matches!(link.receive(Wait::Yes), Ok(Received::Packet(_))));
    assert!(matches!(link.receive(Wait::Yes), Ok(Received::Closed)));
    place.close();
}

#[test]
fn a_request_of_another_version_and_layout_is_refused_as_such() {
    let mut place = Place::new("older");
    let (mut link, number) = place.enter();
    // A stop of a version without `force`.
    let older = [&[3][..], &(CONTROL_VERSION - 1).to_le_bytes()].concat();
    assert!(ControlRequest::from_bytes(&older).is_err());
    link.send(&older, &[], Wait::Yes).expect("send");
    assert!(place.socket.receive(number).is_none());
    let Ok(Received::Packet(packet)) = link.receive(Wait::Yes) else { panic!("no answer") };
    let refused = ControlReply::Refused { version: CONTROL_VERSION, errno: Errno::EPROTO.raw() };
    assert_eq!(ControlReply::from_bytes(&packet.bytes).ok(), Some(refused));
    place.close();
}

#[test]
fn only_a_client_may_report_what_uses_its_mount() {
    let mut place = Place::new("in-use");
    let in_use = ControlRequest::InUse { version: CONTROL_VERSION, number: 7, by: (*b"x").into() };
    let (link, number) = place.enter();
    assert!(place.socket.enter(number, ClientId(3)));
    ask(&link, &in_use);
    let received = place.socket.receive(number);
    assert!(matches!(
        received,
        Some(ConnectionEvent::InUse { client: ClientId(3), number: 7, .. })
    ));
    let (mut stranger, number) = place.enter();
    ask(&stranger, &in_use);
    assert!(place.socket.receive(number).is_none());
    let Ok(Received::Packet(packet)) = stranger.receive(Wait::Yes) else { panic!("no answer") };
    let refused = ControlReply::Refused { version: CONTROL_VERSION, errno: Errno::EPERM.raw() };
    assert_eq!(ControlReply::from_bytes(&packet.bytes).ok(), Some(refused));
    place.close();
}

#[test]
fn a_refused_connection_may_not_ask_again() {
    let mut place = Place::new("refused");
    let (mut link, number) = place.enter();
    let (version, rules, mounted) = (CONTROL_VERSION + 1, Rules::empty(), Box::default());
    let (front, slots, payload) = (false, 1, 1 << 20);
    ask(&link, &ControlRequest::Enter { version, front, slots, payload, rules, mounted });
    assert!(place.socket.receive(number).is_none());
    let Ok(Received::Packet(packet)) = link.receive(Wait::Yes) else { panic!("no answer") };
    let refused = ControlReply::Refused { version: CONTROL_VERSION, errno: Errno::EPROTO.raw() };
    assert_eq!(ControlReply::from_bytes(&packet.bytes).ok(), Some(refused));
    ask(&link, &ControlRequest::Status { version: CONTROL_VERSION });
    assert!(place.socket.receive(number).is_none() && place.socket.accepted.is_empty());
    place.close();
}

#[test]
fn descriptors_of_clients_are_not_kept() {
    let mut place = Place::new("rights");
    let (link, number) = place.enter();
    let (reader, writer) = rustix::pipe::pipe().expect("pipe");
    let request = ControlRequest::Status { version: CONTROL_VERSION }.to_bytes();
    match link.send(&request, &[writer.as_fd()], Wait::Yes) {
        Err(error) => assert_eq!(error, OsError::PERM, "the kernel refuses them"),
        // An older kernel passes them, and they are dropped.
        Ok(()) => {
            assert!(matches!(place.socket.receive(number), Some(ConnectionEvent::Status { .. })))
        }
    }
    drop(writer);
    let mut fds = [PollFd::new(&reader, PollFlags::IN)];
    assert_eq!(poll(&mut fds, None), Ok(1));
    assert!(fds[0].revents().contains(PollFlags::HUP), "the other end is closed");
    place.close();
}

/// Cells still know the client.
#[test]
fn a_closed_connection_makes_no_room_before_its_client_is_forgotten() {
    const STRANGER: u32 = 4_294_967_000;
    let mut place = Place::new("leaving");
    let clients: Vec<ClientId> = (0..CONNECTIONS_OF_ONE_MAX as u32).map(ClientId).collect();
    for &client in &clients {
        assert!(place.socket.has_room_for(STRANGER, false), "{client:?}");
        let (link, number) = place.enter();
        place.socket.accepted.get_mut(&number).expect("it is there").identity.uid = STRANGER;
        assert!(place.socket.enter(number, client));
        drop(link);
        // A child that another test has forked has the descriptor until it executes its program.
        let accepted = place.socket.accepted[&number].link.link.as_fd();
        assert_eq!(poll(&mut [PollFd::from_borrowed_fd(accepted, PollFlags::IN)], None), Ok(1));
        assert!(
            matches!(place.socket.receive(number), Some(ConnectionEvent::Hangup(gone)) if gone == client)
        );
    }
    assert!(!place.socket.has_room_for(STRANGER, false));
    assert!(place.socket.has_room_for(STRANGER - 1, false), "other users have room");
    place.socket.forget(clients[0], None);
    assert!(place.socket.has_room_for(STRANGER, false));
    place.close();
}

/// The socket's mode or its owner may let a process connect, but its identity decides.
#[test]
fn only_users_that_the_rule_admits_are_answered() {
    const STRANGER: u32 = 4_294_967_000;
    let requests = [
        ControlRequest::Status { version: CONTROL_VERSION },
        ControlRequest::Stop {
            version: CONTROL_VERSION,
            force: false,
            discard: false,
            if_unused: false,
        },
        ControlRequest::Enter {
            version: CONTROL_VERSION,
            front: true,
            slots: 1,
            payload: 1 << 20,
            rules: Rules::empty(),
            mounted: Box::default(),
        },
        ControlRequest::Enter {
            version: CONTROL_VERSION,
            front: false,
            slots: 1,
            payload: 1 << 20,
            rules: Rules::empty(),
            mounted: Box::default(),
        },
    ];
    let cases = [
        (Clients::Own, (STRANGER, false), [EACCES; 4]),
        (Clients::User(STRANGER - 1), (STRANGER, false), [EACCES; 4]),
        (Clients::User(STRANGER), (STRANGER, false), [None, EPERM, EPERM, None]),
        (Clients::Group(STRANGER), (STRANGER, false), [None, EPERM, EPERM, None]),
        (Clients::Group(STRANGER - 1), (STRANGER, false), [EACCES; 4]),
        (Clients::All, (STRANGER, false), [None, EPERM, EPERM, None]),
        (Clients::Own, (0, true), [None; 4]),
        (Clients::User(STRANGER), (OWNER, true), [None; 4]),
        // Without the capabilities of root.
        (Clients::Own, (0, false), [EACCES; 4]),
        (Clients::All, (0, false), [None, EPERM, EPERM, EPERM]),
    ];
    const OWNER: u32 = 1000;
    const EACCES: Option<Errno> = Some(Errno::EACCES);
    const EPERM: Option<Errno> = Some(Errno::EPERM);
    for (rule, (uid, privileged), expected) in cases {
        let mut place = Place::with_clients("rule", rule);
        for (request, expected) in requests.iter().zip(expected) {
            let (mut link, number) = place.enter();
            let accepted = place.socket.accepted.get_mut(&number).expect("it is there");
            (accepted.identity.uid, accepted.identity.gid) = (uid, uid);
            accepted.privileged = privileged;
            ask(&link, request);
            let asked = place.socket.receive(number);
            assert_eq!(asked.is_some(), expected.is_none(), "{rule:?}, {uid}: {request:?}");
            if let Some(errno) = expected {
                let Ok(Received::Packet(packet)) = link.receive(Wait::Yes) else {
                    panic!("no answer")
                };
                let refused =
                    ControlReply::Refused { version: CONTROL_VERSION, errno: errno.raw() };
                assert_eq!(ControlReply::from_bytes(&packet.bytes).ok(), Some(refused));
            }
        }
        place.close();
    }
}

/// Only the kernel knows what a process with user 0 may do.
#[test]
fn user_0_without_the_capabilities_of_root_is_not_root() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut place = Place::with_clients("bare-root", Clients::All);
    let (_link, number) = place.enter();
    assert!(place.socket.accepted[&number].privileged, "this process is root");
    // No process has this one.
    place.socket.privilege = place.socket.privilege.clone().with_wanted(1 << 63);
    let (link, number) = place.enter();
    assert!(!place.socket.accepted[&number].privileged);
    let stop = ControlRequest::Stop {
        version: CONTROL_VERSION,
        force: false,
        discard: false,
        if_unused: false,
    };
    ask(&link, &stop);
    assert!(place.socket.receive(number).is_none(), "it may not stop the fleet");
    place.close();
}
