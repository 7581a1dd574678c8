//! The room in a log, and what a successor finds in the log.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, TASKS_MAX};
use warren_base::{BlockNo, ClientId, Errno, Ino, Lsn, ShardId, SlotNo, TxnId};
use warren_cell::{Event, PeerBody};
use warren_disk::{Key, Value, Xattr};
use warren_pool::PoolMessage;
use warren_proto::control::Order;
use warren_proto::{
    AccessMode, Answer, ByteRange, FileKind, Handle, LockFlavour, LockKey, LockMode, LockOwner,
    LockSpec, LockType, PeerReply, PeerRequest, Position, ReadFlags, Reply, Request,
};

use crate::bench::*;

fn spec(flavour: LockFlavour, owner: u64, lock: LockType, range: ByteRange) -> LockSpec {
    LockSpec { flavour, owner: LockOwner(owner), lock, range, pid: 1 }
}

/// The first handle of [`open`].
const FIRST: Handle = Handle { ino: FILE, open: (1 << 40) + 1 };

fn fsync(handle: Handle) -> Request {
    Request::Fsync { ino: FILE, handle: Some(handle), data_only: false }
}

fn flock(owner: u64, lock: LockType, wait: bool) -> Request {
    let spec = spec(LockFlavour::Flock, owner, lock, ByteRange::ALL);
    Request::Lock { handle: FIRST, spec, wait }
}

fn record_lock(lock: LockType, start: u64, end: u64) -> Request {
    let spec = spec(LockFlavour::Record, 1, lock, ByteRange { start, end });
    Request::Lock { handle: FIRST, spec, wait: false }
}

