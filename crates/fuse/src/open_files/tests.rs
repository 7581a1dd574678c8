use warren_base::Timestamp;
use warren_proto::{Attr, FileKind, Lease};

use super::*;
use crate::testing::ScriptedFleet;

const FILE: Ino = Ino(5);
const CELL: CellId = CellId(0);
const READ: AccessMode = AccessMode::READ;

/// A fleet, what a front leaves to its successor, and the front's open files.
struct Bench {
    fleet: ScriptedFleet,
    state: Arc<FrontState>,
    files: OpenFiles,
    next: u64,
}

fn attr(ino: Ino) -> Attr {
    let time = Timestamp(0);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let kind = FileKind::Regular;
    let (mode, nlink, uid, gid, rdev, size, blocks) = (0o600, 1, 0, 0, 0, 0, 0);
    Attr {
        ino,
        kind,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size,
        blocks,
        atime,
        mtime,
        ctime,
        btime,
        flags: warren_base::InodeFlags::empty(),
    }
}

impl Bench {
    fn new() -> Self {
        let fleet = ScriptedFleet::new(1, |_, _| Err(Errno::EIO));
        let state = Arc::new(FrontState::create().unwrap());
        let files = OpenFiles::new(Arc::new(fleet.clone()), Arc::clone(&state));
        Self { fleet, state, files, next: 1 }
    }

    fn restart(&mut self) {
        self.files = OpenFiles::new(Arc::new(self.fleet.clone()), Arc::clone(&self.state));
    }

    fn set_word(&self, ino: Ino, stamp: u64) {
        self.fleet.words.lock().unwrap().insert(ino.0 as u32, stamp);
    }

    fn idle(&self) -> Option<Ino> {
        *self.fleet.idle.lock().unwrap()
    }

    /// The answer of a cell that lets the handle be kept, if `stamp` is not 0.
    fn answer(&mut self, ino: Ino, stamp: u64) -> Opened {
        self.next += 1;
        let handle = Handle { ino, open: self.next };
        let kept = (stamp != 0).then_some(Lease { word: ino.0 as u32, stamp });
        if stamp != 0 {
            self.set_word(ino, stamp);
        }
        Opened { handle, attr: attr(ino), keep_pages: true, direct: false, kept }
    }

    fn open_anew(&mut self, ino: Ino, unique: u64, stamp: u64) -> KernelHandle {
        assert_eq!(self.files.begin(ino, READ, unique), Ok(Begun::New));
        let opened = self.answer(ino, stamp);
        self.files.opened(&opened, READ, Some(CELL), unique).unwrap()
    }

    /// Begins a create, without a guard that would hold the bench.
    fn begin_create(&self) -> u64 {
        self.files.lock().creates.begin()
    }

    fn open_again(&self, ino: Ino, unique: u64) -> KernelHandle {
        match self.files.begin(ino, READ, unique) {
            Ok(Begun::Open(handle)) => handle,
            other => panic!("{other:?}"),
        }
    }

    fn unused(&self) -> Vec<Handle> {
        let unused = self.files.take_unused(usize::MAX);
        unused.iter().for_each(|closing| self.files.closed(*closing));
        unused.iter().map(|closing| closing.handle).collect()
    }
}

#[test]
fn a_kept_handle_serves_the_next_open() {
    let mut bench = Bench::new();
    let first = bench.open_anew(FILE, 10, 7);
    assert_eq!(bench.files.handle(first.number), Ok(first.handle));
    bench.files.release(first.number);
    assert_eq!((bench.idle(), bench.unused()), (Some(FILE), vec![]));
    let second = bench.open_again(FILE, 11);
    assert_eq!((second.handle, bench.idle()), (first.handle, None));
    assert_ne!(second.number, first.number);
    assert_eq!(bench.files.handle(first.number), Err(Errno::EBADF), "it is closed");
}

#[test]
fn no_file_becomes_idle_while_a_create_is_under_way() {
    let mut bench = Bench::new();
    // The cell has created and opened the file, and no thread has taken the answer.
    let creating = bench.begin_create();
    let created = bench.answer(FILE, 7);
    let other = bench.open_anew(FILE, 10, 7);
    bench.files.release(other.number);
    assert_eq!((bench.idle(), bench.unused()), (None, vec![]), "a cell must not close the new one");
    bench.files.begin_new(FILE);
    let created = bench.files.opened(&created, READ, Some(CELL), 11).unwrap();
    bench.files.create_ended(creating);
    assert_eq!(bench.idle(), None, "it is open");
    bench.files.release(created.number);
    assert_eq!(bench.idle(), Some(FILE));
}

