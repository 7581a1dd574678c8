//! Compares the model with the behaviour of Linux, in scripted calls.

use std::rc::Rc;

use warren_base::{ClientId, Errno, Ino, Timestamp};
use warren_proto::{
    AccessMode, Attr, ByteRange, CreateFlags, Credentials, DirEntries, DirEntry, Entry, FileKind,
    FileName, Handle, LockFlavour, LockOwner, LockSpec, LockType, NewInode, Opened, Position,
    ReadFlags, RenameFlags, Reply, Request, SetAttr, SetTime, XattrMode, XattrName,
};

use super::{Refusal, Rules, State};
use crate::history::{Action, Excuses, Operation, Outcome, Window};

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid, groups: groups.to_vec(), checked_by_kernel: false }
}

/// Consecutive calls, each of which must be legal with the stated outcome.
struct Script {
    state: State,
    clock: i64,
    next_ino: u64,
    who: Credentials,
    excuses: Excuses,
}

impl Script {
    fn new() -> Self {
        let state = State::new(0, 0, Timestamp(0));
        Self { state, clock: 0, next_ino: 2, who: who(0, 0, &[]), excuses: Excuses::default() }
    }

    fn attempt(
        &self,
        request: &Request,
        sent: &[u8],
        answer: Result<Reply, Errno>,
        got: &[u8],
    ) -> Result<State, Refusal> {
        let mut operation = self.operation(request, answer);
        operation.payload = Rc::from(sent);
        operation.outcome.as_mut().unwrap().payload = Rc::from(got);
        self.state.step(&operation, &Rules::default())
    }

    fn operation(&self, request: &Request, answer: Result<Reply, Errno>) -> Operation {
        let window =
            Window { from: Timestamp(self.clock), to: Timestamp(self.clock + 9), steps: false };
        Operation {
            process: 0,
            client: ClientId(self.who.uid),
            credentials: Rc::new(self.who.clone()),
            action: Action::Request(request.clone()),
            payload: Rc::from([]),
            invoked: 0,
            returned: 1,
            hint: 0,
            window,
            excuses: self.excuses,
            outcome: Some(Outcome::of(answer)),
        }
    }

    #[track_caller]
    fn with_bytes(&mut self, request: Request, sent: &[u8], reply: Reply, got: &[u8]) {
        self.clock += 10;
        match self.attempt(&request, sent, Ok(reply), got) {
            Ok(state) => self.state = state,
            Err(refusal) => panic!("{request:?} is refused: {refusal:?}"),
        }
    }

    #[track_caller]
    fn ok(&mut self, request: Request, reply: Reply) {
        self.with_bytes(request, &[], reply, &[]);
    }

    /// The call must fail with this error and with no other, and must not succeed.
    #[track_caller]
    fn fails(&mut self, request: Request, errno: Errno) {
        let before = self.state.fingerprint();
        match self.attempt(&request, &[], Err(errno), &[]) {
            Ok(state) => assert_eq!(state.fingerprint(), before, "a failure changes nothing"),
            Err(refusal) => panic!("{request:?}: {errno:?} is refused: {refusal:?}"),
        }
        let other = self.attempt(&request, &[], Err(Errno::EPROTO), &[]).unwrap_err();
        assert_eq!(other, Refusal::MustFail(errno));
        assert!(self.attempt(&request, &[], Ok(Reply::Done), &[]).is_err());
    }

    fn entry(&self, ino: Ino, kind: FileKind) -> Entry {
        Entry { ino, kind, lease: None, attr: None }
    }