fn open(bench: &mut Bench) -> Handle {
    let access = AccessMode::READ | AccessMode::WRITE;
    match bench.call(Request::Open { ino: FILE, access }) {
        Ok(Reply::Opened(opened)) => opened.handle,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flock_that_was_released_in_vain_is_free_after_a_death() {
    let mut bench = Bench::new(&Image::new(), false);
    bench.grants = false;
    open(&mut bench);
    for owner in [1, 2] {
        assert_eq!(bench.call(flock(owner, LockType::Shared, false)), Ok(Reply::Done));
    }
    assert_eq!(bench.ask(flock(3, LockType::Exclusive, true)), None);
    assert_eq!(bench.call(flock(1, LockType::Exclusive, false)), Err(Errno::EAGAIN));
    assert_eq!(bench.call(flock(2, LockType::Unlock, false)), Ok(Reply::Done));
    let answers: Vec<Answer> = std::mem::take(&mut bench.answers).into_values().collect();
    assert_eq!(answers, [Ok(Reply::Done)], "the third has it");
    bench.take_over();
    assert_eq!(bench.call(flock(4, LockType::Shared, false)), Err(Errno::EAGAIN));
    assert_eq!(bench.call(flock(3, LockType::Unlock, false)), Ok(Reply::Done));
    assert_eq!(bench.call(flock(4, LockType::Exclusive, false)), Ok(Reply::Done));
}

#[test]
fn a_flock_that_was_released_to_wait_is_free_after_a_death() {
    let mut bench = Bench::new(&Image::new(), false);
    bench.grants = false;
    open(&mut bench);
    for owner in [1, 2] {
        assert_eq!(bench.call(flock(owner, LockType::Shared, false)), Ok(Reply::Done));
    }
    assert_eq!(bench.ask(flock(1, LockType::Exclusive, true)), None);
    assert_eq!(bench.call(flock(2, LockType::Exclusive, false)), Ok(Reply::Done));
    bench.take_over();
    assert_eq!(bench.call(flock(3, LockType::Shared, false)), Err(Errno::EAGAIN));
    assert_eq!(bench.call(flock(2, LockType::Unlock, false)), Ok(Reply::Done));
    assert_eq!(bench.call(flock(3, LockType::Exclusive, false)), Ok(Reply::Done));
}

/// More requests wait than a cell has live tasks. Some are interrupted, some end with their client,
/// and then the process dies.
#[test]
fn requests_that_wait_for_locks_take_no_tasks_and_outlive_a_death() {
    const CROWD: u64 = TASKS_MAX as u64 + 64;
    let other = ClientId(9);
    let mut bench = Bench::new(&Image::new(), false);
    open(&mut bench);
    bench.admit(other);
    let access = AccessMode::READ;
    let Some(Ok(Reply::Opened(opened))) = bench.ask_as(other, Request::Open { ino: FILE, access })
    else {
        panic!("it is opened");
    };
    let exclusive = flock(1, LockType::Exclusive, false);
    assert_eq!(bench.call(exclusive), Ok(Reply::Done));
    let wait = |bench: &mut Bench| {
        bench.lock_waiters.clear();
        for owner in 2..2 + CROWD {
            assert_eq!(bench.ask(flock(owner, LockType::Shared, true)), None);
        }
        assert_eq!(bench.tasks(), (0, CROWD as usize));
        assert_eq!(bench.lock_waiters.len(), CROWD as usize, "it says so of each once");
    };
    wait(&mut bench);
    let interrupted = bench.lock_waiters[7];
    let seq = u32::from(interrupted.slot.0);
    let cancel = Request::Cancel { slot: interrupted.slot, seq };
    assert_eq!(bench.call(cancel), Ok(Reply::Done));
    assert_eq!(bench.answers.remove(&seq), Some(Err(Errno::EINTR)));
    let spec = spec(LockFlavour::Flock, 1, LockType::Shared, ByteRange::ALL);
    for _ in 0..100 {
        let wanted = Request::Lock { handle: opened.handle, spec, wait: true };
        assert_eq!(bench.ask_as(other, wanted), None);
    }
    assert_eq!(bench.tasks(), (0, CROWD as usize + 99));
    bench.apply(Event::Order(Order::Expel { client: other }));
    assert_eq!(bench.tasks(), (0, CROWD as usize - 1));
    assert!(bench.answers.is_empty());
    // The successor finds their requests in their slots.
    bench.take_over();
    assert_eq!(bench.tasks(), (0, 0));
    wait(&mut bench);
    assert_eq!(bench.call(flock(1, LockType::Unlock, false)), Ok(Reply::Done));
    let answers: Vec<Answer> = std::mem::take(&mut bench.answers).into_values().collect();
    assert_eq!(answers, vec![Ok(Reply::Done); CROWD as usize]);
    assert_eq!(bench.tasks(), (0, 0));
}

/// A front was granted a lock and has to drop old pages before it is answered. Other owners have
/// been refused because of the lock, so it outlives the process, and the wait for the pages cannot
/// be interrupted (seed 54000004621).
#[test]
fn a_lock_that_was_granted_and_not_answered_outlives_a_death() {
    let front = ClientId(5);
    let mut bench = Bench::new(&Image::new(), false);
    bench.admit_front(front);
    open(&mut bench);
    let access = AccessMode::READ;
    let answer = bench.ask_as(front, Request::Open { ino: FILE, access });
    let Some(Ok(Reply::Opened(opened))) = answer else { panic!("{answer:?}") };
    let (handle, position) = (opened.handle, Position::At(0));
    let read =
        Request::Read { handle, position, len: BLOCK_SIZE as u32, flags: ReadFlags::empty() };
    assert!(bench.ask_as(front, read).is_some());
    assert_eq!(bench.call(flock(1, LockType::Exclusive, false)), Ok(Reply::Done));
    let spec = spec(LockFlavour::Flock, 2, LockType::Exclusive, ByteRange::ALL);
    let wanted = Request::Lock { handle, spec, wait: true };
    assert_eq!(bench.ask_as(front, wanted.clone()), None);
    assert_eq!(bench.ask(write(FIRST, 0)), None, "the front has the page");
    assert_eq!(bench.call(flock(1, LockType::Unlock, false)), Ok(Reply::Done));
    assert_eq!(bench.call(flock(3, LockType::Exclusive, false)), Err(Errno::EAGAIN));
    assert!(bench.answers.is_empty(), "it has the page still");
    bench.take_over();
    bench.admit_front(front);
    assert_eq!(bench.call(flock(3, LockType::Exclusive, false)), Err(Errno::EAGAIN));
    assert_eq!(bench.ask_as(front, wanted), None, "it may have pages of before");
    let seq = bench.seq;
    let cancel = Request::Cancel { slot: SlotNo(seq as u16), seq };
    assert_eq!(bench.ask_as(front, cancel), Some(Ok(Reply::Done)));
    assert!(bench.answers.is_empty(), "what has a lock is not interrupted");
    let listens = |acknowledged| Request::AwaitRecall { pages: true, acknowledged };
    let recall = bench.ask_as(front, listens(0));
    let Some(Ok(Reply::Recall { number, .. })) = recall else { panic!("{recall:?}") };
    bench.ask_as(front, listens(number));
    assert_eq!(bench.answers.remove(&seq), Some(Ok(Reply::Done)));
}

#[test]
fn what_changes_the_session_alone_waits_for_room_in_the_log() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench);
    let lock = record_lock(LockType::Exclusive, 0, 9);
    let unlock = record_lock(LockType::Unlock, 0, 9);
    for request in [Request::Seek { handle, position: 7 }, lock, unlock] {
        bench.grants = false;
        while let Some(answer) = bench.ask(request.clone()) {
            assert!(answer.is_ok());
        }
        let look = Request::GetAttr { ino: FILE };
        assert!(bench.call(look).is_ok(), "who only looks does not wait");
        bench.grants = true;
        bench.grant();
        let answers: Vec<Answer> = std::mem::take(&mut bench.answers).into_values().collect();
        assert_eq!(answers, [Ok(Reply::Done)]);
    }
}

