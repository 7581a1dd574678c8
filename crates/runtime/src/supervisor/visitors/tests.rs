use super::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::connect;

/// A door at a scratch file's place, and the way to it.
struct Place {
    file: PathBuf,
    door: Visitors,
    /// Long enough after the last knock that none waits.
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
        let mut door = Visitors::open(pool, clients, Reserve::of(1)).expect("door");
        door.listen().expect("listen");
        door.pace = Pace::new(pace::CORES);
        Self { file, door, now: Instant(0) }
    }

    fn connect(&self) -> OwnedFd {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("socket");
        connect(&socket, &SocketAddrUnix::new(&self.door.path).expect("address")).expect("connect");
        socket
    }

    fn knock(&mut self) -> (Link, ConnectionNo) {
        let socket = self.connect();
        let number = ConnectionNo(self.door.next);
        self.now = self.now + pace::TICK;
        self.door.accept(self.now);
        assert!(self.door.visitors.contains_key(&number), "it is let in");
        (Link::new(socket, Trust::Host), number)
    }

    fn close(self) {
        self.door.remove_door();
        self.door.close(&DoorReply::Stopped);
        fs::remove_file(&self.file).expect("cleanup");
    }
}

fn ask(link: &Link, request: &DoorRequest) {
    link.send(&request.to_bytes(), &[], Wait::Yes).expect("send");
}

#[test]
fn a_flood_of_connections_is_accepted_at_a_pace() {
    let mut place = Place::new("flood");
    let now = Instant(1 << 40);
    // More than a burst; those that may not come in wait at the door, which has room for them.
    let flood = pace::BURST + BACKLOG as u64 / 2;
    for _ in 0..flood {
        let visitor = place.connect();
        place.door.accept(now);
        drop(visitor);
        place.door.visitors.clear();
    }
    assert_eq!((place.door.next, place.door.pause(now)), (pace::BURST, Some(pace::TICK)));
    let next = now + pace::TICK;
    assert_eq!(place.door.pause(next), None);
    place.door.accept(next);
    assert_eq!(
        (place.door.next, place.door.pause(next)),
        (pace::BURST + pace::A_TICK, Some(pace::TICK))
    );
    place.close();
}

#[test]
fn a_visitor_gets_one_answer() {
    let mut place = Place::new("visitor");
    let (mut link, number) = place.knock();
    for _ in 0..3 {
        ask(&link, &DoorRequest::Status { version: DOOR_VERSION });
    }
    assert!(matches!(place.door.hear(number), Some(Asked::Status)));
    place.door.tell(number, &DoorReply::Status { json: (*b"{}").into(), more: false }, Vec::new());
    assert!(place.door.hear(number).is_none() && place.door.visitors.is_empty());
    // What it asked for first has come.
    assert!(matches!(link.receive(Wait::Yes), Ok(Received::Packet(_))));
    assert!(matches!(link.receive(Wait::Yes), Ok(Received::Closed)));
    place.close();
}

#[test]
fn a_request_of_another_version_is_told_so_though_it_is_laid_out_otherwise() {
    let mut place = Place::new("older");
    let (mut link, number) = place.knock();
    // A stop, before it could be forced.
    let older = [&[3][..], &(DOOR_VERSION - 1).to_le_bytes()].concat();
    assert!(DoorRequest::from_bytes(&older).is_err());
    link.send(&older, &[], Wait::Yes).expect("send");
    assert!(place.door.hear(number).is_none());
    let Ok(Received::Packet(packet)) = link.receive(Wait::Yes) else { panic!("no answer") };
    let refused = DoorReply::Refused { version: DOOR_VERSION, errno: Errno::EPROTO.raw() };
    assert_eq!(DoorReply::from_bytes(&packet.bytes).ok(), Some(refused));
    place.close();
}

#[test]
fn only_a_client_says_what_uses_its_mount() {
    let mut place = Place::new("in-use");
    let in_use = DoorRequest::InUse { version: DOOR_VERSION, number: 7, by: (*b"x").into() };
    let (link, number) = place.knock();
    assert!(place.door.enter(number, ClientId(3)));
    ask(&link, &in_use);
    let heard = place.door.hear(number);
    assert!(matches!(heard, Some(Asked::InUse { client: ClientId(3), number: 7, .. })));
    let (mut stranger, number) = place.knock();
    ask(&stranger, &in_use);
    assert!(place.door.hear(number).is_none());
    let Ok(Received::Packet(packet)) = stranger.receive(Wait::Yes) else { panic!("no answer") };
    let refused = DoorReply::Refused { version: DOOR_VERSION, errno: Errno::EPERM.raw() };
    assert_eq!(DoorReply::from_bytes(&packet.bytes).ok(), Some(refused));
    place.close();
}