    #[track_caller]
    fn make(&mut self, dir: Ino, text: &str, new: NewInode) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let entry = self.entry(ino, new.kind);
        self.ok(create(dir, text, new), Reply::Created { entry, opened: None });
        ino
    }

    fn dir(&mut self, dir: Ino, text: &str, mode: u16) -> Ino {
        self.make(dir, text, NewInode::directory(mode))
    }

    fn file(&mut self, dir: Ino, text: &str, mode: u16) -> Ino {
        self.make(dir, text, NewInode::regular(mode))
    }

    /// The required result of `stat`; the times are ones that the model allows.
    fn attr(&self, ino: Ino) -> Attr {
        let inode = self.state.get(ino).expect("alive");
        Attr {
            ino,
            kind: inode.kind,
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size(),
            blocks: inode.blocks().unwrap_or(0),
            atime: inode.atime.earliest(),
            mtime: inode.mtime.earliest(),
            ctime: inode.ctime.earliest(),
            btime: inode.btime.earliest(),
            flags: warren_base::InodeFlags::empty(),
        }
    }

    #[track_caller]
    fn open(&mut self, ino: Ino, access: AccessMode) -> Handle {
        let handle = Handle { ino, open: self.next_ino };
        self.next_ino += 1;
        let attr = self.attr(ino);
        let opened = Opened { handle, attr, keep_pages: false, direct: false, kept: None };
        self.ok(Request::Open { ino, access }, Reply::Opened(opened));
        handle
    }

    #[track_caller]
    fn write(&mut self, handle: Handle, position: Position, bytes: &[u8], size: u64) {
        let request = Request::Write {
            handle,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        self.with_bytes(request, bytes, Reply::Written { len: bytes.len() as u32, size }, &[]);
    }

    #[track_caller]
    fn read(&mut self, handle: Handle, position: Position, bytes: &[u8]) {
        let request = Request::Read { handle, position, len: 100, flags: ReadFlags::empty() };
        self.with_bytes(request, &[], Reply::Read { len: bytes.len() as u32 }, bytes);
    }

    fn by(&mut self, uid: u32, gid: u32, groups: &[u32]) {
        self.who = who(uid, gid, groups);
    }

    fn chmod(&mut self, ino: Ino, mode: u16) {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.ok(Request::SetAttr { ino, handle: None, set }, Reply::Done);
    }
}

fn create(dir: Ino, text: &str, new: NewInode) -> Request {
    let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::empty());
    Request::Create { dir, name: name(text), new, flags, access }
}

fn unlink(dir: Ino, text: &str) -> Request {
    Request::Unlink { dir, name: name(text) }
}

fn rmdir(dir: Ino, text: &str) -> Request {
    Request::Rmdir { dir, name: name(text) }
}

fn lookup(dir: Ino, text: &str) -> Request {
    Request::Lookup { dir, name: name(text) }
}