#[test]
fn locks_are_not_made_more_by_unlocking() {
    let mut bench = Bench::new(&Image::new(), false);
    open(&mut bench);
    let whole = record_lock(LockType::Exclusive, 0, u64::MAX);
    assert_eq!(bench.call(whole.clone()), Ok(Reply::Done));
    let punch = |n: u64| record_lock(LockType::Unlock, 2 * n + 1, 2 * n + 1);
    let mut punched = (0..).map(|n| bench.call(punch(n))).take_while(|answer| answer.is_ok());
    let count = punched.by_ref().count();
    assert!((1000..4096).contains(&count), "{count} locks");
    assert_eq!(bench.call(punch(5000)), Err(Errno::ENOLCK));
    assert_eq!(bench.call(record_lock(LockType::Unlock, 0, 4)), Ok(Reply::Done), "these are fewer");
    bench.grants = false;
    assert_eq!(bench.call(record_lock(LockType::Unlock, 0, u64::MAX)), Ok(Reply::Done));
    assert_eq!(bench.call(whole), Ok(Reply::Done));
}

fn write(handle: Handle, page: u32) -> Request {
    let position = Position::At(u64::from(page) * BLOCK_SIZE as u64);
    Request::Write { handle, position, kill_privileges: false, write_back: false, direct: false }
}

#[test]
fn a_device_that_fails_takes_no_more_of_the_log_than_there_is() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench);
    bench.fails = Some(Errno::ENOSPC);
    // Each page is alone, and needs a record of its own.
    let refused = (0..FRAMES).find(|page| bench.call(write(handle, 2 * page)).is_err());
    // The checkpoint writes them back that begins when few chunks are left.
    assert!(refused.is_some_and(|page| page > FRAMES / 8), "written back at {refused:?}");
    for _ in 0..5 {
        assert_eq!(bench.call(Request::Sync), Err(Errno::ENOSPC));
        assert_eq!(bench.call(fsync(handle)), Err(Errno::ENOSPC));
    }
    assert!(bench.call(Request::GetAttr { ino: FILE }).is_ok());
    bench.fails = None;
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    assert!(bench.call(write(handle, 1)).is_ok());
    assert_eq!(bench.call(fsync(handle)), Ok(Reply::Done));
}