#[test]
fn a_file_waits_only_for_the_creates_before_its_close() {
    let mut bench = Bench::new();
    let [first, second] = [(); 2].map(|()| bench.begin_create());
    let opened = bench.open_anew(FILE, 10, 7);
    bench.files.release(opened.number);
    let third = bench.begin_create();
    bench.files.create_ended(second);
    assert_eq!(bench.idle(), None);
    bench.files.create_ended(first);
    assert_eq!(bench.idle(), Some(FILE), "the third cannot have created it");
    bench.files.create_ended(third);
    // A cell may have taken the word back meanwhile.
    let last = bench.begin_create();
    let opened = bench.open_again(FILE, 11);
    bench.files.release(opened.number);
    bench.set_word(FILE, 0);
    bench.files.create_ended(last);
    assert_eq!((bench.idle(), bench.unused()), (None, vec![opened.handle]));
}

#[test]
fn a_handle_without_a_lease_is_closed_with_its_open() {
    let mut bench = Bench::new();
    let first = bench.open_anew(FILE, 10, 0);
    let second = bench.open_anew(FILE, 11, 0);
    bench.files.release(first.number);
    assert_eq!((bench.idle(), bench.unused()), (None, vec![first.handle]));
    bench.files.release(second.number);
    assert_eq!((bench.idle(), bench.unused()), (None, vec![second.handle]));
}

#[test]
fn a_handle_whose_word_is_void_is_not_used_again() {
    let mut bench = Bench::new();
    let first = bench.open_anew(FILE, 10, 7);
    bench.files.release(first.number);
    bench.set_word(FILE, 0);
    let second = bench.open_anew(FILE, 11, 8);
    assert_eq!(bench.unused(), [first.handle]);
    // The word is void when the last open ends.
    bench.set_word(FILE, 0);
    bench.files.release(second.number);
    assert_eq!((bench.idle(), bench.unused()), (None, vec![second.handle]));
}

#[test]
fn a_void_handle_stays_for_the_opens_that_use_it() {
    let mut bench = Bench::new();
    let first = bench.open_anew(FILE, 10, 7);
    bench.set_word(FILE, 0);
    let second = bench.open_anew(FILE, 11, 8);
    assert_eq!(bench.unused(), []);
    bench.files.release(second.number);
    assert_eq!((bench.idle(), bench.unused()), (None, vec![]));
    bench.files.release(first.number);
    assert_eq!((bench.idle(), bench.unused()), (Some(FILE), vec![first.handle]));
    assert_eq!(bench.open_again(FILE, 12).handle, second.handle);
}

#[test]
fn a_void_handle_is_closed_with_its_last_open_while_the_inode_is_open() {
    let mut bench = Bench::new();
    let reading = bench.open_anew(FILE, 10, 7);
    assert_eq!(bench.files.begin(FILE, AccessMode::WRITE, 11), Ok(Begun::New));
    let opened = bench.answer(FILE, 7);
    let writing = bench.files.opened(&opened, AccessMode::WRITE, Some(CELL), 11).unwrap();
    bench.files.release(writing.number);
    assert!(bench.unused().is_empty(), "it is kept");
    assert!(matches!(bench.files.begin(FILE, AccessMode::WRITE, 12), Ok(Begun::Open(_))));
    bench.set_word(FILE, 0);
    let writing = bench.files.kernel_handle(1);
    bench.files.release(writing.number);
    assert_eq!(bench.unused(), [writing.handle]);
    assert_eq!(bench.files.handle(reading.number), Ok(reading.handle));
}

#[test]
fn an_inode_whose_mark_is_displaced_is_closed() {
    let mut bench = Bench::new();
    let first = bench.open_anew(FILE, 10, 7);
    let other = bench.open_anew(Ino(6), 11, 8);
    bench.files.release(first.number);
    bench.files.release(other.number);
    assert_eq!((bench.idle(), bench.unused()), (Some(Ino(6)), vec![first.handle]));
    bench.open_anew(FILE, 12, 9);
}

#[test]
fn handles_that_a_cell_has_closed_are_not_closed_again() {
    let mut bench = Bench::new();
    let first = bench.open_anew(FILE, 10, 7);
    bench.files.release(first.number);
    bench.set_word(FILE, 0);
    bench.fleet.closed.lock().unwrap().insert(FILE);
    let other = bench.open_anew(Ino(6), 11, 8);
    bench.files.release(other.number);
    assert_eq!((bench.idle(), bench.unused()), (Some(Ino(6)), vec![]));
    assert_eq!(bench.state.opens().held_handle(0), None);
}

