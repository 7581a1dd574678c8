use std::sync::Mutex;

use warren_proto::{
    Answer, CreateFlags, DirEntries, DirEntry, Entry, FileKind, FileName, LockFlavour, LockOwner,
    LockSpec, LockType, Opened, ReadFlags, RenameFlags, Reply, Request,
};

use super::*;
use crate::abi::opcode;
use crate::message::{Create, OpenFlags, Write};
use crate::testing::ScriptedFleet;

pub(super) use crate::testing::attr_of as attr;

/// The thread that makes the requests, unless a test sets another one.
const THREAD: u32 = 77;
const LEASE: Option<Lease> = Some(Lease { word: 0, stamp: 0 });

/// A front that serves operations on inode 1, and a fleet that answers by a function.
pub(super) struct FrontTest {
    front: Front,
    fleet: Arc<ScriptedFleet>,
    slot: Box<dyn FleetSlot>,
    body: Body,
    unique: u64,
    thread: u32,
}

impl FrontTest {
    pub(super) fn new(
        options: FrontOptions,
        script: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> Self {
        let script = Mutex::new(script);
        let fleet =
            Arc::new(ScriptedFleet::new(1, move |_, request| script.lock().unwrap()(request)));
        let slot = fleet.slot().unwrap();
        let state = Arc::new(FrontState::create().unwrap());
        let front = Front::new(Arc::clone(&fleet) as Arc<_>, state, options, 1);
        Self { front, fleet, slot, body: Body::default(), unique: 0, thread: THREAD }
    }

    fn serve(&mut self, operation: Operation) -> Result<Outcome, Errno> {
        self.serve_on(Ino::ROOT, operation)
    }

    pub(super) fn serve_on(&mut self, ino: Ino, operation: Operation) -> Result<Outcome, Errno> {
        self.body.clear();
        self.unique += 2;
        let unique = self.unique;
        let (opcode, thread) = (opcode::LOOKUP, self.thread);
        let header = Header { len: 0, opcode, unique, ino, uid: 0, gid: 0, thread };
        self.front.serve(&mut *self.slot, &mut self.body, header, operation)
    }

    /// Adds an open file of inode 1. Returns the kernel's handle.
    fn add_open(&mut self) -> u64 {
        let handle = Handle { ino: Ino::ROOT, open: 1 };
        let attr = attr(Ino::ROOT);
        let opened = Opened { handle, attr, keep_pages: true, direct: false, kept: None };
        self.unique += 2;
        self.front.open_files.begin_new(Ino::ROOT);
        let access = AccessMode::READ | AccessMode::WRITE;
        self.front.open_files.opened(&opened, access, None, self.unique).unwrap().number
    }

    fn init(&mut self, minor: u32, flags: u64) -> Result<Outcome, Errno> {
        self.serve(Operation::Init { major: 7, minor, max_readahead: 1 << 17, flags })
    }

    pub(super) fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.body.as_bytes()[at..at + 8].try_into().unwrap())
    }
}

fn lookup(name: &[u8]) -> Operation {
    Operation::Lookup(FileName::new(name).unwrap())
}

#[test]
fn only_offered_features_are_negotiated_and_old_kernels_are_refused() {
    let mut test = FrontTest::new(FrontOptions::default(), |_| Err(Errno::EIO));
    assert_eq!(test.init(30, u64::MAX), Err(Errno::EPROTO));
    assert_eq!(test.init(45, crate::abi::init::FLOCK_LOCKS), Ok(Outcome::BODY));
    let flags = u32::from_ne_bytes(test.body.as_bytes()[12..16].try_into().unwrap());
    assert_eq!(u64::from(flags), crate::abi::init::FLOCK_LOCKS);
}