#[test]
fn nothing_is_durable_any_more_when_the_supervisors_flush_has_failed() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench);
    let fsync = fsync(handle);
    assert!(bench.call(write(handle, 0)).is_ok());
    assert_eq!(bench.call(fsync.clone()), Ok(Reply::Done));
    bench.broken_device = true;
    assert_eq!(bench.call(Request::Sync), Err(Errno::EIO));
    assert_eq!(bench.call(write(handle, 0)), Err(Errno::EROFS));
    assert_eq!(bench.call(fsync), Err(Errno::EIO));
}

/// Takes all room in the log, with a checkpoint withheld.
fn fill(bench: &mut Bench) {
    let handle = open(bench);
    bench.grants = false;
    while bench.ask(Request::Seek { handle, position: 7 }).is_some() {}
}

#[test]
fn nothing_is_prepared_for_which_the_log_has_no_room() {
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    fill(&mut bench);
    for seq in 1..1000 {
        let txn = TxnId { cell: PEER, seq };
        let keys = vec![(LockKey::Inode(FILE), LockMode::Write)];
        bench.sent.clear();
        bench.hear(PeerBody::Request(PeerRequest::Prepare {
            txn,
            client: CLIENT,
            is_privileged: false,
            keys,
        }));
        let refused = PeerReply::Refused { txn, errno: Errno::EAGAIN };
        assert_eq!(bench.sent, [PeerBody::Reply(refused)]);
    }
}

#[test]
fn messages_of_other_cells_do_not_fill_the_log() {
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    fill(&mut bench);
    for ask in 1..20_000 {
        bench.sent.clear();
        bench.hear_at(Lsn(64 * ask), PeerBody::Request(PeerRequest::Count { ask }));
        let counted = |body: &PeerBody| matches!(body, PeerBody::Reply(PeerReply::Counted { .. }));
        assert!(bench.sent.iter().any(counted));
    }
}

#[test]
fn clients_that_come_and_go_do_not_fill_the_log() {
    let mut bench = Bench::new(&Image::new(), false);
    fill(&mut bench);
    for client in (2..20_000).map(ClientId) {
        bench.admit(client);
        assert!(bench.ask_as(client, Request::GetAttr { ino: FILE }).is_some());
        bench.apply(Event::Order(Order::Expel { client }));
    }
}

