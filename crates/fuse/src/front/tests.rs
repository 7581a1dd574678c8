use std::sync::Mutex;

use warren_base::Timestamp;
use warren_proto::{
    CreateFlags, DirEntry, Entry, FileKind, FileName, LockFlavour, LockOwner, LockSpec, LockType,
    Opened, Reply,
};

use super::*;
use crate::abi::opcode;
use crate::message::{Create, OpenFlags, Write};
use crate::testing::Scripted;

fn attr(ino: Ino) -> Attr {
    let time = Timestamp(0);
    let (kind, mode, nlink) = (FileKind::Regular, 0o644, 1);
    Attr {
        ino,
        kind,
        mode,
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
    }
}

const LEASE: Option<Lease> = Some(Lease { word: 0, stamp: 0 });

/// Serves operations on inode 1, by answers from a function.
struct Bench {
    front: Front,
    courier: Box<dyn Courier>,
    body: Body,
    unique: u64,
}

impl Bench {
    fn new(options: FrontOptions, script: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        let script = Mutex::new(script);
        let fleet = Arc::new(Scripted::new(1, move |_, request| script.lock().unwrap()(request)));
        let courier = fleet.courier().unwrap();
        let ledger = Arc::new(Ledger::create().unwrap());
        Self {
            front: Front::new(fleet, ledger, options, 1),
            courier,
            body: Body::default(),
            unique: 0,
        }
    }

    fn serve(&mut self, operation: Operation) -> Result<Outcome, Errno> {
        self.body.clear();
        self.unique += 2;
        let unique = self.unique;
        let header =
            Header { len: 0, opcode: opcode::LOOKUP, unique, ino: Ino::ROOT, uid: 0, gid: 0 };
        self.front.serve(&mut *self.courier, &mut self.body, header, operation)
    }

    fn init(&mut self, minor: u32, flags: u64) -> Result<Outcome, Errno> {
        self.serve(Operation::Init { major: 7, minor, max_readahead: 1 << 17, flags })
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.body.as_bytes()[at..at + 8].try_into().unwrap())
    }
}

fn lookup(name: &[u8]) -> Operation {
    Operation::Lookup(FileName::new(name).unwrap())
}

#[test]
fn only_offered_flags_are_taken_and_old_kernels_refused() {
    let mut bench = Bench::new(FrontOptions::default(), |_| Err(Errno::EIO));
    assert_eq!(bench.init(30, u64::MAX), Err(Errno::EPROTO));
    assert_eq!(bench.init(45, crate::abi::init::FLOCK_LOCKS), Ok(Outcome::Body));
    let flags = u32::from_ne_bytes(bench.body.as_bytes()[12..16].try_into().unwrap());
    assert_eq!(u64::from(flags), crate::abi::init::FLOCK_LOCKS);
}

#[test]
fn the_kernel_may_keep_what_is_leased_and_nothing_else() {
    let ino = Ino(5);
    let entry = |lease, attr_lease| Entry {
        ino,
        kind: FileKind::Regular,
        lease,
        attr: Some((attr(ino), attr_lease)),
    };
    let answers = [entry(LEASE, LEASE), entry(None, LEASE), entry(LEASE, None)];
    let mut answers = answers.into_iter();
    let mut bench = Bench::new(FrontOptions::default(), move |_| {
        answers.next().map(Reply::Entry).ok_or(Errno::EIO)
    });
    bench.init(45, 0).unwrap();
    for (name, attr) in [(true, true), (false, true), (true, false)] {
        bench.serve(lookup(b"n")).unwrap();
        assert_eq!((bench.u64_at(16) > 0, bench.u64_at(24) > 0), (name, attr));
    }
}

#[test]
fn a_kernel_without_epochs_keeps_no_names() {
    let mut bench =
        Bench::new(FrontOptions::default(), |_| Ok(Reply::Absent(Lease { word: 0, stamp: 0 })));
    bench.init(43, 0).unwrap();
    assert_eq!(bench.serve(lookup(b"n")), Err(Errno::ENOENT));
    bench.init(44, 0).unwrap();
    assert_eq!(bench.serve(lookup(b"n")), Ok(Outcome::Body));
    assert_eq!(bench.u64_at(0), 0);
}