#[test]
fn the_kernel_may_cache_only_what_is_leased() {
    let ino = Ino(5);
    let entry = |lease, attr_lease| Entry {
        ino,
        kind: FileKind::Regular,
        lease,
        attr: Some((attr(ino), attr_lease)),
    };
    let answers = [entry(LEASE, LEASE), entry(None, LEASE), entry(LEASE, None)];
    let mut answers = answers.into_iter();
    let mut test = FrontTest::new(FrontOptions::default(), move |_| {
        answers.next().map(Reply::Entry).ok_or(Errno::EIO)
    });
    test.init(45, 0).unwrap();
    for (name, attr) in [(true, true), (false, true), (true, false)] {
        test.serve(lookup(b"n")).unwrap();
        assert_eq!((test.u64_at(16) > 0, test.u64_at(24) > 0), (name, attr));
    }
}

#[test]
fn a_kernel_without_epochs_caches_no_names() {
    let mut test =
        FrontTest::new(FrontOptions::default(), |_| Ok(Reply::Absent(Lease { word: 0, stamp: 0 })));
    test.init(43, 0).unwrap();
    assert_eq!(test.serve(lookup(b"n")), Err(Errno::ENOENT));
    test.init(44, 0).unwrap();
    assert_eq!(test.serve(lookup(b"n")), Ok(Outcome::BODY));
    assert_eq!(test.u64_at(0), 0);
}

#[test]
fn a_name_that_is_replaced_between_two_calls_is_looked_up_again() {
    let mut lookups = 0;
    let mut test = FrontTest::new(FrontOptions::default(), move |request| match request {
        Request::Lookup { .. } => {
            lookups += 1;
            let kind = FileKind::Regular;
            Ok(Reply::Entry(Entry { ino: Ino(lookups), kind, lease: None, attr: None }))
        }
        Request::GetAttr { ino: Ino(3) } => Ok(Reply::Attr { attr: attr(Ino(3)), lease: None }),
        _ => Err(Errno::ENOENT),
    });
    test.serve(lookup(b"n")).unwrap();
    assert_eq!(test.u64_at(0), 3);
}

#[test]
fn repeated_lookups_of_a_name_end() {
    let mut test = FrontTest::new(FrontOptions::default(), |request| match request {
        Request::Lookup { .. } => {
            let kind = FileKind::Regular;
            Ok(Reply::Entry(Entry { ino: Ino(9), kind, lease: None, attr: None }))
        }
        _ => Err(Errno::ESTALE),
    });
    assert_eq!(test.serve(lookup(b"n")), Err(Errno::ENOENT));
}

#[test]
fn an_answer_to_another_request_is_an_error() {
    let mut test = FrontTest::new(FrontOptions::default(), |_| Ok(Reply::Read { len: 4096 }));
    assert_eq!(test.serve(lookup(b"n")), Err(Errno::EPROTO));
    let open = test.add_open();
    let read = Operation::Read { open, offset: 0, len: 100, flags: ReadFlags::empty() };
    assert_eq!(test.serve(read), Err(Errno::EPROTO), "more than was requested");
}

#[test]
fn a_truncating_open_removes_set_id_bits_if_the_kernel_requests_it() {
    let killed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&killed);
    let mut test = FrontTest::new(FrontOptions::default(), move |request| match request {
        Request::Open { ino, .. } => Ok(Reply::Opened(Opened {
            handle: Handle { ino: *ino, open: 1 },
            attr: attr(*ino),
            keep_pages: false,
            direct: false,
            kept: None,
        })),
        Request::SetAttr { ino, set, .. } if set.kill_privileges => {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(Reply::Attr { attr: attr(*ino), lease: None })
        }
        _ => Err(Errno::EIO),
    });
    let flags = (libc::O_WRONLY | libc::O_TRUNC).cast_unsigned();
    for (kill_privileges, expected) in [(false, 0), (true, 1)] {
        test.serve(Operation::Open(OpenFlags { flags, kill_privileges })).unwrap();
        assert_eq!(killed.load(std::sync::atomic::Ordering::SeqCst), expected);
    }
}