fn rename(from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Request {
    let (from, from_name) = (from.0, name(from.1));
    Request::Rename { from, from_name, dir: to.0, name: name(to.1), flags }
}

const ROOT: Ino = Ino::ROOT;
const PLAIN: RenameFlags = RenameFlags::empty();

#[test]
fn names_come_and_go() {
    let mut script = Script::new();
    let file = script.file(ROOT, "a", 0o644);
    script.fails(create(ROOT, "a", NewInode::regular(0o644)), Errno::EEXIST);
    script.fails(lookup(ROOT, "b"), Errno::ENOENT);
    script.fails(lookup(file, "b"), Errno::ENOTDIR);
    script.fails(rmdir(ROOT, "a"), Errno::ENOTDIR);
    let sub = script.dir(ROOT, "d", 0o755);
    script.fails(unlink(ROOT, "d"), Errno::EISDIR);
    script.file(sub, "x", 0o644);
    script.fails(rmdir(ROOT, "d"), Errno::ENOTEMPTY);
    assert_eq!(script.attr(ROOT).nlink, 3);
    script.ok(unlink(sub, "x"), Reply::Done);
    script.ok(rmdir(ROOT, "d"), Reply::Done);
    assert_eq!(script.attr(ROOT).nlink, 2);
    script.fails(create(sub, "x", NewInode::regular(0o644)), Errno::ESTALE);
}

#[test]
fn a_removed_directory_that_is_open_takes_no_names() {
    let mut script = Script::new();
    let sub = script.dir(ROOT, "d", 0o755);
    let handle = script.open(sub, AccessMode::READ);
    script.ok(rmdir(ROOT, "d"), Reply::Done);
    script.fails(create(sub, "x", NewInode::regular(0o644)), Errno::ENOENT);
    let listing = Request::ReadDir { dir: sub, cookie: 0, bytes_max: 99, leased: false };
    assert!(script.attempt(&listing, &[], Err(Errno::ENOENT), &[]).is_ok());
    let (parent, entries) = (ROOT, DirEntries::new());
    script.ok(listing, Reply::Listing { parent, entries, end: true, lease: None });
    script.ok(Request::Close { handle }, Reply::Done);
    assert!(script.state.get(sub).is_none());
}

#[test]
fn unlinked_open_files_keep_their_bytes() {
    let mut script = Script::new();
    let file = script.file(ROOT, "a", 0o600);
    let handle = script.open(file, AccessMode::READ | AccessMode::WRITE);
    script.write(handle, Position::Current, b"hello", 5);
    script.ok(unlink(ROOT, "a"), Reply::Done);
    assert_eq!(script.attr(file).nlink, 0);
    script.read(handle, Position::Current, b"");
    script.read(handle, Position::At(1), b"ello");
    script.fails(Request::Link { ino: file, dir: ROOT, name: name("b") }, Errno::ENOENT);
    script.ok(Request::Close { handle }, Reply::Done);
    script.fails(Request::GetAttr { ino: file }, Errno::ESTALE);
    script.fails(
        Request::Read { handle, position: Position::Current, len: 1, flags: ReadFlags::empty() },
        Errno::EBADF,
    );
}

#[test]
fn offsets_follow_reads_writes_appends_and_seeks() {
    let mut script = Script::new();
    let file = script.file(ROOT, "a", 0o600);
    let handle = script.open(file, AccessMode::READ | AccessMode::WRITE);
    script.write(handle, Position::Current, b"0123", 4);
    script.write(handle, Position::At(0), b"x", 4);
    script.write(handle, Position::Current, b"4", 5);
    script.ok(Request::Seek { handle, position: 1 }, Reply::Done);
    script.read(handle, Position::Current, b"1234");
    script.ok(Request::Seek { handle, position: 0 }, Reply::Done);
    script.write(handle, Position::End, b"56", 7);
    script.read(handle, Position::Current, b"");
    let reads = script.open(file, AccessMode::READ);
    let request = Request::Write {
        handle: reads,
        position: Position::At(0),
        kill_privileges: false,
        write_back: false,
        direct: false,
    };
    script.fails(request, Errno::EBADF);
    script.by(7, 7, &[]);
    script.fails(Request::Close { handle: reads }, Errno::EBADF);
}

#[test]
fn wrong_bytes_sizes_and_times_are_seen() {
    let mut script = Script::new();
    let file = script.file(ROOT, "a", 0o600);
    let handle = script.open(file, AccessMode::READ | AccessMode::WRITE);
    script.write(handle, Position::Current, b"hello", 5);
    let read =
        Request::Read { handle, position: Position::At(0), len: 5, flags: ReadFlags::empty() };
    let wrong = script.attempt(&read, &[], Ok(Reply::Read { len: 5 }), b"hellO");
    assert_eq!(wrong.unwrap_err(), Refusal::Differs("the bytes read"));
    let attr = script.attr(file);
    let stat = Request::GetAttr { ino: file };
    let as_seen = |attr| script.attempt(&stat, &[], Ok(Reply::Attr { attr, lease: None }), &[]);
    assert!(as_seen(attr).is_ok());
    let later = Timestamp(attr.mtime.0 + 10);
    assert!(as_seen(Attr { mtime: later, ..attr }).is_err());
    assert!(as_seen(Attr { size: 4, ..attr }).is_err());
    assert!(as_seen(Attr { blocks: 2, ..attr }).is_err());
    assert!(as_seen(Attr { nlink: 2, ..attr }).is_err());
}

#[test]
fn renames_fail_in_the_order_of_linux() {
    let mut script = Script::new();
    let top = script.dir(ROOT, "top", 0o755);
    let sub = script.dir(top, "sub", 0o755);
    script.file(ROOT, "f", 0o644);
    script.dir(ROOT, "empty", 0o755);
    script.fails(rename((ROOT, "no"), (sub, "x"), PLAIN), Errno::ENOENT);
    script.fails(rename((ROOT, "top"), (sub, "x"), PLAIN), Errno::EINVAL);
    script.fails(rename((sub, "x"), (ROOT, "top"), PLAIN), Errno::ENOENT);
    script.file(sub, "x", 0o644);
    script.fails(rename((sub, "x"), (ROOT, "top"), PLAIN), Errno::ENOTEMPTY);
    script.fails(rename((sub, "x"), (ROOT, "top"), RenameFlags::EXCHANGE), Errno::EINVAL);
    script.fails(rename((ROOT, "f"), (ROOT, "top"), PLAIN), Errno::EISDIR);
    script.fails(rename((ROOT, "top"), (ROOT, "f"), PLAIN), Errno::ENOTDIR);
    script.fails(rename((ROOT, "empty"), (ROOT, "top"), PLAIN), Errno::ENOTEMPTY);
    script.fails(rename((ROOT, "f"), (sub, "x"), RenameFlags::NOREPLACE), Errno::EEXIST);
    script.fails(rename((ROOT, "f"), (sub, "y"), RenameFlags::EXCHANGE), Errno::ENOENT);
    script.fails(rename((ROOT, "f"), (sub, "x"), RenameFlags::all()), Errno::EINVAL);
    script.ok(rename((ROOT, "top"), (ROOT, "empty"), PLAIN), Reply::Done);
    assert_eq!(script.attr(ROOT).nlink, 3);
    script.fails(lookup(ROOT, "top"), Errno::ENOENT);
}

#[test]
fn exchange_swaps_a_file_and_a_directory_over_parents() {
    let mut script = Script::new();
    let left = script.dir(ROOT, "left", 0o755);
    let right = script.dir(ROOT, "right", 0o755);
    let file = script.file(left, "a", 0o644);
    let sub = script.dir(right, "b", 0o755);
    script.ok(rename((left, "a"), (right, "b"), RenameFlags::EXCHANGE), Reply::Done);
    let entry = script.entry(sub, FileKind::Directory);
    script.ok(lookup(left, "a"), Reply::Entry(entry));
    let entry = script.entry(file, FileKind::Regular);
    script.ok(lookup(right, "b"), Reply::Entry(entry));
    assert_eq!((script.attr(left).nlink, script.attr(right).nlink), (3, 2));
    script.fails(rename((ROOT, "left"), (sub, "x"), PLAIN), Errno::EINVAL);
}

#[test]
fn two_names_of_one_inode_stay_as_they_are() {
    let mut script = Script::new();
    let file = script.file(ROOT, "a", 0o644);
    script.ok(Request::Link { ino: file, dir: ROOT, name: name("b") }, Reply::Done);
    script.by(7, 7, &[]);
    let before = script.state.fingerprint();
    script.ok(rename((ROOT, "a"), (ROOT, "b"), PLAIN), Reply::Unchanged);
    assert_eq!(script.state.fingerprint(), before);
    script.fails(rename((ROOT, "a"), (ROOT, "c"), PLAIN), Errno::EACCES);
}

#[test]
fn modes_owners_groups_and_sticky_bits_decide() {
    let mut script = Script::new();
    let shared = script.dir(ROOT, "shared", 0o777);
    script.chmod(shared, 0o1777);
    let closed = script.dir(ROOT, "closed", 0o700);
    script.by(10, 10, &[50]);
    script.file(shared, "mine", 0o640);
    script.fails(lookup(closed, "x"), Errno::EACCES);
    script.fails(create(ROOT, "x", NewInode::regular(0o644)), Errno::EACCES);
    script.fails(create(ROOT, "shared", NewInode::directory(0o755)), Errno::EEXIST);
    script.by(11, 10, &[]);
    script.fails(unlink(shared, "mine"), Errno::EPERM);
    script.fails(rename((shared, "mine"), (shared, "other"), PLAIN), Errno::EPERM);
    let mine = Ino(script.next_ino - 1);
    script.fails(Request::Open { ino: mine, access: AccessMode::WRITE }, Errno::EACCES);
    script.open(mine, AccessMode::READ);
    script.by(12, 12, &[]);
    script.fails(Request::Open { ino: mine, access: AccessMode::READ }, Errno::EACCES);
    script.by(10, 10, &[50]);
    let give = SetAttr { uid: Some(11), ..SetAttr::default() };
    script.fails(Request::SetAttr { ino: mine, handle: None, set: give }, Errno::EPERM);
    let group = SetAttr { gid: Some(50), ..SetAttr::default() };
    script.ok(Request::SetAttr { ino: mine, handle: None, set: group }, Reply::Done);
    assert_eq!(script.attr(mine).gid, 50);
    script.ok(unlink(shared, "mine"), Reply::Done);
}

#[test]
fn set_group_directories_pass_their_group_on() {
    let mut script = Script::new();
    let dir = script.dir(ROOT, "d", 0o777);
    let set = SetAttr { gid: Some(77), mode: Some(0o2777), ..SetAttr::default() };
    script.ok(Request::SetAttr { ino: dir, handle: None, set }, Reply::Done);
    script.by(10, 10, &[]);
    let sub = script.dir(dir, "sub", 0o755);
    let file = script.file(dir, "f", 0o2755);
    assert_eq!((script.attr(sub).gid, script.attr(sub).mode), (77, 0o2755));
    assert_eq!((script.attr(file).gid, script.attr(file).mode), (77, 0o755));
    script.chmod(file, 0o4711);
    let handle = script.open(file, AccessMode::WRITE);
    script.write(handle, Position::End, b"x", 1);
    assert_eq!(script.attr(file).mode, 0o711, "a write takes the set-id bits away");
}

#[test]
fn times_are_the_owners_but_for_now_and_now() {
    let mut script = Script::new();
    let file = script.file(ROOT, "f", 0o666);
    script.by(10, 10, &[]);
    let at = Some(SetTime::At(Timestamp(5)));
    let set = |atime, mtime| {
        let set = SetAttr { atime, mtime, ..SetAttr::default() };
        Request::SetAttr { ino: file, handle: None, set }
    };
    script.fails(set(at, at), Errno::EPERM);
    script.fails(set(Some(SetTime::Now), None), Errno::EPERM);
    script.ok(set(Some(SetTime::Now), Some(SetTime::Now)), Reply::Done);
    script.by(0, 0, &[]);
    script.ok(set(at, None), Reply::Done);
    assert_eq!(script.attr(file).atime, Timestamp(5));
}

#[test]
fn truncation_needs_the_right_to_write_or_a_handle_with_it() {
    let mut script = Script::new();
    let file = script.file(ROOT, "f", 0o444);
    let dir = script.dir(ROOT, "d", 0o777);
    let set = SetAttr { size: Some(9), ..SetAttr::default() };
    script.by(10, 10, &[]);
    let path = |ino| Request::SetAttr { ino, handle: None, set };
    script.fails(path(file), Errno::EACCES);
    script.fails(path(dir), Errno::EISDIR);
    let handle = Some(script.open(file, AccessMode::READ));
    script.fails(Request::SetAttr { ino: file, handle, set }, Errno::EINVAL);
    script.by(0, 0, &[]);
    script.ok(path(file), Reply::Done);
    assert_eq!((script.attr(file).size, script.attr(file).blocks), (9, 0));
}

#[test]
fn extended_attributes_have_their_errors() {
    let mut script = Script::new();
    let file = script.file(ROOT, "f", 0o644);
    let key = XattrName::new(b"user.k").unwrap();
    let link = script.make(ROOT, "s", NewInode::symlink(b"f"));
    let set = |ino, mode| Request::SetXattr {
        ino,
        name: key.clone(),
        value: [1].into(),
        mode,
        kill_set_gid: false,
    };
    let get = Request::GetXattr { ino: file, name: key.clone() };
    script.fails(get.clone(), Errno::ENODATA);
    script.fails(set(file, XattrMode::Replace), Errno::ENODATA);
    script.ok(set(file, XattrMode::Create), Reply::Done);
    script.fails(set(file, XattrMode::Create), Errno::EEXIST);
    script.ok(get, Reply::Xattr([1].into()));
    script.fails(set(link, XattrMode::Any), Errno::EPERM);
    script.ok(Request::ListXattr { ino: file }, Reply::XattrNames(vec![b"user.k"[..].into()]));
    script.by(9, 9, &[]);
    script.fails(set(file, XattrMode::Any), Errno::EACCES);
}

#[test]
fn a_lock_is_granted_only_without_a_conflict() {
    let mut script = Script::new();
    let file = script.file(ROOT, "f", 0o666);
    let spec = |owner, lock, start, end| LockSpec {
        flavour: LockFlavour::Record,
        owner: LockOwner(owner),
        lock,
        range: ByteRange { start, end },
        pid: owner as u32,
    };
    let handle = script.open(file, AccessMode::READ | AccessMode::WRITE);
    let lock = |spec, wait| Request::Lock { handle, spec, wait };
    let exclusive = spec(1, LockType::Exclusive, 0, 9);
    script.ok(lock(exclusive, false), Reply::Done);
    let other = spec(2, LockType::Shared, 5, 20);
    script.fails(lock(other, false), Errno::EAGAIN);
    let waits = lock(other, true);
    assert!(script.attempt(&waits, &[], Ok(Reply::Done), &[]).is_err());
    let test = Request::TestLock { handle, spec: other };
    script.ok(test.clone(), Reply::LockHolder(Some(exclusive)));
    script.ok(lock(spec(1, LockType::Unlock, 5, 9), false), Reply::Done);
    script.ok(test, Reply::LockHolder(None));
    script.ok(waits, Reply::Done);
}

#[test]
fn a_listing_page_holds_what_lies_between_its_cookies() {
    let mut script = Script::new();
    let a = script.file(ROOT, "a", 0o644);
    let b = script.file(ROOT, "b", 0o644);
    let mut rules = Rules::default();
    assert!(rules.cookies.insert(b"a", 10) && rules.cookies.insert(b"b", 20));
    assert!(!rules.cookies.insert(b"a", 11));
    let entry =
        |ino, cookie, text| DirEntry { ino, kind: FileKind::Regular, cookie, name: name(text) };
    let (a, b) = (entry(a, 10, "a"), entry(b, 20, "b"));
    let mut page = |cookie, entries: &[&DirEntry], end| {
        let entries = entries.iter().copied().cloned().collect();
        let answer = Ok(Reply::Listing { parent: ROOT, entries, end, lease: None });
        let request = Request::ReadDir { dir: ROOT, cookie, bytes_max: 1, leased: false };
        script.clock += 10;
        script.state.step(&script.operation(&request, answer), &rules).is_ok()
    };
    assert!(page(0, &[&a, &b], true));
    assert!(page(0, &[&a], false));
    assert!(page(10, &[&b], true));
    assert!(!page(0, &[&b], true), "a is missing");
    assert!(!page(0, &[&a], true), "b is missing");
    assert!(!page(0, &[&b, &a], true), "out of order");
    assert!(!page(10, &[&a, &b], true), "a lies before");
    assert!(!page(0, &[&a, &a], true), "a twice");
}

#[test]
fn an_error_of_the_harness_is_excused_and_changes_nothing() {
    let mut script = Script::new();
    let request = create(ROOT, "a", NewInode::regular(0o644));
    assert!(script.attempt(&request, &[], Err(Errno::ENOSPC), &[]).is_err());
    script.excuses = Excuses::NO_SPACE;
    let state = script.attempt(&request, &[], Err(Errno::ENOSPC), &[]).unwrap();
    assert_eq!(state.fingerprint(), script.state.fingerprint());
    assert!(script.attempt(&request, &[], Err(Errno::EIO), &[]).is_err());
}