#[test]
fn who_was_refused_may_not_ask_again() {
    let mut place = Place::new("refused");
    let (mut link, number) = place.knock();
    let (version, mounted) = (DOOR_VERSION + 1, Box::default());
    ask(&link, &DoorRequest::Enter { version, front: false, slots: 1, mounted });
    assert!(place.door.hear(number).is_none());
    let Ok(Received::Packet(packet)) = link.receive(Wait::Yes) else { panic!("no answer") };
    let refused = DoorReply::Refused { version: DOOR_VERSION, errno: Errno::EPROTO.raw() };
    assert_eq!(DoorReply::from_bytes(&packet.bytes).ok(), Some(refused));
    ask(&link, &DoorRequest::Status { version: DOOR_VERSION });
    assert!(place.door.hear(number).is_none() && place.door.visitors.is_empty());
    place.close();
}

#[test]
fn descriptors_of_visitors_are_not_kept() {
    let mut place = Place::new("rights");
    let (link, number) = place.knock();
    let (reader, writer) = rustix::pipe::pipe().expect("pipe");
    let request = DoorRequest::Status { version: DOOR_VERSION }.to_bytes();
    match link.send(&request, &[writer.as_fd()], Wait::Yes) {
        Err(error) => assert_eq!(error, OsError::PERM, "the kernel refuses them"),
        // An older one hands them over, and they are dropped.
        Ok(()) => assert!(matches!(place.door.hear(number), Some(Asked::Status))),
    }
    drop(writer);
    let mut fds = [PollFd::new(&reader, PollFlags::IN)];
    assert_eq!(poll(&mut fds, None), Ok(1));
    assert!(fds[0].revents().contains(PollFlags::HUP), "nobody holds the other end");
    place.close();
}

/// Whose clients cells have not taken leave of has them still.
#[test]
fn who_hangs_up_makes_no_room_before_its_client_is_forgotten() {
    const STRANGER: u32 = 4_294_967_000;
    let mut place = Place::new("leaving");
    let clients: Vec<ClientId> = (0..VISITORS_OF_ONE_MAX as u32).map(ClientId).collect();
    for &client in &clients {
        assert!(place.door.has_room_for(STRANGER), "{client:?}");
        let (link, number) = place.knock();
        place.door.visitors.get_mut(&number).expect("it is there").identity.uid = STRANGER;
        assert!(place.door.enter(number, client));
        drop(link);
        assert!(matches!(place.door.hear(number), Some(Asked::Hangup(gone)) if gone == client));
    }
    assert!(!place.door.has_room_for(STRANGER));
    assert!(place.door.has_room_for(STRANGER - 1), "others have theirs");
    place.door.forget(clients[0]);
    assert!(place.door.has_room_for(STRANGER));
    place.close();
}

/// Who could connect, by a socket's mode or its owner's doing, is still judged by who it is.
#[test]
fn only_whom_the_rule_names_is_answered() {
    const STRANGER: u32 = 4_294_967_000;
    let requests = [
        DoorRequest::Status { version: DOOR_VERSION },
        DoorRequest::Stop { version: DOOR_VERSION, force: false, discard: false },
        DoorRequest::Enter {
            version: DOOR_VERSION,
            front: true,
            slots: 1,
            mounted: Box::default(),
        },
        DoorRequest::Enter {
            version: DOOR_VERSION,
            front: false,
            slots: 1,
            mounted: Box::default(),
        },
    ];
    let cases = [
        (Clients::Own, STRANGER, [EACCES; 4]),
        (Clients::User(STRANGER - 1), STRANGER, [EACCES; 4]),
        (Clients::User(STRANGER), STRANGER, [None, EPERM, EPERM, None]),
        (Clients::Group(STRANGER), STRANGER, [None, EPERM, EPERM, None]),
        (Clients::Group(STRANGER - 1), STRANGER, [EACCES; 4]),
        (Clients::All, STRANGER, [None, EPERM, EPERM, None]),
        (Clients::Own, 0, [None; 4]),
        (Clients::User(STRANGER), place::uid(), [None; 4]),
    ];
    const EACCES: Option<Errno> = Some(Errno::EACCES);
    const EPERM: Option<Errno> = Some(Errno::EPERM);
    for (rule, uid, expected) in cases {
        let mut place = Place::with_clients("rule", rule);
        for (request, expected) in requests.iter().zip(expected) {
            let (mut link, number) = place.knock();
            let identity = &mut place.door.visitors.get_mut(&number).expect("it is there").identity;
            (identity.uid, identity.gid) = (uid, uid);
            ask(&link, request);
            let asked = place.door.hear(number);
            assert_eq!(asked.is_some(), expected.is_none(), "{rule:?}, {uid}: {request:?}");
            if let Some(errno) = expected {
                let Ok(Received::Packet(packet)) = link.receive(Wait::Yes) else {
                    panic!("no answer")
                };
                let refused = DoorReply::Refused { version: DOOR_VERSION, errno: errno.raw() };
                assert_eq!(DoorReply::from_bytes(&packet.bytes).ok(), Some(refused));
            }
        }
        place.close();
    }
}