#[test]
fn a_truncating_open_through_a_kept_handle_is_one_request() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&requests);
    let lease = Lease { word: 3, stamp: 7 };
    let mut test = FrontTest::new(FrontOptions::default(), move |request| {
        log.lock().unwrap().push(request.clone());
        let attr = attr(Ino::ROOT);
        match request {
            Request::Open { ino, .. } => Ok(Reply::Opened(Opened {
                handle: Handle { ino: *ino, open: 1 },
                attr,
                keep_pages: true,
                direct: false,
                kept: Some(lease),
            })),
            Request::SetAttr { set, .. } if set.size == Some(0) => {
                Ok(Reply::Attr { attr, lease: None })
            }
            _ => Err(Errno::EIO),
        }
    });
    test.fleet.words.lock().unwrap().insert(lease.word, lease.stamp);
    let open = |flags: i32| {
        let flags = flags.cast_unsigned();
        Operation::Open(OpenFlags { flags, kill_privileges: true })
    };
    test.serve(open(libc::O_WRONLY)).unwrap();
    let first = test.u64_at(0);
    test.serve(Operation::Release { open: first, flock: None }).unwrap();
    test.serve(open(libc::O_WRONLY | libc::O_TRUNC)).unwrap();
    let second = test.u64_at(0);
    let sent = std::mem::take(&mut *requests.lock().unwrap());
    assert!(matches!(sent[..], [Request::Open { .. }, Request::SetAttr { .. }]), "{sent:?}");
    // The front dies before its reply, and the kernel sends the request again.
    let state = Arc::clone(&test.front.state);
    let fleet = Arc::clone(&test.fleet) as Arc<_>;
    test.front = Front::new(fleet, state, FrontOptions::default(), 1);
    test.unique |= crate::abi::UNIQUE_RESEND;
    test.unique -= 2;
    test.serve(open(libc::O_WRONLY | libc::O_TRUNC)).unwrap();
    assert_eq!(test.u64_at(0), second);
    assert_eq!(*requests.lock().unwrap(), []);
}

#[test]
fn attributes_of_a_file_with_other_names_are_not_kept_while_one_is_removed() {
    let found = |nlink| Attr { nlink, ..attr(Ino(9)) };
    let links = Arc::new(AtomicUsize::new(2));
    let count = Arc::clone(&links);
    let mut test = FrontTest::new(FrontOptions::default(), move |request| match request {
        Request::Lookup { .. } => {
            let nlink = count.load(std::sync::atomic::Ordering::SeqCst) as u32;
            let attr = Some((found(nlink), None));
            let entry = Entry { ino: Ino(9), kind: FileKind::Regular, lease: None, attr };
            Ok(Reply::Entry(entry))
        }
        Request::Unlink { .. } | Request::Rename { .. } => Ok(Reply::Done),
        Request::GetAttr { ino } => Ok(Reply::Attr { attr: attr(*ino), lease: None }),
        _ => Err(Errno::EIO),
    });
    let rename = |flags| {
        let [name, new_name] = [b"m", b"n"].map(|name| FileName::new(name).unwrap());
        Operation::Rename { name, new_dir: Ino::ROOT, new_name, flags }
    };
    let unlink = || Operation::Unlink(FileName::new(b"n").unwrap());
    let get = |test: &mut FrontTest, ino| {
        // Another thread asks than the one that removes.
        test.thread = THREAD + 1;
        let outcome = test.serve_on(Ino(ino), Operation::GetAttr { open: false });
        test.thread = THREAD;
        outcome.unwrap()
    };
    test.serve(unlink()).unwrap();
    assert_eq!(get(&mut test, 9), Outcome::Body { passing: Some(Ino(9)) });
    assert_eq!(get(&mut test, 10), Outcome::BODY, "another file");
    test.serve(rename(RenameFlags::EXCHANGE)).unwrap();
    assert_eq!(get(&mut test, 9), Outcome::BODY, "it keeps all its names");
    test.serve(rename(RenameFlags::empty())).unwrap();
    assert_eq!(get(&mut test, 9), Outcome::Body { passing: Some(Ino(9)) }, "one is replaced");
    links.store(1, std::sync::atomic::Ordering::SeqCst);
    test.serve(unlink()).unwrap();
    assert_eq!(get(&mut test, 9), Outcome::BODY, "that was its last name");
}