#[test]
fn an_open_that_fails_leaves_the_inode_idle() {
    let mut bench = Bench::new();
    let first = bench.open_anew(FILE, 10, 7);
    bench.files.release(first.number);
    let both = READ | AccessMode::WRITE;
    assert_eq!(bench.files.begin(FILE, both, 11), Ok(Begun::New));
    assert_eq!(bench.idle(), None);
    bench.files.failed(FILE);
    assert_eq!(bench.idle(), Some(FILE));
    assert_eq!(bench.files.begin(Ino(6), READ, 12), Ok(Begun::New));
    bench.files.failed(Ino(6));
    assert_eq!((bench.idle(), bench.unused()), (Some(FILE), vec![]));
}

#[test]
fn idle_handles_are_given_up_when_there_is_no_room() {
    let mut bench = Bench::new();
    let used = bench.open_anew(FILE, 10, 7);
    let idle = bench.open_anew(Ino(6), 11, 8);
    bench.files.release(idle.number);
    bench.files.drop_idle();
    assert_eq!((bench.idle(), bench.unused()), (None, vec![idle.handle]));
    assert_eq!(bench.files.handle(used.number), Ok(used.handle));
}

#[test]
fn a_successor_has_the_opens_and_closes_what_is_idle() {
    let mut bench = Bench::new();
    let used = bench.open_anew(FILE, 10, 7);
    let shared = bench.open_again(FILE, 11);
    let idle = bench.open_anew(Ino(6), 12, 8);
    bench.files.release(idle.number);
    bench.restart();
    assert_eq!(bench.unused(), [idle.handle]);
    assert_eq!(bench.files.handle(used.number), Ok(used.handle));
    // The kernel sends the requests again.
    let resent = 11 | abi::UNIQUE_RESEND;
    assert_eq!(bench.open_again(FILE, resent), shared);
    bench.files.release(idle.number);
    bench.files.release(used.number);
    bench.files.release(used.number);
    assert_eq!((bench.idle(), bench.unused()), (Some(Ino(6)), vec![]));
    bench.files.release(shared.number);
    assert_eq!(bench.idle(), Some(FILE));
    assert_eq!(bench.open_again(FILE, 13).handle, used.handle);
}

/// A program waits for the request that closes them.
#[test]
fn handles_of_a_predecessor_are_closed_a_few_at_a_time_and_the_newest_first() {
    let mut bench = Bench::new();
    let kept: Vec<Handle> = (0..20)
        .map(|number| {
            let opened = bench.open_anew(Ino(100 + number), 10 + number, 7);
            bench.files.release(opened.number);
            opened.handle
        })
        .collect();
    bench.restart();
    let opened = bench.open_anew(FILE, 50, 0);
    bench.files.release(opened.number);
    let mut closed: Vec<Handle> = Vec::new();
    for expected in [8, 8, 5, 0] {
        let closing = bench.files.take_unused(8);
        assert_eq!(closing.len(), expected);
        closing.iter().for_each(|closing| bench.files.closed(*closing));
        closed.extend(closing.iter().map(|closing| closing.handle));
    }
    assert!(closed[..8].contains(&opened.handle), "the request's own");
    assert!(kept.iter().all(|handle| closed.contains(handle)));
}

#[test]
fn an_open_that_was_executed_before_the_front_died_is_added_once() {
    let mut bench = Bench::new();
    assert_eq!(bench.files.begin(FILE, READ, 10), Ok(Begun::New));
    let opened = bench.answer(FILE, 7);
    let first = bench.files.opened(&opened, READ, Some(CELL), 10).unwrap();
    bench.restart();
    // A request that truncates does not look for a kept handle.
    bench.files.begin_new(FILE);
    let resent = 10 | abi::UNIQUE_RESEND;
    assert_eq!(bench.files.opened(&opened, READ, None, resent), Ok(first));
    bench.files.release(first.number);
    assert_eq!((bench.idle(), bench.unused()), (Some(FILE), vec![]));
}

#[test]
fn an_open_without_its_handle_does_not_count() {
    let mut bench = Bench::new();
    let open = KernelOpen { unique: 10, handle: 3, generation: 1 };
    bench.state.opens().set_open(0, open);
    bench.restart();
    assert_eq!(bench.state.opens().open(0).unique, 0);
    let opened = bench.open_anew(FILE, 10 | abi::UNIQUE_RESEND, 7);
    assert_eq!(bench.files.handle(opened.number), Ok(opened.handle));
}