/// Two clients of one user, one of another, one of root, and a front that acts for all of them.
#[test]
fn one_user_leaves_others_room_for_opens_and_locks() {
    let (hoarder, other) = (1000, 1001);
    let (again, of_other, of_root, front) = (ClientId(2), ClientId(3), ClientId(4), ClientId(5));
    let mut bench = Bench::new(&Image::new(), false);
    bench.apply(Event::Order(Order::Expel { client: CLIENT }));
    let first = ClientId(6);
    for (client, uid) in [(first, hoarder), (again, hoarder), (of_other, other), (of_root, 0)] {
        bench.admit_as(client, uid, false);
    }
    bench.admit_as(front, 0, true);
    let open = Request::Open { ino: FILE, access: AccessMode::READ };
    let is_open = |answer: &Option<Answer>| matches!(answer, Some(Ok(Reply::Opened(_))));
    let spec = spec(LockFlavour::Record, 1, LockType::Shared, ByteRange { start: 0, end: 9 });
    let lock = |handle| Request::Lock { handle, spec, wait: false };
    let handle_of = |answer| match answer {
        Some(Ok(Reply::Opened(opened))) => opened.handle,
        other => panic!("{other:?}"),
    };
    // The first handle of each of the hoarder's clients.
    let second = Handle { open: FIRST.open + 1, ..FIRST };
    let mut hoarded = 0;
    while is_open(&bench.ask_as(if hoarded % 2 == 0 { first } else { again }, open.clone())) {
        hoarded += 1;
    }
    assert!(hoarded > 500, "{hoarded} files");
    let refused = (Some(Err(Errno::ENFILE)), Some(Err(Errno::ENOLCK)));
    for (client, handle) in [(first, FIRST), (again, second)] {
        let got = (bench.ask_as(client, open.clone()), bench.ask_as(client, lock(handle)));
        assert_eq!(got, refused);
    }
    // Also if a front asks on behalf of the user.
    assert_eq!(bench.ask_through(front, hoarder, open.clone()), refused.0);
    let check_others = |bench: &mut Bench, count: usize| {
        for _ in 0..count {
            assert!(is_open(&bench.ask_as(of_other, open.clone())));
            assert!(is_open(&bench.ask_through(front, other, open.clone())));
        }
    };
    check_others(&mut bench, hoarded / 4 - 1);
    // Neither a death nor a checkpoint changes that.
    bench.begin_checkpoint();
    bench.take_over();
    for (client, uid) in [(first, hoarder), (again, hoarder), (of_other, other), (of_root, 0)] {
        bench.admit_as(client, uid, false);
    }
    bench.admit_as(front, 0, true);
    assert_eq!((bench.ask_as(first, open.clone()), bench.ask_as(again, lock(second))), refused);
    assert_eq!(bench.ask_through(front, hoarder, open.clone()), refused.0);
    while is_open(&bench.ask_as(of_other, open.clone())) {}
    while is_open(&bench.ask_through(front, 1002, open.clone())) {}
    // Only root can use the rest.
    let handle = handle_of(bench.ask_as(of_root, open.clone()));
    assert_eq!(bench.ask_as(of_root, lock(handle)), Some(Ok(Reply::Done)));
    for _ in 0..hoarded / 10 {
        assert!(is_open(&bench.ask_as(of_root, open.clone())));
        assert!(is_open(&bench.ask_through(front, 0, open.clone())) || hoarded == 0);
    }
    // Other users get the room of clients that are gone.
    bench.apply(Event::Order(Order::Expel { client: first }));
    bench.apply(Event::Order(Order::Expel { client: again }));
    check_others(&mut bench, 100);
    let handle = handle_of(bench.ask_through(front, hoarder, open));
    assert_eq!(bench.ask_through(front, hoarder, lock(handle)), Some(Ok(Reply::Done)));
}

#[test]
fn the_last_answers_outlive_two_deaths_and_a_checkpoint() {
    let mut bench = Bench::new(&Image::new(), false);
    bench.grants = false;
    let handle = open(&mut bench);
    // Each in a slot of its own: more answers than can be logged again.
    for _ in 0..600 {
        assert_eq!(bench.call(Request::Seek { handle, position: 7 }), Ok(Reply::Done));
    }
    let link = Request::Link { ino: FILE, dir: Ino::ROOT, name: name("l") };
    let answer = bench.call(link.clone());
    assert!(answer.is_ok());
    bench.take_over();
    bench.grant();
    bench.take_over();
    let again = bench.ask_again(link);
    assert!(matches!(again, Some(Ok(Reply::Entry(_)))), "it was executed twice: {again:?}");
}

#[test]
fn what_a_checkpoint_holds_of_a_directory_half_reaped_is_one() {
    let mut image = Image::new();
    let gone = Ino(DIR.0 + 1);
    image.inode(gone, FileKind::Directory, 0);
    image.part(gone, 0, 0);
    image.put(1, Key::orphan(gone), Value::Orphan);
    for sub in 0..500 {
        let xattr = Xattr::new(b"user.x", &[1; 50]);
        image.put(1, Key::xattr(gone, sub), Value::Xattrs([xattr].into()));
    }
    // A leaf among them cannot be read.
    let leaf = BlockNo(image.chunks[1] * CHUNK_BLOCKS + 6);
    let mut bench = Bench::with_unreadable(&image, &[], &[leaf]);
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    let has = |key| bench.recorded(1, &key).is_some();
    assert!(!has(Key::xattr(gone, 0)) && has(Key::xattr(gone, 499)), "half reaped");
    assert!(has(Key::inode(gone)) && has(Key::part(gone, 0)));
}

fn blocks_free(bench: &mut Bench) -> u64 {
    match bench.call(Request::StatFs) {
        Ok(Reply::StatFs(volume)) => volume.blocks_free,
        other => panic!("{other:?}"),
    }
}