#[test]
fn a_changed_directory_is_answered_from_the_reply_to_the_change() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let mut test = FrontTest::new(FrontOptions::default(), move |request| match request {
        Request::Unlink { .. } => Ok(Reply::Done),
        Request::GetAttr { ino } => {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(Reply::Attr { attr: attr(*ino), lease: None })
        }
        _ => Err(Errno::EIO),
    });
    let lease = Lease { word: 3, stamp: 7 };
    let unlink = || Operation::Unlink(FileName::new(b"n").unwrap());
    test.fleet.changed.lock().unwrap().push((attr(Ino::ROOT), lease));
    test.serve(unlink()).unwrap();
    let mut asks = |stamp: u64| {
        test.fleet.words.lock().unwrap().insert(lease.word, stamp);
        test.serve(Operation::GetAttr { open: false }).unwrap();
        asked.swap(0, std::sync::atomic::Ordering::SeqCst)
    };
    assert_eq!([asks(lease.stamp), asks(lease.stamp)], [0, 0]);
    assert_eq!([asks(lease.stamp + 1), asks(lease.stamp)], [1, 1], "a copy ends with its lease");
}

#[test]
fn an_append_at_another_offset_drops_leased_pages() {
    let options = FrontOptions { page_caching: PageCaching::Leased, ..Default::default() };
    let mut test = FrontTest::new(options, |_| Ok(Reply::Written { len: 3, size: 103 }));
    let open = test.add_open();
    let write = |offset| {
        Operation::Write(Write {
            open,
            offset,
            len: 3,
            kill_privileges: false,
            append: true,
            write_back: false,
            direct: false,
            sync: false,
        })
    };
    assert_eq!(test.serve(write(100)), Ok(Outcome::BODY));
    assert_eq!(test.serve(write(50)), Ok(Outcome::Misplaced));
}

/// The names in a listing, with their offsets.
fn listed(body: &Body) -> Vec<(u64, Vec<u8>)> {
    let (mut rest, mut names) = (body.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let offset = u64::from_ne_bytes(rest[8..16].try_into().unwrap());
        let len = u32::from_ne_bytes(rest[16..20].try_into().unwrap()) as usize;
        names.push((offset, rest[24..24 + len].to_vec()));
        rest = &rest[(24 + len).next_multiple_of(8)..];
    }
    names
}

#[test]
fn entries_that_share_a_cookie_are_in_one_reply() {
    let cookies = [10, 20, 20, 20, 30];
    let mut test = FrontTest::new(FrontOptions::default(), move |request| {
        let Request::ReadDir { cookie, .. } = request else { return Err(Errno::EIO) };
        let entry = |(index, &cookie): (usize, &u64)| DirEntry {
            ino: Ino(100),
            kind: FileKind::Regular,
            cookie,
            name: FileName::new(format!("f{index}").as_bytes()).unwrap(),
        };
        let after = |entry: &DirEntry| entry.cookie > *cookie;
        let entries = cookies.iter().enumerate().map(entry).filter(after).collect();
        Ok(Reply::Listing { parent: Ino::ROOT, entries, end: true, lease: None })
    });
    // Room for five records of 32 bytes: two dots, f0, and two of the three with the same cookie.
    let mut offset = 0;
    let mut names = Vec::new();
    loop {
        test.serve(Operation::ReadDir { offset, len: 5 * 32 }).unwrap();
        let page = listed(&test.body);
        let Some((last, _)) = page.last() else { break };
        offset = *last;
        names.extend(page.into_iter().map(|(_, name)| String::from_utf8(name).unwrap()));
    }
    assert_eq!(names, [".", "..", "f0", "f1", "f2", "f3", "f4"]);
}

#[test]
fn a_listing_continues_after_each_dot() {
    let mut test = FrontTest::new(FrontOptions::default(), |_| {
        Ok(Reply::Listing { parent: Ino(7), entries: DirEntries::new(), end: true, lease: None })
    });
    for (offset, expected) in [(0, 2), (1, 1), (2, 0)] {
        test.serve(Operation::ReadDir { offset, len: 4096 }).unwrap();
        assert_eq!(listed(&test.body).len(), expected);
    }
}