#[test]
fn a_name_that_is_replaced_between_two_questions_is_looked_up_anew() {
    let mut lookups = 0;
    let mut bench = Bench::new(FrontOptions::default(), move |request| match request {
        Request::Lookup { .. } => {
            lookups += 1;
            let kind = FileKind::Regular;
            Ok(Reply::Entry(Entry { ino: Ino(lookups), kind, lease: None, attr: None }))
        }
        Request::GetAttr { ino: Ino(3) } => Ok(Reply::Attr { attr: attr(Ino(3)), lease: None }),
        _ => Err(Errno::ENOENT),
    });
    bench.serve(lookup(b"n")).unwrap();
    assert_eq!(bench.u64_at(0), 3);
}

#[test]
fn a_name_that_is_never_there_in_time_ends_the_search() {
    let mut bench = Bench::new(FrontOptions::default(), |request| match request {
        Request::Lookup { .. } => {
            let kind = FileKind::Regular;
            Ok(Reply::Entry(Entry { ino: Ino(9), kind, lease: None, attr: None }))
        }
        _ => Err(Errno::ESTALE),
    });
    assert_eq!(bench.serve(lookup(b"n")), Err(Errno::ENOENT));
}

#[test]
fn an_answer_to_something_else_is_an_error() {
    let mut bench = Bench::new(FrontOptions::default(), |_| Ok(Reply::Read { len: 4096 }));
    assert_eq!(bench.serve(lookup(b"n")), Err(Errno::EPROTO));
    let read = Operation::Read { open: 1, offset: 0, len: 100, direct: false };
    assert_eq!(bench.serve(read), Err(Errno::EPROTO), "more than was asked for");
}

#[test]
fn emptying_while_opening_takes_set_id_bits_if_the_kernel_says_so() {
    let killed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&killed);
    let mut bench = Bench::new(FrontOptions::default(), move |request| match request {
        Request::Open { ino, .. } => Ok(Reply::Opened(Opened {
            handle: Handle { ino: *ino, open: 1 },
            attr: attr(*ino),
            keep_pages: false,
            direct: false,
        })),
        Request::SetAttr { ino, set, .. } if set.kill_privileges => {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(Reply::Attr { attr: attr(*ino), lease: None })
        }
        _ => Err(Errno::EIO),
    });
    let flags = (libc::O_WRONLY | libc::O_TRUNC).cast_unsigned();
    for (kill_privileges, expected) in [(false, 0), (true, 1)] {
        bench.serve(Operation::Open(OpenFlags { flags, kill_privileges })).unwrap();
        assert_eq!(killed.load(std::sync::atomic::Ordering::SeqCst), expected);
    }
}

#[test]
fn appended_data_that_landed_elsewhere_is_dropped_from_leased_pages() {
    let options = FrontOptions { page_caching: PageCaching::Leased };
    let mut bench = Bench::new(options, |_| Ok(Reply::Written { len: 3, size: 103 }));
    let write = |offset| {
        Operation::Write(Write {
            open: 1,
            offset,
            len: 3,
            kill_privileges: false,
            append: true,
            write_back: false,
            direct: false,
            sync: false,
        })
    };
    assert_eq!(bench.serve(write(100)), Ok(Outcome::Body));
    assert_eq!(bench.serve(write(50)), Ok(Outcome::Misplaced));
}

/// Names in the listing, with their offsets.
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
fn entries_of_one_cookie_are_never_torn_apart() {
    let cookies = [10, 20, 20, 20, 30];
    let mut bench = Bench::new(FrontOptions::default(), move |request| {
        let Request::ReadDir { cookie, .. } = request else { return Err(Errno::EIO) };
        let entry = |(index, &cookie): (usize, &u64)| DirEntry {
            ino: Ino(100),
            kind: FileKind::Regular,
            cookie,
            name: FileName::new(format!("f{index}").as_bytes()).unwrap(),
        };
        let after = |entry: &DirEntry| entry.cookie > *cookie;
        let entries = cookies.iter().enumerate().map(entry).filter(after).collect();
        Ok(Reply::Listing { parent: Ino::ROOT, entries, end: true })
    });
    // Room for five records of 32 bytes: two dots, f0, and two of the three that belong together.
    let mut offset = 0;
    let mut names = Vec::new();
    loop {
        bench.serve(Operation::ReadDir { offset, len: 5 * 32 }).unwrap();
        let page = listed(&bench.body);
        let Some((last, _)) = page.last() else { break };
        offset = *last;
        names.extend(page.into_iter().map(|(_, name)| String::from_utf8(name).unwrap()));
    }
    assert_eq!(names, [".", "..", "f0", "f1", "f2", "f3", "f4"]);
}

