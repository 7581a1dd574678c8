//! The rights of a client: it must have reached an inode to name it, and then the modes apply that
//! Linux checks.

use warren_base::{ClientId, Errno, Ino, ShardId};
use warren_proto::{
    AccessMode, Answer, ByteRange, Capabilities, Capability, CreateFlags, Credentials, FileKind,
    Handle, LockFlavour, LockOwner, LockSpec, LockType, NewInode, Position, ReadFlags, RenameFlags,
    Reply, Request, RequestHeader, SetAttr, SetTime, XattrMode, XattrName,
};

use crate::bench::*;
use crate::hostile_images::rename;

/// A user that owns nothing of the image.
const USER: ClientId = ClientId(8);
const UID: u32 = 1000;

/// A volume in which the file has this mode, with a user who owns nothing.
fn bench(file_mode: u16) -> Bench {
    let mut image = Image::new();
    image.change(FILE, |inode| inode.mode = file_mode);
    image.change(Ino::ROOT, |inode| inode.mode = 0o777);
    image.entry(DIR, "below", LOST, FileKind::Regular);
    image.part(DIR, 1, 0);
    image.change(LOST, |inode| inode.nlink = 2);
    let mut bench = Bench::new(&image, false);
    let groups = vec![];
    bench.admit_with(USER, Credentials { uid: UID, gid: UID, groups, checked_by_kernel: false });
    bench
}

fn ask(bench: &mut Bench, request: Request) -> Answer {
    bench.ask_as(USER, request).expect("answered at once")
}

fn header(capabilities: Capabilities) -> RequestHeader {
    RequestHeader { capabilities, ..Default::default() }
}

fn open(bench: &mut Bench, ino: Ino, access: AccessMode) -> Result<Handle, Errno> {
    match ask(bench, Request::Open { ino, access })? {
        Reply::Opened(opened) => Ok(opened.handle),
        other => panic!("{other:?}"),
    }
}

fn mode_of(bench: &mut Bench, ino: Ino) -> u16 {
    match bench.call(Request::GetAttr { ino }) {
        Ok(Reply::Attr { attr, .. }) => attr.mode,
        other => panic!("{other:?}"),
    }
}

fn set(ino: Ino, set: SetAttr) -> Request {
    Request::SetAttr { ino, handle: None, set }
}

fn lock(flavour: LockFlavour, lock: LockType) -> LockSpec {
    LockSpec { flavour, owner: LockOwner(1), lock, range: ByteRange::ALL, pid: 1 }
}

/// One request of each kind that names an inode by its number.
fn naming(ino: Ino) -> Vec<Request> {
    let (here, there, user) =
        (name("file"), name("fresh"), XattrName::new(b"user.a").expect("a name"));
    let (flags, access) = (CreateFlags::OPEN, AccessMode::READ);
    let (root, none, handle) = (Ino::ROOT, RenameFlags::empty(), None);
    let new = NewInode::regular(0o644);
    vec![
        Request::Lookup { dir: ino, name: here.clone() },
        Request::Neighbours { dir: ino, name: here.clone() },
        Request::GetAttr { ino },
        set(ino, SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() }),
        set(ino, SetAttr::default()),
        Request::Create { dir: ino, name: there.clone(), new, flags, access },
        Request::Link { ino, dir: root, name: there.clone() },
        Request::Link { ino: FILE, dir: ino, name: there.clone() },
        Request::Unlink { dir: ino, name: here.clone() },
        Request::Rmdir { dir: ino, name: here.clone() },
        rename(ino, "file", root, "fresh", none),
        rename(root, "file", ino, "fresh", none),
        Request::ReadLink { ino },
        Request::ReadDir { dir: ino, cookie: 0, bytes_max: 4096, leased: false },
        Request::Open { ino, access },
        Request::Fsync { ino, handle, data_only: false },
        Request::GetXattr { ino, name: user.clone() },
        Request::SetXattr {
            ino,
            name: user.clone(),
            value: [1].into(),
            mode: XattrMode::Any,
            kill_set_gid: false,
        },
        Request::RemoveXattr { ino, name: user },
        Request::ListXattr { ino },
    ]
}