#[test]
fn a_close_without_locks_sends_no_request() {
    let mut test = FrontTest::new(FrontOptions::default(), |request| match request {
        Request::Lock { .. } | Request::ReleaseLocks { owner: LockOwner(1), .. } => Ok(Reply::Done),
        _ => Err(Errno::EIO),
    });
    let spec = LockSpec {
        flavour: LockFlavour::Record,
        owner: LockOwner(1),
        lock: LockType::Shared,
        range: warren_proto::ByteRange::ALL,
        pid: 1,
    };
    let open = test.add_open();
    test.serve(Operation::Lock { open, spec, wait: false }).unwrap();
    assert_eq!(test.serve(Operation::Flush { owner: LockOwner(2) }), Ok(Outcome::BODY));
    assert_eq!(test.serve(Operation::Flush { owner: LockOwner(1) }), Ok(Outcome::BODY));
}

#[test]
fn attributes_that_no_file_has_cost_no_request() {
    let mut test = FrontTest::new(FrontOptions::default(), |_| Err(Errno::EIO));
    let mut get = |name: &[u8]| {
        let name = warren_proto::XattrName::new(name).unwrap();
        test.serve(Operation::GetXattr { name, len: 0 })
    };
    let extra: [&[u8]; 2] = [b"security.capability", b"system.posix_acl_access"];
    for name in extra {
        assert_eq!(get(name), Err(Errno::EIO), "the inode is not known");
    }
    let plain = &test.front.plain_inodes;
    plain.note_leased(&attr(Ino::ROOT), LEASE, plain.forgotten());
    let mut get = |name: &[u8]| {
        let name = warren_proto::XattrName::new(name).unwrap();
        test.serve(Operation::GetXattr { name, len: 0 })
    };
    for name in extra {
        assert_eq!(get(name), Err(Errno::ENODATA));
    }
    assert_eq!(get(b"user.x"), Err(Errno::EIO), "a cell is asked for other attributes");
}

/// Root opens a name that another mount has just created for a file with attributes `found`.
/// Returns the result, whether the file was truncated, and whether it was closed again.
fn open_created_elsewhere(found: Attr, flags: i32) -> (Result<Outcome, Errno>, bool, bool) {
    let seen = Arc::new(Mutex::new((false, false)));
    let noted = Arc::clone(&seen);
    let handle = Handle { ino: found.ino, open: 9 };
    let mut test = FrontTest::new(FrontOptions::default(), move |request| match request {
        Request::Create { flags, .. } if flags.contains(CreateFlags::EXCLUSIVE) => {
            Err(Errno::EEXIST)
        }
        Request::Create { access, .. } => {
            assert!(!access.contains(AccessMode::TRUNCATE), "the owner is not known yet");
            let entry = Entry { ino: found.ino, kind: found.kind, lease: None, attr: None };
            let opened =
                Some(Opened { handle, attr: found, keep_pages: true, direct: false, kept: None });
            Ok(Reply::Created { entry, opened: opened.map(Box::new) })
        }
        Request::SetAttr { set, .. } => {
            assert_eq!(set.size, Some(0));
            noted.lock().unwrap().0 = true;
            Ok(Reply::Attr { attr: found, lease: None })
        }
        Request::Close { .. } => {
            noted.lock().unwrap().1 = true;
            Ok(Reply::Done)
        }
        other => panic!("unexpected request {other:?}"),
    });
    let flags = OpenFlags { flags: flags.cast_unsigned(), kill_privileges: false };
    let name = FileName::new(b"created").unwrap();
    let served = test.serve(Operation::Create(Create { name, mode: 0o100_600, flags, umask: 0 }));
    let (truncated, closed) = *seen.lock().unwrap();
    (served, truncated, closed)
}