#[test]
fn checkpoints_that_fail_do_not_use_the_device_up() {
    let mut bench = Bench::new(&Image::new(), false);
    assert!(bench.call(create(Ino::ROOT, "a", FileKind::Regular)).is_ok());
    bench.fails = Some(Errno::EIO);
    assert_eq!(bench.call(Request::Sync), Err(Errno::EIO));
    let free = blocks_free(&mut bench);
    for _ in 0..500 {
        assert_eq!(bench.call(Request::Sync), Err(Errno::EIO));
        assert_eq!(blocks_free(&mut bench), free);
    }
    bench.fails = None;
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    assert!(bench.call(create(Ino::ROOT, "b", FileKind::Regular)).is_ok());
}

#[test]
fn where_a_checkpoint_that_was_given_up_still_writes_no_other_does() {
    let mut bench = Bench::new(&Image::new(), false);
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    let free = blocks_free(&mut bench);
    assert!(bench.call(create(Ino::ROOT, "a", FileKind::Regular)).is_ok());
    bench.is_slow = true;
    for attempt in 0..3 {
        bench.begin_checkpoint();
        let mut blocks = bench.blocks_under_way();
        let count = blocks.len();
        assert!(count > attempt, "it writes");
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), count, "a block is being written twice");
        bench.abandon();
    }
    bench.finish_writes();
    for _ in 0..2 {
        bench.begin_checkpoint();
    }
    assert!(free - blocks_free(&mut bench) <= 1);
}

#[test]
fn what_could_not_be_written_before_a_death_is_written_after_it() {
    let mut bench = Bench::new(&Image::new(), false);
    bench.grants = false;
    let handle = open(&mut bench);
    let fsync = fsync(handle);
    bench.fails = Some(Errno::EIO);
    let pages = FRAMES / 4 + 9;
    for page in 0..pages {
        assert!(bench.call(write(handle, 2 * page)).is_ok());
    }
    bench.grants = true;
    bench.take_over();
    assert_eq!(bench.call(fsync.clone()), Err(Errno::EIO));
    bench.fails = None;
    assert_eq!(bench.written(), 0);
    assert_eq!(bench.call(fsync), Ok(Reply::Done));
    assert_eq!(bench.written(), pages as usize);
}

#[test]
fn what_another_cells_log_has_no_room_for_is_tried_again_after_a_checkpoint() {
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    let prepared = |bench: &mut Bench| {
        let sent = std::mem::take(&mut bench.sent);
        sent.into_iter().find_map(|body| match body {
            PeerBody::Request(PeerRequest::Prepare { txn, .. }) => Some(txn),
            _ => None,
        })
    };
    let there = Ino(u64::from(ShardId(2).0) << 48 | 1);
    bench.grants = false;
    assert_eq!(bench.ask(Request::Link { ino: there, dir: Ino::ROOT, name: name("l") }), None);
    let first = prepared(&mut bench).expect("a part of it lies there");
    let refused = PeerReply::Refused { txn: first, errno: Errno::EAGAIN };
    bench.hear(PeerBody::Reply(refused));
    assert!(bench.sent.contains(&PeerBody::Request(PeerRequest::Abort { txn: first })));
    assert_eq!(prepared(&mut bench), None);
    bench.grant();
    assert!(prepared(&mut bench).is_some_and(|second| second != first));
    assert!(bench.answers.is_empty());
}

#[test]
fn what_a_predecessor_has_executed_is_not_refused() {
    let mut bench = Bench::new(&Image::new(), false);
    let made = bench.call(create(Ino::ROOT, "once", FileKind::Directory));
    bench.take_over();
    let again = bench.refuse(false).expect("an answer");
    let ino_of = |answer: &Answer| match answer {
        Ok(Reply::Created { entry, .. } | Reply::Entry(entry)) => entry.ino,
        other => panic!("{other:?}"),
    };
    assert_eq!(ino_of(&again), ino_of(&made));
    assert_eq!(bench.refuse(true), Some(Err(Errno::EIO)));
    assert!(bench.call(create(Ino::ROOT, "twice", FileKind::Directory)).is_ok());
}