#[test]
fn a_number_alone_names_nothing() {
    let mut bench = bench(0o644);
    let before = mode_of(&mut bench, FILE);
    let absent = [Ino(9), Ino::new(ShardId(1), 99), Ino::new(ShardId(7), 3)];
    for ino in [FILE, DIR, LOST].into_iter().chain(absent) {
        let right = KEY.capability(USER, ino);
        let foreign = KEY.capability(CLIENT, ino);
        let other_inode = KEY.capability(USER, Ino(ino.0 + 1));
        let wrong = [Capability::NONE, foreign, other_inode, Capability(right.0 ^ 1)];
        for request in naming(ino) {
            for wrong in wrong {
                // If a request names two inodes, either may be the one that was not reached.
                let mut shown = KEY.all_for(USER, &request);
                let (inode, _) = request.named();
                let place = if inode == Some(ino) { &mut shown.inode } else { &mut shown.other };
                *place = wrong;
                let answer = bench.ask_with(USER, header(shown), request.clone());
                assert_eq!(answer, Some(Err(Errno::ESTALE)), "{request:?} {wrong:?}");
                assert!(bench.granted.is_none());
            }
        }
    }
    assert_eq!(mode_of(&mut bench, FILE), before);
    for request in naming(FILE) {
        assert_ne!(ask(&mut bench, request.clone()), Err(Errno::ESTALE), "{request:?}");
    }
}

#[test]
fn a_permitted_walk_gives_the_capability() {
    let mut bench = bench(0o600);
    let lookup = |dir, text| Request::Lookup { dir, name: name(text) };
    assert!(
        ask(&mut bench, lookup(Ino::ROOT, "file")).is_ok(),
        "a client that may search may look up"
    );
    assert_eq!(bench.granted, KEY.capability(USER, FILE));
    ask(&mut bench, create(Ino::ROOT, "mine", FileKind::Regular)).expect("made");
    assert!(!bench.granted.is_none());
    ask(&mut bench, lookup(Ino::ROOT, "absent")).expect("a lease on nothing");
    assert!(bench.granted.is_none(), "nothing was reached");
    bench.call(set(DIR, SetAttr { mode: Some(0o700), ..SetAttr::default() })).expect("closed");
    assert_eq!(ask(&mut bench, lookup(DIR, "below")), Err(Errno::EACCES));
    assert!(bench.granted.is_none());
}

#[test]
fn a_listing_leads_to_the_parent_if_the_directory_may_be_searched() {
    let mut bench = bench(0o644);
    let list = Request::ReadDir { dir: DIR, cookie: 0, bytes_max: 4096, leased: false };
    for (mode, granted) in [(0o755, true), (0o744, false)] {
        bench.call(set(DIR, SetAttr { mode: Some(mode), ..SetAttr::default() })).expect("set");
        assert!(matches!(ask(&mut bench, list.clone()), Ok(Reply::Listing { .. })));
        assert_eq!(!bench.granted.is_none(), granted, "{mode:o}");
    }
}

#[test]
fn a_fronts_kernel_has_walked() {
    let mut bench = bench(0o600);
    let front = ClientId(9);
    bench.admit_as(front, 0, true);
    let none = Capabilities::default();
    let mut ask = |request| bench.ask_with(front, header(none), request).expect("answered at once");
    assert!(ask(Request::GetAttr { ino: FILE }).is_ok());
    assert!(ask(Request::Lookup { dir: Ino::ROOT, name: name("file") }).is_ok());
    assert!(ask(Request::Fsync { ino: DIR, handle: None, data_only: false }).is_ok());
    assert!(bench.granted.is_none());
}