#[test]
fn a_file_that_another_mount_created_is_opened_if_the_caller_owns_it() {
    let create = libc::O_CREAT | libc::O_RDWR;
    let own = attr(Ino(5));
    assert_eq!(open_created_elsewhere(own, create), (Ok(Outcome::BODY), false, false));
    let truncated = open_created_elsewhere(own, create | libc::O_TRUNC);
    assert_eq!(truncated, (Ok(Outcome::BODY), true, false));
    let exclusive = open_created_elsewhere(own, create | libc::O_EXCL);
    assert_eq!(exclusive, (Err(Errno::EEXIST), false, false));
}

#[test]
fn a_file_that_another_mount_created_is_not_opened_without_permission() {
    let create = libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC;
    let own = attr(Ino(5));
    for found in [
        Attr { uid: 7, mode: 0o666, ..own },
        Attr { mode: 0o400, ..own },
        Attr { kind: FileKind::Symlink, ..own },
        Attr { kind: FileKind::Fifo, ..own },
    ] {
        let refused = open_created_elsewhere(found, create);
        assert_eq!(refused, (Err(Errno::ESTALE), false, true), "{found:?}");
    }
}

/// A directory in which the cell finds no name, with the requests that were sent.
fn empty_directory() -> (FrontTest, Arc<Mutex<Vec<&'static str>>>) {
    let sent: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let log = Arc::clone(&sent);
    let lease = Lease { word: 3, stamp: 7 };
    let test = FrontTest::new(FrontOptions::default(), move |request| {
        let (kind, answer) = match request {
            Request::Lookup { .. } => ("lookup", Ok(Reply::Absent(Lease { word: 0, stamp: 0 }))),
            Request::ReadDir { leased: true, .. } => {
                let (parent, entries) = (Ino::ROOT, DirEntries::new());
                ("list", Ok(Reply::Listing { parent, entries, end: true, lease: Some(lease) }))
            }
            Request::Create { .. } => {
                let attr = Some((attr(Ino(5)), LEASE));
                let (kind, lease) = (FileKind::Directory, LEASE);
                let entry = Entry { ino: Ino(5), kind, lease, attr };
                ("create", Ok(Reply::Created { entry, opened: None }))
            }
            _ => ("other", Err(Errno::EIO)),
        };
        log.lock().unwrap().push(kind);
        answer
    });
    test.fleet.words.lock().unwrap().insert(lease.word, lease.stamp);
    (test, sent)
}

#[test]
fn a_name_that_a_known_directory_lacks_is_no_request() {
    let (mut test, sent) = empty_directory();
    let requests = |test: &mut FrontTest, operation: Operation| {
        let served = test.serve(operation);
        (served.map(drop), std::mem::take(&mut *sent.lock().unwrap()))
    };
    let mkdir = |name: &[u8]| Operation::Mkdir {
        name: FileName::new(name).unwrap(),
        mode: 0o755,
        umask: 0,
    };
    let absent = Err(Errno::ENOENT);
    for listed in [vec!["lookup"], vec!["lookup", "list"]] {
        let answered = requests(&mut test, lookup(b"a"));
        assert_eq!(answered.1, listed);
    }
    assert_eq!(requests(&mut test, lookup(b"b")), (absent, vec![]));
    assert_eq!(requests(&mut test, mkdir(b"b")), (Ok(()), vec!["create"]));
    assert_eq!(requests(&mut test, lookup(b"b")).1, ["lookup"], "it may be there");
    assert_eq!(requests(&mut test, lookup(b"c")), (absent, vec![]));
    assert_eq!(requests(&mut test, lookup(b"c")).1, ["lookup"], "the kernel may cache this");
    test.fleet.words.lock().unwrap().clear();
    assert_eq!(requests(&mut test, lookup(b"d")).1, ["lookup"], "the lease has ended");
}

