//! After a failed flush no change could be kept. So changes are refused, and everything else
//! continues.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino, Timestamp};
use warren_cell::Event;
use warren_proto::control::Order;
use warren_proto::{
    AccessMode, CreateFlags, FileKind, Handle, NewInode, Position, ReadFlags, Reply, Request,
    Rules, SetAttr, SetTime,
};

use crate::bench::{Bench, CLIENT, FILE, Image, create, name};

fn open(bench: &mut Bench, access: AccessMode) -> Result<Handle, Errno> {
    match bench.call(Request::Open { ino: FILE, access })? {
        Reply::Opened(opened) => Ok(opened.handle),
        other => panic!("{other:?}"),
    }
}

fn write(handle: Handle, page: u64) -> Request {
    let position = Position::At(page * BLOCK_SIZE as u64);
    Request::Write { handle, position, kill_privileges: false, write_back: false, direct: false }
}

fn changes(handle: Handle) -> Vec<Request> {
    let dir = Ino::ROOT;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    vec![
        write(handle, 0),
        create(dir, "new", FileKind::Regular),
        create(dir, "new", FileKind::Directory),
        Request::Unlink { dir, name: name("file") },
        Request::Rmdir { dir, name: name("dir") },
        Request::SetAttr { ino: FILE, handle: None, set },
        Request::Open { ino: FILE, access: AccessMode::WRITE },
        Request::Link { ino: FILE, dir, name: name("new") },
    ]
}

fn breaks(bench: &mut Bench) {
    bench.broken_device = true;
    bench.apply(Event::Order(Order::ReadOnly { errno: Errno::EIO }));
}

/// The rules of the client that the bench asks as.
fn rule(bench: &mut Bench, rules: Rules) {
    bench.apply(Event::Order(Order::Rule { client: CLIENT, rules }));
}

#[test]
fn a_client_without_the_right_changes_nothing() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench, AccessMode::READ | AccessMode::WRITE).expect("opened");
    rule(&mut bench, Rules::READ_ONLY);
    let (flags, access) = (CreateFlags::OPEN, AccessMode::READ);
    let new = NewInode::regular(0o600);
    let may_open = Request::Create { dir: Ino::ROOT, name: name("new"), new, flags, access };
    for request in changes(handle).into_iter().chain([may_open.clone()]) {
        let asked = format!("{request:?}");
        assert_eq!(bench.call(request), Err(Errno::EROFS), "{asked}");
    }
    assert!(bench.call(Request::GetAttr { ino: FILE }).is_ok());
    open(&mut bench, AccessMode::READ).expect("it reads");
    rule(&mut bench, Rules::empty());
    assert!(bench.call(may_open).is_ok() && bench.call(write(handle, 0)).is_ok());
}

/// The access time after a read by a client with these rules, if it was this before. The bench's
/// clock stands at 1, and so does the time of the last change.
fn read_at(bench: &mut Bench, handle: Handle, rules: Rules, atime: i64) -> i64 {
    rule(bench, Rules::empty());
    let atime = Some(SetTime::At(Timestamp(atime)));
    let set = SetAttr { atime, ..SetAttr::default() };
    bench.call(Request::SetAttr { ino: FILE, handle: None, set }).expect("set");
    rule(bench, rules);
    let position = Position::At(0);
    bench
        .call(Request::Read { handle, position, len: 9, flags: ReadFlags::empty() })
        .expect("read");
    match bench.call(Request::GetAttr { ino: FILE }) {
        Ok(Reply::Attr { attr, .. }) => attr.atime.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_set_access_times_by_the_rules_of_their_client() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench, AccessMode::READ | AccessMode::WRITE).expect("opened");
    bench.call(write(handle, 0)).expect("written");
    for (rules, of_old, of_new) in [
        (Rules::empty(), 1, 100),
        (Rules::STRICT_ATIME, 1, 1),
        (Rules::NO_ATIME, -5, 100),
        (Rules::READ_ONLY, -5, 100),
    ] {
        assert_eq!(read_at(&mut bench, handle, rules, -5), of_old, "{rules:?}");
        assert_eq!(read_at(&mut bench, handle, rules, 100), of_new, "{rules:?}");
    }
}