/// Its kernel may have checked with a former owner.
#[test]
fn a_front_does_only_for_owners_what_only_they_may() {
    let mut bench = bench(0o600);
    let front = ClientId(9);
    bench.admit_as(front, 0, true);
    bench.call(set(DIR, SetAttr { mode: Some(0o1777), ..SetAttr::default() })).expect("set");
    let list = Request::SetXattr {
        ino: FILE,
        name: XattrName::new(warren_proto::ACL_ACCESS).expect("a name"),
        value: Box::default(),
        mode: XattrMode::Any,
        kill_set_gid: false,
    };
    let at = Some(SetTime::At(warren_base::Timestamp(5)));
    let of_owners = [
        set(FILE, SetAttr { mode: Some(0o4777), ..SetAttr::default() }),
        set(FILE, SetAttr { uid: Some(UID), ..SetAttr::default() }),
        set(FILE, SetAttr { gid: Some(UID), ..SetAttr::default() }),
        set(FILE, SetAttr { atime: at, mtime: at, ..SetAttr::default() }),
        set(FILE, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }),
        set(FILE, SetAttr { flags: Some(warren_base::InodeFlags::NODUMP), ..SetAttr::default() }),
        list,
        Request::Unlink { dir: DIR, name: name("below") },
        rename(DIR, "below", Ino::ROOT, "above", RenameFlags::empty()),
    ];
    let mut ask = |uid, request: &Request| {
        let header = RequestHeader { uid, gid: uid, ..header(Capabilities::default()) };
        bench.ask_with(front, header, request.clone()).expect("answered at once")
    };
    for request in &of_owners {
        assert_eq!(ask(UID, request), Err(Errno::EPERM), "{request:?}");
    }
    // What needs a right of the mode, the kernel has checked.
    let now = Some(SetTime::Now);
    let touch = set(FILE, SetAttr { atime: now, mtime: now, ..SetAttr::default() });
    let cut = set(FILE, SetAttr { size: Some(0), kill_privileges: true, ..SetAttr::default() });
    assert!(ask(UID, &touch).is_ok() && ask(UID, &cut).is_ok());
    // Of a caller with a capability, the front says that it is root.
    for request in &of_owners[..7] {
        assert!(ask(0, request).is_ok(), "{request:?}");
    }
    // Since the second one, the file is this user's.
    assert!(ask(UID, &of_owners[0]).is_ok());
}

#[test]
fn a_link_gives_nothing_that_its_maker_does_not_have() {
    let link = |ino, text| Request::Link { ino, dir: Ino::ROOT, name: name(text) };
    let readable = [0o644, 0o600, 0o622, 0o4777, 0o2777, 0o4755, 0];
    for mode in readable {
        let mut bench = bench(mode);
        assert_eq!(ask(&mut bench, link(FILE, "new")), Err(Errno::EPERM), "{mode:o}");
        assert_eq!(ask(&mut bench, link(FILE, "file2")), Err(Errno::EEXIST), "{mode:o}");
        assert!(bench.call(link(FILE, "new")).is_ok(), "root");
    }
    for mode in [0o666, 0o2766] {
        let mut bench = bench(mode);
        assert!(ask(&mut bench, link(FILE, "new")).is_ok(), "{mode:o}");
    }
    let mut bench = bench(0o600);
    let fifo = ask(&mut bench, create(Ino::ROOT, "fifo", FileKind::Fifo)).expect("made");
    let Reply::Created { entry, .. } = fifo else { panic!("{fifo:?}") };
    assert!(ask(&mut bench, link(entry.ino, "own")).is_ok(), "an owner may");
    assert_eq!(ask(&mut bench, link(DIR, "new")), Err(Errno::EPERM));
}

#[test]
fn device_nodes_are_roots() {
    let mut bench = bench(0o644);
    let mut n = 0;
    let mut make = |bench: &mut Bench, client, kind, rdev| {
        n += 1;
        let new = NewInode { kind, rdev, ..NewInode::regular(0o666) };
        let (dir, name) = (Ino::ROOT, name(&format!("n{n}")));
        let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::empty());
        let answer = bench.ask_as(client, Request::Create { dir, name, new, flags, access });
        answer.expect("answered at once").map(|_| ())
    };
    for (kind, rdev, answer) in [
        (FileKind::BlockDevice, 0x700, Err(Errno::EPERM)),
        (FileKind::BlockDevice, 0, Err(Errno::EPERM)),
        (FileKind::CharDevice, 0x103, Err(Errno::EPERM)),
        (FileKind::CharDevice, 0, Ok(())),
        (FileKind::Fifo, 0, Ok(())),
        (FileKind::Socket, 0, Ok(())),
    ] {
        assert_eq!(make(&mut bench, USER, kind, rdev), answer, "{kind:?} {rdev}");
        assert_eq!(make(&mut bench, CLIENT, kind, rdev), Ok(()), "root: {kind:?} {rdev}");
    }
}