#[test]
fn a_listing_goes_on_after_each_dot() {
    let mut bench = Bench::new(FrontOptions::default(), |_| {
        Ok(Reply::Listing { parent: Ino(7), entries: Vec::new(), end: true })
    });
    for (offset, expected) in [(0, 2), (1, 1), (2, 0)] {
        bench.serve(Operation::ReadDir { offset, len: 4096 }).unwrap();
        assert_eq!(listed(&bench.body).len(), expected);
    }
}

#[test]
fn closing_without_locks_asks_nobody() {
    let mut bench = Bench::new(FrontOptions::default(), |request| match request {
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
    bench.serve(Operation::Lock { open: 4, spec, wait: false }).unwrap();
    assert_eq!(bench.serve(Operation::Flush { owner: LockOwner(2) }), Ok(Outcome::Body));
    assert_eq!(bench.serve(Operation::Flush { owner: LockOwner(1) }), Ok(Outcome::Body));
}

#[test]
fn capabilities_are_denied_without_a_cell() {
    let mut bench = Bench::new(FrontOptions::default(), |_| Err(Errno::EIO));
    let mut get = |name: &[u8]| {
        let name = warren_proto::XattrName::new(name).unwrap();
        bench.serve(Operation::GetXattr { name, len: 0 })
    };
    assert_eq!(get(b"security.capability"), Err(Errno::ENODATA));
    assert_eq!(get(b"system.posix_acl_access"), Err(Errno::EOPNOTSUPP));
    assert_eq!(get(b"user.x"), Err(Errno::EIO), "that one was asked for");
}

/// `open` with these flags, by root, of a name that another mount has just made for such a file: the
/// result, and whether it was cut, and whether it is closed again.
fn open_made_elsewhere(theirs: Attr, flags: i32) -> (Result<Outcome, Errno>, bool, bool) {
    let seen = Arc::new(Mutex::new((false, false)));
    let noted = Arc::clone(&seen);
    let handle = Handle { ino: theirs.ino, open: 9 };
    let mut bench = Bench::new(FrontOptions::default(), move |request| match request {
        Request::Create { flags, .. } if flags.contains(CreateFlags::EXCLUSIVE) => {
            Err(Errno::EEXIST)
        }
        Request::Create { access, .. } => {
            assert!(!access.contains(AccessMode::TRUNCATE), "before it is known whose it is");
            let entry = Entry { ino: theirs.ino, kind: theirs.kind, lease: None, attr: None };
            let opened = Some(Opened { handle, attr: theirs, keep_pages: true, direct: false });
            Ok(Reply::Created { entry, opened: opened.map(Box::new) })
        }
        Request::SetAttr { set, .. } => {
            assert_eq!(set.size, Some(0));
            noted.lock().unwrap().0 = true;
            Ok(Reply::Attr { attr: theirs, lease: None })
        }
        Request::Close { .. } => {
            noted.lock().unwrap().1 = true;
            Ok(Reply::Done)
        }
        other => panic!("not asked for: {other:?}"),
    });
    let flags = OpenFlags { flags: flags.cast_unsigned(), kill_privileges: false };
    let name = FileName::new(b"theirs").unwrap();
    let served = bench.serve(Operation::Create(Create { name, mode: 0o100_600, flags }));
    let (cut, closed) = *seen.lock().unwrap();
    (served, cut, closed)
}

#[test]
fn what_another_mount_made_meanwhile_is_opened_if_it_is_the_callers_own() {
    let create = libc::O_CREAT | libc::O_RDWR;
    let own = attr(Ino(5));
    assert_eq!(open_made_elsewhere(own, create), (Ok(Outcome::Body), false, false));
    let cut = open_made_elsewhere(own, create | libc::O_TRUNC);
    assert_eq!(cut, (Ok(Outcome::Body), true, false));
    let exclusive = open_made_elsewhere(own, create | libc::O_EXCL);
    assert_eq!(exclusive, (Err(Errno::EEXIST), false, false));
}

#[test]
fn what_another_mount_made_meanwhile_is_not_opened_unchecked() {
    let create = libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC;
    let own = attr(Ino(5));
    for theirs in [
        Attr { uid: 7, mode: 0o666, ..own },
        Attr { mode: 0o400, ..own },
        Attr { kind: FileKind::Symlink, ..own },
        Attr { kind: FileKind::Fifo, ..own },
    ] {
        let refused = open_made_elsewhere(theirs, create);
        assert_eq!(refused, (Err(Errno::ESTALE), false, true), "{theirs:?}");
    }
}