#[test]
fn files_that_are_open_for_writing_are_counted() {
    let mut bench = Bench::new(&Image::new(), false);
    let read = open(&mut bench, AccessMode::READ).expect("opened");
    assert_eq!(bench.files_written(), 0);
    let written = open(&mut bench, AccessMode::WRITE).expect("opened");
    assert_eq!(bench.files_written(), 1);
    for handle in [read, written] {
        bench.call(Request::Close { handle }).expect("closed");
    }
    assert_eq!(bench.files_written(), 0);
}

#[test]
fn changes_are_refused_and_reads_go_on() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench, AccessMode::READ | AccessMode::WRITE).expect("opened");
    assert!(bench.call(write(handle, 3)).is_ok());
    breaks(&mut bench);
    for request in changes(handle) {
        let asked = format!("{request:?}");
        assert_eq!(bench.call(request), Err(Errno::EROFS), "{asked}");
    }
    let read = Request::Read {
        handle,
        position: Position::At(3 * BLOCK_SIZE as u64),
        len: 100,
        flags: ReadFlags::empty(),
    };
    assert_eq!(bench.call(read), Ok(Reply::Read { len: 100 }));
    assert!(bench.call(Request::GetAttr { ino: FILE }).is_ok());
    let list = Request::ReadDir { dir: Ino::ROOT, cookie: 0, bytes_max: 4096, leased: false };
    assert!(bench.call(list).is_ok());
    let (flags, access) = (CreateFlags::OPEN, AccessMode::READ);
    let (dir, new) = (Ino::ROOT, NewInode::regular(0o644));
    let found = Request::Create { dir, name: name("file"), new, flags, access };
    assert!(matches!(bench.call(found), Ok(Reply::Created { .. })));
    assert_eq!(
        bench.call(Request::Fsync { ino: FILE, handle: Some(handle), data_only: false }),
        Err(Errno::EIO)
    );
    assert_eq!(bench.call(Request::Sync), Err(Errno::EIO));
}

/// A change and an open wait for room in the log.
fn with_a_full_log() -> (Bench, Handle) {
    let mut bench = Bench::new(&Image::new(), false);
    bench.grants = false;
    let handle = open(&mut bench, AccessMode::READ | AccessMode::WRITE).expect("opened");
    let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let chmod = |mode| Request::SetAttr { ino: FILE, handle: None, set: set(mode) };
    while bench.ask(chmod(0o644)).is_some() {}
    assert_eq!(
        bench.ask(Request::Open { ino: FILE, access: AccessMode::READ }),
        None,
        "the log is full"
    );
    bench.grants = true;
    (bench, handle)
}

#[test]
fn reads_and_opens_go_on_with_a_full_log() {
    let (mut bench, handle) = with_a_full_log();
    breaks(&mut bench);
    // The waiting requests are answered: the change is refused, the open is done.
    let answers: Vec<_> = bench.answers.values().map(Result::is_ok).collect();
    assert_eq!(answers, [false, true]);
    bench.answers.clear();
    for _ in 0..5000 {
        let opened = open(&mut bench, AccessMode::READ).expect("opened");
        assert_eq!(bench.call(Request::Close { handle: opened }), Ok(Reply::Done));
        let read = Request::Read {
            handle,
            position: Position::Current,
            len: 1,
            flags: ReadFlags::empty(),
        };
        assert!(bench.call(read).is_ok());
    }
}

/// The device refuses checkpoints, and no flush has failed.
#[test]
fn opens_wait_for_one_more_checkpoint_and_go_on_without() {
    for refused in 1..=3 {
        let (mut bench, _) = with_a_full_log();
        bench.refused = refused;
        bench.begin_checkpoint();
        let answers: Vec<_> = bench.answers.values().map(|answer| answer.clone().err()).collect();
        let is_read_only = refused > 1;
        assert_eq!(answers, [is_read_only.then_some(Errno::EIO), None], "{refused} refused");
        bench.answers.clear();
        let opened = open(&mut bench, AccessMode::READ).expect("opened");
        assert_eq!(bench.call(Request::Close { handle: opened }), Ok(Reply::Done));
        let wanted = if is_read_only { Err(Errno::EROFS) } else { Ok(()) };
        assert_eq!(open(&mut bench, AccessMode::WRITE).map(drop), wanted);
    }
}