#[test]
fn a_stranger_takes_no_set_id_bits_away() {
    let mut bench = bench(0o6755);
    for (what, answer) in [
        (SetAttr::default(), None),
        (SetAttr { kill_privileges: true, ..SetAttr::default() }, Some(Errno::EPERM)),
        (SetAttr { uid: Some(0), ..SetAttr::default() }, Some(Errno::EPERM)),
        (SetAttr { gid: Some(0), ..SetAttr::default() }, Some(Errno::EPERM)),
        (SetAttr { mode: Some(0o755), ..SetAttr::default() }, Some(Errno::EPERM)),
        (SetAttr { size: Some(0), ..SetAttr::default() }, Some(Errno::EACCES)),
    ] {
        assert_eq!(ask(&mut bench, set(FILE, what)).err(), answer, "{what:?}");
        assert_eq!(mode_of(&mut bench, FILE), 0o6755);
    }
    let times = |bench: &mut Bench| match bench.call(Request::GetAttr { ino: FILE }) {
        Ok(Reply::Attr { attr, .. }) => (attr.atime, attr.mtime, attr.ctime),
        other => panic!("{other:?}"),
    };
    let before = times(&mut bench);
    ask(&mut bench, set(FILE, SetAttr::default())).expect("changes nothing");
    assert_eq!(times(&mut bench), before);
}