/// A fleet where the first two look-ups of a name find inode 6, which is gone, and all later ones
/// inode 7. Only 7 can be opened.
fn replaced_name() -> (FrontTest, Arc<Mutex<Vec<Request>>>) {
    let sent: Arc<Mutex<Vec<Request>>> = Arc::default();
    let log = Arc::clone(&sent);
    let (mut lookups, mut handles) = (0, 0);
    let test = FrontTest::new(FrontOptions::default(), move |request| {
        log.lock().unwrap().push(request.clone());
        match request {
            Request::Lookup { .. } => {
                lookups += 1;
                let ino = Ino(4 + lookups.clamp(2, 3));
                let (kind, lease, attr) = (FileKind::Regular, None, Some((attr(ino), LEASE)));
                Ok(Reply::Entry(Entry { ino, kind, lease, attr }))
            }
            Request::Open { ino: Ino(7), .. } => {
                handles += 1;
                Ok(Reply::Opened(Opened {
                    handle: Handle { ino: Ino(7), open: handles },
                    attr: attr(Ino(7)),
                    keep_pages: false,
                    direct: false,
                    kept: None,
                }))
            }
            Request::Close { .. } => Ok(Reply::Done),
            _ => Err(Errno::ESTALE),
        }
    });
    (test, sent)
}

const OPEN: Operation = Operation::Open(OpenFlags { flags: 0, kill_privileges: false });

fn closed(sent: &Mutex<Vec<Request>>) -> Vec<u64> {
    let handle = |request: &Request| match request {
        Request::Close { handle } => Some(handle.open),
        _ => None,
    };
    sent.lock().unwrap().iter().filter_map(handle).collect()
}

/// The inodes that were to be opened for no access.
fn pinned(sent: &Mutex<Vec<Request>>) -> Vec<Ino> {
    let ino = |request: &Request| match request {
        Request::Open { ino, access } if access.is_empty() => Some(*ino),
        _ => None,
    };
    sent.lock().unwrap().iter().filter_map(ino).collect()
}

#[test]
fn a_walk_that_is_repeated_after_estale_pins_what_it_finds() {
    let (mut test, sent) = replaced_name();
    test.serve(lookup(b"n")).unwrap();
    assert_eq!(test.u64_at(0), 6);
    assert_eq!(test.serve(OPEN), Err(Errno::ESTALE));
    assert_eq!(pinned(&sent), [], "a walk that is not repeated");
    // The kernel looks up the name again.
    sent.lock().unwrap().clear();
    test.serve(lookup(b"n")).unwrap();
    assert_eq!(test.u64_at(0), 7);
    assert_eq!(pinned(&sent), [Ino(6), Ino(7)], "the first one is gone");
    assert_eq!(
        test.serve(Operation::GetAttr { open: false }),
        Err(Errno::ESTALE),
        "of another inode"
    );
    test.serve(lookup(b"n")).unwrap();
    assert_eq!(closed(&sent), [1], "another repetition");
    assert_eq!(test.serve_on(Ino(7), OPEN), Ok(Outcome::BODY));
    assert_eq!(closed(&sent), [1]);
    test.serve(Operation::Forget).unwrap();
    assert_eq!(closed(&sent), [1, 2], "after the call");
    sent.lock().unwrap().clear();
    test.serve(lookup(b"n")).unwrap();
    assert_eq!(sent.lock().unwrap().len(), 1, "no walk is repeated");
}

#[test]
fn a_look_up_that_is_sent_again_closes_what_its_predecessor_has_pinned() {
    let (mut test, sent) = replaced_name();
    test.serve(lookup(b"n")).unwrap();
    let _stale = test.serve(OPEN);
    test.serve(lookup(b"n")).unwrap();
    // The front dies before its reply.
    let (fleet, state) = (Arc::clone(&test.fleet) as Arc<_>, Arc::clone(&test.front.state));
    test.front = Front::new(fleet, state, FrontOptions::default(), 1);
    test.unique |= crate::abi::UNIQUE_RESEND;
    test.unique -= 2;
    sent.lock().unwrap().clear();
    test.serve(lookup(b"n")).unwrap();
    assert_eq!(test.u64_at(0), 7);
    test.serve(Operation::Forget).unwrap();
    assert_eq!(closed(&sent), [1, 1], "once as a handle that no open uses");
    assert_eq!(test.front.state.opens().held_handle(0), None);
}