#[test]
fn a_new_length_takes_the_set_id_bits_away() {
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    // Set-gid without execution by the group stays, unless a user outside the group makes the
    // change.
    for (mode, after) in [(0o6777, 0o777), (0o4777, 0o777), (0o2766, 0o766), (0o1777, 0o1777)] {
        let mut by_path = bench(mode);
        ask(&mut by_path, set(FILE, cut)).expect("writable");
        assert_eq!(mode_of(&mut by_path, FILE), after, "truncate");
        let mut by_handle = bench(mode);
        let handle = open(&mut by_handle, FILE, AccessMode::WRITE).expect("writable");
        let request = Request::SetAttr { ino: FILE, handle: Some(handle), set: cut };
        ask(&mut by_handle, request).expect("writable");
        assert_eq!(mode_of(&mut by_handle, FILE), after, "ftruncate");
        let mut by_open = bench(mode);
        open(&mut by_open, FILE, AccessMode::WRITE | AccessMode::TRUNCATE).expect("writable");
        assert_eq!(mode_of(&mut by_open, FILE), after, "O_TRUNC");
        let mut by_write = bench(mode);
        let handle = open(&mut by_write, FILE, AccessMode::WRITE).expect("writable");
        let write = Request::Write {
            handle,
            position: Position::End,
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        ask(&mut by_write, write).expect("writable");
        assert_eq!(mode_of(&mut by_write, FILE), after, "write");
    }
    let mut by_root = bench(0o6777);
    by_root.call(set(FILE, cut)).expect("root");
    assert_eq!(mode_of(&mut by_root, FILE), 0o6777, "root keeps them");
}

#[test]
fn a_directory_gets_no_set_id_bit_from_its_maker() {
    let mut bench = bench(0o644);
    let (new, flags) = (NewInode::directory(0o7777), CreateFlags::EXCLUSIVE);
    let (dir, name, access) = (Ino::ROOT, name("sub"), AccessMode::empty());
    match ask(&mut bench, Request::Create { dir, name, new, flags, access }) {
        Ok(Reply::Created { entry, .. }) => assert_eq!(mode_of(&mut bench, entry.ino), 0o1777),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_may_only_execute_a_file_reads_nothing_of_it() {
    let mut bench = bench(0o711);
    assert_eq!(open(&mut bench, FILE, AccessMode::READ), Err(Errno::EACCES));
    let both = AccessMode::READ | AccessMode::EXECUTE;
    assert_eq!(open(&mut bench, FILE, both), Err(Errno::EACCES));
    for access in [AccessMode::EXECUTE, AccessMode::empty()] {
        let handle = open(&mut bench, FILE, access).expect("executable");
        let read =
            Request::Read { handle, position: Position::At(0), len: 9, flags: ReadFlags::empty() };
        assert_eq!(ask(&mut bench, read), Err(Errno::EBADF));
        let fsync = Request::Fsync { ino: FILE, handle: Some(handle), data_only: false };
        assert_eq!(ask(&mut bench, fsync), Err(Errno::EBADF));
    }
}

/// As of a descriptor of `O_PATH`. Where a file has data is part of its contents.
#[test]
fn a_handle_without_rights_shows_no_place_in_a_file() {
    let mut bench = bench(0o711);
    let places = |handle| {
        let find = |hole| Request::FindData { handle, offset: 0, hole };
        [Request::Seek { handle, position: 0 }, find(false), find(true)]
    };
    for access in [AccessMode::empty(), AccessMode::EXECUTE] {
        let handle = open(&mut bench, FILE, access).expect("open");
        for request in places(handle) {
            assert_eq!(ask(&mut bench, request), Err(Errno::EBADF), "{access:?}");
        }
    }
    assert_eq!(open(&mut bench, FILE, AccessMode::READ), Err(Errno::EACCES));
    bench.call(set(FILE, SetAttr { mode: Some(0o622), ..SetAttr::default() })).expect("chmod");
    let handle = open(&mut bench, FILE, AccessMode::WRITE).expect("open");
    for request in places(handle) {
        assert_ne!(ask(&mut bench, request), Err(Errno::EBADF), "a writer has a descriptor");
    }
}

#[test]
fn locks_and_fsync_need_an_open_file() {
    let mut bench = bench(0o666);
    let theirs = match bench.call(Request::Open { ino: FILE, access: AccessMode::READ }) {
        Ok(Reply::Opened(opened)) => opened.handle,
        other => panic!("{other:?}"),
    };
    let (record, flock) = (LockFlavour::Record, LockFlavour::Flock);
    let (shared, exclusive, unlock) = (LockType::Shared, LockType::Exclusive, LockType::Unlock);
    for handle in [theirs, Handle { ino: FILE, open: 0 }] {
        for spec in [lock(record, shared), lock(flock, exclusive), lock(flock, unlock)] {
            let answer = ask(&mut bench, Request::Lock { handle, spec, wait: false });
            assert_eq!(answer, Err(Errno::EBADF), "another's or none");
            let answer = ask(&mut bench, Request::TestLock { handle, spec });
            assert_eq!(answer, Err(Errno::EBADF), "another's or none");
        }
        let fsync = Request::Fsync { ino: FILE, handle: Some(handle), data_only: true };
        assert_eq!(ask(&mut bench, fsync), Err(Errno::EBADF));
    }
    let fsync = |handle| Request::Fsync { ino: FILE, handle, data_only: true };
    assert_eq!(ask(&mut bench, fsync(None)), Err(Errno::EBADF));
    for (access, allowed) in [(AccessMode::READ, shared), (AccessMode::WRITE, exclusive)] {
        let handle = open(&mut bench, FILE, access).expect("open");
        for spec in [record, flock].map(|flavour| [shared, exclusive].map(|it| lock(flavour, it))) {
            for spec in spec {
                let is_allowed = spec.flavour == flock || spec.lock == allowed;
                let answer = ask(&mut bench, Request::Lock { handle, spec, wait: false });
                let expected = if is_allowed { Ok(Reply::Done) } else { Err(Errno::EBADF) };
                assert_eq!(answer, expected, "{access:?} {spec:?}");
            }
        }
        assert_eq!(ask(&mut bench, fsync(Some(handle))), Ok(Reply::Done));
        let other_file = Request::Fsync { ino: DIR, handle: Some(handle), data_only: true };
        assert_eq!(ask(&mut bench, other_file), Err(Errno::EBADF));
    }
    // The client cannot release root's own lock.
    let spec = lock(flock, exclusive);
    let (ino, owner) = (FILE, LockOwner(1));
    ask(&mut bench, Request::ReleaseLocks { ino, owner }).expect("one's own");
    let held = bench.call(Request::Lock { handle: theirs, spec, wait: false });
    assert_eq!(held, Err(Errno::EAGAIN), "the user has it");
}
